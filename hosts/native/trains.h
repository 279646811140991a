// SPDX-License-Identifier: Apache-2.0
// Trains of datagrams at a UDP socket: sequences of datagrams of one size and one peer, which the
// kernel splits (UDP_SEGMENT) and joins (UDP_GRO).
#ifndef RACKHUB_TRAINS_H
#define RACKHUB_TRAINS_H

#include <stdbool.h>

#include "packet.h"

struct received; // a train that was received: trains.c

// Room for packets that are received, and those of the last call: Receiver in hosts/net/trains.py.
// Trains lie one after the other in the arena. As long as they consist of packets of `wide` bytes,
// these are decoded.
struct inbox {
    uint8_t *arena;
    struct received *trains; // `most` of them
    struct header *headers;  // `most` plus the largest train's
    bool *full;
    struct peer *sources;
    int64_t room, most, wide; // bytes of the arena; trains; bytes of a packet
    int64_t timed;            // 1: the socket stamps datagrams (SO_TIMESTAMPNS)
    // Results.
    int64_t trains_length, packets; // packets: decoded ones, see `regular`
    int64_t error;   // errno; 0 if nothing was left or no more would fit
    int64_t regular; // 1 if all packets are well-formed and have a payload
    double queued;   // of `timed`: seconds from arrival until read, the mean of datagrams
};

void receive_trains(int socket, struct inbox *inbox);
int send_train(int socket, const uint8_t *packets, size_t size, size_t count,
               const struct peer *destination);
int64_t send_trains(int socket, const uint8_t *wire, size_t size, const struct peer *destinations,
                    size_t n, size_t most, uint64_t *packets);

#endif
