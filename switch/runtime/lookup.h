// SPDX-License-Identifier: Apache-2.0
//
// Lookups in the tables of tables.h, for the generated program.

#ifndef RACKHUB_LOOKUP_H
#define RACKHUB_LOOKUP_H

#include "tables.h"

#ifdef __AVX2__
// Four words at once, without immintrin.h, which takes compilers most of a second to read.
typedef uint64_t sw_four __attribute__((vector_size(32), may_alias));
typedef int sw_eight_halves __attribute__((vector_size(32), may_alias));
typedef double sw_four_doubles __attribute__((vector_size(32), may_alias));

// The products of the lower halves.
static inline sw_four sw_times(sw_four words, uint32_t factor) {
    sw_four factors = {factor, factor, factor, factor};
    return (sw_four)__builtin_ia32_pmuludq256((sw_eight_halves)words, (sw_eight_halves)factors);
}

static inline sw_four sw_four_at(const void *at) { return *(const sw_four *)at; }

// sw_maybe for tuples m .. m + 3.
static inline uint32_t sw_maybe4(const struct sw_group *group, uint32_t m, const uint64_t *key,
                                 uint32_t words) {
    sw_four hash = {0, 0, 0, 0};
    for (uint32_t i = 0; i < words; i++) {
        sw_four masked = {key[i], key[i], key[i], key[i]};
        masked &= sw_four_at(group->words + SW_TOGETHER * i + m);
        hash += sw_times(masked, SW_LOW(i)) + sw_times(masked >> 32, SW_HIGH(i));
    }
    hash = sw_times(hash ^ hash >> 32, SW_SPREAD);
    sw_four at = (hash >> SW_WORD_AT & sw_four_at(group->filter_masks + m)) +
                 sw_four_at(group->filters + m);
    // Four loads: the instruction that gathers takes longer.
    sw_four word = {*(const uint64_t *)at[0], *(const uint64_t *)at[1],
                    *(const uint64_t *)at[2], *(const uint64_t *)at[3]};
    sw_four all = word << (hash >> SW_FIRST_AT & 63) & word << (hash >> SW_SECOND_AT & 63) &
                  word << (hash >> SW_THIRD_AT & 63);
    return (uint32_t)__builtin_ia32_movmskpd256((sw_four_doubles)all);
}
#endif

// Which tuples of a group may hold the key: a bit for each.
static inline uint32_t sw_maybe(const struct sw_group *group, const uint64_t *key,
                                uint32_t words) {
#ifdef __AVX2__
    return sw_maybe4(group, 0, key, words) | sw_maybe4(group, 4, key, words) << 4;
#else
    uint32_t maybe = 0;
    for (uint32_t m = 0; m < SW_TOGETHER; m++) {
        uint64_t masked[words];
        for (uint32_t i = 0; i < words; i++)
            masked[i] = key[i] & group->words[SW_TOGETHER * i + m];
        uint64_t hash = sw_filter_hash(masked, words);
        uint64_t word = *sw_filter_word(group->filters[m], group->filter_masks[m], hash);
        uint64_t all = word << (hash >> SW_FIRST_AT & 63) & word << (hash >> SW_SECOND_AT & 63) &
                       word << (hash >> SW_THIRD_AT & 63);
        maybe |= (uint32_t)(all >> 63) << m;
    }
    return maybe;
#endif
}

// Of SW_SLOTS slots which remember the tag, a bit for each, and which are empty.
static inline uint32_t sw_same(const struct sw_table *table, const uint32_t *slots, uint32_t tag,
                               uint32_t *empty) {
#ifdef __SSE2__
    typedef uint32_t four __attribute__((vector_size(16)));
    typedef uint32_t four_anywhere __attribute__((vector_size(16), aligned(4), may_alias));
    typedef float four_floats __attribute__((vector_size(16)));
    four all = *(const four_anywhere *)slots;
    *empty = (uint32_t)__builtin_ia32_movmskps((four_floats)(all == 0));
    return (uint32_t)__builtin_ia32_movmskps((four_floats)((all & ~table->number_mask) == tag));
#else
    uint32_t same = *empty = 0;
    for (uint32_t i = 0; i < SW_SLOTS; i++) {
        *empty |= (uint32_t)!slots[i] << i;
        same |= (uint32_t)((slots[i] & ~table->number_mask) == tag) << i;
    }
    return same;
#endif
}

static inline int sw_in_ranges(const uint64_t *low, const uint64_t *values, uint32_t ranges) {
    for (uint32_t i = 0; i < ranges; i++)
        if (values[i] < low[i] || values[i] > low[ranges + i]) return 0;
    return 1;
}

// The strongest entry of a tuple that a key hits, or NULL. exact: all entries have one mask, which
// the key is masked with.
static inline struct sw_entry *sw_probe(const struct sw_table *table, const struct sw_tuple *tuple,
                                        const uint64_t *key, uint32_t words, uint32_t ranges,
                                        size_t stride, int exact) {
    uint64_t hash = sw_hash_words(key, tuple->words, words);
    uint32_t tag = sw_tag(table, hash), at = (uint32_t)hash & tuple->slot_mask;
    const uint32_t *slots = tuple->slots;
    if (!slots[at]) return 0;
    for (;; at = (at + SW_SLOTS) & tuple->slot_mask) {
        uint32_t empty, same = sw_same(table, slots + at, tag, &empty);
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

// Which of SW_AT_ONCE tuples of a table with filters may hold the key, from one on: a bit for each.
// More than one group before any entry is looked at: processors are bad at guessing which it is.
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
            struct sw_entry *entry = sw_probe(table, tuple, key, words, ranges, stride, 0);
            if (entry && (!best || sw_beats(table, entry, best, stride))) best = entry;
        }
        from += SW_AT_ONCE;
        if (from >= table->tuple_count) return best;
        if (best && tuples[from]->strongest < best->priority) return best;
        maybe = sw_candidates(table, key, from, words);
    }
}

// The entry that a key hits, or NULL. Numbers are the table's own, passed as constants so that the
// loops unroll; exact: all entries have one mask; key: words words, then one per range field.
static inline struct sw_entry *sw_lookup(const struct sw_table *table, const uint64_t *key,
                                         uint32_t words, uint32_t ranges, uint32_t args,
                                         uint32_t counted, int exact) {
    size_t stride = sw_entry_stride(words, ranges, args, counted);
    struct sw_tuple *const *tuples = table->tuples;
    if (exact)
        return table->tuple_count ? sw_probe(table, tuples[0], key, words, ranges, stride, 1) : 0;
    if (table->filtered) {
        uint32_t maybe = sw_candidates(table, key, 0, words);
        return sw_search(table, key, words, ranges, args, counted, maybe);
    }
    struct sw_entry *best = 0;
    for (uint32_t m = 0; m < table->tuple_count; m++) {
        if (best && tuples[m]->strongest < best->priority) break;
        struct sw_entry *entry = sw_probe(table, tuples[m], key, words, ranges, stride, 0);
        if (entry && (!best || sw_beats(table, entry, best, stride))) best = entry;
    }
    return best;
}

#endif
