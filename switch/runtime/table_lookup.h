// SPDX-License-Identifier: Apache-2.0
//
// Lookups in the tables of tables.h, inlined into the generated program with constant sizes.
//
// A lookup finds the tuples whose filter may hold the key (sw_candidates), then probes them in
// order until no later tuple can hold a stronger entry (sw_search). Bits beyond tuple_count are
// never set: their filters are empty.

#ifndef RACKHUB_TABLE_LOOKUP_H
#define RACKHUB_TABLE_LOOKUP_H

#include "tables.h"

// Returns a bit for each tuple of a group that may hold the key.
static inline uint32_t sw_maybe(const struct sw_group *group, const uint64_t *key,
                                uint32_t words) {
#ifdef __AVX2__
    // Without immintrin.h, which takes compilers most of a second to read.
    typedef uint32_t eight __attribute__((vector_size(32), may_alias));
    typedef float eight_floats __attribute__((vector_size(32)));
    eight sum = {0};
    for (uint32_t i = 0; i < words; i++) {
        uint32_t low = (uint32_t)key[i], high = (uint32_t)(key[i] >> 32);
        sum += (*(const eight *)group->halves[2 * i] & low) * SW_FACTOR(2 * i);
        if (high) sum += (*(const eight *)group->halves[2 * i + 1] & high) * SW_FACTOR(2 * i + 1);
    }
    eight mixed = SW_MIXED(sum);
    eight hash = SW_FIELDS(mixed);
    uint32_t at[SW_TOGETHER] __attribute__((aligned(32)));
    *(eight *)at = hash >> *(const eight *)group->filter_shifts;
    
    const uint32_t *const *filters = group->filters;
    // Eight loads: the instruction that gathers takes longer.
    eight word = {filters[0][at[0]], filters[1][at[1]], filters[2][at[2]], filters[3][at[3]],
                  filters[4][at[4]], filters[5][at[5]], filters[6][at[6]], filters[7][at[7]]};
    eight all = word << (hash >> SW_FIRST_AT & 31) & word << (hash >> SW_SECOND_AT & 31) &
                word << (hash >> SW_THIRD_AT & 31);
    return (uint32_t)__builtin_ia32_movmskps256((eight_floats)all);
#else
    uint32_t maybe = 0;
    for (uint32_t m = 0; m < SW_TOGETHER; m++) {
        uint32_t halves[2 * words];
        for (uint32_t i = 0; i < words; i++) {
            halves[2 * i] = (uint32_t)key[i] & group->halves[2 * i][m];
            halves[2 * i + 1] = (uint32_t)(key[i] >> 32) & group->halves[2 * i + 1][m];
        }
        uint32_t hash = sw_filter_hash(halves, 2 * words);
        uint32_t word = group->filters[m][hash >> group->filter_shifts[m]];
        uint32_t all = word << (hash >> SW_FIRST_AT & 31) & word << (hash >> SW_SECOND_AT & 31) &
                       word << (hash >> SW_THIRD_AT & 31);
        maybe |= (all >> 31) << m;
    }
    return maybe;
#endif
}

// Compares `together` slots, 1 or SW_SLOTS: returns a bit for each that has the tag; empty: a bit
// for each that is empty.
static inline uint32_t sw_same(const struct sw_table *table, const uint32_t *slots,
                               uint32_t together, uint32_t tag, uint32_t *empty) {
#ifdef __SSE2__
    if (together == SW_SLOTS) {
        typedef uint32_t four __attribute__((vector_size(16)));
        typedef uint32_t four_anywhere __attribute__((vector_size(16), aligned(4), may_alias));
        typedef float four_floats __attribute__((vector_size(16)));
        four all = *(const four_anywhere *)slots, tags = all & ~table->number_mask;
        *empty = (uint32_t)__builtin_ia32_movmskps((four_floats)(all == 0));
        return (uint32_t)__builtin_ia32_movmskps((four_floats)(tags == tag));
    }
#endif
    uint32_t same = *empty = 0;
    for (uint32_t i = 0; i < together; i++) {
        *empty |= (uint32_t)!slots[i] << i;
        same |= (uint32_t)((slots[i] & ~table->number_mask) == tag) << i;
    }
    return same;
}

static inline int sw_in_ranges(const uint64_t *low, const uint64_t *values, uint32_t ranges) {
    for (uint32_t i = 0; i < ranges; i++)
        if (values[i] < low[i] || values[i] > low[ranges + i]) return 0;
    return 1;
}

