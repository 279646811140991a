// SPDX-License-Identifier: Apache-2.0
//
// The ports of one switch in virtual time: see timed_ports.h, and timed_state.h for its parts.

#include "timed_state.h"

#include <string.h>

#include "grow.h"
#include "rx_slots.h"

// ---------------------------------------------------------------------------------------------
// Life

struct timed *timed_create(uint64_t latency) {
    struct timed *timed = calloc(1, sizeof *timed);
    if (timed)
        timed->latency = latency;
    return timed;
}

void timed_drop_rounds(struct timed *timed) {
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
        timed_drop_rounds(timed);
        timed->call->unlock(timed->sw);
        timed->call->set_traffic_manager(timed->sw, NULL, NULL);
    }
    timed->sw = sw;
    timed->call = call;
    if (sw)
        call->set_traffic_manager(sw, enqueue, timed);
}

void timed_lose(struct timed *timed) {
    for (uint32_t i = 0; i < timed->port_count; i++) {
        struct outlet *outlet = timed->outlets[timed->ports[i]];
        strict_lose(&outlet->strict, &outlet->line);
    }
}

void timed_hold(struct timed *timed, int64_t now, int64_t until) {
    bool stopped = now < timed->held, ends = until == now;
    for (uint32_t i = 0; i < timed->port_count; i++) {
        struct outlet *outlet = timed->outlets[timed->ports[i]];
        struct line *line = &outlet->line;
        if (!stopped)
            outlet->free_before = line->free;
        if (ends && stopped)
            line->free = outlet->free_before;
        if (line->free < until && !ends) {
            line->free = until;
            line->rest = 0;
        }
    }
    for (uint64_t i = 0; !stopped && i < timed->wire_count; i++)
        timed->wires[i]->waited = 0;
    if (until > timed->held || ends)
        timed->held = until;
}

uint64_t timed_slots(const struct timed *timed, uint32_t port) {
    const struct outlet *outlet = port < SW_PORTS ? timed->outlets[port] : NULL;
    return outlet ? rx_short_slots((uint32_t)outlet->line.options.longest - RX_ETHERNET) : 0;
}

uint64_t timed_overflowed(const struct timed *timed) {
    return timed->overflowed;
}

