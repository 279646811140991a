// SPDX-License-Identifier: Apache-2.0
//
// Adds, opens and reads ports. All in the ports' thread, or before it runs.
//
// A port outlives its interface: when that disappears its sockets are closed (socket -1) and
// reopened when an interface of the same name appears.
#include "ports_state.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum {
    // How long a paced port with a backlog may wait to send more at once: the time of a full GSO
    // frame at its rate, within these bounds.
    QUANTUM_MIN_NS = 50000,
    QUANTUM_MAX_NS = 250000,
    JOIN_QUANTUM_MAX_NS = 500000,
};

int port_watch(struct ports *ports, int file, uint32_t tag) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = tag};
    return epoll_ctl(ports->epoll, EPOLL_CTL_ADD, file, &event) < 0 ? -errno : 0;
}

void port_watch_output(struct ports *ports, struct port *port) {
    struct epoll_event event = {.events = EPOLLOUT, .data.u32 = port->number};
    int what = port->blocked ? EPOLL_CTL_ADD : EPOLL_CTL_DEL;
    (void)epoll_ctl(ports->epoll, what, port->interface.socket, &event);
}

static int open_port(struct ports *ports, struct port *port) {
    int error = interface_open(&port->interface);
    if (error)
        return error;
    port->was_down = port->blocked = false;
    port->transmit.largest = port->interface.mtu + ETH_HLEN;
    for (int i = 0; i < RX_RINGS && !error; i++)
        error = port_watch(ports, port->interface.rings[i].socket, port->number);
    return error;
}

static void close_port(struct port *port) {
    port->statistics.rx_overrun += interface_drops(&port->interface);
    interface_close(&port->interface);
    transmit_discard(&port->transmit);
    port->blocked = false;
}

static void reopen_port(struct ports *ports, struct port *port) {
    int error = open_port(ports, port);
    if (!error)
        ports_log(ports, PORTS_INFO, "port %u (%s) is back", port->number, port->interface.name);
    else if (error != -ENODEV)
        ports_log(ports, PORTS_WARNING, "port %u (%s) cannot be opened: %s", port->number,
                  port->interface.name, strerror(-error));
}

static void link_changed(void *context, const struct link_change *change) {
    struct ports *ports = context;
    for (uint32_t i = 0; i < ports->count; i++) {
        struct port *port = ports->ports[ports->numbers[i]];
        if (port->cpu)
            continue;
        if (port->interface.socket >= 0 && port->interface.index == change->index) {
            if (change->present) {
                if (change->mtu) {
                    port->interface.mtu = change->mtu;
                    port->transmit.largest = change->mtu + ETH_HLEN;
                }
                continue;
            }
            close_port(port);
            ports_log(ports, PORTS_WARNING,
                      "port %u (%s) lost its interface; it goes on when the interface is back",
                      port->number, port->interface.name);
        }
        if (port->interface.socket < 0 && change->present &&
            strcmp(port->interface.name, change->name) == 0)
            reopen_port(ports, port);
    }
}

void port_links_news(struct ports *ports) {
    if (links_read(ports->links, link_changed, ports) == 0)
        return;
    // Changes were lost: look at every interface.
    for (uint32_t i = 0; i < ports->count; i++) {
        struct port *port = ports->ports[ports->numbers[i]];
        if (port->cpu)
            continue;
        int index = (int)if_nametoindex(port->interface.name);
        if (port->interface.socket >= 0 && index != port->interface.index)
            close_port(port);
        if (port->interface.socket < 0 && index)
            reopen_port(ports, port);
    }
}

void port_flush_captures(struct ports *ports) {
    ports->captures = false;
    for (uint32_t i = 0; i < ports->count; i++) {
        struct port *port = ports->ports[ports->numbers[i]];
        struct capture *captures[] = {&port->capture_in, &port->capture_out};
        for (int n = 0; n < 2; n++) {
            int before = captures[n]->error;
            capture_flush(captures[n]);
            if (captures[n]->error != before)
                ports_log(ports, PORTS_WARNING, "the capture of port %u (%s) ended: %s",
                          port->number, port->interface.name, strerror(captures[n]->error));
        }
    }
}

