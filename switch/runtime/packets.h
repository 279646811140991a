// SPDX-License-Identifier: Apache-2.0
//
// Private to the runtime: packets of the pool, queues of packets, and replication lists.
//
// A packet of the pool keeps its context and buffer for ever; sw_packet_take resets its fields but
// leaves the context as an earlier packet left it (program_reset follows). struct sw_replicas are
// immutable: changing a group or session replaces its list under the lock.

#ifndef RACKHUB_PACKETS_H
#define RACKHUB_PACKETS_H

#include "program.h"

#define SW_GROUPS 65536   // multicast groups, v1model's bit<16>
#define SW_SESSIONS 32768 // clone sessions
#define SW_AHEAD 16       // most packets between sw_arrive and sw_ingress

struct sw_replicas {
    size_t count;
    uint32_t truncate; // bytes, 0 = whole packets
    uint32_t priority;
    struct sw_replica replica[];
};

void sw_replicas_free(struct sw *sw);
void sw_profiles_free(struct sw *sw);

// Returns a packet of the pool that was never used, or NULL (counted).
struct sw_packet *sw_packet_new(struct sw *sw);

// Returns a packet of the pool, or NULL. Its context is as an earlier packet left it.
static inline struct sw_packet *sw_packet_take(struct sw *sw) {
    struct sw_packet *packet = sw->free;
    if (packet)
        sw->free = packet->next;
    else
        packet = sw_packet_new(sw);
    if (!packet) return NULL;
    packet->next = NULL;
    packet->truncate = SW_WHOLE;
    packet->sum_field = SW_COMPLETE;
    packet->hint.table = NULL;
    packet->hint.waits = 0;
    packet->payload_length = packet->room = packet->fragile = packet->on_loan = 0;
    packet->spare = 0;
#ifdef SW_TRACE
    packet->trace_copy = packet->trace_over = 0;
#endif
    return packet;
}

// sw_packet_free without a trace.
static inline void sw_packet_release(struct sw *sw, struct sw_packet *packet) {
    packet->next = sw->free;
    sw->free = packet;
}

// The halves of sw_receive: the parsed packet of a frame (NULL: it is lost), and the rest. Packets
// of a few frames may be between the two, for program_look_ahead.
struct sw_packet *sw_arrive(struct sw *sw, uint32_t port, const struct sw_frame *frame,
                            uint64_t now_us);
void sw_ingress(struct sw *sw, struct sw_packet *packet, const struct sw_frame *frame,
                uint64_t now_us);

static inline void ring_push(struct sw_ring *ring, struct sw_packet *packet) {
    packet->next = NULL;
    if (ring->tail)
        ring->tail->next = packet;
    else
        ring->head = packet;
    ring->tail = packet;
    ring->count++;
}

static inline struct sw_packet *ring_pop(struct sw_ring *ring) {
    struct sw_packet *packet = ring->head;
    if (!packet) return NULL;
    ring->head = packet->next;
    if (!ring->head) ring->tail = NULL;
    ring->count--;
    return packet;
}

static inline struct program_context *context_of(struct sw_packet *packet) {
    return (struct program_context *)packet->context;
}

static inline struct sw_state *state_of(struct sw_packet *packet) {
    return (struct sw_state *)packet->context;
}

#endif
