// SPDX-License-Identifier: Apache-2.0
//
// A network interface opened for raw frames with offload headers, and news of interfaces that come
// and go (rtnetlink).

#ifndef RACKHUB_INTERFACE_H
#define RACKHUB_INTERFACE_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#include "rx_ring.h"

struct interface {
    char name[IFNAMSIZ];
    int socket; // to send through; -1: not open
    int index;  // of the interface that the sockets are bound to
    uint32_t mtu;
    struct rx_ring rings[RX_RINGS]; // what is received
};

// Opens packet sockets on the interface called interface->name: promiscuous, non-blocking, with
// offload headers and VLAN tags reported, deaf to what is sent here. 0, or -errno (-ENODEV: no such
// interface; -EPERM: CAP_NET_RAW is missing).
int interface_open(struct interface *interface);
void interface_close(struct interface *interface);

// Takes the frame that has come first of those that were not taken. False if there is none.
bool interface_receive(struct interface *interface, struct rx_frame *frame);
// Frames that were taken are not needed any more.
void interface_give_back(struct interface *interface);

// What has happened to the interface (ENETDOWN), once; 0 if nothing has.
int interface_error(const struct interface *interface);

// Frames lost since the last call because a ring was full.
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
