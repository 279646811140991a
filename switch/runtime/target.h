// SPDX-License-Identifier: Apache-2.0
//
// One v1model switch: the interfaces between three parties.
//
//   program   generated C: parser, controls, deparser of one P4 program (program.h)
//   runtime   switch.c, tables.c, ...: state, tables, packet replication (this file); program and
//             runtime are linked into one shared library per P4 program
//   driver    moves packets: inject.c in process, in the same library; interfaces/, a library
//             of its own, so that interfaces and queues outlive a program
//
// The path of a packet, as in simple_switch:
//
//   sw_receive: parse, verify checksums, ingress control, clone / resubmit / multicast / unicast
//      -> enqueue(tm, packet)          the traffic manager queues it (or drops it: sw_packet_free)
//   sw_send: egress control, clone, update checksums, deparse
//      -> bytes for packet->port, or 0 (dropped or recirculated)
//   sw_recirculate: ingress for packets that were resubmitted or recirculated meanwhile
//
// Invariants. Payloads are not copied: a packet refers to the frame that it came in (it is "on
// loan") until the driver reuses that memory, and copies made by multicast share it. No memory is
// allocated per packet: packets come from a pool that sw_create makes.
//
// Threads: one switch has one lock. Functions in the part "data plane" must be called with it held
// (sw_lock .. sw_unlock around a batch, a few hundred packets at most, so that control calls get
// through). All other functions take it themselves, so must be called WITHOUT it held.

#ifndef RACKHUB_TARGET_H
#define RACKHUB_TARGET_H

#include <stddef.h>
#include <stdint.h>

// Largest frame (bytes, without FCS) that sw_receive takes and sw_send produces. Longer ones are
// counted in sw_stats.oversized and dropped.
#define SW_MAX_FRAME 16384

// Ports are v1model's bit<9>; 511 means "drop" in egress_spec and is never a port.
#define SW_PORTS 512
#define SW_DROP_PORT 511
#define SW_PRIORITIES 8 // the most queues per port
#define SW_WHOLE UINT32_MAX

struct sw;       // one switch: a program's state, tables, groups, sessions, packet pool
struct sw_table; // private to the runtime

// Private to the runtime: the result of looking up a table ahead.
struct sw_hint {
    const struct sw_table *table; // NULL: none
    struct sw_entry *entry;       // NULL: a miss
    // The lookup is unfinished: the table's number + 1, else 0; `maybe`: sw_candidates of its first
    // tuples.
    uint32_t waits, maybe;
};

// A packet between ingress and egress. The traffic manager owns it from enqueue() until it passes
// it to sw_send, sw_egress or sw_packet_free. It may use every field of the first group, writes
// those marked (tm), and never accesses the others.
struct sw_packet {
    struct sw_packet *next; // (tm) queue link
    uint32_t port;          // egress port, 0..510 (also ports that do not exist)
    uint32_t priority;      // queue within the port, 0 (lowest, the default) .. 7
    uint32_t length;        // bytes it would have on the wire now; egress may still change it
    uint32_t enq_qdepth;    // (tm) packets in its queue when it was enqueued, without itself
    uint32_t deq_qdepth;    // (tm) packets in its queue when it was dequeued, without itself
    uint32_t on_loan;       // its payload lies in the frame given to sw_receive: see sw_packet_keep
    uint64_t enq_us;        // (tm) time of enqueue; sw_enqueue's now_us is good for it
    void *tm;               // (tm) free for the traffic manager

    // Private to the runtime from here on: the packet's content and the generated program's state.
    uint8_t *payload;        // the part of the frame that the parser did not extract
    uint32_t payload_length;
    uint32_t room;           // bytes in front of the payload that may be overwritten
    uint32_t fragile;        // bytes of a payload on loan valid only until sw_receive returns
    uint32_t sum_start;      // of a checksum to be completed: see struct sw_frame; offsets within
    uint32_t sum_field;      // the payload (within the frame during ingress)
    uint32_t frame_length;  // of the whole frame in buffer, while it waits to recirculate
    uint32_t truncate;      // bytes to cut it to when it is sent, SW_WHOLE = do not
    uint32_t spare;         // unused bytes in front of a payload on loan
    uint32_t whole;         // bytes of headers and payload when it was enqueued
    uint32_t arrival;       // port that the frame in buffer came in on
    uint8_t *buffer;        // SW_MAX_FRAME bytes of its own
    uint64_t *context;      // struct program_context of the generated program
    struct sw_hint hint;
#ifdef SW_TRACE // trace.h
    uint64_t trace_origin;
    uint32_t trace_copy, trace_over;
#endif
};

