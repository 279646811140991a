// SPDX-License-Identifier: Apache-2.0
// Takes the packets that arrive at a worker: finds their rows, checks results, takes STATEs.

#include "worker.h"

enum { NONE, SUM, DIRECT_SUM, ANSWER };

// Finds the row of a packet; returns its kind, NONE if no number in flight is meant.
static int match(struct worker *w, const struct arrivals *a, int64_t i, int64_t *place) {
    const struct header *header = &a->headers[i];
    int64_t stream = w->stream_index[header->stream];
    int op = op_of(header);
    if (stream < 0 || (op != RESULT && op != STATE) || two(header->job) != w->job ||
        two(header->epoch) != w->epoch) {
        w->counts.foreign++;
        return NONE;
    }
    uint32_t seq = four(header->seq);
    int64_t row = *place = row_of(w, stream, seq);
    if (w->seq[row] != seq || w->stage[row] == EMPTY)
        w->counts.stale++;
    else if ((uint32_t)w->entry[row].chunk != four(header->chunk))
        w->counts.other_chunk++;
    else if (memcmp(&a->peers[i], &w->servers[w->server[row]], sizeof *a->peers))
        w->counts.wrong_source++, w->met_wrong = 1;
    else if (op == STATE)
        return ANSWER;
    else
        return header->flags & DIRECT ? DIRECT_SUM : SUM;
    return NONE;
}

static uint32_t sum_of(const struct worker *w, const struct arrivals *a, int64_t i) {
    const word *words = (const word *)(a->words + i * a->stride);
    uint32_t sum = 0;
    for (int64_t j = 0; a->full[i] && j < w->width; j++)
        sum += four(words[j]);
    return sum;
}

// Returns the count of the first check that a result fails, NULL if it passes all.
//
// A flagged integer sum has no payload. It may be flagged because lanes or exponents differed among
// workers, so only its number of workers is checked, and that it is no exponent round: that has no
// reason for flags, unless another worker sent something else under this number.
static int64_t *failed_check(struct worker *w, const struct arrivals *a, int64_t i, int64_t row,
                             int direct) {
    const struct header *header = &a->headers[i];
    int flagged = (header->flags & (OVERFLOW | NONFINITE)) != 0;
    if (two(header->workers) != w->world)
        return &w->counts.wrong_workers;
    if (!direct && flagged)
        return w->entry[row].exponent_round ? &w->counts.wrong_checksum : NULL;
    if (two(header->lanes) != w->entry[row].lanes)
        return &w->counts.wrong_lanes;
    if (!direct && header->exponent != w->exponent[row]) // DIRECT: the server reports rank 0's
        return &w->counts.wrong_exponent;
    uint32_t hash = direct ? chunk_hash(header) : w->hash[row] * (uint32_t)w->world;
    if (hash + sum_of(w, a, i) == four(header->checksum) || (direct && flagged && !a->full[i]))
        return NULL;
    return &w->counts.wrong_checksum;
}

// Handles a failed check: probes at the first failure of a row, reports the second. Copies of one
// bad packet are one failure.
static void fail(struct worker *w, int64_t row) {
    if (w->progress[row].failed)
        return;
    w->progress[row].failed = true;
    int failures = w->failures[row] < 3 ? ++w->failures[row] : 3;
    if (failures == 1 && !w->due[row])
        set_probe(w, row, true);
    if (failures == 2 && w->failed_length < w->rows)
        w->failed[w->failed_length++] = (struct failure){
            w->stream[row], w->seq[row], w->entry[row].chunk, w->entry[row].exponent_round};
}

// Moves a row whose integer sum is flagged to its server, which sums it in float32.
static void go_direct(struct worker *w, int64_t row) {
    w->stage[row] = DIRECTLY;
    restart_progress(w, row);
    set_probe(w, row, false);
    make_due(w, row);
}

