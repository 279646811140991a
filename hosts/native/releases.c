// SPDX-License-Identifier: Apache-2.0
// Read-ahead of a worker's transport (hosts/worker/read_ahead.py): processes plain results in order
// of arrival and computes what is sent meanwhile.
//
// For each result windows move, data whose exponent round is complete becomes due, packets leave as
// far as the link has room, round trips are measured and timers set. Values are not touched.
// `struct worker` stays unchanged but for `mark`: `struct state` overlays it with what changes, so
// that a run that fails leaves no trace. The heap holds each row at most twice, once for a number
// that was due at first and once for one that entered.

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "arrived.h"
#include "detection.h"

// A packet that may leave: the order of WorkerTransport._most_urgent.
struct due {
    int64_t rank, order, row; // rank: less the priority
};

// Arguments and results of release_steps: _Releases in hosts/worker/native_state.py. Arrays are by
// stream; by entry of the streams' queues, concatenated; by result; or by packet sent.
struct releases {
    const struct worker *w;
    int64_t *left, *next, *taken;
    const struct entry *const *entries;
    const int64_t *starts; // (streams + 1,) first entry of each stream
    struct detection *detection; // a copy, which changes
    double *rings;
    uint8_t *after; // by entry: 1 if the one before it finds its exponent
    const double *times; // by result
    const int64_t *rows;
    int64_t *released; // rows that were held and became due
    int64_t *sent_rows, *sent_sizes;
    double *sent_times, *sent_leave, *sent_deadlines;
    // Scalars.
    int64_t results;
    int64_t large, small; // bytes on the wire, with payload and without
    double rate, backlog, clear, tick, second;
    double following;
    int64_t releases, sent, spent; // number of rows and packets; bytes sent by the last poll
};

// The state of numbers in windows, by row, between results.
struct state {
    struct releases *r;
    const struct worker *w;
    uint8_t *done, *held;
    const struct entry **fresh; // the entry that has entered; NULL: as in `worker`
    struct due *heap;
    double *ring; // by result: timer that it sets
    int64_t *arrived; // by packet sent: results before it
    int64_t size, seen;
    double wake;
};

static int before(const struct due *a, const struct due *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->order < b->order;
}

static const struct entry *entry_of(const struct state *state, int64_t row) {
    return state->fresh[row] ? state->fresh[row] : &state->w->entry[row];
}

