// SPDX-License-Identifier: Apache-2.0
#include "timed.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "rounds.h"

enum {
    MOST_ROUNDS = 65536, // without time passing
    FIRST_ROOM = 64,     // packets
    PICOS = 1000000,     // of a microsecond
};

// A port: its line, and what left it in this call.
struct outlet {
    struct line line;
    bool unqueued;
    uint64_t count, room;
    int64_t *ends, *lengths, *inputs;
    uint32_t *stored;
    uint8_t *priorities, *frames;
    uint64_t kept, frames_room;
    uint32_t most, least; // bytes stored of a frame
    uint64_t bytes, wire;
};

struct head;

struct timed {
    struct timed_program program;
    uint64_t latency;
    struct outlet *outlets[SW_PORTS];
    uint32_t ports[SW_PORTS], port_count; // that have one, in order
    uint64_t no_port, no_program;
    struct sw_packet *head, *tail; // between ingress and egress
    struct rounds rounds;
    struct head *heads;
    uint64_t heads_room;
    bool no_memory, prioritised;
    // The packet in hand.
    int64_t now;
    int64_t input;
    uint32_t frame_stored;
    uint32_t frame_used; // bytes behind it are zero
    uint8_t frame[SW_MAX_FRAME];
};

// ---------------------------------------------------------------------------------------------
// Memory

static bool grow(void **items, size_t size, uint64_t room) {
    void *more = realloc(*items, size * room);
    if (more)
        *items = more;
    return more;
}

static bool make_room(struct outlet *outlet) {
    if (outlet->count == outlet->room) {
        uint64_t room = outlet->room ? 2 * outlet->room : FIRST_ROOM;
        if (!grow((void **)&outlet->ends, sizeof *outlet->ends, room) ||
            !grow((void **)&outlet->lengths, sizeof *outlet->lengths, room) ||
            !grow((void **)&outlet->inputs, sizeof *outlet->inputs, room) ||
            !grow((void **)&outlet->stored, sizeof *outlet->stored, room) ||
            !grow((void **)&outlet->priorities, sizeof *outlet->priorities, room))
            return false;
        outlet->room = room;
    }
    if (outlet->kept + SW_MAX_FRAME > outlet->frames_room) {
        uint64_t room = 2 * outlet->frames_room + SW_MAX_FRAME;
        if (!grow((void **)&outlet->frames, 1, room))
            return false;
        outlet->frames_room = room;
    }
    return true;
}

struct timed *timed_create(uint64_t latency) {
    struct timed *timed = calloc(1, sizeof *timed);
    if (timed)
        timed->latency = latency;
    return timed;
}

static void forget_rounds(struct timed *timed) {
    while (timed->rounds.count)
        timed->program.packet_free(timed->program.sw, rounds_pop(&timed->rounds).packet);
}

// The traffic manager's enqueue: what ingress lets go waits until the call returns.
static void enqueue(void *context, struct sw_packet *packet, uint64_t now_us) {
    struct timed *timed = context;
    (void)now_us;
    packet->next = NULL;
    if (timed->tail)
        timed->tail->next = packet;
    else
        timed->head = packet;
    timed->tail = packet;
}

void timed_attach(struct timed *timed, const struct timed_program *program) {
    struct timed_program *own = &timed->program;
    if (own->sw) {
        own->lock(own->sw);
        forget_rounds(timed);
        own->unlock(own->sw);
        own->set_traffic_manager(own->sw, NULL, NULL);
    }
    memset(own, 0, sizeof *own);
    if (program) {
        *own = *program;
        own->set_traffic_manager(own->sw, enqueue, timed);
    }
}

void timed_destroy(struct timed *timed) {
    if (!timed)
        return;
    timed_attach(timed, NULL);
    for (uint32_t i = 0; i < timed->port_count; i++) {
        struct outlet *outlet = timed->outlets[timed->ports[i]];
        line_clear(&outlet->line);
        free(outlet->ends);
        free(outlet->lengths);
        free(outlet->inputs);
        free(outlet->stored);
        free(outlet->priorities);
        free(outlet->frames);
        free(outlet);
    }
    free(timed->heads);
    rounds_clear(&timed->rounds);
    free(timed);
}

