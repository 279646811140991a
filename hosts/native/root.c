// SPDX-License-Identifier: Apache-2.0
// What hosts/server/root_node.py does with contributions that are plain, and with results.

#include <string.h>

#include "packet.h"

enum { DISCARD = 0, ADD = 1, KEEP = 2 };

// A node and its slots; arrays are those of ServedSlots and RootNode, by slot, `mask` + 1 each.
struct root {
    uint8_t *used, *final, *flags, *large;
    uint32_t *seq, *chunk, *in, *checksum;
    uint16_t *lanes;
    int8_t *exponent, *max_exponent;
    uint32_t *rows; // where copies are put together: by slot, or (KEEP) by sender and slot
    uint32_t *results; // by slot, in network order
    const uint8_t *mine; // by chunk: whether this server sums it
    const struct peer *peers; // by sender
    const uint16_t *below; // by sender: number of workers
    uint32_t mask, chunks, children, width, latest_copy;
    int32_t bound;
    uint16_t node, job, epoch, world;
    uint8_t stream, putting; // DISCARD, ADD or KEEP
};

// Words in the machine's byte order: their sum, the least and the largest.
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

// From one byte order to the other.
static void keep_words(uint32_t *restrict row, const word *restrict words, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        row[i] = four(words[i]);
}

static void add_words(uint32_t *restrict row, const word *restrict words, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        row[i] += four(words[i]);
}

// words NULL: zeros
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

// Whether a packet may be here at all: RootNode._from_children().
static int from_child(const struct root *root, const struct header *header,
                      const struct peer *source) {
    uint32_t sender = header->sender, chunk = four(header->chunk);
    return two(header->node) == root->node && sender < root->children &&
           !memcmp(source, &root->peers[sender], sizeof *source) &&
           two(header->workers) == root->below[sender] && chunk < root->chunks &&
           root->mine[chunk];
}

// Takes contributions, one after the other, up to the first that is not plain: flagged, not from the child it names, with a wrong checksum, beyond the bound within which no lane
// can overflow, not like what is in its slot, there already, or for a slot whose sum is complete and
// not yet a result. Nothing has been done with that one. `headers` are close together, `payloads`
// of `root->width` words begin `stride` bytes apart.
// Returns how many were taken; *claimed of these were the first of their chunk; done, *completed
// (room for all slots: none is there twice): slots in which all copies are now.
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

// The copies of what is in a slot, in a row and in network order.
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

// Sums of slots in which all copies are become their results. Returns whether they did: not if the
// copies are yet to be added and some lane might overflow.
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

// Writes the results of slots as they are sent, but for which child they are for, and which of them
// have their payload; the others have one that does not count.
void write_results(const struct root *root, const int64_t *slots, size_t n, uint8_t *wire,
                   uint8_t *whole) {
    size_t payload = 4 * (size_t)root->width, size = sizeof(struct header) + payload;
    for (size_t i = 0; i < n; i++) {
        struct header header = result_of(root, (size_t)slots[i]);
        whole[i] = (uint8_t)carries_payload(&header);
        memcpy(wire + i * size, &header, sizeof header);
        memcpy(wire + i * size + sizeof header, root->results + (size_t)slots[i] * root->width,
               payload);
    }
}
