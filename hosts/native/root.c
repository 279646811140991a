// SPDX-License-Identifier: Apache-2.0
// Plain contributions and results at the root of a stream: hosts/server/root_node.py is the
// reference.
//
// A slot with sum is `used`; `in` has a bit per child whose copy has arrived; `final` slots have a
// result. `large` slots have a copy beyond `bound`, so that their sum may overflow. Copies are
// merged in `rows` in native byte order; `results` are in network order.

#include <string.h>

#include "packet.h"

enum { DISCARD = 0, ADD = 1, KEEP = 2 };

// A node and its slots: arrays of ServedSlots and RootNode, by slot, `mask` + 1 each.
struct root {
    uint8_t *used, *final, *flags, *large;
    uint32_t *seq, *chunk, *in, *checksum;
    uint16_t *lanes;
    int8_t *exponent, *max_exponent;
    uint32_t *rows; // merge buffer: by slot, or (KEEP) by sender and slot
    uint32_t *results; // by slot, in network order
    const uint8_t *mine; // by chunk: 1 if this server sums it
    const struct peer *peers; // by sender
    const uint16_t *below; // by sender: number of workers below
    uint32_t mask, chunks, children, width, latest_copy;
    int32_t bound;
    uint16_t node, job, epoch, world;
    uint8_t stream, putting; // DISCARD, ADD or KEEP
};

const int64_t root_bytes = sizeof(struct root); // checked by hosts/server/contribution_kernel.py

// Returns the sum of words, and their minimum and maximum as signed numbers.
static uint32_t read_words(const word *words, uint32_t n, int32_t *least, int32_t *most) {
    uint32_t sum = 0;
    int32_t low = 0, high = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t value = four(words[i]);
        int32_t number = (int32_t)value;
        sum += value;
        low = number < low ? number : low;
        high = number > high ? number : high;
    }
    *least = low;
    *most = high;
    return sum;
}

// Converts between byte orders.
static void keep_words(uint32_t *restrict row, const word *restrict words, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        row[i] = four(words[i]);
}

static void add_words(uint32_t *restrict row, const word *restrict words, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        row[i] += four(words[i]);
}

// Merges a copy into a slot; `words` NULL stands for zeros.
static void put(const struct root *root, uint32_t slot, uint32_t sender, int first,
                const word *words) {
    if (root->putting == DISCARD)
        return;
    size_t at = slot;
    if (root->putting == KEEP)
        at += (size_t)sender * (root->mask + 1);
    uint32_t *row = root->rows + at * root->width;
    int keeps = first || root->putting == KEEP;
    if (!words && keeps)
        memset(row, 0, root->width * sizeof *row);
    else if (!words)
        return;
    else if (keeps)
        keep_words(row, words, root->width);
    else
        add_words(row, words, root->width);
}

// Returns 1 if a packet is for this node and from its child: RootNode._from_children.
static int from_child(const struct root *root, const struct header *header,
                      const struct peer *source) {
    uint32_t sender = header->sender, chunk = four(header->chunk);
    return two(header->node) == root->node && sender < root->children &&
           !memcmp(source, &root->peers[sender], sizeof *source) &&
           two(header->workers) == root->below[sender] && chunk < root->chunks &&
           root->mine[chunk];
}

