// SPDX-License-Identifier: Apache-2.0
// Scalar operations on window slots: each is equivalent to the Python method that it names
// (hosts/worker/native_state.py).
//
// A row is one slot of a stream's window; arrays by row are those of hosts/worker/slots.py
// themselves.

#include <math.h>
#include <stdlib.h>

#include "worker.h"

// Codec.scale
int64_t scale_of(const struct worker *w, int exponent) {
    int bits = w->world > 1 ? 64 - __builtin_clzll((uint64_t)w->world - 1) : 0;
    int64_t digits = w->sum_digits - bits - exponent;
    return digits < w->finest_scale ? digits : w->finest_scale;
}

// Derives the exponent after a round whose results report this one: Exponents._fold.
static void fold(const struct worker *w, int64_t chunk, int64_t round, int reported) {
    if (reported != NO_EXPONENT) {
        int64_t raised = reported + w->exponent_headroom;
        raised = raised < w->least_exponent ? w->least_exponent : raised;
        w->after[chunk] = (int16_t)(raised > w->most_exponent ? w->most_exponent : raised);
    } else if (round == 0) {
        w->after[chunk] = w->first[chunk];
    }
    w->folded[chunk] = round + 1;
}

// Results of take_results: _Taken in hosts/worker/native_state.py.
struct taken {
    int64_t *rows, *tickets, *chunks; // of results with data, as are flags
    uint8_t *flags;
    int64_t *places; // their indices among all results
    int8_t *exponents; // found by exponent rounds, with chunks: from the end backwards
    int64_t coarse;
};

// Checked by hosts/worker/native_state.py.
const int64_t worker_bytes = sizeof(struct worker), taken_bytes = sizeof(struct taken);
const int64_t entry_bytes = sizeof(struct entry), progress_bytes = sizeof(struct progress);
const int64_t done_stage = DONE, no_exponent = NO_EXPONENT;

// Takes unflagged integer results of these rows; returns the number with data. The caller takes the
// exponents that the others found.
int64_t take_results(const struct worker *w, const int64_t *rows, const struct header *headers,
                     uint64_t n, struct taken *out) {
    int64_t data = 0, found = 0;
    out->coarse = 0;
    for (uint64_t i = 0; i < n; i++) {
        int64_t row = rows[i];
        const struct header *header = &headers[i];
        const struct entry *entry = &w->entry[row];
        w->stage[row] = DONE;
        w->due[row] = w->probe_pending[row] = 0;
        w->deadline[row] = INFINITY;
        w->results[row] = *header;
        int reported = header->max_exponent;
        if (entry->exponent_round) { // from the end on
            int64_t at = (int64_t)n - ++found;
            out->chunks[at] = entry->chunk;
            out->exponents[at] = header->max_exponent;
            continue;
        }
        out->coarse += reported != NO_EXPONENT &&
                        reported + scale_of(w, w->exponent[row]) < w->least_digits; // Codec.coarse
        fold(w, entry->chunk, entry->round, reported);
        out->rows[data] = row;
        out->tickets[data] = entry->ticket;
        out->chunks[data] = entry->chunk;
        out->flags[data] = header->flags;
        out->places[data++] = (int64_t)i;
    }
    return data;
}

// Copies the words of results with data to their rows of `kept`, and writes them as float32 to the
// addresses `sums_at` (by row). Returns 0 if a scale is too extreme for one multiplication.
int keep_sums(const struct worker *w, const int64_t *rows, int64_t n, const uint8_t *words,
              int64_t stride, float *const *sums_at, uint32_t *kept) {
    for (int64_t i = 0; i < n; i++)
        if (!w->entry[rows[i]].exponent_round && labs(scale_of(w, w->exponent[rows[i]])) > 126)
            return 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = rows[i];
        if (w->entry[row].exponent_round)
            continue;
        float factor = ldexpf(1, -(int)scale_of(w, w->exponent[row]));
        dequantise_rows(words + i * stride, 0, 1, (uint64_t)w->width, &factor, &sums_at[row], kept,
                        &row);
    }
    return 1;
}

// Returns the lowest number of a stream from `left` on that has no result.
int64_t first_open(const struct worker *w, int64_t stream, int64_t left, int64_t next) {
    while (left < next && w->stage[row_of(w, stream, left)] == DONE)
        left++;
    return left;
}

