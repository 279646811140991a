// SPDX-License-Identifier: Apache-2.0
//
// The ports of one switch in virtual time: packets with a time each go in, and come out with the
// time at which they have left their port. Nothing here reads a clock.
//
//   arrive -> ingress -> (latency) -> the port's queue -> egress -> the line
//
// Each port has a line with a rate and a bounded queue, first in first out, as ports.h has, but with
// times in picoseconds. A packet's departure is certain when it is queued, so its egress runs at
// once, with the timestamps of later; whoever receives may go on that far. What that cannot give: egress sees
// tables as they are when the packet is queued, and deq_qdepth is 0.
//
// What goes round again does so when its turn in its queue has come. All is done in the order of
// time, so results depend on times alone, never on how many packets a call takes.

#ifndef RACKHUB_TIMED_H
#define RACKHUB_TIMED_H

#include "line.h"
#include "target.h"

#define TIMED_NEVER INT64_MAX

struct timed;

// A switch to forward with, as struct ports_program.
struct timed_program {
    struct sw *sw;
    void (*set_traffic_manager)(struct sw *sw, sw_enqueue_fn enqueue, void *tm);
    void (*lock)(struct sw *sw);
    void (*unlock)(struct sw *sw);
    void (*receive)(struct sw *sw, uint32_t port, const struct sw_frame *frame, uint64_t now_us);
    size_t (*send)(struct sw *sw, struct sw_packet *packet, uint64_t now_us, uint8_t *out,
                   size_t cap, struct sw_leaving *leaving);
    struct sw_packet *(*take_round)(struct sw *sw);
    void (*round)(struct sw *sw, struct sw_packet *packet, uint64_t now_us);
    void (*packet_free)(struct sw *sw, struct sw_packet *packet);
};

// `count` packets that arrive on a port, in the order of their times: `stored` bytes of each frame,
// as far apart, of `lengths[i]` bytes in all; what is behind these is no part of it. Of what is not
// stored only the length exists: zeros, should the program look. first: the number of the first
// among all packets of a call. rank: of packets that arrive at one time the lowest come first.
struct timed_train {
    const int64_t *times, *lengths;
    const uint8_t *frames;
    uint64_t count, first, port, stored, rank;
    uint64_t taken; // an answer: how many of them were due
};

// What left one port in one call: `count` packets, `stored` bytes of each, `bytes` in all, which take
// `wire`. free: when the line is.
struct timed_port {
    uint64_t port, count, stored, bytes, wire;
    int64_t free;
};

// What left in one call, port by port. ends[i]: when the last bit did. inputs[i]: the number of
// the arrival that it comes of, -1 if it went round. Frames lie one behind the other, as many bytes of
// each as of the port's longest: behind those that are stored of a shorter one are zeros. came[i]:
// when it came to its queue, of a watched switch only.
struct timed_departures {
    struct timed_port *ports;
    int64_t *ends, *lengths, *inputs, *came;
    uint8_t *priorities, *bytes;
};

// How much room the arrays of timed_departures need.
struct timed_totals {
    uint64_t ports, packets, bytes;
};

// latency: ps from a packet's arrival until it is queued. NULL: no memory.
struct timed *timed_create(uint64_t latency);
void timed_destroy(struct timed *timed); // what waits to go round is lost

// NULL: none. What waits to go round in the program before it is lost. The switch of a program has
// no other traffic manager from now on.
void timed_attach(struct timed *timed, const struct timed_program *program);

// A line for a port. unqueued: somebody else queues and paces what leaves, by its priority; ends are
// when it comes there. 0, or SW_RANGE, SW_EXISTS, SW_NO_MEMORY.
int timed_line(struct timed *timed, uint32_t port, const struct line_options *options,
               int unqueued);
int timed_line_read(const struct timed *timed, uint32_t port, struct line_counters *counters);

// Packets for ports without a line, and packets that arrived while no program was attached.
uint64_t timed_no_port(const struct timed *timed);
uint64_t timed_no_program(const struct timed *timed);

// When the first that goes round again comes back, or arrives by a wire; TIMED_NEVER without one.
int64_t timed_next(const struct timed *timed);

// What a wire has carried since it was asked last; arrived: packets that the receiver has taken.
struct timed_carried {
    uint64_t packets, bytes, wire, arrived;
    int64_t free;
};

// A port's line leads to a port of another switch, `delay` ps away, and nothing else does: what
// leaves it is no departure. rank: as in struct timed_train. 0, SW_NOT_FOUND: no line, SW_EXISTS:
// it has a wire or is an unqueued one, SW_NO_MEMORY. Both switches live until none of them runs.
int timed_wire(struct timed *from, uint32_t from_port, struct timed *to, uint32_t to_port,
               int64_t delay, uint64_t rank);
int timed_wire_read(struct timed *from, uint32_t port, struct timed_carried *carried);

// Before anything has left: departures have the times at which they came to their queues, and what
// leaves by a wire is one, too, for whoever wants to see it.
void timed_watch(struct timed *timed);

// Who is at the other end of a port may answer what leaves it: not before it is there, `delay` ps
// later, and not before its own line is free; its answer takes `least` ps. free is INT64_MAX where
// nobody answers. Read whenever a packet leaves.
struct timed_echo {
    int64_t free, delay, least;
};

// By port, SW_PORTS of them, kept by the caller; NULL: nobody answers.
void timed_echoes(struct timed *timed, const struct timed_echo *echoes);

// A switch of several, and these trains, in the order of their ranks. totals are the call's.
struct timed_part {
    struct timed *timed;
    struct timed_train *trains;
    uint64_t count;
    struct timed_totals totals;
};

// All that is due before `until` in switches that have wires to no others: their trains, what is on
// wires, and what goes round. `until` becomes the first time at which an answer to what left could be
// there, if that is sooner. lookahead: ps that every wire takes at least. Returns 0,
// SW_NO_MEMORY, SW_RANGE: packets go round without time passing, or SW_EXISTS: a packet has a
// priority, but its line is no `unqueued` one.
int timed_run(struct timed_part *parts, uint64_t count, int64_t lookahead, int64_t *until);

// Departures of the last call.
void timed_collect(const struct timed *timed, const struct timed_departures *into);

#endif
