// SPDX-License-Identifier: Apache-2.0
// What a worker does whenever it wakes up: takes the results that arrived, and chooses and builds
// the packets to send. For results that are plain (arrived.h) and packets that are sent for the
// first time; the rest is Python's, which does the same, and is the reference.
//
// Rows outside windows have an infinite deadline and are neither due nor to be probed, so a look at
// all windows sees all rows that matter.

#include <stdlib.h>

#include "arrived.h"
#include "detection.h"

// Checked by hosts/worker/native_state.py.
const int64_t detection_bytes = sizeof(struct detection), sooner = SOONER, kinds = KINDS;

// Takes n results that arrive now: LossDetector.on_results. `open` has each stream's left and next.
// Returns the number that met congestion; -1, with nothing changed, if one of them is not plain.
int64_t receive_results(const struct worker *w, struct detection *d, double now,
                        const struct header *headers, const struct peer *peers,
                        const uint8_t *words, int64_t stride, const uint8_t *full, int64_t n,
                        const int64_t *open, int64_t *rows) {
    const struct arrived arrived = {headers, peers, words, stride, full};
    int64_t congested = 0;
    for (int64_t i = 0; i < n; i++)
        if (!is_plain(w, &arrived, i, rows))
            return -1;
    for (int64_t stream = 0; stream < w->streams; stream++) {
        double longest = -1, sent = INFINITY;
        for (int64_t i = 0; i < n; i++) {
            const struct progress *progress = &w->progress[rows[i]];
            if (w->stream[rows[i]] != stream)
                continue;
            sent = fmin(sent, progress->sent_last);
            double took = larger(now - progress->sent_last, 0.0);
            if (progress->clean && took < d->lowest[stream])
                d->lowest[stream] = took;
            if (progress->clean && full[i])
                longest = larger(longest, took);
        }
        if (longest >= 0)
            sample_trip(d, now, stream, longest);
        if (isinf(sent))
            continue;
        if (d->lossy)
            sample_gap(d, now, stream, sent);
        double timeout = timeout_of(d, stream);
        rearm_timers(w, stream, open[2 * stream], open[2 * stream + 1], now + timeout, timeout);
    }
    for (int64_t i = 0; i < n; i++) {
        double *latest = &d->latest[way_of(w, d, rows[i])];
        *latest = larger(*latest, w->progress[rows[i]].sent_last);
        congested += (headers[i].flags & ECN) != 0;
    }
    return congested;
}

struct due {
    int64_t rank, order, row;
};

static int by_urgency(const void *one, const void *other) {
    const struct due *a = one, *b = other;
    return a->rank != b->rank ? (a->rank > b->rank) - (a->rank < b->rank)
                              : (a->order > b->order) - (a->order < b->order);
}

// What is to be done now: _Found in hosts/worker/native_state.py.
struct found {
    struct due *due; // the rows to send, the most urgent first
    int64_t count, special; // 1 if something is not for C: a probe, a retransmission
    double deadline;        // the earliest
};

// Checked by hosts/worker/native_state.py.
const int64_t found_bytes = sizeof(struct found), due_bytes = sizeof(struct due);

// Looks for packets to send at `now`: WorkerTransport.poll. `news`: results have arrived since the
// last time.
void find_due(const struct worker *w, const struct detection *d, double now, int news,
              const int64_t *open, struct found *found) {
    found->count = found->special = 0;
    found->deadline = INFINITY;
    for (int64_t stream = 0; stream < w->streams; stream++)
        for (int64_t number = open[2 * stream]; number < open[2 * stream + 1]; number++) {
            int64_t row = row_of(w, stream, number);
            if (w->due[row]) {
                found->special |= w->progress[row].sent || w->stage[row] != WAITING;
                found->due[found->count++] =
                    (struct due){-w->priorities[stream], w->entry[row].order, row};
            }
            if (w->deadline[row] < found->deadline)
                found->deadline = w->deadline[row];
            found->special |= w->probe_pending[row] ||
                              (news && isfinite(w->deadline[row]) && is_overtaken(w, d, row));
        }
    found->special |= found->deadline <= now;
    qsort(found->due, (size_t)found->count, sizeof *found->due, by_urgency);
}

// The link that packets leave on: Pacer.
struct link {
    double rate, backlog, clear;
    int64_t small, large; // bytes on the wire of packets without and with payload
};

// Checked by hosts/worker/native_state.py.
const int64_t link_bytes = sizeof(struct link);

// Returns how many of the rows that are due the link has room for: WorkerTransport._within_rate.
int64_t fitting(const struct worker *w, const struct found *found, const struct link *link,
                double now) {
    if (link->rate <= 0)
        return found->count;
    double room = larger(0.0, (link->backlog - larger(0.0, link->clear - now)) * link->rate / 8);
    int64_t spent = 0, fits = 0;
    for (; fits < found->count && (double)spent < room; fits++)
        spent += w->entry[found->due[fits].row].lanes ? link->large : link->small;
    return fits;
}

// Writes CONTRIBUTEs of the first n rows that are due, which leave now, with their payloads:
// Contributions.packets and WorkerTransport._account. `rows` gets the rows.
//
// values: by row, the address of its values. headers: the first; the others, as payloads, follow
// `stride` bytes apart. Returns 0, with nothing of consequence changed, if a scale is too extreme
// for one multiplication.
int send_due(const struct worker *w, const struct detection *d, struct found *found,
             struct link *link, double now, int64_t n, const uint64_t *values, uint8_t *headers,
             size_t stride, uint8_t *full, struct peer *peers, int64_t *rows) {
    for (int64_t i = 0; i < n; i++) {
        rows[i] = found->due[i].row;
        if (!w->entry[rows[i]].exponent_round && labs(scale_of(w, w->exponent[rows[i]])) > 126)
            return 0;
    }
    write_contributions(w, rows, (uint64_t)n, headers, stride, full, peers);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = rows[i];
        struct header *header = (struct header *)(headers + (uint64_t)i * stride);
        word *words = (word *)(header + 1);
        if (w->width && full[i]) {
            const float *chunk = (const float *)values[row];
            float factor = ldexpf(1, (int)scale_of(w, w->exponent[row]));
            uint32_t sum = w->hash[row];
            for (int64_t j = 0; j < w->width; j++) {
                uint32_t value = (uint32_t)(int32_t)rintf(chunk[j] * factor);
                sum += value;
                words[j] = four(value);
            }
            header->checksum = four(sum);
        } else if (w->width) {
            memset(words, 0, sizeof *words * (size_t)w->width);
        }
        double leave = now;
        if (link->rate > 0)
            leave = link->clear = larger(now, link->clear) +
                                  (double)((full[i] ? link->large : link->small) * 8) / link->rate;
        double deadline = leave + d->timeouts[w->stream[row]];
        note_sent(w, &row, 1, &leave, &deadline);
        found->deadline = fmin(found->deadline, deadline);
    }
    return 1;
}
