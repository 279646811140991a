// SPDX-License-Identifier: Apache-2.0
//
// The system calls of the ports, with the fuzzer on the other side: interfaces are there or not,
// frames arrive with any offload header, sending fails as it likes. What is sent is compared with
// what egress returned: the same packets in the same order, whatever was joined.

#ifndef RACKHUB_FUZZ_KERNEL_H
#define RACKHUB_FUZZ_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload.h"

enum { WIRES = 6 }; // ports 1 to 5 have interfaces e1 to e5; 0 is the CPU port

void kernel_reset(void); // all interfaces there, nothing under way
void kernel_pass(uint64_t nanoseconds);
uint64_t kernel_now(void);

// A frame for the port's interface to receive; bytes are copied. tag >= 0: a VLAN tag beside the frame.
void kernel_arrive(uint32_t port, const struct offload_header *header, const uint8_t *bytes,
                   size_t length, int tag);
bool kernel_waits(uint32_t port); // frames, or an error
void kernel_fail_receive(uint32_t port, uint32_t which);
void kernel_fail_send(uint32_t port, uint32_t takes, uint32_t which);
void kernel_send_freely(void);

// Only told with the next links_read.
void kernel_link(uint32_t port, uint32_t news, uint32_t mtu);

// Egress returned this packet for the port.
void kernel_expect(uint32_t port, const uint8_t *packet, size_t length);
// It came out of the port (the CPU's).
void kernel_came(uint32_t port, const uint8_t *packet, size_t length);
// All that was expected has come.
void kernel_done(void);
uint64_t kernel_delivered(uint32_t port); // packets

__attribute__((noreturn, format(printf, 1, 2))) void wrong(const char *format, ...);

#endif
