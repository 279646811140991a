// SPDX-License-Identifier: Apache-2.0
//
// The fast path of a train (offload.h): most packets have exactly the headers in train->next.
//
// Invariant: train->next is the headers of the packet that would follow the last one with full
// size.

#ifndef RACKHUB_TRAIN_H
#define RACKHUB_TRAIN_H

#include "packet_checksums.h"
#include "offload.h"

// Computes the headers of the next packet of equal length: identification one higher, which makes
// the checksum one lower (RFC 1624), and the consecutive sequence number.
static inline void train_advance(struct train *train) {
    uint8_t *ip = train->next + 14, *transport = train->next + 34;
    store16(ip + 4, ++train->id);
    uint32_t checksum = load16(ip + 10);
    if (train->id != 0) // from 65535 to 0 it stays the same
        store16(ip + 10, checksum ? checksum - 1 : 0xfffe);
    if (train->tcp)
        store32(transport + 4, train->sequence);
}

static inline uint64_t differ(const uint8_t *a, const uint8_t *b, size_t bytes) {
    uint64_t one = 0, other = 0;
    memcpy(&one, a, bytes);
    memcpy(&other, b, bytes);
    return one ^ other;
}

// True if a packet, as long as the first, has the expected headers: then train_join would accept
// it, if train->implied and its checksum is incomplete as the first's.
static inline bool train_expects(const struct train *train, const uint8_t *packet) {
    const uint8_t *next = train->next;
    // Loaded in the pieces in which headers are written, or loads would wait for the stores.
    uint64_t difference = differ(packet, next, 8) | differ(packet + 8, next + 8, 4) |
                          differ(packet + 12, next + 12, 2) | differ(packet + 14, next + 14, 8) |
                          differ(packet + 22, next + 22, 8) | differ(packet + 30, next + 30, 4);
    uint32_t end = train->headers - 8;
    for (uint32_t at = 34; at < end; at += 8)
        difference |= differ(packet + at, next + at, 8);
    return (difference | differ(packet + end, next + end, 8)) == 0;
}

// Adds such a packet to the train.
static inline void train_extend(struct train *train) {
    train->count++;
    train->bytes += train->headers + train->size;
    train->ip_length += train->size;
    train->sequence += train->size;
    train_advance(train);
}

#endif