int timed_line(struct timed *timed, uint32_t port, const struct line_options *options,
               int unqueued) {
    if (port >= SW_DROP_PORT || options->whole == 0)
        return SW_RANGE;
    if (timed->outlets[port])
        return SW_EXISTS;
    struct outlet *outlet = calloc(1, sizeof *outlet);
    if (!outlet)
        return SW_NO_MEMORY;
    line_init(&outlet->line, options);
    outlet->unqueued = unqueued;
    timed->outlets[port] = outlet;
    uint32_t at = timed->port_count++;
    for (; at > 0 && timed->ports[at - 1] > port; at--)
        timed->ports[at] = timed->ports[at - 1];
    timed->ports[at] = port;
    return 0;
}

// ---------------------------------------------------------------------------------------------
// What goes round

static void collect_rounds(struct timed *timed, int64_t at) {
    struct sw_packet *packet;
    while ((packet = timed->program.take_round(timed->program.sw)))
        if (!rounds_push(&timed->rounds, packet, at)) {
            timed->no_memory = true;
            timed->program.packet_free(timed->program.sw, packet);
        }
}

// ---------------------------------------------------------------------------------------------
// Out

// Whether the packet may leave, and from when on.
static bool queued(struct timed *timed, struct outlet *outlet, struct sw_packet *packet,
                   int64_t *start) {
    struct line *line = &outlet->line;
    int64_t at = timed->now + (int64_t)timed->latency;
    packet->enq_us = (uint64_t)at / PICOS;
    packet->enq_qdepth = packet->deq_qdepth = 0;
    *start = at;
    if (outlet->unqueued)
        return true;
    timed->prioritised |= packet->priority != 0;
    int taken = line_wait(line, at, packet->length, start);
    if (taken > 0)
        packet->enq_qdepth = line->count - (*start > at);
    timed->no_memory |= taken < 0;
    return taken > 0;
}

// Copies what exists of the packet behind its first bytes; returns how much of it is stored.
static size_t gather(const struct timed *timed, uint8_t *out, size_t length,
                     const struct sw_leaving *leaving) {
    if (!leaving->payload)
        return length;
    const uint8_t *end = timed->frame + timed->frame_stored;
    size_t head = length - leaving->payload_length, rest = leaving->payload_length;
    size_t kept = end > leaving->payload ? (size_t)(end - leaving->payload) : 0;
    rest = rest < kept ? rest : kept;
    memcpy(out + head, leaving->payload, rest);
    return head + rest;
}

static void leave(struct timed *timed, struct sw_packet *packet) {
    const struct timed_program *program = &timed->program;
    struct outlet *outlet = packet->port < SW_PORTS ? timed->outlets[packet->port] : NULL;
    int64_t start;
    timed->no_port += !outlet;
    if (outlet && !make_room(outlet))
        timed->no_memory = true;
    if (!outlet || timed->no_memory || !queued(timed, outlet, packet, &start)) {
        program->packet_free(program->sw, packet);
        return;
    }
    uint8_t priority = (uint8_t)packet->priority, *out = outlet->frames + outlet->kept;
    struct sw_leaving leaving;
    size_t length = program->send(program->sw, packet, (uint64_t)start / PICOS, out, SW_MAX_FRAME,
                                  &leaving);
    collect_rounds(timed, start);
    if (!length)
        return;
    if (length > outlet->line.options.longest) {
        outlet->line.counters.oversized++;
        return;
    }
    uint32_t stored = (uint32_t)gather(timed, out, length, &leaving);
    if (outlet->unqueued)
        outlet->line.free = start;
    else
        outlet->wire += line_occupy(&outlet->line, length);
    uint64_t n = outlet->count++;
    outlet->ends[n] = outlet->line.free;
    outlet->inputs[n] = timed->input;
    outlet->lengths[n] = (int64_t)length;
    outlet->priorities[n] = priority;
    outlet->stored[n] = stored;
    outlet->most = stored > outlet->most ? stored : outlet->most;
    outlet->least = stored < outlet->least ? stored : outlet->least;
    outlet->kept += stored;
    outlet->bytes += length;
}

