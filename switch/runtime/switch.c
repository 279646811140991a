// SPDX-License-Identifier: Apache-2.0
//
// One switch: its memory, its lock, and what the control plane reads and writes beside tables.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "flow.h"
#include "program.h"

struct sw_lock {
    pthread_mutex_t mutex;
    atomic_uint waiting; // control calls that want the lock
};

// ---------------------------------------------------------------------------------------------
// Lock

// A thread that moves packets takes the lock again as soon as it has released it, and a mutex
// does not queue: without this, control calls could wait for ever.
void sw_lock(struct sw *sw) {
    while (atomic_load_explicit(&sw->lock->waiting, memory_order_relaxed)) sched_yield();
    pthread_mutex_lock(&sw->lock->mutex);
}

void sw_lock_control(struct sw *sw) {
    atomic_fetch_add(&sw->lock->waiting, 1);
    pthread_mutex_lock(&sw->lock->mutex);
    atomic_fetch_sub(&sw->lock->waiting, 1);
}

void sw_unlock(struct sw *sw) { pthread_mutex_unlock(&sw->lock->mutex); }

// ---------------------------------------------------------------------------------------------
// Memory

static void *map(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static size_t register_bytes(uint32_t array) {
    return program_registers[array].size * program_registers[array].limbs * sizeof(uint64_t);
}

static int allocate(struct sw *sw, uint32_t pool) {
    sw->lock = calloc(1, sizeof *sw->lock);
    sw->tables = calloc(program_table_count + 1, sizeof *sw->tables);
    sw->counters = calloc(program_counter_count + 1, sizeof *sw->counters);
    sw->registers = calloc(program_register_count + 1, sizeof *sw->registers);
    sw->groups = map(SW_GROUPS * sizeof *sw->groups);
    sw->sessions = map(SW_SESSIONS * sizeof *sw->sessions);
    if (!sw->lock || !sw->tables || !sw->counters || !sw->registers || !sw->groups ||
        !sw->sessions || pthread_mutex_init(&sw->lock->mutex, NULL))
        return -1;
    for (uint32_t i = 0; i < program_table_count; i++)
        if (sw_table_start(&sw->tables[i], &program_tables[i])) return -1;
    for (uint32_t i = 0; i < program_counter_count; i++) {
        sw->counters[i] = calloc(program_counter_sizes[i] + 1, sizeof **sw->counters);
        if (!sw->counters[i]) return -1;
    }
    for (uint32_t i = 0; i < program_register_count; i++) {
        sw->registers[i] = map(register_bytes(i) + 1);
        if (!sw->registers[i]) return -1;
    }
    // A packet, its context, its buffer, and an odd number of cache lines, so that equal parts of
    // different packets do not compete for the same lines of the cache.
    size_t head = (sizeof(struct sw_packet) + 63) / 64 * 64;
    size_t context = (program_context_size + 63) / 64 * 64;
    sw->pool_stride = head + context + SW_MAX_FRAME;
    sw->pool_stride += sw->pool_stride / 64 % 2 ? 0 : 64;
    sw->pool_size = pool;
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

void sw_destroy(struct sw *sw) {
    if (!sw) return;
    if (sw->tables)
        for (uint32_t i = 0; i < program_table_count; i++) sw_table_free(&sw->tables[i]);
    if (sw->counters)
        for (uint32_t i = 0; i < program_counter_count; i++) free(sw->counters[i]);
    if (sw->registers)
        for (uint32_t i = 0; i < program_register_count; i++)
            if (sw->registers[i]) munmap(sw->registers[i], register_bytes(i) + 1);
    sw_replicas_free(sw);
    if (sw->groups) munmap(sw->groups, SW_GROUPS * sizeof *sw->groups);
    if (sw->sessions) munmap(sw->sessions, SW_SESSIONS * sizeof *sw->sessions);
    if (sw->pool) munmap(sw->pool, sw->pool_bytes + 1);
    if (sw->lock) pthread_mutex_destroy(&sw->lock->mutex);
    free(sw->lock);
    free(sw->tables);
    free(sw->counters);
    free(sw->registers);
    free(sw);
}

struct sw_packet *sw_packet_take(struct sw *sw) {
    struct sw_packet *packet = sw->free;
    if (packet) {
        sw->free = packet->next;
    } else if (sw->pool_used < sw->pool_size) {
        uint8_t *place = sw->pool + sw->pool_stride * sw->pool_used++;
        size_t head = (sizeof *packet + 63) / 64 * 64;
        packet = (struct sw_packet *)place;
        packet->context = (uint64_t *)(place + head);
        packet->buffer = place + head + (program_context_size + 63) / 64 * 64;
    } else {
        sw->stats.no_buffer++;
        return NULL;
    }
    packet->next = NULL;
    packet->truncate = SW_WHOLE;
    packet->sum_field = SW_COMPLETE;
    packet->payload_length = packet->room = packet->fragile = packet->on_loan = 0;
    return packet;
}

void sw_packet_free(struct sw *sw, struct sw_packet *packet) {
    packet->next = sw->free;
    sw->free = packet;
}

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

void sw_clear(void *at, size_t bytes) { memset(at, 0, bytes); }

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
