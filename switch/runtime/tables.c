// SPDX-License-Identifier: Apache-2.0
//
// Tables: insertion, change and removal of entries. The lookup is in tables.h. Callers of the
// functions with a `struct sw` come from the control plane; they take the switch's lock.

#include "tables.h"

#include <stdlib.h>
#include <string.h>

#include "program.h"

#define FIRST_SLOTS 16

static struct sw_entry *entry_make(const struct sw_table_spec *spec) {
    size_t words = spec->key_words + 2 * (size_t)spec->ranges + spec->arg_words;
    struct sw_entry *entry = calloc(1, sizeof *entry + words * sizeof(uint64_t));
    if (!entry) return NULL;
    entry->value = entry->words;
    entry->low = entry->words + spec->key_words;
    entry->high = entry->low + spec->ranges;
    entry->args = entry->words + spec->key_words + 2 * (size_t)spec->ranges;
    return entry;
}

int sw_table_start(struct sw_table *table, const struct sw_table_spec *spec) {
    table->spec = spec;
    table->fallback = entry_make(spec);
    if (!table->fallback) return SW_NO_MEMORY;
    table->fallback->action = spec->default_action;
    memcpy(table->fallback->args, spec->default_args, spec->arg_words * sizeof(uint64_t));
    return 0;
}

void sw_table_free(struct sw_table *table) {
    for (uint32_t i = 0; i < table->entry_used; i++) free(table->entries[i]);
    for (uint32_t i = 0; i < table->mask_count; i++) {
        free(table->masks[i]->slots);
        free(table->masks[i]);
    }
    free(table->masks);
    free(table->entries);
    free(table->generations);
    free(table->free_handles);
    free(table->fallback);
}

// ---------------------------------------------------------------------------------------------
// One mask's hash table

