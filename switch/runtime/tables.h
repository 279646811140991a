// SPDX-License-Identifier: Apache-2.0
//
// Match-action tables of every kind, by tuple space search (Srinivasan, Suri, Varghese, "Packet
// classification using tuple space search", SIGCOMM 1999): a tuple is a hash table of entries by
// the key bits that all of them match on, and an entry found there is compared by its own mask. Up
// to a few dozen entries each mask has a tuple; beyond that, masks with enough bits in common share
// one (table_tuples.c), as in TupleMerge (Daly et al., IEEE/ACM Transactions on Networking, 2019),
// so that often one tuple is all of an lpm table. Range fields are left out of the masks.
//
// Several tuples are searched in the order of the best priority that they hold, so that most
// lookups end early. In most of them a key hits nothing. A filter for each (Bloom, "Space/time
// trade-offs in hash coding with allowable errors", CACM 1970; a key's bits all in one word) says
// so out of the first-level cache, for eight tuples at once and without a branch.
//
// Data structures: an entry has a number, its index in `entries` and `records`; slots and chains
// hold the number + 1, so that 0 is none. A slot heads a chain of entries with equal key bits by
// falling priority (`weaker`). A handle is the number and its generation, which deletion
// increments. Invariants: tuples are sorted by falling `strongest`; a tuple's slots are at most
// half full and have no holes in a probe sequence; every key in a tuple is in its filter; groups
// mirror the tuples in order.

#ifndef RACKHUB_TABLES_H
#define RACKHUB_TABLES_H

#include <stddef.h>
#include <stdint.h>

struct sw_table_spec {
    const char *name;
    uint32_t key_words;  // 64-bit words of the key that are masked and hashed
    uint32_t ranges;     // range fields, one word each, behind them in a lookup's key
    uint32_t arg_words;  // of the action with most
    uint32_t counted;    // 1: entries have direct counters
    uint32_t ahead;      // 1: program_look_ahead may look it up
    uint64_t max_size;
    uint32_t default_action;
    const uint64_t *default_args;
    uint32_t metered, ages; // entries have meters, times of last hits
};

// An entry as lookups read it: one cache line where key and arguments are short, or half of one.
struct sw_entry {
    uint32_t action;
    int32_t priority;
    uint32_t mask;   // its number in the table
    uint32_t weaker; // next in the same slot, by falling priority: number + 1, or 0
    uint64_t words[]; // [key_words] masked key, [ranges] low, [ranges] high, [arg_words];
                      // packets and bytes if counted
};

struct sw_meter;

// The part of an entry that only the control plane uses.
struct sw_entry_record {
    uint64_t sequence;   // order of insertion: among equal priorities the oldest entry wins
    uint32_t generation; // high half of the handle: that of a deleted entry stays invalid
    uint32_t taken;      // 0: no such entry
};

// A slot is 0, or holds the number + 1 of the strongest entry with equal key bits in the bits of
// number_mask, and bits of the key's hash in those above.
struct sw_tuple {
    // Open addressing, size a power of two, at most half full; the first SW_SLOTS - 1 slots are
    // repeated at the end.
    uint32_t *slots;
    uint32_t *filter;   // 8 bits per slot, three of them set for each taken one
    uint32_t slot_mask; // size - 1
    uint32_t filter_shift; // 32 - log2(words)
    uint32_t used;     // slots
    uint32_t stale;    // deleted keys that are still in the filter
    uint32_t merged;   // of several masks
    uint64_t entries;
    uint64_t strongest_entries;
    int32_t strongest; // priority
    uint64_t words[];  // [key_words] bits that all its masks have
};

struct sw_mask {
    struct sw_tuple *tuple; // where its entries are
    uint32_t entries; // 0: the number is free
};

#define SW_TOGETHER 8
#define SW_SLOTS 4 // slots compared at once

// The part of SW_TOGETHER consecutive tuples that every lookup reads.
struct sw_group {
    const uint32_t *filters[SW_TOGETHER];
    uint32_t filter_shifts[SW_TOGETHER];
    uint32_t halves[][SW_TOGETHER]; // [2 * key_words] of the bits that are hashed, the lower first
};

static inline size_t sw_group_stride(uint32_t words) {
    size_t bytes = sizeof(struct sw_group) + 2 * (size_t)words * SW_TOGETHER * sizeof(uint32_t);
    return (bytes + 63) / 64 * 64;
}

struct sw_table {
    const struct sw_table_spec *spec;
    struct sw_tuple **tuples; // by falling `strongest`
    uint8_t *groups; // struct sw_group, of the tuples in that order
    uint32_t tuple_count;
    uint32_t filtered; // so many entries that filters make lookups faster
    uint32_t number_mask;
    uint8_t *entries; // struct sw_entry, sw_entry_stride() bytes each
    uint64_t *mask_words; // [mask_room][key_words]
    struct sw_mask *masks;
    uint32_t mask_used, mask_room;
    struct sw_entry_record *records;
    uint32_t entry_count, entry_room, entry_used;
    uint32_t *free_numbers;
    uint32_t free_count;
    uint64_t sequence;
    uint64_t effort; // of insertions since the last merge of masks: table_tuples.c
    struct sw_entry *fallback; // the default entry
    struct sw_meter *meters; // [max_size + 1] by number of the entry, or NULL
    uint64_t *hit_us;        // the same
};

