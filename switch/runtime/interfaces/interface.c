// SPDX-License-Identifier: Apache-2.0
//
// Network interfaces: see interface.h.

#include "interface.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static int find(struct interface *interface) {
    struct ifreq request = {0};
    memcpy(request.ifr_name, interface->name, sizeof request.ifr_name);
    if (ioctl(interface->socket, SIOCGIFINDEX, &request) < 0)
        return -errno;
    interface->index = request.ifr_ifindex;
    if (ioctl(interface->socket, SIOCGIFMTU, &request) < 0)
        return -errno;
    interface->mtu = (uint32_t)request.ifr_mtu;
    return 0;
}

static int bind_sender(const struct interface *interface) {
    int yes = 1;
    if (setsockopt(interface->socket, SOL_PACKET, PACKET_VNET_HDR, &yes, sizeof yes) < 0)
        return -errno;
    // Protocol 0: this socket receives nothing.
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = interface->index};
    return bind(interface->socket, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
}

int interface_open(struct interface *interface) {
    for (int i = 0; i < RX_RINGS; i++)
        interface->rings[i] = (struct rx_ring){.socket = -1};
    interface->socket = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (interface->socket < 0)
        return -errno;
    int error = find(interface);
    if (!error)
        error = bind_sender(interface);
    for (int i = 0; i < RX_RINGS && !error; i++)
        error = rx_ring_open(&interface->rings[i], interface->index, interface->mtu,
                             (enum rx_lengths)i);
    if (error)
        interface_close(interface);
    return error;
}

void interface_close(struct interface *interface) {
    if (interface->socket < 0)
        return;
    for (int i = 0; i < RX_RINGS; i++)
        rx_ring_close(&interface->rings[i]);
    close(interface->socket);
    interface->socket = -1;
}

bool interface_receive(struct interface *interface, struct rx_frame *frame) {
    struct rx_ring *rings = interface->rings, *first = &rings[RX_SHORT_FRAMES];
    bool is_short = rx_ring_ready(&rings[RX_SHORT_FRAMES]);
    bool is_long = rx_ring_ready(&rings[RX_LONG_FRAMES]);
    // A short frame older than the long one may have come since its ring was read; the reverse is
    // impossible.
    if (is_long && !is_short)
        is_short = rx_ring_ready(&rings[RX_SHORT_FRAMES]);
    if (!is_short && !is_long)
        return false;
    if (!is_short || (is_long && rx_ring_time(&rings[RX_LONG_FRAMES]) < rx_ring_time(first)))
        first = &rings[RX_LONG_FRAMES];
    rx_ring_take(first, frame);
    return true;
}

void interface_give_back(struct interface *interface) {
    for (int i = 0; i < RX_RINGS; i++)
        rx_ring_give_back(&interface->rings[i]);
}

int interface_error(const struct interface *interface) {
    int first = 0;
    for (int i = 0; i < RX_RINGS; i++) {
        int error = 0;
        socklen_t size = sizeof error;
        if (getsockopt(interface->rings[i].socket, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
            error = errno;
        first = first ? first : error;
    }
    return first;
}

uint64_t interface_drops(const struct interface *interface) {
    uint64_t drops = 0;
    if (interface->socket < 0)
        return 0;
    for (int i = 0; i < RX_RINGS; i++)
        drops += rx_ring_drops(&interface->rings[i]);
    return drops;
}

int links_open(void) {
    int link = socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (link < 0)
        return -errno;
    struct sockaddr_nl address = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};
    if (bind(link, (struct sockaddr *)&address, sizeof address) < 0) {
        int error = -errno;
        close(link);
        return error;
    }
    return link;
}

static void read_message(const struct nlmsghdr *message,
                         void (*changed)(void *, const struct link_change *), void *context) {
    if (message->nlmsg_type != RTM_NEWLINK && message->nlmsg_type != RTM_DELLINK)
        return;
    const struct ifinfomsg *info = NLMSG_DATA(message);
    // A port that leaves its bridge sends a DELLINK, too, of another family.
    if (message->nlmsg_len < NLMSG_LENGTH(sizeof *info) || info->ifi_family != AF_UNSPEC)
        return;
    struct link_change change = {
        .index = info->ifi_index,
        .present = message->nlmsg_type == RTM_NEWLINK,
    };
    int rest = (int)IFLA_PAYLOAD(message);
    for (const struct rtattr *attribute = IFLA_RTA(info); RTA_OK(attribute, rest);
         attribute = RTA_NEXT(attribute, rest)) {
        size_t length = RTA_PAYLOAD(attribute);
        if (attribute->rta_type == IFLA_IFNAME && length <= sizeof change.name) {
            memcpy(change.name, RTA_DATA(attribute), length);
            change.name[sizeof change.name - 1] = 0;
        } else if (attribute->rta_type == IFLA_MTU && length == sizeof change.mtu) {
            memcpy(&change.mtu, RTA_DATA(attribute), length);
        }
    }
    changed(context, &change);
}

int links_read(int link, void (*changed)(void *, const struct link_change *), void *context) {
    _Alignas(struct nlmsghdr) char buffer[1 << 15];
    for (;;) {
        ssize_t length = recv(link, buffer, sizeof buffer, 0);
        if (length < 0 && errno == EINTR)
            continue;
        if (length < 0)
            return errno == EAGAIN ? 0 : -errno;
        int rest = (int)length;
        for (const struct nlmsghdr *message = (const struct nlmsghdr *)buffer;
             NLMSG_OK(message, (unsigned)rest); message = NLMSG_NEXT(message, rest))
            read_message(message, changed, context);
    }
}
