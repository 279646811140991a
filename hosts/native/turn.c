// SPDX-License-Identifier: Apache-2.0
// A turn of a worker at its UDP socket, in one call: takes what has arrived, polls, and sends.

#include <errno.h>
#include <sys/socket.h>
#include <time.h>

#include "trains.h"
#include "worker.h"

enum { HEADER_BYTES = sizeof(struct header) };

// Arguments and results of worker_turn().
struct turn {
    struct inbox *inbox;
    int64_t socket;
    int64_t most;    // packets in a train
    int64_t blocked; // 1: do not send, as the socket's buffer is full
    // Results.
    double now;
    int64_t irregular; // 1: what has arrived is left in the inbox, for Python to sort out
    int64_t first, last, trains_sent; // packets that the socket has not taken: from `first` on, of
                                      // which those before `last` have had `trains_sent` trains
    int64_t sent, calls; // packets and system calls
    double unhurried;    // seconds that what arrives may wait, see at_ease()
};

// Sends packets `first` to `last`, all with or all without payload; returns 0 if the socket
// refused one.
static int send_run(struct turn *t, const struct departures *out, int64_t first, int64_t last) {
    const uint8_t *packets = out->packets + first * out->stride;
    uint64_t sent = 0;
    t->trains_sent = 0;
    if (out->full[first]) {
        t->trains_sent = send_trains((int)t->socket, packets, (size_t)out->stride,
                                     out->peers + first, (size_t)(last - first), (size_t)t->most,
                                     &sent);
    } else { // not one behind the other: each by itself
        while (first + t->trains_sent < last &&
               send_train((int)t->socket, packets + t->trains_sent * out->stride, HEADER_BYTES, 1,
                          &out->peers[first + t->trains_sent]))
            t->trains_sent++;
        sent = (uint64_t)t->trains_sent;
    }
    t->sent += (int64_t)sent;
    t->calls += t->trains_sent;
    return (int64_t)sent == last - first;
}

// True if all that is submitted has been sent, so that results release nothing.
static int all_sent(const struct worker *w) {
    for (int64_t stream = 0; stream < w->streams; stream++)
        if (w->queues[stream].head != w->queues[stream].tail)
            return 0;
    return !w->held && !w->heap_length;
}

// Returns the seconds that results need to arrive, all but one, over a link as fast as this one.
static double missing(const struct worker *w) {
    for (int64_t i = 0; i < w->servers_count; i++)
        if (!uses_link(w, &w->servers[i]))
            return 0;
    return (double)((w->incomplete - 1) * w->large * 8) / w->rate;
}

// Returns the seconds for which nothing has to be read. A quarter of the backlog is left for a late
// wake-up.
static double at_ease(const struct worker *w, double now, double following) {
    if (w->rate <= 0 || !w->incomplete)
        return 0;
    // What arrives can only release packets that leave after those that the link has.
    double spare = w->clear - now;
    if (all_sent(w))
        spare = larger(spare, missing(w));
    spare = fmin(spare - w->backlog / 4, following - now);
    return larger(0, fmin(spare, w->backlog / 2));
}

// Takes a turn; `out` has room for a whole window.
void worker_turn(struct worker *w, struct turn *t, struct departures *out) {
    struct inbox *inbox = t->inbox;
    receive_trains((int)t->socket, inbox);
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    t->now = (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
    t->irregular = inbox->trains_length && !inbox->regular;
    t->first = t->last = t->sent = t->calls = out->count = 0;
    t->unhurried = 0;
    if (inbox->error || t->irregular)
        return;
    if (inbox->packets) {
        const struct arrivals arrived = {
            .headers = inbox->headers,
            .peers = inbox->sources,
            .words = inbox->arena + HEADER_BYTES,
            .full = inbox->full,
            .stride = inbox->wide,
            .count = inbox->packets,
        };
        receive(w, &arrived, 0, arrived.count, t->now);
    }
    if (t->blocked || w->error)
        return;
    if (send_now(w, t->now, out))
        out->following = first_deadline(w);
    for (t->first = 0; t->first < out->count; t->first = t->last) {
        t->last = t->first + 1;
        while (t->last < out->count && out->full[t->last] == out->full[t->first])
            t->last++;
        if (!send_run(t, out, t->first, t->last))
            return;
    }
    t->unhurried = at_ease(w, t->now, out->following);
}

// Checked by hosts/worker/core.py and hosts/net/trains.py.
const int64_t turn_bytes = sizeof(struct turn), inbox_bytes = sizeof(struct inbox);
