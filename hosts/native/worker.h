// SPDX-License-Identifier: Apache-2.0
// A worker's transport: the state of its chunks in flight, and what the files beside this one do
// with it. hosts/worker/core.py makes ctypes structures and numpy types of the structures here, so
// each is declared once; it owns all memory.
//
// A row is one slot of a stream's window; hosts/worker/slots.py says which numbers are in which
// rows. Numbers `left` to `next` of a stream are open: they have entered the window, and those
// before `left` have their results. A row is
//   EMPTY     before its first number,
//   HELD      while the exponent of its chunk is not known; then it is in the list `held_first`,
//   WAITING   for the integer sum,
//   DIRECTLY  for the float32 sum of a server,
//   DONE      with its result, kept until another number takes the row.
// A row in WAITING or DIRECTLY is either `due`, with an infinite deadline, or in flight, with the
// finite time at which it is to be probed. All other rows are neither.
#ifndef RACKHUB_WORKER_H
#define RACKHUB_WORKER_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "packet.h"

enum { EMPTY, HELD, WAITING, DIRECTLY, DONE };
enum { NO_EXPONENT = -128, LEAST_EXPONENT = -126, MOST_EXPONENT = 127 }; // protocol/payloads.py
enum { UNREPORTED = -(1 << 15) }; // protocol/exponents.py
enum { KINDS = 3 };              // of ways: integer sums, exponent rounds, float32 sums
enum { BLOCK_BITS = 6 };
enum { MOST_CHILDREN = 32 };     // protocol/plan.py

// A number of a stream: hosts/worker/chunk_queues.py. row: of its chunk in the submission.
struct entry {
    bool exponent_round;
    uint8_t unfit;
    uint16_t lanes;
    int16_t own;
    uint16_t server;
    int32_t chunk, round, row, submission;
    int64_t ticket, order;
};

// Where a submission has its values and its sums, of which each chunk has a row. scattered: where
// each row of values is; NULL: one after the other. averages: means over the workers take the place
// of sums.
struct submission {
    uint64_t values_at, sums_at, averages;
    const uint64_t *scattered;
};

// The n chunks of a submission, in the order of the call. arranged: that in which they get numbers.
struct submitted {
    const int64_t *chunks, *arranged, *streams;
    const uint16_t *lanes, *servers;
    int64_t n, ticket, order, place; // of the first chunk, of the first number, in `submissions`
    struct entry *entries;           // room for 2n
    int64_t *ends;                   // by stream
};

// Progress of a number in its stage. Times are in seconds; those of sending are when a packet
// leaves the host: a window may be handed over at once, but its packets leave one by one.
struct progress {
    double sent_first, sent_last;
    int32_t sent;      // CONTRIBUTEs
    uint32_t restarts; // of the stream's timer, when the deadline was set
    bool clean;        // its round trip may be a sample
    bool failed;       // a result of the last CONTRIBUTE failed its check
    bool probed;       // it has been probed, or was to be: the row's `probing` holds
};

// What few numbers have: those of which a packet was late. Of others memory is never written.
struct probing {
    double probed_last;
    double state_time; // of the last STATE; NaN if there was none
    int32_t backoff, probes; // timeouts in a row; unanswered QUERYs
    uint32_t state_children;
    uint16_t state_node;
    uint8_t state_phase;
};

// The entries of a stream that are not yet in its window.
struct queue {
    const struct entry *entries;
    int64_t head, tail;
};

// A packet to send, in a heap: the higher priority first, then the lower order.
struct due {
    int64_t order;
    int32_t row, rank; // rank: less the stream's priority
};

// A sum that has arrived.
struct sum {
    int64_t ticket;
    int32_t chunk, row, submission; // row: in the submission
    uint8_t flags;
};

// What came from one server since it was last read: sums, the seconds from each contribution until
// its sum; when the first and the last of the contributions left, and the last sum came.
struct response {
    int64_t sums;
    double waited, first, sent, last;
};

// A chunk that failed for good.
struct failure {
    int64_t stream, seq, chunk;
    bool exponent_round;
};

// Statistics in hosts/data/reports.py, and the causes of drops.
struct counts {
    int64_t sent, retransmitted, queries, states, completed, completed_direct, exponent_rounds,
        coarse, initial, ahead, most_ahead, congested, duplicates, wrong_checksum;
    int64_t foreign, stale, other_chunk, wrong_source, unexpected, unasked, wrong_workers,
        wrong_lanes, wrong_exponent;
};

// Policies in Python, by function pointer.
typedef int adapt_window(int64_t stream); // sets `limits`; returns 1 after an exception
// Both return 1 after an exception. `words` are in network order.
typedef int encode_chunk(uint64_t values_at, int exponent, uint8_t *words, uint32_t *sum);
typedef int decode_chunk(const uint8_t *words, int exponent, uint64_t sums_at);

