// SPDX-License-Identifier: Apache-2.0
//
// Packet sockets of the load and of the null switch (packet(7)).
#ifndef BENCH_INTERFACE_H
#define BENCH_INTERFACE_H

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PORTS = 4 };

static inline int set_option(int socket, int level, int name, int value) {
    return setsockopt(socket, level, name, &value, sizeof value) < 0 ? -errno : 0;
}

// Opens a raw socket on an interface; with protocol 0 it receives nothing. Returns it, or -errno.
static inline int open_interface(const char *name, uint16_t protocol, int vnet, int flags) {
    int handle = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | flags, 0);
    if (handle < 0)
        return -errno;
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET,
        .sll_protocol = htons(protocol),
        .sll_ifindex = (int)if_nametoindex(name),
    };
    int error = address.sll_ifindex ? 0 : -ENODEV;
    if (!error && vnet)
        error = set_option(handle, SOL_PACKET, PACKET_VNET_HDR, 1);
    if (!error)
        error = set_option(handle, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
    if (!error && bind(handle, (struct sockaddr *)&address, sizeof address) < 0)
        error = -errno;
    if (error) {
        close(handle);
        return error;
    }
    return handle;
}

#endif
