// SPDX-License-Identifier: Apache-2.0
//
// A bounded queue of records between two threads: see record_ring.h.

#define _GNU_SOURCE
#include "record_ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct record {
    uint32_t length;
    uint8_t kind;
};

int ring_init(struct ring *ring, size_t capacity) {
    memset(ring, 0, sizeof *ring);
    ring->bytes = malloc(capacity);
    if (!ring->bytes)
        return -ENOMEM;
    ring->capacity = capacity;
    pthread_mutex_init(&ring->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&ring->filled, &attributes);
    pthread_condattr_destroy(&attributes);
    return 0;
}

void ring_destroy(struct ring *ring) {
    if (!ring->bytes)
        return;
    pthread_cond_destroy(&ring->filled);
    pthread_mutex_destroy(&ring->lock);
    free(ring->bytes);
    ring->bytes = NULL;
}

static void copy_in(struct ring *ring, const void *data, size_t length) {
    size_t at = (ring->start + ring->used) % ring->capacity;
    size_t first = length < ring->capacity - at ? length : ring->capacity - at;
    memcpy(ring->bytes + at, data, first);
    memcpy(ring->bytes, (const uint8_t *)data + first, length - first);
    ring->used += length;
}

static void copy_out(struct ring *ring, void *data, size_t length, size_t kept) {
    size_t first = kept < ring->capacity - ring->start ? kept : ring->capacity - ring->start;
    memcpy(data, ring->bytes + ring->start, first);
    memcpy((uint8_t *)data + first, ring->bytes, kept - first);
    ring->start = (ring->start + length) % ring->capacity;
    ring->used -= length;
}

bool ring_put(struct ring *ring, uint8_t kind, const void *data, size_t length, size_t keep_free) {
    struct record record = {(uint32_t)length, kind};
    pthread_mutex_lock(&ring->lock);
    bool fits = !ring->closed &&
                ring->used + sizeof record + length + keep_free <= ring->capacity;
    if (fits) {
        copy_in(ring, &record, sizeof record);
        copy_in(ring, data, length);
        pthread_cond_signal(&ring->filled);
    } else {
        ring->refused++;
    }
    pthread_mutex_unlock(&ring->lock);
    return fits;
}

int64_t ring_get(struct ring *ring, uint8_t *kind, void *data, size_t cap, int timeout_ms) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    int64_t result = -EAGAIN;
    pthread_mutex_lock(&ring->lock);
    int waited = 0;
    while (!ring->used && !ring->closed && timeout_ms && !waited)
        waited = timeout_ms < 0 ? pthread_cond_wait(&ring->filled, &ring->lock)
                                : pthread_cond_timedwait(&ring->filled, &ring->lock, &until);
    if (ring->used) {
        struct record record;
        copy_out(ring, &record, sizeof record, sizeof record);
        result = record.length < cap ? record.length : (int64_t)cap;
        copy_out(ring, data, record.length, (size_t)result);
        *kind = record.kind;
    } else if (ring->closed) {
        result = -EPIPE;
    }
    pthread_mutex_unlock(&ring->lock);
    return result;
}

void ring_close(struct ring *ring) {
    pthread_mutex_lock(&ring->lock);
    ring->closed = true;
    pthread_cond_broadcast(&ring->filled);
    pthread_mutex_unlock(&ring->lock);
}

void ring_reopen(struct ring *ring) {
    pthread_mutex_lock(&ring->lock);
    ring->closed = false;
    ring->start = ring->used = 0;
    pthread_mutex_unlock(&ring->lock);
}
