// SPDX-License-Identifier: Apache-2.0
//
// Private to the runtime: packets and replication lists.

#ifndef RACKHUB_FLOW_H
#define RACKHUB_FLOW_H

#include "program.h"

#define SW_GROUPS 65536   // multicast groups, v1model's bit<16>
#define SW_SESSIONS 32768 // clone sessions

struct sw_replicas {
    size_t count;
    uint32_t truncate; // bytes, 0 = whole packets
    uint32_t priority;
    struct sw_replica replica[];
};

void sw_replicas_free(struct sw *sw);

// A packet of the pool, or NULL (counted). Its context is as an earlier packet left it.
struct sw_packet *sw_packet_take(struct sw *sw);

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