// Takes the results of a kind among the packets from `first` to `last`.
static void take_results(struct worker *w, const struct arrivals *a, int64_t first, int64_t last,
                         double now, int kind) {
    int stage = kind == SUM ? WAITING : DIRECTLY;
    int64_t n = 0, *taken = w->taken;
    w->stamp++;
    for (int64_t i = first; i < last; i++) {
        int64_t row = w->places[i];
        if (w->kinds[i] != kind)
            continue;
        if (w->stage[row] != stage || !w->progress[row].sent) {
            if (w->stage[row] <= stage)
                w->counts.unexpected++;
            else
                w->counts.duplicates++;
            continue;
        }
        int64_t *cause = failed_check(w, a, i, row, stage == DIRECTLY);
        if (cause) {
            ++*cause;
            w->met_wrong = 1;
            fail(w, row);
        } else if (w->mark[row] == w->stamp) {
            w->counts.duplicates++;
        } else {
            w->mark[row] = w->stamp;
            taken[n++] = i;
        }
    }
    if (!n)
        return;
    detect_from_results(w, taken, n, a, now);
    for (int64_t i = 0; i < n; i++) {
        int64_t packet = taken[i], row = w->places[packet];
        const struct header *header = &a->headers[packet];
        int marked = (header->flags & ECN) != 0;
        w->counts.congested += marked;
        w->met[w->stream[row]]++;
        w->marked[w->stream[row]] += marked;
        if (stage == WAITING && header->flags & (OVERFLOW | NONFINITE))
            go_direct(w, row);
        else
            complete(w, row, header, a->words + packet * a->stride, stage);
    }
}

// Takes the STATEs among the packets from `first` to `last`. Where results are pulled, a STATE that
// nobody asked for announces one.
static void take_states(struct worker *w, const struct arrivals *a, int64_t first, int64_t last,
                        double now) {
    int64_t n = 0, *taken = w->taken;
    w->stamp++;
    for (int64_t i = first; i < last; i++) {
        if (w->kinds[i] != ANSWER)
            continue;
        const struct header *header = &a->headers[i];
        int64_t row = w->places[i];
        int direct = (header->flags & DIRECT) != 0;
        int announced = (header->flags >> 4 & 3) == FINAL && !direct && w->pulls;
        if (w->stage[row] != (direct ? DIRECTLY : WAITING) ||
            !(probing_of(w, row)->probes || announced) ||
            (!direct && header->sender >= MOST_CHILDREN) || w->mark[row] == w->stamp) {
            w->counts.unasked++;
            continue;
        }
        w->mark[row] = w->stamp;
        if (announced) // what is due fetches it, too
            set_probe(w, row, !w->due[row]);
        else
            taken[n++] = i;
    }
    w->counts.states += n;
    detect_from_states(w, taken, n, a, now);
}

// Takes the packets from `first` to `last`, which have arrived by `now`: sums first, then float32
// sums, then STATEs.
void receive(struct worker *w, const struct arrivals *a, int64_t first, int64_t last, double now) {
    int met[ANSWER + 1] = {0};
    for (int64_t i = first; i < last; i++)
        met[w->kinds[i] = match(w, a, i, &w->places[i])] = 1;
    w->prepared = 0;
    if (met[SUM])
        take_results(w, a, first, last, now, SUM);
    if (met[DIRECT_SUM])
        take_results(w, a, first, last, now, DIRECT_SUM);
    if (met[ANSWER])
        take_states(w, a, first, last, now);
}

// Takes packets that have arrived by `now`.
void worker_receive(struct worker *w, const struct arrivals *a, double now) {
    receive(w, a, 0, a->count, now);
}

// Writes the tickets of the sums that packets bring, -1 for others, as far as their headers tell.
void find_tickets(const struct worker *w, const struct arrivals *a, int64_t *tickets) {
    for (int64_t i = 0; i < a->count; i++) {
        const struct header *header = &a->headers[i];
        int64_t stream = w->stream_index[header->stream];
        tickets[i] = -1;
        if (stream < 0 || op_of(header) != RESULT)
            continue;
        int64_t row = row_of(w, stream, four(header->seq));
        if (w->seq[row] == four(header->seq) && !w->entry[row].exponent_round)
            tickets[i] = w->entry[row].ticket;
    }
}

// Writes for each result of the row beside it 0 if it passes all checks, else the place of the one
// that it fails among wrong_workers, wrong_lanes, wrong_exponent, wrong_checksum, from 1.
void check_results(struct worker *w, const struct arrivals *a, const int64_t *rows,
                   int64_t *failed) {
    const struct counts *counts = &w->counts;
    for (int64_t i = 0; i < a->count; i++) {
        const int64_t *cause = failed_check(w, a, i, rows[i], (a->headers[i].flags & DIRECT) != 0);
        failed[i] = !cause                            ? 0
                    : cause == &counts->wrong_workers ? 1
                    : cause == &counts->wrong_lanes   ? 2
                    : cause == &counts->wrong_exponent ? 3
                                                       : 4;
    }
}
