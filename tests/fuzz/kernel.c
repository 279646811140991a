// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "kernel.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "packet_checksums.h"
#include "interface.h"
#include "lines.h"
#include "records.h"
#include "target.h"

enum {
    BATCH = 64,
    TAG = 4,
    IN_FRONT = 192, // of a frame that arrives, as much as of one in a ring
    LARGEST = 65535 + ETH_HLEN + 2 * TAG,
};

struct arrival {
    struct offload_header header;
    uint8_t *bytes;
    size_t length;
    int tag;
};

struct expected {
    struct expected *next;
    size_t length;
    uint8_t bytes[];
};

static struct wire {
    int file; // of the port's socket, -1: closed
    int index;
    bool present;
    uint32_t mtu, largest_mtu;
    struct arrival arrivals[BATCH];
    uint32_t arrived;
    uint8_t *slots[BATCH]; // of frames that were taken, and not given back
    uint32_t taken;
    int receive_error;
    uint32_t takes; // frames that the next sendmmsg takes before send_error
    int send_error;
    struct expected *first, **last;
    uint64_t delivered;
} wires[WIRES];

static struct link_change news[BATCH];
static uint32_t news_count;
static bool news_lost;
static uint64_t now_ns;

void wrong(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("fuzz: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

// ---------------------------------------------------------------------------------------------
// For the harness

static void forget(struct wire *wire) {
    while (wire->first) {
        struct expected *next = wire->first->next;
        free(wire->first);
        wire->first = next;
    }
    wire->last = &wire->first;
}

static void forget_arrivals(struct wire *wire) {
    for (uint32_t i = 0; i < wire->arrived; i++)
        free(wire->arrivals[i].bytes);
    wire->arrived = 0;
}

void kernel_reset(void) {
    for (uint32_t port = 0; port < WIRES; port++) {
        struct wire *wire = &wires[port];
        forget(wire);
        forget_arrivals(wire);
        memset(wire, 0, sizeof *wire);
        wire->file = -1;
        wire->index = (int)port + 10;
        wire->present = true;
        wire->mtu = wire->largest_mtu = port == 2 ? 9000 : 1500;
        wire->last = &wire->first;
    }
    news_count = 0;
    news_lost = false;
    now_ns = 1000000000;
}

void kernel_pass(uint64_t nanoseconds) { now_ns += nanoseconds; }

uint64_t kernel_now(void) { return now_ns; }

void kernel_arrive(uint32_t port, const struct offload_header *header, const uint8_t *bytes,
                   size_t length, int tag) {
    struct wire *wire = &wires[port];
    if (wire->arrived == BATCH)
        return;
    uint8_t *copy = malloc(length + 1);
    if (!copy)
        wrong("no memory");
    memcpy(copy, bytes, length);
    wire->arrivals[wire->arrived++] = (struct arrival){*header, copy, length, tag};
}

bool kernel_waits(uint32_t port) { return wires[port].arrived || wires[port].receive_error; }

void kernel_fail_receive(uint32_t port, uint32_t which) {
    static const int errors[] = {ENETDOWN, ENXIO, ENOBUFS};
    wires[port].receive_error = errors[which % (sizeof errors / sizeof *errors)];
}

void kernel_fail_send(uint32_t port, uint32_t takes, uint32_t which) {
    static const int errors[] = {EAGAIN,   EINTR, ENOBUFS, EMSGSIZE, ENETDOWN,
                                 ENODEV, ENXIO, EIO,     EINVAL,   EPERM};
    wires[port].takes = takes % 8;
    wires[port].send_error = errors[which % (sizeof errors / sizeof *errors)];
}

void kernel_send_freely(void) {
    for (uint32_t port = 0; port < WIRES; port++)
        wires[port].send_error = 0;
}

void kernel_link(uint32_t port, uint32_t kind, uint32_t mtu) {
    struct wire *wire = &wires[port];
    if (kind == LINK_NEWS_LOST)
        news_lost = true;
    if (kind == LINK_GONE)
        wire->present = false;
    if (kind == LINK_BACK && !wire->present) {
        wire->present = true;
        wire->index += 10;
    }
    if (kind == LINK_MTU)
        wire->mtu = mtu;
    if (wire->largest_mtu < wire->mtu)
        wire->largest_mtu = wire->mtu;
    if (news_count == BATCH || news_lost)
        return;
    struct link_change *change = &news[news_count++];
    *change = (struct link_change){.index = wire->index, .present = wire->present,
                                   .mtu = wire->mtu};
    snprintf(change->name, sizeof change->name, "e%u", port);
}

// ---------------------------------------------------------------------------------------------
// What leaves

void kernel_expect(uint32_t port, const uint8_t *packet, size_t length) {
    if (port >= WIRES || (port && wires[port].file < 0))
        return;
    struct expected *made = malloc(sizeof *made + length);
    if (!made)
        wrong("no memory");
    made->next = NULL;
    made->length = length;
    memcpy(made->bytes, packet, length);
    *wires[port].last = made;
    wires[port].last = &made->next;
}

static void pop(struct wire *wire) {
    struct expected *first = wire->first;
    if (!first)
        wrong("port %ld sent a packet that egress did not return", (long)(wire - wires));
    wire->first = first->next;
    if (!wire->first)
        wire->last = &wire->first;
    free(first);
}

static bool same(const struct expected *expected, const uint8_t *packet, size_t length) {
    return expected && expected->length == length && memcmp(expected->bytes, packet, length) == 0;
}

void kernel_came(uint32_t port, const uint8_t *packet, size_t length) {
    // A full ring loses packets, but keeps their order.
    while (wires[port].first && !same(wires[port].first, packet, length))
        pop(&wires[port]);
    pop(&wires[port]);
    wires[port].delivered++;
}

// Checks a packet of a joined frame: as egress returned it, except that a UDP checksum of 0 may have
// been filled in.
static bool same_joined(const struct expected *expected, const uint8_t *packet, size_t length) {
    if (same(expected, packet, length))
        return true;
    if (!expected || expected->length != length || length < 42 || expected->bytes[23] != 17 ||
        load16(expected->bytes + 40) != 0 || memcmp(expected->bytes, packet, 40) != 0 ||
        memcmp(expected->bytes + 42, packet + 42, length - 42) != 0)
        return false;
    uint64_t sum = sum_pseudo4(packet + 14, 17, (uint32_t)length - 34);
    return sum_fold(sum_bytes(sum, packet + 34, length - 34)) == 0xffff;
}

static size_t message_length(const struct msghdr *message) {
    size_t length = 0;
    for (size_t i = 0; i < message->msg_iovlen; i++)
        length += message->msg_iov[i].iov_len;
    return length;
}

// The message's offload header and frame, in however many pieces it is; free(3) what it returns.
static uint8_t *gather(const struct msghdr *message, struct offload_header *header,
                       size_t *length) {
    size_t total = message_length(message), at = 0;
    if (total < sizeof *header)
        wrong("a message without an offload header");
    uint8_t *all = malloc(total + 1), *frame = malloc(total + 1);
    if (!all || !frame)
        wrong("no memory");
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        memcpy(all + at, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
        at += message->msg_iov[i].iov_len;
    }
    memcpy(header, all, sizeof *header);
    *length = total - sizeof *header;
    memcpy(frame, all + sizeof *header, *length);
    free(all);
    return frame;
}

// Takes one message apart; returns how many packets it is. check: they have to be what is expected.
static uint32_t take_apart(struct wire *wire, const struct msghdr *message, bool check) {
    struct offload_header header;
    size_t length;
    uint8_t *frame = gather(message, &header, &length);
    bool joined = header.gso_type != OFFLOAD_GSO_NONE;
    struct segments segments;
    uint32_t count = segments_open(&segments, &header, frame, length);
    if (count == 0 || (joined && count < 2) || length > 65549)
        wrong("a frame that cannot be split: %u packets, %zu bytes", count, length);
    uint8_t *packet;
    size_t size;
    while (check && (size = segments_next(&segments, &packet))) {
        if (segments.sum_field != SW_COMPLETE)
            complete_sum(packet, size, segments.sum_start, segments.sum_field);
        if (joined ? !same_joined(wire->first, packet, size) : !same(wire->first, packet, size))
            wrong("port %ld sent %zu bytes that are not the packet egress returned",
                  (long)(wire - wires), size);
        if (joined && size > wire->largest_mtu + ETH_HLEN)
            wrong("a packet of %zu bytes above the MTU in a joined frame", size);
        pop(wire);
        wire->delivered++;
    }
    free(frame);
    return count;
}

// Returns a packet socket's own verdict on a message, before injected errors.
static int refusal(const struct wire *wire, const struct msghdr *message, bool *joined) {
    struct offload_header header;
    size_t length;
    free(gather(message, &header, &length));
    *joined = header.gso_type != OFFLOAD_GSO_NONE;
    if (length < ETH_HLEN)
        return EINVAL;
    if (!*joined && length > wire->mtu + ETH_HLEN + TAG)
        return EMSGSIZE;
    return 0;
}

static struct wire *wire_of(int file) {
    for (uint32_t port = 1; port < WIRES; port++)
        if (wires[port].file == file)
            return &wires[port];
    wrong("file %d is no socket of a port", file);
}

int fuzz_sendmmsg(int file, struct mmsghdr *messages, unsigned count, int flags) {
    (void)flags;
    struct wire *wire = wire_of(file);
    unsigned taken = 0;
    for (; taken < count; taken++) {
        bool joined;
        int error = refusal(wire, &messages[taken].msg_hdr, &joined);
        if (!error && wire->send_error && wire->takes-- == 0) {
            if (taken > 0) { // reported at the next call
                wire->takes = 0;
                break;
            }
            error = wire->send_error;
            wire->send_error = 0;
        }
        if (!error) {
            (void)take_apart(wire, &messages[taken].msg_hdr, true);
            continue;
        }
        if (taken > 0)
            break;
        bool again = error == EAGAIN || error == EINTR ||
                     (joined && (error == EIO || error == EINVAL));
        if (!again)
            for (uint32_t lost = take_apart(wire, &messages[0].msg_hdr, false); lost; lost--)
                pop(wire);
        errno = error;
        return -1;
    }
    return (int)taken;
}

void kernel_done(void) {
    forget(&wires[0]); // a full ring may have lost the last ones
    for (uint32_t port = 1; port < WIRES; port++)
        if (wires[port].file >= 0 && wires[port].first)
            wrong("port %u keeps packets that nothing holds up", port);
}

uint64_t kernel_delivered(uint32_t port) { return wires[port].delivered; }

// ---------------------------------------------------------------------------------------------
// What arrives

bool interface_receive(struct interface *interface, struct rx_frame *frame) {
    struct wire *wire = wire_of(interface->socket);
    if (wire->receive_error || wire->arrived == 0 || wire->taken == BATCH)
        return false;
    struct arrival one = wire->arrivals[0];
    memmove(wire->arrivals, wire->arrivals + 1, --wire->arrived * sizeof one);
    // Bytes after the frame are out of bounds.
    uint8_t *memory = malloc(IN_FRONT + one.length);
    if (!memory)
        wrong("no memory");
    wire->slots[wire->taken++] = memory;
    memcpy(memory + IN_FRONT, one.bytes, one.length);
    *frame = (struct rx_frame){
        .bytes = memory + IN_FRONT,
        .length = (uint32_t)one.length,
        .truncated = one.length > LARGEST,
        .header = one.header,
        .tagged = one.tag >= 0,
        .tag = (uint16_t)one.tag,
        .tag_type = one.tag >= 0 && one.tag & 1 ? ETH_P_8021AD : ETH_P_8021Q,
    };
    if (!frame->truncated)
        lines_arrive((uint32_t)(wire - wires), &one.header, one.bytes, one.length, one.tag, now_ns);
    free(one.bytes);
    return true;
}

void interface_give_back(struct interface *interface) {
    struct wire *wire = wire_of(interface->socket);
    while (wire->taken)
        free(wire->slots[--wire->taken]);
}

int interface_error(const struct interface *interface) {
    struct wire *wire = wire_of(interface->socket);
    int error = wire->receive_error;
    wire->receive_error = 0;
    return error;
}

// ---------------------------------------------------------------------------------------------
// interface.h, and the clock

int fuzz_clock_gettime(clockid_t clock, struct timespec *now) {
    (void)clock;
    *now = (struct timespec){(time_t)(now_ns / 1000000000), (long)(now_ns % 1000000000)};
    return 0;
}

unsigned fuzz_if_nametoindex(const char *name) {
    const struct wire *wire = &wires[name[1] - '0'];
    return wire->present ? (unsigned)wire->index : 0;
}

int interface_open(struct interface *interface) {
    struct wire *wire = &wires[interface->name[1] - '0'];
    if (!wire->present)
        return -ENODEV;
    wire->file = eventfd(0, EFD_CLOEXEC); // for epoll, which is the real one
    if (wire->file < 0)
        wrong("no file: %s", strerror(errno));
    interface->socket = wire->file;
    interface->index = wire->index;
    interface->mtu = wire->mtu;
    for (int i = 0; i < RX_RINGS; i++)
        interface->rings[i].socket = eventfd(0, EFD_CLOEXEC);
    return 0;
}

void interface_close(struct interface *interface) {
    if (interface->socket < 0)
        return;
    struct wire *wire = wire_of(interface->socket);
    interface_give_back(interface);
    for (int i = 0; i < RX_RINGS; i++)
        close(interface->rings[i].socket);
    close(wire->file);
    wire->file = interface->socket = -1;
    forget(wire);
    forget_arrivals(wire);
}

uint64_t interface_drops(const struct interface *interface) {
    (void)interface;
    return 0;
}

int links_open(void) { return -ENOSYS; } // ports are never started

int links_read(int link, void (*changed)(void *, const struct link_change *), void *context) {
    (void)link;
    uint32_t count = news_count;
    bool lost = news_lost;
    news_count = 0;
    news_lost = false;
    if (lost)
        return -ENOBUFS;
    for (uint32_t i = 0; i < count; i++)
        changed(context, &news[i]);
    return 0;
}
