// SPDX-License-Identifier: Apache-2.0
//
// A packet socket's ring of received frames, shared with the kernel (packet_mmap, TPACKET_V2): frames
// are read where they lie, without a system call, and whoever sends them copies them there.
//
//   slot: tpacket2_hdr | address | padding | offload header | frame | room
//
// Slots are of one size and follow each other; the kernel fills them in turn. A slot is the kernel's
// or ours, as its status says: `next` is the first that we have not taken, and the `taken` slots
// before it are ours until rx_ring_give_back(). An interface has two rings (interface.h), one for
// frames of a packet that its MTU allows, one for those that are longer (GSO frames), so that many
// short frames can wait in little memory. A socket filter parts them.

#ifndef RACKHUB_RX_RING_H
#define RACKHUB_RX_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "offload.h"

enum rx_lengths { RX_SHORT_FRAMES, RX_LONG_FRAMES, RX_RINGS };

struct rx_ring {
    int socket; // -1: not open
    uint8_t *memory;
    uint32_t slot_bytes, slots;
    uint32_t next, taken;
};

struct rx_frame {
    uint8_t *bytes; // with 4 bytes of room in front of them, for a VLAN tag
    uint32_t length;
    bool truncated; // it is longer than a slot
    bool tagged;
    uint16_t tag, tag_type; // of a tagged frame, in which they are not
    struct offload_header header;
};

// Opens a socket that receives frames of such lengths, of the interface with this index, with offload
// headers. mtu: the interface's; if it grows, longer frames go to the other ring. 0, or -errno
// (-EPERM: CAP_NET_RAW is missing).
int rx_ring_open(struct rx_ring *ring, int index, uint32_t mtu, enum rx_lengths lengths);
void rx_ring_close(struct rx_ring *ring);

// Whether the next slot has been filled.
bool rx_ring_ready(const struct rx_ring *ring);
// When the frame in the next slot, which has been filled, came (nanoseconds of CLOCK_REALTIME).
uint64_t rx_ring_time(const struct rx_ring *ring);

// Takes the next slot, which has been filled. The frame is there until the slot is given back.
void rx_ring_take(struct rx_ring *ring, struct rx_frame *frame);
// Gives all slots that have been taken back to the kernel.
void rx_ring_give_back(struct rx_ring *ring);

// Frames lost since the last call because the ring was full.
uint64_t rx_ring_drops(const struct rx_ring *ring);

#endif
