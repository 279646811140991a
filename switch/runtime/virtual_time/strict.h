// SPDX-License-Identifier: Apache-2.0
//
// A bounded queue with strict priorities in front of a line: highest first, first come, first served
// within each. A full queue drops the new packet, unless packets of lower priorities, the lowest and
// latest first, make room for it (as interfaces/traffic_manager.c does).
//
// A waiting packet may be overtaken, so it leaves when time has reached its start: strict_take is
// called for times before which no packet comes any more. `classes` are rings of waiting packets by
// priority, `held` their bytes; line->free and line->rest say when all that have left are gone.

#ifndef RACKHUB_STRICT_H
#define RACKHUB_STRICT_H

#include <stdbool.h>
#include <stdint.h>

#include "line.h"

enum { STRICT_CLASSES = 8 };

struct strict_packet {
    int64_t at, input;
    uint8_t *bytes; // `stored` of them, owned by the queue
    uint32_t length, stored;
};

struct strict_class {
    struct strict_packet *packets; // a ring, room a power of two
    uint32_t first, count, room;
    uint64_t held;
};

struct strict {
    struct strict_class classes[STRICT_CLASSES];
};

void strict_clear(struct strict *strict); // frees all packets and its memory
void strict_lose(struct strict *strict, struct line *line); // drops all packets and counts that

// Adds a packet that comes at a time not before the last one's, or drops some and counts that, after
// strict_take up to that time. Takes packet->bytes over. 0, or SW_NO_MEMORY.
int strict_offer(struct strict *strict, struct line *line, const struct strict_packet *packet,
                 uint32_t priority);

// Returns when the first of the waiting packets came; INT64_MAX if none waits.
int64_t strict_since(const struct strict *strict);

// Returns when the next packet may start, rounded down; INT64_MAX if none waits.
int64_t strict_next(const struct strict *strict, const struct line *line);

// Sends the next packet if it starts no later than `until`: the line is free again when its last bit
// has left. Returns its bytes on the wire, or 0; the caller frees packet->bytes.
uint64_t strict_take(struct strict *strict, struct line *line, int64_t until,
                     struct strict_packet *packet, uint8_t *priority);

#endif