#define SW_COMPLETE UINT32_MAX // as sum_field: no checksum is to be completed

// A frame that has arrived. lasting: it stays valid for a while after the call, so that packets may
// refer to it. writable: the switch may overwrite it.
struct sw_frame {
    uint8_t *bytes;
    uint32_t length;
    // The 16-bit checksum at sum_field still lacks the sum of everything from sum_start on (it
    // holds that of the pseudo header), or SW_COMPLETE. The program never notices: what it reads is
    // completed first, what leaves is complete or marked so in struct sw_leaving.
    uint32_t sum_start, sum_field;
    uint32_t lasting, writable; // writable: always, if there is a checksum to complete
    uint32_t fragile;           // this many bytes at its beginning do not last
};

// The part of a packet that sw_send has not written, which follows what it has. On loan: valid
// until the frame that it came in is reused.
struct sw_leaving {
    const uint8_t *payload;
    uint32_t payload_length;
    uint32_t fragile;              // its first bytes, to be copied at once
    // This many bytes in front of it are unused: the sender may write there, but so may the sender
    // of another copy of the packet.
    uint32_t spare;
    uint32_t sum_start, sum_field; // as in struct sw_frame; offsets within the whole packet
};

// standard_metadata.instance_type as simple_switch numbers it.
enum sw_instance_type {
    SW_NORMAL = 0,
    SW_INGRESS_CLONE = 1,
    SW_EGRESS_CLONE = 2,
    SW_COALESCED = 3,
    SW_RECIRCULATED = 4,
    SW_REPLICATED = 5,
    SW_RESUBMITTED = 6,
};

struct sw_stats {
    uint64_t received;      // frames given to sw_receive
    uint64_t sent;          // frames that sw_send returned
    uint64_t dropped;       // packets that the program dropped
    uint64_t oversized;     // frames over SW_MAX_FRAME, in or out
    uint64_t no_buffer;     // packets or copies lost because the pool was empty
    uint64_t no_session;    // clones to a session that is not configured
    uint64_t no_group;      // packets to a multicast group that is not configured
    uint64_t out_of_range;  // register or counter indices beyond the array (ignored, as in BMv2)
    uint64_t assertions;    // packets dropped because an assert() or assume() failed
    uint64_t parser_timeouts; // packets whose parser looped endlessly (ParserTimeout)
    uint64_t rounds_lost;     // packets not recirculated because too many were
    uint64_t digests_lost;  // messages for the control plane without room
};

// The traffic manager's entry. Called with the lock held, from sw_receive, sw_send (egress clones)
// and sw_recirculate. Takes ownership of the packet. It may send the packet at once, but not from
// within sw_send.
typedef void (*sw_enqueue_fn)(void *tm, struct sw_packet *packet, uint64_t now_us);

// ---------------------------------------------------------------------------------------------
// Life cycle

// pool: packets that may exist at once (queued or waiting to recirculate); their memory is touched
// only when used. NULL with errno set if there is no memory.
struct sw *sw_create(uint32_t pool);
void sw_destroy(struct sw *sw);

// Queues per port for the priorities that the program gives packets, 1 .. SW_PRIORITIES; 1 until
// this is called. Packets of other priorities are dropped at the end of ingress. Clones have their
// session's priority, which is not bounded by it.
int sw_set_priority_queues(struct sw *sw, uint32_t count);

// Sets the receiver of packets after ingress. Without one (before this call, and after NULL) only
// sw_inject moves packets, through a queue of its own.
void sw_set_traffic_manager(struct sw *sw, sw_enqueue_fn enqueue, void *tm);

void sw_get_stats(struct sw *sw, struct sw_stats *stats);

// ---------------------------------------------------------------------------------------------
// Data plane: lock held

void sw_lock(struct sw *sw);   // lets waiting control calls through first
void sw_unlock(struct sw *sw);
void sw_lock_control(struct sw *sw); // for control calls: before the data plane; then sw_unlock

// A frame has arrived on `port`. now_us: microseconds since the switch started (any monotonic
// clock; the same one for all calls).
void sw_receive(struct sw *sw, uint32_t port, const struct sw_frame *frame, uint64_t now_us);

// Runs egress for a packet that has left its queue, and frees it. Returns the length of the frame
// (at most cap; cap should be SW_MAX_FRAME), to be sent on the port that the packet had (read it
// before the call), or 0 when there is nothing to send. The first bytes are written to out, the
// others are in *leaving (payload NULL: all is written). May call enqueue() for egress clones.
size_t sw_send(struct sw *sw, struct sw_packet *packet, uint64_t now_us, uint8_t *out, size_t cap,
               struct sw_leaving *leaving);
