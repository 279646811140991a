// SPDX-License-Identifier: Apache-2.0
//
// The load of the switch benchmark, at the far end of each of the switch's links: sends prepared
// frames with increasing numbers, limited by a window per port, and counts what comes back.
//
// `struct ends` has one `struct port` per link and one `struct server` per thread; a port
// belongs to exactly one server, which alone writes it. Other threads read only a port's `sent`
// and `received`, which have a cache line of their own. Invariant: `sent` exceeds `received` of
// the port where its packets come back by at most the window. Received frames are read in place
// from a ring that holds their first bytes (PACKET_RX_RING), which makes counting cheap.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "clocks.h"
#include "interface.h"

static const int64_t WAITED_NS = 5000000000; // limit of waiting for packets in flight

enum {
    KEPT = 96,          // captured bytes of a frame
    RING_FRAME = 256,   // with the ring's own header
    RING_FRAMES = 8192, // far more than any window
    RING_BLOCK = 1 << 16,
    STALLED_NS = 500000000, // after which packets in flight count as lost
    STARVED_NS = 1000000000, // extra time for the first packet, on a busy machine
    LOOK_EVERY = 32,        // turns between readings of the clock
    LINE = 64,              // bytes of a cache line
};

// The load. Offsets count from the first byte of a message.
struct ends_traffic {
    uint32_t messages;      // frames of a train
    uint32_t message_bytes; // including the vnet header, if any
    uint32_t vnet;
    uint32_t numbers; // per message: one for each segment, or one
    uint32_t number_at, number_stride, number_step;
    uint32_t number_again; // distance of a second copy; 0: none
    uint32_t headers;      // bytes before a reply's payload, from Ethernet on
    uint32_t segment;      // payload bytes of a packet
    uint32_t train;        // packets of a train
    uint32_t window;       // packets in flight per port
    uint32_t sign_at;      // byte that identifies replies, from Ethernet on; 0: accept all
    uint32_t sign;
    uint32_t varying; // contents of the varying part, used cyclically; 0: constant messages
    uint32_t varying_at, varying_bytes;
    uint32_t across; // packets come back at 0: their own port, 1: its neighbour
};

// sending: seconds spent sending, kernel included; waited: seconds that a thread was runnable while
// others used its core. Both are the maximum over threads.
struct ends_counts {
    uint64_t sent, received, bytes, strange, lost, stalls;
    double seconds, sending, waited;
};

struct port {
    int out, in;
    uint8_t *ring;
    uint32_t next;
    uint8_t *frames;
    struct mmsghdr *messages;
    struct iovec *parts;
    uint8_t *varying;
    uint32_t varied; // index of the next contents
    uint32_t number; // of the next packet
    int64_t moved;   // time of the last known arrival
    int back;        // whether packets have arrived since
    // Packets. Read by other threads, so in a cache line of their own.
    uint8_t before[LINE];
    uint64_t sent, received;
    uint8_t after[LINE];
};

// A thread, and the ports that it serves.
struct server {
    struct ends *ends;
    struct port *ports, *last; // first, and one past the last
    pthread_t thread;
    int core;
    double run; // seconds
    uint64_t until; // packets sent per port, when it only waits for packets in flight
    int error;
    struct ends_counts counts;
};

struct ends {
    struct ends_traffic traffic;
    struct port ports[PORTS];
    struct server servers[PORTS];
    uint32_t threads;
};

