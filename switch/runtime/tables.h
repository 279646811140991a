// SPDX-License-Identifier: Apache-2.0
//
// Match-action tables of every kind, by tuple space search (Srinivasan, Suri, Varghese, "Packet
// classification using tuple space search", SIGCOMM 1999): entries with the same mask share a hash
// table over the masked key. An exact table has one mask, an lpm table one per prefix length in
// use, a ternary table one per distinct mask; range fields are left out of the masks and compared
// entry by entry. Masks are searched in the order of the best priority that they hold, so that
// most lookups end early.
//
// Of most masks a key hits nothing. A filter for each (Bloom, "Space/time trade-offs in hash coding
// with allowable errors", CACM 1970; a key's bits all in one word) says so out of the first cache,
// for eight masks at once and without a branch.

#ifndef RACKHUB_TABLES_H
#define RACKHUB_TABLES_H

#include <stddef.h>
#include <stdint.h>

struct sw_table_spec {
    const char *name;
    uint32_t key_words;  // 64-bit words of the key that are masked and hashed
    uint32_t ranges;     // range fields, one word each, behind them in a lookup's key
    uint32_t arg_words;  // of the action that takes most
    uint32_t counted;    // 1: entries have direct counters
    uint32_t ahead;      // 1: program_look_ahead may look something up in it
    uint64_t max_size;
    uint32_t default_action;
    const uint64_t *default_args;
    uint32_t metered, ages; // whether each entry has a meter, and the time of its last hit
};

// What a lookup needs, in one cache line where key and arguments are short, or half of one.
struct sw_entry {
    uint32_t action;
    int32_t priority;
    uint32_t number; // of the entry in its table
    uint32_t weaker; // next of the same masked key, by falling priority: number + 1, or 0
    uint64_t words[]; // [key_words] masked key, [ranges] low, [ranges] high, [arg_words];
                      // packets and bytes if counted
};

struct sw_mask;
struct sw_meter;

// What only the control plane needs.
struct sw_entry_record {
    struct sw_mask *mask;  // NULL: no such entry
    uint64_t sequence;     // order of insertion: among equal priorities the older entry wins
    uint32_t generation;   // high half of the handle: that of a deleted entry stays invalid
};

// A slot is 0, or the number + 1 of the strongest entry with a masked key, in the bits of
// number_mask, and in those above them bits of the key's hash.
struct sw_mask {
    uint32_t *slots;   // open addressing, size a power of two, at most half full
    uint64_t *filter;  // 4 bits per slot, three of them set for each key
    uint32_t slot_mask; // size - 1
    uint32_t filter_mask; // offset of the last word, bytes
    uint32_t used;     // distinct masked keys
    uint32_t stale;    // keys that are still in the filter but gone
    uint64_t entries;
    int32_t strongest; // priority
    uint64_t words[];  // [key_words]
};

#define SW_TOGETHER 8

// What is looked at for every packet, of masks that stand one behind the other.
struct sw_group {
    const uint64_t *filters[SW_TOGETHER];
    uint64_t filter_masks[SW_TOGETHER];
    uint64_t words[]; // [key_words][SW_TOGETHER] masks
};

static inline size_t sw_group_stride(uint32_t words) {
    return sizeof(struct sw_group) + (size_t)words * SW_TOGETHER * sizeof(uint64_t);
}

struct sw_table {
    const struct sw_table_spec *spec;
    struct sw_mask **masks; // by falling `strongest`
    uint8_t *groups; // struct sw_group, of the masks in that order
    uint32_t mask_count, mask_room;
    uint8_t *entries; // struct sw_entry, sw_entry_stride() bytes each
    uint32_t number_mask;
    struct sw_entry_record *records;
    uint32_t filtered; // more entries than are looked for faster without
    uint32_t entry_count, entry_room, entry_used;
    uint32_t *free_numbers;
    uint32_t free_count;
    uint64_t sequence;
    struct sw_entry *fallback; // the default entry
    struct sw_meter *meters; // [max_size + 1] by number of the entry, or NULL
    uint64_t *hit_us;        // the same
};

int sw_table_start(struct sw_table *table, const struct sw_table_spec *spec);
void sw_table_free(struct sw_table *table);
// NULL: there is none (any more).
struct sw_entry *sw_table_entry(const struct sw_table *table, int64_t handle);

// Half a cache line, or whole ones.
static inline size_t sw_entry_stride(uint32_t words, uint32_t ranges, uint32_t args,
                                     uint32_t counted) {
    size_t bytes = sizeof(struct sw_entry) +
                   8 * ((size_t)words + 2 * (size_t)ranges + args + 2 * (size_t)counted);
    return bytes <= 32 ? 32 : (bytes + 63) / 64 * 64;
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

// What a slot remembers of the hash; its place among the slots are the lowest bits.
static inline uint32_t sw_tag(const struct sw_table *table, uint64_t hash) {
    return (uint32_t)(hash >> 32) & ~table->number_mask;
}

// The filters' hash, of as few instructions as there are for vectors: multilinear (Lemire, Kaser,
// "Strongly universal string hashing is fast", 2014), one multiplication more to spread it.
#define SW_LOW(i) (uint32_t)(0x9e3779b1u + 0x3c6ef372u * (i))
#define SW_HIGH(i) (uint32_t)(0x85ebca77u + 0x2745937eu * (i))
#define SW_SPREAD 0xd6e8feb9u
// Of the result, bits from here on say which byte of the filter its word begins at, and which bits
// of that, from the left.
enum { SW_WORD_AT = 41, SW_FIRST_AT = 38, SW_SECOND_AT = 32, SW_THIRD_AT = 26 };

static inline uint64_t sw_filter_hash(const uint64_t *key, uint32_t words) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < words; i++)
        hash += (key[i] & UINT32_MAX) * SW_LOW(i) + (key[i] >> 32) * SW_HIGH(i);
    return ((hash ^ hash >> 32) & UINT32_MAX) * SW_SPREAD;
}

static inline uint64_t *sw_filter_word(const uint64_t *filter, uint64_t filter_mask,
                                       uint64_t hash) {
    return (uint64_t *)((uint8_t *)filter + (hash >> SW_WORD_AT & filter_mask));
}

static inline uint64_t sw_filter_bit(uint64_t hash, uint32_t at) {
    return 1ull << 63 >> (hash >> at & 63);
}

#endif
