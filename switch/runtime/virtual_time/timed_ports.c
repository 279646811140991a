// SPDX-License-Identifier: Apache-2.0
//
// The ports of switches in virtual time: see timed_ports.h.
//
// struct timed is one switch: an outlet per port, recirculating packets in a heap by time
// (recirculation.h), and one struct head per train and incoming wire, which has the time of its
// next packet. Events are taken by time; at one time recirculated packets come first, then arrivals
// by rank. run_all is conservative parallel simulation, run sequentially: the switch with the
// earliest event advances as far as no packet of another switch can reach it, which is one
// lookahead after the others' next events, and two behind its own.

#include "timed_ports.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "departures.h"
#include "grow.h"
#include "recirculation.h"
#include "wire.h"

enum {
    MOST_ROUNDS = 65536, // recirculations without time passing
    PICOS = 1000000,     // per microsecond
};

// A port: its line, and its departures in this call.
struct outlet {
    struct line line;
    bool unqueued;
    struct departed departed;
    uint64_t occupied;
    struct wire *wire; // NULL: packets are departures; else only if the switch is watched
};

// The next packet of a train or wire: its time, TIMED_NEVER behind the last.
struct head {
    int64_t at;
    uint64_t row, rank;
    struct timed_train *train; // or
    struct wire *wire;
};

struct timed {
    struct sw *sw; // NULL: no program
    const struct sw_functions *call;
    uint64_t latency;
    struct outlet *outlets[SW_PORTS];
    uint32_t ports[SW_PORTS], port_count; // that exist, in order
    uint64_t no_port, no_program;
    struct sw_packet *head, *tail; // between ingress and egress
    struct rounds rounds;
    struct wire **wires; // that lead here, by rank
    uint64_t wire_count;
    struct head *heads;
    uint64_t head_count, heads_room;
    const struct timed_echo *echoes;
    int64_t *until;     // of this call
    int64_t next, last; // of the next event; of the last recirculation
    uint32_t again;     // recirculations since time passed
    bool no_memory, prioritised, watched;
    // The present packet.
    int64_t now;
    int64_t input;
    uint32_t frame_stored;
    uint32_t frame_used; // bytes behind it are zero
    uint8_t frame[SW_MAX_FRAME];
};

// ---------------------------------------------------------------------------------------------
// Life

struct timed *timed_create(uint64_t latency) {
    struct timed *timed = calloc(1, sizeof *timed);
    if (timed)
        timed->latency = latency;
    return timed;
}

static void drop_rounds(struct timed *timed) {
    while (timed->rounds.count)
        timed->call->packet_free(timed->sw, rounds_pop(&timed->rounds).packet);
}

// The traffic manager's enqueue: packets wait until ingress returns.
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

void timed_attach(struct timed *timed, struct sw *sw, const struct sw_functions *call) {
    if (timed->sw) {
        timed->call->lock(timed->sw);
        drop_rounds(timed);
        timed->call->unlock(timed->sw);
        timed->call->set_traffic_manager(timed->sw, NULL, NULL);
    }
    timed->sw = sw;
    timed->call = call;
    if (sw)
        call->set_traffic_manager(sw, enqueue, timed);
}

void timed_destroy(struct timed *timed) {
    if (!timed)
        return;
    timed_attach(timed, NULL, NULL);
    for (uint32_t i = 0; i < timed->port_count; i++) {
        struct outlet *outlet = timed->outlets[timed->ports[i]];
        line_clear(&outlet->line);
        departed_clear(&outlet->departed);
        wire_destroy(outlet->wire);
        free(outlet);
    }
    free(timed->wires);
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
    outlet->departed.watched = timed->watched;
    timed->outlets[port] = outlet;
    uint32_t at = timed->port_count++;
    for (; at > 0 && timed->ports[at - 1] > port; at--)
        timed->ports[at] = timed->ports[at - 1];
    timed->ports[at] = port;
    return 0;
}

// ---------------------------------------------------------------------------------------------
// Wires

int timed_wire(struct timed *from, uint32_t from_port, struct timed *to, uint32_t to_port,
               int64_t delay, uint64_t rank) {
    struct outlet *outlet = from_port < SW_PORTS ? from->outlets[from_port] : NULL;
    if (!outlet)
        return SW_NOT_FOUND;
    if (outlet->wire || outlet->unqueued)
        return SW_EXISTS;
    struct wire *wire = wire_create(to, to_port, delay, rank);
    if (!wire || !grow((void **)&to->wires, sizeof *to->wires, to->wire_count + 1)) {
        wire_destroy(wire);
        return SW_NO_MEMORY;
    }
    outlet->wire = wire;
    uint64_t at = to->wire_count++;
    for (; at > 0 && to->wires[at - 1]->rank > rank; at--)
        to->wires[at] = to->wires[at - 1];
    to->wires[at] = wire;
    return 0;
}

int timed_wire_read(struct timed *from, uint32_t port, struct timed_carried *carried) {
    struct outlet *outlet = port < SW_PORTS ? from->outlets[port] : NULL;
    if (!outlet || !outlet->wire)
        return SW_NOT_FOUND;
    *carried = outlet->wire->carried;
    carried->free = outlet->line.free;
    outlet->wire->carried = (struct timed_carried){0};
    return 0;
}

