// SPDX-License-Identifier: Apache-2.0
//
// Threads that run workers' turns (worker_run()) while the thread that begins them goes on.
//
// Each turn has a place, which the caller chooses. It is run by the first thread that gets to it, in
// the order in which turns begin, or by the one that finishes it, if that is sooner.

#ifndef RACKHUB_BACKGROUND_H
#define RACKHUB_BACKGROUND_H

#include "worker.h"

enum { BACKGROUND_TURNS = 8 }; // places

struct background;

// NULL: no memory. Fewer threads are started where the system allows no more, perhaps none.
struct background *background_create(uint64_t threads);
// Turns that have begun end before, but those that no thread has got to.
void background_destroy(struct background *background); // or NULL

// Begins a turn of one worker in a free place, which is so no more until it is finished; so long all
// memory is the turn's own. One thread begins and finishes turns.
void background_begin(struct background *background, uint64_t place, struct worker *worker,
                      const struct arrivals *arrivals, struct driver *driver,
                      struct departures *out);
// Returns 0 if a thread is running a turn.
int background_ready(const struct background *background, uint64_t place);
// Returns what worker_run() returned, after it has.
int64_t background_finish(struct background *background, uint64_t place);

#endif
