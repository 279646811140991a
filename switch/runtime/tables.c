// SPDX-License-Identifier: Apache-2.0
//
// Tables: insertion, change and removal of entries. The lookup is in tables.h. Callers of the
// functions with a `struct sw` come from the control plane; they take the switch's lock.

#include "tables.h"

#include <stdlib.h>
#include <string.h>

#include "program.h"

#define FIRST_SLOTS 16

static size_t stride_of(const struct sw_table_spec *spec) {
    return sw_entry_stride(spec->key_words, spec->ranges, spec->arg_words);
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

int sw_table_start(struct sw_table *table, const struct sw_table_spec *spec) {
    table->spec = spec;
    table->fallback = calloc(1, stride_of(spec));
    if (!table->fallback) return SW_NO_MEMORY;
    table->fallback->action = spec->default_action;
    memcpy(args_of(spec, table->fallback), spec->default_args,
           spec->arg_words * sizeof(uint64_t));
    return 0;
}

void sw_table_free(struct sw_table *table) {
    for (uint32_t i = 0; i < table->mask_count; i++) {
        free(table->masks[i]->slots);
        free(table->masks[i]);
    }
    free(table->masks);
    free(table->entries);
    free(table->records);
    free(table->free_numbers);
    free(table->fallback);
}

// ---------------------------------------------------------------------------------------------
// One mask's hash table

static struct sw_slot *slot_of(const struct sw_table *table, const struct sw_mask *mask,
                               uint32_t hash, const uint64_t *value) {
    size_t bytes = table->spec->key_words * sizeof *value;
    for (uint64_t at = hash & (mask->size - 1);; at = (at + 1) & (mask->size - 1)) {
        struct sw_slot *slot = &mask->slots[at];
        if (!slot->strongest) return slot;
        if (slot->hash == hash &&
            memcmp(entry_at(table, slot->strongest - 1)->words, value, bytes) == 0)
            return slot;
    }
}

static int mask_grow(struct sw_mask *mask) {
    if (mask->used * 3 < mask->size * 2 - 3) return 0;
    struct sw_slot *old = mask->slots;
    uint64_t old_size = mask->size;
    struct sw_slot *slots = calloc(old_size * 2, sizeof *slots);
    if (!slots) return SW_NO_MEMORY;
    mask->slots = slots;
    mask->size = old_size * 2;
    for (uint64_t i = 0; i < old_size; i++) {
        if (!old[i].strongest) continue;
        uint64_t at = old[i].hash & (mask->size - 1);
        while (slots[at].strongest) at = (at + 1) & (mask->size - 1);
        slots[at] = old[i];
    }
    free(old);
    return 0;
}

// Empties a slot and moves back those behind it that would no longer be found.
static void slot_clear(struct sw_mask *mask, struct sw_slot *slot) {
    uint64_t hole = (uint64_t)(slot - mask->slots), at = hole;
    for (;;) {
        at = (at + 1) & (mask->size - 1);
        if (!mask->slots[at].strongest) break;
        uint64_t home = mask->slots[at].hash & (mask->size - 1);
        if (((at - home) & (mask->size - 1)) < ((at - hole) & (mask->size - 1))) continue;
        mask->slots[hole] = mask->slots[at];
        hole = at;
    }
    mask->slots[hole].strongest = 0;
    mask->used--;
}

// ---------------------------------------------------------------------------------------------
// The masks of a table

static struct sw_mask *mask_find(struct sw_table *table, const uint64_t *words) {
    size_t bytes = table->spec->key_words * sizeof(uint64_t);
    for (uint32_t i = 0; i < table->mask_count; i++)
        if (memcmp(table->masks[i]->words, words, bytes) == 0) return table->masks[i];
    return NULL;
}

static struct sw_mask *mask_add(struct sw_table *table, const uint64_t *words) {
    if (table->mask_count == table->mask_room) {
        uint32_t room = table->mask_room ? 2 * table->mask_room : 8;
        struct sw_mask **masks = realloc(table->masks, room * sizeof(struct sw_mask *));
        if (!masks) return NULL;
        table->masks = masks;
        table->mask_room = room;
    }
    size_t bytes = table->spec->key_words * sizeof(uint64_t);
    struct sw_mask *mask = calloc(1, sizeof *mask + bytes);
    if (!mask) return NULL;
    mask->slots = calloc(FIRST_SLOTS, sizeof *mask->slots);
    if (!mask->slots) {
        free(mask);
        return NULL;
    }
    mask->size = FIRST_SLOTS;
    mask->strongest = INT32_MIN;
    memcpy(mask->words, words, bytes);
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
}

static void mask_remove(struct sw_table *table, struct sw_mask *mask) {
    for (uint32_t i = 0; i < table->mask_count; i++)
        if (table->masks[i] == mask) {
            table->masks[i] = table->masks[--table->mask_count];
            break;
        }
    free(mask->slots);
    free(mask);
}

static void mask_find_strongest(const struct sw_table *table, struct sw_mask *mask) {
    mask->strongest = INT32_MIN;
    for (uint64_t i = 0; i < mask->size; i++) {
        if (!mask->slots[i].strongest) continue;
        int32_t priority = entry_at(table, mask->slots[i].strongest - 1)->priority;
        if (priority > mask->strongest) mask->strongest = priority;
    }
}

// ---------------------------------------------------------------------------------------------
// Entries

static int entries_grow(struct sw_table *table) {
    uint32_t room = table->entry_room ? 2 * table->entry_room : 16;
    size_t stride = stride_of(table->spec);
    uint8_t *entries = aligned_alloc(64, room * stride);
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
    return entry;
}

static int64_t handle_of(const struct sw_table *table, uint32_t number) {
    return (int64_t)table->records[number].generation << 32 | number;
}

static struct sw_entry *entry_of(const struct sw_table *table, int64_t handle) {
    uint64_t number = (uint64_t)handle & 0xffffffffu;
    if (handle < 0 || number >= table->entry_used) return NULL;
    if (!table->records[number].mask || handle_of(table, (uint32_t)number) != handle) return NULL;
    return entry_at(table, (uint32_t)number);
}

// The link behind which an entry of this priority belongs, in the slot's list. Says whether one
// with the same priority and ranges is there.
static uint32_t *place_of(struct sw_table *table, struct sw_slot *slot, struct sw_entry *entry,
                          int *exists) {
    const struct sw_table_spec *spec = table->spec;
    size_t bytes = 2 * (size_t)spec->ranges * sizeof(uint64_t);
    uint32_t *place = &slot->strongest;
    *exists = 0;
    while (*place) {
        struct sw_entry *other = entry_at(table, *place - 1);
        if (other->priority < entry->priority) break;
        if (other->priority == entry->priority &&
            memcmp(ranges_of(spec, other), ranges_of(spec, entry), bytes) == 0)
            *exists = 1;
        place = &other->weaker;
    }
    return place;
}

static int entry_link(struct sw_table *table, struct sw_entry *entry, const uint64_t *mask_words) {
    const struct sw_table_spec *spec = table->spec;
    struct sw_mask *mask = mask_find(table, mask_words);
    if (!mask && !(mask = mask_add(table, mask_words))) return SW_NO_MEMORY;
    int exists, result = mask_grow(mask);
    uint32_t hash = sw_hash_words(entry->words, mask->words, spec->key_words);
    struct sw_slot *slot = slot_of(table, mask, hash, entry->words);
    uint32_t *place = place_of(table, slot, entry, &exists);
    if (!result && exists) result = SW_EXISTS;
    if (!result && table->entry_count >= spec->max_size) result = SW_FULL;
    if (result) {
        if (!mask->entries) mask_remove(table, mask);
        masks_order(table);
        return result;
    }
    if (!slot->strongest) {
        slot->hash = hash;
        mask->used++;
    }
    entry->weaker = *place;
    *place = entry->number + 1;
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
    uint32_t hash = sw_hash_words(entry->words, mask->words, table->spec->key_words);
    struct sw_slot *slot = slot_of(table, mask, hash, entry->words);
    uint32_t *place = &slot->strongest;
    while (*place != entry->number + 1) place = &entry_at(table, *place - 1)->weaker;
    *place = entry->weaker;
    if (!slot->strongest) slot_clear(mask, slot);
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
    struct sw_entry *entry = entry_of(table, handle);
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
    struct sw_entry *entry = entry_of(table, handle);
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
    if (!table) return SW_RANGE;
    sw_lock_control(sw);
    struct sw_entry *entry = handle < 0 ? table->fallback : entry_of(table, handle);
    if (entry) {
        *packets = entry->packets;
        *bytes = entry->bytes;
    }
    sw_unlock(sw);
    return entry ? 0 : SW_NOT_FOUND;
}

int sw_table_set_counter(struct sw *sw, uint32_t index, int64_t handle, uint64_t packets,
                         uint64_t bytes) {
    struct sw_table *table = table_of(sw, index);
    if (!table) return SW_RANGE;
    sw_lock_control(sw);
    struct sw_entry *entry = handle < 0 ? table->fallback : entry_of(table, handle);
    if (entry) {
        entry->packets = packets;
        entry->bytes = bytes;
    }
    sw_unlock(sw);
    return entry ? 0 : SW_NOT_FOUND;
}
