// SPDX-License-Identifier: Apache-2.0
//
// Recirculating packets by the time at which they return: a binary heap, ordered by time, then by
// the number of their insertion.

#ifndef RACKHUB_RECIRCULATION_H
#define RACKHUB_RECIRCULATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sw_packet;

struct rounding {
    int64_t at;
    uint64_t number;
    struct sw_packet *packet;
};

struct rounds { // all zero: empty
    struct rounding *heap;
    size_t count, room;
    uint64_t number;
};

bool rounds_push(struct rounds *rounds, struct sw_packet *packet, int64_t at); // false: no memory
struct rounding rounds_pop(struct rounds *rounds);                             // there is one
int64_t rounds_next(const struct rounds *rounds);                              // or INT64_MAX
void rounds_clear(struct rounds *rounds); // frees its memory, not the packets

#endif
