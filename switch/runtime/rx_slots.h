// SPDX-License-Identifier: Apache-2.0
//
// How many received frames wait for a switch at one of its ports: the slots of its receive ring
// (interfaces/rx_ring.h), and as many in virtual time, while a switch is stopped.

#ifndef RACKHUB_RX_SLOTS_H
#define RACKHUB_RX_SLOTS_H

#include <stdint.h>

enum {
    RX_LINE = 64, // bytes of the cache's
    RX_ETHERNET = 14,
    RX_OFFLOAD_HEADER = 10,
    // In front of a frame: the slot's header and address (68 bytes, made 80), the offload header,
    // and padding that aligns the payload of a UDP datagram to 32 bytes.
    RX_RESERVE = 42,
    RX_IN_FRONT = 80 + RX_RESERVE + RX_OFFLOAD_HEADER - RX_ETHERNET,
    // Behind that: Ethernet header, two VLAN tags, one of which is not in the frame yet.
    RX_AROUND = RX_IN_FRONT + RX_ETHERNET + 8,
    RX_LEAST_MTU = 1500,
    RX_LONGEST = 65535,       // of an IPv4 packet, in a GSO frame
    RX_SHORT_BYTES = 9 << 19, // for slots of short frames; rounded to a power of two
    // Slots of a block, which must be a multiple of 4 KiB; blocks are contiguous.
    RX_BLOCK_SLOTS = 64,
};

// Returns the bytes of a slot for packets of this size: whole lines, so that a block is whole
// pages, and an odd number of them, or the headers of all frames would compete for the same cache
// sets.
static inline uint32_t rx_slot_for(uint32_t packet) {
    return ((RX_AROUND + packet + RX_LINE - 1) / RX_LINE | 1) * RX_LINE;
}

// Returns the bytes of a slot for frames within an interface's MTU.
static inline uint32_t rx_short_slot(uint32_t mtu) {
    return rx_slot_for(mtu < RX_LEAST_MTU ? RX_LEAST_MTU : mtu > RX_LONGEST ? RX_LONGEST : mtu);
}

// Returns the number of these slots.
static inline uint32_t rx_short_slots(uint32_t mtu) {
    uint32_t slots = RX_BLOCK_SLOTS;
    while (2 * slots * rx_short_slot(mtu) <= RX_SHORT_BYTES)
        slots *= 2;
    return slots;
}

#endif
