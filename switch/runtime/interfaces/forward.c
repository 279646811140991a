// SPDX-License-Identifier: Apache-2.0
//
// Sends packets: queues, egress, lines, interfaces.
//
// A packet bypasses its queue if the port is idle, unpaced and not blocked, and no packet is in
// egress. Otherwise tm_enqueue queues it and the port becomes pending; a port that is not served at
// once (paced or blocked) must not keep payloads on loan, so they are copied then.
#define _GNU_SOURCE
#include "ports_state.h"

#include <string.h>

#include "packet_checksums.h"

enum {
    ROUNDS = 4,              // rounds of recirculation between batches of the interfaces ..
    ROUND_PACKETS = 256,     // .. of at most this many packets
    CPU_RESERVE = 64 * 1024, // of the event ring, reserved for the log
    LEAST_WAIT_NS = 50000,
};

static void add_pending(struct ports *ports, struct port *port) {
    if (!port->pending) {
        port->pending = true;
        ports->pending[ports->pending_count++] = port;
    }
}

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

// Completes the packet in one piece, as it is on a wire.
static void complete(uint8_t *packet, size_t length, struct sw_leaving *leaving) {
    if (leaving->payload)
        memcpy(packet + length - leaving->payload_length, leaving->payload,
               leaving->payload_length);
    leaving->payload = NULL;
    if (leaving->sum_field != SW_COMPLETE)
        complete_sum(packet, length, leaving->sum_start, leaving->sum_field);
    leaving->sum_field = SW_COMPLETE;
}

// Runs egress and passes the result to the interface, the CPU port and the capture.
static void leave(struct ports *ports, struct port *port, struct sw_packet *packet, uint8_t *room) {
    struct transmit *t = &port->transmit;
    struct sw_leaving leaving;
    // On a line its transmission began some time ago.
    uint64_t begun_ns = port->queue.rate ? port->queue.begun_ns : ports->now_ns;
    ports->passing = true;
    size_t length = ports->program.call->send(ports->program.sw, packet, ports_us(ports, begun_ns), room,
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

bool forward_is_due(const struct ports *ports, uint64_t at_ns) {
    return at_ns != UINT64_MAX && at_ns <= ports->now_ns + LEAST_WAIT_NS;
}

// Sends what the port may send now. Switch locked.
static void serve(struct ports *ports, struct port *port) {
    struct transmit *t = &port->transmit;
    if (port->queue.rate && ports->now_ns < port->wake_ns)
        return;
    bool blocked = port->blocked;
    while (!port->blocked && forward_is_due(ports, tm_ready_ns(&port->queue))) {
        uint8_t *room = transmit_room(t);
        if (!room) {
            flush(ports, port);
            continue;
        }
        leave(ports, port, tm_dequeue(&ports->tm, &port->queue), room);
    }
    if (port->blocked && !blocked)
        tm_keep(&ports->tm, &port->queue);
    // A backlog of a paced port is sent in one piece a little later, not packet by packet.
    port->wake_ns = port->queue.line ? port->queue.free_ns : 0;
    if (port->queue.packets && port->queue.rate && port->wake_ns < ports->now_ns + port->quantum_ns)
        port->wake_ns = ports->now_ns + port->quantum_ns;
}

// Returns true if a packet need not wait: nothing else does, and the port may send. (Clones made by
// egress wait for their original.)
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
    // Everything else that waits is sent, or copied, before the next frame is processed.
    if (packet->on_loan && (port->blocked || port->queue.rate))
        ports->program.call->packet_keep(ports->program.sw, packet);
    add_pending(ports, port);
}

void forward_serve_pending(struct ports *ports) {
    // Egress may clone into another port, or this one again.
    while (ports->pending_count) {
        struct port *port = ports->pending[--ports->pending_count];
        port->pending = false;
        serve(ports, port);
    }
}

void forward_finish(struct ports *ports) {
    struct ports_program *program = &ports->program;
    ports->more = true;
    for (int i = 0; i < ROUNDS && ports->more; i++) {
        ports->more = program->call->recirculate(program->sw, ports_now_us(ports), ROUND_PACKETS) > 0;
        forward_serve_pending(ports);
    }
    program->call->unlock(program->sw);
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
        receive_due(ports);
        return;
    }
    program->call->lock(program->sw);
    for (uint32_t i = 0; i < ports->count; i++) {
        struct port *port = ports->ports[ports->numbers[i]];
        if (tm_ready_ns(&port->queue) != UINT64_MAX)
            add_pending(ports, port);
    }
    forward_serve_pending(ports);
    receive_due(ports);
    forward_finish(ports);
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

