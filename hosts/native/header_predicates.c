// SPDX-License-Identifier: Apache-2.0
// Predicates on the headers of many packets.

#include "packet.h"

// Returns 1 if packets are of one job, epoch, stream and op, and all or none are DIRECT.
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
