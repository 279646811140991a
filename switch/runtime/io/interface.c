// SPDX-License-Identifier: Apache-2.0
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

// Bursts wait here while the thread is busy: about 50 GSO frames or 3,500 frames of 1 KiB.
enum { RECEIVE_BUFFER = 8 << 20 };

static int set(int socket, int level, int name, int value) {
    return setsockopt(socket, level, name, &value, sizeof value) < 0 ? -errno : 0;
}

static int configure(struct interface *interface) {
    struct ifreq request = {0};
    memcpy(request.ifr_name, interface->name, sizeof request.ifr_name);
    if (ioctl(interface->socket, SIOCGIFINDEX, &request) < 0)
        return -errno;
    interface->index = request.ifr_ifindex;
    if (ioctl(interface->socket, SIOCGIFMTU, &request) < 0)
        return -errno;
    interface->mtu = (uint32_t)request.ifr_mtu;

    int error = set(interface->socket, SOL_PACKET, PACKET_VNET_HDR, 1);
    if (!error)
        error = set(interface->socket, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1);
    if (!error)
        error = set(interface->socket, SOL_PACKET, PACKET_AUXDATA, 1);
    if (error)
        return error;
    // Privileged in the first user namespace only; elsewhere the system's maximum has to do.
    if (set(interface->socket, SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER))
        (void)set(interface->socket, SOL_SOCKET, SO_RCVBUF, RECEIVE_BUFFER);

    struct packet_mreq membership = {.mr_ifindex = interface->index, .mr_type = PACKET_MR_PROMISC};
    if (setsockopt(interface->socket, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &membership,
                   sizeof membership) < 0)
        return -errno;
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET,
        .sll_protocol = htons(ETH_P_ALL),
        .sll_ifindex = interface->index,
    };
    if (bind(interface->socket, (struct sockaddr *)&address, sizeof address) < 0)
        return -errno;
    return 0;
}

int interface_open(struct interface *interface) {
    // Protocol 0: deaf until bind, so that nothing of another interface gets in.
    interface->socket = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (interface->socket < 0)
        return -errno;
    int error = configure(interface);
    if (error)
        interface_close(interface);
    return error;
}

void interface_close(struct interface *interface) {
    if (interface->socket >= 0)
        close(interface->socket);
    interface->socket = -1;
}

uint64_t interface_drops(const struct interface *interface) {
    struct tpacket_stats statistics;
    socklen_t size = sizeof statistics;
    if (interface->socket < 0 || getsockopt(interface->socket, SOL_PACKET, PACKET_STATISTICS,
                                            &statistics, &size) < 0)
        return 0;
    return statistics.tp_drops;
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
    // A port leaving its bridge is a DELLINK too, of that family.
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
