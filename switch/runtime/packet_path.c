// SPDX-License-Identifier: Apache-2.0
//
// The path of a packet through simple_switch, after the pseudocode "what happens at the end of
// ingress and egress processing" of BMv2's simple_switch.md. Compiled together with the generated
// program.
//
// Invariants: a queued packet has its tail sealed (bytes in front of the payload)
// and a payload either on loan or in its own buffer. sum_start and sum_field count from the frame
// while it is parsed, from the payload afterwards. Every packet is passed on, or freed exactly
// once.

#include "packets.h"
#include "trace.h"

// The path of every packet is inlined.
#define EVERY_PACKET static inline __attribute__((always_inline))

// Counts, traces and frees a packet that is lost.
#define LOSE(sw, packet, counter, ...)         \
    do {                                       \
        (sw)->stats.counter++;                 \
        SW_GONE(sw, packet, __VA_ARGS__);      \
        sw_packet_free(sw, packet);            \
    } while (0)

EVERY_PACKET struct sw_packet *take_clean(struct sw *sw) {
    struct sw_packet *packet = sw_packet_take(sw);
    if (packet) program_reset(context_of(packet));
    return packet;
}

// ---------------------------------------------------------------------------------------------
// Payloads

static int in_own_buffer(const struct sw_packet *packet) {
    return packet->payload >= packet->buffer && packet->payload <= packet->buffer + SW_MAX_FRAME;
}

void sw_packet_keep(struct sw *sw, struct sw_packet *packet) {
    (void)sw;
    packet->on_loan = 0;
    if (in_own_buffer(packet)) return;
    if (packet->payload_length) memcpy(packet->buffer, packet->payload, packet->payload_length);
    packet->payload = packet->buffer;
    packet->room = packet->fragile = 0;
}

// Moves the last headers (usage.py, "tail") in front of the payload, as bytes. Returns 0 if the
// packet becomes too long.
static int seal_tail(struct sw *sw, struct sw_packet *packet, size_t tail) {
    if (tail + packet->payload_length > SW_MAX_FRAME) return 0;
    if (packet->room < tail) {
        program_load_framed(context_of(packet)); // they may be in the buffer
        if (packet->payload_length)
            memmove(packet->buffer + tail, packet->payload, packet->payload_length);
        packet->payload = packet->buffer + tail;
        packet->room = (uint32_t)tail;
        packet->on_loan = packet->fragile = 0;
    }
    packet->payload -= tail;
    packet->payload_length += (uint32_t)tail;
    packet->room -= (uint32_t)tail;
    if (packet->sum_field != SW_COMPLETE) {
        packet->sum_start += (uint32_t)tail;
        packet->sum_field += (uint32_t)tail;
    }
    program_emit_tail(context_of(packet), packet->payload);
    program_drop_tail(context_of(packet));
    (void)sw;
    return 1;
}

static inline int seal(struct sw *sw, struct sw_packet *packet) {
    size_t tail = program_tail_length(context_of(packet));
    return !tail || seal_tail(sw, packet, tail);
}

// Completes the checksum in the payload. A payload on loan may be shared, so it is copied first.
static void complete_payload(struct sw *sw, struct sw_packet *packet) {
    if (packet->sum_field == SW_COMPLETE) return;
    sw_packet_keep(sw, packet);
    complete_sum(packet->payload, packet->payload_length, packet->sum_start, packet->sum_field);
    packet->sum_field = SW_COMPLETE;
}

// ---------------------------------------------------------------------------------------------
// Between ingress and egress

static void enqueue(struct sw *sw, struct sw_packet *packet, uint32_t port, uint32_t priority,
                    uint64_t now_us) {
    if (port >= SW_DROP_PORT || priority >= SW_PRIORITIES) {
        LOSE(sw, packet, dropped, port < SW_DROP_PORT
                                      ? "is dropped: there is no queue of its priority"
                                      : "is dropped");
        return;
    }
    packet->port = port;
    packet->priority = priority;
    packet->whole = (uint32_t)program_header_length(context_of(packet)) + packet->payload_length;
    packet->length = packet->whole > packet->truncate ? packet->truncate : packet->whole;
    SW_TELL(sw, packet, "goes to port %u, priority %u, %u bytes", port, priority, packet->length);
    packet->enq_us = now_us;
    packet->enq_qdepth = 0;
    packet->deq_qdepth = 0;
    if (!packet->on_loan) sw_packet_keep(sw, packet);
    if (sw->enqueue) {
        sw->enqueue(sw->tm, packet, now_us);
    } else if (sw->injecting) {
        ring_push(&sw->fifo, packet);
    } else {
        sw_packet_free(sw, packet);
    }
}

