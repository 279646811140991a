// SPDX-License-Identifier: Apache-2.0
// Contributions and queries at the root of a stream, and the packets that answer them: root.h.

#include "root.h"

#include <stdlib.h>
#include <string.h>

const int64_t root_bytes = sizeof(struct root), slot_bytes = sizeof(struct slot),
              received_bytes = sizeof(struct received), latest_copy = LATEST_COPY;

static uint32_t everyone(const struct root *root) {
    return root->children < 32 ? (1u << root->children) - 1 : ~0u;
}

static uint32_t *row_of(const struct root *root, uint32_t sender, size_t slot) {
    return root->rows + (sender * ((size_t)root->mask + 1) + slot) * root->width;
}

// ---- words -------------------------------------------------------------------------------------

static uint32_t sum_words(const word *words, uint32_t n) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += four(words[i]);
    return sum;
}

// Converts between byte orders.
static void swap_words(word *restrict to, const word *restrict from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        to[i] = four(from[i]);
}

// Each adds words to a row, in network or native byte order; returns 1 if a lane overflows, which
// wraps as a switch's lanes do.
static int add_words(uint32_t *restrict row, const word *restrict words, uint32_t n) {
    uint32_t overflow = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t before = row[i], added = four(words[i]), after = before + added;
        overflow |= (before ^ after) & (added ^ after);
        row[i] = after;
    }
    return overflow >> 31;
}

static int add_row(uint32_t *restrict row, const uint32_t *restrict copy, uint32_t n) {
    uint32_t overflow = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t before = row[i], added = copy[i], after = before + added;
        overflow |= (before ^ after) & (added ^ after);
        row[i] = after;
    }
    return overflow >> 31;
}

// ---- matching ----------------------------------------------------------------------------------

static uint64_t peer_key(const struct peer *peer) {
    return (uint64_t)four(peer->ipv4) << 16 | two(peer->port);
}

static int is_worker(const struct root *root, const struct peer *peer) {
    uint64_t key = peer_key(peer);
    size_t first = 0, end = root->worker_count;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (root->workers[middle] < key)
            first = middle + 1;
        else
            end = middle;
    }
    return first < root->worker_count && root->workers[first] == key;
}

// Returns the count of outcomes that a packet belongs to which is not for this node or not from the
// child that it names; NULL for others. A switch forwards a QUERY with the sender of the worker.
static uint64_t *refusal(struct root *root, const struct header *header, const struct peer *source,
                         int query) {
    uint32_t sender = header->sender, chunk = four(header->chunk);
    if (two(header->node) != root->node || sender >= root->children)
        return &root->outcomes.not_a_child;
    if (memcmp(source, &root->peers[sender], sizeof *source) &&
        !(query && root->nodes[sender] && is_worker(root, source)))
        return &root->outcomes.wrong_source;
    if (two(header->workers) != root->below[sender])
        return &root->outcomes.wrong_workers;
    if (chunk >= root->chunks || !root->mine[chunk])
        return &root->outcomes.other_server;
    return NULL;
}

enum match { NEWER, CURRENT, OTHER_CHUNK, STALE };

static enum match match(const struct slot *slot, uint32_t seq, uint32_t chunk) {
    uint32_t behind = slot->seq - seq;
    if (!slot->used || behind > LATEST_COPY)
        return NEWER;
    if (behind)
        return STALE;
    return slot->chunk == chunk ? CURRENT : OTHER_CHUNK;
}

// ---- results -----------------------------------------------------------------------------------

static struct header result_of(const struct root *root, const struct slot *slot) {
    return (struct header){
        .version_op = VERSION << 4 | RESULT,
        .flags = slot->flags,
        .job = two(root->job),
        .epoch = two(root->epoch),
        .stream = root->stream,
        .seq = four(slot->seq),
        .chunk = four(slot->chunk),
        .children = four(slot->in),
        .workers = two(root->world),
        .exponent = slot->exponent,
        .max_exponent = slot->max_exponent,
        .lanes = two(slot->lanes),
        .checksum = four(slot->checksum),
    };
}

// Writes the headers of results but for the fields of their receiver.
void root_headers(const struct root *root, const int64_t *slots, size_t n, struct header *headers) {
    for (size_t i = 0; i < n; i++)
        headers[i] = result_of(root, &root->slots[slots[i]]);
}

