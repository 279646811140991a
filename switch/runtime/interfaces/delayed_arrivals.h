// SPDX-License-Identifier: Apache-2.0
//
// The receiving end of a link, for a sender whose shaper releases a frame when its transmission
// begins, as Linux's token buckets do (tc-htb(8)): a frame is held until its last bit would have
// arrived. Not thread safe. Times are nanoseconds of one monotonic clock.
//
// One frame is on the line (length > 0, its bytes at `line`, arriving at free_ns); later ones wait
// in a ring in order.

#ifndef RACKHUB_DELAYED_ARRIVALS_H
#define RACKHUB_DELAYED_ARRIVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record_ring.h"
#include "target.h"

struct intake {
    uint64_t rate;    // bit/s; 0: hold nothing
    uint64_t free_ns; // when the frame on the line has arrived
    uint32_t length;  // its bytes; 0: the line is free
    uint8_t *line;    // its content
    struct ring waiting;
};

// 0 or -ENOMEM.
int intake_init(struct intake *intake, uint64_t rate);
void intake_destroy(struct intake *intake);

// A frame of at most SW_MAX_FRAME bytes begins to arrive, or waits for those before. False if too
// many wait: it is lost, and counted in waiting.refused.
bool intake_put(struct intake *intake, const uint8_t *frame, uint32_t length, uint64_t now_ns);

// Returns when the next frame has arrived; UINT64_MAX: there is none.
static inline uint64_t intake_ready_ns(const struct intake *intake) {
    return intake->length ? intake->free_ns : UINT64_MAX;
}

// Puts the next waiting frame on the line, after the one there was processed.
void intake_next(struct intake *intake);

#endif