// Returns a copy with headers, metadata and the whole payload: truncate is for the packet that
// asked for it, not for its copies (as in BMv2).
EVERY_PACKET struct sw_packet *copy_packet(struct sw *sw, struct sw_packet *packet) {
    struct sw_packet *copy = sw_packet_take(sw);
    if (!copy) {
        SW_TELL(sw, packet, "has no memory for a copy");
        return NULL;
    }
    SW_COPIED_FROM(sw, copy, packet);
    program_copy(context_of(copy), context_of(packet));
    copy->arrival = packet->arrival;
    copy->payload_length = packet->payload_length;
    copy->sum_start = packet->sum_start;
    copy->sum_field = packet->sum_field;
    copy->fragile = packet->fragile;
    copy->spare = packet->spare;
    copy->on_loan = packet->on_loan;
    copy->room = 0;
    copy->payload = packet->payload;
    if (!copy->on_loan) {
        copy->payload = copy->buffer;
        if (copy->payload_length) memcpy(copy->buffer, packet->payload, copy->payload_length);
    }
    return copy;
}

static void clear_requests(struct sw_packet *packet) {
    struct sw_state *state = state_of(packet);
    state->clone_session = state->clone_list = 0;
    state->resubmit_list = state->recirculate_list = 0;
}

// Sends one copy per replica; takes the packet, which becomes the last copy.
static void replicate(struct sw *sw, struct sw_packet *packet, const struct sw_replicas *list,
                      uint32_t priority, uint64_t now_us) {
    for (size_t i = 0; i < list->count; i++) {
        int last = i + 1 == list->count;
        struct sw_packet *copy = last ? packet : copy_packet(sw, packet);
        if (!copy) continue;
        clear_requests(copy);
        copy->truncate = list->truncate ? list->truncate : SW_WHOLE;
        program_set_instance(context_of(copy), list->replica[i].instance);
        enqueue(sw, copy, list->replica[i].port, priority, now_us);
        if (last) return;
    }
    SW_GONE(sw, packet, "is dropped: there are no replicas");
    sw_packet_free(sw, packet);
}

// ---------------------------------------------------------------------------------------------
// Ingress

// writable: bytes of the frame may be overwritten, those from `fragile` on for good.
EVERY_PACKET void parse(struct sw *sw, struct sw_packet *packet, uint8_t *frame, size_t length,
                  int writable, uint32_t fragile) {
    uint32_t parsed = (uint32_t)program_parse(sw, packet, frame, length);
    packet->payload = frame + parsed;
    packet->payload_length = (uint32_t)length - parsed;
    packet->room = writable && parsed > fragile ? parsed - fragile : 0;
    packet->fragile = fragile > parsed ? fragile - parsed : 0;
    if (packet->sum_field == SW_COMPLETE || state_of(packet)->pending) return;
    if (packet->sum_start < parsed) { // the program may change part of what is summed
        complete_sum(frame, length, packet->sum_start, packet->sum_field);
        packet->sum_field = SW_COMPLETE;
    } else {
        packet->sum_start -= parsed;
        packet->sum_field -= parsed;
    }
}

// Completes the frame's checksum where it can be seen: in the header if the parser has passed it,
// and in the frame if that is parsed again.
static void settle(struct sw_packet *packet, uint8_t *frame, size_t length, int in_frame) {
    struct sw_state *state = state_of(packet);
    if (packet->sum_field == SW_COMPLETE) return;
    uint32_t parsed = state->pending ? 0 : (uint32_t)(packet->payload - frame);
    uint32_t start = packet->sum_start + parsed, field = packet->sum_field + parsed;
    if (state->pending) {
        uint16_t checksum = sum_checksum(sum_bytes(0, frame + start, length - start));
        program_settle(context_of(packet), (uint16_t)load16((uint8_t *)&checksum));
        if (in_frame) memcpy(frame + field, &checksum, sizeof checksum);
        state->pending = 0;
    } else if (in_frame) {
        complete_sum(frame, length, start, field);
    } else {
        return;
    }
    packet->sum_field = SW_COMPLETE;
}

