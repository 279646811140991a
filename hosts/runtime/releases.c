// SPDX-License-Identifier: Apache-2.0
// What a worker's transport sends, result by result: hosts/releases.py (_Steps) says what it comes to.

#include <math.h>
#include <stdlib.h>

#include "packet.h"

// Of a packet that may go: those of higher priority first, then in the order of submission.
struct due {
    int64_t rank, order, row; // rank: less the priority
};

// By row of the slots, by stream, by entry of the streams' queues (those of one behind those of
// another), by result, and by packet sent; see the Python class.
struct releases {
    uint8_t *done, *held, *round; // rows; round: an exponent round, which has no payload
    int64_t *order;
    const int64_t *stream;
    const int64_t *bases, *masks, *windows, *priorities; // streams
    int64_t *left, *next, *taken;
    const int64_t *entries; // where those of a stream begin; one more
    double *smoothed, *variation, *timeouts, *rings;
    const int64_t *entry_order;
    const uint8_t *entry_round, *entry_after; // after: the entry before it finds its exponent
    const double *times, *took; // results
    const int64_t *rows;
    const uint8_t *clean;
    const int64_t *ready; // rows that are due at first
    int64_t *sent_rows, *sent_sizes;
    double *sent_times, *sent_deadlines;
    // From here on numbers.
    int64_t streams, results, readies;
    int64_t large, small; // bytes on the wire, with payload and without
    double rate, backlog, clear, least, most, tick, second;
    double following;
    int64_t sent, spent; // packets in all; bytes at the last time
};

struct state {
    struct releases *r;
    struct due *heap;
    double *ring; // of each result
    int64_t *arrived; // at each packet sent
    int64_t size, seen;
    double wake;
};

static int before(const struct due *a, const struct due *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->order < b->order;
}

static void push(struct state *state, int64_t stream, int64_t row) {
    struct due one = {-state->r->priorities[stream], state->r->order[row], row};
    int64_t at = state->size++;
    for (; at > 0 && before(&one, &state->heap[(at - 1) / 2]); at = (at - 1) / 2)
        state->heap[at] = state->heap[(at - 1) / 2];
    state->heap[at] = one;
}

