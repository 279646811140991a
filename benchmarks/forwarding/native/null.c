// SPDX-License-Identifier: Apache-2.0
//
// The null switch: the minimum of work on packet sockets. It reads every frame and sends as many as
// the switch it stands for would, unchanged; it looks at one number per frame.
//
// In GATHER, `seen` is a table by number modulo NUMBERS of the last number met there and the set of
// ports it came from; the frame that completes the set is sent through all ports.
#define _GNU_SOURCE
#include <linux/if_ether.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "interface.h"

enum { LARGEST = 66000, BUFFER = 8 << 20, NUMBERS = 1 << 16 };

enum pattern {
    GATHER, // when frames of a number have come from each port, the last one leaves through all
    CROSS,  // frames leave through the neighbour of their port
};

struct null {
    int sockets[PORTS];
    enum pattern pattern;
    uint32_t at;    // offset of a frame's number, in GATHER
    uint32_t batch; // frames per system call
    uint8_t *bytes;
    struct iovec *parts;
    struct mmsghdr *in, *out;
    struct {
        uint32_t number;
        uint32_t ports;
    } seen[NUMBERS];
};

static int last_of_its_number(struct null *null, uint32_t port, const uint8_t *frame) {
    uint32_t number;
    memcpy(&number, frame + null->at, sizeof number);
    number = ntohl(number);
    uint32_t slot = number % NUMBERS;
    if (null->seen[slot].number != number) {
        null->seen[slot].number = number;
        null->seen[slot].ports = 0;
    }
    null->seen[slot].ports |= 1u << port;
    return null->seen[slot].ports == (1u << PORTS) - 1;
}

static int send_all(int socket, struct mmsghdr *messages, uint32_t count) {
    for (uint32_t done = 0; done < count;) {
        int sent = sendmmsg(socket, messages + done, count - done, 0);
        if (sent >= 0) {
            done += (uint32_t)sent;
            continue;
        }
        if (errno != EAGAIN && errno != ENOBUFS && errno != EINTR)
            return -errno;
        struct pollfd room = {.fd = socket, .events = POLLOUT};
        (void)poll(&room, 1, 1);
    }
    return 0;
}

// Reads frames from a port; returns their number, or -errno.
static int forward(struct null *null, uint32_t port) {
    int got = recvmmsg(null->sockets[port], null->in, null->batch, MSG_DONTWAIT, NULL);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    uint32_t leaving = 0;
    for (int i = 0; i < got; i++) {
        struct iovec *part = &null->parts[null->batch + leaving];
        uint8_t *frame = null->in[i].msg_hdr.msg_iov->iov_base;
        if (null->pattern == GATHER && !last_of_its_number(null, port, frame))
            continue;
        *part = (struct iovec){frame, null->in[i].msg_len};
        leaving++;
    }
    for (uint32_t to = 0; to < PORTS && leaving; to++) {
        if (null->pattern == CROSS && to != (port ^ 1))
            continue;
        int error = send_all(null->sockets[to], null->out, leaving);
        if (error)
            return error;
    }
    return got;
}

static int prepare(struct null *null, const char *const *interfaces, int vnet) {
    uint32_t batch = null->batch;
    null->bytes = malloc((size_t)batch * LARGEST);
    null->parts = calloc(2 * (size_t)batch, sizeof *null->parts);
    null->in = calloc(batch, sizeof *null->in);
    null->out = calloc(batch, sizeof *null->out);
    if (!null->bytes || !null->parts || !null->in || !null->out)
        return -ENOMEM;
    for (uint32_t i = 0; i < batch; i++) {
        null->parts[i] = (struct iovec){null->bytes + (size_t)i * LARGEST, LARGEST};
        null->in[i].msg_hdr = (struct msghdr){.msg_iov = &null->parts[i], .msg_iovlen = 1};
        null->out[i].msg_hdr = (struct msghdr){.msg_iov = &null->parts[batch + i], .msg_iovlen = 1};
    }
    for (uint32_t i = 0; i < PORTS; i++) {
        int opened = open_interface(interfaces[i], ETH_P_ALL, vnet, 0);
        if (opened < 0)
            return opened;
        null->sockets[i] = opened;
        if (set_option(opened, SOL_SOCKET, SO_RCVBUFFORCE, BUFFER))
            (void)set_option(opened, SOL_SOCKET, SO_RCVBUF, BUFFER);
    }
    return 0;
}

// Forwards until killed; calls ready() once all sockets are open. Returns -errno.
// number: offset of a frame's number from its Ethernet header.
int null_run(const char *const *interfaces, int pattern, uint32_t number, int vnet, uint32_t batch,
             void (*ready)(void)) {
    struct null *null = calloc(1, sizeof *null);
    if (!null)
        return -ENOMEM;
    null->pattern = (enum pattern)pattern;
    null->at = number + (vnet ? 10 : 0); // sizeof(struct virtio_net_hdr)
    null->batch = batch;
    int error = prepare(null, interfaces, vnet);
    if (error)
        return error;
    struct pollfd waiting[PORTS];
    for (uint32_t i = 0; i < PORTS; i++)
        waiting[i] = (struct pollfd){.fd = null->sockets[i], .events = POLLIN};
    ready();
    for (;;) {
        int any = 0;
        for (uint32_t port = 0; port < PORTS; port++) {
            int done = forward(null, port);
            if (done < 0)
                return done;
            any |= done;
        }
        if (!any && poll(waiting, PORTS, -1) < 0 && errno != EINTR)
            return -errno;
    }
}