static void push(struct state *state, int64_t stream, int64_t row) {
    struct due one = {-state->w->priorities[stream], entry_of(state, row)->order, row};
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

// Pacer.room
static double room(const struct releases *r, double now) {
    if (r->rate <= 0)
        return INFINITY;
    return larger(0.0, (r->backlog - larger(0.0, r->clear - now)) * r->rate / 8);
}

// Sends what the link has room for: WorkerTransport.poll.
static void poll(struct state *state, double now) {
    struct releases *r = state->r;
    double most = room(r, now);
    int64_t spent = 0;
    while (state->size && (double)spent < most) {
        int64_t row = pop(state), at = r->sent++;
        int64_t size = entry_of(state, row)->exponent_round ? r->small : r->large;
        r->sent_rows[at] = row;
        r->sent_sizes[at] = size;
        r->sent_times[at] = now;
        if (r->rate > 0) // Pacer.hand_over
            r->clear = larger(now, r->clear) + (double)(size * 8) / r->rate;
        r->sent_leave[at] = r->rate > 0 ? r->clear : now;
        r->sent_deadlines[at] = r->sent_leave[at] + r->detection->timeouts[state->w->stream[row]];
        state->arrived[at] = state->seen;
        spent += size;
    }
    r->spent = spent;
    r->following = state->wake = INFINITY;
    if (state->size) {
        r->following = larger(now, r->clear - r->backlog / 2);
        double wait = larger(spent ? 0.0 : r->tick, r->following - now);
        state->wake = (rint(now * r->second) + rint(wait * r->second)) / r->second;
    }
}

// Moves entries into the window of a stream: Slots.enter.
static void enter(struct state *state, int64_t stream) {
    struct releases *r = state->r;
    const struct worker *w = state->w;
    int64_t left = r->left[stream], next = r->next[stream];
    int64_t at = r->taken[stream], count = r->starts[stream + 1] - r->starts[stream];
    const struct entry *entries = r->entries[stream];
    const uint8_t *after = r->after + r->starts[stream];
    if (at == count)
        return;
    while (left < next && state->done[row_of(w, stream, left)])
        left++;
    for (; at < count && next < left + w->limits[stream]; at++, next++) {
        int64_t row = row_of(w, stream, next);
        state->done[row] = 0;
        state->fresh[row] = &entries[at];
        state->held[row] = after[at] && !state->done[row_of(w, stream, next - 1)];
        if (!state->held[row])
            push(state, stream, row);
    }
    r->left[stream] = left;
    r->next[stream] = next;
    r->taken[stream] = at;
}

static void arrive(struct state *state, int64_t at) {
    struct releases *r = state->r;
    const struct worker *w = state->w;
    double time = r->times[at];
    int64_t row = r->rows[at], stream = w->stream[row], base = w->bases[stream];
    const struct progress *progress = &w->progress[row];
    while (state->wake < time)
        poll(state, state->wake);
    state->seen = at + 1;
    double took = larger(0.0, time - progress->sent_last);
    if (progress->clean && !entry_of(state, row)->exponent_round)
        sample_trip(r->detection, time, stream, took);
    state->ring[at] = time + r->detection->timeouts[stream];
    state->done[row] = 1;
    int64_t mask = w->masks[stream], behind = base + ((row - base + 1) & mask);
    int is_last = ((r->next[stream] - 1 - (row - base)) & mask) == 0;
    if (entry_of(state, row)->exponent_round && !is_last && state->held[behind]) {
        state->held[behind] = 0;
        if (w->stage[behind] == HELD)
            r->released[r->releases++] = behind;
        push(state, stream, behind);
    }
    enter(state, stream);
    poll(state, time);
}

// Sets a stream's timer to that of its last result: results are visited backwards.
static void ring_last(struct state *state, int64_t result) {
    const struct releases *r = state->r;
    int64_t stream = state->w->stream[r->rows[result]];
    if (!isfinite(r->rings[stream]))
        r->rings[stream] = r->detection->lossy
                               ? r->detection->last[stream] + timeout_of(r->detection, stream)
                               : state->ring[result];
}

// Sets deadlines of packets sent: a timer restarts with every later result of its stream.
static void set_deadlines(struct state *state) {
    struct releases *r = state->r;
    double *latest = r->rings;
    for (int64_t i = 0; i < state->w->streams; i++)
        latest[i] = -INFINITY;
    int64_t result = r->results;
    for (int64_t i = r->sent - 1; i >= 0; i--) {
        for (; result > state->arrived[i]; result--)
            ring_last(state, result - 1);
        int64_t stream = state->w->stream[r->sent_rows[i]];
        if (isfinite(latest[stream]))
            r->sent_deadlines[i] = larger(latest[stream], r->sent_leave[i] + timeout_of(r->detection, stream));
    }
    for (; result > 0; result--)
        ring_last(state, result - 1);
}

// Sets `after` for each entry that could enter. Returns 1 if all entries without exponent, also in
// windows, wait only for the exponent round right before them.
static int waits_for_results(struct state *state) {
    struct releases *r = state->r;
    const struct worker *w = state->w;
    for (int64_t stream = 0; stream < w->streams; stream++) {
        const struct entry *entries = r->entries[stream];
        uint8_t *after = r->after + r->starts[stream];
        int64_t count = r->starts[stream + 1] - r->starts[stream];
        for (int64_t number = r->left[stream]; number < r->next[stream]; number++) {
            int64_t row = row_of(w, stream, number), finder = row_of(w, stream, number - 1);
            if (w->stage[row] == HELD &&
                !(w->entry[finder].exponent_round && w->stage[finder] == WAITING &&
                  w->entry[finder].chunk == w->entry[row].chunk))
                return 0;
        }
        const struct entry *finder = &w->entry[row_of(w, stream, r->next[stream] - 1)];
        for (int64_t i = 0; i < count; finder = &entries[i++]) {
            const struct entry *one = &entries[i];
            after[i] = !one->exponent_round && !is_ready(w, one->chunk, one->round);
            if (after[i] && !(finder->exponent_round && finder->chunk == one->chunk))
                return 0;
        }
    }
    return 1;
}

// Initialises the state of windows, and the heap with what is due.
static void look(struct state *state) {
    struct releases *r = state->r;
    const struct worker *w = state->w;
    for (int64_t stream = 0; stream < w->streams; stream++) {
        for (int64_t number = r->left[stream] - 1; number < r->next[stream]; number++) {
            int64_t row = row_of(w, stream, number);
            state->done[row] = w->stage[row] == DONE;
            state->held[row] = w->stage[row] == HELD;
            if (w->due[row])
                push(state, stream, row);
        }
    }
}

enum { NO_MEMORY, RELEASED, WAITS_FOR_OTHERS };

// Runs the read-ahead; results are valid only if it returns RELEASED.
int release_steps(struct releases *r) {
    const struct worker *w = r->w;
    int64_t rows = 0;
    for (int64_t i = 0; i < w->streams; i++)
        rows += w->masks[i] + 1;
    struct state state = {.r = r, .w = w, .wake = INFINITY};
    if (!waits_for_results(&state))
        return WAITS_FOR_OTHERS;
    // Each row is due at first or enters, or both: at most twice in the heap.
    size_t most = (size_t)rows * 2;
    uint8_t *flags = malloc((size_t)rows * 2);
    state.done = flags;
    state.held = flags + rows;
    state.fresh = calloc((size_t)rows, sizeof *state.fresh);
    state.heap = malloc(most * sizeof *state.heap);
    state.ring = malloc((size_t)r->results * sizeof *state.ring);
    state.arrived = malloc(most * sizeof *state.arrived);
    int made = flags && state.fresh && state.heap && state.ring && state.arrived;
    if (made) {
        look(&state);
        for (int64_t i = 0; i < r->results; i++)
            arrive(&state, i);
        set_deadlines(&state);
    }
    free(flags);
    free(state.fresh);
    free(state.heap);
    free(state.ring);
    free(state.arrived);
    return made ? RELEASED : NO_MEMORY;
}

// Checked by hosts/worker/native_state.py.
const int64_t releases_bytes = sizeof(struct releases);

// Writes the rows of the longest prefix of results that are plain (NativeState.plain) and returns
// its length. `open` has each stream's left and next.
int64_t plain_results(const struct worker *w, const struct header *headers,
                      const struct peer *peers, const uint8_t *words, int64_t stride,
                      const uint8_t *full, const double *times, int64_t n, const int64_t *open,
                      int64_t *rows) {
    for (int64_t stream = 0; stream < w->streams; stream++)
        for (int64_t number = open[2 * stream]; number < open[2 * stream + 1]; number++) {
            int64_t row = row_of(w, stream, number);
            if (w->probe_pending[row] || (w->due[row] && w->progress[row].sent))
                return 0;
        }
    const struct arrived arrived = {headers, peers, words, stride, full};
    for (int64_t i = 0; i < n; i++)
        if ((i && times[i] <= times[i - 1]) || !is_plain(w, &arrived, i, rows))
            return i;
    return n;
}

// Returns 1 if no result of this stream, nor the last of all, comes later than the one before it
// lets expect: LossDetector.timeouts. Updates the gaps.
static int regular(const struct worker *w, struct detection *d, const double *times,
                   const int64_t *rows, int64_t n, int64_t stream) {
    int any = 0;
    for (int64_t i = 0; i < n; i++)
        if (w->stream[rows[i]] == stream) {
            if (any && times[i] - d->last[stream] >= silence(d, stream))
                return 0;
            sample_gap(d, times[i], stream, w->progress[rows[i]].sent_last);
            any = 1;
        }
    return !any || !(times[n - 1] - d->last[stream] >= silence(d, stream));
}

// Returns 1 if plain results of these rows, in order, lead to no probe and meet no timer:
// NativeState.quiet. Updates `lowest`, `latest` and the gaps.
int stay_quiet(const struct worker *w, struct detection *d, const double *times,
               const int64_t *rows, int64_t n, const int64_t *open) {
    for (int64_t i = 0; i < n; i++) {
        const struct progress *progress = &w->progress[rows[i]];
        double took = larger(0.0, times[i] - progress->sent_last);
        double *lowest = &d->lowest[w->stream[rows[i]]];
        if (progress->clean && took < *lowest)
            *lowest = took;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t row = rows[i], way = way_of(w, d, row);
        if (is_overtaken(w, d, row))
            return 0;
        d->latest[way] = larger(d->latest[way], w->progress[row].sent_last);
    }
    for (int64_t stream = 0; stream < w->streams; stream++) {
        double sample = d->smoothed[stream], before = times[0], gap = 0, first = times[n - 1];
        for (int64_t i = n - 1; i >= 0; i--)
            if (w->stream[rows[i]] == stream) {
                if (!w->entry[rows[i]].exponent_round)
                    sample = fmin(sample, larger(0.0, times[i] - w->progress[rows[i]].sent_last));
                first = times[i];
            }
        for (int64_t i = 0; i < n; i++)
            if (w->stream[rows[i]] == stream) {
                gap = larger(gap, times[i] - before);
                before = times[i];
            }
        double timeout = fmin(fmax(2 * sample, d->least), d->timeouts[stream]);
        if (larger(gap, times[n - 1] - before) >= timeout)
            return 0;
        if (d->lossy && !regular(w, d, times, rows, n, stream))
            return 0;
        for (int64_t number = open[2 * stream]; number < open[2 * stream + 1]; number++) {
            int64_t row = row_of(w, stream, number), place = w->mark[row];
            if (w->deadline[row] <= first || (d->lossy && w->progress[row].backoff))
                return 0;
            int taken = place >= 0 && place < n && rows[place] == row;
            if (!taken && isfinite(w->deadline[row]) && is_overtaken(w, d, row))
                return 0;
        }
    }
    return 1;
}