static int64_t pop(struct state *state) {
    struct due *heap = state->heap;
    int64_t row = heap[0].row, at = 0, child;
    struct due last = heap[--state->size];
    while ((child = 2 * at + 1) < state->size) {
        child += child + 1 < state->size && before(&heap[child + 1], &heap[child]);
        if (!before(&heap[child], &last))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return row;
}

static double larger(double a, double b) { return a > b ? a : b; }

// Pacer.room
static double room(const struct releases *r, double now) {
    if (r->rate <= 0)
        return INFINITY;
    return larger(0.0, (r->backlog - larger(0.0, r->clear - now)) * r->rate / 8);
}

// What there is room for goes.
static void poll(struct state *state, double now) {
    struct releases *r = state->r;
    double most = room(r, now);
    int64_t spent = 0;
    while (state->size && (double)spent < most) {
        int64_t row = pop(state), at = r->sent++;
        int64_t size = r->round[row] ? r->small : r->large;
        r->sent_rows[at] = row;
        r->sent_sizes[at] = size;
        r->sent_times[at] = now;
        r->sent_deadlines[at] = now + r->timeouts[r->stream[row]];
        state->arrived[at] = state->seen;
        spent += size;
    }
    if (spent && r->rate > 0)
        r->clear = larger(now, r->clear) + (double)(spent * 8) / r->rate;
    r->spent = spent;
    r->following = state->wake = INFINITY;
    if (state->size) {
        r->following = larger(now, r->clear - r->backlog / 2);
        double wait = larger(spent ? 0.0 : r->tick, r->following - now);
        state->wake = (rint(now * r->second) + rint(wait * r->second)) / r->second;
    }
}

// RoundTrips.sample_one
static void sample(struct releases *r, int64_t stream, double time) {
    double smoothed = r->smoothed[stream], variation;
    time = time < r->timeouts[stream] ? time : r->timeouts[stream];
    if (isnan(smoothed)) {
        smoothed = time;
        variation = time / 2;
    } else {
        variation = 0.75 * r->variation[stream] + 0.25 * fabs(smoothed - time);
        smoothed = 0.875 * smoothed + 0.125 * time;
    }
    r->smoothed[stream] = smoothed;
    r->variation[stream] = variation;
    double timeout = larger(smoothed + larger(4 * variation, smoothed), r->least);
    r->timeouts[stream] = timeout < r->most ? timeout : r->most;
}

// Numbers for which there is room in the window now.
static void enter(struct state *state, int64_t stream) {
    struct releases *r = state->r;
    int64_t base = r->bases[stream], mask = r->masks[stream];
    int64_t left = r->left[stream], next = r->next[stream];
    int64_t at = r->entries[stream] + r->taken[stream], end = r->entries[stream + 1];
    if (at == end)
        return;
    while (left < next && r->done[base + (left & mask)])
        left++;
    for (; at < end && next < left + r->windows[stream]; at++, next++) {
        int64_t row = base + (next & mask);
        r->done[row] = 0;
        r->order[row] = r->entry_order[at];
        r->round[row] = r->entry_round[at];
        r->held[row] = r->entry_after[at] && !r->done[base + ((next - 1) & mask)];
        if (!r->held[row])
            push(state, stream, row);
    }
    r->left[stream] = left;
    r->next[stream] = next;
    r->taken[stream] = at - r->entries[stream];
}

static void arrive(struct state *state, double time, int64_t row) {
    struct releases *r = state->r;
    int64_t stream = r->stream[row], base = r->bases[stream], mask = r->masks[stream];
    while (state->wake < time)
        poll(state, state->wake);
    int64_t at = state->seen++;
    if (r->clean[at])
        sample(r, stream, r->took[at]);
    state->ring[at] = time + r->timeouts[stream];
    r->rings[stream] = larger(r->rings[stream], state->ring[at]);
    r->done[row] = 1;
    int64_t behind = base + ((row - base + 1) & mask);
    int is_last = ((r->next[stream] - 1 - (row - base)) & mask) == 0;
    if (r->round[row] && !is_last && r->held[behind]) {
        r->held[behind] = 0;
        push(state, stream, behind);
    }
    enter(state, stream);
    poll(state, time);
}

// A stream's timer restarts with every result, those to come included.
static void set_deadlines(struct state *state) {
    struct releases *r = state->r;
    double *latest = r->rings; // every stream's latest is there again when all results were looked at
    for (int64_t i = 0; i < r->streams; i++)
        latest[i] = -INFINITY;
    int64_t result = r->results;
    for (int64_t i = r->sent - 1; i >= 0; i--) {
        for (; result > state->arrived[i]; result--) {
            int64_t stream = r->stream[r->rows[result - 1]];
            latest[stream] = larger(latest[stream], state->ring[result - 1]);
        }
        int64_t stream = r->stream[r->sent_rows[i]];
        r->sent_deadlines[i] = larger(r->sent_deadlines[i], latest[stream]);
    }
    for (; result > 0; result--) {
        int64_t stream = r->stream[r->rows[result - 1]];
        latest[stream] = larger(latest[stream], state->ring[result - 1]);
    }
}

// Returns 0 if there is no memory; then nothing holds.
int release_steps(struct releases *r) {
    int64_t most = r->readies;
    for (int64_t i = 0; i < r->streams; i++)
        most += 2 * r->windows[i];
    struct state state = {.r = r, .wake = INFINITY};
    state.heap = malloc((size_t)most * sizeof *state.heap);
    state.ring = malloc((size_t)r->results * sizeof *state.ring);
    state.arrived = malloc((size_t)most * sizeof *state.arrived);
    int made = state.heap && state.ring && state.arrived;
    if (made) {
        for (int64_t i = 0; i < r->readies; i++)
            push(&state, r->stream[r->ready[i]], r->ready[i]);
        for (int64_t i = 0; i < r->results; i++)
            arrive(&state, r->times[i], r->rows[i]);
        set_deadlines(&state);
    }
    free(state.heap);
    free(state.ring);
    free(state.arrived);
    return made;
}
