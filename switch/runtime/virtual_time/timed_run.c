// SPDX-License-Identifier: Apache-2.0
//
// The order of events of switches in virtual time: see timed_state.h.
//
// Events are taken by time; at one time recirculated packets come first, then arrivals by rank.
// run_all is conservative parallel simulation, from one window to the next: before the end of a
// window no packet that leaves a switch within it reaches another. So their work in a window may be
// done in any order, and by several threads where it is worth their start.

#include "timed_state.h"

#include <stdlib.h>

#include "grow.h"
#include "thread_pool.h"

enum { MANY = 1000 }; // events of a window for which threads begin: some 0.3 ms

static void arrive_by_train(struct timed *timed, struct head *head) {
    struct timed_train *train = head->train;
    uint64_t row = head->row++;
    train->taken = head->row;
    timed_arrive(timed, (uint32_t)train->port, train->times[row], (int64_t)(train->first + row),
                 train->frames + row * train->stored, (uint32_t)train->stored,
                 train->lengths[row]);
    head->at = head->row < train->count ? train->times[head->row] : TIMED_NEVER;
}

static void arrive_by_wire(struct timed *timed, struct head *head) {
    struct wire *wire = head->wire;
    const uint8_t *bytes;
    struct flying one = wire_take(wire, &bytes);
    if (one.at < timed->held && wire->waited++ >= timed_slots(timed, wire->port))
        timed->overflowed++;
    else
        timed_arrive(timed, wire->port, head->at, -1, bytes, one.stored, one.length);
    head->at = timed_when(timed, wire_next(wire));
}

int64_t timed_next(const struct timed *timed) {
    int64_t next = timed_when(timed, rounds_next(&timed->rounds));
    int64_t start = timed_start(timed);
    next = start < next ? start : next;
    for (uint64_t i = 0; i < timed->wire_count; i++) {
        int64_t at = timed_when(timed, wire_next(timed->wires[i]));
        next = at < next ? at : next;
    }
    return next;
}

int64_t timed_first(const struct timed *const *all, uint64_t count) {
    int64_t first = TIMED_NEVER;
    for (uint64_t i = 0; i < count; i++) {
        int64_t next = timed_next(all[i]);
        first = next < first ? next : first;
    }
    return first;
}

// Heads of trains and wires, by rank.
static bool set_heads(struct timed *timed, struct timed_train *trains, uint64_t count) {
    uint64_t total = count + timed->wire_count;
    if (total > timed->heads_room) {
        if (!grow((void **)&timed->heads, sizeof *timed->heads, total))
            return false;
        timed->heads_room = total;
    }
    timed->head_count = total;
    for (uint64_t i = 0, train = 0, wire = 0; i < total; i++) {
        struct wire *by = wire < timed->wire_count ? timed->wires[wire] : NULL;
        if (train < count && (!by || trains[train].rank <= by->rank)) {
            struct timed_train *one = &trains[train++];
            one->taken = 0;
            int64_t at = one->count ? one->times[0] : TIMED_NEVER;
            timed->heads[i] = (struct head){.at = at, .rank = one->rank, .train = one};
        } else {
            int64_t at = timed_when(timed, wire_next(by));
            timed->heads[i] = (struct head){.at = at, .rank = by->rank, .wire = by};
            wire++;
        }
    }
    return true;
}

static struct head *earliest(struct timed *timed) {
    struct head *first = timed->heads;
    for (uint64_t i = 1; i < timed->head_count; i++)
        if (timed->heads[i].at < first->at)
            first = &timed->heads[i];
    return timed->head_count ? first : NULL;
}

static int64_t next_event(struct timed *timed) {
    int64_t again = timed_when(timed, rounds_next(&timed->rounds));
    int64_t start = timed_start(timed);
    struct head *head = earliest(timed);
    again = start < again ? start : again;
    return head && head->at < again ? head->at : again;
}

static void begin(struct timed *timed) {
    for (uint32_t i = 0; i < timed->port_count; i++) {
        struct outlet *outlet = timed->outlets[timed->ports[i]];
        departed_forget(&outlet->departed);
        outlet->occupied = 0;
    }
    timed->again = 0;
    timed->last = -1;
}

static void add_up(const struct timed *timed, struct timed_totals *totals) {
    for (uint32_t i = 0; i < timed->port_count; i++) {
        const struct departed *departed = &timed->outlets[timed->ports[i]]->departed;
        totals->ports += departed->count > 0;
        totals->packets += departed->count;
        totals->bytes += departed_gives(departed) ? 0 : departed->count * departed->most;
    }
}

// Processes the events of one switch before a time.
static void forward(struct timed *timed, int64_t reached) {
    // Packets that other switches sent in the last window.
    for (uint64_t i = 0; i < timed->head_count; i++)
        if (timed->heads[i].wire)
            timed->heads[i].at = timed_when(timed, wire_next(timed->heads[i].wire));
    if (timed->sw)
        timed->call->lock(timed->sw);
    while (!timed->no_memory && timed->again <= MOST_ROUNDS) {
        int64_t again = timed_when(timed, rounds_next(&timed->rounds));
        struct head *head = earliest(timed);
        int64_t until = reached < timed->until ? reached : timed->until;
        timed->events++;
        // As in emulation, recirculated packets precede arrivals.
        if (head && head->at < again) {
            if (head->at >= until)
                break;
            if (head->train)
                arrive_by_train(timed, head);
            else
                arrive_by_wire(timed, head);
        } else if (again < until) {
            timed->again = again == timed->last ? timed->again + 1 : 0;
            timed->last = again;
            timed_recirculate(timed);
        } else {
            break;
        }
    }
    if (timed->again > MOST_ROUNDS)
        timed_drop_rounds(timed);
    timed_settle(timed, reached);
    if (timed->sw)
        timed->call->unlock(timed->sw);
    timed->next = next_event(timed);
}

