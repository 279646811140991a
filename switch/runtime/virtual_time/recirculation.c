// SPDX-License-Identifier: Apache-2.0
//
// A heap of recirculating packets: see recirculation.h.

#include "recirculation.h"

#include <stdlib.h>

enum { FIRST_ROOM = 64 };

static bool sooner(const struct rounding *a, const struct rounding *b) {
    return a->at < b->at || (a->at == b->at && a->number < b->number);
}

bool rounds_push(struct rounds *rounds, struct sw_packet *packet, int64_t at) {
    if (rounds->count == rounds->room) {
        size_t room = rounds->room ? 2 * rounds->room : FIRST_ROOM;
        struct rounding *more = realloc(rounds->heap, room * sizeof *more);
        if (!more)
            return false;
        rounds->heap = more;
        rounds->room = room;
    }
    struct rounding one = {at, rounds->number++, packet};
    size_t place = rounds->count++;
    for (; place && sooner(&one, &rounds->heap[(place - 1) / 2]); place = (place - 1) / 2)
        rounds->heap[place] = rounds->heap[(place - 1) / 2];
    rounds->heap[place] = one;
    return true;
}

struct rounding rounds_pop(struct rounds *rounds) {
    struct rounding *heap = rounds->heap;
    struct rounding first = heap[0], last = heap[--rounds->count];
    size_t place = 0, child;
    while ((child = 2 * place + 1) < rounds->count) {
        if (child + 1 < rounds->count && sooner(&heap[child + 1], &heap[child]))
            child++;
        if (!sooner(&heap[child], &last))
            break;
        heap[place] = heap[child];
        place = child;
    }
    heap[place] = last;
    return first;
}

int64_t rounds_next(const struct rounds *rounds) {
    return rounds->count ? rounds->heap[0].at : INT64_MAX;
}

void rounds_clear(struct rounds *rounds) {
    free(rounds->heap);
    *rounds = (struct rounds){0};
}
