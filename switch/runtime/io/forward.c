// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "port.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

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
    ROUNDS = 4,         // of recirculation before the interfaces get theirs
    CPU_RESERVE = 64 * 1024, // of the event ring is kept for the log
    LEAST_WAIT_NS = 50000,
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

static uint64_t wall_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t to_us(const struct ports *ports, uint64_t ns) {
    return (ns - ports->program.start_ns) / 1000;
}

static uint64_t now_us(const struct ports *ports) {
    return to_us(ports, ports->now_ns);
}

static void take_in(struct ports *ports);

static void add_pending(struct ports *ports, struct port *port) {
    if (!port->pending) {
        port->pending = true;
        ports->pending[ports->pending_count++] = port;
    }
}

// ---------------------------------------------------------------------------------------------
// Out

static void say_transmit_errors(struct ports *ports, struct port *port) {
    const struct transmit *t = &port->transmit;
    const char *name = port->interface.name;
    if (t->plain_error && !port->said_plain) {
        port->said_plain = true;
        ports_log(ports, PORTS_WARNING,
                  "port %u (%s) refuses joined frames (%s): from now on packets leave one by one",
                  port->number, name, strerror(t->plain_error));
    }
    if (t->error && !port->said_error) {
        port->said_error = true;
        ports_log(ports, PORTS_WARNING, "port %u (%s) cannot send: %s; packets are lost",
                  port->number, name, strerror(t->error));
    }
}

static void flush(struct ports *ports, struct port *port) {
    if (port->cpu || port->transmit.packet_count == 0)
        return;
    uint64_t down = port->transmit.down, packets = port->transmit.packets;
    bool blocked = port->blocked;
    if (ports->in_hand)
        segments_swap(ports->in_hand);
    port->blocked = !transmit_flush(&port->transmit, port->interface.socket);
    if (ports->in_hand)
        segments_swap(ports->in_hand);
    if (port->blocked != blocked)
        port_watch_output(ports, port);
    if (port->transmit.packets != packets)
        port->was_down = false;
    if (port->transmit.down != down && !port->was_down) {
        port->was_down = true;
        ports_log(ports, PORTS_WARNING, "port %u (%s) is down", port->number,
                  port->interface.name);
    }
    say_transmit_errors(ports, port);
}

static void send_to_cpu(struct ports *ports, struct port *port, const uint8_t *frame,
                        size_t length) {
    if (ring_put(&ports->events, PORTS_PACKET_IN, frame, length, CPU_RESERVE)) {
        port->statistics.tx_packets++;
        port->statistics.tx_frames++;
        port->statistics.tx_bytes += length;
    } else {
        port->statistics.tx_refused++;
    }
}

// The whole packet in one piece, as it is on a wire.
static void complete(uint8_t *packet, size_t length, struct sw_leaving *leaving) {
    if (leaving->payload)
        memcpy(packet + length - leaving->payload_length, leaving->payload,
               leaving->payload_length);
    leaving->payload = NULL;
    if (leaving->sum_field != SW_COMPLETE)
        complete_sum(packet, length, leaving->sum_start, leaving->sum_field);
    leaving->sum_field = SW_COMPLETE;
}

// Egress and on its way out.
static void leave(struct ports *ports, struct port *port, struct sw_packet *packet, uint8_t *room) {
    struct transmit *t = &port->transmit;
    struct sw_leaving leaving;
    // On a line it began to leave some time ago.
    uint64_t begun_ns = port->queue.rate ? port->queue.begun_ns : ports->now_ns;
    ports->passing = true;
    size_t length = ports->program.send(ports->program.sw, packet, to_us(ports, begun_ns), room,
                                        SW_MAX_FRAME, &leaving);
    ports->passing = false;
    tm_charge(&ports->tm, &port->queue, (uint32_t)length, ports->now_ns);
    if (length == 0)
        return;
    if (port->cpu || port->capture_out.file >= 0)
        complete(room, length, &leaving);
    if (port->capture_out.file >= 0) {
        capture_write(&port->capture_out, room, length, wall_ns());
        ports->captures = true;
    }
    if (port->cpu)
        send_to_cpu(ports, port, room, length);
    else if (port->interface.socket < 0)
        t->down++;
    else
        transmit_add(t, length, &leaving);
}

// Whether it is time: to wait for less than this costs more than it is worth.
static bool is_due(const struct ports *ports, uint64_t at_ns) {
    return at_ns != UINT64_MAX && at_ns <= ports->now_ns + LEAST_WAIT_NS;
}