int port_attach(struct ports *ports, const struct ports_program *program) {
    struct ports_program *current = &ports->program;
    if (current->sw) {
        current->call->lock(current->sw);
        for (uint32_t i = 0; i < ports->count; i++)
            tm_flush(&ports->tm, &ports->ports[ports->numbers[i]]->queue);
        current->call->unlock(current->sw);
        current->call->set_traffic_manager(current->sw, NULL, NULL);
    }
    memset(current, 0, sizeof *current);
    ports->more = false;
    if (!program)
        return 0;
    *current = *program;
    ports->tm.sw = program->sw;
    ports->tm.pool = program->pool;
    ports->tm.start_ns = program->start_ns;
    ports->tm.free = program->call->packet_free;
    ports->tm.keep = program->call->packet_keep;
    program->call->set_traffic_manager(program->sw, forward_enqueue, ports);
    return 0;
}

void port_destroy(struct port *port) {
    interface_close(&port->interface);
    capture_close(&port->capture_in);
    capture_close(&port->capture_out);
    intake_destroy(&port->intake);
    transmit_destroy(&port->transmit);
    free(port);
}

static uint64_t quantum(const struct ports_options *options) {
    if (options->rate == 0)
        return 0;
    uint64_t full = 65536ull * 8 * 1000000000 / options->rate;
    uint64_t longest = options->train_bytes ? JOIN_QUANTUM_MAX_NS : QUANTUM_MAX_NS;
    return full < QUANTUM_MIN_NS ? QUANTUM_MIN_NS : full < longest ? full : longest;
}

static int fill_port(struct ports *ports, struct port *port, const struct ports_options *options) {
    int error = transmit_init(&port->transmit, options->train_bytes > 0, options->train_bytes);
    if (!error)
        error = intake_init(&port->intake, options->rate_in);
    if (!error && !port->cpu)
        error = open_port(ports, port);
    if (!error && options->capture_in)
        error = capture_open(&port->capture_in, options->capture_in);
    if (!error && options->capture_out)
        error = capture_open(&port->capture_out, options->capture_out);
    return error;
}

int port_add(struct ports *ports, uint32_t number, const struct ports_options *options) {
    if (number >= SW_DROP_PORT)
        return -ERANGE;
    if (ports->ports[number])
        return -EEXIST;
    struct port *port = calloc(1, sizeof *port);
    if (!port)
        return -ENOMEM;
    port->number = number;
    port->cpu = options->interface[0] == 0;
    memcpy(port->interface.name, options->interface, sizeof port->interface.name);
    port->interface.socket = -1;
    port->capture_in.file = port->capture_out.file = -1;
    port->quantum_ns = quantum(options);
    tm_port_init(&port->queue, options->queue_bytes, (uint32_t)options->queue_packets,
                 options->rate);
    int error = fill_port(ports, port, options);
    if (error) {
        port_destroy(port);
        return error;
    }
    ports->ports[number] = port;
    ports->tm.ports[number] = &port->queue;
    ports->numbers[ports->count++] = number;
    return 0;
}

int port_read(struct ports *ports, uint32_t number, struct ports_statistics *into) {
    struct port *port = number < SW_PORTS ? ports->ports[number] : NULL;
    if (!port)
        return -ENOENT;
    const struct transmit *t = &port->transmit;
    port->statistics.rx_overrun += interface_drops(&port->interface);
    *into = port->statistics;
    into->tx_packets += t->packets;
    into->tx_bytes += t->total;
    into->tx_frames += t->handed_over;
    into->tx_queue_full = port->queue.dropped;
    into->tx_refused += t->full;
    into->tx_oversized = t->oversized;
    into->tx_down = t->down;
    into->tx_errors = t->errors;
    into->queue_packets = port->queue.packets;
    into->queue_bytes = port->queue.bytes;
    into->queue_packets_max = port->queue.max_packets;
    into->queue_bytes_max = port->queue.max_bytes;
    into->capture_lost = port->capture_in.lost + port->capture_out.lost;
    into->present = port->cpu || port->interface.socket >= 0;
    into->joining = t->join;
    return 0;
}
