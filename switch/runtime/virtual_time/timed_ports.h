// SPDX-License-Identifier: Apache-2.0
//
// The ports of one switch in virtual time: packets with a time each go in, and come out with the
// time at which they have left their port. No clock is read.
//
//   arrive -> ingress -> (latency) -> the port's queue -> egress -> the line
//
// Each port has a line with a rate and a bounded FIFO queue, as in interfaces/, but with times in
// picoseconds. A packet's departure is certain when it is queued, so its egress runs at once, with
// the timestamps of later, and its receiver may advance that far. The limits of this: egress sees
// tables as they are when the packet is queued, and deq_qdepth is 0. A queue with priorities decides
// later, and egress sees the timestamps of queueing there.
//
// Resubmitted and recirculated packets return when their turn in their queue has come. All events
// are processed in the order of time, so results depend on times alone, not on how many packets a
// call takes.

#ifndef RACKHUB_TIMED_PORTS_H
#define RACKHUB_TIMED_PORTS_H

#include "line.h"
#include "target.h"

#define TIMED_NEVER INT64_MAX

struct timed;

// `count` packets that arrive on a port, in the order of their times. frames: `stored` bytes of
// each, contiguous; lengths[i]: bytes of the whole frame, beyond which stored bytes are ignored.
// Bytes that are not stored read as zeros. first: the index of the first packet among all packets
// of the call. rank: packets that arrive at one time are processed by rising rank.
struct timed_train {
    const int64_t *times, *lengths;
    const uint8_t *frames;
    uint64_t count, first, port, stored, rank;
    uint64_t taken; // result: how many of them were due
};

// The departures of one port in one call: `count` packets, `stored` bytes of each, `bytes` in all,
// `wire` with the line's overhead. free: when the line is free. given: its frames, which the caller
// frees by timed_free; NULL if they are in struct timed_departures.
struct timed_port {
    uint64_t port, count, stored, bytes, wire;
    int64_t free;
    uint8_t *given;
};

// All departures of one call, port by port. ends[i]: when the last bit left. inputs[i]: the index
// of the arrival it derives from, -1 if it was recirculated. Frames are contiguous rows of the
// port's longest stored frame, padded with zeros. came[i]: when it entered its queue, in a watched
// switch only.
struct timed_departures {
    struct timed_port *ports;
    int64_t *ends, *lengths, *inputs, *came;
    uint8_t *priorities, *bytes;
};

// The sizes of the arrays of timed_departures; bytes: of frames that are not given.
struct timed_totals {
    uint64_t ports, packets, bytes;
};

// latency: ps from a packet's arrival until it is queued. NULL: no memory.
struct timed *timed_create(uint64_t latency);
void timed_destroy(struct timed *timed); // recirculating packets are lost

// Attaches a program's switch and its library's sw_functions; NULL: none. Packets that recirculate
// in the last program are lost. The switch has no other traffic manager from now on.
void timed_attach(struct timed *timed, struct sw *sw, const struct sw_functions *call);
// Drops and counts what waits in queues by strict priority; what has begun to leave is not lost.
void timed_lose(struct timed *timed);

// Stops the switch from now until a time, or longer if it is stopped: nothing begins to leave.
// Packets that arrive by wires meanwhile arrive then, in the order of their ranks, the first
// timed_slots() of each port; others are dropped and counted. Trains have to be held by the caller.
// until = now: it does not go on, and what waits arrives now.
void timed_hold(struct timed *timed, int64_t now, int64_t until);
// How many frames wait at a port meanwhile; 0: no line.
uint64_t timed_slots(const struct timed *timed, uint32_t port);
uint64_t timed_overflowed(const struct timed *timed); // dropped then

// How packets wait for a line: first come, first served; by strict priority (strict.h), where a
// departure is known when it begins; or outside, where the caller queues and paces departures, whose
// ends are when they get there.
enum timed_queue { TIMED_FIFO, TIMED_STRICT, TIMED_OUTSIDE };

// Adds a line for a port. 0, or SW_RANGE, SW_EXISTS, SW_NO_MEMORY.
int timed_line(struct timed *timed, uint32_t port, const struct line_options *options,
               enum timed_queue queue);
int timed_line_read(const struct timed *timed, uint32_t port, struct line_counters *counters);
// See line_change. 0, SW_NOT_FOUND: no line, or SW_NO_MEMORY.
int timed_line_change(struct timed *timed, uint32_t port, const struct line_change *changes,
                      uint64_t count);

// Packets for ports without a line, and packets that arrived while no program was attached.
uint64_t timed_no_port(const struct timed *timed);
uint64_t timed_no_program(const struct timed *timed);

// Returns the time of the next recirculation, arrival by a wire or start of a packet that waits by
// priority; TIMED_NEVER without one.
int64_t timed_next(const struct timed *timed);
int64_t timed_first(const struct timed *const *all, uint64_t count); // of several

// Returns when the first of the packets came that wait by priority; TIMED_NEVER without one.
int64_t timed_since(const struct timed *timed);

// Traffic of a wire since the last call; arrived: packets that the receiver has processed.
struct timed_carried {
    uint64_t packets, bytes, wire, arrived;
    int64_t free;
};

// Connects a port's line to a port of another switch, `delay` ps away, which has no other source:
// what leaves it is no departure. rank: as in struct timed_train. 0, SW_NOT_FOUND: no line,
// SW_EXISTS: it has a wire or its queue is outside, SW_NO_MEMORY. Both switches must outlive the last run of
// either.
int timed_wire(struct timed *from, uint32_t from_port, struct timed *to, uint32_t to_port,
               int64_t delay, uint64_t rank);
int timed_wire_read(struct timed *from, uint32_t port, struct timed_carried *carried);

// Makes departures record when they entered their queues, and reports packets that leave by a wire
// as departures, too. Call it before any packet has left.
void timed_watch(struct timed *timed);

// The peer at a port may answer a packet: it arrives `delay` ps later, is noticed at the next
// multiple of `interval` ps, and is answered `latency` ps later at the earliest, and not before the
// peer's own line is free; the answer takes at least `least` ps. `silent` more packets cause nothing
// else; from the next one on, another event may follow `effect` ps after it is noticed. free is
// INT64_MAX without a peer. Read whenever a packet leaves, which counts `silent` down.
struct timed_echo {
    int64_t free, delay, interval, latency, least, silent, effect;
};

// Sets the peers by port, SW_PORTS of them, owned by the caller; NULL: no peers.
void timed_echoes(struct timed *timed, struct timed_echo *echoes);

// One of several switches and its trains, in the order of their ranks. totals are the call's
// results.
struct timed_part {
    struct timed *timed;
    struct timed_train *trains;
    uint64_t count;
    struct timed_totals totals;
};

// Processes all that is due before `until` in switches that have wires to no others: their trains,
// packets on wires, and recirculated ones. `until` becomes the first time at which an answer to a
// departure could arrive, or its effect, if that is earlier; all before it is done, and what a
// switch does less than a lookahead after it, which no answer reaches. lookahead: ps that every wire
// takes at least. threads: that share the work, at most; results do not depend on it. Returns 0,
// SW_NO_MEMORY, SW_RANGE: packets recirculate without time passing, or SW_EXISTS: a packet has a
// priority, but its line serves packets as they come.
int timed_run(struct timed_part *parts, uint64_t count, int64_t lookahead, uint64_t threads,
              int64_t *until);

// Copies or gives the departures of the last call, and drops them.
void timed_collect(struct timed *timed, const struct timed_departures *into);
void timed_free(uint8_t *given);

#endif
