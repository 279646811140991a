// SPDX-License-Identifier: Apache-2.0
// Processes packets whose arrival times are known in advance, as in virtual time: what one call
// after the other would do at these times, in one call (hosts/net/arrivals.py).

#include "worker.h"

// True if what a poll sends now fits into the queue and into `out`.
static int fits(struct worker *w, const struct driver *driver, const struct departures *out,
                double now) {
    int64_t most = w->probed_length + w->heap_length;
    double size = (double)(w->probed_length * w->small + w->heap_length * w->large);
    size = fmin(size, room(w, now) + (double)w->large); // one packet may exceed the room
    double waiting = larger(0.0, driver->waiting - driver->pace * (now - driver->since));
    // Times of the queue are rounded: two packets are to spare.
    return out->count + most <= out->room && waiting + size <= driver->bytes - 2 * (double)w->large;
}

// Polls, unless what is to be sent does not fit. Returns whether it has. The time of the next poll
// is exact if it is before `next`.
static int poll(struct worker *w, struct driver *driver, struct departures *out, double now,
                double next) {
    int64_t before = out->count;
    prepare_poll(w, now);
    if (w->error || !fits(w, driver, out, now))
        return 0;
    if (send_now(w, now, out) && out->following < next)
        out->following = first_deadline(w);
    double waiting = larger(0.0, driver->waiting - driver->pace * (now - driver->since));
    for (int64_t i = before; i < out->count; i++)
        if (uses_link(w, &out->peers[i]))
            waiting += (double)(out->full[i] ? w->large : w->small);
    driver->waiting = waiting;
    driver->since = now;
    // Polling again at once after nothing was sent would keep a core busy.
    double wait = larger(out->count > before ? 0.0 : driver->tick, out->following - now);
    if (isfinite(wait))
        out->following = (rint(now * driver->second) + rint(wait * driver->second)) / driver->second;
    return 1;
}

// Takes a prefix of the packets, and sends what the driver would between them; returns its length.
// The driver polls next: now if `following` is NaN, else at that time.
int64_t worker_run(struct worker *w, const struct arrivals *a, struct driver *driver,
                   struct departures *out) {
    int64_t taken = 0;
    out->following = NAN;
    while (taken < a->count) {
        double now = a->times[taken];
        int64_t end = taken + 1;
        while (end < a->count && a->times[end] == now)
            end++;
        receive(w, a, taken, end, now);
        taken = end;
        out->following = NAN;
        int last = taken == a->count;
        // A chunk that failed is reported before anything else is sent.
        if (w->error || w->failed_length || (last && !driver->polls_last))
            break;
        double next = last ? INFINITY : a->times[taken];
        if (!poll(w, driver, out, now, next)) {
            out->following = NAN;
            break;
        }
        if (last)
            break;
        int fit = 1;
        for (double wake = out->following; fit && wake < next; wake = out->following) {
            fit = poll(w, driver, out, wake, next);
            out->following = fit ? out->following : wake;
        }
        if (!fit)
            break;
    }
    return taken;
}

// Checked by hosts/worker/core.py.
const int64_t worker_bytes = sizeof(struct worker), arrivals_bytes = sizeof(struct arrivals),
              departures_bytes = sizeof(struct departures), driver_bytes = sizeof(struct driver);
