// SPDX-License-Identifier: Apache-2.0
// Predicates on the headers of many packets.

#include "packet.h"

// Returns job, epoch and stream, in bits 24 to 39, 8 to 23 and 0 to 7, if all packets, at least one,
// are contributions to sums of these and not DIRECT; else -1.
int64_t contributed_to(const struct header *headers, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const struct header *one = &headers[i];
        if (one->version_op != (VERSION << 4 | CONTRIBUTE) || one->flags & DIRECT ||
            one->job != headers->job || one->epoch != headers->epoch ||
            one->stream != headers->stream)
            return -1;
    }
    if (!n)
        return -1;
    return (int64_t)two(headers->job) << 24 | (int64_t)two(headers->epoch) << 8 | headers->stream;
}
