// SPDX-License-Identifier: Apache-2.0
//
// Tuples (tables.h): chooses which masks share one, and adds and removes entries.
//
// The masks of a table with more than a few entries are merged again whenever the insertions since
// the last time have cost half as much effort as there are entries: by then it pays. A new mask has
// a tuple of its own until then. struct plan holds one such merge: masks sorted so that similar
// ones are neighbours, entries grouped by mask, and the new tuples; the old ones stay in use if
// memory runs out.

#include <stdlib.h>
#include <string.h>

#include "packets.h"

#define FIRST_SLOTS 16
#define FEW_ENTRIES 64 // up to so many are found faster without filters, in a tuple for each mask
#define SLOTS_PER_WORD 4 // of the filter
// Conditions for masks to share a tuple:
#define MOST_IN_SLOT 8 // most entries with equal key bits
#define KEYS_PER_ENTRY 16 // that the common bits can tell apart, where other tuples hold the rest
#define BUCKETS_PER_ENTRY 8 // in which different keys are counted

static struct sw_entry *entry_in(const struct sw_table *table, uint32_t slot) {
    return sw_entry_at(table, (slot & table->number_mask) - 1);
}

// ---------------------------------------------------------------------------------------------
// One tuple's slots

static uint64_t hash_of(const struct sw_table *table, const struct sw_tuple *tuple,
                        const struct sw_entry *entry) {
    return sw_hash_words(entry->words, tuple->words, table->spec->key_words);
}

static int same_key(const struct sw_table *table, const struct sw_tuple *tuple,
                    const struct sw_entry *one, const struct sw_entry *other) {
    for (uint32_t i = 0; i < table->spec->key_words; i++)
        if ((one->words[i] ^ other->words[i]) & tuple->words[i]) return 0;
    return 1;
}

// Returns the slot of an entry's key, or the empty one that it would get.
static uint32_t slot_of(const struct sw_table *table, const struct sw_tuple *tuple,
                        const struct sw_entry *entry) {
    uint64_t hash = hash_of(table, tuple, entry);
    for (uint32_t at = (uint32_t)hash & tuple->slot_mask;; at = (at + 1) & tuple->slot_mask) {
        uint32_t slot = tuple->slots[at];
        if (!slot || ((slot & ~table->number_mask) == sw_tag(table, hash) &&
                      same_key(table, tuple, entry_in(table, slot), entry)))
            return at;
    }
}

static void slot_set(struct sw_tuple *tuple, uint32_t at, uint32_t slot) {
    tuple->slots[at] = slot;
    if (at < SW_SLOTS - 1) tuple->slots[tuple->slot_mask + 1 + at] = slot;
}

// Sets the first entry of a slot.
static void slot_point(const struct sw_table *table, struct sw_tuple *tuple, uint32_t at,
                       uint32_t number_1) {
    slot_set(tuple, at, (tuple->slots[at] & ~table->number_mask) | number_1);
}

static void filter_add(const struct sw_table *table, struct sw_tuple *tuple,
                       const struct sw_entry *entry) {
    uint32_t words = table->spec->key_words, halves[2 * words + 1];
    for (uint32_t i = 0; i < words; i++) {
        halves[2 * i] = (uint32_t)(entry->words[i] & tuple->words[i]);
        halves[2 * i + 1] = (uint32_t)((entry->words[i] & tuple->words[i]) >> 32);
    }
    uint32_t hash = sw_filter_hash(halves, 2 * words);
    tuple->filter[hash >> tuple->filter_shift] |= sw_filter_bit(hash, SW_FIRST_AT) |
                                                  sw_filter_bit(hash, SW_SECOND_AT) |
                                                  sw_filter_bit(hash, SW_THIRD_AT);
}

static void filter_renew(const struct sw_table *table, struct sw_tuple *tuple) {
    memset(tuple->filter, 0, (1ull << (32 - tuple->filter_shift)) * sizeof *tuple->filter);
    for (uint64_t i = 0; i <= tuple->slot_mask; i++)
        if (tuple->slots[i]) filter_add(table, tuple, entry_in(table, tuple->slots[i]));
    tuple->stale = 0;
}