static void drain(struct timed *timed) {
    struct sw_packet *packet;
    while ((packet = timed->head)) {
        timed->head = packet->next;
        if (!timed->head)
            timed->tail = NULL;
        leave(timed, packet);
    }
}

// ---------------------------------------------------------------------------------------------
// In

// In memory that the program may write to: what it sends on then refers to the frame, however many
// copies it makes. Behind what is stored are zeros.
static void bring_in(struct timed *timed, const uint8_t *bytes, uint32_t stored, uint32_t length) {
    memcpy(timed->frame, bytes, stored);
    if (timed->frame_used < stored)
        timed->frame_used = stored;
    if (length > stored && timed->frame_used > stored) {
        memset(timed->frame + stored, 0, timed->frame_used - stored);
        timed->frame_used = stored;
    }
    timed->frame_stored = stored;
}

static void arrive(struct timed *timed, const struct timed_train *train, uint64_t row) {
    const struct timed_program *program = &timed->program;
    struct sw_frame frame = {
        .bytes = timed->frame,
        .length = (uint32_t)train->lengths[row],
        .sum_field = SW_COMPLETE,
        .lasting = 1,
        .writable = 1,
    };
    uint32_t stored = (uint32_t)train->stored;
    if (frame.length <= SW_MAX_FRAME) // else it is dropped and counted, unseen
        bring_in(timed, train->frames + row * train->stored,
                 stored < frame.length ? stored : frame.length, frame.length);
    timed->now = train->times[row];
    timed->input = (int64_t)(train->first + row);
    program->receive(program->sw, (uint32_t)train->port, &frame, (uint64_t)timed->now / PICOS);
    collect_rounds(timed, timed->now);
    drain(timed);
}

static void come_round(struct timed *timed) {
    struct rounding one = rounds_pop(&timed->rounds);
    timed->now = one.at;
    timed->input = -1;
    timed->frame_stored = 0;
    timed->program.round(timed->program.sw, one.packet, (uint64_t)one.at / PICOS);
    collect_rounds(timed, one.at);
    drain(timed);
}

int64_t timed_next(const struct timed *timed) {
    return rounds_next(&timed->rounds);
}

// The next packet of each train: its time, TIMED_NEVER behind the last.
struct head {
    int64_t at;
    uint64_t row;
};

static struct head *first_heads(struct timed *timed, const struct timed_train *trains,
                                uint64_t count) {
    if (count > timed->heads_room) {
        if (!grow((void **)&timed->heads, sizeof *timed->heads, count))
            return NULL;
        timed->heads_room = count;
    }
    for (uint64_t i = 0; i < count; i++)
        timed->heads[i] = (struct head){trains[i].count ? trains[i].times[0] : TIMED_NEVER, 0};
    return timed->heads;
}

static uint64_t earliest(const struct head *heads, uint64_t count) {
    uint64_t first = 0;
    for (uint64_t i = 1; i < count; i++)
        if (heads[i].at < heads[first].at)
            first = i;
    return first;
}

static void begin(struct timed *timed) {
    for (uint32_t i = 0; i < timed->port_count; i++) {
        struct outlet *outlet = timed->outlets[timed->ports[i]];
        outlet->count = outlet->kept = outlet->bytes = outlet->wire = 0;
        outlet->most = 0;
        outlet->least = UINT32_MAX;
    }
}

static void add_up(const struct timed *timed, struct timed_totals *totals) {
    *totals = (struct timed_totals){0, 0, 0};
    for (uint32_t i = 0; i < timed->port_count; i++) {
        const struct outlet *outlet = timed->outlets[timed->ports[i]];
        totals->ports += outlet->count > 0;
        totals->packets += outlet->count;
        totals->bytes += outlet->count * outlet->most;
    }
}

