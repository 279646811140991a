// SPDX-License-Identifier: Apache-2.0
// Packets that arrived at a worker (Batch in protocol/header.py), and the check of plain results.
#ifndef RACKHUB_ARRIVED_H
#define RACKHUB_ARRIVED_H

#include <string.h>

#include "worker.h"

struct arrived {
    const struct header *headers;
    const struct peer *peers;
    const uint8_t *words; // `stride` bytes apart
    int64_t stride;
    const uint8_t *full;
};

// Returns 1 and writes its row to rows[i] if packet i is plain: the integer sum that a row waits
// for, sent once, right in all that hosts/worker/verification.py checks, and the first for this
// row among the packets before it, whose rows are written.
static inline int is_plain(const struct worker *w, const struct arrived *a, int64_t i,
                           int64_t *rows) {
    const struct header *header = &a->headers[i];
    int64_t stream = w->stream_index[header->stream];
    if (stream < 0 || op_of(header) != RESULT ||
        header->flags & (OVERFLOW | NONFINITE | DIRECT) || two(header->job) != w->job ||
        two(header->epoch) != w->epoch || two(header->workers) != w->world)
        return 0;
    uint32_t seq = four(header->seq);
    int64_t row = rows[i] = row_of(w, stream, seq);
    const struct entry *entry = &w->entry[row];
    if (w->seq[row] != seq || w->stage[row] != WAITING || w->progress[row].sent != 1 ||
        entry->chunk != four(header->chunk) || entry->lanes != two(header->lanes) ||
        header->exponent != w->exponent[row] ||
        memcmp(&a->peers[i], &w->servers[w->server[row]], sizeof *a->peers))
        return 0;
    int64_t before = w->mark[row];
    if (before >= 0 && before < i && rows[before] == row)
        return 0;
    w->mark[row] = i;
    uint32_t sum = w->hash[row] * (uint32_t)w->world;
    const word *words = (const word *)(a->words + i * a->stride);
    for (int64_t j = 0; a->full[i] && j < w->width; j++)
        sum += four(words[j]);
    return sum == four(header->checksum);
}

#endif