// Takes what other switches have sent in a window.
static void join_wires(struct timed *timed) {
    for (uint64_t i = 0; i < timed->wire_count; i++) {
        struct wire *wire = timed->wires[i];
        if (!wire->leaving.end)
            continue;
        timed->no_memory |= !wire_join(wire);
        int64_t at = timed_when(timed, wire_next(wire));
        timed->next = at < timed->next ? at : timed->next;
    }
}

struct window {
    struct timed **active;
    int64_t reached;
};

static void forward_part(void *context, uint64_t i) {
    const struct window *window = context;
    forward(window->active[i], window->reached);
}

// Processes the events of a window that `count` switches have. The pool is made when one is needed.
static void run_window(struct window *window, uint64_t count, uint64_t threads,
                       struct thread_pool **pool) {
    uint64_t events = 0; // as many as in the last window of each, presumably
    for (uint64_t i = 0; threads > 1 && count > 1 && i < count; i++)
        events += window->active[i]->events;
    for (uint64_t i = 0; i < count; i++)
        window->active[i]->events = 0;
    if (events >= MANY && !*pool)
        *pool = pool_create(threads);
    if (events >= MANY && *pool)
        pool_run(*pool, forward_part, window, count);
    else
        for (uint64_t i = 0; i < count; i++)
            forward(window->active[i], window->reached);
}

// Advances switches from window to window. active: room for all.
static void run_all(struct timed_part *parts, uint64_t count, struct timed **active,
                    int64_t lookahead, uint64_t threads, int64_t *end) {
    struct thread_pool *pool = NULL;
    struct window window = {.active = active};
    for (;;) {
        int64_t first = TIMED_NEVER, until = *end;
        uint64_t chosen = 0;
        bool failed = false;
        for (uint64_t i = 0; i < count; i++) {
            struct timed *one = parts[i].timed;
            first = one->next < first ? one->next : first;
            failed |= one->no_memory || one->again > MOST_ROUNDS;
        }
        if (failed || first >= until)
            break;
        window.reached = count > 1 && lookahead < until - first ? first + lookahead : until;
        for (uint64_t i = 0; i < count; i++)
            if (parts[i].timed->next < window.reached) {
                active[chosen++] = parts[i].timed;
                parts[i].timed->until = until;
            }
        run_window(&window, chosen, threads, &pool);
        for (uint64_t i = 0; i < chosen; i++)
            *end = active[i]->until < *end ? active[i]->until : *end;
        for (uint64_t i = 0; i < count; i++)
            join_wires(parts[i].timed);
    }
    pool_destroy(pool);
}

int timed_run(struct timed_part *parts, uint64_t count, int64_t lookahead, uint64_t threads,
              int64_t *until) {
    struct timed **active = malloc((count ? count : 1) * sizeof *active);
    if (!active)
        return SW_NO_MEMORY;
    for (uint64_t i = 0; i < count; i++) {
        struct timed_part *part = &parts[i];
        part->totals = (struct timed_totals){0, 0, 0};
        begin(part->timed);
        if (!set_heads(part->timed, part->trains, part->count)) {
            free(active);
            return SW_NO_MEMORY;
        }
        part->timed->next = next_event(part->timed);
        part->timed->events = 0;
    }
    run_all(parts, count, active, lookahead, threads, until);
    free(active);
    for (uint64_t i = 0; i < count; i++) {
        struct timed *timed = parts[i].timed;
        add_up(timed, &parts[i].totals);
        if (timed->no_memory)
            return SW_NO_MEMORY;
        if (timed->prioritised)
            return SW_EXISTS;
        if (timed->again > MOST_ROUNDS)
            return SW_RANGE;
    }
    return 0;
}

void timed_collect(struct timed *timed, const struct timed_departures *into) {
    uint64_t at = 0, kept = 0, ports = 0;
    for (uint32_t i = 0; i < timed->port_count; i++) {
        struct outlet *outlet = timed->outlets[timed->ports[i]];
        struct departed *departed = &outlet->departed;
        if (!departed->count)
            continue;
        departed_copy(departed, into, at);
        bool gives = departed_gives(departed);
        if (!gives) {
            departed_copy_frames(departed, into->bytes + kept);
            kept += departed->count * departed->most;
        }
        into->ports[ports++] = (struct timed_port){
            .port = timed->ports[i],
            .count = departed->count,
            .stored = departed->most,
            .bytes = departed->bytes,
            .wire = outlet->occupied,
            .free = outlet->line.free,
            .given = gives ? departed_give(departed) : NULL,
        };
        at += departed->count;
        departed_spare(departed);
    }
}

void timed_free(uint8_t *given) {
    free(given);
}
