// SPDX-License-Identifier: Apache-2.0
//
// The control plane's access to meters and to the times of entries' last hits. Both are arrays by
// index or by entry number; an unconfigured meter is all zero.

#include "meters.h"

#include "program.h"

// rates: cir, cburst, pir, pburst, each below 2^63; NULL: none. Buckets start full.
static void configure(struct sw_meter *meter, const uint64_t *rates) {
    *meter = (struct sw_meter){.configured = rates != NULL};
    if (!rates) return;
    for (int i = 0; i < SW_BUCKETS; i++) {
        const uint64_t *pair = rates + (i == SW_COMMITTED ? 0 : 2);
        meter->rate[i] = pair[0];
        meter->burst[i] = pair[1];
        meter->level[i] = (unsigned __int128)pair[1] * SW_MILLIONTHS;
    }
}

static int rates_of(const struct sw_meter *meter, uint64_t *rates) {
    for (int i = 0; i < SW_BUCKETS; i++) {
        uint64_t *pair = rates + (i == SW_COMMITTED ? 0 : 2);
        pair[0] = meter->rate[i];
        pair[1] = meter->burst[i];
    }
    return meter->configured != 0;
}

int sw_meter_write(struct sw *sw, uint32_t array, uint64_t index, const uint64_t *rates) {
    if (array >= program_meter_count || index >= program_meter_sizes[array]) return SW_RANGE;
    sw_lock_control(sw);
    configure(&sw->meters[array][index], rates);
    sw_unlock(sw);
    return 0;
}

int sw_meter_read(struct sw *sw, uint32_t array, uint64_t index, uint64_t *rates) {
    if (array >= program_meter_count || index >= program_meter_sizes[array]) return SW_RANGE;
    sw_lock_control(sw);
    int result = rates_of(&sw->meters[array][index], rates);
    sw_unlock(sw);
    return result;
}

// ---------------------------------------------------------------------------------------------
// Meters and hits of a table's entries

int sw_table_meter_write(struct sw *sw, uint32_t index, int64_t handle, const uint64_t *rates) {
    if (index >= program_table_count || !sw->tables[index].meters) return SW_RANGE;
    sw_lock_control(sw);
    const struct sw_entry *entry = sw_table_entry(&sw->tables[index], handle);
    if (entry) configure(&sw->tables[index].meters[sw_handle_number(handle)], rates);
    sw_unlock(sw);
    return entry ? 0 : SW_NOT_FOUND;
}

int sw_table_meter_read(struct sw *sw, uint32_t index, int64_t handle, uint64_t *rates) {
    if (index >= program_table_count || !sw->tables[index].meters) return SW_RANGE;
    sw_lock_control(sw);
    const struct sw_entry *entry = sw_table_entry(&sw->tables[index], handle);
    int result = entry ? rates_of(&sw->tables[index].meters[sw_handle_number(handle)], rates)
                       : SW_NOT_FOUND;
    sw_unlock(sw);
    return result;
}

int sw_table_touch(struct sw *sw, uint32_t index, int64_t handle, uint64_t now_us) {
    if (index >= program_table_count || !sw->tables[index].hit_us) return SW_RANGE;
    sw_lock_control(sw);
    const struct sw_entry *entry = sw_table_entry(&sw->tables[index], handle);
    if (entry && sw->tables[index].hit_us[sw_handle_number(handle)] < now_us)
        sw->tables[index].hit_us[sw_handle_number(handle)] = now_us;
    sw_unlock(sw);
    return entry ? 0 : SW_NOT_FOUND;
}

int sw_table_hits(struct sw *sw, uint32_t index, size_t count, const int64_t *handles,
                  uint64_t *hit_us) {
    if (index >= program_table_count || !sw->tables[index].hit_us) return SW_RANGE;
    sw_lock_control(sw);
    for (size_t i = 0; i < count; i++) {
        const struct sw_entry *entry = sw_table_entry(&sw->tables[index], handles[i]);
        hit_us[i] = entry ? sw->tables[index].hit_us[sw_handle_number(handles[i])] : UINT64_MAX;
    }
    sw_unlock(sw);
    return 0;
}
