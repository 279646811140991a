// SPDX-License-Identifier: Apache-2.0
//
// A network interface opened for raw frames with offload headers, and changes of interfaces
// (rtnetlink).
//
// One socket sends; two rings receive, for short and for long frames. Frames are taken in the order
// of their kernel timestamps across both rings.

#ifndef RACKHUB_INTERFACE_H
#define RACKHUB_INTERFACE_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#include "rx_ring.h"

struct interface {
    char name[IFNAMSIZ];
    int socket; // to send through; -1: not open
    int index;  // that the sockets are bound to
    uint32_t mtu;
    struct rx_ring rings[RX_RINGS]; // of received frames
};

// Opens packet sockets on the interface interface->name: promiscuous, non-blocking, with offload
// headers and VLAN tags reported, ignoring outgoing frames. 0, or -errno (-ENODEV: no such
// interface; -EPERM: CAP_NET_RAW is missing).
int interface_open(struct interface *interface);
void interface_close(struct interface *interface);

// Takes the oldest received frame. False if there is none.
bool interface_receive(struct interface *interface, struct rx_frame *frame);
// Gives all taken frames back to the kernel.
void interface_give_back(struct interface *interface);

// Returns and clears the interface's pending error (ENETDOWN); 0 if there is none.
int interface_error(const struct interface *interface);

// Returns the frames lost since the last call because a ring was full.
uint64_t interface_drops(const struct interface *interface);

// Returns a socket that becomes readable when an interface changes, or -errno.
int links_open(void);

struct link_change {
    char name[IFNAMSIZ];
    int index;
    int present; // 0: the interface is gone
    uint32_t mtu;
};

// Reads changes and calls changed() for each. Returns 0, or -ENOBUFS if changes were lost: then
// look at every interface again.
int links_read(int socket, void (*changed)(void *context, const struct link_change *change),
               void *context);

#endif
