// SPDX-License-Identifier: Apache-2.0
//
// The interface between the generated program and the runtime, which are compiled together so that
// the compiler sees sizes as constants.
//
// struct sw is the state of one switch. Its arrays are indexed by position in the program's lists.
// All of it is guarded by the lock; every control call increments `epoch`, which invalidates
// `lasts`, the cached lookups. Packets belong to one of: the pool (`free`), the driver, `fifo`,
// `again`.

#ifndef RACKHUB_PROGRAM_H
#define RACKHUB_PROGRAM_H

#include <stddef.h>
#include <string.h>

#include "bytes.h"
#include "digests.h"
#include "hash.h"
#include "meters.h"
#include "action_profiles.h"
#include "internet_checksum.h"
#include "tables.h"
#include "target.h"
#include "wide_integers.h"

#define SW_COPIED 0x80000000u // in `sealed`: the tail is as an earlier packet left it
#define SW_CLONE_REQUESTED 0x80000000u // with the session in the low bits of clone_session

// State that simple_switch keeps per packet beside the program's headers and metadata. First member
// of every program's struct program_context.
struct sw_state {
    uint32_t clone_session; // SW_CLONE_REQUESTED | id
    uint32_t clone_list;    // field lists that the copy keeps, 0 = none
    uint32_t resubmit_list; // != 0: resubmit
    uint32_t recirculate_list;
    uint32_t packet_length;  // bytes, follows headers that are added and removed
    uint32_t ingress_length; // bytes that counters add
    uint32_t parser_error;
    uint32_t sealed; // which headers of the tail are in front of the payload
    uint8_t checksum_error;
    uint8_t exited; // `exit` was executed in this control
    uint8_t failed; // an assertion failed: the packet is dropped
    uint8_t pending; // != 0: an idle checksum (usage.py) to be completed if the packet leaves
    uint32_t learn_list; // != 0: a digest to send at the end of ingress
};

struct sw_counter {
    uint64_t packets, bytes;
};

struct sw_ring { // first in, first out
    struct sw_packet *head, *tail;
    size_t count;
};

struct sw_replicas; // replication.c
struct sw_trace;

struct sw {
    struct sw_table *tables;
    struct sw_profile *profiles;
    struct hash_crc *crcs; // of calculations with parameters
    struct sw_counter **counters;
    uint64_t **registers; // cells, each with the limbs of its width, and a spare one (sw_beyond)
    struct sw_stats stats;
    sw_log_fn log;
    void *log_user;
    struct sw_trace *trace; // trace.c

    sw_enqueue_fn enqueue;
    void *tm;
    struct sw_ring fifo;  // between ingress and egress while sw_inject runs
    struct sw_ring again; // resubmitted and recirculated
    int injecting;
    uint32_t priority_queues; // per port, available to the program
    uint32_t ahead; // packets to parse before the first runs ingress, so that lookups overlap

    struct sw_replicas **groups; // [SW_GROUPS]
    struct sw_replicas **sessions;

    struct sw_packet *free;
    uint8_t *pool;
    size_t pool_stride, pool_size, pool_used, pool_bytes;

    // The last key looked up in each table and the result, valid while the epoch is the same.
    struct program_lasts *lasts;
    uint64_t epoch; // incremented by every control call

    uint64_t random; // state of sw_random
    struct sw_lock *lock;
    struct sw_meter **meters;
    struct sw_digest *digests;
    int notice;      // descriptor to write to when digests wait, or -1
    uint64_t now_us; // of the present packet, if the program needs it (program_uses_time)
};

// ---------------------------------------------------------------------------------------------
// Provided by the generated program

struct program_context;

extern const size_t program_context_size;
extern const uint32_t program_table_count, program_counter_count, program_register_count;
extern const uint32_t program_meter_count, program_digest_count;
extern const struct sw_table_spec program_tables[];
extern const uint32_t program_crc_count, program_crc_widths[];
extern const struct sw_profile_spec program_profiles[];
extern const uint32_t program_profile_count;
extern const uint64_t program_counter_sizes[], program_meter_sizes[];
extern const uint32_t program_digest_words[]; // of a digest's messages
extern const struct program_register {
    uint64_t size;
    uint32_t limbs;
} program_registers[];

// Before parsing: sets the standard metadata of an arriving packet (the other metadata is zero).
void program_arrive(struct program_context *context, uint32_t port, uint32_t length,
                    uint64_t now_us);