// Returns the session that a clone is requested for, or NULL.
static const struct sw_replicas *session_of(struct sw *sw, struct sw_packet *packet) {
    uint32_t number = state_of(packet)->clone_session & (SW_SESSIONS - 1);
    const struct sw_replicas *session = sw->sessions[number];
    SW_TELL(sw, packet, "is cloned to session %u%s", number,
            session ? "" : ", which does not exist");
    sw->stats.no_session += !session;
    return session;
}

// Sends a copy of the frame as it came in, parsed again, straight to egress.
static void clone_to_egress(struct sw *sw, struct sw_packet *packet, uint8_t *frame, size_t length,
                            uint64_t now_us) {
    struct sw_state *state = state_of(packet);
    const struct sw_replicas *session = session_of(sw, packet);
    struct sw_packet *clone = session ? take_clean(sw) : NULL;
    if (!clone) return;
    SW_COPIED_FROM(sw, clone, packet);
    struct sw_state *own = state_of(clone);
    own->packet_length = state->ingress_length;
    own->ingress_length = state->ingress_length;
    clone->arrival = packet->arrival;
    program_set_port(context_of(clone), packet->arrival);
    parse(sw, clone, frame, length, 0, 0);
    sw_packet_keep(sw, clone);
    program_reset_metadata(context_of(clone));
    program_copy_list(context_of(clone), context_of(packet), state->clone_list);
    program_set_kind(context_of(clone), SW_INGRESS_CLONE);
    if (!seal(sw, clone)) {
        LOSE(sw, clone, oversized, "is dropped: too long");
        return;
    }
    replicate(sw, clone, session, session->priority, now_us);
}

// Queues the frame for ingress again, with the metadata of a field list.
static void reenter_ingress(struct sw *sw, struct sw_packet *packet, const uint8_t *frame,
                            size_t length, uint32_t list, uint32_t kind) {
    // Packets that recirculate for ever must leave room for arriving ones.
    if (sw->again.count > sw->pool_size / 2) {
        sw->stats.rounds_lost++;
        SW_TELL(sw, packet, "is not recirculated: too many packets are");
        return;
    }
    struct sw_packet *again = take_clean(sw);
    if (!again) return;
    SW_COPIED_FROM(sw, again, packet);
    SW_TELL(sw, packet, "is %s as %zu bytes, copy %u",
            kind == SW_RESUBMITTED ? "resubmitted" : "recirculated", length, again->trace_copy);
    memcpy(again->buffer, frame, length);
    again->frame_length = (uint32_t)length;
    again->arrival = packet->arrival;
    program_copy_list(context_of(again), context_of(packet), list);
    program_set_kind(context_of(again), kind);
    program_set_length(context_of(again), (uint32_t)length);
    state_of(again)->packet_length = (uint32_t)length;
    state_of(again)->ingress_length = (uint32_t)length;
    ring_push(&sw->again, again);
}

// Finishes ingress for a packet that is forwarded. Returns 0 if it is too long, and freed.
static int leave_ingress(struct sw *sw, struct sw_packet *packet, uint8_t *frame, size_t length) {
    if (state_of(packet)->pending) settle(packet, frame, length, 0);
    if (seal(sw, packet)) {
        packet->spare = packet->room;
        return 1;
    }
    LOSE(sw, packet, oversized, "is dropped: too long");
    return 0;
}

