// SPDX-License-Identifier: Apache-2.0
//
// Packets in flight from a port of one switch to a port of another in virtual time, in the order in
// which they left; their stored bytes lie one after the other.
//
// What leaves within a window (timed_run.c) is kept apart until its end, so that both switches may
// use the wire at the same time.

#ifndef RACKHUB_WIRE_H
#define RACKHUB_WIRE_H

#include <stdbool.h>

#include "timed_ports.h"

struct flying {
    int64_t at; // when it arrives
    uint32_t length, stored;
};

// flying[first .. end) and frames[start .. stop) are in flight; what precedes them has been taken,
// and is reclaimed when room is needed.
struct flight {
    struct flying *flying;
    uint64_t first, end, room;
    uint8_t *frames;
    uint64_t start, stop, frames_room;
};

struct wire {
    // Of the receiver.
    struct timed *to;
    uint32_t port;
    uint64_t rank, waited; // packets that have waited while the receiver was stopped
    struct flight flight;
    // Of the sender.
    int64_t delay;
    struct flight leaving; // in this window
    struct timed_carried carried; // but for `arrived`
};

struct wire *wire_create(struct timed *to, uint32_t port, int64_t delay, uint64_t rank); // or NULL
void wire_destroy(struct wire *wire);                                                    // or NULL

// Room for one more packet, of any size; its first bytes go to where wire_end is. false: no memory.
bool wire_room(struct wire *wire);

// Ends a window: what has left is in flight. false: no memory.
bool wire_join(struct wire *wire);

static inline uint8_t *wire_end(const struct wire *wire) {
    return wire->leaving.frames + wire->leaving.stop;
}

// Adds a packet whose last bit leaves at a time, of which `stored` bytes are at wire_end.
static inline void wire_put(struct wire *wire, int64_t leaves, uint32_t length, uint32_t stored) {
    struct flight *leaving = &wire->leaving;
    wire->carried.packets++;
    wire->carried.bytes += length;
    leaving->flying[leaving->end++] = (struct flying){leaves + wire->delay, length, stored};
    leaving->stop += stored;
}

// Returns when the first arrives, or TIMED_NEVER.
static inline int64_t wire_next(const struct wire *wire) {
    const struct flight *flight = &wire->flight;
    return flight->first < flight->end ? flight->flying[flight->first].at : TIMED_NEVER;
}

// Takes the first, which must exist, and its bytes, which are valid until wire_join is called.
static inline struct flying wire_take(struct wire *wire, const uint8_t **bytes) {
    struct flight *flight = &wire->flight;
    struct flying one = flight->flying[flight->first++];
    *bytes = flight->frames + flight->start;
    flight->start += one.stored;
    wire->carried.arrived++;
    return one;
}

#endif
