// SPDX-License-Identifier: Apache-2.0
//
// Checks ports whose links have a rate: packets reach the program in order of arrival, none before
// its bits and those of earlier packets have arrived, and missing packets are counted.

#ifndef RACKHUB_FUZZ_LINES_H
#define RACKHUB_FUZZ_LINES_H

#include <stddef.h>
#include <stdint.h>

#include "offload.h"

void lines_set(uint32_t wire, uint64_t rate); // bit/s; 0: anything may come at any time
void lines_forget(void);                      // packets in flight

// A frame is read; tag as of kernel_arrive.
void lines_arrive(uint32_t wire, const struct offload_header *header, const uint8_t *bytes,
                  size_t length, int tag, uint64_t now_ns);

// A packet comes to the program. lost: of this port so far.
void lines_come(uint32_t wire, const uint8_t *packet, size_t length, uint64_t now_ns,
                uint64_t lost);

// All packets but so many have arrived.
void lines_done(uint32_t wire, uint64_t lost);

#endif
