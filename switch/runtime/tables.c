// SPDX-License-Identifier: Apache-2.0
//
// Tables: insertion, change and removal of entries. The lookup is in lookup.h. Callers of the
// functions with a `struct sw` come from the control plane; they take the switch's lock.

#include "tables.h"

#include <stdlib.h>
#include <string.h>

#include "flow.h"

#define FIRST_SLOTS 16
#define LARGE_BYTES (128 * 1024) // of entries: they may be out of the second cache
#define FEW_ENTRIES 64 // are found sooner without the filters
#define SLOTS_PER_WORD 16 // of the filter

static size_t stride_of(const struct sw_table_spec *spec) {
    return sw_entry_stride(spec->key_words, spec->ranges, spec->arg_words, spec->counted);
}

static struct sw_entry *entry_at(const struct sw_table *table, uint32_t number) {
    return (struct sw_entry *)(table->entries + stride_of(table->spec) * number);
}

static uint64_t *ranges_of(const struct sw_table_spec *spec, struct sw_entry *entry) {
    return entry->words + spec->key_words;
}

static uint64_t *args_of(const struct sw_table_spec *spec, struct sw_entry *entry) {
    return ranges_of(spec, entry) + 2 * (size_t)spec->ranges;
}

// Packets and bytes of an entry that counts them.
static uint64_t *counters_of(const struct sw_table_spec *spec, struct sw_entry *entry) {
    return args_of(spec, entry) + spec->arg_words;
}

int sw_table_start(struct sw_table *table, const struct sw_table_spec *spec) {
    table->spec = spec;
    table->fallback = calloc(1, stride_of(spec));
    if (!table->fallback) return SW_NO_MEMORY;
    table->fallback->action = spec->default_action;
    memcpy(args_of(spec, table->fallback), spec->default_args,
           spec->arg_words * sizeof(uint64_t));
    return 0;
}

static void mask_free(struct sw_mask *mask) {
    free(mask->slots);
    free(mask->filter);
    free(mask);
}

void sw_table_free(struct sw_table *table) {
    for (uint32_t i = 0; i < table->mask_count; i++) mask_free(table->masks[i]);
    free(table->masks);
    free(table->groups);
    free(table->entries);
    free(table->records);
    free(table->free_numbers);
    free(table->fallback);
}

// ---------------------------------------------------------------------------------------------
// One mask's hash table

static struct sw_entry *entry_in(const struct sw_table *table, uint32_t slot) {
    return entry_at(table, (slot & table->number_mask) - 1);
}

static uint64_t hash_of(const struct sw_table *table, const struct sw_mask *mask,
                        const struct sw_entry *entry) {
    return sw_hash_words(entry->words, mask->words, table->spec->key_words);
}

// The slot of an entry's masked key, or the empty one that it would get.
static uint32_t *slot_of(const struct sw_table *table, const struct sw_mask *mask,
                         const struct sw_entry *entry) {
    size_t bytes = table->spec->key_words * sizeof *entry->words;
    uint64_t hash = hash_of(table, mask, entry);
    for (uint32_t at = (uint32_t)hash & mask->slot_mask;; at = (at + 1) & mask->slot_mask) {
        uint32_t *slot = &mask->slots[at];
        if (!*slot) return slot;
        if ((*slot & ~table->number_mask) == sw_tag(table, hash) &&
            memcmp(entry_in(table, *slot)->words, entry->words, bytes) == 0)
            return slot;
    }
}

static void filter_add(const struct sw_table *table, struct sw_mask *mask,
                       const struct sw_entry *entry) {
    uint64_t hash = sw_filter_hash(entry->words, table->spec->key_words);
    *sw_filter_word(mask->filter, mask->filter_mask, hash) |=
        sw_filter_bit(hash, SW_FIRST_AT) | sw_filter_bit(hash, SW_SECOND_AT) |
        sw_filter_bit(hash, SW_THIRD_AT);
}