static struct sw_slot *slot_of(const struct sw_mask *mask, uint64_t hash, const uint64_t *value,
                               uint32_t words) {
    for (uint64_t at = hash & (mask->size - 1);; at = (at + 1) & (mask->size - 1)) {
        struct sw_slot *slot = &mask->slots[at];
        if (!slot->strongest) return slot;
        if (slot->hash == hash &&
            memcmp(slot->strongest->value, value, words * sizeof *value) == 0)
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
    mask->slots[hole].strongest = NULL;
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

static void mask_find_strongest(struct sw_mask *mask) {
    mask->strongest = INT32_MIN;
    for (uint64_t i = 0; i < mask->size; i++)
        if (mask->slots[i].strongest && mask->slots[i].strongest->priority > mask->strongest)
            mask->strongest = mask->slots[i].strongest->priority;
}

// ---------------------------------------------------------------------------------------------
// Entries

static int same_key(const struct sw_table_spec *spec, const struct sw_entry *a,
                    const struct sw_entry *b) {
    size_t bytes = spec->ranges * sizeof(uint64_t);
    return a->priority == b->priority && memcmp(a->low, b->low, bytes) == 0 &&
           memcmp(a->high, b->high, bytes) == 0;
}

static int handle_take(struct sw_table *table, struct sw_entry *entry) {
    uint32_t index;
    if (table->free_count) {
        index = table->free_handles[--table->free_count];
    } else {
        if (table->entry_used == table->entry_room) {
            uint32_t room = table->entry_room ? 2 * table->entry_room : 16;
            struct sw_entry **entries = realloc(table->entries, room * sizeof(struct sw_entry *));
            if (entries) table->entries = entries;
            uint32_t *generations = realloc(table->generations, room * sizeof(uint32_t));
            if (generations) table->generations = generations;
            uint32_t *handles = realloc(table->free_handles, room * sizeof(uint32_t));
            if (handles) table->free_handles = handles;
            if (!entries || !generations || !handles) return SW_NO_MEMORY;
            table->entry_room = room;
        }
        index = table->entry_used++;
        table->generations[index] = 0;
    }
    table->entries[index] = entry;
    table->entry_count++;
    entry->handle = (int64_t)table->generations[index] << 32 | index;
    return 0;
}

static struct sw_entry *entry_of(const struct sw_table *table, int64_t handle) {
    uint64_t index = (uint64_t)handle & 0xffffffffu;
    if (handle < 0 || index >= table->entry_used) return NULL;
    struct sw_entry *entry = table->entries[index];
    return entry && entry->handle == handle ? entry : NULL;
}

static int entry_link(struct sw_table *table, struct sw_entry *entry, const uint64_t *mask_words) {
    const struct sw_table_spec *spec = table->spec;
    struct sw_mask *mask = mask_find(table, mask_words);
    if (!mask && !(mask = mask_add(table, mask_words))) return SW_NO_MEMORY;
    int result = mask_grow(mask);
    uint64_t hash = sw_hash_words(entry->value, mask->words, spec->key_words);
    struct sw_slot *slot = slot_of(mask, hash, entry->value, spec->key_words);
    struct sw_entry **place = &slot->strongest;
    for (; !result && *place && (*place)->priority >= entry->priority; place = &(*place)->weaker)
        if (same_key(spec, *place, entry)) result = SW_EXISTS;
    if (!result && table->entry_count >= spec->max_size) result = SW_FULL;
    if (!result) result = handle_take(table, entry);
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
    *place = entry;
    entry->mask = mask;
    entry->sequence = table->sequence++;
    mask->entries++;
    if (entry->priority > mask->strongest) mask->strongest = entry->priority;
    masks_order(table);
    return 0;
}

static void entry_unlink(struct sw_table *table, struct sw_entry *entry) {
    struct sw_mask *mask = entry->mask;
    uint64_t hash = sw_hash_words(entry->value, mask->words, table->spec->key_words);
    struct sw_slot *slot = slot_of(mask, hash, entry->value, table->spec->key_words);
    struct sw_entry **place = &slot->strongest;
    while (*place != entry) place = &(*place)->weaker;
    *place = entry->weaker;
    if (!slot->strongest) slot_clear(mask, slot);
    if (--mask->entries == 0)
        mask_remove(table, mask);
    else if (entry->priority == mask->strongest)
        mask_find_strongest(mask);
    masks_order(table);
    uint32_t index = (uint32_t)entry->handle;
    table->entries[index] = NULL;
    table->generations[index] = (table->generations[index] + 1) & 0x7fffffffu;
    table->free_handles[table->free_count++] = index;
    table->entry_count--;
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
    struct sw_entry *entry = entry_make(spec);
    if (!entry) return SW_NO_MEMORY;
    uint64_t *words = entry->words;
    for (uint32_t i = 0; i < spec->key_words; i++) *words++ = value[i] & mask[i];
    if (spec->ranges) {
        memcpy(words, low, spec->ranges * sizeof *low);
        memcpy(words + spec->ranges, high, spec->ranges * sizeof *high);
    }
    if (spec->arg_words) memcpy(entry->args, args, spec->arg_words * sizeof *args);
    entry->action = action;
    entry->priority = priority;
    sw_lock_control(sw);
    int64_t result = entry_link(table, entry, mask);
    if (result == 0) result = entry->handle;
    sw_unlock(sw);
    if (result < 0) free(entry);
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
            memcpy(entry->args, args, table->spec->arg_words * sizeof *args);
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
    free(entry);
    return entry ? 0 : SW_NOT_FOUND;
}

int sw_table_set_default(struct sw *sw, uint32_t index, uint32_t action, const uint64_t *args) {
    struct sw_table *table = table_of(sw, index);
    if (!table) return SW_RANGE;
    sw_lock_control(sw);
    table->fallback->action = action;
    if (table->spec->arg_words)
        memcpy(table->fallback->args, args, table->spec->arg_words * sizeof *args);
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
