// SPDX-License-Identifier: Apache-2.0
//
// Insertion, modification and deletion of entries (tables.h), and their counters. Lookups are in
// table_lookup.h. Functions with a `struct sw` serve the control plane and take the switch's lock.
//
// Entries move when the table grows, so pointers to them are valid only under the lock. Free
// numbers are a stack; a number's generation distinguishes its successive entries. entries_grow
// widens number_mask with the room, which shortens the part of the hash that slots store.

#include "tables.h"

#include <stdlib.h>
#include <string.h>

#include "packets.h"

#define LARGE_BYTES (128 * 1024) // of entries: beyond, they may miss the second-level cache

static uint64_t *ranges_of(const struct sw_table_spec *spec, struct sw_entry *entry) {
    return entry->words + spec->key_words;
}

static uint64_t *args_of(const struct sw_table_spec *spec, struct sw_entry *entry) {
    return ranges_of(spec, entry) + 2 * (size_t)spec->ranges;
}

// The packets and bytes of an entry that counts them.
static uint64_t *counters_of(const struct sw_table_spec *spec, struct sw_entry *entry) {
    return args_of(spec, entry) + spec->arg_words;
}

int sw_table_start(struct sw_table *table, const struct sw_table_spec *spec) {
    table->spec = spec;
    table->fallback = calloc(1, sw_stride_of(spec));
    if (!table->fallback) return SW_NO_MEMORY;
    table->fallback->action = spec->default_action;
    memcpy(args_of(spec, table->fallback), spec->default_args,
           spec->arg_words * sizeof(uint64_t));
    return 0;
}

void sw_table_free(struct sw_table *table) {
    sw_tuples_free(table);
    free(table->entries);
    free(table->records);
    free(table->free_numbers);
    free(table->fallback);
}

// ---------------------------------------------------------------------------------------------
// Entries

// The number + 1 of every entry that there is room for must fit in number_mask.
static int entries_grow(struct sw_table *table) {
    uint32_t room = table->entry_room ? 2 * table->entry_room + 1 : 15;
    size_t stride = sw_stride_of(table->spec);
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
    // Slots store fewer bits of hashes from now on.
    for (uint32_t m = 0; m < table->tuple_count; m++)
        for (uint64_t i = 0; i < table->tuples[m]->slot_mask + (uint64_t)SW_SLOTS; i++)
            table->tuples[m]->slots[i] &= ~(room & ~table->number_mask);
    table->number_mask = room;
    return 0;
}

// Returns a zeroed new entry, or NULL.
static struct sw_entry *entry_take(struct sw_table *table) {
    uint32_t number;
    if (table->free_count) {
        number = table->free_numbers[--table->free_count];
    } else {
        if (table->entry_used == table->entry_room && entries_grow(table)) return NULL;
        number = table->entry_used++;
        table->records[number].generation = 0;
    }
    struct sw_entry *entry = sw_entry_at(table, number);
    memset(entry, 0, sw_stride_of(table->spec));
    table->records[number].taken = 0;
    if (table->meters) memset(&table->meters[number], 0, sizeof *table->meters);
    if (table->hit_us) table->hit_us[number] = 0;
    return entry;
}

struct sw_entry *sw_table_entry(const struct sw_table *table, int64_t handle) {
    uint32_t number = sw_handle_number(handle);
    if (handle < 0 || number >= table->entry_used) return NULL;
    if (!table->records[number].taken || sw_handle_of(table, number) != handle) return NULL;
    return sw_entry_at(table, number);
}

static void entry_give_back(struct sw_table *table, struct sw_entry *entry) {
    table->free_numbers[table->free_count++] = sw_number_of(table, entry);
}

// ---------------------------------------------------------------------------------------------
// For the control plane

static struct sw_table *table_of(struct sw *sw, uint32_t table) {
    return table < program_table_count ? &sw->tables[table] : NULL;
}

