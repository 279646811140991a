// SPDX-License-Identifier: Apache-2.0
// Trains of datagrams into and out of a UDP socket, as hosts/udp.py does it, many in one call.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "packet.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum { LARGEST_RECEIVE = 1 << 16 };

struct received {
    uint32_t bytes, segment;
    struct peer source;
} __attribute__((packed));

static uint32_t segment_of(struct msghdr *message, uint32_t length) {
    for (struct cmsghdr *one = CMSG_FIRSTHDR(message); one; one = CMSG_NXTHDR(message, one)) {
        if (one->cmsg_level == IPPROTO_UDP && one->cmsg_type == UDP_GRO) {
            int size;
            memcpy(&size, CMSG_DATA(one), sizeof size);
            return size > 0 ? (uint32_t)size : 1;
        }
    }
    return length;
}

// Reads into `arena`, one after the other, until nothing is left, `most` datagrams are there, or
// the next might not fit in `room`. `out` has room for `most`. Returns how many were read;
// *error: errno of what ended it, 0 if it was neither that nor EAGAIN.
int64_t receive_trains(int socket, uint8_t *arena, size_t room, size_t most, struct received *out,
                       int32_t *error) {
    size_t at = 0, datagrams = 0;
    int64_t n = 0;
    *error = 0;
    while (at + LARGEST_RECEIVE <= room && datagrams < most) {
        struct sockaddr_in source = {0};
        union {
            char bytes[CMSG_SPACE(sizeof(int))];
            struct cmsghdr aligned;
        } control;
        struct iovec memory = {arena + at, LARGEST_RECEIVE};
        struct msghdr message = {
            .msg_name = &source,
            .msg_namelen = sizeof source,
            .msg_iov = &memory,
            .msg_iovlen = 1,
            .msg_control = control.bytes,
            .msg_controllen = sizeof control.bytes,
        };
        ssize_t length = recvmsg(socket, &message, MSG_DONTWAIT);
        if (length < 0) {
            if (errno == EINTR)
                continue;
            *error = errno == EAGAIN || errno == EWOULDBLOCK ? 0 : errno;
            break;
        }
        struct received *train = &out[n++];
        train->bytes = (uint32_t)length;
        train->segment = segment_of(&message, (uint32_t)length);
        train->source = (struct peer){source.sin_addr.s_addr, source.sin_port};
        size_t count = train->segment ? (size_t)length / train->segment : 0;
        datagrams += count ? count : 1;
        at += (size_t)length;
    }
    return n;
}

static int send_train(int socket, const uint8_t *packets, size_t size, size_t count,
                      const struct peer *destination) {
    struct sockaddr_in to = {
        .sin_family = AF_INET,
        .sin_port = destination->port,
        .sin_addr.s_addr = destination->ipv4,
    };
    union {
        char bytes[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct iovec memory = {(void *)packets, size * count};
    struct msghdr message = {
        .msg_name = &to,
        .msg_namelen = sizeof to,
        .msg_iov = &memory,
        .msg_iovlen = 1,
    };
    if (count > 1) {
        uint16_t segment = (uint16_t)size;
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *told = CMSG_FIRSTHDR(&message);
        told->cmsg_level = IPPROTO_UDP;
        told->cmsg_type = UDP_SEGMENT;
        told->cmsg_len = CMSG_LEN(sizeof segment);
        memcpy(CMSG_DATA(told), &segment, sizeof segment);
    }
    ssize_t sent;
    do
        sent = sendmsg(socket, &message, MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent >= 0;
}

// Sends packets of `size` bytes each, in trains of up to `most`, destinations taking turns. Returns
// how many trains the socket took before the first that it did not take (who sends that one again
// will hear why); *datagrams: how many packets they had.
int64_t send_trains(int socket, const uint8_t *wire, size_t size, const struct span *spans,
                    size_t n, size_t most, uint64_t *datagrams) {
    int64_t trains = 0;
    *datagrams = 0;
    for (size_t at = 0, left = 1; left; at += most) {
        left = 0;
        for (size_t i = 0; i < n; i++) {
            if (spans[i].count <= at)
                continue;
            size_t rest = spans[i].count - at, count = rest < most ? rest : most;
            const uint8_t *packets = wire + (spans[i].first + at) * size;
            if (!send_train(socket, packets, size, count, &spans[i].destination))
                return trains;
            trains++;
            *datagrams += count;
            left |= rest > count;
        }
    }
    return trains;
}
