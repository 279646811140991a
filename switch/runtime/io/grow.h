// SPDX-License-Identifier: Apache-2.0
//
// An array that gets more room.

#ifndef RACKHUB_GROW_H
#define RACKHUB_GROW_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

// Room for `room` items of `size` bytes. false: no memory, and the array is as it was.
static inline bool grow(void **items, size_t size, uint64_t room) {
    void *more = realloc(*items, size * room);
    if (more)
        *items = more;
    return more;
}

#endif
