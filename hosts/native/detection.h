// SPDX-License-Identifier: Apache-2.0
// State of loss detection, and the functions on it that are needed result by result
// (hosts/worker/loss_detection.py, round_trips.py and result_gaps.py).
#ifndef RACKHUB_DETECTION_H
#define RACKHUB_DETECTION_H

#include <math.h>

#include "worker.h"

// Arrays are by stream but for `latest`, which is by way (LossDetector._ways).
struct detection {
    double *latest;
    double *smoothed, *variation, *timeouts, *late, *lowest; // RoundTrips.state
    double *last, *gap, *gap_variation;                      // ResultGaps.state
    double least, most;
    int64_t servers, lossy;
};

enum { KINDS = 3 };   // integer sums, exponent rounds, float32 sums
enum { SOONER = 16 }; // LossDetector

static inline double larger(double a, double b) { return a > b ? a : b; }

// LossDetector._ways
static inline int64_t way_of(const struct worker *w, const struct detection *d, int64_t row) {
    int64_t kind = w->stage[row] == DIRECTLY ? 2 : w->entry[row].exponent_round;
    return KINDS * (w->stream[row] * d->servers + w->server[row]) + kind;
}

// LossDetector.overtaken, of one row.
static inline int is_overtaken(const struct worker *w, const struct detection *d, int64_t row) {
    const struct progress *progress = &w->progress[row];
    double last = larger(progress->sent_last, progress->probed_last);
    double heard = fmax(last, progress->state_time);
    return d->latest[way_of(w, d, row)] > heard + d->lowest[w->stream[row]] / 4;
}

// RoundTrips.sample_one
static inline void sample_trip(struct detection *d, double now, int64_t stream, double time) {
    double smoothed = d->smoothed[stream], variation;
    double timeout = d->timeouts[stream];
    if (time > 2 * smoothed || (time > timeout && !isnan(smoothed))) {
        if (now - time < d->late[stream])
            return;
        d->late[stream] = now;
    }
    time = time < timeout ? time : timeout;
    if (isnan(smoothed)) {
        smoothed = time;
        variation = time / 2;
    } else {
        variation = 0.75 * d->variation[stream] + 0.25 * fabs(smoothed - time);
        smoothed = 0.875 * smoothed + 0.125 * time;
    }
    d->smoothed[stream] = smoothed;
    d->variation[stream] = variation;
    timeout = larger(smoothed + larger(4 * variation, smoothed), d->least);
    d->timeouts[stream] = timeout < d->most ? timeout : d->most;
}

// ResultGaps.longest
static inline double longest_gap(const struct detection *d, int64_t stream) {
    return d->gap[stream] + fmax(4 * d->gap_variation[stream], d->gap[stream]);
}

// ResultGaps.sample
static inline void sample_gap(struct detection *d, double now, int64_t stream, double sent) {
    double gap = now - d->last[stream];
    d->last[stream] = now;
    if (sent > now - gap)
        return;
    if (isnan(d->gap[stream])) {
        d->gap[stream] = gap;
        d->gap_variation[stream] = gap / 2;
        return;
    }
    gap = fmin(gap, 2 * longest_gap(d, stream));
    d->gap_variation[stream] =
        0.75 * d->gap_variation[stream] + 0.25 * fabs(d->gap[stream] - gap);
    d->gap[stream] = 0.875 * d->gap[stream] + 0.125 * gap;
}

// The time after a result in which the next one is expected; NaN before any sample.
static inline double silence(const struct detection *d, int64_t stream) {
    double longest = longest_gap(d, stream);
    return isnan(longest) ? longest : larger(d->least / SOONER, longest);
}

// LossDetector.timeouts
static inline double timeout_of(const struct detection *d, int64_t stream) {
    double timeout = d->timeouts[stream];
    return d->lossy ? fmin(timeout, silence(d, stream)) : timeout;
}

#endif
