// SPDX-License-Identifier: Apache-2.0
// Turns of a worker at its UDP socket, in one call: each takes what has arrived, polls, and sends.

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "trains.h"
#include "worker.h"

enum { HEADER_BYTES = sizeof(struct header) };
static const double LEAST_WAIT = 0.001; // s: polling again at once would keep a core busy

// Arguments and results of worker_turns().
struct turn {
    struct inbox *inbox;
    int64_t socket, wakeup; // wakeup: an eventfd(2) that ends the wait for another turn
    int64_t most;    // packets in a train
    int64_t blocked; // 1: do not send, as the socket's buffer is full
    int64_t enough;  // sums for which the caller wants to be back; 0: there is one turn
    int64_t room;    // with more sums than this those of another turn might not fit
    int64_t hurried; // 1: what arrives does not wait
    double deadline; // when the caller wants to be back, by CLOCK_MONOTONIC
    // Results. now: of the last turn; summed: of the last one in which a sum arrived, 0 if none did.
    double now, summed;
    int64_t received, receive_calls; // packets and system calls
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

static double monotonic(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// Takes a turn. Returns 0 if something is left for the caller to do.
static int take_turn(struct worker *w, struct turn *t, struct departures *out) {
    struct inbox *inbox = t->inbox;
    receive_trains((int)t->socket, inbox);
    t->now = monotonic();
    t->irregular = inbox->trains_length && !inbox->regular;
    t->first = t->last = out->count = 0;
    t->unhurried = 0;
    if (inbox->error || t->irregular)
        return 0;
    t->received += inbox->packets;
    t->receive_calls += inbox->trains_length;
    if (inbox->packets) {
        const struct arrivals arrived = {
            .headers = inbox->headers,
            .peers = inbox->sources,
            .words = inbox->arena + HEADER_BYTES,
            .full = inbox->full,
            .stride = inbox->wide,
            .count = inbox->packets,
        };
        int64_t sums = w->sums_length;
        receive(w, &arrived, 0, arrived.count, t->now);
        if (w->sums_length > sums)
            t->summed = t->now;
    }
    if (t->blocked || w->error)
        return 0;
    if (send_now(w, t->now, out))
        out->following = first_deadline(w);
    for (t->first = 0; t->first < out->count; t->first = t->last) {
        t->last = t->first + 1;
        while (t->last < out->count && out->full[t->last] == out->full[t->first])
            t->last++;
        if (!send_run(t, out, t->first, t->last))
            return 0;
    }
    t->unhurried = t->hurried ? 0 : at_ease(w, t->now, out->following);
    return !w->error;
}

// Waits until one of `count` files can be read, up to so many seconds. Returns 1 if `wakeup`, which
// is the first, could.
static int wait_for(struct pollfd *files, nfds_t count, double seconds) {
    int64_t ns = (int64_t)(1e9 * fmin(fmax(seconds, 0), 1e6));
    struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    uint64_t times;
    if (ppoll(files, count, &time, NULL) <= 0 || !(files[0].revents & POLLIN))
        return 0;
    return read(files[0].fd, &times, sizeof times) == sizeof times;
}

// Waits for the next turn. Returns 1 if the caller is wanted.
static int wait_for_turn(const struct turn *t, double following) {
    struct pollfd files[] = {{.fd = (int)t->wakeup, .events = POLLIN},
                             {.fd = (int)t->socket, .events = POLLIN}};
    double until = fmin(larger(following, t->now + LEAST_WAIT), t->deadline);
    double unhurried = fmin(t->now + t->unhurried, until);
    if (t->unhurried >= LEAST_WAIT && wait_for(files, 1, unhurried - monotonic()))
        return 1;
    return wait_for(files, 2, until - monotonic());
}

// Takes turns until the caller has something to do; `out` has room for a whole window.
void worker_turns(struct worker *w, struct turn *t, struct departures *out) {
    t->sent = t->calls = t->received = t->receive_calls = 0;
    t->summed = 0;
    while (take_turn(w, t, out) && w->sums_length < t->enough && !w->failed_length &&
           w->sums_length <= t->room && t->now < t->deadline && !wait_for_turn(t, out->following))
        ;
}

// Checked by hosts/worker/core.py and hosts/net/trains.py.
const int64_t turn_bytes = sizeof(struct turn), inbox_bytes = sizeof(struct inbox);