int sw_table_start(struct sw_table *table, const struct sw_table_spec *spec);
void sw_table_free(struct sw_table *table);
// NULL: there is none, or it was deleted.
struct sw_entry *sw_table_entry(const struct sw_table *table, int64_t handle);

// The low half of an entry's handle is its number.
static inline uint32_t sw_handle_number(int64_t handle) { return (uint32_t)handle; }

static inline int64_t sw_handle_of(const struct sw_table *table, uint32_t number) {
    return (int64_t)table->records[number].generation << 32 | number;
}

// table_tuples.c. Adds an entry (its words masked) under a mask, or removes it. 0, or an enum
// sw_error.
int sw_tuples_add(struct sw_table *table, struct sw_entry *entry, const uint64_t *mask);
void sw_tuples_remove(struct sw_table *table, struct sw_entry *entry);
void sw_tuples_free(struct sw_table *table);

// Bytes of an entry: half a cache line, or whole ones.
static inline size_t sw_entry_stride(uint32_t words, uint32_t ranges, uint32_t args,
                                     uint32_t counted) {
    size_t bytes = sizeof(struct sw_entry) +
                   8 * ((size_t)words + 2 * (size_t)ranges + args + 2 * (size_t)counted);
    return bytes <= 32 ? 32 : (bytes + 63) / 64 * 64;
}

// For code that is not compiled for one table.

static inline size_t sw_stride_of(const struct sw_table_spec *spec) {
    return sw_entry_stride(spec->key_words, spec->ranges, spec->arg_words, spec->counted);
}

static inline struct sw_entry *sw_entry_at(const struct sw_table *table, uint32_t number) {
    return (struct sw_entry *)(table->entries + sw_stride_of(table->spec) * number);
}

static inline const uint64_t *sw_words_of_mask(const struct sw_table *table, uint32_t mask) {
    return table->mask_words + (size_t)mask * table->spec->key_words;
}

// The number of an entry. stride: the table's.
static inline uint32_t sw_number(const struct sw_table *table, const struct sw_entry *entry,
                                 size_t stride) {
    return (uint32_t)((size_t)((const uint8_t *)entry - table->entries) / stride);
}

static inline uint32_t sw_number_of(const struct sw_table *table, const struct sw_entry *entry) {
    return sw_number(table, entry, sw_stride_of(table->spec));
}

// 1 if `entry` wins over `other`: by priority, among equals the older one.
static inline int sw_beats(const struct sw_table *table, const struct sw_entry *entry,
                           const struct sw_entry *other, size_t stride) {
    if (entry->priority != other->priority) return entry->priority > other->priority;
    return table->records[sw_number(table, entry, stride)].sequence <
           table->records[sw_number(table, other, stride)].sequence;
}

static inline uint64_t sw_hash_words(const uint64_t *key, const uint64_t *mask, uint32_t words) {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < words; i++) {
        unsigned __int128 product =
            (unsigned __int128)(hash ^ (key[i] & mask[i])) * 0xff51afd7ed558ccdu;
        hash = (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    return hash;
}

// The part of the hash that a slot stores, never 0; the lowest bits of the hash are its home slot.
static inline uint32_t sw_tag(const struct sw_table *table, uint64_t hash) {
    return ((uint32_t)(hash >> 32) | 1u << 31) & ~table->number_mask;
}

// The filters' hash, in few vector instructions: multilinear in the key's halves (Lemire, Kaser,
// "Strongly universal string hashing is fast", 2014), and one multiplication to spread it.
#define SW_FACTOR(half) (0x9e3779b1u + 0x3c6ef372u * (half))
#define SW_SPREAD 0xd6e8feb9u
#define SW_MIXED(sum) (((sum) ^ (sum) >> 16) * SW_SPREAD)
// The first bits of the result choose the word of the filter, fields of five bits the bits of that
// word, from the left.
#define SW_FIELDS(mixed) ((mixed) ^ (mixed) >> 15)
enum { SW_FIRST_AT = 0, SW_SECOND_AT = 5, SW_THIRD_AT = 10 };

// halves: of the masked key, the lower first.
static inline uint32_t sw_filter_hash(const uint32_t *halves, uint32_t count) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < count; i++) sum += halves[i] * SW_FACTOR(i);
    uint32_t mixed = SW_MIXED(sum);
    return SW_FIELDS(mixed);
}

static inline uint32_t sw_filter_bit(uint32_t hash, uint32_t at) {
    return 1u << 31 >> (hash >> at & 31);
}

#endif