static void carry(struct outlet *outlet, size_t length, uint32_t stored) {
    struct wire *wire = outlet->wire;
    wire->carried.wire += line_occupy(&outlet->line, length);
    wire_put(wire, outlet->line.free, (uint32_t)length, stored);
    int64_t at = wire_next(wire);
    if (at < wire->to->next)
        wire->to->next = at;
}

// ---------------------------------------------------------------------------------------------
// Recirculation

static void collect_rounds(struct timed *timed, int64_t at) {
    struct sw_packet *packet;
    while ((packet = timed->call->take_round(timed->sw)))
        if (!rounds_push(&timed->rounds, packet, at)) {
            timed->no_memory = true;
            timed->call->packet_free(timed->sw, packet);
        }
}

// ---------------------------------------------------------------------------------------------
// Out

// Returns true if the packet may leave; start: from when on.
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

// Copies the stored part of the payload behind the first bytes; returns how much of the packet is
// stored.
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

static void note(const struct timed *timed, struct outlet *outlet, size_t length, uint32_t stored,
                 uint8_t priority) {
    departed_add(&outlet->departed,
                 &(struct departure){
                     .end = outlet->line.free,
                     .input = timed->input,
                     .came = timed->now + (int64_t)timed->latency,
                     .length = length,
                     .stored = stored,
                     .priority = priority,
                 });
}

static void leave(struct timed *timed, struct sw_packet *packet) {
    struct outlet *outlet = packet->port < SW_PORTS ? timed->outlets[packet->port] : NULL;
    int64_t start;
    timed->no_port += !outlet;
    struct wire *wire = outlet ? outlet->wire : NULL;
    if (outlet && ((wire && !wire_room(wire)) ||
                   ((!wire || timed->watched) && !departed_room(&outlet->departed))))
        timed->no_memory = true;
    if (!outlet || timed->no_memory || !queued(timed, outlet, packet, &start)) {
        timed->call->packet_free(timed->sw, packet);
        return;
    }
    uint32_t packet_port = packet->port;
    uint8_t priority = (uint8_t)packet->priority;
    uint8_t *out = wire ? wire_end(wire) : departed_end(&outlet->departed);
    struct sw_leaving leaving;
    size_t length = timed->call->send(timed->sw, packet, (uint64_t)start / PICOS, out, SW_MAX_FRAME,
                                  &leaving);
    collect_rounds(timed, start);
    if (!length)
        return;
    if (length > outlet->line.options.longest) {
        outlet->line.counters.oversized++;
        return;
    }
    uint32_t stored = (uint32_t)gather(timed, out, length, &leaving);
    if (wire) {
        carry(outlet, length, stored);
        if (timed->watched) {
            memcpy(departed_end(&outlet->departed), out, stored);
            note(timed, outlet, length, stored, priority);
        }
        return;
    }
    if (outlet->unqueued)
        outlet->line.free = start;
    else
        outlet->occupied += line_occupy(&outlet->line, length);
    if (timed->echoes) {
        const struct timed_echo *echo = &timed->echoes[packet_port];
        int64_t there = outlet->line.free + echo->delay;
        int64_t answer = echo->free > there ? echo->free : there;
        if (echo->free != TIMED_NEVER && answer + echo->least < *timed->until)
            *timed->until = answer + echo->least;
    }
    note(timed, outlet, length, stored, priority);
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

// Copies the frame to memory that the program may write to, so that packets refer to it, however
// many copies the program makes. Zeros follow the stored bytes.
static void load_frame(struct timed *timed, const uint8_t *bytes, uint32_t stored,
                       uint32_t length) {
    memcpy(timed->frame, bytes, stored);
    if (timed->frame_used < stored)
        timed->frame_used = stored;
    if (length > stored && timed->frame_used > stored) {
        memset(timed->frame + stored, 0, timed->frame_used - stored);
        timed->frame_used = stored;
    }
    timed->frame_stored = stored;
}

// Processes a packet at `bytes`. input: its index in the call, -1 if it came by a wire.
static void arrive(struct timed *timed, uint32_t port, int64_t at, int64_t input,
                   const uint8_t *bytes, uint32_t stored, int64_t length) {
    if (!timed->sw) {
        timed->no_program++;
        return;
    }
    struct sw_frame frame = {
        .bytes = timed->frame,
        .length = (uint32_t)length,
        .sum_field = SW_COMPLETE,
        .lasting = 1,
        .writable = 1,
    };
    if (frame.length <= SW_MAX_FRAME) // else sw_receive drops and counts it unread
        load_frame(timed, bytes, stored < frame.length ? stored : frame.length, frame.length);
    timed->now = at;
    timed->input = input;
    timed->call->receive(timed->sw, port, &frame, (uint64_t)at / PICOS);
    collect_rounds(timed, at);
    drain(timed);
}

static void arrive_by_train(struct timed *timed, struct head *head) {
    struct timed_train *train = head->train;
    uint64_t row = head->row++;
    train->taken = head->row;
    arrive(timed, (uint32_t)train->port, train->times[row], (int64_t)(train->first + row),
           train->frames + row * train->stored, (uint32_t)train->stored, train->lengths[row]);
    head->at = head->row < train->count ? train->times[head->row] : TIMED_NEVER;
}

static void arrive_by_wire(struct timed *timed, struct head *head) {
    struct wire *wire = head->wire;
    const uint8_t *bytes;
    struct flying one = wire_take(wire, &bytes);
    arrive(timed, wire->port, one.at, -1, bytes, one.stored, one.length);
    head->at = wire_next(wire);
}

static void recirculate(struct timed *timed) {
    struct rounding one = rounds_pop(&timed->rounds);
    timed->now = one.at;
    timed->input = -1;
    timed->frame_stored = 0;
    timed->call->round(timed->sw, one.packet, (uint64_t)one.at / PICOS);
    collect_rounds(timed, one.at);
    drain(timed);
}

int64_t timed_next(const struct timed *timed) {
    int64_t next = rounds_next(&timed->rounds);
    for (uint64_t i = 0; i < timed->wire_count; i++) {
        int64_t at = wire_next(timed->wires[i]);
        next = at < next ? at : next;
    }
    return next;
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
            timed->heads[i] = (struct head){.at = wire_next(by), .rank = by->rank, .wire = by};
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
    int64_t again = rounds_next(&timed->rounds);
    struct head *head = earliest(timed);
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
        totals->bytes += departed->count * departed->most;
    }
}