struct worker {
    // By row.
    uint8_t *stage, *flags;
    bool *due, *probe_pending;
    uint32_t *seq, *hash;
    uint16_t *server;
    uint8_t *failures;
    int32_t *held_next;
    int64_t *mark; // `stamp` where a pass over packets has met the row
    int16_t *exponent;
    struct entry *entry;
    struct progress *progress;
    struct probing *probing;
    double *deadline; // see deadline_of()
    struct header *results;
    uint8_t *words; // of results
    const uint8_t *stream;
    const struct submission *submissions; // by entry.submission
    // By stream. The state of timers is that of loss_detection.c.
    const struct header *common; // fields shared by its packets
    const int64_t *bases, *masks, *nodes, *senders, *priorities;
    int64_t *left, *next;
    int64_t *limits; // most numbers in flight
    struct queue *queues;
    double *smoothed, *variation, *timeouts, *late, *lowest; // RoundTrips in round_trips.py
    double *gap_last, *gap, *gap_variation;
    double *ring, *ring_timeout, *longest, *earliest;
    double *nearest; // no deadline that was set since the stream's timer restarted is earlier
    double *unheard; // at most when a row in flight was last sent or heard of
    int64_t *restarts, *backed_off;
    int64_t *met, *marked, *retransmitted, *trip_ends; // of the round trip (CongestionControl)
    // By stream number in packets: the stream; -1: none.
    const int64_t *stream_index;
    // By way (way_of()).
    double *latest;
    // By server: the latest time at which a row that it has answered had been sent or probed.
    double *answered;
    // By block of 2^BLOCK_BITS rows: at most when a row in flight was last sent or heard of.
    double *heard;
    // By chunk: the state of Exponents (those of rounds by chunk and round mod `depth`), the list of
    // HELD rows; the last results, if servers optimize.
    bool *contacted;
    int16_t *first, *after, *reported;
    int64_t *begun, *folded;
    int32_t *held_first;
    struct header *last_headers;
    uint8_t *last_words;
    const struct peer *servers; // by rank
    struct response *responses; // by rank
    // For one call: by packet that arrives; by row.
    int64_t *places, *kinds, *taken, *probed, *chosen;
    struct due *heap;
    struct sum *sums;
    struct failure *failed;
    adapt_window *adapt;
    encode_chunk *encode; // NULL: round to nearest
    decode_chunk *decode;
    struct counts counts;
    // Of the plan, and of its codec (Codec in protocol/codecs/codec.py).
    int64_t streams, rows, width, exponent_headroom, depth, world, rank, job, epoch;
    int64_t servers_count, is_asynchronous, optimizes, pulls, adapts, by_slice;
    int64_t sum_digits, finest_scale, least_digits, least_exponent, most_exponent;
    // Bytes of numbers that have entered a window and have no result, and how many may be before
    // others enter; 0: no limit (Propagation in protocol/propagation.py).
    int64_t outstanding, credit;
    int64_t together; // numbers of a stream whose sums a server may send together, at most
    // The link that packets leave on, in bit/s, and how many seconds of it are handed over ahead.
    // `clear`: when all that was handed over has left.
    double rate, backlog, clear;
    int64_t host; // address of this host, servers at which are not reached by the link; 0: unknown
    int64_t small, large; // bytes on the wire of packets without and with payload
    // Loss detection.
    double least, most; // bounds of timeouts
    double lost;        // share of answers that showed a loss, known missing ones included
    double soonest;     // no deadline is earlier
    int64_t since_loss, memory, news, pending; // pending: rows with probe_pending
    // Lengths and flags.
    int64_t heap_length, sums_length, failed_length, probed_length, chosen_length;
    int64_t incomplete; // numbers submitted that have no result
    int64_t held;       // rows that are HELD
    int64_t moved;      // windows may move
    int64_t prepared;   // `probed` is of a poll whose packets are not built
    int64_t expired;    // that poll met expired timers, of the rows in `chosen`
    int64_t met_wrong;  // a packet has failed a check
    int64_t stamp, error;
};

// Packets that arrived (Batch in protocol/header.py). times: NULL if all arrived at once.
struct arrivals {
    const struct header *headers;
    const struct peer *peers;
    const uint8_t *words; // `stride` bytes apart
    const bool *full;
    const double *times;
    int64_t stride, count;
};

// Packets to send, `stride` bytes apart; `room` of them fit.
struct departures {
    uint8_t *packets;
    bool *full;
    struct peer *peers;
    double *times; // when they are handed over
    int64_t stride, room, count;
    double following; // time of the next poll
};

