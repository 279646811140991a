// SPDX-License-Identifier: Apache-2.0
//
// Match-action tables of every kind, by tuple space search (Srinivasan, Suri, Varghese, "Packet
// classification using tuple space search", SIGCOMM 1999): entries with the same mask share a hash
// table over the masked key. An exact table has one mask, an lpm table one per prefix length in
// use, a ternary table one per distinct mask; range fields are left out of the masks and compared
// entry by entry. Masks are searched in the order of the best priority that they hold, so that
// most lookups end early.

#ifndef RACKHUB_TABLES_H
#define RACKHUB_TABLES_H

#include <stdint.h>

struct sw_table_spec {
    const char *name;
    uint32_t key_words;  // 64-bit words of the key that are masked and hashed
    uint32_t ranges;     // range fields, one word each, behind them in a lookup's key
    uint32_t arg_words;  // of the action that takes most
    uint64_t max_size;
    uint32_t default_action;
    const uint64_t *default_args;
};

struct sw_mask;

struct sw_entry {
    struct sw_entry *weaker; // next of the same masked key, by falling priority
    struct sw_mask *mask;
    uint64_t sequence; // order of insertion: among equal priorities the older entry wins
    uint64_t packets, bytes;
    int64_t handle;
    int32_t priority;
    uint32_t action;
    const uint64_t *low, *high; // [ranges]
    const uint64_t *value;      // [key_words], masked
    uint64_t *args;             // [arg_words]
    uint64_t words[];           // all of these
};

struct sw_slot {
    uint64_t hash;
    struct sw_entry *strongest;
};

struct sw_mask {
    struct sw_slot *slots; // open addressing, size a power of two, at most 2/3 full
    uint64_t size, used;   // used: distinct masked keys
    uint64_t entries;
    int32_t strongest; // priority
    uint64_t words[];  // [key_words]
};

struct sw_table {
    const struct sw_table_spec *spec;
    struct sw_mask **masks; // by falling `strongest`
    uint32_t mask_count, mask_room;
    struct sw_entry **entries; // by low half of the handle
    uint32_t *generations;     // high half: a handle of a deleted entry stays invalid
    uint32_t entry_count, entry_room, entry_used;
    uint32_t *free_handles;
    uint32_t free_count;
    uint64_t sequence;
    struct sw_entry *fallback; // the default entry
};

int sw_table_start(struct sw_table *table, const struct sw_table_spec *spec);
void sw_table_free(struct sw_table *table);

static inline uint64_t sw_hash_words(const uint64_t *key, const uint64_t *mask, uint32_t words) {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < words; i++) {
        hash = (hash ^ (key[i] & mask[i])) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash;
}

static inline int sw_in_ranges(const struct sw_entry *entry, const uint64_t *values,
                               uint32_t ranges) {
    for (uint32_t i = 0; i < ranges; i++)
        if (values[i] < entry->low[i] || values[i] > entry->high[i]) return 0;
    return 1;
}

// The entry that a key hits, or NULL. words and ranges are the table's own, passed as constants
// so that the loops unroll; key: words words, then one per range field.
static inline struct sw_entry *sw_lookup(const struct sw_table *table, const uint64_t *key,
                                         uint32_t words, uint32_t ranges) {
    struct sw_entry *best = 0;
    for (uint32_t m = 0; m < table->mask_count; m++) {
        const struct sw_mask *mask = table->masks[m];
        if (best && mask->strongest < best->priority) break;
        uint64_t hash = sw_hash_words(key, mask->words, words);
        for (uint64_t at = hash & (mask->size - 1);; at = (at + 1) & (mask->size - 1)) {
            struct sw_entry *entry = mask->slots[at].strongest;
            if (!entry) break;
            if (mask->slots[at].hash != hash) continue;
            uint64_t difference = 0;
            for (uint32_t i = 0; i < words; i++)
                difference |= (key[i] & mask->words[i]) ^ entry->value[i];
            if (difference) continue;
            while (entry && !sw_in_ranges(entry, key + words, ranges)) entry = entry->weaker;
            if (entry && (!best || entry->priority > best->priority ||
                          (entry->priority == best->priority && entry->sequence < best->sequence)))
                best = entry;
            break;
        }
    }
    return best;
}

#endif
