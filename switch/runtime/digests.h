// SPDX-License-Identifier: Apache-2.0
//
// Digests: messages that packets leave for the control plane. A message that waits, or was taken and
// is not yet released, is not taken in a second time. Memory is bounded, and packets never wait: what
// finds no room is lost and counted.

#ifndef RACKHUB_DIGESTS_H
#define RACKHUB_DIGESTS_H

#include <stdint.h>

struct sw;

#define SW_DIGEST_ROOM 8192 // messages of one digest that wait or are not yet released

struct sw_digest_slot {
    uint32_t chained; // next with the same hash: number + 1, or 0
    uint32_t next;    // next that waits, or that is free
    uint64_t since_us;
};

struct sw_digest {
    uint64_t *values; // [SW_DIGEST_ROOM] messages
    struct sw_digest_slot *slots;
    uint32_t *chains; // [SW_DIGEST_ROOM] by hash
    uint32_t signal_at; // 0: disabled
    uint32_t used, free; // slots touched so far; first of those given back
    uint32_t first, last, waiting;
};

// A message of the program: `words` words, as many as the digest's messages have. Lock held.
void sw_digest_add(struct sw *sw, uint32_t digest, const uint64_t *message);

int sw_digests_start(struct sw *sw);
void sw_digests_free(struct sw *sw);

#endif
