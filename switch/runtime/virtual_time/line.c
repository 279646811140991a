// SPDX-License-Identifier: Apache-2.0
//
// A paced line with a bounded queue: see line.h.

#include "line.h"

#include <stdlib.h>
#include <string.h>

#include "target.h"

enum {
    FIRST_ROOM = 64,
    LEAST_FRAME = 14, // an Ethernet header
};

void line_init(struct line *line, const struct line_options *options) {
    memset(line, 0, sizeof *line);
    line->options = *options;
}

void line_clear(struct line *line) {
    free(line->waiting);
    free(line->changes);
    line->waiting = NULL;
    line->changes = NULL;
    line->count = line->room = line->change_count = line->change_next = 0;
}

struct line *line_create(const struct line_options *options) {
    struct line *line = malloc(sizeof *line);
    if (line)
        line_init(line, options);
    return line;
}

void line_destroy(struct line *line) {
    if (line)
        line_clear(line);
    free(line);
}

void line_read(const struct line *line, struct line_counters *counters) {
    *counters = line->counters;
}

static bool grow(struct line *line) {
    uint32_t room = line->room ? 2 * line->room : FIRST_ROOM;
    struct line_waiting *more = malloc(room * sizeof *more);
    if (!more)
        return false;
    for (uint32_t i = 0; i < line->count; i++)
        more[i] = line->waiting[(line->first + i) & (line->room - 1)];
    free(line->waiting);
    line->waiting = more;
    line->first = 0;
    line->room = room;
    return true;
}

int line_wait(struct line *line, int64_t at, uint64_t size, int64_t *start) {
    struct line_counters *counters = &line->counters;
    line->last = at;
    while (line->count && line->waiting[line->first].start <= at) {
        line->held -= line->waiting[line->first].size;
        line->first = (line->first + 1) & (line->room - 1);
        line->count--;
    }
    uint64_t held = line->held + size;
    if (held > line->options.limit) {
        counters->dropped++;
        counters->dropped_bytes += size;
        return 0;
    }
    if (held > counters->queue_most)
        counters->queue_most = held;
    if (line->free < at) {
        line->free = at;
        line->rest = 0;
    }
    *start = line->free;
    int64_t leaves = *start + (line->options.exact && line->rest);
    if (leaves == at)
        return 1;
    if (line->count == line->room && !grow(line))
        return SW_NO_MEMORY;
    line->waiting[(line->first + line->count++) & (line->room - 1)] =
        (struct line_waiting){leaves, size};
    line->held = held;
    return 1;
}

int line_change(struct line *line, const struct line_change *changes, uint64_t count) {
    struct line_change *copy = NULL;
    if (count) {
        copy = malloc(count * sizeof *copy);
        if (!copy)
            return SW_NO_MEMORY;
        memcpy(copy, changes, count * sizeof *copy);
    }
    free(line->changes);
    line->changes = copy;
    line->change_count = (uint32_t)count;
    line->change_next = 0;
    return 0;
}

// Makes the changes that have happened when the next packet begins to leave. Another rate counts
// other parts of a picosecond, so the present part is dropped.
static void change_rate(struct line *line) {
    while (line->change_next < line->change_count) {
        const struct line_change *next = &line->changes[line->change_next];
        if (next->at > line->free)
            return;
        line->options.parts = next->parts;
        line->options.whole = next->whole;
        line->rest = 0;
        line->change_next++;
    }
}

uint64_t line_occupy(struct line *line, uint64_t length) {
    const struct line_options *o = &line->options;
    if (line->change_next < line->change_count)
        change_rate(line);
    uint64_t wire = (length < o->least ? o->least : length) + o->overhead;
    uint64_t took = wire * o->parts;
    if (o->whole != 1) {
        took += line->rest;
        line->rest = took % o->whole;
        took /= o->whole;
    }
    line->free += (int64_t)took;
    return wire;
}

static int check(const struct line *line, const struct line_offer *offer) {
    int64_t before = offer->times[0];
    if (before < line->last)
        return LINE_LATE;
    int backwards = 0, shorter = offer->stored < LEAST_FRAME;
    for (uint64_t i = 0; i < offer->n; i++) {
        backwards |= offer->times[i] < before;
        before = offer->times[i];
        shorter |= offer->lengths[i] < LEAST_FRAME;
    }
    return backwards ? LINE_UNORDERED : shorter ? LINE_SHORT : 0;
}

int line_offer(struct line *line, struct line_offer *offer) {
    offer->kept = offer->bytes = offer->wire = offer->marked = 0;
    int result = offer->n ? check(line, offer) : 0;
    if (result)
        return result;
    for (uint64_t i = 0; i < offer->n; i++) {
        uint64_t length = (uint64_t)offer->lengths[i];
        int64_t start;
        if (length > line->options.longest) {
            line->counters.oversized++;
            continue;
        }
        result = line_wait(line, offer->times[i], length, &start);
        if (result < 0)
            return result;
        if (result == 0)
            continue;
        uint64_t waited = line->held - (start > offer->times[i] ? length : 0);
        uint64_t at = offer->kept++;
        offer->wire += line_occupy(line, length);
        offer->bytes += length;
        offer->ends[at] = line->free;
        offer->rows[at] = (int64_t)i;
        offer->marks[at] = waited > offer->mark_above;
        offer->marked += offer->marks[at];
    }
    offer->free = line->free;
    return 0;
}

uint64_t line_held(const struct line *line, int64_t at) {
    uint64_t held = line->held;
    for (uint32_t i = 0; i < line->count; i++) {
        const struct line_waiting *one = &line->waiting[(line->first + i) & (line->room - 1)];
        if (one->start > at)
            break;
        held -= one->size;
    }
    return held;
}

int64_t line_drained(const struct line *line, uint64_t most) {
    uint64_t held = line->held;
    int64_t at = 0;
    for (uint32_t i = 0; i < line->count && held > most; i++) {
        const struct line_waiting *one = &line->waiting[(line->first + i) & (line->room - 1)];
        held -= one->size;
        at = one->start;
    }
    return at;
}