// The same, with the whole and complete frame written to out.
size_t sw_egress(struct sw *sw, struct sw_packet *packet, uint64_t now_us, uint8_t *out,
                 size_t cap);

// Moves the payload of a packet on loan into memory of its own, for packets that still wait when
// the frames they came in are about to be reused.
void sw_packet_keep(struct sw *sw, struct sw_packet *packet);

// Runs ingress for up to `limit` packets that were resubmitted or recirculated before; returns how
// many wait then. Call it once per batch: those packets precede new ones from the ports.
size_t sw_recirculate(struct sw *sw, uint64_t now_us, size_t limit);

// For a driver that schedules each of them itself: the next one, or NULL; its ingress.
struct sw_packet *sw_take_round(struct sw *sw);
void sw_round(struct sw *sw, struct sw_packet *packet, uint64_t now_us);

// Gives back a packet that the traffic manager drops.
void sw_packet_free(struct sw *sw, struct sw_packet *packet);

// The data plane as drivers in other libraries call it.
struct sw_functions {
    void (*set_traffic_manager)(struct sw *sw, sw_enqueue_fn enqueue, void *tm);
    void (*lock)(struct sw *sw);
    void (*unlock)(struct sw *sw);
    void (*receive)(struct sw *sw, uint32_t port, const struct sw_frame *frame, uint64_t now_us);
    size_t (*send)(struct sw *sw, struct sw_packet *packet, uint64_t now_us, uint8_t *out,
                   size_t cap, struct sw_leaving *leaving);
    void (*packet_keep)(struct sw *sw, struct sw_packet *packet);
    size_t (*recirculate)(struct sw *sw, uint64_t now_us, size_t limit);
    struct sw_packet *(*take_round)(struct sw *sw);
    void (*round)(struct sw *sw, struct sw_packet *packet, uint64_t now_us);
    void (*packet_free)(struct sw *sw, struct sw_packet *packet);
};
extern const struct sw_functions sw_functions;

// ---------------------------------------------------------------------------------------------
// Control: lock not held. Tables, registers and so on are numbered by their position in the
// program's lists (pipeline.py translates names). Return 0 or a handle >= 0, or one of these:

enum sw_error {
    SW_EXISTS = -1,   // there is an entry with this key (and priority)
    SW_FULL = -2,     // the table has its declared size
    SW_NOT_FOUND = -3,
    SW_NO_MEMORY = -4,
    SW_RANGE = -5,    // index out of range
};

// Keys are packed into 64-bit words by codegen/layout.py (TableLayout). value and mask have the
// table's key words; low and high one word each per range field (NULL without range fields). The
// highest priority wins; for lpm tables priority is the prefix length.
int64_t sw_table_insert(struct sw *sw, uint32_t table, const uint64_t *value, const uint64_t *mask,
                        const uint64_t *low, const uint64_t *high, int32_t priority,
                        uint32_t action, const uint64_t *args);
int sw_table_modify(struct sw *sw, uint32_t table, int64_t handle, uint32_t action,
                    const uint64_t *args);
int sw_table_delete(struct sw *sw, uint32_t table, int64_t handle);
int sw_table_set_default(struct sw *sw, uint32_t table, uint32_t action, const uint64_t *args);
// handle < 0: the default entry.
int sw_table_counter(struct sw *sw, uint32_t table, int64_t handle, uint64_t *packets,
                     uint64_t *bytes);
int sw_table_set_counter(struct sw *sw, uint32_t table, int64_t handle, uint64_t packets,
                         uint64_t bytes);

// Members and groups of action profiles (action_profiles.h), by numbers that the caller gives;
// setting one that exists replaces it. A group chooses members[hash % count].
int sw_member_set(struct sw *sw, uint32_t profile, uint32_t number, uint32_t action,
                  const uint64_t *args);
int sw_member_delete(struct sw *sw, uint32_t profile, uint32_t number);
int sw_choices_set(struct sw *sw, uint32_t profile, uint32_t number, const uint32_t *members,
                   uint32_t count);
int sw_choices_delete(struct sw *sw, uint32_t profile, uint32_t number);

// Parameters of a calculation by crc16_custom or crc32_custom (hash.h).
int sw_crc_set(struct sw *sw, uint32_t crc, uint32_t poly, uint32_t init, uint32_t xor_out,
               int reflect_in, int reflect_out);

