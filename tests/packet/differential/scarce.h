// SPDX-License-Identifier: Apache-2.0
//
// Failing allocation, included before the switch's sources by test_no_memory.py.

#ifndef RACKHUB_SCARCE_H
#define RACKHUB_SCARCE_H

#include <stdlib.h>

__attribute__((weak)) long allocations_left; // allocations until one fails; 0: none fails

static inline int scarce(void) { return allocations_left && --allocations_left == 0; }

static inline void *scarce_malloc(size_t size) { return scarce() ? NULL : malloc(size); }
static inline void *scarce_calloc(size_t count, size_t size) {
    return scarce() ? NULL : calloc(count, size);
}
static inline void *scarce_realloc(void *old, size_t size) {
    return scarce() ? NULL : realloc(old, size);
}
static inline void *scarce_aligned_alloc(size_t alignment, size_t size) {
    return scarce() ? NULL : aligned_alloc(alignment, size);
}

#define malloc scarce_malloc
#define calloc scarce_calloc
#define realloc scarce_realloc
#define aligned_alloc scarce_aligned_alloc

#endif