static int open_ring(struct port *port, const char *interface) {
    // With ETH_P_IP a socket gets incoming frames only.
    port->in = open_interface(interface, ETH_P_IP, 0, SOCK_NONBLOCK);
    if (port->in < 0)
        return port->in;
    struct sock_filter keep = {.code = BPF_RET | BPF_K, .k = KEPT};
    struct sock_fprog program = {.len = 1, .filter = &keep};
    struct tpacket_req request = {
        .tp_block_size = RING_BLOCK,
        .tp_block_nr = RING_FRAMES / (RING_BLOCK / RING_FRAME),
        .tp_frame_size = RING_FRAME,
        .tp_frame_nr = RING_FRAMES,
    };
    int error = set_option(port->in, SOL_PACKET, PACKET_VERSION, TPACKET_V2);
    if (!error && setsockopt(port->in, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) < 0)
        error = -errno;
    if (!error &&
        setsockopt(port->in, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) < 0)
        error = -errno;
    if (error)
        return error;
    port->ring = mmap(NULL, (size_t)RING_FRAMES * RING_FRAME, PROT_READ | PROT_WRITE, MAP_SHARED,
                      port->in, 0);
    if (port->ring == MAP_FAILED) {
        port->ring = NULL;
        return -errno;
    }
    return 0;
}

static int open_port(struct ends *ends, struct port *port, const char *interface,
                     const uint8_t *train, const uint8_t *varying) {
    const struct ends_traffic *traffic = &ends->traffic;
    port->out = open_interface(interface, 0, (int)traffic->vnet, 0);
    if (port->out < 0)
        return port->out;
    int error = set_option(port->out, SOL_PACKET, PACKET_QDISC_BYPASS, 1); // send without a queue
    if (error)
        return error;
    size_t size = (size_t)traffic->messages * traffic->message_bytes;
    port->frames = malloc(size);
    port->messages = calloc(traffic->messages, sizeof *port->messages);
    port->parts = calloc(traffic->messages, sizeof *port->parts);
    if (!port->frames || !port->messages || !port->parts)
        return -ENOMEM;
    memcpy(port->frames, train, size);
    size_t all = (size_t)traffic->varying * traffic->varying_bytes;
    if (all) {
        port->varying = malloc(all);
        if (!port->varying)
            return -ENOMEM;
        memcpy(port->varying, varying, all);
    }
    for (uint32_t i = 0; i < traffic->messages; i++) {
        port->parts[i] = (struct iovec){port->frames + (size_t)i * traffic->message_bytes,
                                        traffic->message_bytes};
        port->messages[i].msg_hdr = (struct msghdr){.msg_iov = &port->parts[i], .msg_iovlen = 1};
    }
    return open_ring(port, interface);
}

void ends_close(struct ends *ends) {
    for (uint32_t i = 0; i < PORTS; i++) {
        struct port *port = &ends->ports[i];
        if (port->ring)
            munmap(port->ring, (size_t)RING_FRAMES * RING_FRAME);
        if (port->in >= 0)
            close(port->in);
        if (port->out >= 0)
            close(port->out);
        free(port->frames);
        free(port->messages);
        free(port->parts);
        free(port->varying);
    }
    free(ends);
}

// trains, varying: each port's frames and varying contents, port after port. threads: 1, 2 or 4;
// the first is the caller's, the others run on cores of their own. Returns NULL and sets errno
// on error.
struct ends *ends_open(const char *const *interfaces, const struct ends_traffic *traffic,
                       const uint8_t *trains, const uint8_t *varying, uint32_t threads,
                       const int *cores) {
    struct ends *ends = calloc(1, sizeof *ends);
    if (!ends)
        return NULL;
    ends->traffic = *traffic;
    ends->threads = threads;
    for (uint32_t i = 0; i < threads; i++)
        ends->servers[i] = (struct server){
            .ends = ends,
            .ports = ends->ports + i * (PORTS / threads),
            .last = ends->ports + (i + 1) * (PORTS / threads),
            .core = cores[i],
        };
    for (uint32_t i = 0; i < PORTS; i++)
        ends->ports[i].in = ends->ports[i].out = -1;
    size_t size = (size_t)traffic->messages * traffic->message_bytes;
    for (uint32_t i = 0; i < PORTS; i++) {
        int error = open_port(ends, &ends->ports[i], interfaces[i], trains + i * size,
                              varying + (size_t)i * traffic->varying * traffic->varying_bytes);
        if (error) {
            ends_close(ends);
            errno = -error;
            return NULL;
        }
    }
    return ends;
}

