// SPDX-License-Identifier: Apache-2.0
//
// Two rate three color markers (RFC 2698, color-blind), as v1model's meters are: a packet that
// exceeds the peak bucket is red and costs nothing, one that exceeds only the committed bucket is
// yellow. A meter without rates is green for all. Tokens are packets or bytes; levels are exact to
// a millionth of a token (tokens per second times microseconds), so rounding loses nothing however
// often a meter runs. Invariant: 0 <= level <= burst.

#ifndef RACKHUB_METERS_H
#define RACKHUB_METERS_H

#include <stdint.h>

enum sw_color { SW_GREEN = 0, SW_YELLOW = 1, SW_RED = 2 };
enum sw_bucket { SW_PEAK, SW_COMMITTED, SW_BUCKETS };

#define SW_MILLIONTHS 1000000u

struct sw_meter {
    unsigned __int128 level[SW_BUCKETS]; // millionths of a token
    uint64_t rate[SW_BUCKETS];           // tokens per second: millionths per microsecond
    uint64_t burst[SW_BUCKETS];          // tokens that fit
    uint64_t last_us;                    // when the buckets were last filled
    uint64_t configured;
};

static inline uint64_t sw_meter_run(struct sw_meter *meter, uint64_t now_us, uint64_t tokens) {
    if (!meter->configured) return SW_GREEN;
    uint64_t elapsed = now_us > meter->last_us ? now_us - meter->last_us : 0;
    meter->last_us += elapsed;
    for (int i = 0; i < SW_BUCKETS; i++) {
        // Both below 2^63: no overflow.
        meter->level[i] += (unsigned __int128)elapsed * meter->rate[i];
        unsigned __int128 full = (unsigned __int128)meter->burst[i] * SW_MILLIONTHS;
        if (meter->level[i] > full) meter->level[i] = full;
    }
    unsigned __int128 cost = (unsigned __int128)tokens * SW_MILLIONTHS;
    if (meter->level[SW_PEAK] < cost) return SW_RED;
    meter->level[SW_PEAK] -= cost;
    if (meter->level[SW_COMMITTED] < cost) return SW_YELLOW;
    meter->level[SW_COMMITTED] -= cost;
    return SW_GREEN;
}

#endif