// Takes contributions in order, up to the first that is not plain.
//
// Not plain are packets that are flagged, not from the child that they name, with a wrong checksum,
// with a word beyond `bound`, unlike what is in their slot, repeated, or for a slot whose sum is
// complete but not yet a result. Nothing is done with that one. `headers` are contiguous;
// `payloads` of `root->width` words begin `stride` bytes apart.
//
// Returns the number taken, of which *claimed are the first of their chunk. `done` gets the
// *completed slots that every child is in; each occurs once.
int64_t take_contributions(const struct root *root, const struct header *headers,
                           const uint8_t *payloads, size_t stride, const uint8_t *full,
                           const struct peer *sources, size_t n, uint32_t *done,
                           uint64_t *completed, uint64_t *claimed) {
    uint32_t every = root->children < 32 ? (1u << root->children) - 1 : ~0u;
    *completed = *claimed = 0;
    for (size_t i = 0; i < n; i++) {
        const struct header *header = &headers[i];
        const word *words = full[i] ? (const word *)(payloads + i * stride) : NULL;
        if ((!words && header->lanes) || header->flags & (OVERFLOW | NONFINITE | ECN | DIRECT) ||
            !from_child(root, header, &sources[i]))
            return (int64_t)i;
        uint32_t seq = four(header->seq), chunk = four(header->chunk);
        uint32_t slot = seq & root->mask, bit = 1u << header->sender;
        uint32_t behind = root->seq[slot] - seq;
        int newer = !root->used[slot] || behind > root->latest_copy;
        if (newer) {
            if (root->used[slot] && root->in[slot] == every && !root->final[slot])
                return (int64_t)i;
        } else if (behind || root->chunk[slot] != chunk || root->large[slot] ||
                   root->in[slot] & bit || root->exponent[slot] != header->exponent ||
                   root->lanes[slot] != two(header->lanes)) {
            return (int64_t)i;
        }
        int32_t least = 0, most = 0;
        uint32_t sum = words ? read_words(words, root->width, &least, &most) : 0;
        uint32_t checksum = four(header->checksum);
        if (sum + two(header->workers) * chunk_hash(header) != checksum ||
            most > root->bound || least < -root->bound)
            return (int64_t)i;
        if (newer) {
            root->used[slot] = 1;
            root->final[slot] = root->flags[slot] = root->large[slot] = 0;
            root->seq[slot] = seq;
            root->chunk[slot] = chunk;
            root->lanes[slot] = two(header->lanes);
            root->exponent[slot] = header->exponent;
            root->max_exponent[slot] = header->max_exponent;
            root->in[slot] = root->checksum[slot] = 0;
            ++*claimed;
        }
        put(root, slot, header->sender, newer, words);
        root->checksum[slot] += checksum;
        if (root->max_exponent[slot] < header->max_exponent)
            root->max_exponent[slot] = header->max_exponent;
        root->in[slot] |= bit;
        if (root->in[slot] == every)
            done[(*completed)++] = slot;
    }
    return (int64_t)n;
}

static struct header result_of(const struct root *root, size_t slot) {
    return (struct header){
        .version_op = VERSION << 4 | RESULT,
        .flags = root->flags[slot],
        .job = two(root->job),
        .epoch = two(root->epoch),
        .stream = root->stream,
        .seq = four(root->seq[slot]),
        .chunk = four(root->chunk[slot]),
        .children = four(root->in[slot]),
        .workers = two(root->world),
        .exponent = root->exponent[slot],
        .max_exponent = root->max_exponent[slot],
        .lanes = two(root->lanes[slot]),
        .checksum = four(root->checksum[slot]),
    };
}

// Adds the copies in a slot; writes their sum in network order.
static void add_copies(const struct root *root, size_t slot, uint32_t *restrict out) {
    for (uint32_t sender = 0; sender < root->children; sender++) {
        size_t at = sender * ((size_t)root->mask + 1) + slot;
        const uint32_t *restrict row = root->rows + at * root->width;
        for (uint32_t i = 0; i < root->width; i++)
            out[i] = sender ? out[i] + row[i] : row[i];
    }
    for (uint32_t i = 0; i < root->width; i++)
        out[i] = four(out[i]);
}

// Turns the sums of complete slots into results. Returns 0, with nothing done, if copies still have
// to be added and some lane might overflow.
int seal_sums(const struct root *root, const int64_t *slots, size_t n) {
    if (root->putting == KEEP)
        for (size_t i = 0; i < n; i++)
            if (root->large[slots[i]])
                return 0;
    for (size_t i = 0; i < n; i++) {
        size_t slot = (size_t)slots[i];
        uint32_t *out = root->results + slot * root->width;
        if (root->putting == ADD) {
            keep_words(out, root->rows + slot * root->width, root->width);
        } else if (root->putting == KEEP) {
            add_copies(root, slot, out);
        } else {
            memset(out, 0, root->width * sizeof *out);
            struct header header = result_of(root, slot);
            root->checksum[slot] = root->world * chunk_hash(&header);
        }
    }
    return 1;
}

// Writes the results of slots except for the fields of their receiver, and sets `whole` for those
// with payload; the payload of others is undefined.
void write_results(const struct root *root, const int64_t *slots, size_t n, uint8_t *wire,
                   uint8_t *whole) {
    size_t payload = sizeof(word) * root->width, size = sizeof(struct header) + payload;
    for (size_t i = 0; i < n; i++) {
        struct header header = result_of(root, (size_t)slots[i]);
        whole[i] = (uint8_t)carries_payload(&header);
        memcpy(wire + i * size, &header, sizeof header);
        memcpy(wire + i * size + sizeof header, root->results + (size_t)slots[i] * root->width,
               payload);
    }
}
