// SPDX-License-Identifier: Apache-2.0
//
// Collects, queues and releases digests: see digests.h. sw_digest_add runs in the data plane under
// the lock, and writes to the notice descriptor, which never blocks; the others serve the control
// plane.

#include "digests.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program.h"

int sw_digests_start(struct sw *sw) {
    sw->digests = calloc(program_digest_count + 1, sizeof *sw->digests);
    if (!sw->digests) return -1;
    for (uint32_t i = 0; i < program_digest_count; i++) {
        // Zeroed pages, which take no memory until written.
        struct sw_digest *digest = &sw->digests[i];
        digest->values = calloc(SW_DIGEST_ROOM, program_digest_words[i] * sizeof(uint64_t));
        digest->slots = calloc(SW_DIGEST_ROOM, sizeof *digest->slots);
        digest->chains = calloc(SW_DIGEST_ROOM, sizeof *digest->chains);
        if (!digest->values || !digest->slots || !digest->chains) return -1;
    }
    return 0;
}

void sw_digests_free(struct sw *sw) {
    for (uint32_t i = 0; sw->digests && i < program_digest_count; i++) {
        free(sw->digests[i].values);
        free(sw->digests[i].slots);
        free(sw->digests[i].chains);
    }
    free(sw->digests);
}

// ---------------------------------------------------------------------------------------------
// Data plane

// Wakes the reader of the descriptor; a full descriptor needs no second wake-up.
static void notice(const struct sw *sw) {
    uint64_t one = 1;
    if (sw->notice >= 0 && write(sw->notice, &one, sizeof one) < 0) return;
}

static uint64_t *value_of(const struct sw_digest *digest, uint32_t number, uint32_t words) {
    return digest->values + (size_t)number * words;
}

// Returns the link to the slot with this message, or the end of its chain.
static uint32_t *chain_of(struct sw_digest *digest, const uint64_t *message, uint32_t words) {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < words; i++) {
        hash = (hash ^ message[i]) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    uint32_t *link = &digest->chains[hash % SW_DIGEST_ROOM];
    while (*link && memcmp(value_of(digest, *link - 1, words), message, words * sizeof *message))
        link = &digest->slots[*link - 1].chained;
    return link;
}

void sw_digest_add(struct sw *sw, uint32_t index, const uint64_t *message) {
    struct sw_digest *digest = &sw->digests[index];
    uint32_t words = program_digest_words[index];
    if (!digest->signal_at) return;
    uint32_t *link = chain_of(digest, message, words);
    if (*link) return;
    uint32_t number; // of the slot, + 1
    if (digest->free) {
        number = digest->free;
        digest->free = digest->slots[number - 1].next;
    } else if (digest->used < SW_DIGEST_ROOM) {
        number = ++digest->used;
    } else {
        sw->stats.digests_lost++;
        return;
    }
    memcpy(value_of(digest, number - 1, words), message, words * sizeof *message);
    digest->slots[number - 1] = (struct sw_digest_slot){.since_us = sw->now_us};
    *link = number;
    if (digest->waiting++)
        digest->slots[digest->last - 1].next = number;
    else
        digest->first = number;
    digest->last = number;
    if (digest->waiting == 1 || digest->waiting == digest->signal_at) notice(sw);
}

// ---------------------------------------------------------------------------------------------
// Control plane

static void release(struct sw_digest *digest, uint32_t number, uint32_t words) {
    uint32_t *link = chain_of(digest, value_of(digest, number - 1, words), words);
    if (*link != number) return; // released already
    *link = digest->slots[number - 1].chained;
    digest->slots[number - 1].next = digest->free;
    digest->free = number;
}

int sw_digest_enable(struct sw *sw, uint32_t index, uint32_t signal_at) {
    if (index >= program_digest_count) return SW_RANGE;
    struct sw_digest *digest = &sw->digests[index];
    sw_lock_control(sw);
    digest->signal_at = signal_at;
    if (!signal_at) {
        memset(digest->chains, 0, SW_DIGEST_ROOM * sizeof *digest->chains);
        digest->used = digest->free = digest->first = digest->last = digest->waiting = 0;
    }
    sw_unlock(sw);
    return 0;
}

int64_t sw_digest_waiting(struct sw *sw, uint32_t index, uint64_t *since_us) {
    if (index >= program_digest_count) return SW_RANGE;
    const struct sw_digest *digest = &sw->digests[index];
    sw_lock_control(sw);
    int64_t waiting = digest->waiting;
    if (waiting) *since_us = digest->slots[digest->first - 1].since_us;
    sw_unlock(sw);
    return waiting;
}

int64_t sw_digest_take(struct sw *sw, uint32_t index, size_t most, uint64_t *messages,
                       uint32_t *slots) {
    if (index >= program_digest_count) return SW_RANGE;
    struct sw_digest *digest = &sw->digests[index];
    uint32_t words = program_digest_words[index];
    sw_lock_control(sw);
    size_t count = 0;
    for (; count < most && digest->waiting; count++) {
        uint32_t number = digest->first;
        memcpy(messages + count * words, value_of(digest, number - 1, words),
               words * sizeof *messages);
        slots[count] = number;
        digest->first = digest->slots[number - 1].next;
        digest->waiting--;
    }
    sw_unlock(sw);
    return (int64_t)count;
}

int sw_digest_release(struct sw *sw, uint32_t index, size_t count, const uint32_t *slots) {
    if (index >= program_digest_count) return SW_RANGE;
    struct sw_digest *digest = &sw->digests[index];
    sw_lock_control(sw);
    for (size_t i = 0; i < count; i++)
        if (slots[i] && slots[i] <= digest->used)
            release(digest, slots[i], program_digest_words[index]);
    sw_unlock(sw);
    return 0;
}

void sw_set_notice(struct sw *sw, int descriptor) {
    sw_lock_control(sw);
    sw->notice = descriptor;
    sw_unlock(sw);
}
