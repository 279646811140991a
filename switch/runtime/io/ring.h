// SPDX-License-Identifier: Apache-2.0
//
// A bounded queue of records between two threads. Putting never waits: a record that does not fit
// is refused and counted.

#ifndef RACKHUB_RING_H
#define RACKHUB_RING_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ring {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    uint8_t *bytes;
    size_t capacity, start, used;
    bool closed;
    uint64_t refused;
};

// 0 or -ENOMEM.
int ring_init(struct ring *ring, size_t capacity);
void ring_destroy(struct ring *ring);

// `keep_free` bytes stay for records that are put with a smaller value. True if it was taken.
bool ring_put(struct ring *ring, uint8_t kind, const void *data, size_t length, size_t keep_free);

// Takes the next record. Waits up to timeout_ms for one (0: not at all; negative: as long as it
// takes). Returns its length (cut to cap), -EAGAIN after the timeout, -EPIPE when the ring is
// closed and empty.
int64_t ring_get(struct ring *ring, uint8_t *kind, void *data, size_t cap, int timeout_ms);

// Wakes who waits; nothing more is taken in until ring_reopen.
void ring_close(struct ring *ring);
void ring_reopen(struct ring *ring);

#endif