// Sends what the port may send now. Switch locked.
static void serve(struct ports *ports, struct port *port) {
    struct transmit *t = &port->transmit;
    if (port->queue.rate && ports->now_ns < port->wake_ns)
        return;
    bool blocked = port->blocked;
    while (!port->blocked && is_due(ports, tm_ready_ns(&port->queue))) {
        uint8_t *room = transmit_room(t);
        if (!room) {
            flush(ports, port);
            continue;
        }
        leave(ports, port, tm_dequeue(&ports->tm, &port->queue), room);
    }
    if (port->blocked && !blocked)
        tm_keep(&ports->tm, &port->queue);
    // A backlog of a paced port goes in one piece a little later, not packet by packet.
    port->wake_ns = port->queue.line ? port->queue.free_ns : 0;
    if (port->queue.packets && port->queue.rate && port->wake_ns < ports->now_ns + port->quantum_ns)
        port->wake_ns = ports->now_ns + port->quantum_ns;
}

// Whether a packet need not wait: nothing else does, and the port may send. (Clones that egress
// makes wait until their original is out.)
static bool passes(const struct ports *ports, const struct port *port,
                   const struct sw_packet *packet) {
    return port->queue.packets == 0 && !port->queue.rate && !port->blocked && !ports->passing &&
           packet->length <= port->queue.limit;
}

void forward_enqueue(void *context, struct sw_packet *packet, uint64_t us) {
    struct ports *ports = context;
    uint32_t number = packet->port;
    struct port *idle = ports->ports[number];
    if (idle && passes(ports, idle, packet)) {
        uint8_t *room = transmit_room(&idle->transmit);
        if (room) {
            tm_pass(&idle->queue, packet);
            leave(ports, idle, packet, room);
            return;
        }
    }
    if (!tm_enqueue(&ports->tm, packet, us))
        return;
    struct port *port = ports->ports[number];
    // Everything else that waits now leaves, or is kept, before the next frame is looked at.
    if (packet->on_loan && (port->blocked || port->queue.rate))
        ports->program.packet_keep(ports->program.sw, packet);
    add_pending(ports, port);
}

static void serve_pending(struct ports *ports) {
    // Egress may clone into another port, or this one again.
    while (ports->pending_count) {
        struct port *port = ports->pending[--ports->pending_count];
        port->pending = false;
        serve(ports, port);
    }
}

// What came out of a batch: packets that go round again, then everything that waits to be sent.
// Switch locked; unlocks it.
static void finish(struct ports *ports) {
    struct ports_program *program = &ports->program;
    ports->more = true;
    for (int i = 0; i < ROUNDS && ports->more; i++) {
        ports->more = program->recirculate(program->sw, now_us(ports), LOCK_PACKETS) > 0;
        serve_pending(ports);
    }
    program->unlock(program->sw);
    for (uint32_t i = 0; i < ports->count; i++) {
        struct port *port = ports->ports[ports->numbers[i]];
        if (!port->blocked)
            flush(ports, port);
    }
}

void forward_due(struct ports *ports) {
    struct ports_program *program = &ports->program;
    ports->now_ns = clock_ns();
    if (!program->sw) {
        take_in(ports);
        return;
    }
    program->lock(program->sw);
    for (uint32_t i = 0; i < ports->count; i++) {
        struct port *port = ports->ports[ports->numbers[i]];
        if (tm_ready_ns(&port->queue) != UINT64_MAX)
            add_pending(ports, port);
    }
    serve_pending(ports);
    take_in(ports);
    finish(ports);
}

void forward_writable(struct ports *ports, struct port *port) {
    if (!port->blocked)
        return;
    flush(ports, port);
    if (!port->blocked)
        forward_due(ports);
}

uint64_t forward_next_ns(const struct ports *ports) {
    if (ports->more)
        return 0;
    uint64_t next = UINT64_MAX;
    for (uint32_t i = 0; i < ports->count; i++) {
        const struct port *port = ports->ports[ports->numbers[i]];
        if (tm_ready_ns(&port->queue) != UINT64_MAX && !port->blocked && port->wake_ns < next)
            next = port->wake_ns;
        if (intake_ready_ns(&port->intake) < next)
            next = intake_ready_ns(&port->intake);
    }
    return next;
}

// ---------------------------------------------------------------------------------------------
// In

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
    program->receive(program->sw, port->number, frame, now_us(ports));
    serve_pending(ports);
}

// Frames whose last bit is there now, in the order in which it came.
static void take_in(struct ports *ports) {
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
        if (!is_due(ports, at_ns))
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

void forward_receive(struct ports *ports, struct port *port) {
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
    take_in(ports);
    if (program->sw)
        finish(ports);
    if (headers != buffers->headers)
        align_payload(buffers, headers);
}

void forward_packet_outs(struct ports *ports) {
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
        finish(ports);
}
