// SPDX-License-Identifier: Apache-2.0
// A worker's transport as arrays: its slots (hosts/worker/slots.py), by row, and what they depend
// on.
#ifndef RACKHUB_WORKER_H
#define RACKHUB_WORKER_H

#include "packet.h"

// The stage of a number: hosts/worker/slots.py.
enum { EMPTY, HELD, WAITING, DIRECTLY, DONE };
enum { NO_EXPONENT = -128 }; // protocol/payloads.py

// ENTRY in hosts/worker/chunk_queues.py.
struct entry {
    uint8_t exponent_round, unfit;
    uint16_t lanes;
    int16_t own;
    int64_t chunk, round, ticket, order, row;
};

// PROGRESS in hosts/worker/slots.py.
struct progress {
    int64_t sent;
    double sent_first, sent_last;
    int64_t backoff, probes;
    double probed_last;
    uint8_t clean, failed;
    uint16_t state_node;
    uint8_t state_phase;
    uint32_t state_children;
    double state_time;
};

// The arrays of NativeState in hosts/worker/native_state.py, in this order.
struct worker {
    // By row.
    uint8_t *stage, *flags, *due, *probe_pending;
    uint32_t *seq, *hash;
    int64_t *server, *failures, *mark;
    int16_t *exponent;
    struct entry *entry;
    struct progress *progress;
    double *deadline; // when to probe
    struct header *results;
    const int64_t *stream;
    // By stream.
    const struct header *common; // fields shared by its packets
    const int64_t *bases, *masks;
    const int64_t *limits;     // most numbers in flight
    const int64_t *priorities; // of the scheduler
    const int64_t *stream_index; // by stream number in packets; -1: none
    // By chunk: the state of Exponents, and the server.
    const uint8_t *contacted;
    const int16_t *first;
    int16_t *after;
    int64_t *folded;
    const int64_t *chunk_server;
    const struct peer *servers; // by rank
    // Scalars.
    int64_t streams, chunks, width, exponent_headroom, world, rank, job, epoch;
    // Of the codec: Codec in protocol/codecs/codec.py.
    int64_t sum_digits, finest_scale, least_digits, least_exponent, most_exponent;
};

static inline int64_t row_of(const struct worker *w, int64_t stream, int64_t number) {
    return w->bases[stream] + (number & w->masks[stream]);
}

// See Exponents.ready() in protocol/exponents.py, without staleness.
static inline int is_ready(const struct worker *w, int64_t chunk, int64_t round) {
    return round == 0 ? w->contacted[chunk] : w->folded[chunk] > round - 1;
}

// See chunks.c and rows.c.
void dequantise_rows(const uint8_t *words, uint64_t stride, uint64_t n, uint64_t width,
                     const float *factors, float *const *out, uint32_t *kept,
                     const int64_t *rows);
int64_t scale_of(const struct worker *w, int exponent);
void note_sent(const struct worker *w, const int64_t *rows, uint64_t n, const double *times,
               const double *deadlines);
double rearm_timers(const struct worker *w, int64_t stream, int64_t left, int64_t next,
                    double after, double timeout);
void write_contributions(const struct worker *w, const int64_t *rows, uint64_t n,
                         uint8_t *headers, size_t stride, uint8_t *full, struct peer *peers);

#endif
