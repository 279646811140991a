// SPDX-License-Identifier: Apache-2.0
//
// A queue with strict priorities: see strict.h.

#include "strict.h"

#include <stdlib.h>

#include "target.h"

enum { FIRST_ROOM = 16 };

static struct strict_packet *nth(const struct strict_class *class, uint32_t n) {
    return &class->packets[(class->first + n) & (class->room - 1)];
}

void strict_clear(struct strict *strict) {
    for (int i = 0; i < STRICT_CLASSES; i++) {
        struct strict_class *class = &strict->classes[i];
        for (uint32_t n = 0; n < class->count; n++)
            free(nth(class, n)->bytes);
        free(class->packets);
        *class = (struct strict_class){0};
    }
}

static bool grow_class(struct strict_class *class) {
    uint32_t room = class->room ? 2 * class->room : FIRST_ROOM;
    struct strict_packet *more = malloc(room * sizeof *more);
    if (!more)
        return false;
    for (uint32_t n = 0; n < class->count; n++)
        more[n] = *nth(class, n);
    free(class->packets);
    class->packets = more;
    class->first = 0;
    class->room = room;
    return true;
}

static uint64_t held_from(const struct strict *strict, uint32_t priority) {
    uint64_t held = 0;
    for (uint32_t i = priority; i < STRICT_CLASSES; i++)
        held += strict->classes[i].held;
    return held;
}

static void drop(struct line *line, uint64_t size) {
    line->counters.dropped++;
    line->counters.dropped_bytes += size;
}

void strict_lose(struct strict *strict, struct line *line) {
    for (int i = 0; i < STRICT_CLASSES; i++) {
        struct strict_class *class = &strict->classes[i];
        for (uint32_t n = 0; n < class->count; n++)
            drop(line, nth(class, n)->length);
    }
    strict_clear(strict);
}

// Drops the latest packets of lower priorities while there is no room for `size` bytes.
static void make_room(struct strict *strict, struct line *line, uint32_t priority, uint64_t size) {
    uint64_t held = held_from(strict, 0);
    for (uint32_t i = 0; i < priority; i++) {
        struct strict_class *class = &strict->classes[i];
        while (class->count && held + size > line->options.limit) {
            struct strict_packet *last = nth(class, --class->count);
            class->held -= last->length;
            held -= last->length;
            drop(line, last->length);
            free(last->bytes);
        }
    }
}

int strict_offer(struct strict *strict, struct line *line, const struct strict_packet *packet,
                 uint32_t priority) {
    struct strict_class *class = &strict->classes[priority];
    uint64_t size = packet->length;
    if (held_from(strict, priority) + size > line->options.limit) {
        drop(line, size);
        free(packet->bytes);
        return 0;
    }
    make_room(strict, line, priority, size);
    if (class->count == class->room && !grow_class(class)) {
        free(packet->bytes);
        return SW_NO_MEMORY;
    }
    *nth(class, class->count++) = *packet;
    class->held += size;
    uint64_t held = held_from(strict, 0);
    if (held > line->counters.queue_most)
        line->counters.queue_most = held;
    return 0;
}

int64_t strict_since(const struct strict *strict) {
    int64_t first = INT64_MAX;
    for (int i = 0; i < STRICT_CLASSES; i++) {
        const struct strict_class *class = &strict->classes[i];
        if (class->count && nth(class, 0)->at < first)
            first = nth(class, 0)->at;
    }
    return first;
}

int64_t strict_next(const struct strict *strict, const struct line *line) {
    int64_t first = strict_since(strict);
    return first == INT64_MAX || first > line->free ? first : line->free;
}

uint64_t strict_take(struct strict *strict, struct line *line, int64_t until,
                     struct strict_packet *packet, uint8_t *priority) {
    int64_t start = strict_next(strict, line);
    uint64_t rest = start == line->free ? line->rest : 0;
    if (start == INT64_MAX || start > until || (start == until && rest))
        return 0;
    // Packets that come after the start are no candidates.
    for (int i = STRICT_CLASSES - 1; i >= 0; i--) {
        struct strict_class *class = &strict->classes[i];
        if (!class->count || nth(class, 0)->at > start)
            continue;
        *packet = *nth(class, 0);
        *priority = (uint8_t)i;
        class->first = (class->first + 1) & (class->room - 1);
        class->count--;
        class->held -= packet->length;
        line->free = start;
        line->rest = rest;
        return line_occupy(line, packet->length);
    }
    return 0; // one of them is the first that waits
}