static void put32(uint8_t *at, uint32_t value) {
    value = htonl(value);
    memcpy(at, &value, sizeof value);
}

// Writes the numbers of a train, from `number`; returns the next number.
static uint32_t stamp(const struct ends_traffic *traffic, struct port *port, uint32_t number) {
    for (uint32_t i = 0; i < traffic->messages; i++) {
        uint8_t *at = port->frames + (size_t)i * traffic->message_bytes + traffic->number_at;
        for (uint32_t k = 0; k < traffic->numbers; k++, at += traffic->number_stride) {
            put32(at, number);
            if (traffic->number_again)
                put32(at + traffic->number_again, number);
            number += traffic->number_step;
        }
    }
    return number;
}

static void vary(const struct ends_traffic *traffic, struct port *port) {
    uint8_t *at = port->frames + traffic->varying_at;
    for (uint32_t i = 0; i < traffic->messages; i++, at += traffic->message_bytes) {
        memcpy(at, port->varying + (size_t)port->varied * traffic->varying_bytes,
               traffic->varying_bytes);
        port->varied = port->varied + 1 < traffic->varying ? port->varied + 1 : 0;
    }
}

static uint64_t get(const uint64_t *shared) {
    return __atomic_load_n(shared, __ATOMIC_RELAXED);
}

static void set(uint64_t *shared, uint64_t value) {
    __atomic_store_n(shared, value, __ATOMIC_RELAXED);
}

static int send_train(struct server *server, struct port *port) {
    const struct ends_traffic *traffic = &server->ends->traffic;
    port->number = stamp(traffic, port, port->number);
    if (traffic->varying)
        vary(traffic, port);
    for (uint32_t done = 0; done < traffic->messages;) {
        int sent = sendmmsg(port->out, port->messages + done, traffic->messages - done, 0);
        if (sent < 0 && errno != EINTR && errno != ENOBUFS && errno != EAGAIN)
            return -errno;
        done += sent > 0 ? (uint32_t)sent : 0;
    }
    set(&port->sent, port->sent + traffic->train);
    server->counts.sent += traffic->train;
    return 0;
}