// Returns the strongest entry of a tuple that a key hits, or NULL. together: slots compared at
// once; exact: all entries have one mask, which the key is masked with.
static inline struct sw_entry *sw_probe(const struct sw_table *table, const struct sw_tuple *tuple,
                                        const uint64_t *key, uint32_t words, uint32_t ranges,
                                        size_t stride, uint32_t together, int exact) {
    uint64_t hash = sw_hash_words(key, tuple->words, words);
    uint32_t tag = sw_tag(table, hash), at = (uint32_t)hash & tuple->slot_mask;
    const uint32_t *slots = tuple->slots;
    if (!slots[at]) return 0;
    for (;; at = (at + together) & tuple->slot_mask) {
        uint32_t empty, same = sw_same(table, slots + at, together, tag, &empty);
        for (; same; same &= same - 1) {
            uint32_t next = slots[at + (uint32_t)__builtin_ctz(same)] & table->number_mask;
            do {
                struct sw_entry *entry = (struct sw_entry *)(table->entries + stride * (next - 1));
                const uint64_t *mask = table->mask_words + (size_t)entry->mask * words;
                uint64_t difference = 0;
                for (uint32_t i = 0; i < words; i++)
                    difference |= (exact ? key[i] : key[i] & mask[i]) ^ entry->words[i];
                if (!difference && sw_in_ranges(entry->words + words, key + words, ranges))
                    return entry;
                next = entry->weaker;
            } while (next);
        }
        if (empty) return 0;
    }
}

#define SW_AT_ONCE (2 * SW_TOGETHER)

// Returns a bit for each of SW_AT_ONCE tuples, from `from` on, that may hold the key. Two groups
// are filtered before any entry is read, as processors predict badly which tuple it is.
static inline uint32_t sw_candidates(const struct sw_table *table, const uint64_t *key,
                                     uint32_t from, uint32_t words) {
    size_t stride = sw_group_stride(words);
    const uint8_t *group = table->groups + stride * (from / SW_TOGETHER);
    uint32_t maybe = sw_maybe((const struct sw_group *)group, key, words);
    if (table->tuple_count - from > SW_TOGETHER)
        maybe |= sw_maybe((const struct sw_group *)(group + stride), key, words) << SW_TOGETHER;
    return maybe;
}

// sw_lookup in a table with filters; maybe: sw_candidates of the first tuples.
static inline struct sw_entry *sw_search(const struct sw_table *table, const uint64_t *key,
                                         uint32_t words, uint32_t ranges, uint32_t args,
                                         uint32_t counted, uint32_t maybe) {
    size_t stride = sw_entry_stride(words, ranges, args, counted);
    struct sw_tuple *const *tuples = table->tuples;
    struct sw_entry *best = 0;
    for (uint32_t from = 0;;) {
        for (; maybe; maybe &= maybe - 1) {
            const struct sw_tuple *tuple = tuples[from + (uint32_t)__builtin_ctz(maybe)];
            if (best && tuple->strongest < best->priority) return best;
            struct sw_entry *entry =
                sw_probe(table, tuple, key, words, ranges, stride, SW_SLOTS, 0);
            if (entry && (!best || sw_beats(table, entry, best, stride))) best = entry;
        }
        from += SW_AT_ONCE;
        if (from >= table->tuple_count) return best;
        if (best && tuples[from]->strongest < best->priority) return best;
        maybe = sw_candidates(table, key, from, words);
    }
}

// Returns the entry that a key hits, or NULL. Sizes are the table's own, passed as constants so
// that loops unroll; exact: all entries have one mask; key: `words` words, then one per range
// field.
static inline struct sw_entry *sw_lookup(const struct sw_table *table, const uint64_t *key,
                                         uint32_t words, uint32_t ranges, uint32_t args,
                                         uint32_t counted, int exact) {
    size_t stride = sw_entry_stride(words, ranges, args, counted);
    struct sw_tuple *const *tuples = table->tuples;
    if (exact) {
        if (!table->tuple_count) return 0;
        return sw_probe(table, tuples[0], key, words, ranges, stride, SW_SLOTS, 1);
    }
    if (table->filtered) {
        uint32_t maybe = sw_candidates(table, key, 0, words);
        return sw_search(table, key, words, ranges, args, counted, maybe);
    }
    struct sw_entry *best = 0;
    for (uint32_t m = 0; m < table->tuple_count; m++) {
        if (best && tuples[m]->strongest < best->priority) break;
        struct sw_entry *entry = sw_probe(table, tuples[m], key, words, ranges, stride, 1, 0);
        if (entry && (!best || sw_beats(table, entry, best, stride))) best = entry;
    }
    return best;
}

#endif