// Of worker_run(): the clock of its driver (Clock in hosts/net/arrivals.py), and the queue that
// packets are handed over to, which sends `pace` bytes a second. `waiting` of its `bytes` were taken
// at `since`.
struct driver {
    double second, tick, pace, bytes, waiting, since;
    int64_t polls_last; // 1: poll after the last packet, too
};

static inline double larger(double a, double b) { return a > b ? a : b; }

static inline double smaller(double a, double b) { return a < b ? a : b; }

static inline int64_t row_of(const struct worker *w, int64_t stream, int64_t number) {
    return w->bases[stream] + (number & w->masks[stream]);
}

static inline int in_flight(const struct worker *w, int64_t row) {
    return isfinite(w->deadline[row]);
}

static inline void set_probe(struct worker *w, int64_t row, bool pending) {
    w->pending += pending - w->probe_pending[row];
    w->probe_pending[row] = pending;
}

static inline const struct probing *probing_of(const struct worker *w, int64_t row) {
    static const struct probing none = {.state_time = NAN};
    return w->progress[row].probed ? &w->probing[row] : &none;
}

// The same, to be changed.
static inline struct probing *begin_probing(struct worker *w, int64_t row) {
    if (!w->progress[row].probed)
        w->probing[row] = (struct probing){.state_time = NAN};
    w->progress[row].probed = true;
    return &w->probing[row];
}

static inline void set_backoff(struct worker *w, int64_t row, int32_t backoff) {
    int32_t before = probing_of(w, row)->backoff;
    if (backoff == before)
        return;
    w->backed_off[w->stream[row]] += (backoff > 0) - (before > 0);
    begin_probing(w, row)->backoff = backoff;
}

static inline void clear_probes(struct worker *w, int64_t row) {
    if (w->progress[row].probed)
        w->probing[row].probes = 0;
}

// Addresses of the values of a number's chunk, and of its sums.
static inline uint64_t values_at(const struct worker *w, const struct entry *entry) {
    const struct submission *submission = &w->submissions[entry->submission];
    if (submission->scattered)
        return submission->scattered[entry->row];
    return submission->values_at + (uint64_t)(4 * w->width * entry->row);
}

static inline uint64_t sums_at(const struct worker *w, const struct entry *entry) {
    return w->submissions[entry->submission].sums_at + (uint64_t)(4 * w->width * entry->row);
}

// A row's deadline. Each result restarts its stream's timer, which moves the deadlines of all
// rows in flight: this computes them when they are needed. Rows with a backoff are moved at once.
static inline double deadline_of(const struct worker *w, int64_t row) {
    const struct progress *progress = &w->progress[row];
    int64_t stream = w->stream[row];
    if (progress->restarts == (uint32_t)w->restarts[stream] || probing_of(w, row)->backoff ||
        !in_flight(w, row))
        return w->deadline[row];
    return larger(w->ring[stream], progress->sent_last + w->ring_timeout[stream]);
}

static inline void set_deadline(struct worker *w, int64_t row, double deadline) {
    int64_t stream = w->stream[row];
    w->deadline[row] = deadline;
    w->progress[row].restarts = (uint32_t)w->restarts[stream];
    w->nearest[stream] = smaller(w->nearest[stream], deadline);
    w->soonest = smaller(w->soonest, deadline);
}

// window.c
void advance(struct worker *w);
void make_due(struct worker *w, int64_t row);
struct due due_of(const struct worker *w, int64_t row);
int64_t first_due(struct worker *w); // -1: none
void worker_redirect(struct worker *w, const int64_t *servers);
void restart_progress(struct worker *w, int64_t row);
void complete(struct worker *w, int64_t row, const struct header *header, const uint8_t *words,
              int stage);
int64_t scale_of(const struct worker *w, int exponent);

// submit.c
int64_t worker_submit(struct worker *w, const struct submitted *s);

// quantize.c
uint32_t write_integers(const float *values, word *words, int64_t width, int64_t scale);
uint32_t write_floats(const float *values, word *words, int64_t width);

// loss_detection.c
void detect_from_results(struct worker *w, const int64_t *packets, int64_t n,
                         const struct arrivals *a, double now);
void detect_from_states(struct worker *w, const int64_t *packets, int64_t n,
                        const struct arrivals *a, double now);
void prepare_probes(struct worker *w, double now);
void note_probed(struct worker *w, int64_t row, double now, double leave);
double first_deadline(struct worker *w);

// receive.c
void receive(struct worker *w, const struct arrivals *a, int64_t first, int64_t last, double now);

// read_ahead.c
int64_t worker_run(struct worker *w, const struct arrivals *a, struct driver *driver,
                   struct departures *out);

// send.c
double room(const struct worker *w, double now);
int uses_link(const struct worker *w, const struct peer *server);
int send_now(struct worker *w, double now, struct departures *out);
void prepare_poll(struct worker *w, double now);

#endif