static void receive(struct server *server, struct port *port) {
    const struct ends_traffic *traffic = &server->ends->traffic;
    uint64_t before = port->received, now = before;
    for (;; port->back = 1) {
        struct tpacket2_hdr *frame = (void *)(port->ring + (size_t)port->next * RING_FRAME);
        if (!(__atomic_load_n(&frame->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
            break;
        const uint8_t *bytes = (const uint8_t *)frame + frame->tp_mac;
        if (frame->tp_len <= traffic->headers ||
            (traffic->sign_at && bytes[traffic->sign_at] != traffic->sign)) {
            server->counts.strange++;
        } else {
            uint32_t payload = frame->tp_len - traffic->headers;
            now += (payload + traffic->segment - 1) / traffic->segment;
            server->counts.bytes += payload;
        }
        __atomic_store_n(&frame->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        port->next = (port->next + 1) % RING_FRAMES;
    }
    if (now != before) {
        set(&port->received, now);
        server->counts.received += now - before;
    }
}

// Returns the port where packets sent through a port come back, and vice versa.
static struct port *other_end(struct server *server, const struct port *port) {
    struct ends *ends = server->ends;
    return &ends->ports[(size_t)(port - ends->ports) ^ ends->traffic.across];
}

// Packets in flight. Negative if packets counted as lost came back after all.
static int64_t under_way(struct server *server, const struct port *port) {
    return (int64_t)(port->sent - get(&other_end(server, port)->received));
}

// Counts packets in flight as lost if none has arrived for a while, so that sending continues.
static void give_up(struct server *server, struct port *port) {
    uint64_t due = get(&other_end(server, port)->sent);
    if (due > port->received) {
        server->counts.stalls++;
        server->counts.lost += due - port->received;
        set(&port->received, due);
    }
}

static void look(struct server *server, int64_t now) {
    for (struct port *port = server->ports; port < server->last; port++) {
        if (port->back)
            port->moved = now;
        else if (now - port->moved > STALLED_NS)
            give_up(server, port);
        port->back = 0;
    }
}

// Sends as the windows of a server's ports allow. Returns -errno.
static int send_all(struct server *server) {
    const struct ends_traffic *traffic = &server->ends->traffic;
    for (struct port *port = server->ports; port < server->last; port++) {
        if (under_way(server, port) + traffic->train > traffic->window ||
            (server->run <= 0 && port->sent >= server->until))
            continue;
        int error = send_train(server, port);
        if (error)
            return error;
    }
    return 0;
}

// Tells whether a server's ports have sent and received all. Only its own receptions count, as the
// other threads no longer receive once they are done.
static int all_back(const struct server *server) {
    for (struct port *port = server->ports; port < server->last; port++)
        if (port->sent < server->until || port->received < server->until)
            return 0;
    return 1;
}

static int run(struct server *server) {
    int64_t began = now_ns(), end = began + (int64_t)(server->run * 1e9);
    int timed = server->run > 0;
    for (struct port *port = server->ports; port < server->last; port++)
        port->moved = began;
    for (uint32_t turns = 1; timed || !all_back(server); turns++) {
        int error = send_all(server);
        if (error)
            return error;
        for (struct port *port = server->ports; port < server->last; port++)
            receive(server, port);
        if (turns % LOOK_EVERY)
            continue;
        int64_t now = now_ns();
        look(server, now);
        if (timed ? now >= end && (server->counts.received || now >= end + STARVED_NS)
                  : now >= end + WAITED_NS)
            break;
    }
    server->counts.seconds = (double)(now_ns() - began) / 1e9;
    return 0;
}

static void *serve(void *given) {
    struct server *server = given;
    double sending = kernel_seconds(), waited = waited_seconds();
    memset(&server->counts, 0, sizeof server->counts);
    server->error = run(server);
    server->counts.sending = kernel_seconds() - sending;
    server->counts.waited = waited_seconds() - waited;
    return NULL;
}

static int start(struct server *server) {
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET((size_t)server->core, &core);
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error)
        return -error;
    error = pthread_attr_setaffinity_np(&attributes, sizeof core, &core);
    if (!error)
        error = pthread_create(&server->thread, &attributes, serve, server);
    pthread_attr_destroy(&attributes);
    return -error;
}

static void more(double *most, double value) {
    *most = value > *most ? value : *most;
}

static void add(struct ends_counts *sum, const struct ends_counts *counts) {
    sum->sent += counts->sent;
    sum->received += counts->received;
    sum->bytes += counts->bytes;
    sum->strange += counts->strange;
    sum->lost += counts->lost;
    sum->stalls += counts->stalls;
    more(&sum->seconds, counts->seconds);
    more(&sum->sending, counts->sending);
    more(&sum->waited, counts->waited);
}

// Sends and counts for some seconds (0: only until packets in flight are back), longer if
// nothing has come back by then. Returns -errno.
int ends_run(struct ends *ends, double seconds, struct ends_counts *counts) {
    // A number completes only if each port has sent it, so all ports stop at the same one.
    uint64_t until = 0;
    for (uint32_t i = 0; i < PORTS; i++)
        until = ends->ports[i].sent > until ? ends->ports[i].sent : until;
    int error = 0;
    uint32_t started = 1;
    for (uint32_t i = 0; i < ends->threads; i++) {
        ends->servers[i].run = seconds;
        ends->servers[i].until = until;
    }
    while (started < ends->threads && !error) {
        error = start(&ends->servers[started]);
        started += !error;
    }
    if (!error)
        serve(&ends->servers[0]);
    memset(counts, 0, sizeof *counts);
    for (uint32_t i = 0; i < ends->threads; i++) {
        struct server *server = &ends->servers[i];
        if (i && i < started)
            pthread_join(server->thread, NULL);
        if (!error)
            error = server->error;
        add(counts, &server->counts);
    }
    return error;
}