// Takes the lock and returns an entry, with `fallback` the default one for a handle below 0. NULL:
// there is none, and the lock is not held.
static struct sw_entry *entry_lock(struct sw *sw, struct sw_table *table, int64_t handle,
                                   int fallback) {
    sw_lock_control(sw);
    struct sw_entry *entry =
        fallback && handle < 0 ? table->fallback : sw_table_entry(table, handle);
    if (!entry) sw_unlock(sw);
    return entry;
}

static void set_action(const struct sw_table_spec *spec, struct sw_entry *entry, uint32_t action,
                       const uint64_t *args) {
    entry->action = action;
    if (spec->arg_words) memcpy(args_of(spec, entry), args, spec->arg_words * sizeof *args);
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
    if (spec->ahead && table->entry_used * sw_stride_of(spec) >= LARGE_BYTES)
        sw->ahead = sw->pool_size / 64 < SW_AHEAD ? 1 : SW_AHEAD;
    for (uint32_t i = 0; i < spec->key_words; i++) entry->words[i] = value[i] & mask[i];
    if (spec->ranges) {
        memcpy(ranges_of(spec, entry), low, spec->ranges * sizeof *low);
        memcpy(ranges_of(spec, entry) + spec->ranges, high, spec->ranges * sizeof *high);
    }
    set_action(spec, entry, action, args);
    entry->priority = priority;
    int64_t result = sw_tuples_add(table, entry, mask);
    if (result == 0)
        result = sw_handle_of(table, sw_number_of(table, entry));
    else
        entry_give_back(table, entry);
    sw_unlock(sw);
    return result;
}

int sw_table_modify(struct sw *sw, uint32_t index, int64_t handle, uint32_t action,
                    const uint64_t *args) {
    struct sw_table *table = table_of(sw, index);
    if (!table) return SW_RANGE;
    struct sw_entry *entry = entry_lock(sw, table, handle, 0);
    if (!entry) return SW_NOT_FOUND;
    set_action(table->spec, entry, action, args);
    sw_unlock(sw);
    return 0;
}

int sw_table_delete(struct sw *sw, uint32_t index, int64_t handle) {
    struct sw_table *table = table_of(sw, index);
    if (!table) return SW_RANGE;
    struct sw_entry *entry = entry_lock(sw, table, handle, 0);
    if (!entry) return SW_NOT_FOUND;
    struct sw_entry_record *record = &table->records[sw_handle_number(handle)];
    record->generation = (record->generation + 1) & 0x7fffffffu;
    sw_tuples_remove(table, entry);
    entry_give_back(table, entry);
    sw_unlock(sw);
    return 0;
}

int sw_table_set_default(struct sw *sw, uint32_t index, uint32_t action, const uint64_t *args) {
    struct sw_table *table = table_of(sw, index);
    if (!table) return SW_RANGE;
    sw_lock_control(sw);
    set_action(table->spec, table->fallback, action, args);
    sw_unlock(sw);
    return 0;
}

int sw_table_counter(struct sw *sw, uint32_t index, int64_t handle, uint64_t *packets,
                     uint64_t *bytes) {
    struct sw_table *table = table_of(sw, index);
    if (!table || !table->spec->counted) return SW_RANGE;
    struct sw_entry *entry = entry_lock(sw, table, handle, 1);
    if (!entry) return SW_NOT_FOUND;
    *packets = counters_of(table->spec, entry)[0];
    *bytes = counters_of(table->spec, entry)[1];
    sw_unlock(sw);
    return 0;
}

int sw_table_set_counter(struct sw *sw, uint32_t index, int64_t handle, uint64_t packets,
                         uint64_t bytes) {
    struct sw_table *table = table_of(sw, index);
    if (!table || !table->spec->counted) return SW_RANGE;
    struct sw_entry *entry = entry_lock(sw, table, handle, 1);
    if (!entry) return SW_NOT_FOUND;
    counters_of(table->spec, entry)[0] = packets;
    counters_of(table->spec, entry)[1] = bytes;
    sw_unlock(sw);
    return 0;
}
