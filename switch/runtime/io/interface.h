// SPDX-License-Identifier: Apache-2.0
//
// A network interface opened for raw frames with offload headers, and news of interfaces that come
// and go (rtnetlink).

#ifndef RACKHUB_INTERFACE_H
#define RACKHUB_INTERFACE_H

#include <net/if.h>
#include <stdint.h>

struct interface {
    char name[IFNAMSIZ];
    int socket; // -1: not open
    int index;  // of the interface that the socket is bound to
    uint32_t mtu;
};

// Opens a packet socket on the interface called interface->name: promiscuous, non-blocking, with
// offload headers and VLAN tags reported, deaf to what it sends itself. 0, or -errno (-ENODEV: no
// such interface; -EPERM: CAP_NET_RAW is missing).
int interface_open(struct interface *interface);
void interface_close(struct interface *interface);

// Frames lost since the last call because the socket's receive buffer was full.
uint64_t interface_drops(const struct interface *interface);

// A socket that becomes readable when an interface changes; -errno if it cannot be had.
int links_open(void);

struct link_change {
    char name[IFNAMSIZ];
    int index;
    int present; // 0: the interface is gone
    uint32_t mtu;
};

// Reads what has changed and calls changed() for each. Returns 0, or -ENOBUFS if news was lost:
// then look at every interface again.
int links_read(int socket, void (*changed)(void *context, const struct link_change *change),
               void *context);

#endif
