// SPDX-License-Identifier: Apache-2.0
//
// What left one port of a switch in virtual time in one call, in order, for whoever collects it.

#ifndef RACKHUB_DEPARTED_H
#define RACKHUB_DEPARTED_H

#include <stdbool.h>

#include "timed.h"

// One packet; fields as in struct timed_departures.
struct departure {
    int64_t end, input, came;
    size_t length;
    uint32_t stored;
    uint8_t priority;
};

struct departed {
    bool watched; // `came` is kept
    uint64_t count, room;
    int64_t *ends, *lengths, *inputs, *came;
    uint32_t *stored;
    uint8_t *priorities, *frames;
    uint64_t kept, frames_room; // bytes of frames
    uint32_t most, least;       // bytes stored of a frame
    uint64_t bytes;             // of packets, stored or not
};

void departed_forget(struct departed *departed); // all packets; their room stays
void departed_clear(struct departed *departed);  // frees its memory

// Room for one more packet, of any size; its first bytes go to where departed_end is. false: no
// memory.
bool departed_room(struct departed *departed);

static inline uint8_t *departed_end(const struct departed *departed) {
    return departed->frames + departed->kept;
}

void departed_add(struct departed *departed, const struct departure *one);

// All of it, behind `at` packets and `kept` bytes of other ports'. Rows of bytes are as long as the
// longest; behind what is stored of a frame are zeros.
void departed_copy(const struct departed *departed, const struct timed_departures *into,
                   uint64_t at, uint64_t kept);

#endif
