// SPDX-License-Identifier: Apache-2.0
//
// Frames on their way in: from interfaces, from links whose last bit has to be waited for, and
// packet-outs.
#define _GNU_SOURCE
#include "port.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "checksum.h"
#include "offload.h"

enum {
    BATCH = 64,        // frames read at once
    // Of which so many bytes, or what is read first is out of the cache when its turn comes.
    BATCH_BYTES = 256 * 1024,
    LINE = 64, // bytes of the cache's
    // In front of a frame: the offload header; its VLAN tag may go back in. And as many as align
    // its payload.
    MOST_HEADROOM = 2 * LINE + 16,
    LARGEST = 65536 + 64,
    // Not a multiple of 4 KiB, or all buffers would compete for the same cache sets.
    STRIDE = MOST_HEADROOM + LARGEST + 112,
    LOCK_PACKETS = 256, // then control calls get their turn
};

struct receive_buffers {
    struct mmsghdr messages[BATCH];
    struct iovec parts[BATCH]; // offload header and frame in one piece
    _Alignas(struct cmsghdr) uint8_t control[BATCH][CMSG_SPACE(sizeof(struct tpacket_auxdata))];
    uint8_t *frames;
    uint32_t usual;   // bytes of a frame, of late
    uint32_t headers; // of the last frame of several packets
};

// So that behind so many bytes of headers, as the next frames probably have, a line of the cache
// begins: the system copies there, and the program computes with it, faster than elsewhere. (On some
// processors copies to just behind a multiple of 4 KiB take many times as long.)
static void align_payload(struct receive_buffers *buffers, uint32_t headers) {
    size_t vnet = sizeof(struct offload_header), over = (vnet + headers) % LINE;
    buffers->headers = headers;
    for (int i = 0; i < BATCH; i++) {
        uint8_t *start = buffers->frames + (size_t)i * STRIDE + 2 * LINE - over;
        buffers->parts[i] = (struct iovec){start, vnet + LARGEST};
    }
}

struct receive_buffers *receive_buffers_create(void) {
    struct receive_buffers *buffers = calloc(1, sizeof *buffers);
    if (!buffers)
        return NULL;
    buffers->frames = aligned_alloc(64, (size_t)BATCH * STRIDE);
    if (!buffers->frames) {
        free(buffers);
        return NULL;
    }
    align_payload(buffers, ETH_HLEN + 20 + 32); // TCP with timestamps
    for (int i = 0; i < BATCH; i++) {
        buffers->messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &buffers->parts[i],
            .msg_iovlen = 1,
            .msg_control = buffers->control[i],
        };
    }
    return buffers;
}

void receive_buffers_destroy(struct receive_buffers *buffers) {
    if (buffers)
        free(buffers->frames);
    free(buffers);
}

// Puts back the VLAN tag that the system took out of the frame. Returns the frame's start.
static uint8_t *restore_vlan(struct msghdr *message, uint8_t *frame, size_t *length,
                             struct offload_header *header) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
        if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA)
            continue;
        struct tpacket_auxdata aux;
        memcpy(&aux, CMSG_DATA(c), sizeof aux);
        if (!(aux.tp_status & TP_STATUS_VLAN_VALID) || *length < 12)
            return frame;
        uint8_t *start = frame - 4;
        memmove(start, frame, 12);
        store16(start + 12, aux.tp_status & TP_STATUS_VLAN_TPID_VALID ? aux.tp_vlan_tpid
                                                                     : ETH_P_8021Q);
        store16(start + 14, aux.tp_vlan_tci);
        *length += 4;
        if (header->flags & OFFLOAD_NEEDS_CSUM)
            header->csum_start = (uint16_t)(header->csum_start + 4);
        return start;
    }
    return frame;
}

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
    program->receive(program->sw, port->number, frame, ports_now_us(ports));
    if (ports->pending_count)
        forward_serve_pending(ports);
}

// Frames whose last bit is there now, in the order in which it came.
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

// Returns how many packets the frame was; the bytes of headers before their payload if several.
static uint32_t frame_in(struct ports *ports, struct port *port, uint32_t index,
                         uint32_t *headers) {
    struct receive_buffers *buffers = ports->buffers;
    struct msghdr *message = &buffers->messages[index].msg_hdr;
    size_t length = buffers->messages[index].msg_len;
    struct offload_header header;
    port->statistics.rx_frames++;
    if (message->msg_flags & MSG_TRUNC) {
        port->statistics.rx_truncated++;
        return 0;
    }
    if (length <= sizeof header) {
        port->statistics.rx_bad_offload++;
        return 0;
    }
    uint8_t *frame = buffers->parts[index].iov_base;
    memcpy(&header, frame, sizeof header);
    length -= sizeof header;
    frame = restore_vlan(message, frame + sizeof header, &length, &header);
    struct segments segments;
    uint32_t count = segments_open(&segments, &header, frame, length);
    if (count == 0) {
        port->statistics.rx_bad_offload++;
        return 0;
    }
    if (count > 1)
        *headers = segments.headers;
    ports->now_ns = clock_ns();
    ports->in_hand = &segments;
    uint8_t *packet;
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
    if (error == EAGAIN || error == EINTR)
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
    struct receive_buffers *buffers = ports->buffers;
    uint32_t batch = BATCH_BYTES / (buffers->usual + 1) + 1;
    batch = batch < BATCH ? batch : BATCH;
    for (uint32_t i = 0; i < batch; i++)
        buffers->messages[i].msg_hdr.msg_controllen = sizeof buffers->control[i];
    int count = recvmmsg(port->interface.socket, buffers->messages, batch, MSG_DONTWAIT, NULL);
    if (count <= 0) {
        receive_failed(ports, port, count < 0 ? errno : EAGAIN);
        return;
    }
    port->was_down = false;
    struct ports_program *program = &ports->program;
    if (program->sw)
        program->lock(program->sw);
    uint32_t packets = 0, headers = buffers->headers;
    for (int i = 0; i < count; i++) {
        buffers->usual += (buffers->messages[i].msg_len >> 3) - (buffers->usual >> 3);
        packets += frame_in(ports, port, (uint32_t)i, &headers);
        if (packets >= LOCK_PACKETS && program->sw) {
            program->unlock(program->sw);
            packets = 0;
            program->lock(program->sw);
        }
    }
    receive_due(ports);
    if (program->sw)
        forward_finish(ports);
    if (headers != buffers->headers)
        align_payload(buffers, headers);
}

void receive_packet_outs(struct ports *ports) {
    struct port *port = ports->ports[ports->cpu_port];
    struct ports_program *program = &ports->program;
    uint8_t kind;
    static _Thread_local uint8_t frame[SW_MAX_FRAME];
    ports->now_ns = clock_ns();
    if (program->sw)
        program->lock(program->sw);
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