static void filter_renew(const struct sw_table *table, struct sw_mask *mask) {
    memset(mask->filter, 0, mask->filter_mask + sizeof *mask->filter);
    for (uint64_t i = 0; i <= mask->slot_mask; i++)
        if (mask->slots[i])
            filter_add(table, mask, entry_in(table, mask->slots[i]));
    mask->stale = 0;
}

// Gives the mask room for `size` slots: what it had goes into them.
static int mask_resize(const struct sw_table *table, struct sw_mask *mask, uint32_t size) {
    uint32_t *slots = calloc(size, sizeof *slots), *old = mask->slots;
    uint64_t *filter = malloc(size / SLOTS_PER_WORD * sizeof *filter);
    if (!slots || !filter) {
        free(slots);
        free(filter);
        return SW_NO_MEMORY;
    }
    uint64_t old_size = old ? (uint64_t)mask->slot_mask + 1 : 0;
    mask->slot_mask = size - 1;
    for (uint64_t i = 0; i < old_size; i++) {
        if (!old[i]) continue;
        uint32_t at = (uint32_t)hash_of(table, mask, entry_in(table, old[i])) & (size - 1);
        while (slots[at]) at = (at + 1) & (size - 1);
        slots[at] = old[i];
    }
    free(old);
    free(mask->filter);
    mask->slots = slots;
    mask->filter = filter;
    mask->filter_mask = (size / SLOTS_PER_WORD - 1) * 8;
    filter_renew(table, mask);
    return 0;
}

static int mask_grow(const struct sw_table *table, struct sw_mask *mask) {
    if (mask->used < mask->slot_mask / 2) return 0;
    return mask_resize(table, mask, 2 * (mask->slot_mask + 1));
}

// Empties a slot and moves back those behind it that would no longer be found.
static void slot_clear(const struct sw_table *table, struct sw_mask *mask, uint32_t *slot) {
    uint32_t hole = (uint32_t)(slot - mask->slots), at = hole;
    for (;;) {
        at = (at + 1) & mask->slot_mask;
        if (!mask->slots[at]) break;
        uint32_t home = (uint32_t)hash_of(table, mask, entry_in(table, mask->slots[at]));
        if (((at - home) & mask->slot_mask) < ((at - hole) & mask->slot_mask)) continue;
        mask->slots[hole] = mask->slots[at];
        hole = at;
    }
    mask->slots[hole] = 0;
    mask->used--;
    if (++mask->stale > mask->used) filter_renew(table, mask);
}

// ---------------------------------------------------------------------------------------------
// The masks of a table

static struct sw_mask *mask_find(struct sw_table *table, const uint64_t *words) {
    size_t bytes = table->spec->key_words * sizeof(uint64_t);
    for (uint32_t i = 0; i < table->mask_count; i++)
        if (memcmp(table->masks[i]->words, words, bytes) == 0) return table->masks[i];
    return NULL;
}

// Room for more masks. The groups are as masks_order makes them, which is to follow.
static int masks_grow(struct sw_table *table) {
    uint32_t room = table->mask_room ? 2 * table->mask_room : 8;
    struct sw_mask **masks = realloc(table->masks, room * sizeof(struct sw_mask *));
    if (masks) table->masks = masks;
    size_t stride = sw_group_stride(table->spec->key_words);
    uint8_t *groups = masks ? aligned_alloc(64, room / SW_TOGETHER * stride) : NULL;
    if (!groups) return SW_NO_MEMORY;
    free(table->groups);
    table->groups = groups;
    table->mask_room = room;
    return 0;
}

static struct sw_mask *mask_add(struct sw_table *table, const uint64_t *words) {
    size_t bytes = table->spec->key_words * sizeof(uint64_t);
    struct sw_mask *mask = calloc(1, sizeof *mask + bytes);
    if (!mask) return NULL;
    mask->strongest = INT32_MIN;
    memcpy(mask->words, words, bytes);
    if (mask_resize(table, mask, FIRST_SLOTS) ||
        (table->mask_count == table->mask_room && masks_grow(table))) {
        mask_free(mask);
        return NULL;
    }
    table->masks[table->mask_count++] = mask;
    return mask;
}