// Writes the results of slots to `packets`, and sets `whole` for those with payload; the payload of
// others is undefined. Each is for the child in `senders`; NULL: for whoever the caller writes into
// it.
void root_write(const struct root *root, const int64_t *slots, size_t n, const int64_t *senders,
                uint8_t *packets, bool *whole) {
    size_t size = sizeof(struct header) + sizeof(word) * root->width;
    for (size_t i = 0; i < n; i++) {
        struct header header = result_of(root, &root->slots[slots[i]]);
        if (senders) {
            header.sender = (uint8_t)senders[i];
            header.node = two(root->nodes[senders[i]]);
        }
        uint8_t *packet = packets + i * size;
        memcpy(packet, &header, sizeof header);
        whole[i] = carries_payload(&header);
        if (whole[i])
            swap_words((word *)(packet + sizeof header),
                       (const word *)row_of(root, 0, (size_t)slots[i]), root->width);
    }
}

static int ascending(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

static void sort_slots(int64_t *slots, size_t n) {
    for (size_t i = 1; i < n; i++)
        if (slots[i - 1] > slots[i]) {
            qsort(slots, n, sizeof *slots, ascending);
            return;
        }
}

// Finds which of these complete slots, and of those held before, hold no sum back: those of exponent
// rounds, ascending, then those of complete pieces as they came. `released` has room for all.
// Returns how many.
static size_t release(struct root *root, const int64_t *slots, size_t n, int64_t *released) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        const struct slot *slot = &root->slots[slots[i]];
        if (!slot->lanes) {
            released[count++] = slots[i];
            continue;
        }
        root->held[root->held_count++] = slots[i];
        root->missing[root->pieces[slot->chunk]]--;
    }
    size_t rounds = count;
    sort_slots(released, rounds);
    int64_t kept = 0;
    for (int64_t i = 0; i < root->held_count; i++) {
        int64_t at = root->held[i];
        if (root->missing[root->pieces[root->slots[at].chunk]])
            root->held[kept++] = at;
        else
            released[count++] = at;
    }
    root->held_count = kept;
    for (size_t i = rounds; i < count; i++) {
        int64_t piece = root->pieces[root->slots[released[i]].chunk];
        root->missing[piece] = root->lengths[piece];
    }
    return count;
}

// Makes complete slots final and writes their results, as root_write() does, for all children; where
// `holds`, first those of exponent rounds, then those of pieces that are complete now, while others
// wait. `released` is scratch with room for these slots and all that wait. Returns how many.
int64_t root_finish(struct root *root, const int64_t *slots, size_t n, int64_t *released,
                    uint8_t *packets, bool *whole) {
    if (root->holds) {
        n = release(root, slots, n, released);
        slots = released;
    }
    for (size_t i = 0; i < n; i++)
        root->slots[slots[i]].final = true;
    root_write(root, slots, n, NULL, packets, whole);
    return (int64_t)n;
}

static void overflow(struct root *root, struct slot *slot) {
    slot->flags |= OVERFLOW;
    root->outcomes.overflowed++;
}

// Makes the sum of a slot that became complete.
static void complete(struct root *root, size_t at) {
    struct slot *slot = &root->slots[at];
    uint32_t *row = row_of(root, 0, at);
    int overflowed = 0;
    if (root->merging == WIDE)
        for (uint32_t sender = 1; sender < root->children; sender++)
            overflowed |= add_row(row, row_of(root, sender, at), root->width);
    if (overflowed)
        overflow(root, slot);
    if (root->merging == DISCARDING) {
        memset(row, 0, root->width * sizeof *row);
        if (!root->steps) {
            struct header header = result_of(root, slot);
            slot->checksum = root->world * chunk_hash(&header);
        }
    }
    root->outcomes.completed++;
}

// ---- contributions -----------------------------------------------------------------------------

