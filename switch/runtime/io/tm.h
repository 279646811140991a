// SPDX-License-Identifier: Apache-2.0
//
// The traffic manager: for every egress port a bounded queue with strict priorities and a rate.
//
// Packets wait here between ingress and egress, as in simple_switch, so that enq_qdepth and
// deq_timedelta mean something; depths are those of the packet's priority, as there. Ports do not know of each other: what one holds back delays no
// other. Of a port with a rate one packet is on the line, beside those that wait: when its time there
// is over it has left, as on a link, where a frame is there when its last bit is. Times are
// nanoseconds of one monotonic clock. Not thread safe: the caller locks.

#ifndef RACKHUB_TM_H
#define RACKHUB_TM_H

#include <stdbool.h>
#include <stdint.h>

#include "target.h"

#define TM_PRIORITIES 8

// A port that falls behind its own schedule while it has packets (the thread was not run in time)
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
    struct sw_packet *line; // the packet on it, if there is a rate; whatever waits, one is
    uint64_t begun_ns;      // when it began, or the last one did
    uint64_t free_ns;       // when it has left, or the last one had

    uint64_t enqueued;
    uint64_t dropped; // because the queue was full
    uint32_t max_packets;
    uint64_t max_bytes;
};

struct traffic_manager {
    struct tm_port *ports[SW_PORTS]; // NULL: no such port
    uint32_t packets;                // waiting on all ports
    uint32_t pool;                   // packets that the switch can hold
    uint64_t no_port;                // packets dropped because their port does not exist
    uint64_t start_ns;               // time 0 of the switch's microseconds
    struct sw *sw;
    void (*free)(struct sw *, struct sw_packet *);
    void (*keep)(struct sw *, struct sw_packet *); // moves a payload on loan to memory of its own
};

void tm_init(struct traffic_manager *tm, struct sw *sw, uint32_t pool,
             void (*free)(struct sw *, struct sw_packet *));

// limit: bytes; deepest: packets of one priority, 0 = no limit; rate: bit/s or 0. The port starts
// empty and with counters at zero.
void tm_port_init(struct tm_port *port, uint64_t limit, uint32_t deepest, uint64_t rate);

// Takes the packet into the queue of packet->port and sets its queue fields. Returns the port, or
// NULL if the packet was dropped (and freed). A full queue drops the arriving packet; but where bytes
// are short, packets of a lower priority make room, latest first. A port may not hold more packets than the switch
// has left for others either.
struct tm_port *tm_enqueue(struct traffic_manager *tm, struct sw_packet *packet, uint64_t now_us);

// Counts a packet that need not wait, as the port is idle.
static inline void tm_pass(struct tm_port *port, const struct sw_packet *packet) {
    port->enqueued++;
    if (port->max_packets == 0)
        port->max_packets = 1;
    if (port->max_bytes < packet->length)
        port->max_bytes = packet->length;
}

// When the port's next packet has left: a time, possibly past, or UINT64_MAX if it is empty.
uint64_t tm_ready_ns(const struct tm_port *port);

// That packet, NULL if there is none; says nothing of the time. Those that wait come on the line with
// the highest priority first. After one of a port with a rate tm_charge is to be called.
struct sw_packet *tm_dequeue(struct traffic_manager *tm, struct tm_port *port);

// The packet dequeued last had `bytes` at last, 0 if it was not sent: the next one begins when they
// had left.
void tm_charge(struct traffic_manager *tm, struct tm_port *port, uint32_t bytes, uint64_t now_ns);

// What waits no longer refers to the frames it came in.
void tm_keep(struct traffic_manager *tm, struct tm_port *port);

// Drops what waits, uncounted.
void tm_flush(struct traffic_manager *tm, struct tm_port *port);

#endif