// Gives the tuple room for `size` slots and rehashes its entries.
static int tuple_resize(const struct sw_table *table, struct sw_tuple *tuple, uint32_t size) {
    uint32_t *slots = calloc(size + SW_SLOTS - 1, sizeof *slots), *old = tuple->slots;
    uint32_t *filter = malloc(size / SLOTS_PER_WORD * sizeof *filter);
    if (!slots || !filter) {
        free(slots);
        free(filter);
        return SW_NO_MEMORY;
    }
    uint64_t old_size = old ? (uint64_t)tuple->slot_mask + 1 : 0;
    free(tuple->filter);
    tuple->slots = slots;
    tuple->slot_mask = size - 1;
    tuple->filter = filter;
    tuple->filter_shift = (uint32_t)__builtin_clz(size / SLOTS_PER_WORD) + 1;
    for (uint64_t i = 0; i < old_size; i++) {
        if (!old[i]) continue;
        uint32_t at = (uint32_t)hash_of(table, tuple, entry_in(table, old[i])) & tuple->slot_mask;
        while (slots[at]) at = (at + 1) & tuple->slot_mask;
        slot_set(tuple, at, old[i]);
    }
    free(old);
    filter_renew(table, tuple);
    return 0;
}

static void tuple_free(struct sw_tuple *tuple) {
    free(tuple->slots);
    free(tuple->filter);
    free(tuple);
}

// Returns a tuple with room for so many entries, or NULL.
static struct sw_tuple *tuple_new(const struct sw_table *table, const uint64_t *words,
                                  uint64_t entries) {
    size_t bytes = table->spec->key_words * sizeof *words;
    uint64_t size = FIRST_SLOTS;
    while ((size - 1) / 2 < entries) size *= 2;
    struct sw_tuple *tuple = calloc(1, sizeof *tuple + bytes);
    if (!tuple) return NULL;
    memcpy(tuple->words, words, bytes);
    tuple->strongest = INT32_MIN;
    if (!tuple_resize(table, tuple, (uint32_t)size)) return tuple;
    tuple_free(tuple);
    return NULL;
}

// Empties a slot and moves back those behind it that would no longer be found.
static void slot_clear(const struct sw_table *table, struct sw_tuple *tuple, uint32_t hole) {
    for (uint32_t at = hole;;) {
        at = (at + 1) & tuple->slot_mask;
        if (!tuple->slots[at]) break;
        uint32_t home = (uint32_t)hash_of(table, tuple, entry_in(table, tuple->slots[at]));
        if (((at - home) & tuple->slot_mask) < ((at - hole) & tuple->slot_mask)) continue;
        slot_set(tuple, hole, tuple->slots[at]);
        hole = at;
    }
    slot_set(tuple, hole, 0);
    tuple->used--;
    if (++tuple->stale > tuple->used) filter_renew(table, tuple);
}

// Puts an entry into its mask's tuple, which has room. Returns how many entries with equal key bits
// precede it, or an enum sw_error: an equal entry exists, or the table is full.
static int64_t entry_place(struct sw_table *table, struct sw_entry *entry) {
    const struct sw_table_spec *spec = table->spec;
    struct sw_mask *mask = &table->masks[entry->mask];
    struct sw_tuple *tuple = mask->tuple;
    uint32_t at = slot_of(table, tuple, entry);
    size_t bytes = (spec->key_words + 2 * (size_t)spec->ranges) * sizeof *entry->words;
    struct sw_entry *before = NULL;
    int64_t passed = 0;
    for (uint32_t next = tuple->slots[at] & table->number_mask; next; passed++) {
        struct sw_entry *other = sw_entry_at(table, next - 1);
        if (sw_beats(table, entry, other, sw_stride_of(table->spec))) break;
        if (other->priority == entry->priority && other->mask == entry->mask &&
            memcmp(other->words, entry->words, bytes) == 0)
            return SW_EXISTS;
        before = other;
        next = other->weaker;
    }
    if (table->entry_count >= spec->max_size) return SW_FULL;
    if (!tuple->slots[at]) {
        filter_add(table, tuple, entry);
        slot_set(tuple, at, sw_tag(table, hash_of(table, tuple, entry)));
        tuple->used++;
    }
    uint32_t number_1 = sw_number_of(table, entry) + 1;
    entry->weaker = before ? before->weaker : tuple->slots[at] & table->number_mask;
    if (before)
        before->weaker = number_1;
    else
        slot_point(table, tuple, at, number_1);
    if (entry->priority > tuple->strongest) {
        tuple->strongest = entry->priority;
        tuple->strongest_entries = 0;
    }
    tuple->strongest_entries += entry->priority == tuple->strongest;
    tuple->entries++;
    mask->entries++;
    table->entry_count++;
    return passed;
}

