// SPDX-License-Identifier: Apache-2.0
// Sends and receives trains of datagrams at a UDP socket, many in one call.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "trains.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SCM_TIMESTAMPNS
#define SCM_TIMESTAMPNS 35
#endif

enum { LARGEST_RECEIVE = 1 << 16 };

// A received train: a row of Receiver._trains.
struct received {
    uint32_t bytes, segment;
    struct peer source;
} __attribute__((packed));

// A destination, and its first packet that was not sent.
struct line {
    struct peer destination;
    size_t next;
};

enum { MOST_LINES = 64, MOST_PIECES = 64 };

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

// Returns when a train arrived, in nanoseconds of the clock that people set; 0 if nothing says so.
static int64_t stamp_of(struct msghdr *message) {
    for (struct cmsghdr *one = CMSG_FIRSTHDR(message); one; one = CMSG_NXTHDR(message, one)) {
        if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec at;
            memcpy(&at, CMSG_DATA(one), sizeof at);
            return at.tv_sec * 1000000000LL + at.tv_nsec;
        }
    }
    return 0;
}

// Copies headers to contiguous memory and sets `full` for packets with payload: decode_wire() in
// protocol/header.py. Returns 1 if all `n` packets are well-formed.
static int decode(const uint8_t *wire, size_t n, size_t wide, struct header *headers,
                  bool *full) {
    int good = 1;
    for (size_t i = 0; i < n; i++) {
        struct header *header = &headers[i];
        memcpy(header, wire + i * wide, sizeof *header);
        full[i] = carries_payload(header);
        int op = op_of(header);
        good &= header->version_op >> 4 == VERSION && op >= CONTRIBUTE && op <= STATE;
        good &= full[i] || wide == sizeof *header;
    }
    return good;
}

// Receives trains until nothing is left, `most` datagrams have arrived, or the next train might not
// fit into the arena.
void receive_trains(int socket, struct inbox *inbox) {
    int64_t at = 0, datagrams = 0, stamped = 0, base = 0;
    double arrived = 0; // the sum over `stamped` datagrams, in nanoseconds after `base`
    inbox->trains_length = inbox->packets = inbox->error = 0;
    inbox->regular = 1;
    while (at + LARGEST_RECEIVE <= inbox->room && datagrams < inbox->most) {
        struct sockaddr_in source = {0};
        union {
            char bytes[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(struct timespec))];
            struct cmsghdr aligned;
        } control;
        struct iovec memory = {inbox->arena + at, LARGEST_RECEIVE};
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
            inbox->error = errno == EAGAIN || errno == EWOULDBLOCK ? 0 : errno;
            break;
        }
        struct received *train = &inbox->trains[inbox->trains_length++];
        train->bytes = (uint32_t)length;
        train->segment = segment_of(&message, (uint32_t)length);
        train->source = (struct peer){source.sin_addr.s_addr, source.sin_port};
        int64_t count = train->segment ? length / train->segment : 0;
        inbox->regular &= train->segment == inbox->wide && count * inbox->wide == length;
        if (inbox->regular) {
            int64_t first = inbox->packets;
            inbox->regular = decode(inbox->arena + at, (size_t)count, (size_t)inbox->wide,
                                    inbox->headers + first, inbox->full + first);
            for (int64_t i = 0; i < count; i++)
                inbox->sources[first + i] = train->source;
            inbox->packets += count;
        }
        int64_t stamp = inbox->timed ? stamp_of(&message) : 0;
        if (stamp) {
            int64_t number = count ? count : 1;
            base = stamped ? base : stamp;
            arrived += (double)(number * (stamp - base));
            stamped += number;
        }
        datagrams += count ? count : 1;
        at += length;
    }
    inbox->queued = 0;
    if (stamped) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        double until = (double)(now.tv_sec * 1000000000LL + now.tv_nsec - base);
        inbox->queued = (until - arrived / (double)stamped) * 1e-9;
        inbox->queued = inbox->queued > 0 ? inbox->queued : 0; // the clock was set back
    }
}