// Returns how often packets went round without time passing, at the end.
static uint32_t forward(struct timed *timed, const struct timed_train *trains, struct head *heads,
                        uint64_t count, int64_t until) {
    uint32_t rounds = 0;
    int64_t last = -1;
    while (!timed->no_memory && rounds <= MOST_ROUNDS) {
        int64_t again = timed_next(timed);
        uint64_t next = earliest(heads, count);
        // As in emulation, what goes round comes before what arrives.
        if (count && heads[next].at < again) {
            const struct timed_train *train = &trains[next];
            struct head *head = &heads[next];
            arrive(timed, train, head->row++);
            head->at = head->row < train->count ? train->times[head->row] : TIMED_NEVER;
        } else if (again < until) {
            rounds = again == last ? rounds + 1 : 0;
            last = again;
            come_round(timed);
        } else {
            break;
        }
    }
    return rounds;
}

int timed_run(struct timed *timed, const struct timed_train *trains, uint64_t count, int64_t until,
              struct timed_totals *totals) {
    struct timed_program *program = &timed->program;
    struct head *heads = first_heads(timed, trains, count);
    begin(timed);
    *totals = (struct timed_totals){0, 0, 0};
    if (count && !heads)
        return SW_NO_MEMORY;
    if (!program->sw) {
        for (uint64_t i = 0; i < count; i++) timed->no_program += trains[i].count;
        return 0;
    }
    program->lock(program->sw);
    uint32_t rounds = forward(timed, trains, heads, count, until);
    if (rounds > MOST_ROUNDS)
        forget_rounds(timed);
    program->unlock(program->sw);
    add_up(timed, totals);
    if (timed->no_memory)
        return SW_NO_MEMORY;
    if (timed->prioritised)
        return SW_EXISTS;
    return rounds > MOST_ROUNDS ? SW_RANGE : 0;
}

// ---------------------------------------------------------------------------------------------
// What came of it

// All rows as long as the longest; behind what is stored of a frame are zeros.
static void copy_frames(const struct outlet *outlet, uint8_t *rows) {
    const uint8_t *frame = outlet->frames;
    if (outlet->most == outlet->least) {
        memcpy(rows, frame, outlet->kept);
        return;
    }
    for (uint64_t i = 0; i < outlet->count; i++) {
        uint32_t stored = outlet->stored[i];
        memcpy(rows, frame, stored);
        memset(rows + stored, 0, outlet->most - stored);
        rows += outlet->most;
        frame += stored;
    }
}

void timed_collect(const struct timed *timed, const struct timed_departures *into) {
    uint64_t at = 0, kept = 0, ports = 0;
    for (uint32_t i = 0; i < timed->port_count; i++) {
        const struct outlet *outlet = timed->outlets[timed->ports[i]];
        uint64_t n = outlet->count;
        if (!n)
            continue;
        memcpy(into->ends + at, outlet->ends, n * sizeof *outlet->ends);
        memcpy(into->lengths + at, outlet->lengths, n * sizeof *outlet->lengths);
        memcpy(into->inputs + at, outlet->inputs, n * sizeof *outlet->inputs);
        memcpy(into->priorities + at, outlet->priorities, n * sizeof *outlet->priorities);
        copy_frames(outlet, into->bytes + kept);
        into->ports[ports++] = (struct timed_port){
            .port = timed->ports[i],
            .count = n,
            .stored = outlet->most,
            .bytes = outlet->bytes,
            .wire = outlet->wire,
            .free = outlet->line.free,
        };
        at += n;
        kept += n * outlet->most;
    }
}

int timed_line_read(const struct timed *timed, uint32_t port, struct line_counters *counters) {
    const struct outlet *outlet = port < SW_PORTS ? timed->outlets[port] : NULL;
    if (!outlet)
        return SW_NOT_FOUND;
    *counters = outlet->line.counters;
    return 0;
}

uint64_t timed_no_port(const struct timed *timed) {
    return timed->no_port;
}

uint64_t timed_no_program(const struct timed *timed) {
    return timed->no_program;
}