// Set instance_type; and packet_length of a recirculated packet.
void program_set_kind(struct program_context *context, uint32_t kind);
void program_set_length(struct program_context *context, uint32_t length);
void program_set_port(struct program_context *context, uint32_t port);
extern const size_t program_lasts_size;
// 1: it computes something of the payload, whose checksum must be complete then.
extern const int program_reads_payload;
// 1: it has meters, digests or tables whose entries age.
extern const int program_uses_time;
// Parser and verify_checksum: fills headers, returns the bytes consumed (<= length). An incomplete
// checksum of the frame (packet->sum_field) is completed when the parser reaches it, or noted as
// pending.
size_t program_parse(struct sw *sw, struct sw_packet *packet, const uint8_t *frame, size_t length);
// After that: looks up the first table of ingress, if its key is known. In a table with several
// tuples it only finds which of them to search, without a branch that depends on the key; that is
// done for many packets before any of them waits for the rest, program_look_up.
void program_look_ahead(struct sw *sw, struct sw_packet *packet);
void program_look_up(struct sw *sw, struct sw_packet *packet);
void program_ingress(struct sw *sw, struct sw_packet *packet);
// Adds the message of a learn list to its digest.
void program_learn(struct sw *sw, struct program_context *context, uint32_t list);
// Sets the value of the pending checksum.
void program_settle(struct program_context *context, uint16_t checksum);
// The decisions of ingress.
uint32_t program_egress_spec(const struct program_context *context);
uint32_t program_group(const struct program_context *context);
uint32_t program_priority(const struct program_context *context);
void program_set_instance(struct program_context *context, uint32_t egress_rid);
// Before egress: sets the standard metadata that it sees.
void program_depart(struct program_context *context, const struct sw_packet *packet,
                    uint64_t now_us);
void program_egress(struct sw *sw, struct sw_packet *packet);
// 1: no header is added or removed after ingress (except those of the tail).
extern const int program_keeps_headers;
// update_checksum; then program_emit writes program_header_length() bytes of headers.
void program_update_checksums(struct sw *sw, struct sw_packet *packet);
size_t program_header_length(const struct program_context *context);
void program_emit(const struct program_context *context, uint8_t *out);
// The tail: headers that nothing uses after ingress, or only for few packets. Its bytes; its
// output; its invalidation as headers; its return from the payload to headers.
size_t program_tail_length(const struct program_context *context);
void program_emit_tail(struct program_context *context, uint8_t *out);
void program_drop_tail(struct program_context *context);
void program_open_tail(struct sw_packet *packet);
// Moves headers that are still in the frame (usage.py, "framed") into the context.
void program_load_framed(struct program_context *context);
// Reset: metadata zero, headers invalid, whatever was there before (an earlier packet's header is
// cleared where it could be seen: by program_parse at the latest). Copy: all but the tail, into any
// context. Reset metadata only.
void program_reset(struct program_context *context);
void program_copy(struct program_context *to, const struct program_context *from);
void program_reset_metadata(struct program_context *context);
void program_copy_list(struct program_context *to, const struct program_context *from,
                       uint32_t list);

// ---------------------------------------------------------------------------------------------
// Provided to it

// Removes the first bytes of the payload.
static inline void sw_payload_less(struct sw_packet *packet, uint32_t bytes) {
    packet->payload += bytes;
    packet->payload_length -= bytes;
    packet->room = packet->spare = 0;
    if (packet->sum_field == SW_COMPLETE) return;
    packet->sum_start -= bytes;
    packet->sum_field -= bytes;
}

// Completes the checksum if the parser is about to read it in the bytes from .. to of the frame.
static inline void sw_reads(struct sw_packet *packet, const uint8_t *frame, size_t length,
                            size_t from, size_t to) {
    // Field or the byte before it in from .. to; SW_COMPLETE is far behind.
    if (__builtin_expect((uint64_t)packet->sum_field + 1 - from > to - from, 1)) return;
    complete_sum((uint8_t *)frame, length, packet->sum_start, packet->sum_field);
    packet->sum_field = SW_COMPLETE;
}

static inline int sw_index_ok(struct sw *sw, uint64_t index, uint64_t size) {
    if (index < size) return 1;
    sw->stats.out_of_range++;
    return 0;
}

// The cell behind a register's last one, which statements with an index out of range use; counts
// them.
uint64_t *sw_beyond(struct sw *sw, uint32_t array, uint32_t statements)
    __attribute__((cold, noinline));

// Prefetches a register's cell.
static inline void sw_fetch(const struct sw *sw, uint32_t array, uint64_t index, uint64_t size,
                            uint32_t limbs) {
    if (index >= size) return;
    const uint64_t *cell = sw->registers[array] + index * limbs;
    for (uint32_t i = 0; i < limbs; i += 8) __builtin_prefetch(cell + i, 1);
}

static inline void sw_count(struct sw *sw, uint32_t array, uint64_t index, uint32_t bytes) {
    if (!sw_index_ok(sw, index, program_counter_sizes[array])) return;
    sw->counters[array][index].packets++;
    sw->counters[array][index].bytes += bytes;
}

// Zeroes a constant number of bytes in whole words, by stores: compilers may choose slower ways.
static inline void sw_clear(void *at, size_t bytes) {
    typedef uint8_t bytes32 __attribute__((vector_size(32)));
    static const bytes32 zeroes;
    uint8_t *to = at;
    if (bytes < 32 || bytes > 1024) {
        memset(to, 0, bytes);
        return;
    }
#pragma GCC unroll 32
    for (size_t i = 0; i + 32 < bytes; i += 32) memcpy(to + i, &zeroes, 32);
    memcpy(to + bytes - 32, &zeroes, 32);
}

// v1model's random(): uniform in low..high (low <= high), the same sequence in every run.
uint64_t sw_random(struct sw *sw, uint64_t low, uint64_t high);

// A value of log_msg().
struct sw_argument {
    const limb *limbs;
    int count;
    int is_signed;
};
void sw_log_message(struct sw *sw, const char *format, const struct sw_argument *arguments,
                    int count);

#endif