static int by_strongest(const void *a, const void *b) {
    int32_t one = (*(struct sw_mask *const *)a)->strongest;
    int32_t other = (*(struct sw_mask *const *)b)->strongest;
    return (one < other) - (one > other);
}

static void masks_order(struct sw_table *table) {
    qsort(table->masks, table->mask_count, sizeof *table->masks, by_strongest);
    table->filtered = table->entry_count > FEW_ENTRIES;
    static const uint64_t nothing;
    uint32_t words = table->spec->key_words;
    for (uint32_t m = 0; m < (table->mask_count + SW_TOGETHER - 1) / SW_TOGETHER * SW_TOGETHER; m++) {
        struct sw_group *group =
            (struct sw_group *)(table->groups + sw_group_stride(words) * (m / SW_TOGETHER));
        const struct sw_mask *mask = m < table->mask_count ? table->masks[m] : NULL;
        group->filters[m % SW_TOGETHER] = mask ? mask->filter : &nothing;
        group->filter_masks[m % SW_TOGETHER] = mask ? mask->filter_mask : 0;
        for (uint32_t i = 0; i < words; i++)
            group->words[SW_TOGETHER * i + m % SW_TOGETHER] = mask ? mask->words[i] : 0;
    }
}

static void mask_remove(struct sw_table *table, struct sw_mask *mask) {
    for (uint32_t i = 0; i < table->mask_count; i++)
        if (table->masks[i] == mask) {
            table->masks[i] = table->masks[--table->mask_count];
            break;
        }
    mask_free(mask);
}

static void mask_find_strongest(const struct sw_table *table, struct sw_mask *mask) {
    mask->strongest = INT32_MIN;
    for (uint64_t i = 0; i <= mask->slot_mask; i++) {
        if (!mask->slots[i]) continue;
        int32_t priority = entry_in(table, mask->slots[i])->priority;
        if (priority > mask->strongest) mask->strongest = priority;
    }
}

// ---------------------------------------------------------------------------------------------
// Entries

// Numbers + 1 of as many entries as there is room for must fit in number_mask.
static int entries_grow(struct sw_table *table) {
    uint32_t room = table->entry_room ? 2 * table->entry_room + 1 : 15;
    size_t stride = stride_of(table->spec);
    uint8_t *entries = aligned_alloc(64, (room * stride + 63) / 64 * 64);
    if (!entries) return SW_NO_MEMORY;
    memset(entries, 0, room * stride);
    if (table->entries) memcpy(entries, table->entries, table->entry_used * stride);
    free(table->entries);
    table->entries = entries;
    struct sw_entry_record *records = realloc(table->records, room * sizeof *records);
    if (records) table->records = records;
    uint32_t *numbers = realloc(table->free_numbers, room * sizeof *numbers);
    if (numbers) table->free_numbers = numbers;
    if (!records || !numbers) return SW_NO_MEMORY;
    table->entry_room = room;
    // What slots remember of hashes becomes shorter.
    for (uint32_t m = 0; m < table->mask_count; m++)
        for (uint64_t i = 0; i <= table->masks[m]->slot_mask; i++)
            table->masks[m]->slots[i] &= ~(room & ~table->number_mask);
    table->number_mask = room;
    return 0;
}

// The place of a new entry, or NULL.
static struct sw_entry *entry_take(struct sw_table *table) {
    uint32_t number;
    if (table->free_count) {
        number = table->free_numbers[--table->free_count];
    } else {
        if (table->entry_used == table->entry_room && entries_grow(table)) return NULL;
        number = table->entry_used++;
        table->records[number].generation = 0;
    }
    struct sw_entry *entry = entry_at(table, number);
    memset(entry, 0, stride_of(table->spec));
    entry->number = number;
    table->records[number].mask = NULL;
    if (table->meters) memset(&table->meters[number], 0, sizeof *table->meters);
    if (table->hit_us) table->hit_us[number] = 0;
    return entry;
}

static int64_t handle_of(const struct sw_table *table, uint32_t number) {
    return (int64_t)table->records[number].generation << 32 | number;
}

