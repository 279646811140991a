// SPDX-License-Identifier: Apache-2.0
//
// Receives frames: from interfaces, from links whose last bit is awaited (delayed_arrivals.h), and
// packet-outs.
//
// A batch is processed under the switch's lock, which is released after LOCK_PACKETS packets to let
// control calls through. Ring slots return to the kernel only after forward_finish: until then
// packets may refer to their frames.
#include "ports_state.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <string.h>

#include "packet_checksums.h"
#include "offload.h"

enum {
    BATCH = 64,         // most frames of a batch
    // Most bytes of a batch: beyond, the first frames leave the cache before they are sent.
    BATCH_BYTES = 256 * 1024,
    LOCK_PACKETS = 256, // then control calls get the lock
};

static void packet_in(struct ports *ports, struct port *port, struct sw_frame *frame) {
    port->statistics.rx_packets++;
    port->statistics.rx_bytes += frame->length;
    if (port->capture_in.file >= 0) {
        if (frame->sum_field != SW_COMPLETE)
            complete_sum(frame->bytes, frame->length, frame->sum_start, frame->sum_field);
        frame->sum_field = SW_COMPLETE;
        capture_write(&port->capture_in, frame->bytes, frame->length, wall_ns());
        ports->captures = true;
    }
    struct ports_program *program = &ports->program;
    if (!program->sw) {
        port->statistics.rx_no_program++;
        return;
    }
    program->call->receive(program->sw, port->number, frame, ports_now_us(ports));
    if (ports->pending_count)
        forward_serve_pending(ports);
}

// Forwards held frames whose last bit has arrived, in the order of their arrival.
void receive_due(struct ports *ports) {
    for (;;) {
        struct port *first = NULL;
        uint64_t at_ns = UINT64_MAX;
        for (uint32_t i = 0; i < ports->count; i++) {
            struct port *port = ports->ports[ports->numbers[i]];
            if (intake_ready_ns(&port->intake) < at_ns) {
                first = port;
                at_ns = intake_ready_ns(&port->intake);
            }
        }
        if (!forward_is_due(ports, at_ns))
            return;
        struct sw_frame one = {
            .bytes = first->intake.line,
            .length = first->intake.length,
            .sum_field = SW_COMPLETE,
        };
        packet_in(ports, first, &one);
        intake_next(&first->intake);
    }
}

static void hold(struct port *port, const struct sw_frame *frame, uint64_t now_ns) {
    if (frame->sum_field != SW_COMPLETE)
        complete_sum(frame->bytes, frame->length, frame->sum_start, frame->sum_field);
    if (!intake_put(&port->intake, frame->bytes, frame->length, now_ns))
        port->statistics.rx_overrun++;
}

// Restores the VLAN tag that the system took out of the frame.
static void restore_tag(struct rx_frame *frame) {
    if (!frame->tagged || frame->length < 2 * ETH_ALEN)
        return;
    memmove(frame->bytes - 4, frame->bytes, 2 * ETH_ALEN);
    frame->bytes -= 4;
    frame->length += 4;
    store16(frame->bytes + 2 * ETH_ALEN, frame->tag_type);
    store16(frame->bytes + 2 * ETH_ALEN + 2, frame->tag);
    if (frame->header.flags & OFFLOAD_NEEDS_CSUM)
        frame->header.csum_start = (uint16_t)(frame->header.csum_start + 4);
}

// Forwards a frame; returns how many packets it was.
static uint32_t frame_in(struct ports *ports, struct port *port, struct rx_frame *frame) {
    port->statistics.rx_frames++;
    if (frame->truncated) {
        port->statistics.rx_truncated++;
        return 0;
    }
    restore_tag(frame);
    struct segments segments;
    uint32_t count = segments_open(&segments, &frame->header, frame->bytes, frame->length);
    if (frame->length == 0 || count == 0) {
        port->statistics.rx_bad_offload++;
        return 0;
    }
    ports->now_ns = clock_ns();
    ports->in_hand = &segments;
    uint8_t *packet;
    size_t length;
    while ((length = segments_next(&segments, &packet))) {
        struct sw_frame one = {
            .bytes = packet,
            .length = (uint32_t)length,
            .sum_start = segments.sum_start,
            .sum_field = segments.sum_field,
            .lasting = 1,
            .writable = 1,
            .fragile = segments.over ? segments.headers : 0,
        };
        if (port->intake.rate && length <= SW_MAX_FRAME)
            hold(port, &one, ports->now_ns);
        else
            packet_in(ports, port, &one);
    }
    ports->in_hand = NULL;
    return count;
}

static void receive_failed(struct ports *ports, struct port *port, int error) {
    if (error == 0)
        return;
    if (error == ENETDOWN) {
        if (!port->was_down)
            ports_log(ports, PORTS_WARNING, "port %u (%s) is down", port->number,
                      port->interface.name);
        port->was_down = true;
        return;
    }
    ports_log(ports, PORTS_WARNING, "port %u (%s) cannot receive: %s", port->number,
              port->interface.name, strerror(error));
}

void receive_batch(struct ports *ports, struct port *port) {
    struct interface *interface = &port->interface;
    struct ports_program *program = &ports->program;
    struct rx_frame frame;
    if (!interface_receive(interface, &frame)) {
        receive_failed(ports, port, interface_error(interface));
        return;
    }
    port->was_down = false;
    if (program->sw)
        program->call->lock(program->sw);
    uint32_t packets = 0, frames = 0, bytes = 0;
    do {
        bytes += frame.length;
        packets += frame_in(ports, port, &frame);
        if (packets >= LOCK_PACKETS && program->sw) {
            program->call->unlock(program->sw);
            packets = 0;
            program->call->lock(program->sw);
        }
    } while (++frames < BATCH && bytes < BATCH_BYTES && interface_receive(interface, &frame));
    receive_due(ports);
    if (program->sw)
        forward_finish(ports);
    interface_give_back(interface); // no packet refers to a frame any more
}

void receive_packet_outs(struct ports *ports) {
    struct port *port = ports->ports[ports->cpu_port];
    struct ports_program *program = &ports->program;
    uint8_t kind;
    static _Thread_local uint8_t frame[SW_MAX_FRAME];
    ports->now_ns = clock_ns();
    if (program->sw)
        program->call->lock(program->sw);
    for (int i = 0; i < LOCK_PACKETS; i++) {
        int64_t length = ring_get(&ports->packet_outs, &kind, frame, sizeof frame, 0);
        if (length < 0)
            break;
        port->statistics.rx_frames++;
        struct sw_frame one = {
            .bytes = frame,
            .length = (uint32_t)length,
            .sum_field = SW_COMPLETE,
        };
        packet_in(ports, port, &one);
    }
    if (program->sw)
        forward_finish(ports);
}