// Sends a train of `count` packets of `size` bytes each, which lie in so many pieces of memory.
// Returns 0 if the socket refused it.
static int send_pieces(int socket, struct iovec *pieces, size_t length, size_t size, size_t count,
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
    struct msghdr message = {
        .msg_name = &to,
        .msg_namelen = sizeof to,
        .msg_iov = pieces,
        .msg_iovlen = length,
    };
    if (count > 1) {
        uint16_t segment = (uint16_t)size;
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *option = CMSG_FIRSTHDR(&message);
        option->cmsg_level = IPPROTO_UDP;
        option->cmsg_type = UDP_SEGMENT;
        option->cmsg_len = CMSG_LEN(sizeof segment);
        memcpy(CMSG_DATA(option), &segment, sizeof segment);
    }
    ssize_t sent;
    do
        sent = sendmsg(socket, &message, MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent >= 0;
}

int send_train(int socket, const uint8_t *packets, size_t size, size_t count,
               const struct peer *destination) {
    struct iovec memory = {(void *)packets, size * count};
    return send_pieces(socket, &memory, 1, size, count, destination);
}

static int same(const struct peer *one, const struct peer *other) {
    return !memcmp(one, other, sizeof *one);
}

// Finds the destinations of packets, in the order of their first ones. Returns their number, or 0
// if there are more than MOST_LINES.
static size_t find_lines(const struct peer *peers, size_t n, struct line *lines) {
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        if (i && same(&peers[i], &peers[i - 1]))
            continue;
        size_t k = 0;
        while (k < found && !same(&peers[i], &lines[k].destination))
            k++;
        if (k == MOST_LINES)
            return 0;
        if (k == found)
            lines[found++] = (struct line){peers[i], i};
    }
    return found;
}

// Collects the next up to `most` packets of a line, from `n` of `size` bytes each. Returns their
// number, and sets in how many pieces of memory they are; there is room for `most`.
static size_t collect(struct line *line, const uint8_t *wire, size_t size, const struct peer *peers,
                      size_t n, size_t most, struct iovec *pieces, size_t *length) {
    size_t count = 0, last = 0;
    *length = 0;
    for (; line->next < n && count < most; line->next++) {
        size_t i = line->next;
        if (!same(&peers[i], &line->destination))
            continue;
        if (count && last + 1 == i)
            pieces[*length - 1].iov_len += size;
        else
            pieces[(*length)++] = (struct iovec){(void *)(wire + i * size), size};
        last = i;
        count++;
    }
    return count;
}

// Sends `n` packets of `size` bytes each in trains of up to `most`; destinations take turns.
//
// Returns the number of trains before the first that the socket refused (sending that one again
// gives the error), 0 if there are too many destinations or packets in a train; *packets: number in
// these trains.
int64_t send_trains(int socket, const uint8_t *wire, size_t size, const struct peer *destinations,
                    size_t n, size_t most, uint64_t *packets) {
    struct line lines[MOST_LINES];
    struct iovec pieces[MOST_PIECES];
    size_t count = find_lines(destinations, n, lines), length;
    int64_t trains = 0;
    *packets = 0;
    if (!count || most > MOST_PIECES)
        return 0;
    while (*packets < n) {
        for (size_t i = 0; i < count; i++) {
            size_t together =
                collect(&lines[i], wire, size, destinations, n, most, pieces, &length);
            if (!together)
                continue;
            if (!send_pieces(socket, pieces, length, size, together, &lines[i].destination))
                return trains;
            trains++;
            *packets += together;
        }
    }
    return trains;
}

// Sends the same `n` packets to each of `children` destinations, which take turns, with the fields
// sender (index of the destination) and node (from `nodes`) set. Returns as send_trains().
int64_t cast_trains(int socket, uint8_t *wire, size_t size, size_t n,
                    const struct peer *destinations, const uint16_t *nodes, size_t children,
                    size_t most, uint64_t *packets) {
    struct line lines[MOST_LINES];
    int64_t trains = 0;
    *packets = 0;
    if (find_lines(destinations, children, lines) != children)
        return 0;
    for (size_t at = 0; at < n; at += most) {
        size_t together = n - at < most ? n - at : most;
        for (size_t child = 0; child < children; child++) {
            uint8_t *train = wire + at * size;
            for (size_t i = 0; i < together; i++) {
                struct header *header = (struct header *)(train + i * size);
                header->sender = (uint8_t)child;
                header->node = two(nodes[child]);
            }
            if (!send_train(socket, train, size, together, &destinations[child]))
                return trains;
            trains++;
            *packets += together;
        }
    }
    return trains;
}
