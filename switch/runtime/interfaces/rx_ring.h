// SPDX-License-Identifier: Apache-2.0
//
// A packet socket's ring of received frames, shared with the kernel (packet_mmap, TPACKET_V2):
// frames are read in place, without a system call, and the sender copies them.
//
//   slot: tpacket2_hdr | address | padding | offload header | frame | room
//
// Slots have one size and are contiguous; the kernel fills them in turn. A slot's status says
// whether it belongs to the kernel or to us. Invariant: the `taken` slots before `next` are ours
// until rx_ring_give_back(). An interface has two rings (interface.h), one for frames within its
// MTU, one for longer (GSO) frames, so that many short frames can wait in little memory. Socket
// filters divide the frames.

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
    uint8_t *bytes; // with 4 bytes of room in front, for a VLAN tag
    uint32_t length;
    bool truncated; // longer than a slot
    bool tagged;
    uint16_t tag, tag_type; // of a tagged frame, which does not contain them
    struct offload_header header;
};

// Opens a socket that receives frames of these lengths with offload headers, from the interface
// with this index. mtu: the interface's; if it grows, longer frames go to the other ring. 0, or
// -errno (-EPERM: CAP_NET_RAW is missing).
int rx_ring_open(struct rx_ring *ring, int index, uint32_t mtu, enum rx_lengths lengths);
void rx_ring_close(struct rx_ring *ring);

// True if the next slot is filled.
bool rx_ring_ready(const struct rx_ring *ring);
// Returns when the frame in the next, filled slot was received (nanoseconds of CLOCK_REALTIME).
uint64_t rx_ring_time(const struct rx_ring *ring);

// Takes the next, filled slot. The frame is valid until the slot is given back.
void rx_ring_take(struct rx_ring *ring, struct rx_frame *frame);
// Gives all taken slots back to the kernel.
void rx_ring_give_back(struct rx_ring *ring);

// Returns the frames lost since the last call because the ring was full.
uint64_t rx_ring_drops(const struct rx_ring *ring);

#endif
