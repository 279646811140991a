// SPDX-License-Identifier: Apache-2.0
//
// One switch: its memory, its lock, and what the control plane accesses beside tables.
//
// Memory is allocated once, in sw_create; large arrays are mapped without reserve, so that pages
// cost nothing until they are written. The packet pool is one mapping of pool_size packets, each of
// header, context and buffer; packets are taken from it in order (sw_packet_new) and return to a
// free list. The lock prefers control calls: the data plane yields while one waits.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "packets.h"
#include "program.h"
#include "trace.h"

struct sw_lock {
    pthread_mutex_t mutex;
    atomic_uint waiting; // control calls that wait for the lock
};

// ---------------------------------------------------------------------------------------------
// Lock

// A thread that moves packets takes the lock again as soon as it has released it, and a mutex does
// not queue: without this, control calls could starve.
void sw_lock(struct sw *sw) {
    while (atomic_load_explicit(&sw->lock->waiting, memory_order_relaxed)) sched_yield();
    pthread_mutex_lock(&sw->lock->mutex);
}

void sw_lock_control(struct sw *sw) {
    atomic_fetch_add(&sw->lock->waiting, 1);
    pthread_mutex_lock(&sw->lock->mutex);
    atomic_fetch_sub(&sw->lock->waiting, 1);
    sw->epoch++;
}

void sw_unlock(struct sw *sw) { pthread_mutex_unlock(&sw->lock->mutex); }

// ---------------------------------------------------------------------------------------------
// Memory