void timed_destroy(struct timed *timed) {
    if (!timed)
        return;
    timed_attach(timed, NULL, NULL);
    for (uint32_t i = 0; i < timed->port_count; i++) {
        struct outlet *outlet = timed->outlets[timed->ports[i]];
        line_clear(&outlet->line);
        strict_clear(&outlet->strict);
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
               enum timed_queue queue) {
    if (port >= SW_DROP_PORT || options->whole == 0)
        return SW_RANGE;
    if (timed->outlets[port])
        return SW_EXISTS;
    struct outlet *outlet = calloc(1, sizeof *outlet);
    if (!outlet)
        return SW_NO_MEMORY;
    line_init(&outlet->line, options);
    outlet->queue = queue;
    timed->strict |= queue == TIMED_STRICT;
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
    if (outlet->wire || outlet->queue == TIMED_OUTSIDE)
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

static void carry(struct wire *wire, const struct departure *one, uint64_t wire_bytes) {
    wire->carried.wire += wire_bytes;
    wire_put(wire, one->end, (uint32_t)one->length, one->stored);
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
    if (outlet->queue != TIMED_FIFO)
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

// Lets the call end before the peer's first answer to a packet that leaves at a time, or its effect.
static void await(struct timed *timed, struct timed_echo *echo, int64_t leaves) {
    int64_t there = leaves + echo->delay;
    int64_t early = there % echo->interval;
    int64_t noticed = early ? there + echo->interval - early : there;
    int64_t answered = noticed + echo->latency;
    int64_t first = (echo->free > answered ? echo->free : answered) + echo->least;
    if (echo->silent > 0)
        echo->silent--;
    else if (noticed + echo->effect < first)
        first = noticed + echo->effect;
    if (first < timed->until)
        timed->until = first;
}

static bool room(struct timed *timed, struct outlet *outlet) {
    struct wire *wire = outlet->wire;
    if ((wire && !wire_room(wire)) ||
        ((!wire || timed->watched) && !departed_room(&outlet->departed)))
        timed->no_memory = true;
    return !timed->no_memory;
}

// Where the bytes of the next departure go.
static uint8_t *place(const struct outlet *outlet) {
    return outlet->wire ? wire_end(outlet->wire) : departed_end(&outlet->departed);
}

// Lets a packet go whose bytes are in their place.
static void depart(struct timed *timed, struct outlet *outlet, uint32_t port,
                   const struct departure *one, uint64_t wire_bytes) {
    struct wire *wire = outlet->wire;
    if (wire) {
        if (timed->watched) {
            memcpy(departed_end(&outlet->departed), wire_end(wire), one->stored);
            departed_add(&outlet->departed, one);
        }
        carry(wire, one, wire_bytes);
        return;
    }
    outlet->occupied += wire_bytes;
    if (timed->echoes && timed->echoes[port].free != TIMED_NEVER)
        await(timed, &timed->echoes[port], one->end);
    departed_add(&outlet->departed, one);
}

// Lets packets go that start up to a time, and before the end of the call if `reached` is a bound.
static void settle(struct timed *timed, struct outlet *outlet, uint32_t port, int64_t reached) {
    struct strict_packet packet;
    struct departure one = {0};
    while (!timed->no_memory) {
        int64_t until = reached < timed->until ? reached : timed->until;
        until = until < TIMED_NEVER - (int64_t)timed->latency ? until + (int64_t)timed->latency
                                                               : TIMED_NEVER;
        uint64_t wire_bytes =
            strict_take(&outlet->strict, &outlet->line, until, &packet, &one.priority);
        if (!wire_bytes)
            return;
        if (room(timed, outlet)) {
            memcpy(place(outlet), packet.bytes, packet.stored);
            one.end = outlet->line.free;
            one.input = packet.input;
            one.came = packet.at;
            one.length = packet.length;
            one.stored = packet.stored;
            depart(timed, outlet, port, &one, wire_bytes);
        }
        free(packet.bytes);
    }
}

void timed_settle(struct timed *timed, int64_t reached) {
    for (uint32_t i = 0; timed->strict && i < timed->port_count; i++) {
        struct outlet *outlet = timed->outlets[timed->ports[i]];
        if (outlet->queue == TIMED_STRICT)
            settle(timed, outlet, timed->ports[i], reached);
    }
}

int64_t timed_start(const struct timed *timed) {
    int64_t first = TIMED_NEVER;
    for (uint32_t i = 0; timed->strict && i < timed->port_count; i++) {
        const struct outlet *outlet = timed->outlets[timed->ports[i]];
        int64_t start = strict_next(&outlet->strict, &outlet->line);
        first = start < first ? start : first;
    }
    return first == TIMED_NEVER ? first : first - (int64_t)timed->latency;
}

int64_t timed_since(const struct timed *timed) {
    int64_t first = TIMED_NEVER;
    for (uint32_t i = 0; timed->strict && i < timed->port_count; i++) {
        int64_t since = strict_since(&timed->outlets[timed->ports[i]]->strict);
        first = since < first ? since : first;
    }
    return first;
}

// Queues a packet whose bytes are in `leaving`.
static void wait_by_priority(struct timed *timed, struct outlet *outlet, const struct departure *one) {
    struct strict_packet packet = {
        .at = one->came,
        .input = one->input,
        .bytes = malloc(one->stored),
        .length = (uint32_t)one->length,
        .stored = one->stored,
    };
    if (!packet.bytes) {
        timed->no_memory = true;
        return;
    }
    memcpy(packet.bytes, timed->leaving, one->stored);
    if (strict_offer(&outlet->strict, &outlet->line, &packet, one->priority % STRICT_CLASSES))
        timed->no_memory = true;
}

static void leave(struct timed *timed, struct sw_packet *packet) {
    struct outlet *outlet = packet->port < SW_PORTS ? timed->outlets[packet->port] : NULL;
    int64_t start;
    timed->no_port += !outlet;
    if (!outlet || !room(timed, outlet) || !queued(timed, outlet, packet, &start)) {
        timed->call->packet_free(timed->sw, packet);
        return;
    }
    uint32_t packet_port = packet->port;
    struct departure one = {
        .input = timed->input,
        .came = timed->now + (int64_t)timed->latency,
        .priority = (uint8_t)packet->priority,
    };
    if (outlet->queue == TIMED_STRICT)
        settle(timed, outlet, packet_port, timed->now);
    uint8_t *out = outlet->queue == TIMED_STRICT ? timed->leaving : place(outlet);
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
    one.length = length;
    one.stored = (uint32_t)gather(timed, out, length, &leaving);
    if (outlet->queue == TIMED_STRICT) {
        wait_by_priority(timed, outlet, &one);
        return;
    }
    uint64_t wire_bytes = 0;
    if (outlet->queue == TIMED_OUTSIDE)
        outlet->line.free = start;
    else
        wire_bytes = line_occupy(&outlet->line, length);
    one.end = outlet->line.free;
    depart(timed, outlet, packet_port, &one, wire_bytes);
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

void timed_arrive(struct timed *timed, uint32_t port, int64_t at, int64_t input,
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

void timed_recirculate(struct timed *timed) {
    struct rounding one = rounds_pop(&timed->rounds);
    int64_t at = timed_when(timed, one.at);
    timed->now = at;
    timed->input = -1;
    timed->frame_stored = 0;
    timed->call->round(timed->sw, one.packet, (uint64_t)at / PICOS);
    collect_rounds(timed, at);
    drain(timed);
}

// ---------------------------------------------------------------------------------------------
// For Python

void timed_watch(struct timed *timed) {
    timed->watched = true;
    for (uint32_t i = 0; i < timed->port_count; i++)
        timed->outlets[timed->ports[i]]->departed.watched = true;
}

void timed_echoes(struct timed *timed, struct timed_echo *echoes) {
    timed->echoes = echoes;
}

int timed_line_read(const struct timed *timed, uint32_t port, struct line_counters *counters) {
    const struct outlet *outlet = port < SW_PORTS ? timed->outlets[port] : NULL;
    if (!outlet)
        return SW_NOT_FOUND;
    *counters = outlet->line.counters;
    return 0;
}

int timed_line_change(struct timed *timed, uint32_t port, const struct line_change *changes,
                      uint64_t count) {
    struct outlet *outlet = port < SW_PORTS ? timed->outlets[port] : NULL;
    return outlet ? line_change(&outlet->line, changes, count) : SW_NOT_FOUND;
}

uint64_t timed_no_port(const struct timed *timed) {
    return timed->no_port;
}

uint64_t timed_no_program(const struct timed *timed) {
    return timed->no_program;
}