EVERY_PACKET void ingress(struct sw *sw, struct sw_packet *packet, const struct sw_frame *arrived,
                    uint64_t now_us) {
    struct program_context *context = context_of(packet);
    struct sw_state *state = state_of(packet);
    uint8_t *frame = arrived->bytes;
    size_t length = arrived->length;
    program_ingress(sw, packet);
    state->exited = 0;
    if (state->failed) {
        LOSE(sw, packet, assertions, "is dropped: an assertion failed");
        return;
    }
    if (state->clone_session || state->resubmit_list || packet->truncate != SW_WHOLE)
        settle(packet, frame, length, 1);
    if (state->clone_session) clone_to_egress(sw, packet, frame, length, now_us);
    state->clone_session = state->clone_list = 0;
    if (program_digest_count && state->learn_list) {
        program_learn(sw, context, state->learn_list);
        state->learn_list = 0;
    }
    if (state->resubmit_list) {
        reenter_ingress(sw, packet, frame, length, state->resubmit_list, SW_RESUBMITTED);
        SW_GONE(sw, packet, "ends here");
        sw_packet_free(sw, packet);
        return;
    }
    uint32_t group = program_group(context), priority = program_priority(context);
    if (priority >= sw->priority_queues) priority = SW_PRIORITIES; // dropped, as BMv2 does
    if (group) {
        const struct sw_replicas *replicas = group < SW_GROUPS ? sw->groups[group] : NULL;
        program_set_kind(context, SW_REPLICATED);
        if (replicas) {
            SW_TELL(sw, packet, "goes to group %u: %zu replicas", group, replicas->count);
            if (!leave_ingress(sw, packet, frame, length)) return;
            replicate(sw, packet, replicas, priority, now_us);
        } else {
            LOSE(sw, packet, no_group, "is dropped: there is no group %u", group);
        }
        return;
    }
    uint32_t port = program_egress_spec(context);
    program_set_kind(context, SW_NORMAL);
    if (port < SW_DROP_PORT && !leave_ingress(sw, packet, frame, length)) return;
    enqueue(sw, packet, port, priority, now_us);
}

// Parses a frame into a packet. NULL: it is lost.
static inline struct sw_packet *arrive(struct sw *sw, uint32_t port, const struct sw_frame *frame,
                                       uint64_t now_us) {
    if (program_uses_time) sw->now_us = now_us;
    sw->stats.received++;
    uint32_t length = frame->length;
    if (length > SW_MAX_FRAME) {
        sw->stats.oversized++;
        return NULL;
    }
    struct sw_packet *packet = take_clean(sw);
    if (!packet) return NULL;
    SW_ARRIVES(sw, packet, port, length);
    packet->arrival = port;
    packet->on_loan = frame->lasting;
    packet->sum_start = frame->sum_start;
    packet->sum_field = frame->sum_field;
    if (program_reads_payload) sw_reads(packet, frame->bytes, length, 0, length);
    state_of(packet)->packet_length = length;
    state_of(packet)->ingress_length = length;
    program_arrive(context_of(packet), port, length, now_us);
    parse(sw, packet, frame->bytes, length, (int)frame->writable, frame->fragile);
    return packet;
}

void sw_receive(struct sw *sw, uint32_t port, const struct sw_frame *frame, uint64_t now_us) {
    struct sw_packet *packet = arrive(sw, port, frame, now_us);
    if (packet) ingress(sw, packet, frame, now_us);
}

struct sw_packet *sw_arrive(struct sw *sw, uint32_t port, const struct sw_frame *frame,
                            uint64_t now_us) {
    return arrive(sw, port, frame, now_us);
}

void sw_ingress(struct sw *sw, struct sw_packet *packet, const struct sw_frame *frame,
                uint64_t now_us) {
    if (program_uses_time) sw->now_us = now_us;
    ingress(sw, packet, frame, now_us);
}

struct sw_packet *sw_take_round(struct sw *sw) {
    return ring_pop(&sw->again);
}

void sw_round(struct sw *sw, struct sw_packet *packet, uint64_t now_us) {
    if (program_uses_time) sw->now_us = now_us;
    SW_TELL(sw, packet, "comes again on port %u, %u bytes", packet->arrival, packet->frame_length);
    struct sw_frame frame = {
        .bytes = packet->buffer, .length = packet->frame_length, .writable = 1};
    parse(sw, packet, frame.bytes, frame.length, 1, 0);
    ingress(sw, packet, &frame, now_us);
}

size_t sw_recirculate(struct sw *sw, uint64_t now_us, size_t limit) {
    if (limit > sw->again.count) limit = sw->again.count; // without those that they create
    while (limit--) sw_round(sw, sw_take_round(sw), now_us);
    return sw->again.count;
}

// ---------------------------------------------------------------------------------------------
// Egress

