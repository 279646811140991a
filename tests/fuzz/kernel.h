// SPDX-License-Identifier: Apache-2.0
//
// Fake system calls of the ports, controlled by the fuzzer: interfaces appear and disappear, frames
// arrive with any offload header, sending may fail. Sent packets must be those that egress returned,
// in the same order, however they are joined.

#ifndef RACKHUB_FUZZ_KERNEL_H
#define RACKHUB_FUZZ_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload.h"

enum { WIRES = 6 }; // ports 1 to 5 have interfaces e1 to e5; 0 is the CPU port

void kernel_reset(void); // all interfaces up, nothing in flight
void kernel_pass(uint64_t nanoseconds);
uint64_t kernel_now(void);

// A frame for the port's interface to receive; bytes are copied. tag >= 0: a VLAN tag beside the frame.
void kernel_arrive(uint32_t port, const struct offload_header *header, const uint8_t *bytes,
                   size_t length, int tag);
bool kernel_waits(uint32_t port); // frames, or an error
void kernel_fail_receive(uint32_t port, uint32_t which);
void kernel_fail_send(uint32_t port, uint32_t takes, uint32_t which);
void kernel_send_freely(void);

// Reported by the next links_read.
void kernel_link(uint32_t port, uint32_t news, uint32_t mtu);

// Egress returned this packet for the port.
void kernel_expect(uint32_t port, const uint8_t *packet, size_t length);
// The packet left through the CPU port.
void kernel_came(uint32_t port, const uint8_t *packet, size_t length);
// All expected packets have left.
void kernel_done(void);
uint64_t kernel_delivered(uint32_t port); // packets

__attribute__((noreturn, format(printf, 1, 2))) void wrong(const char *format, ...);

#endif
