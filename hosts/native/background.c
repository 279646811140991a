// SPDX-License-Identifier: Apache-2.0
// Runs workers' turns in threads: see background.h.

#include "background.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { LOOKS = 2000 }; // before a thread sleeps: some 10 us

enum state { FREE, BEGUN, RUNNING, ENDED };

struct turn {
    _Atomic int state;
    struct worker *worker;
    const struct arrivals *arrivals;
    struct driver *driver;
    struct departures *out;
    int64_t taken;
};

struct background {
    struct turn turns[BACKGROUND_TURNS];
    // Places in the order in which turns began in them; the number of these; the next for a thread.
    // A place that is read too late is one of a later turn, whose thread then finds it running, or
    // none.
    _Atomic uint64_t order[BACKGROUND_TURNS];
    _Atomic uint64_t begun, next;
    _Atomic uint64_t sleeping, awaited;
    _Atomic bool ends;
    pthread_mutex_t mutex;
    pthread_cond_t more, ended;
    uint64_t threads;
    pthread_t started[];
};

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

// Runs a turn unless another thread does or has.
static void run_turn(struct turn *turn) {
    int begun = BEGUN;
    if (!atomic_compare_exchange_strong(&turn->state, &begun, RUNNING))
        return;
    turn->taken = worker_run(turn->worker, turn->arrivals, turn->driver, turn->out);
    atomic_store(&turn->state, ENDED);
}

static bool has_more(struct background *b) {
    return atomic_load(&b->next) < atomic_load(&b->begun);
}

static void wait_for_more(struct background *b) {
    for (int look = 0; look < LOOKS; look++) {
        if (has_more(b) || atomic_load(&b->ends))
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&b->mutex);
    atomic_fetch_add(&b->sleeping, 1);
    while (!has_more(b) && !atomic_load(&b->ends))
        pthread_cond_wait(&b->more, &b->mutex);
    atomic_fetch_sub(&b->sleeping, 1);
    pthread_mutex_unlock(&b->mutex);
}

static void *run(void *argument) {
    struct background *b = argument;
    while (!atomic_load(&b->ends)) {
        uint64_t number = atomic_load(&b->next);
        if (number >= atomic_load(&b->begun)) {
            wait_for_more(b);
            continue;
        }
        if (!atomic_compare_exchange_strong(&b->next, &number, number + 1))
            continue;
        run_turn(&b->turns[atomic_load(&b->order[number % BACKGROUND_TURNS])]);
        if (atomic_load(&b->awaited)) {
            pthread_mutex_lock(&b->mutex);
            pthread_cond_signal(&b->ended);
            pthread_mutex_unlock(&b->mutex);
        }
    }
    return NULL;
}

struct background *background_create(uint64_t threads) {
    struct background *b = calloc(1, sizeof *b + threads * sizeof *b->started);
    if (!b)
        return NULL;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->more, NULL);
    pthread_cond_init(&b->ended, NULL);
    while (b->threads < threads && !pthread_create(&b->started[b->threads], NULL, run, b))
        b->threads++;
    return b;
}

void background_destroy(struct background *b) {
    if (!b)
        return;
    pthread_mutex_lock(&b->mutex);
    atomic_store(&b->ends, true);
    pthread_cond_broadcast(&b->more);
    pthread_mutex_unlock(&b->mutex);
    for (uint64_t i = 0; i < b->threads; i++)
        pthread_join(b->started[i], NULL);
    pthread_cond_destroy(&b->ended);
    pthread_cond_destroy(&b->more);
    pthread_mutex_destroy(&b->mutex);
    free(b);
}

void background_begin(struct background *b, uint64_t place, struct worker *worker,
                      const struct arrivals *arrivals, struct driver *driver,
                      struct departures *out) {
    uint64_t number = atomic_load(&b->begun);
    struct turn *turn = &b->turns[place];
    turn->worker = worker;
    turn->arrivals = arrivals;
    turn->driver = driver;
    turn->out = out;
    atomic_store(&turn->state, BEGUN);
    atomic_store(&b->order[number % BACKGROUND_TURNS], place);
    atomic_store(&b->begun, number + 1);
    if (atomic_load(&b->sleeping)) {
        pthread_mutex_lock(&b->mutex);
        pthread_cond_signal(&b->more);
        pthread_mutex_unlock(&b->mutex);
    }
}

int background_ready(const struct background *b, uint64_t place) {
    return atomic_load(&b->turns[place].state) != RUNNING;
}

int64_t background_finish(struct background *b, uint64_t place) {
    struct turn *turn = &b->turns[place];
    run_turn(turn);
    for (int look = 0; look < LOOKS && atomic_load(&turn->state) != ENDED; look++)
        pause_briefly();
    if (atomic_load(&turn->state) != ENDED) {
        pthread_mutex_lock(&b->mutex);
        atomic_store(&b->awaited, 1);
        while (atomic_load(&turn->state) != ENDED)
            pthread_cond_wait(&b->ended, &b->mutex);
        atomic_store(&b->awaited, 0);
        pthread_mutex_unlock(&b->mutex);
    }
    atomic_store(&turn->state, FREE);
    return turn->taken;
}

// Checked by hosts/net/background.py.
const int64_t background_turns = BACKGROUND_TURNS;