static void clone_at_egress(struct sw *sw, struct sw_packet *packet, uint64_t now_us) {
    struct sw_state *state = state_of(packet);
    const struct sw_replicas *session = session_of(sw, packet);
    struct sw_packet *clone = session && seal(sw, packet) ? copy_packet(sw, packet) : NULL;
    if (!clone) return;
    program_reset_metadata(context_of(clone));
    program_copy_list(context_of(clone), context_of(packet), state->clone_list);
    program_set_kind(context_of(clone), SW_EGRESS_CLONE);
    state_of(clone)->packet_length = state->packet_length;
    state_of(clone)->ingress_length = state->ingress_length;
    replicate(sw, clone, session, session->priority, now_us);
}

EVERY_PACKET size_t deparse(struct sw *sw, struct sw_packet *packet, uint8_t *out, size_t cap,
                      struct sw_leaving *leaving) {
    program_update_checksums(sw, packet);
    size_t headers = program_keeps_headers ? packet->whole - packet->payload_length
                                           : program_header_length(context_of(packet));
    size_t length = headers + packet->payload_length;
    if (length > cap || length > SW_MAX_FRAME) {
        sw->stats.oversized++;
        SW_TELL(sw, packet, "is dropped: %zu bytes are too many", length);
        return 0;
    }
    program_emit(context_of(packet), out);
    int whole = length <= packet->truncate && !state_of(packet)->recirculate_list;
    if (!whole) complete_payload(sw, packet);
    leaving->sum_field = SW_COMPLETE;
    if (packet->sum_field != SW_COMPLETE) {
        leaving->sum_start = (uint32_t)headers + packet->sum_start;
        leaving->sum_field = (uint32_t)headers + packet->sum_field;
    }
    leaving->payload = NULL;
    leaving->payload_length = leaving->fragile = leaving->spare = 0;
    if (packet->on_loan && whole) {
        leaving->payload = packet->payload;
        leaving->payload_length = packet->payload_length;
        leaving->fragile = packet->fragile;
        leaving->spare = packet->spare;
    } else if (packet->payload_length) {
        memcpy(out + headers, packet->payload, packet->payload_length);
    }
    return length > packet->truncate ? packet->truncate : length;
}

size_t sw_send(struct sw *sw, struct sw_packet *packet, uint64_t now_us, uint8_t *out, size_t cap,
               struct sw_leaving *leaving) {
    struct program_context *context = context_of(packet);
    struct sw_state *state = state_of(packet);
    size_t length = 0;
    if (program_uses_time) sw->now_us = now_us;
    SW_TELL(sw, packet, "egress on port %u", packet->port);
    program_depart(context, packet, now_us);
    program_egress(sw, packet);
    state->exited = 0;
    if (state->failed) {
        LOSE(sw, packet, assertions, "is dropped: an assertion failed");
        return 0;
    }
    if (state->clone_session) clone_at_egress(sw, packet, now_us);
    if (program_egress_spec(context) == SW_DROP_PORT) {
        sw->stats.dropped++;
        SW_TELL(sw, packet, "is dropped");
    } else {
        // As in BMv2: what recirculates is a copy, which truncate is not for.
        if (state->recirculate_list) packet->truncate = SW_WHOLE;
        length = deparse(sw, packet, out, cap, leaving);
        if (state->recirculate_list && length) {
            reenter_ingress(sw, packet, out, length, state->recirculate_list, SW_RECIRCULATED);
            length = 0;
        }
        sw->stats.sent += length != 0;
        if (length) SW_TELL(sw, packet, "leaves port %u, %zu bytes", packet->port, length);
    }
    sw_packet_release(sw, packet);
    return length;
}

size_t sw_egress(struct sw *sw, struct sw_packet *packet, uint64_t now_us, uint8_t *out,
                 size_t cap) {
    struct sw_leaving leaving;
    size_t length = sw_send(sw, packet, now_us, out, cap, &leaving);
    if (!length) return 0;
    if (leaving.payload)
        memcpy(out + length - leaving.payload_length, leaving.payload, leaving.payload_length);
    if (leaving.sum_field != SW_COMPLETE)
        complete_sum(out, length, leaving.sum_start, leaving.sum_field);
    return length;
}
