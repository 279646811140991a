// SPDX-License-Identifier: Apache-2.0
//
// Ports whose links have a rate: what comes to the program is what arrived, in its order, no packet
// before the bits of all that arrived with it and of those before are there, and what is missing is
// counted.

#ifndef RACKHUB_FUZZ_LINES_H
#define RACKHUB_FUZZ_LINES_H

#include <stddef.h>
#include <stdint.h>

#include "offload.h"

void lines_set(uint32_t wire, uint64_t rate); // bit/s; 0: anything may come at any time
void lines_forget(void);                      // what is under way

// A frame is read; tag as of kernel_arrive.
void lines_arrive(uint32_t wire, const struct offload_header *header, const uint8_t *bytes,
                  size_t length, int tag, uint64_t now_ns);

// A packet comes to the program. lost: of this port so far.
void lines_come(uint32_t wire, const uint8_t *packet, size_t length, uint64_t now_ns,
                uint64_t lost);

// Everything has come but so many.
void lines_done(uint32_t wire, uint64_t lost);

#endif