// Gives entries the numbers from `number` on: Slots.enter, except for values.
void enter_rows(const struct worker *w, int64_t stream, int64_t number,
                const struct entry *entries, uint64_t n) {
    static const struct progress unsent = {.state_time = NAN};
    for (uint64_t i = 0; i < n; i++, number++) {
        int64_t row = row_of(w, stream, number), chunk = entries[i].chunk;
        w->seq[row] = (uint32_t)number;
        w->entry[row] = entries[i];
        w->server[row] = w->chunk_server[chunk < w->chunks ? chunk : w->chunks];
        w->stage[row] = entries[i].exponent_round ? WAITING : HELD;
        w->due[row] = entries[i].exponent_round;
        w->exponent[row] = 0;
        w->flags[row] = 0;
        w->failures[row] = 0;
        w->progress[row] = unsent;
        w->deadline[row] = INFINITY;
    }
}

// Makes held data due in `stage` where its exponent is known: WorkerTransport._advance.
void activate_held(const struct worker *w, int64_t rows, int stage) {
    for (int64_t row = 0; row < rows; row++) {
        if (w->stage[row] != HELD)
            continue;
        const struct entry *entry = &w->entry[row];
        if (!is_ready(w, entry->chunk, entry->round))
            continue;
        w->exponent[row] = entry->round ? w->after[entry->chunk] : w->first[entry->chunk];
        w->stage[row] = (uint8_t)stage;
        w->due[row] = 1;
    }
}

// Records that CONTRIBUTEs of these rows leave for the first time, and when they are to be probed:
// NativeState.note_sent.
void note_sent(const struct worker *w, const int64_t *rows, uint64_t n, const double *times,
               const double *deadlines) {
    for (uint64_t i = 0; i < n; i++) {
        struct progress *progress = &w->progress[rows[i]];
        progress->sent_first = progress->sent_last = times[i];
        progress->sent++;
        progress->clean = 1;
        progress->failed = 0;
        progress->probes = progress->backoff = 0;
        w->deadline[rows[i]] = deadlines[i];
        w->due[rows[i]] = 0;
    }
}

// Restarts the timers of a stream's numbers in flight: LossDetector.restart. None expires before
// `after`, nor within a timeout after it leaves. Returns the earliest deadline.
double rearm_timers(const struct worker *w, int64_t stream, int64_t left, int64_t next,
                    double after, double timeout) {
    double first = INFINITY;
    for (; left < next; left++) {
        int64_t row = row_of(w, stream, left);
        double *deadline = &w->deadline[row], ring = after;
        if (isfinite(ring))
            ring = fmax(ring, w->progress[row].sent_last + timeout);
        if (*deadline < ring ||
            (isfinite(ring) && isfinite(*deadline) && !w->progress[row].backoff))
            *deadline = ring;
        if (*deadline < first)
            first = *deadline;
    }
    return first;
}

// Writes the headers of CONTRIBUTEs, with the checksum of no payload: Contributions.packets.
void write_contributions(const struct worker *w, const int64_t *rows, uint64_t n,
                         uint8_t *headers, size_t stride, uint8_t *full, struct peer *peers) {
    for (uint64_t i = 0; i < n; i++) {
        int64_t row = rows[i];
        struct header *header = (struct header *)(headers + i * stride);
        const struct entry *entry = &w->entry[row];
        int direct = w->stage[row] == DIRECTLY;
        *header = w->common[w->stream[row]];
        header->seq = four(w->seq[row]);
        header->chunk = four((uint32_t)entry->chunk);
        header->exponent = (int8_t)w->exponent[row];
        if (direct) {
            header->node = 0;
            header->sender = (uint8_t)w->rank;
        } else if (!entry->exponent_round) {
            int fits = entry->own <= w->exponent[row];
            w->flags[row] = (uint8_t)(entry->unfit | (fits ? 0 : OVERFLOW));
        }
        header->flags = (uint8_t)(w->flags[row] | (direct ? DIRECT : 0) |
                                  (w->progress[row].sent > 0 ? RETRANSMIT : 0));
        header->max_exponent = (int8_t)entry->own;
        header->lanes = two(entry->lanes);
        if (w->stage[row] == WAITING)
            w->hash[row] = chunk_hash(header);
        header->checksum = four(w->hash[row]);
        full[i] = entry->lanes != 0 && (direct || !(w->flags[row] & (OVERFLOW | NONFINITE)));
        peers[i] = w->servers[w->server[row]];
    }
}
