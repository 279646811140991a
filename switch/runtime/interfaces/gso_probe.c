// SPDX-License-Identifier: Apache-2.0
//
// Tests whether UDP GSO through a packet socket works, end to end. Kernels before about 6.2 accept
// the frame and lose it, so only a trial tells. It runs in a thread with a network namespace of its
// own, which ends with the thread.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "packet_checksums.h"
#include "interface.h"
#include "offload.h"
#include "ports.h"

// Some systems lack linux/veth.h.
enum { VETH_PEER = 1 };

enum { SEGMENTS = 5, PAYLOAD = 700, LAST = 333, PORT = 47999, WAIT_MS = 50, TRIES = 20 };

static const char sender[] = "probe0", receiver[] = "probe1";

struct probe {
    char *reason;
    size_t cap;
    int works;
};

static int fail(struct probe *probe, const char *what) {
    snprintf(probe->reason, probe->cap, "%s: %s", what, strerror(errno));
    return -1;
}

struct request {
    struct nlmsghdr header;
    struct ifinfomsg info;
    char attributes[512];
};

static struct rtattr *attribute(struct request *request, unsigned short type, const void *data,
                                size_t length) {
    struct rtattr *at = (struct rtattr *)((char *)request + NLMSG_ALIGN(request->header.nlmsg_len));
    at->rta_type = type;
    at->rta_len = (unsigned short)RTA_LENGTH(length);
    if (length)
        memcpy(RTA_DATA(at), data, length);
    request->header.nlmsg_len =
        NLMSG_ALIGN(request->header.nlmsg_len) + (uint32_t)RTA_ALIGN(at->rta_len);
    return at;
}

static void end_nest(struct request *request, struct rtattr *nest) {
    nest->rta_len = (unsigned short)((char *)request + request->header.nlmsg_len - (char *)nest);
}

// ip link add probe0 type veth peer name probe1
static int add_pair(void) {
    struct request request = {
        .header = {.nlmsg_len = NLMSG_LENGTH(sizeof request.info),
                   .nlmsg_type = RTM_NEWLINK,
                   .nlmsg_flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK},
    };
    (void)attribute(&request, IFLA_IFNAME, sender, sizeof sender);
    struct rtattr *link = attribute(&request, IFLA_LINKINFO, NULL, 0);
    (void)attribute(&request, IFLA_INFO_KIND, "veth", 4);
    struct rtattr *data = attribute(&request, IFLA_INFO_DATA, NULL, 0);
    struct ifinfomsg none = {0};
    struct rtattr *peer = attribute(&request, VETH_PEER, &none, sizeof none);
    (void)attribute(&request, IFLA_IFNAME, receiver, sizeof receiver);
    end_nest(&request, peer);
    end_nest(&request, data);
    end_nest(&request, link);

    int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (netlink < 0)
        return -1;
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
        char rest[1024];
    } reply;
    ssize_t length = send(netlink, &request, request.header.nlmsg_len, 0);
    if (length >= 0)
        length = recv(netlink, &reply, sizeof reply, 0);
    int error = length < (ssize_t)NLMSG_LENGTH(sizeof reply.error) ? EPROTO : -reply.error.error;
    close(netlink);
    errno = error;
    return error ? -1 : 0;
}

// Gives the interface an address (host order, 0: none), brings it up, reads its MAC.
static int bring_up(const char *name, uint32_t address, uint8_t *mac) {
    int handle = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (handle < 0)
        return -1;
    struct ifreq request = {0};
    strcpy(request.ifr_name, name);
    int result = 0;
    if (address) {
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
        memcpy(&request.ifr_addr, &in, sizeof in);
        result = ioctl(handle, SIOCSIFADDR, &request);
        in.sin_addr.s_addr = htonl(0xfffffffc);
        memcpy(&request.ifr_netmask, &in, sizeof in);
        if (!result)
            result = ioctl(handle, SIOCSIFNETMASK, &request);
    }
    if (!result)
        result = ioctl(handle, SIOCGIFFLAGS, &request);
    request.ifr_flags |= IFF_UP;
    if (!result)
        result = ioctl(handle, SIOCSIFFLAGS, &request);
    if (!result)
        result = ioctl(handle, SIOCGIFHWADDR, &request);
    memcpy(mac, request.ifr_hwaddr.sa_data, 6);
    close(handle);
    return result;
}

static uint8_t content(size_t at) {
    return (uint8_t)(at * 31 + at / 251);
}