// Adds a contribution, which a slot has no copy of, to it.
static void add(struct root *root, size_t at, const struct header *header, const word *words,
                int first) {
    struct slot *slot = &root->slots[at];
    if (first)
        *slot = (struct slot){
            .seq = four(header->seq),
            .chunk = four(header->chunk),
            .lanes = two(header->lanes),
            .exponent = header->exponent,
            .max_exponent = header->max_exponent,
            .used = true,
        };
    slot->in |= 1u << header->sender;
    slot->checksum += four(header->checksum);
    slot->flags |= header->flags & (OVERFLOW | NONFINITE | ECN);
    if (slot->max_exponent < header->max_exponent)
        slot->max_exponent = header->max_exponent;
    int overflowed = slot->exponent != header->exponent || slot->lanes != two(header->lanes);
    if (root->merging != DISCARDING) {
        int keeps = first || root->merging == WIDE;
        uint32_t *row = row_of(root, root->merging == WIDE ? header->sender : 0, at);
        if (words && keeps)
            swap_words((word *)row, words, root->width);
        else if (words)
            overflowed |= add_words(row, words, root->width);
        else if (keeps)
            memset(row, 0, root->width * sizeof *row);
    }
    if (overflowed)
        overflow(root, slot);
}

// Takes contributions in order; with `plain`, up to the first that is not added to a sum, with
// which nothing is done. Returns the number taken.
//
// `done` gets the slots that every child is in, each once: in order of completion with `plain` or
// `holds`, else ascending. Where sums are results and nobody has to query them, `packets` gets those,
// for all children, and the slots are final. Packets for a final slot go into `again`, unless the slot
// was claimed later: who sends the newer number needs no result of the older one, nor does anybody.
int64_t root_contribute(struct root *root, struct received *received, int plain) {
    uint32_t every = everyone(root);
    uint64_t taken = 0, done = 0, again = 0, bad = 0;
    for (; taken < received->count; taken++) {
        const struct header *header = &received->headers[taken];
        uint64_t *refused = refusal(root, header, &received->peers[taken], 0);
        const word *words = NULL;
        if (received->full[taken])
            words = (const word *)(received->words + taken * received->stride);
        uint32_t seq = four(header->seq), bit = 1u << (header->sender & 31);
        size_t at = seq & root->mask;
        struct slot *slot = &root->slots[at];
        enum match matched = match(slot, seq, four(header->chunk));
        int early = matched == NEWER && slot->used && slot->in == every && !slot->final;
        int adds = !early && (matched == NEWER ||
                              (matched == CURRENT && !slot->final && !(slot->in & bit)));
        if (plain && (refused || !adds))
            break;
        if (refused) {
            ++*refused;
            continue;
        }
        uint32_t sum = two(header->workers) * chunk_hash(header);
        if (words)
            sum += sum_words(words, root->width);
        // A flagged sum has no payload, and nothing to check.
        int lost = !words && header->flags & (OVERFLOW | NONFINITE);
        if (sum != four(header->checksum) && !lost) {
            if (plain)
                break;
            root->outcomes.bad_checksum++;
            received->bad[bad++] = (int64_t)taken;
            continue;
        }
        if (!adds) {
            uint64_t *outcome = early                    ? &root->outcomes.early
                                : matched == STALE       ? &root->outcomes.stale
                                : matched == OTHER_CHUNK ? &root->outcomes.other_chunk
                                : slot->final            ? &root->outcomes.replayed
                                                         : &root->outcomes.duplicate;
            ++*outcome;
            if (outcome == &root->outcomes.replayed)
                received->again[again++] = (int64_t)taken;
            continue;
        }
        ++*(matched == NEWER ? &root->outcomes.claimed : &root->outcomes.added);
        root->open += matched == NEWER && (!slot->used || slot->in == every);
        root->most_open = root->open > root->most_open ? root->open : root->most_open;
        add(root, at, header, words, matched == NEWER);
        if (slot->in == every) {
            root->open--;
            complete(root, at);
            received->done[done++] = (int64_t)at;
        }
    }
    if (!plain && !root->holds)
        sort_slots(received->done, done);
    if (!root->steps && !root->pulls && !root->holds) {
        root_write(root, received->done, done, NULL, received->packets, received->whole);
        for (uint64_t i = 0; i < done; i++)
            root->slots[received->done[i]].final = true;
    }
    received->done_count = done;
    received->bad_count = bad;
    received->again_count = 0;
    for (uint64_t i = 0; i < again; i++) {
        uint32_t seq = four(received->headers[received->again[i]].seq);
        if (root->slots[seq & root->mask].seq == seq)
            received->again[received->again_count++] = received->again[i];
    }
    return (int64_t)taken;
}