static void tuple_find_strongest(const struct sw_table *table, struct sw_tuple *tuple) {
    tuple->strongest = INT32_MIN;
    tuple->strongest_entries = 0;
    for (uint64_t i = 0; i <= tuple->slot_mask; i++) {
        for (uint32_t next = tuple->slots[i] & table->number_mask; next;) {
            const struct sw_entry *entry = sw_entry_at(table, next - 1);
            if (entry->priority < tuple->strongest) break;
            if (entry->priority > tuple->strongest) tuple->strongest_entries = 0;
            tuple->strongest = entry->priority;
            tuple->strongest_entries++;
            next = entry->weaker;
        }
    }
}

// ---------------------------------------------------------------------------------------------
// The tuples of a table

static int by_strongest(const void *a, const void *b) {
    int32_t one = (*(struct sw_tuple *const *)a)->strongest;
    int32_t other = (*(struct sw_tuple *const *)b)->strongest;
    return (one < other) - (one > other);
}

static void tuples_order(struct sw_table *table) {
    qsort(table->tuples, table->tuple_count, sizeof *table->tuples, by_strongest);
    table->filtered = table->entry_count > FEW_ENTRIES && table->tuple_count > 1;
    static const uint32_t nothing[2];
    uint32_t words = table->spec->key_words, count = table->tuple_count;
    for (uint32_t m = 0; m < (count + SW_TOGETHER - 1) / SW_TOGETHER * SW_TOGETHER; m++) {
        struct sw_group *group =
            (struct sw_group *)(table->groups + sw_group_stride(words) * (m / SW_TOGETHER));
        const struct sw_tuple *tuple = m < count ? table->tuples[m] : NULL;
        group->filters[m % SW_TOGETHER] = tuple ? tuple->filter : nothing;
        group->filter_shifts[m % SW_TOGETHER] = tuple ? tuple->filter_shift : 31;
        for (uint32_t i = 0; i < words; i++) {
            uint64_t word = tuple ? tuple->words[i] : 0;
            group->halves[2 * i][m % SW_TOGETHER] = (uint32_t)word;
            group->halves[2 * i + 1][m % SW_TOGETHER] = (uint32_t)(word >> 32);
        }
    }
}

static void tuple_remove(struct sw_table *table, struct sw_tuple *tuple) {
    for (uint32_t i = 0; i < table->tuple_count; i++)
        if (table->tuples[i] == tuple) {
            table->tuples[i] = table->tuples[--table->tuple_count];
            break;
        }
    tuple_free(tuple);
}

// Makes room for one more mask and tuple; there are never more tuples than masks.
static int make_room(struct sw_table *table) {
    if (table->mask_used < table->mask_room) return 0;
    uint32_t room = table->mask_room ? 2 * table->mask_room : SW_TOGETHER;
    uint32_t key_words = table->spec->key_words;
    struct sw_tuple **tuples = realloc(table->tuples, room * sizeof(struct sw_tuple *));
    if (tuples) table->tuples = tuples;
    struct sw_mask *masks = realloc(table->masks, room * sizeof *masks);
    if (masks) table->masks = masks;
    uint64_t *words = realloc(table->mask_words, ((size_t)room * key_words + 1) * sizeof *words);
    if (words) table->mask_words = words;
    uint8_t *groups = aligned_alloc(64, room / SW_TOGETHER * sw_group_stride(key_words));
    if (!tuples || !masks || !words || !groups) {
        free(groups);
        return SW_NO_MEMORY;
    }
    free(table->groups);
    table->groups = groups;
    table->mask_room = room;
    tuples_order(table);
    return 0;
}

// Returns the number of a mask and gives it a tuple, or an enum sw_error: there is no memory.
static int64_t mask_take(struct sw_table *table, const uint64_t *words) {
    size_t bytes = table->spec->key_words * sizeof *words;
    uint32_t number = table->mask_used;
    for (uint32_t i = 0; i < table->mask_used; i++) {
        if (!table->masks[i].entries)
            number = i;
        else if (memcmp(sw_words_of_mask(table, i), words, bytes) == 0)
            return i;
    }
    if (number == table->mask_used && make_room(table)) return SW_NO_MEMORY;
    struct sw_tuple *tuple = tuple_new(table, words, 0);
    if (!tuple) return SW_NO_MEMORY;
    if (number == table->mask_used) table->mask_used++;
    memcpy((uint64_t *)sw_words_of_mask(table, number), words, bytes);
    table->masks[number] = (struct sw_mask){tuple, 0};
    table->tuples[table->tuple_count++] = tuple;
    return number;
}

// ---------------------------------------------------------------------------------------------
// Which masks share a tuple

