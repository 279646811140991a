// SPDX-License-Identifier: Apache-2.0
//
// Digests: messages of packets to the control plane. Equal messages are suppressed while one waits
// or is taken and not yet released. Memory is bounded, and packets never wait: a message without
// room is lost and counted.
//
// A slot holds one message and is in exactly one state: never used (beyond `used`), free (list
// from `free`), waiting (queue from `first` to `last`), or taken. Waiting and taken slots are also
// in the hash chain of their message. Numbers are stored + 1, 0 is none.

#ifndef RACKHUB_DIGESTS_H
#define RACKHUB_DIGESTS_H

#include <stdint.h>

struct sw;

#define SW_DIGEST_ROOM 8192 // waiting or unreleased messages of one digest

struct sw_digest_slot {
    uint32_t chained; // next with the same hash: number + 1, or 0
    uint32_t next;    // next waiting or free slot
    uint64_t since_us;
};

struct sw_digest {
    uint64_t *values; // [SW_DIGEST_ROOM] messages
    struct sw_digest_slot *slots;
    uint32_t *chains; // [SW_DIGEST_ROOM] by hash
    uint32_t signal_at; // 0: disabled
    uint32_t used, free; // slots used so far; first free slot
    uint32_t first, last, waiting;
};

// Adds a message of `words` words, as many as the digest's messages have. Lock held.
void sw_digest_add(struct sw *sw, uint32_t digest, const uint64_t *message);

int sw_digests_start(struct sw *sw);
void sw_digests_free(struct sw *sw);

#endif
