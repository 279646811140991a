// SPDX-License-Identifier: Apache-2.0
//
// A bounded queue of records between two threads. Putting never blocks: a record that does not fit
// is refused and counted.
//
// Records (a header, then the data) lie one after the other in a circular buffer of `capacity`
// bytes, of which `used` bytes from `start` on are filled. All fields are guarded by `lock`.

#ifndef RACKHUB_RECORD_RING_H
#define RACKHUB_RECORD_RING_H

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

// Puts a record unless fewer than `keep_free` bytes would remain for records put with a smaller
// value. True if it was accepted.
bool ring_put(struct ring *ring, uint8_t kind, const void *data, size_t length, size_t keep_free);

// Takes the next record. Waits for one up to timeout_ms (0: not at all; negative: for ever).
// Returns its length (cut to cap), -EAGAIN after the timeout, -EPIPE when the ring is closed and
// empty.
int64_t ring_get(struct ring *ring, uint8_t *kind, void *data, size_t cap, int timeout_ms);

// Closes the ring and wakes its readers; nothing is accepted until ring_reopen.
void ring_close(struct ring *ring);
void ring_reopen(struct ring *ring);

#endif