// Processes the events of one switch before a time.
static void forward(struct timed *timed, int64_t reached) {
    // Packets that other switches have sent since.
    for (uint64_t i = 0; i < timed->head_count; i++)
        if (timed->heads[i].wire)
            timed->heads[i].at = wire_next(timed->heads[i].wire);
    if (timed->sw)
        timed->call->lock(timed->sw);
    while (!timed->no_memory && timed->again <= MOST_ROUNDS) {
        int64_t again = rounds_next(&timed->rounds);
        struct head *head = earliest(timed);
        int64_t until = reached < *timed->until ? reached : *timed->until;
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
            recirculate(timed);
        } else {
            break;
        }
    }
    if (timed->again > MOST_ROUNDS)
        drop_rounds(timed);
    if (timed->sw)
        timed->call->unlock(timed->sw);
    timed->next = next_event(timed);
}

// Advances switches in the order of their next events, each as far as none of the others can reach.
static void run_all(struct timed_part *parts, uint64_t count, int64_t lookahead, int64_t *end) {
    for (;;) {
        int64_t until = *end;
        struct timed *first = NULL;
        int64_t second = TIMED_NEVER;
        for (uint64_t i = 0; i < count; i++) {
            struct timed *one = parts[i].timed;
            if (!first || one->next < first->next) {
                second = first ? first->next : second;
                first = one;
            } else if (one->next < second) {
                second = one->next;
            }
            if (one->no_memory || one->again > MOST_ROUNDS)
                return;
        }
        if (!first || first->next >= until)
            return;
        // Reached by another switch's next packet, or by its reaction to a packet of this one.
        int64_t reached = until - lookahead > second ? second + lookahead : until;
        if (until - 2 * lookahead > first->next && first->next + 2 * lookahead < reached)
            reached = first->next + 2 * lookahead;
        forward(first, count > 1 ? reached : until);
    }
}

void timed_watch(struct timed *timed) {
    timed->watched = true;
    for (uint32_t i = 0; i < timed->port_count; i++)
        timed->outlets[timed->ports[i]]->departed.watched = true;
}

void timed_echoes(struct timed *timed, const struct timed_echo *echoes) {
    timed->echoes = echoes;
}

int timed_run(struct timed_part *parts, uint64_t count, int64_t lookahead, int64_t *until) {
    for (uint64_t i = 0; i < count; i++) {
        struct timed_part *part = &parts[i];
        part->totals = (struct timed_totals){0, 0, 0};
        begin(part->timed);
        part->timed->until = until;
        if (!set_heads(part->timed, part->trains, part->count))
            return SW_NO_MEMORY;
        part->timed->next = next_event(part->timed);
    }
    run_all(parts, count, lookahead, until);
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

// ---------------------------------------------------------------------------------------------
// Results

void timed_collect(const struct timed *timed, const struct timed_departures *into) {
    uint64_t at = 0, kept = 0, ports = 0;
    for (uint32_t i = 0; i < timed->port_count; i++) {
        const struct outlet *outlet = timed->outlets[timed->ports[i]];
        const struct departed *departed = &outlet->departed;
        if (!departed->count)
            continue;
        departed_copy(departed, into, at, kept);
        into->ports[ports++] = (struct timed_port){
            .port = timed->ports[i],
            .count = departed->count,
            .stored = departed->most,
            .bytes = departed->bytes,
            .wire = outlet->occupied,
            .free = outlet->line.free,
        };
        at += departed->count;
        kept += departed->count * departed->most;
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
