// SPDX-License-Identifier: Apache-2.0
//
// Threads that share parts of work: see thread_pool.h.
//
// Pieces of work follow each other within microseconds, so threads look for the next one for a
// while before they sleep, and the caller for their end.

#include "thread_pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { LOOKS = 2000 }; // before a thread sleeps: some 10 us

struct thread_pool {
    pthread_mutex_t mutex;
    pthread_cond_t begun, done;
    // Of the present piece of work.
    void (*work)(void *context, uint64_t i);
    void *context;
    uint64_t count;
    _Atomic uint64_t next; // part
    _Atomic uint64_t busy; // threads that have not finished it
    _Atomic uint64_t piece; // its number
    bool ends;
    uint64_t threads;
    pthread_t started[];
};

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void do_parts(struct thread_pool *pool) {
    for (uint64_t i; (i = atomic_fetch_add(&pool->next, 1)) < pool->count;)
        pool->work(pool->context, i);
}

static void *run(void *argument) {
    struct thread_pool *pool = argument;
    for (uint64_t seen = 0;;) {
        for (int look = 0; look < LOOKS && atomic_load(&pool->piece) == seen; look++)
            pause_briefly();
        if (atomic_load(&pool->piece) == seen) {
            pthread_mutex_lock(&pool->mutex);
            while (atomic_load(&pool->piece) == seen)
                pthread_cond_wait(&pool->begun, &pool->mutex);
            pthread_mutex_unlock(&pool->mutex);
        }
        seen++; // the caller waits for all threads before the next piece
        if (pool->ends)
            return NULL;
        do_parts(pool);
        if (atomic_fetch_sub(&pool->busy, 1) == 1) {
            pthread_mutex_lock(&pool->mutex);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
}

static void begin(struct thread_pool *pool) {
    atomic_store(&pool->busy, pool->threads);
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->piece, 1);
    pthread_cond_broadcast(&pool->begun);
    pthread_mutex_unlock(&pool->mutex);
}

struct thread_pool *pool_create(uint64_t threads) {
    uint64_t most = threads ? threads - 1 : 0;
    struct thread_pool *pool = calloc(1, sizeof *pool + most * sizeof *pool->started);
    if (!pool)
        return NULL;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->begun, NULL);
    pthread_cond_init(&pool->done, NULL);
    while (pool->threads < most &&
           pthread_create(&pool->started[pool->threads], NULL, run, pool) == 0)
        pool->threads++;
    return pool;
}

void pool_destroy(struct thread_pool *pool) {
    if (!pool)
        return;
    pool->ends = true;
    begin(pool);
    for (uint64_t i = 0; i < pool->threads; i++)
        pthread_join(pool->started[i], NULL);
    pthread_cond_destroy(&pool->begun);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->mutex);
    free(pool);
}

void pool_run(struct thread_pool *pool, void (*work)(void *context, uint64_t i), void *context,
              uint64_t count) {
    pool->work = work;
    pool->context = context;
    pool->count = count;
    atomic_store(&pool->next, 0);
    begin(pool);
    do_parts(pool);
    for (int look = 0; look < LOOKS && atomic_load(&pool->busy); look++)
        pause_briefly();
    if (!atomic_load(&pool->busy))
        return;
    pthread_mutex_lock(&pool->mutex);
    while (atomic_load(&pool->busy))
        pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}
