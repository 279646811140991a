// SPDX-License-Identifier: Apache-2.0
//
// Shared by timed_ports.c (one switch: its lines, packets in and out) and timed_run.c (the order of
// events, of several switches).
//
// struct timed is one switch: an outlet per port, recirculating packets in a heap by time
// (recirculation.h), and one struct head per train and incoming wire, which has the time of its
// next packet.

#ifndef RACKHUB_TIMED_STATE_H
#define RACKHUB_TIMED_STATE_H

#include <stdbool.h>

#include "departures.h"
#include "recirculation.h"
#include "strict.h"
#include "timed_ports.h"
#include "wire.h"

enum {
    MOST_ROUNDS = 65536, // recirculations without time passing
    PICOS = 1000000,     // per microsecond
};

// A port: its line, and its departures in this call.
struct outlet {
    struct line line;
    int64_t free_before; // when the line was free before the switch was stopped
    enum timed_queue queue;
    struct strict strict;
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
    uint64_t no_port, no_program, overflowed;
    int64_t held; // it is, or was last, stopped until then
    struct sw_packet *head, *tail; // between ingress and egress
    struct rounds rounds;
    struct wire **wires; // that lead here, by rank
    uint64_t wire_count;
    struct head *heads;
    uint64_t head_count, heads_room;
    struct timed_echo *echoes;
    int64_t until;      // of this window
    int64_t next, last; // of the next event; of the last recirculation
    uint32_t again;     // recirculations since time passed
    uint64_t events;    // of the last window in which there were any
    bool no_memory, prioritised, watched, strict;
    // The present packet.
    int64_t now;
    int64_t input;
    uint32_t frame_stored;
    uint32_t frame_used; // bytes behind it are zero
    uint8_t frame[SW_MAX_FRAME];
    uint8_t leaving[SW_MAX_FRAME]; // for a queue with priorities
};

// Returns when an event happens that would happen at a time, were the switch not stopped then.
static inline int64_t timed_when(const struct timed *timed, int64_t at) {
    return at < timed->held ? timed->held : at;
}

// Processes a packet at `bytes`. input: its index in the call, -1 if it came by a wire.
void timed_arrive(struct timed *timed, uint32_t port, int64_t at, int64_t input,
                  const uint8_t *bytes, uint32_t stored, int64_t length);
// Processes the next recirculating packet.
void timed_recirculate(struct timed *timed);
void timed_drop_rounds(struct timed *timed);
// Sends what starts before the call's end, and before no event before `reached` can change it.
void timed_settle(struct timed *timed, int64_t reached);
// Returns the time of the event that lets the next packet leave a queue with priorities.
int64_t timed_start(const struct timed *timed);

#endif