struct ordered {
    const uint64_t *words;
    uint32_t length; // words
    uint32_t mask;
    uint32_t first; // of its entries, in struct plan
};

struct plan {
    struct sw_table *table;
    struct ordered *masks; // similar masks are neighbours; one more at the end
    uint32_t mask_count;
    uint32_t *entries; // numbers, mask by mask
    uint8_t *buckets;
    struct sw_tuple **tuples, **chosen; // the new ones; by mask
    uint32_t tuple_count;
};

// Orders by falling words, the longest prefix first.
static int by_words(const void *a, const void *b) {
    const struct ordered *one = a, *other = b;
    for (uint32_t i = one->length; i--;)
        if (one->words[i] != other->words[i]) return one->words[i] < other->words[i] ? 1 : -1;
    return 0;
}

static void common_words(const struct plan *plan, uint32_t from, uint32_t to, uint64_t *words) {
    uint32_t length = plan->table->spec->key_words;
    memcpy(words, plan->masks[from].words, length * sizeof *words);
    for (uint32_t m = from + 1; m < to; m++)
        for (uint32_t i = 0; i < length; i++) words[i] &= plan->masks[m].words[i];
}

// Returns 1 if the common bits of masks from .. to - 1 tell their entries apart: at least three
// quarters are alone, none share with many, and a key of another tuple hits few of them.
static int serves(const struct plan *plan, uint32_t from, uint32_t to) {
    uint32_t length = plan->table->spec->key_words;
    uint64_t words[length + 1];
    common_words(plan, from, to, words);
    uint64_t first = plan->masks[from].first, count = plan->masks[to].first - first;
    int alone = to - from == plan->mask_count, bits = 0;
    for (uint32_t i = 0; i < length; i++) bits += __builtin_popcountll(words[i]);
    if (bits < 32 && 1ull << bits < (alone ? 1 : KEYS_PER_ENTRY) * count) return 0;
    uint64_t size = 64, filled = 0;
    while (size < BUCKETS_PER_ENTRY * count) size *= 2;
    memset(plan->buckets, 0, size);
    for (uint64_t i = 0; i < count; i++) {
        const struct sw_entry *entry = sw_entry_at(plan->table, plan->entries[first + i]);
        uint8_t *bucket = &plan->buckets[sw_hash_words(entry->words, words, length) & (size - 1)];
        filled += !*bucket;
        if (++*bucket > MOST_IN_SLOT) return 0;
    }
    return filled >= count - count / 4;
}

// Returns how many masks from this one on can share a tuple, by galloping and binary search.
static uint32_t reach(const struct plan *plan, uint32_t from) {
    uint32_t most = plan->mask_count - from, good = 1, bad = most + 1;
    while (good < most && bad > most) {
        uint32_t next = 2 * good < most ? 2 * good : most;
        if (serves(plan, from, from + next))
            good = next;
        else
            bad = next;
    }
    while (bad - good > 1 && good < most) {
        uint32_t middle = good + (bad - good) / 2;
        if (serves(plan, from, from + middle))
            good = middle;
        else
            bad = middle;
    }
    return good;
}

static void plan_start(struct plan *plan) {
    struct sw_table *table = plan->table;
    uint32_t count = 0;
    for (uint32_t m = 0; m < table->mask_used; m++) {
        if (!table->masks[m].entries) continue;
        plan->masks[count++] =
            (struct ordered){sw_words_of_mask(table, m), table->spec->key_words, m, 0};
    }
    qsort(plan->masks, count, sizeof *plan->masks, by_words);
    plan->mask_count = count;
    uint32_t next[table->mask_used + 1];
    uint32_t first = 0;
    for (uint32_t m = 0; m < count; m++) {
        plan->masks[m].first = next[plan->masks[m].mask] = first;
        first += table->masks[plan->masks[m].mask].entries;
    }
    plan->masks[count].first = first;
    for (uint32_t number = 0; number < table->entry_used; number++)
        if (table->records[number].taken)
            plan->entries[next[sw_entry_at(table, number)->mask]++] = number;
}

// Creates the new tuples, empty but with room. An enum sw_error: there is no memory.
static int plan_tuples(struct plan *plan) {
    struct sw_table *table = plan->table;
    for (uint32_t from = 0, to; from < plan->mask_count; from = to) {
        to = from + reach(plan, from);
        uint64_t words[table->spec->key_words + 1];
        common_words(plan, from, to, words);
        uint64_t entries = plan->masks[to].first - plan->masks[from].first;
        struct sw_tuple *tuple = tuple_new(table, words, entries);
        if (!tuple) return SW_NO_MEMORY;
        tuple->merged = to - from > 1;
        plan->tuples[plan->tuple_count++] = tuple;
        for (uint32_t m = from; m < to; m++) plan->chosen[plan->masks[m].mask] = tuple;
    }
    return 0;
}

