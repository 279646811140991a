// SPDX-License-Identifier: Apache-2.0
// Windows of a worker's streams: numbers enter them, wait for their exponents, become due, and
// leave them with their results.

#include <stdlib.h>

#include "worker.h"

// --- what is due ---

static int before(const struct due *a, const struct due *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->order < b->order;
}

static void push(struct worker *w, struct due one) {
    int64_t at = w->heap_length++;
    for (; at > 0 && before(&one, &w->heap[(at - 1) / 2]); at = (at - 1) / 2)
        w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = one;
}

struct due due_of(const struct worker *w, int64_t row) {
    int32_t rank = (int32_t)-w->priorities[w->stream[row]];
    return (struct due){w->entry[row].order, (int32_t)row, rank};
}

// True unless the row was sent, completed or taken by another number since it was pushed.
static int still_due(const struct worker *w, const struct due *one) {
    return w->due[one->row] && w->entry[one->row].order == one->order;
}

// Makes a row due: a CONTRIBUTE is to be sent.
void make_due(struct worker *w, int64_t row) {
    w->deadline[row] = INFINITY;
    w->due[row] = true;
    if (w->heap_length == 2 * w->rows) { // only half of it can be due
        w->heap_length = 0;
        for (int64_t other = 0; other < w->rows; other++)
            if (w->due[other] && other != row)
                push(w, due_of(w, other));
    }
    push(w, due_of(w, row));
}

