// SPDX-License-Identifier: Apache-2.0
// What is asked of the headers of many packets at once.

#include "packet.h"

// Whether packets are of one job, epoch and stream, ask the same and are alike DIRECT or not.
int alike(const struct header *headers, size_t n) {
    for (size_t i = 1; i < n; i++) {
        const struct header *one = &headers[i];
        if (one->version_op != headers->version_op || one->job != headers->job ||
            one->epoch != headers->epoch || one->stream != headers->stream ||
            (one->flags ^ headers->flags) & DIRECT)
            return 0;
    }
    return 1;
}