static void *map(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static size_t entries_of(const struct sw_table_spec *spec) {
    return (size_t)spec->max_size + 1; // one more for the attempt to insert into a full table
}

// Maps what some tables have for each entry.
static int allocate_per_entry(struct sw_table *table) {
    if (table->spec->metered) {
        table->meters = map(entries_of(table->spec) * sizeof *table->meters);
        if (!table->meters) return -1;
    }
    if (table->spec->ages) {
        table->hit_us = map(entries_of(table->spec) * sizeof *table->hit_us);
        if (!table->hit_us) return -1;
    }
    return 0;
}

static void free_per_entry(struct sw_table *table) {
    if (table->meters) munmap(table->meters, entries_of(table->spec) * sizeof *table->meters);
    if (table->hit_us) munmap(table->hit_us, entries_of(table->spec) * sizeof *table->hit_us);
}

static size_t register_bytes(uint32_t array) {
    return (program_registers[array].size + 1) * program_registers[array].limbs * sizeof(uint64_t);
}

static int allocate(struct sw *sw, uint32_t pool) {
    sw->lock = calloc(1, sizeof *sw->lock);
    sw->tables = calloc(program_table_count + 1, sizeof *sw->tables);
    sw->profiles = calloc(program_profile_count + 1, sizeof *sw->profiles);
    sw->crcs = calloc(program_crc_count + 1, sizeof *sw->crcs);
    sw->counters = calloc(program_counter_count + 1, sizeof *sw->counters);
    sw->registers = calloc(program_register_count + 1, sizeof *sw->registers);
    sw->lasts = calloc(1, program_lasts_size);
    sw->epoch = 1;
    sw->groups = map(SW_GROUPS * sizeof *sw->groups);
    sw->sessions = map(SW_SESSIONS * sizeof *sw->sessions);
    sw->meters = calloc(program_meter_count + 1, sizeof *sw->meters);
    sw->notice = -1;
    if (!sw->lock || !sw->tables || !sw->profiles || !sw->counters || !sw->registers ||
        !sw->groups || !sw->sessions || !sw->meters || !sw->lasts || !sw->crcs ||
        pthread_mutex_init(&sw->lock->mutex, NULL))
        return -1;
    for (uint32_t i = 0; i < program_table_count; i++)
        if (sw_table_start(&sw->tables[i], &program_tables[i]) ||
            allocate_per_entry(&sw->tables[i]))
            return -1;
    // BMv2's defaults: CRC-16/ARC, CRC-32.
    for (uint32_t i = 0; i < program_crc_count; i++) {
        if (program_crc_widths[i] == 16)
            hash_crc_set(&sw->crcs[i], 16, 0x8005, 0, 0, 1, 1);
        else
            hash_crc_set(&sw->crcs[i], 32, 0x04c11db7, UINT32_MAX, UINT32_MAX, 1, 1);
    }
    for (uint32_t i = 0; i < program_counter_count; i++) {
        sw->counters[i] = calloc(program_counter_sizes[i] + 1, sizeof **sw->counters);
        if (!sw->counters[i]) return -1;
    }
    for (uint32_t i = 0; i < program_register_count; i++) {
        sw->registers[i] = map(register_bytes(i) + 1);
        if (!sw->registers[i]) return -1;
    }
    for (uint32_t i = 0; i < program_meter_count; i++) {
        sw->meters[i] = map(program_meter_sizes[i] * sizeof **sw->meters + 1);
        if (!sw->meters[i]) return -1;
    }
    if (sw_digests_start(sw)) return -1;
    // A packet, its context, its buffer, in an odd number of cache lines: equal parts of different
    // packets then do not compete for the same cache sets.
    size_t head = (sizeof(struct sw_packet) + 63) / 64 * 64;
    size_t context = (program_context_size + 63) / 64 * 64;
    sw->pool_stride = head + context + SW_MAX_FRAME;
    sw->pool_stride += sw->pool_stride / 64 % 2 ? 0 : 64;
    sw->pool_size = pool;
    sw->priority_queues = 1;
    sw->ahead = 1;
    sw->pool_bytes = sw->pool_stride * pool;
    sw->pool = map(sw->pool_bytes + 1);
    return sw->pool ? 0 : -1;
}

struct sw *sw_create(uint32_t pool) {
    struct sw *sw = calloc(1, sizeof *sw);
    if (sw && allocate(sw, pool)) {
        sw_destroy(sw);
        errno = ENOMEM;
        return NULL;
    }
    return sw;
}

int sw_set_priority_queues(struct sw *sw, uint32_t count) {
    if (count < 1 || count > SW_PRIORITIES) return SW_RANGE;
    sw_lock_control(sw);
    sw->priority_queues = count;
    sw_unlock(sw);
    return 0;
}

void sw_destroy(struct sw *sw) {
    if (!sw) return;
    if (sw->tables)
        for (uint32_t i = 0; i < program_table_count; i++) {
            if (sw->tables[i].spec) free_per_entry(&sw->tables[i]);
            sw_table_free(&sw->tables[i]);
        }
    if (sw->counters)
        for (uint32_t i = 0; i < program_counter_count; i++) free(sw->counters[i]);
    if (sw->registers)
        for (uint32_t i = 0; i < program_register_count; i++)
            if (sw->registers[i]) munmap(sw->registers[i], register_bytes(i) + 1);
    sw_profiles_free(sw);
    if (sw->meters)
        for (uint32_t i = 0; i < program_meter_count; i++)
            if (sw->meters[i])
                munmap(sw->meters[i], program_meter_sizes[i] * sizeof **sw->meters + 1);
    sw_digests_free(sw);
    sw_replicas_free(sw);
    if (sw->groups) munmap(sw->groups, SW_GROUPS * sizeof *sw->groups);
    if (sw->sessions) munmap(sw->sessions, SW_SESSIONS * sizeof *sw->sessions);
    if (sw->pool) munmap(sw->pool, sw->pool_bytes + 1);
    if (sw->lock) pthread_mutex_destroy(&sw->lock->mutex);
    free(sw->lock);
    free(sw->tables);
    free(sw->crcs);
    free(sw->counters);
    free(sw->registers);
    free(sw->meters);
    free(sw->lasts);
    sw_trace_free(sw);
    free(sw);
}

struct sw_packet *sw_packet_new(struct sw *sw) {
    if (sw->pool_used == sw->pool_size) {
        sw->stats.no_buffer++;
        return NULL;
    }
    uint8_t *place = sw->pool + sw->pool_stride * sw->pool_used++;
    struct sw_packet *packet = (struct sw_packet *)place;
    size_t head = (sizeof *packet + 63) / 64 * 64;
    packet->context = (uint64_t *)(place + head);
    packet->buffer = place + head + (program_context_size + 63) / 64 * 64;
    return packet;
}

void sw_packet_free(struct sw *sw, struct sw_packet *packet) {
#ifdef SW_TRACE
    if (!packet->trace_over)
        sw_trace_tell(sw, packet, "is dropped: port %u does not exist, or its queue is full",
                      packet->port);
#endif
    sw_packet_release(sw, packet);
}

const struct sw_functions sw_functions = {
    .set_traffic_manager = sw_set_traffic_manager,
    .lock = sw_lock,
    .unlock = sw_unlock,
    .receive = sw_receive,
    .send = sw_send,
    .packet_keep = sw_packet_keep,
    .recirculate = sw_recirculate,
    .take_round = sw_take_round,
    .round = sw_round,
    .packet_free = sw_packet_free,
};

// ---------------------------------------------------------------------------------------------
// Control plane

void sw_set_traffic_manager(struct sw *sw, sw_enqueue_fn enqueue, void *tm) {
    sw_lock_control(sw);
    sw->enqueue = enqueue;
    sw->tm = tm;
    sw_unlock(sw);
}

void sw_set_log(struct sw *sw, sw_log_fn log, void *user) {
    sw_lock_control(sw);
    sw->log = log;
    sw->log_user = user;
    sw_unlock(sw);
}

void sw_get_stats(struct sw *sw, struct sw_stats *stats) {
    sw_lock_control(sw);
    *stats = sw->stats;
    sw_unlock(sw);
}

int sw_crc_set(struct sw *sw, uint32_t index, uint32_t poly, uint32_t init, uint32_t xor_out,
               int reflect_in, int reflect_out) {
    if (index >= program_crc_count) return SW_RANGE;
    sw_lock_control(sw);
    hash_crc_set(&sw->crcs[index], program_crc_widths[index], poly, init, xor_out, reflect_in,
                 reflect_out);
    sw_unlock(sw);
    return 0;
}

int sw_counter_read(struct sw *sw, uint32_t array, uint64_t index, uint64_t *packets,
                    uint64_t *bytes) {
    if (array >= program_counter_count || index >= program_counter_sizes[array]) return SW_RANGE;
    sw_lock_control(sw);
    *packets = sw->counters[array][index].packets;
    *bytes = sw->counters[array][index].bytes;
    sw_unlock(sw);
    return 0;
}

int sw_counter_write(struct sw *sw, uint32_t array, uint64_t index, uint64_t packets,
                     uint64_t bytes) {
    if (array >= program_counter_count || index >= program_counter_sizes[array]) return SW_RANGE;
    sw_lock_control(sw);
    sw->counters[array][index] = (struct sw_counter){packets, bytes};
    sw_unlock(sw);
    return 0;
}

int sw_register_read(struct sw *sw, uint32_t array, uint64_t index, uint64_t *value) {
    if (array >= program_register_count || index >= program_registers[array].size)
        return SW_RANGE;
    size_t limbs = program_registers[array].limbs;
    sw_lock_control(sw);
    memcpy(value, sw->registers[array] + index * limbs, limbs * sizeof *value);
    sw_unlock(sw);
    return 0;
}

int sw_register_write(struct sw *sw, uint32_t array, uint64_t index, const uint64_t *value) {
    if (array >= program_register_count || index >= program_registers[array].size)
        return SW_RANGE;
    size_t limbs = program_registers[array].limbs;
    sw_lock_control(sw);
    memcpy(sw->registers[array] + index * limbs, value, limbs * sizeof *value);
    sw_unlock(sw);
    return 0;
}

// ---------------------------------------------------------------------------------------------
// For the program: random numbers and messages

uint64_t *sw_beyond(struct sw *sw, uint32_t array, uint32_t statements) {
    sw->stats.out_of_range += statements;
    size_t limbs = program_registers[array].limbs;
    return memset(sw->registers[array] + program_registers[array].size * limbs, 0, 8 * limbs);
}

// splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t sw_random(struct sw *sw, uint64_t low, uint64_t high) {
    uint64_t value = sw->random += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    value ^= value >> 31;
    unsigned __int128 span = (unsigned __int128)high - low + 1;
    return low + (uint64_t)(value * span >> 64);
}

void sw_log_message(struct sw *sw, const char *format, const struct sw_argument *arguments,
                    int count) {
    char text[2048];
    size_t length = 0;
    int next = 0;
    if (!sw->log) return;
    for (const char *at = format; *at && length < sizeof text - 1; at++) {
        if (*at == '\\' && (at[1] == '{' || at[1] == '}')) {
            text[length++] = *++at;
        } else if (*at == '{' && next < count) {
            const struct sw_argument *one = &arguments[next++];
            length += (size_t)wide_format(text + length, (int)(sizeof text - length), one->limbs,
                                          one->count, one->is_signed);
            while (at[1] && *at != '}') at++;
        } else {
            text[length++] = *at;
        }
    }
    text[length] = 0;
    sw->log(sw->log_user, text);
}
