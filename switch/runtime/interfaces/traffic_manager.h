// SPDX-License-Identifier: Apache-2.0
//
// The traffic manager: for every egress port a bounded queue with strict priorities and a rate.
//
// Packets wait here between ingress and egress, as in simple_switch, so that enq_qdepth and
// deq_timedelta are meaningful; depths are those of the packet's priority, as there. Ports are
// independent: one port's backlog delays no other. A port with a rate has one packet on the line,
// beside those that wait: it leaves when its time on the line is over, as on a link, where a frame
// arrives with its last bit. Times are nanoseconds of one monotonic clock. Not thread safe: the
// caller locks.
//
// Invariants: packets, bytes, held[] and depth[] count the lists exactly, without the packet on the
// line; bit p of `waiting` is set if list p is not empty; a port with a rate has a packet on the
// line whenever packets wait; tm->packets is the sum over all ports.

#ifndef RACKHUB_TRAFFIC_MANAGER_H
#define RACKHUB_TRAFFIC_MANAGER_H

#include <stdbool.h>
#include <stdint.h>

#include "target.h"

#define TM_PRIORITIES 8

// A port that falls behind its schedule while it has packets (its thread was not scheduled in time)
// catches up for at most this long, as a bounded burst.
#define TM_CATCH_UP_NS 10000000u

struct tm_port {
    // Per priority a doubly linked list: sw_packet.next towards the tail, sw_packet.tm towards
    // the head.
    struct sw_packet *head[TM_PRIORITIES], *tail[TM_PRIORITIES];
    uint32_t waiting; // bit p: priority p has packets
    uint32_t packets;
    uint64_t bytes;
    uint64_t held[TM_PRIORITIES];  // bytes by priority
    uint32_t depth[TM_PRIORITIES]; // packets by priority
    uint64_t limit;   // bytes that may wait
    uint32_t deepest; // packets of one priority that may wait
    uint64_t rate;    // bit/s, 0 = as fast as the interface takes them
    struct sw_packet *line; // the packet on the line, if there is a rate
    uint64_t begun_ns;      // when its transmission began, or the last one's
    uint64_t free_ns;       // when it ends, or the last one did

    uint64_t dropped; // because the queue was full
    uint32_t max_packets;
    uint64_t max_bytes;
};

struct traffic_manager {
    struct tm_port *ports[SW_PORTS]; // NULL: no such port
    uint32_t packets;                // waiting on all ports
    uint32_t pool;                   // packets that the switch can hold
    uint64_t start_ns;               // time 0 of the switch's microseconds
    struct sw *sw;
    void (*free)(struct sw *, struct sw_packet *);
    void (*keep)(struct sw *, struct sw_packet *); // moves a payload on loan to memory of its own
};

void tm_init(struct traffic_manager *tm, struct sw *sw, uint32_t pool,
             void (*free)(struct sw *, struct sw_packet *));

// Initializes an empty port with counters at zero. limit: bytes; deepest: packets of one priority,
// 0 = no limit; rate: bit/s or 0.
void tm_port_init(struct tm_port *port, uint64_t limit, uint32_t deepest, uint64_t rate);

// Queues the packet for packet->port and sets its queue fields. Returns the port, or NULL if the
// packet was dropped (and freed). A full queue drops the arriving packet; but where bytes are
// short, packets of a lower priority make room, latest first. A port may not hold more packets than
// the switch has left for other ports either.
struct tm_port *tm_enqueue(struct traffic_manager *tm, struct sw_packet *packet, uint64_t now_us);

// Counts a packet that bypasses the queue of an idle port.
static inline void tm_pass(struct tm_port *port, const struct sw_packet *packet) {
    if (port->max_packets == 0)
        port->max_packets = 1;
    if (port->max_bytes < packet->length)
        port->max_bytes = packet->length;
}

// Returns when the port's next packet has left: a time, possibly past, or UINT64_MAX if it is
// empty.
uint64_t tm_ready_ns(const struct tm_port *port);

// Returns that packet whatever the time, NULL without one. Waiting packets enter the line by
// priority. On a port with a rate tm_charge must follow.
struct sw_packet *tm_dequeue(struct traffic_manager *tm, struct tm_port *port);

// Charges the line for the last dequeued packet: `bytes` of it were sent, 0 if none; the next
// packet begins when they have left.
void tm_charge(struct traffic_manager *tm, struct tm_port *port, uint32_t bytes, uint64_t now_ns);

// Copies waiting payloads that refer to the frames they came in.
void tm_keep(struct traffic_manager *tm, struct tm_port *port);

// Drops all packets without counting them.
void tm_flush(struct traffic_manager *tm, struct tm_port *port);

#endif
