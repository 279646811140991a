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

#include <stddef.h>
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

// What a lookup needs, in one cache line where key and arguments are short.
struct sw_entry {
    uint32_t action;
    int32_t priority;
    uint32_t number;          // of the entry in its table
    uint32_t weaker;          // next of the same masked key, by falling priority: number + 1, or 0
    uint64_t packets, bytes;
    uint64_t words[];         // [key_words] masked key, [ranges] low, [ranges] high, [arg_words]
};

struct sw_mask;

// What only the control plane needs.
struct sw_entry_record {
    struct sw_mask *mask;  // NULL: no such entry
    uint64_t sequence;     // order of insertion: among equal priorities the older entry wins
    uint32_t generation;   // high half of the handle: that of a deleted entry stays invalid
};

struct sw_slot {
    uint32_t hash;
    uint32_t strongest; // of the entries with this masked key: number + 1, or 0: empty
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
    uint8_t *entries; // struct sw_entry, sw_entry_stride() bytes each
    struct sw_entry_record *records;
    uint32_t entry_count, entry_room, entry_used;
    uint32_t *free_numbers;
    uint32_t free_count;
    uint64_t sequence;
    struct sw_entry *fallback; // the default entry
};

int sw_table_start(struct sw_table *table, const struct sw_table_spec *spec);
void sw_table_free(struct sw_table *table);

// Whole cache lines.
static inline size_t sw_entry_stride(uint32_t words, uint32_t ranges, uint32_t args) {
    size_t bytes = sizeof(struct sw_entry) + 8 * ((size_t)words + 2 * (size_t)ranges + args);
    return (bytes + 63) / 64 * 64;
}

static inline uint32_t sw_hash_words(const uint64_t *key, const uint64_t *mask, uint32_t words) {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < words; i++) {
        hash = (hash ^ (key[i] & mask[i])) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return (uint32_t)hash;
}

static inline int sw_in_ranges(const uint64_t *low, const uint64_t *values, uint32_t ranges) {
    for (uint32_t i = 0; i < ranges; i++)
        if (values[i] < low[i] || values[i] > low[ranges + i]) return 0;
    return 1;
}

// The entry that a key hits, or NULL. words, ranges and args are the table's own, passed as
// constants so that the loops unroll; key: words words, then one per range field.
static inline struct sw_entry *sw_lookup(const struct sw_table *table, const uint64_t *key,
                                         uint32_t words, uint32_t ranges, uint32_t args) {
    size_t stride = sw_entry_stride(words, ranges, args);
    struct sw_entry *best = 0;
    for (uint32_t m = 0; m < table->mask_count; m++) {
        const struct sw_mask *mask = table->masks[m];
        if (best && mask->strongest < best->priority) break;
        uint32_t hash = sw_hash_words(key, mask->words, words);
        for (uint64_t at = hash & (mask->size - 1);; at = (at + 1) & (mask->size - 1)) {
            struct sw_slot slot = mask->slots[at];
            if (!slot.strongest) break;
            if (slot.hash != hash) continue;
            struct sw_entry *entry =
                (struct sw_entry *)(table->entries + stride * (slot.strongest - 1));
            uint64_t difference = 0;
            for (uint32_t i = 0; i < words; i++)
                difference |= (key[i] & mask->words[i]) ^ entry->words[i];
            if (difference) continue;
            while (entry && !sw_in_ranges(entry->words + words, key + words, ranges))
                entry = entry->weaker
                            ? (struct sw_entry *)(table->entries + stride * (entry->weaker - 1))
                            : 0;
            if (entry && (!best || entry->priority > best->priority ||
                          (entry->priority == best->priority &&
                           table->records[entry->number].sequence <
                               table->records[best->number].sequence)))
                best = entry;
            break;
        }
    }
    return best;
}

#endif
