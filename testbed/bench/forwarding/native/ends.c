// SPDX-License-Identifier: Apache-2.0
//
// Both ends of every link of the switch that is measured: sends prepared frames with growing
// numbers, a window ahead of what has come back, and counts what comes back. Frames are read where
// the kernel has put their first bytes (PACKET_RX_RING), so that counting costs next to nothing.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "interface.h"

enum {
    KEPT = 96,          // of a frame
    RING_FRAME = 256,   // with the ring's own header
    RING_FRAMES = 8192, // far more than any window
    RING_BLOCK = 1 << 16,
    STALLED_NS = 500000000, // what has not come back by then never will
    STARVED_NS = 1000000000, // longer at most until a first packet is back, where others compute
    LOOK_EVERY = 32,        // turns, for reading the clock costs time
};

// What is sent through each port at a time. Offsets are from the first byte of a message on.
struct ends_traffic {
    uint32_t messages;      // frames of a train
    uint32_t message_bytes; // with the vnet header, if there is one
    uint32_t vnet;
    uint32_t numbers; // of a message: one for each segment, or one
    uint32_t number_at, number_stride, number_step;
    uint32_t number_again; // a second copy that many bytes further, 0: none
    uint32_t headers;      // bytes before the payload of what comes back, from Ethernet on
    uint32_t segment;      // payload bytes of a packet
    uint32_t train;        // packets of a train
    uint32_t window;       // packets of a port that may be under way
    uint32_t sign_at;      // byte that tells what comes back, from Ethernet on; 0: any will do
    uint32_t sign;
    uint32_t varying; // contents of a part of a message, used in turn; 0: it is always the same
    uint32_t varying_at, varying_bytes;
};

struct ends_counts {
    uint64_t sent, received, bytes, strange, lost, stalls;
    double seconds;
};

struct port {
    int out, in;
    uint8_t *ring;
    uint32_t next;
    uint8_t *frames;
    struct mmsghdr *messages;
    struct iovec *parts;
    uint8_t *varying;
    uint32_t varied; // index of the next
    uint64_t received;
};

struct ends {
    struct ends_traffic traffic;
    struct port ports[PORTS];
    uint64_t sent; // through each port
    uint32_t number;
    struct ends_counts counts;
};

static int open_ring(struct port *port, const char *interface) {
    // ETH_P_IP: the kernel shows such a socket only what comes in.
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
    int error = set_option(port->out, SOL_PACKET, PACKET_QDISC_BYPASS, 1); // there is no queue
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

// trains: what each port sends, one after the other; varying: contents of each port's messages, so
// too. NULL with errno if it cannot be.
struct ends *ends_open(const char *const *interfaces, const struct ends_traffic *traffic,
                       const uint8_t *trains, const uint8_t *varying) {
    struct ends *ends = calloc(1, sizeof *ends);
    if (!ends)
        return NULL;
    ends->traffic = *traffic;
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

// Numbers from `number` on for a train; returns the next.
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

static int send_train(struct ends *ends) {
    const struct ends_traffic *traffic = &ends->traffic;
    uint32_t next = ends->number;
    for (uint32_t i = 0; i < PORTS; i++) {
        struct port *port = &ends->ports[i];
        next = stamp(traffic, port, ends->number);
        if (traffic->varying)
            vary(traffic, port);
        for (uint32_t done = 0; done < traffic->messages;) {
            int sent = sendmmsg(port->out, port->messages + done, traffic->messages - done, 0);
            if (sent < 0 && errno != EINTR && errno != ENOBUFS && errno != EAGAIN)
                return -errno;
            done += sent > 0 ? (uint32_t)sent : 0;
        }
    }
    ends->number = next;
    ends->sent += traffic->train;
    ends->counts.sent += (uint64_t)PORTS * traffic->train;
    return 0;
}

static int receive(struct ends *ends, struct port *port) {
    const struct ends_traffic *traffic = &ends->traffic;
    int any = 0;
    for (;; any = 1) {
        struct tpacket2_hdr *frame = (void *)(port->ring + (size_t)port->next * RING_FRAME);
        if (!(__atomic_load_n(&frame->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
            return any;
        const uint8_t *bytes = (const uint8_t *)frame + frame->tp_mac;
        if (frame->tp_len <= traffic->headers ||
            (traffic->sign_at && bytes[traffic->sign_at] != traffic->sign)) {
            ends->counts.strange++;
        } else {
            uint32_t payload = frame->tp_len - traffic->headers;
            uint32_t packets = (payload + traffic->segment - 1) / traffic->segment;
            port->received += packets;
            ends->counts.received += packets;
            ends->counts.bytes += payload;
        }
        __atomic_store_n(&frame->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        port->next = (port->next + 1) % RING_FRAMES;
    }
}

static uint64_t least_received(const struct ends *ends) {
    uint64_t least = ends->ports[0].received;
    for (uint32_t i = 1; i < PORTS; i++)
        least = ends->ports[i].received < least ? ends->ports[i].received : least;
    return least;
}

// What is still under way after such a time is lost, and the numbers go on after it.
static void give_up(struct ends *ends) {
    ends->counts.stalls++;
    for (uint32_t i = 0; i < PORTS; i++) {
        ends->counts.lost += ends->sent - ends->ports[i].received;
        ends->ports[i].received = ends->sent;
    }
}

// Sends and counts for some seconds (0: only until what is under way is back), for longer if nothing
// has come back by then. Returns -errno.
int ends_run(struct ends *ends, double seconds, struct ends_counts *counts) {
    const struct ends_traffic *traffic = &ends->traffic;
    int64_t began = now_ns(), end = began + (int64_t)(seconds * 1e9), moved = began;
    memset(&ends->counts, 0, sizeof ends->counts);
    uint32_t turns = 0;
    int back = 0;
    for (;;) {
        uint64_t under_way = ends->sent - least_received(ends);
        if (seconds <= 0 && !under_way)
            break;
        if (seconds > 0 && under_way + traffic->train <= traffic->window) {
            int error = send_train(ends);
            if (error)
                return error;
        }
        for (uint32_t i = 0; i < PORTS; i++)
            back |= receive(ends, &ends->ports[i]);
        if (++turns % LOOK_EVERY)
            continue;
        int64_t now = now_ns();
        if (back)
            moved = now;
        else if (now - moved > STALLED_NS)
            give_up(ends);
        back = 0;
        if (seconds > 0 && now >= end && (ends->counts.received || now >= end + STARVED_NS))
            break;
    }
    ends->counts.seconds = (double)(now_ns() - began) / 1e9;
    *counts = ends->counts;
    return 0;
}
