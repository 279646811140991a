// SPDX-License-Identifier: Apache-2.0
// Headers of datagrams that all have the size of a packet with payload: decode_wire() in
// protocol/header.py. And what is asked of many packets at once.

#include <string.h>

#include "packet.h"

// Copies `n` headers, which begin `size` bytes apart, to where they are close together; full[i]:
// whether the packet carries its payload. Returns how many packets are well-formed.
int64_t decode_packets(const uint8_t *wire, size_t n, size_t size, struct header *headers,
                       uint8_t *full) {
    int64_t good = 0;
    for (size_t i = 0; i < n; i++) {
        struct header *header = &headers[i];
        memcpy(header, wire + i * size, sizeof *header);
        full[i] = (uint8_t)carries_payload(header);
        int op = op_of(header);
        int known = header->version_op >> 4 == VERSION && op >= CONTRIBUTE && op <= STATE;
        good += known && (full[i] || size == sizeof *header);
    }
    return good;
}

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

// Finds packets in a row with one peer each. Returns how many spans there are, or 0 if more than
// `most`.
size_t find_spans(const struct peer *peers, size_t n, struct span *spans, size_t most) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        if (i && !memcmp(&peers[i], &peers[i - 1], sizeof *peers)) {
            spans[found - 1].count++;
            continue;
        }
        if (found == most)
            return 0;
        spans[found++] = (struct span){(uint32_t)i, 1, peers[i]};
    }
    return found;
}