struct sw_entry *sw_table_entry(const struct sw_table *table, int64_t handle) {
    uint64_t number = (uint64_t)handle & 0xffffffffu;
    if (handle < 0 || number >= table->entry_used) return NULL;
    if (!table->records[number].mask || handle_of(table, (uint32_t)number) != handle) return NULL;
    return entry_at(table, (uint32_t)number);
}

// Behind which of the entries of its slot an entry of this priority belongs; NULL: before all. Says
// whether one with the same priority and ranges is there.
static struct sw_entry *place_of(struct sw_table *table, uint32_t slot, struct sw_entry *entry,
                                 int *exists) {
    const struct sw_table_spec *spec = table->spec;
    size_t bytes = 2 * (size_t)spec->ranges * sizeof(uint64_t);
    struct sw_entry *before = NULL;
    *exists = 0;
    for (uint32_t next = slot & table->number_mask; next;) {
        struct sw_entry *other = entry_at(table, next - 1);
        if (other->priority < entry->priority) break;
        if (other->priority == entry->priority &&
            memcmp(ranges_of(spec, other), ranges_of(spec, entry), bytes) == 0)
            *exists = 1;
        before = other;
        next = other->weaker;
    }
    return before;
}

static void slot_set(const struct sw_table *table, uint32_t *slot, uint32_t number_1) {
    *slot = (*slot & ~table->number_mask) | number_1;
}

static int entry_link(struct sw_table *table, struct sw_entry *entry, const uint64_t *mask_words) {
    const struct sw_table_spec *spec = table->spec;
    struct sw_mask *mask = mask_find(table, mask_words);
    if (!mask && !(mask = mask_add(table, mask_words))) return SW_NO_MEMORY;
    int exists, result = mask_grow(table, mask);
    uint32_t *slot = slot_of(table, mask, entry);
    struct sw_entry *before = place_of(table, *slot, entry, &exists);
    if (!result && exists) result = SW_EXISTS;
    if (!result && table->entry_count >= spec->max_size) result = SW_FULL;
    if (result) {
        if (!mask->entries) mask_remove(table, mask);
        masks_order(table);
        return result;
    }
    if (!*slot) {
        filter_add(table, mask, entry);
        *slot = sw_tag(table, hash_of(table, mask, entry));
        mask->used++;
    }
    entry->weaker = before ? before->weaker : *slot & table->number_mask;
    if (before)
        before->weaker = entry->number + 1;
    else
        slot_set(table, slot, entry->number + 1);
    table->records[entry->number].mask = mask;
    table->records[entry->number].sequence = table->sequence++;
    table->entry_count++;
    mask->entries++;
    if (entry->priority > mask->strongest) mask->strongest = entry->priority;
    masks_order(table);
    return 0;
}

static void entry_give_back(struct sw_table *table, struct sw_entry *entry) {
    table->free_numbers[table->free_count++] = entry->number;
}

static void entry_unlink(struct sw_table *table, struct sw_entry *entry) {
    struct sw_entry_record *record = &table->records[entry->number];
    struct sw_mask *mask = record->mask;
    uint32_t *slot = slot_of(table, mask, entry);
    struct sw_entry *other = entry_in(table, *slot);
    if (other != entry) {
        while (other->weaker != entry->number + 1) other = entry_at(table, other->weaker - 1);
        other->weaker = entry->weaker;
    } else if (entry->weaker) {
        slot_set(table, slot, entry->weaker);
    } else {
        slot_clear(table, mask, slot);
    }
    if (--mask->entries == 0)
        mask_remove(table, mask);
    else if (entry->priority == mask->strongest)
        mask_find_strongest(table, mask);
    masks_order(table);
    record->mask = NULL;
    record->generation = (record->generation + 1) & 0x7fffffffu;
    table->entry_count--;
    entry_give_back(table, entry);
}

// ---------------------------------------------------------------------------------------------
// For the control plane

static struct sw_table *table_of(struct sw *sw, uint32_t table) {
    return table < program_table_count ? &sw->tables[table] : NULL;
}

