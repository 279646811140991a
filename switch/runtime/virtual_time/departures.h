// SPDX-License-Identifier: Apache-2.0
//
// The departures of one port of a switch in virtual time in one call, in order, until
// timed_collect.
//
// Columns of `room` packets, and the stored bytes of all frames one after the other. `most` and
// `least` bound the stored bytes of a frame: if they are equal, frames are rows as they are, and many
// bytes of them are given to the caller instead of copied. `given`: bytes that were last.

#ifndef RACKHUB_DEPARTURES_H
#define RACKHUB_DEPARTURES_H

#include <stdbool.h>

#include "timed_ports.h"

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
    uint64_t kept, frames_room, given; // bytes of frames
    uint32_t most, least;       // bytes stored of a frame
    uint64_t bytes;             // of packets, stored or not
};

void departed_forget(struct departed *departed); // drops all packets, keeps their memory
void departed_clear(struct departed *departed);  // frees its memory
void departed_spare(struct departed *departed);  // drops all packets, and frees memory if it is scarce

// Makes room for one more packet of any size, whose first bytes go to departed_end. false: no
// memory.
bool departed_room(struct departed *departed);

static inline uint8_t *departed_end(const struct departed *departed) {
    return departed->frames + departed->kept;
}

void departed_add(struct departed *departed, const struct departure *one);

// Copies all columns behind `at` packets of other ports.
void departed_copy(const struct departed *departed, const struct timed_departures *into,
                   uint64_t at);

// True if its frames are to be given; the caller frees them. Else they are copied to rows of the
// length of the longest one, padded with zeros.
bool departed_gives(const struct departed *departed);
uint8_t *departed_give(struct departed *departed);
void departed_copy_frames(const struct departed *departed, uint8_t *rows);

#endif
