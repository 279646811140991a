// SPDX-License-Identifier: Apache-2.0
//
// The traffic manager: see traffic_manager.h.

#include "traffic_manager.h"

#include <string.h>

void tm_init(struct traffic_manager *tm, struct sw *sw, uint32_t pool,
             void (*free)(struct sw *, struct sw_packet *)) {
    memset(tm, 0, sizeof *tm);
    tm->sw = sw;
    tm->pool = pool;
    tm->free = free;
}

void tm_port_init(struct tm_port *port, uint64_t limit, uint32_t deepest, uint64_t rate) {
    memset(port, 0, sizeof *port);
    port->limit = limit;
    port->deepest = deepest ? deepest : UINT32_MAX;
    port->rate = rate;
}

static void unlink_packet(struct traffic_manager *tm, struct tm_port *port,
                          struct sw_packet *packet) {
    uint32_t priority = packet->priority;
    struct sw_packet *before = packet->tm;
    if (before)
        before->next = packet->next;
    else
        port->head[priority] = packet->next;
    if (packet->next)
        packet->next->tm = before;
    else
        port->tail[priority] = before;
    if (!port->head[priority])
        port->waiting &= ~(1u << priority);
    port->held[priority] -= packet->length;
    port->depth[priority]--;
    port->packets--;
    port->bytes -= packet->length;
    tm->packets--;
}

static uint32_t lowest(uint32_t bits) {
    return (uint32_t)__builtin_ctz(bits);
}

static uint32_t highest(uint32_t bits) {
    return 31u - (uint32_t)__builtin_clz(bits);
}

// Makes room for the packet, at the cost of lower priorities if necessary.
static bool make_room(struct traffic_manager *tm, struct tm_port *port,
                      const struct sw_packet *packet) {
    if (port->depth[packet->priority] >= port->deepest)
        return false;
    if (port->bytes + packet->length <= port->limit && port->packets < tm->pool - tm->packets)
        return true;
    uint64_t firm = packet->length; // remains if all lower priorities are dropped
    for (uint32_t priority = packet->priority; priority < TM_PRIORITIES; priority++)
        firm += port->held[priority];
    if (firm > port->limit)
        return false;
    uint32_t below = (1u << packet->priority) - 1;
    while (port->bytes + packet->length > port->limit || port->packets >= tm->pool - tm->packets) {
        uint32_t victims = port->waiting & below;
        if (!victims)
            return false;
        struct sw_packet *victim = port->tail[lowest(victims)];
        unlink_packet(tm, port, victim);
        port->dropped++;
        tm->free(tm->sw, victim);
    }
    return true;
}

static struct sw_packet *take(struct traffic_manager *tm, struct tm_port *port) {
    if (port->packets == 0)
        return NULL;
    struct sw_packet *packet = port->head[highest(port->waiting)];
    unlink_packet(tm, port, packet);
    packet->next = NULL;
    packet->deq_qdepth = port->depth[packet->priority];
    return packet;
}

// Rounds up by less than a nanosecond a frame.
static uint64_t line_ns(const struct tm_port *port, uint32_t bytes) {
    return ((uint64_t)bytes * 8 * 1000000000u + port->rate - 1) / port->rate;
}

// Puts the next packet on the line, which is free.
static void begin(struct traffic_manager *tm, struct tm_port *port) {
    port->line = take(tm, port);
    if (!port->line)
        return;
    // A port earns nothing by having been idle.
    uint64_t came_ns = tm->start_ns + port->line->enq_us * 1000;
    port->begun_ns = port->free_ns < came_ns ? came_ns : port->free_ns;
    port->free_ns = port->begun_ns + line_ns(port, port->line->length);
}

struct tm_port *tm_enqueue(struct traffic_manager *tm, struct sw_packet *packet, uint64_t now_us) {
    struct tm_port *port = packet->port < SW_PORTS ? tm->ports[packet->port] : NULL;
    if (!port) {
        tm->free(tm->sw, packet);
        return NULL;
    }
    if (packet->priority >= TM_PRIORITIES)
        packet->priority = TM_PRIORITIES - 1;
    if (!make_room(tm, port, packet)) {
        port->dropped++;
        tm->free(tm->sw, packet);
        return NULL;
    }
    uint32_t priority = packet->priority;
    packet->enq_us = now_us;
    packet->enq_qdepth = port->depth[priority];
    packet->next = NULL;
    packet->tm = port->tail[priority];
    if (port->tail[priority])
        port->tail[priority]->next = packet;
    else
        port->head[priority] = packet;
    port->tail[priority] = packet;
    port->waiting |= 1u << priority;
    port->held[priority] += packet->length;
    port->depth[priority]++;
    port->packets++;
    port->bytes += packet->length;
    tm->packets++;
    if (port->packets > port->max_packets)
        port->max_packets = port->packets;
    if (port->bytes > port->max_bytes)
        port->max_bytes = port->bytes;
    if (port->rate && !port->line)
        begin(tm, port);
    return port;
}

uint64_t tm_ready_ns(const struct tm_port *port) {
    if (port->rate)
        return port->line ? port->free_ns : UINT64_MAX;
    return port->packets ? 0 : UINT64_MAX;
}

struct sw_packet *tm_dequeue(struct traffic_manager *tm, struct tm_port *port) {
    if (!port->rate)
        return take(tm, port);
    return port->line; // kept until tm_charge, as clones that egress enqueues come behind it
}

void tm_charge(struct traffic_manager *tm, struct tm_port *port, uint32_t bytes, uint64_t now_ns) {
    if (!port->rate)
        return;
    port->free_ns = port->begun_ns + line_ns(port, bytes);
    if (port->free_ns + TM_CATCH_UP_NS < now_ns)
        port->free_ns = now_ns - TM_CATCH_UP_NS;
    begin(tm, port);
}

void tm_keep(struct traffic_manager *tm, struct tm_port *port) {
    for (uint32_t bits = port->waiting; bits; bits &= bits - 1) {
        struct sw_packet *packet = port->head[lowest(bits)];
        for (; packet; packet = packet->next)
            if (packet->on_loan)
                tm->keep(tm->sw, packet);
    }
}

void tm_flush(struct traffic_manager *tm, struct tm_port *port) {
    struct sw_packet *packet = port->line;
    port->line = NULL;
    for (packet = packet ? packet : take(tm, port); packet; packet = take(tm, port))
        tm->free(tm->sw, packet);
}
