// SPDX-License-Identifier: Apache-2.0
//
// The part of a train (offload.h) that most of its packets come through.

#ifndef RACKHUB_TRAIN_H
#define RACKHUB_TRAIN_H

#include "checksum.h"
#include "offload.h"

// The headers of the next packet, if it is as long as this one: identification one higher, which
// makes the checksum one lower (RFC 1624), and the sequence number that follows.
static inline void train_advance(struct train *train) {
    uint8_t *ip = train->next + 14, *transport = train->next + 34;
    store16(ip + 4, ++train->id);
    uint32_t checksum = load16(ip + 10);
    if (train->id != 0) // or 65535 less, which is the same
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

// Whether a packet, as long as the first, has the headers that the train expects: then it is one
// that train_join would take, if train->implied and its checksum is put off as the first's.
static inline bool train_expects(const struct train *train, const uint8_t *packet) {
    const uint8_t *next = train->next;
    // In pieces as a header is written, or loads would wait until that is done.
    uint64_t difference = differ(packet, next, 8) | differ(packet + 8, next + 8, 4) |
                          differ(packet + 12, next + 12, 2) | differ(packet + 14, next + 14, 8) |
                          differ(packet + 22, next + 22, 8) | differ(packet + 30, next + 30, 4);
    uint32_t end = train->headers - 8;
    for (uint32_t at = 34; at < end; at += 8)
        difference |= differ(packet + at, next + at, 8);
    return (difference | differ(packet + end, next + end, 8)) == 0;
}

// Takes such a packet into the train.
static inline void train_extend(struct train *train) {
    train->count++;
    train->bytes += train->headers + train->size;
    train->ip_length += train->size;
    train->sequence += train->size;
    train_advance(train);
}

#endif