// Finds which contributions have an effect that anything but later packets can see: not those added
// to sums that lack others still, nor, unless `measured`, the last ones of sums that are held back.
// Does not look at payloads, so a corrupted one may be taken for good.
void root_visible(struct root *root, struct received *received, int measured, bool *visible) {
    uint32_t every = everyone(root);
    int holds = root->holds && !root->steps && !measured;
    for (uint64_t i = 0; i < received->count; i++) {
        size_t at = four(received->headers[i].seq) & root->mask;
        root->forecast[at] = root->slots[at];
    }
    received->done_count = 0;
    for (uint64_t i = 0; i < received->count; i++) {
        const struct header *header = &received->headers[i];
        uint32_t seq = four(header->seq), bit = 1u << (header->sender & 31);
        struct slot *slot = &root->forecast[seq & root->mask];
        enum match matched = match(slot, seq, four(header->chunk));
        int waits = slot->in == every && !slot->final;
        visible[i] = true;
        if (refusal(root, header, &received->peers[i], 0) ||
            (matched == NEWER ? slot->used && waits
                              : matched != CURRENT || slot->final || slot->in & bit))
            continue;
        if (matched == NEWER)
            *slot = (struct slot){.seq = seq,
                                  .chunk = four(header->chunk),
                                  .lanes = two(header->lanes),
                                  .used = true};
        slot->in |= bit;
        if (slot->in == every && !(holds && slot->lanes))
            continue;
        visible[i] = false;
        if (slot->in == every) {
            int64_t piece = root->pieces[slot->chunk];
            received->done[received->done_count++] = piece;
            visible[i] = --root->missing[piece] <= 0;
        }
    }
    for (uint64_t i = 0; i < received->done_count; i++)
        root->missing[received->done[i]]++;
}

// Finds the indices of contributions that complete their sums if all of them are added: `done`.
void root_forecast(const struct root *root, struct received *received) {
    uint32_t mask = root->mask;
    for (uint64_t i = 0; i < received->count; i++) {
        size_t at = four(received->headers[i].seq) & mask;
        root->forecast[at] = root->slots[at];
        root->forecast[at].in = (uint32_t)__builtin_popcount(root->slots[at].in);
    }
    received->done_count = 0;
    for (uint64_t i = 0; i < received->count; i++) {
        uint32_t seq = four(received->headers[i].seq);
        struct slot *slot = &root->forecast[seq & mask];
        if (match(slot, seq, slot->chunk) == NEWER)
            *slot = (struct slot){.seq = seq, .used = true};
        if (++slot->in == root->children)
            received->done[received->done_count++] = (int64_t)i;
    }
}

// ---- queries -----------------------------------------------------------------------------------

// Answers queries: `packets` gets the STATEs, headers alone, to those in `done`. Where results have
// to be queried, `again` gets those of final slots.
void root_query(struct root *root, struct received *received) {
    received->done_count = received->again_count = 0;
    for (uint64_t i = 0; i < received->count; i++) {
        const struct header *header = &received->headers[i];
        uint64_t *refused = refusal(root, header, &received->peers[i], 1);
        if (refused) {
            ++*refused;
            continue;
        }
        uint32_t seq = four(header->seq);
        const struct slot *slot = &root->slots[seq & root->mask];
        enum match matched = match(slot, seq, four(header->chunk));
        if (matched != NEWER && matched != CURRENT) {
            root->outcomes.query_stale++;
            continue;
        }
        root->outcomes.query_answered++;
        int final = matched == CURRENT && slot->final;
        int waits = matched == CURRENT && root->holds && slot->in == everyone(root);
        if (final && root->pulls) {
            received->again[received->again_count++] = (int64_t)i;
            continue;
        }
        struct header state = {
            .version_op = VERSION << 4 | STATE,
            .flags = (uint8_t)((final ? FINAL : waits ? PARTIAL : AGGREGATING) << PHASE_SHIFT),
            .job = header->job,
            .epoch = header->epoch,
            .stream = header->stream,
            .sender = header->sender,
            .seq = header->seq,
            .chunk = header->chunk,
            .children = matched == CURRENT ? four(slot->in) : 0,
            .workers = header->workers,
            .node = header->node,
        };
        memcpy(received->packets + received->done_count * sizeof state, &state, sizeof state);
        received->done[received->done_count++] = (int64_t)i;
    }
}
