// SPDX-License-Identifier: Apache-2.0
// Numbers the chunks of a submission: makes the entries that streams' queues have of them.

#include "worker.h"

enum { INFINITE = 0x7f800000 }; // the bits of infinity; those of NaNs exceed them

// The largest |x| of a chunk's values below `limit`, as bits, which compare like the values.
static uint32_t largest(const float *values, int64_t width, uint32_t limit) {
    const word *row = (const word *)values;
    uint32_t found = 0;
    for (int64_t j = 0; j < width; j++) {
        uint32_t bits = row[j] & 0x7fffffff;
        bits = bits < limit ? bits : 0;
        found = bits > found ? bits : found;
    }
    return found;
}

// A chunk's own exponent; sets the flags of data that cannot be integers of any exponent.
// chunk_exponents() in protocol/payloads.py is the reference.
static int own_exponent(const float *values, int64_t width, uint8_t *unfit) {
    uint32_t most = largest(values, width, UINT32_MAX);
    *unfit = 0;
    if (most >= INFINITE) {
        *unfit = NONFINITE;
        most = largest(values, width, INFINITE);
    }
    if (!most)
        return NO_EXPONENT;
    int exponent = (int)(most >> 23) + LEAST_EXPONENT; // subnormal numbers have the least
    if (exponent <= MOST_EXPONENT)
        return exponent;
    *unfit |= OVERFLOW;
    return MOST_EXPONENT;
}

// True if the next round of a chunk needs an exponent round before it.
static int comes_first(const struct worker *w, int64_t chunk) {
    return w->begun[chunk] == 0 && !w->contacted[chunk];
}

// Begins a round of each chunk, which must be distinct. Writes the entries of the first stream,
// then those of the next, in the order of their numbers, and sets where each stream's end. An
// exponent round and its data take two numbers, one after the other: so a stream's numbers do not
// depend on how submissions are split into calls, unless a scheduler makes them. Returns the number
// of entries.
int64_t worker_submit(struct worker *w, const struct submitted *s) {
    int64_t total = 0, *ends = s->ends;
    for (int64_t stream = 0; stream < w->streams; stream++)
        ends[stream] = 0;
    for (int64_t i = 0; i < s->n; i++)
        ends[s->streams[i]] += 1 + comes_first(w, s->chunks[i]);
    for (int64_t stream = 0; stream < w->streams; stream++) {
        int64_t length = ends[stream];
        ends[stream] = total; // where they begin, so far
        total += length;
    }
    int64_t order = s->order;
    for (int64_t at = 0; at < s->n; at++) {
        int64_t i = s->arranged[at], chunk = s->chunks[i];
        int first = comes_first(w, chunk);
        struct entry data = {
            .lanes = s->lanes[i],
            .own = 0,
            .server = s->servers[i],
            .chunk = (int32_t)chunk,
            .round = (int32_t)w->begun[chunk]++,
            .row = (int32_t)i,
            .submission = (int32_t)s->place,
            .ticket = s->ticket + i,
        };
        if (!w->is_asynchronous) // else all goes in float32
            data.own = (int16_t)own_exponent((const float *)values_at(w, &data), w->width,
                                             &data.unfit);
        struct entry *into = &s->entries[ends[s->streams[i]]];
        ends[s->streams[i]] += 1 + first;
        if (first) {
            *into = data;
            into->exponent_round = true;
            into->unfit = 0;
            into->lanes = 0;
            into++->order = order++;
        }
        data.order = order++;
        *into = data;
    }
    return total;
}

// Checked by hosts/worker/core.py.
const int64_t submitted_bytes = sizeof(struct submitted);
