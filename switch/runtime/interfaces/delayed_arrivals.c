// SPDX-License-Identifier: Apache-2.0
//
// The receiving end of a paced link: see delayed_arrivals.h.

#include "delayed_arrivals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

// Senders are paced themselves; this is room for their bursts.
enum { WAITING_BYTES = 1 << 20 };

int intake_init(struct intake *intake, uint64_t rate) {
    memset(intake, 0, sizeof *intake);
    if (!rate)
        return 0;
    intake->rate = rate;
    intake->line = malloc(SW_MAX_FRAME);
    return intake->line ? ring_init(&intake->waiting, WAITING_BYTES) : -ENOMEM;
}

void intake_destroy(struct intake *intake) {
    free(intake->line);
    intake->line = NULL;
    ring_destroy(&intake->waiting);
}

static void begin(struct intake *intake, uint32_t length) {
    intake->length = length;
    intake->free_ns += ((uint64_t)length * 8 * 1000000000u + intake->rate - 1) / intake->rate;
}

bool intake_put(struct intake *intake, const uint8_t *frame, uint32_t length, uint64_t now_ns) {
    if (intake->length)
        return ring_put(&intake->waiting, 0, frame, length, 0);
    if (intake->free_ns < now_ns)
        intake->free_ns = now_ns;
    memcpy(intake->line, frame, length);
    begin(intake, length);
    return true;
}

void intake_next(struct intake *intake) {
    uint8_t kind;
    intake->length = 0;
    int64_t length = ring_get(&intake->waiting, &kind, intake->line, SW_MAX_FRAME, 0);
    if (length > 0)
        begin(intake, (uint32_t)length);
}
