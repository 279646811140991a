// SPDX-License-Identifier: Apache-2.0
//
// Grows an array.

#ifndef RACKHUB_GROW_H
#define RACKHUB_GROW_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

// Makes room for `room` items of `size` bytes. false: no memory, and the array is unchanged.
static inline bool grow(void **items, size_t size, uint64_t room) {
    void *more = realloc(*items, size * room);
    if (more)
        *items = more;
    return more;
}

#endif