int sw_counter_read(struct sw *sw, uint32_t array, uint64_t index, uint64_t *packets,
                    uint64_t *bytes);
int sw_counter_write(struct sw *sw, uint32_t array, uint64_t index, uint64_t packets,
                     uint64_t bytes);
// value: ceil(bitwidth / 64) words, least significant first.
int sw_register_read(struct sw *sw, uint32_t array, uint64_t index, uint64_t *value);
int sw_register_write(struct sw *sw, uint32_t array, uint64_t index, const uint64_t *value);

// Meters: rates are cir, cburst, pir, pburst (tokens per second, tokens), each below 2^63; NULL: no
// rates, green for all. Reading returns 1 if there are rates, else 0 (and zeros).
int sw_meter_write(struct sw *sw, uint32_t array, uint64_t index, const uint64_t *rates);
int sw_meter_read(struct sw *sw, uint32_t array, uint64_t index, uint64_t *rates);
int sw_table_meter_write(struct sw *sw, uint32_t table, int64_t handle, const uint64_t *rates);
int sw_table_meter_read(struct sw *sw, uint32_t table, int64_t handle, uint64_t *rates);

// The last hits of entries of a table that ages them, and their update; UINT64_MAX: no such entry.
int sw_table_touch(struct sw *sw, uint32_t table, int64_t handle, uint64_t now_us);
int sw_table_hits(struct sw *sw, uint32_t table, size_t count, const int64_t *handles,
                  uint64_t *hit_us);

// Digests are collected while enabled. The descriptor (an eventfd, -1: none) is written to when a
// first message waits, and when signal_at do; signal_at 0 disables the digest and discards its
// messages.
void sw_set_notice(struct sw *sw, int descriptor);
int sw_digest_enable(struct sw *sw, uint32_t digest, uint32_t signal_at);
// Returns how many messages wait, and since when the first does.
int64_t sw_digest_waiting(struct sw *sw, uint32_t digest, uint64_t *since_us);
// Takes the first `most` of them at most; returns how many. Until their slots are released, equal
// messages are suppressed.
int64_t sw_digest_take(struct sw *sw, uint32_t digest, size_t most, uint64_t *messages,
                       uint32_t *slots);
int sw_digest_release(struct sw *sw, uint32_t digest, size_t count, const uint32_t *slots);

struct sw_replica {
    uint32_t port;
    uint32_t instance; // egress_rid
};

// Replaces an existing group or session; replicas are sent in the order given.
int sw_group_set(struct sw *sw, uint32_t id, const struct sw_replica *replicas, size_t count);
int sw_group_delete(struct sw *sw, uint32_t id);
// truncate: bytes of a clone that are sent, 0 = all.
int sw_session_set(struct sw *sw, uint32_t id, const struct sw_replica *replicas, size_t count,
                   uint32_t truncate, uint32_t priority);
int sw_session_delete(struct sw *sw, uint32_t id);

// Sets the receiver of log_msg() and of failed assertions, called with the lock held; NULL: none.
typedef void (*sw_log_fn)(void *user, const char *message);
void sw_set_log(struct sw *sw, sw_log_fn log, void *user);
// Sets the receiver of every packet's trace, line by line. SW_NOT_FOUND: not compiled with tracing.
int sw_set_trace(struct sw *sw, sw_log_fn log, void *user);
// Writes traces to a descriptor with the time, a line at a time, without leaving C.
int sw_trace_to(struct sw *sw, int descriptor);

// ---------------------------------------------------------------------------------------------
// In process: a driver with one unbounded first-in first-out queue and no pacing.

struct sw_output {
    uint32_t port;
    uint32_t length;
    uint64_t offset; // of its first byte in the bytes buffer
};

// Runs `count` frames (frame i at frames[offsets[i]], lengths[i] bytes, on ports[i]) that arrive
// back to back, drains the queue after each ingress, then recirculates. Takes the lock. With a
// traffic manager set, packets go there and none come out here. Writes up to max_outputs packets in
// order with their bytes, and their number; returns 0, or SW_FULL (outputs or bytes too small: what
// did not fit is lost), or SW_RANGE: packets were recirculated more than 65536 times.
int sw_inject(struct sw *sw, size_t count, const uint32_t *ports, const uint8_t *frames,
              const uint64_t *offsets, const uint32_t *lengths, uint64_t now_us,
              struct sw_output *outputs, size_t max_outputs, uint8_t *bytes, size_t max_bytes,
              size_t *produced);

#endif