// Returns the first row that is due, -1 if none is. Drops what is no longer due from the heap.
int64_t first_due(struct worker *w) {
    struct due *heap = w->heap;
    while (w->heap_length && !still_due(w, &heap[0])) {
        struct due last = heap[--w->heap_length];
        int64_t at = 0, child;
        while ((child = 2 * at + 1) < w->heap_length) {
            child += child + 1 < w->heap_length && before(&heap[child + 1], &heap[child]);
            if (!before(&heap[child], &last))
                break;
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = last;
    }
    return w->heap_length ? heap[0].row : -1;
}

// Sends what is in the windows to other servers, by chunk; what was sent already is sent again, as the
// last server need not have taken it. For jobs whose servers answer each worker by itself.
void worker_redirect(struct worker *w, const int64_t *servers) {
    for (int64_t stream = 0; stream < w->streams; stream++)
        for (int64_t number = w->left[stream]; number < w->next[stream]; number++) {
            int64_t row = row_of(w, stream, number), server = servers[w->entry[row].chunk];
            if (w->stage[row] == DONE || w->server[row] == server)
                continue;
            w->server[row] = (uint16_t)server;
            if (!in_flight(w, row))
                continue;
            set_probe(w, row, false);
            set_backoff(w, row, 0);
            clear_probes(w, row);
            if (w->progress[row].probed)
                w->probing[row].state_time = NAN;
            make_due(w, row);
        }
}

// --- exponents: protocol/exponents.py is the reference ---

// Codec.scale
int64_t scale_of(const struct worker *w, int exponent) {
    int bits = w->world > 1 ? 64 - __builtin_clzll((uint64_t)w->world - 1) : 0;
    int64_t digits = w->sum_digits - bits - exponent;
    return digits < w->finest_scale ? digits : w->finest_scale;
}

// The round whose result decides the exponent of `round`.
static int64_t source_of(const struct worker *w, int64_t round) {
    return round > w->depth ? round - w->depth : 0;
}

static int is_ready(const struct worker *w, int64_t chunk, int64_t round) {
    return round == 0 ? w->contacted[chunk] : w->folded[chunk] > source_of(w, round);
}

static int16_t exponent_for(const struct worker *w, int64_t chunk, int64_t round) {
    int64_t source = source_of(w, round);
    return round == 0 ? w->first[chunk] : w->after[chunk * w->depth + source % w->depth];
}

static void fold(struct worker *w, int64_t chunk, int64_t round, int reported) {
    int16_t *after = &w->after[chunk * w->depth];
    int64_t raised = reported + w->exponent_headroom;
    raised = raised < w->least_exponent ? w->least_exponent : raised;
    raised = raised > w->most_exponent ? w->most_exponent : raised;
    if (reported == NO_EXPONENT)
        raised = round == 0 ? w->first[chunk] : after[(round - 1) % w->depth];
    after[round % w->depth] = (int16_t)raised;
    w->folded[chunk] = round + 1;
}

static void fold_all(struct worker *w, int64_t chunk, int64_t round, int reported) {
    if (w->depth == 1) { // rounds cannot overlap, so this is the next one
        fold(w, chunk, round, reported);
        return;
    }
    int16_t *all = &w->reported[chunk * w->depth];
    all[round % w->depth] = (int16_t)reported;
    for (int64_t i = 0; i < w->depth; i++) {
        int64_t at = w->folded[chunk];
        int16_t *one = &all[at % w->depth];
        if (*one == UNREPORTED)
            return;
        int found = *one;
        *one = UNREPORTED;
        fold(w, chunk, at, found);
    }
}

// --- entering ---

void restart_progress(struct worker *w, int64_t row) {
    set_backoff(w, row, 0);
    w->progress[row] = (struct progress){0};
    w->deadline[row] = INFINITY;
}

static void activate(struct worker *w, int64_t row) {
    const struct entry *entry = &w->entry[row];
    w->exponent[row] = exponent_for(w, entry->chunk, entry->round);
    w->stage[row] = w->is_asynchronous ? DIRECTLY : WAITING;
    make_due(w, row);
}

// Makes the rows that are HELD for a chunk due, as far as their exponents are known.
static void release(struct worker *w, int64_t chunk) {
    int64_t row = w->held_first[chunk];
    w->held_first[chunk] = -1;
    while (row >= 0) {
        int64_t next = w->held_next[row];
        if (is_ready(w, chunk, w->entry[row].round)) {
            w->held--;
            activate(w, row);
        } else {
            w->held_next[row] = w->held_first[chunk];
            w->held_first[chunk] = (int32_t)row;
        }
        row = next;
    }
}

// Moves `left` past numbers that have their results.
static int64_t pass_complete(struct worker *w, int64_t stream) {
    int64_t left = w->left[stream], next = w->next[stream];
    while (left < next && w->stage[row_of(w, stream, left)] == DONE)
        left++;
    return w->left[stream] = left;
}

static int has_credit(const struct worker *w) {
    return !w->credit || w->outstanding < w->credit;
}

static void enter(struct worker *w, int64_t stream) {
    struct queue *queue = &w->queues[stream];
    int64_t number = w->next[stream], left = pass_complete(w, stream);
    int64_t end = left + w->limits[stream];
    // A stream's oldest numbers, as many as get their sums together, need no credit: other workers
    // may have spent theirs on streams that wait for this worker, whose own is spent on streams that
    // wait for them.
    for (; queue->head < queue->tail && number < end &&
           (number < left + w->together || has_credit(w));
         number++) {
        int64_t row = row_of(w, stream, number);
        const struct entry *entry = &w->entry[row];
        w->entry[row] = queue->entries[queue->head++];
        w->seq[row] = (uint32_t)number;
        w->server[row] = entry->server;
        w->exponent[row] = 0;
        w->flags[row] = 0;
        w->failures[row] = 0;
        w->outstanding += w->large;
        restart_progress(w, row);
        if (entry->exponent_round) {
            w->stage[row] = WAITING;
            make_due(w, row);
        } else if (is_ready(w, entry->chunk, entry->round)) {
            activate(w, row);
        } else {
            w->stage[row] = HELD;
            w->held++;
            w->held_next[row] = w->held_first[entry->chunk];
            w->held_first[entry->chunk] = (int32_t)row;
        }
    }
    w->next[stream] = number;
}

// Moves windows, those of the most urgent class first, which are the last. A policy sets a window
// whenever a round trip has ended.
void advance(struct worker *w) {
    w->moved = 0;
    for (int64_t stream = w->streams - 1; stream >= 0; stream--) {
        if (w->queues[stream].head == w->queues[stream].tail)
            continue;
        if (w->adapts && pass_complete(w, stream) >= w->trip_ends[stream])
            w->error |= w->adapt(stream);
        enter(w, stream);
    }
}

// --- results ---

static void take_floats(const uint8_t *from, float *into, int64_t width) {
    const word *words = (const word *)from;
    for (int64_t j = 0; j < width; j++) {
        uint32_t bits = four(words[j]);
        memcpy(&into[j], &bits, sizeof bits);
    }
}

// Codec.decode, for codecs that round to nearest.
static void take_integers(const uint8_t *from, float *into, int64_t width, int64_t scale) {
    const word *words = (const word *)from;
    if (labs(scale) <= 126) { // the scaling is exact in float32
        float factor = ldexpf(1, -(int)scale);
        for (int64_t j = 0; j < width; j++)
            into[j] = (float)(int32_t)four(words[j]) * factor;
    } else {
        double factor = ldexp(1, -(int)scale);
        for (int64_t j = 0; j < width; j++)
            into[j] = (float)((int32_t)four(words[j]) * factor);
    }
}

// mean_of() in hosts/optimizers.py
static void average(float *sums, int64_t width, int64_t workers) {
    for (int64_t j = 0; j < width; j++)
        sums[j] = (float)(sums[j] / (double)workers);
}

static void take_words(struct worker *w, int64_t row, const uint8_t *words, int stage) {
    size_t size = 4 * (size_t)w->width;
    if (!size)
        return;
    uint8_t *kept = w->words + (size_t)row * size;
    memcpy(kept, words, size);
    const struct entry *entry = &w->entry[row];
    uint64_t sums = sums_at(w, entry);
    if (stage == DIRECTLY || w->optimizes)
        take_floats(kept, (float *)sums, w->width);
    else if (w->decode)
        w->error |= w->decode(kept, w->exponent[row], sums);
    else
        take_integers(kept, (float *)sums, w->width, scale_of(w, w->exponent[row]));
    if (w->submissions[entry->submission].averages)
        average((float *)sums, w->width, w->world);
}

static void count(struct worker *w, int64_t row, const struct header *header, int stage) {
    const struct entry *entry = &w->entry[row];
    struct counts *counts = &w->counts;
    int reported = header->max_exponent;
    if (stage == WAITING && reported != NO_EXPONENT)
        counts->coarse += reported + scale_of(w, w->exponent[row]) < w->least_digits;
    if (stage == DIRECTLY && w->optimizes && entry->round == 0) {
        counts->initial++;
        return;
    }
    if (stage == DIRECTLY && !w->is_asynchronous)
        counts->completed_direct++;
    else
        counts->completed++;
    if (w->is_asynchronous) {
        int64_t ahead = entry->round + 1 - four(header->children);
        counts->ahead += ahead;
        counts->most_ahead = ahead > counts->most_ahead ? ahead : counts->most_ahead;
    }
}

// Completes a row with a good result of this stage. words: of its payload.
void complete(struct worker *w, int64_t row, const struct header *header, const uint8_t *words,
              int stage) {
    const struct entry *entry = &w->entry[row];
    int64_t chunk = entry->chunk;
    w->stage[row] = DONE;
    w->due[row] = false;
    set_probe(w, row, false);
    set_backoff(w, row, 0);
    w->deadline[row] = INFINITY;
    w->results[row] = *header;
    w->incomplete--;
    w->outstanding -= w->large;
    w->moved = 1;
    int reported = header->max_exponent;
    if (entry->exponent_round) {
        w->contacted[chunk] = true;
        w->first[chunk] = (int16_t)(reported == NO_EXPONENT ? 0 : reported);
        w->counts.exponent_rounds++;
        release(w, chunk);
        return;
    }
    count(w, row, header, stage);
    take_words(w, row, words, stage);
    fold_all(w, chunk, entry->round, reported);
    release(w, chunk);
    if (w->optimizes) {
        size_t size = 4 * (size_t)w->width;
        w->last_headers[chunk] = *header;
        memcpy(w->last_words + (size_t)chunk * size, w->words + (size_t)row * size, size);
    }
    w->sums[w->sums_length++] = (struct sum){entry->ticket, chunk, entry->row, entry->submission,
                                             header->flags};
}

// Completes rows with good results, from elsewhere than the network: of this worker's world, in
// the stage that `flags` say.
void complete_rows(struct worker *w, const int64_t *rows, const struct arrivals *a) {
    for (int64_t i = 0; i < a->count; i++)
        complete(w, rows[i], &a->headers[i], a->words + i * a->stride,
                 a->headers[i].flags & DIRECT ? DIRECTLY : WAITING);
}
