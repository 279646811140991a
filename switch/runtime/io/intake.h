// SPDX-License-Identifier: Apache-2.0
//
// The line of a link that ends at a port, for a sender who lets a frame go when its time on the line
// begins, as Linux's token buckets do (tc-htb(8)): a frame is held until its last bit would be there.
// Not thread safe. Times are nanoseconds of one monotonic clock.

#ifndef RACKHUB_INTAKE_H
#define RACKHUB_INTAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ring.h"
#include "target.h"

struct intake {
    uint64_t rate;    // bit/s; 0: nothing is held
    uint64_t free_ns; // when what is on the line is there
    uint32_t length;  // of that; 0: the line is free
    uint8_t *line;    // .. and its bytes
    struct ring waiting;
};

// 0 or -ENOMEM.
int intake_init(struct intake *intake, uint64_t rate);
void intake_destroy(struct intake *intake);

// A frame of at most SW_MAX_FRAME bytes begins to arrive, or waits for those before. False if too many
// wait: it is lost, and counted in waiting.refused.
bool intake_put(struct intake *intake, const uint8_t *frame, uint32_t length, uint64_t now_ns);

// When the next frame is there; UINT64_MAX: there is none.
static inline uint64_t intake_ready_ns(const struct intake *intake) {
    return intake->length ? intake->free_ns : UINT64_MAX;
}

// After the frame on the line was taken in: the one that waits behind it.
void intake_next(struct intake *intake);

#endif