// Writes one datagram of the run that is joined.
static size_t datagram(uint8_t *at, const uint8_t *to, const uint8_t *from, uint32_t source,
                       uint32_t destination, uint32_t index) {
    size_t payload = index == SEGMENTS - 1 ? LAST : PAYLOAD;
    memcpy(at, to, 6);
    memcpy(at + 6, from, 6);
    store16(at + 12, 0x0800);
    uint8_t *ip = at + 14;
    memset(ip, 0, 28);
    ip[0] = 0x45;
    store16(ip + 2, (uint32_t)(28 + payload));
    store16(ip + 4, 100 + index);
    ip[8] = 64;
    ip[9] = IPPROTO_UDP;
    store32(ip + 12, source);
    store32(ip + 16, destination);
    store_ip_checksum(ip, 20);
    store16(ip + 20, PORT);
    store16(ip + 22, PORT);
    store16(ip + 24, (uint32_t)(8 + payload));
    for (size_t i = 0; i < payload; i++)
        at[42 + i] = content(index * PAYLOAD + i);
    return 42 + payload;
}

static int send_train(const uint8_t *to, const uint8_t *from, uint32_t source,
                      uint32_t destination) {
    static uint8_t bytes[SEGMENTS][42 + PAYLOAD];
    struct offload_header header;
    struct iovec parts[1 + SEGMENTS] = {{&header, sizeof header}};
    struct train train;
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        size_t length = datagram(bytes[i], to, from, source, destination, i);
        struct outgoing packet = {
            .start = bytes[i],
            .length = (uint32_t)length,
            .sum_field = SW_COMPLETE,
        };
        bool taken = i ? train_join(&train, &packet, 65536) : train_open(&train, &packet);
        if (!taken) {
            errno = EPROTO;
            return -1;
        }
        size_t skip = i ? train.headers : 0;
        parts[1 + i] = (struct iovec){bytes[i] + skip, length - skip};
    }
    train_close(&train, &header);
    struct interface interface = {.socket = -1};
    strcpy(interface.name, sender);
    int error = interface_open(&interface);
    if (error) {
        errno = -error;
        return -1;
    }
    ssize_t sent = writev(interface.socket, parts, 1 + SEGMENTS);
    error = errno;
    interface_close(&interface);
    errno = error;
    return sent < 0 ? -1 : 0;
}

// 0 if every datagram of the run arrives as it should.
static int receive_all(struct probe *probe, int in) {
    uint8_t got[2048];
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        struct pollfd ready = {.fd = in, .events = POLLIN};
        if (poll(&ready, 1, WAIT_MS) != 1) {
            snprintf(probe->reason, probe->cap, "a joined frame was lost on its way");
            return -1;
        }
        ssize_t length = recv(in, got, sizeof got, 0);
        if (length != (i == SEGMENTS - 1 ? LAST : PAYLOAD)) {
            snprintf(probe->reason, probe->cap, "a joined frame arrived cut wrongly");
            return -1;
        }
        for (ssize_t n = 0; n < length; n++) {
            if (got[n] != content(i * PAYLOAD + (size_t)n)) {
                snprintf(probe->reason, probe->cap, "a joined frame arrived changed");
                return -1;
            }
        }
    }
    return 0;
}

static int try(struct probe *probe) {
    // Link-local (RFC 3927): the namespace has no other hosts.
    uint32_t here = 0xa9fe0001, there = 0xa9fe0002;
    uint8_t from[6], to[6];
    if (unshare(CLONE_NEWNET) < 0)
        return fail(probe, "no network namespace to try it in");
    if (add_pair() < 0)
        return fail(probe, "no veth pair to try it on");
    if (bring_up(sender, 0, from) < 0 || bring_up(receiver, there, to) < 0)
        return fail(probe, "the veth pair does not come up");
    int in = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (in < 0)
        return fail(probe, "no socket to receive on");
    struct sockaddr_in address = {
        .sin_family = AF_INET,
        .sin_port = htons(PORT),
        .sin_addr.s_addr = htonl(there),
    };
    int result = -1;
    bool bound = bind(in, (struct sockaddr *)&address, sizeof address) == 0;
    if (!bound)
        (void)fail(probe, "no socket to receive on");
    // An interface that has just come up loses frames until the kernel has noticed: retry.
    for (int tries = 0; tries < TRIES && result < 0 && bound; tries++) {
        if (send_train(to, from, here, there) < 0) {
            (void)fail(probe, "a joined frame is refused");
            break;
        }
        result = receive_all(probe, in);
    }
    close(in);
    return result;
}

static void *run(void *argument) {
    struct probe *probe = argument;
    probe->works = try(probe) == 0;
    return NULL;
}

int ports_probe_gso(char *reason, size_t cap) {
    // A thread of its own: the namespace, and all in it, ends with the thread.
    struct probe probe = {.reason = reason, .cap = cap};
    reason[0] = 0;
    pthread_t thread;
    int error = pthread_create(&thread, NULL, run, &probe);
    if (error) {
        snprintf(reason, cap, "no thread: %s", strerror(error));
        return 0;
    }
    pthread_join(thread, NULL);
    return probe.works;
}
