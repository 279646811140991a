// SPDX-License-Identifier: Apache-2.0
//
// Threads that do the parts of a piece of work together with the thread that asks for it.
//
// A pool lives within one call from Python: threads that outlived it would be missing in processes
// that are forked later.

#ifndef RACKHUB_THREAD_POOL_H
#define RACKHUB_THREAD_POOL_H

#include <stdint.h>

struct thread_pool;

// Starts `threads` - 1 threads, or as many as the system allows. NULL: no memory.
struct thread_pool *pool_create(uint64_t threads);
void pool_destroy(struct thread_pool *pool); // or NULL

// Calls work(context, i) for each i below count, in any order and several at once, and returns after
// the last one; what they have written is seen by the caller.
void pool_run(struct thread_pool *pool, void (*work)(void *context, uint64_t i), void *context,
              uint64_t count);

#endif