// Moves all entries into the new tuples.
static void plan_follow(struct plan *plan) {
    struct sw_table *table = plan->table;
    uint32_t count = table->entry_count;
    for (uint32_t i = 0; i < table->tuple_count; i++) tuple_free(table->tuples[i]);
    memcpy(table->tuples, plan->tuples, plan->tuple_count * sizeof *plan->tuples);
    table->tuple_count = plan->tuple_count;
    for (uint32_t m = 0; m < table->mask_used; m++)
        table->masks[m] = (struct sw_mask){plan->chosen[m], 0};
    table->entry_count = 0;
    for (uint32_t i = 0; i < count; i++)
        entry_place(table, sw_entry_at(table, plan->entries[i]));
}

// Merges masks again. Without memory for that nothing changes.
static void tuples_choose(struct sw_table *table) {
    struct plan plan = {.table = table};
    size_t masks = (size_t)table->mask_used + 1;
    plan.masks = calloc(masks, sizeof *plan.masks);
    plan.entries = calloc(table->entry_count, sizeof *plan.entries);
    plan.buckets = malloc(2 * BUCKETS_PER_ENTRY * (size_t)table->entry_count);
    plan.tuples = calloc(masks, sizeof *plan.tuples);
    plan.chosen = calloc(masks, sizeof *plan.chosen);
    if (plan.masks && plan.entries && plan.buckets && plan.tuples && plan.chosen) {
        plan_start(&plan);
        if (plan_tuples(&plan) == 0)
            plan_follow(&plan);
        else
            for (uint32_t i = 0; i < plan.tuple_count; i++) tuple_free(plan.tuples[i]);
    }
    free(plan.masks);
    free(plan.entries);
    free(plan.buckets);
    free(plan.tuples);
    free(plan.chosen);
    table->effort = 0;
}

// ---------------------------------------------------------------------------------------------
// For tables.c

int sw_tuples_add(struct sw_table *table, struct sw_entry *entry, const uint64_t *mask_words) {
    int64_t number = mask_take(table, mask_words);
    if (number < 0) return (int)number;
    struct sw_tuple *tuple = table->masks[number].tuple;
    struct sw_entry_record *record = &table->records[sw_number_of(table, entry)];
    entry->mask = (uint32_t)number;
    record->sequence = table->sequence;
    int64_t result = 0;
    if (tuple->used >= tuple->slot_mask / 2)
        result = tuple_resize(table, tuple, 2 * (tuple->slot_mask + 1));
    if (!result) result = entry_place(table, entry);
    if (result < 0) {
        if (!tuple->entries) tuple_remove(table, tuple);
    } else {
        table->sequence++;
        record->taken = 1;
        table->effort += 1 + (tuple->merged ? (uint64_t)result : 0);
        if (table->mask_used > 1 && table->entry_count > FEW_ENTRIES &&
            table->effort > table->entry_count / 2)
            tuples_choose(table);
    }
    tuples_order(table);
    return result < 0 ? (int)result : 0;
}

void sw_tuples_remove(struct sw_table *table, struct sw_entry *entry) {
    uint32_t number_1 = sw_number_of(table, entry) + 1;
    struct sw_mask *mask = &table->masks[entry->mask];
    struct sw_tuple *tuple = mask->tuple;
    uint32_t at = slot_of(table, tuple, entry);
    struct sw_entry *other = entry_in(table, tuple->slots[at]);
    if (other != entry) {
        while (other->weaker != number_1) other = sw_entry_at(table, other->weaker - 1);
        other->weaker = entry->weaker;
    } else if (entry->weaker) {
        slot_point(table, tuple, at, entry->weaker);
    } else {
        slot_clear(table, tuple, at);
    }
    table->records[number_1 - 1].taken = 0;
    table->entry_count--;
    mask->entries--;
    if (--tuple->entries == 0)
        tuple_remove(table, tuple);
    else if (entry->priority == tuple->strongest && --tuple->strongest_entries == 0)
        tuple_find_strongest(table, tuple);
    tuples_order(table);
}

void sw_tuples_free(struct sw_table *table) {
    for (uint32_t i = 0; i < table->tuple_count; i++) tuple_free(table->tuples[i]);
    free(table->tuples);
    free(table->groups);
    free(table->masks);
    free(table->mask_words);
}