int64_t sw_table_insert(struct sw *sw, uint32_t index, const uint64_t *value, const uint64_t *mask,
                        const uint64_t *low, const uint64_t *high, int32_t priority,
                        uint32_t action, const uint64_t *args) {
    struct sw_table *table = table_of(sw, index);
    if (!table) return SW_RANGE;
    const struct sw_table_spec *spec = table->spec;
    sw_lock_control(sw);
    struct sw_entry *entry = entry_take(table);
    if (!entry) {
        sw_unlock(sw);
        return SW_NO_MEMORY;
    }
    if (spec->ahead && table->entry_used * stride_of(spec) >= LARGE_BYTES)
        sw->ahead = sw->pool_size / 64 < SW_AHEAD ? 1 : SW_AHEAD;
    for (uint32_t i = 0; i < spec->key_words; i++) entry->words[i] = value[i] & mask[i];
    if (spec->ranges) {
        memcpy(ranges_of(spec, entry), low, spec->ranges * sizeof *low);
        memcpy(ranges_of(spec, entry) + spec->ranges, high, spec->ranges * sizeof *high);
    }
    if (spec->arg_words) memcpy(args_of(spec, entry), args, spec->arg_words * sizeof *args);
    entry->action = action;
    entry->priority = priority;
    int64_t result = entry_link(table, entry, mask);
    if (result == 0)
        result = handle_of(table, entry->number);
    else
        entry_give_back(table, entry);
    sw_unlock(sw);
    return result;
}

int sw_table_modify(struct sw *sw, uint32_t index, int64_t handle, uint32_t action,
                    const uint64_t *args) {
    struct sw_table *table = table_of(sw, index);
    if (!table) return SW_RANGE;
    sw_lock_control(sw);
    struct sw_entry *entry = sw_table_entry(table, handle);
    if (entry) {
        entry->action = action;
        if (table->spec->arg_words)
            memcpy(args_of(table->spec, entry), args, table->spec->arg_words * sizeof *args);
    }
    sw_unlock(sw);
    return entry ? 0 : SW_NOT_FOUND;
}

int sw_table_delete(struct sw *sw, uint32_t index, int64_t handle) {
    struct sw_table *table = table_of(sw, index);
    if (!table) return SW_RANGE;
    sw_lock_control(sw);
    struct sw_entry *entry = sw_table_entry(table, handle);
    if (entry) entry_unlink(table, entry);
    sw_unlock(sw);
    return entry ? 0 : SW_NOT_FOUND;
}

int sw_table_set_default(struct sw *sw, uint32_t index, uint32_t action, const uint64_t *args) {
    struct sw_table *table = table_of(sw, index);
    if (!table) return SW_RANGE;
    sw_lock_control(sw);
    table->fallback->action = action;
    if (table->spec->arg_words)
        memcpy(args_of(table->spec, table->fallback), args,
               table->spec->arg_words * sizeof *args);
    sw_unlock(sw);
    return 0;
}

int sw_table_counter(struct sw *sw, uint32_t index, int64_t handle, uint64_t *packets,
                     uint64_t *bytes) {
    struct sw_table *table = table_of(sw, index);
    if (!table || !table->spec->counted) return SW_RANGE;
    sw_lock_control(sw);
    struct sw_entry *entry = handle < 0 ? table->fallback : sw_table_entry(table, handle);
    if (entry) {
        *packets = counters_of(table->spec, entry)[0];
        *bytes = counters_of(table->spec, entry)[1];
    }
    sw_unlock(sw);
    return entry ? 0 : SW_NOT_FOUND;
}

int sw_table_set_counter(struct sw *sw, uint32_t index, int64_t handle, uint64_t packets,
                         uint64_t bytes) {
    struct sw_table *table = table_of(sw, index);
    if (!table || !table->spec->counted) return SW_RANGE;
    sw_lock_control(sw);
    struct sw_entry *entry = handle < 0 ? table->fallback : sw_table_entry(table, handle);
    if (entry) {
        counters_of(table->spec, entry)[0] = packets;
        counters_of(table->spec, entry)[1] = bytes;
    }
    sw_unlock(sw);
    return entry ? 0 : SW_NOT_FOUND;
}
