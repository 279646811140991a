// SPDX-License-Identifier: Apache-2.0
//
// The transmit path of one port: the heads of packets are written into a buffer, the rest stays
// where it is until the packets are sent or the socket takes no more. Runs of one flow become
// trains if the port joins, and all leave in one sendmmsg.
//
// Invariants: waiting[0 .. packet_count) are in the order of frames[0 .. frame_count), each frame a
// consecutive range of them; frames[0 .. sent) have left. After a flush that returns false every
// rest is in `bytes` or `kept`.

#ifndef RACKHUB_TRANSMIT_H
#define RACKHUB_TRANSMIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload.h"
#include "target.h"

#define TRANSMIT_PACKETS 512
#define TRANSMIT_BYTES (384 * 1024)
#define TRANSMIT_BEFORE 64 // in front of each packet: its frame's offload header

struct transmit_frame {
    struct train train;
    uint32_t first, count; // its packets
    bool closed;           // headers are those of the joined frame
    // The end of the payload if it is contiguous for all packets, apart from the first's head; or
    // NULL.
    const uint8_t *end;
};

struct transmit {
    uint8_t *bytes; // heads, and whole packets
    size_t used;
    size_t apart;  // bytes of packets that are elsewhere
    uint8_t *kept; // copies of these, while the socket takes no more
    size_t kept_used;
    struct outgoing waiting[TRANSMIT_PACKETS];
    struct transmit_frame frames[TRANSMIT_PACKETS];
    uint32_t packet_count, frame_count;
    uint32_t sent; // frames that have left

    bool join;
    size_t train_limit; // bytes of a joined frame
    size_t largest;     // packet that the MTU allows, which nothing checks in a joined frame

    uint64_t packets, total; // packets sent, and their bytes
    uint64_t handed_over;   // in this many frames
    uint64_t full;           // packets refused by the interface's queue
    uint64_t oversized;      // packets above the interface's MTU
    uint64_t down;           // packets for an interface that is down or gone
    uint64_t errors;         // packets lost to other errors, the last being:
    int error;
    int plain_error; // errno that ended joining, or 0
};

// 0 or -ENOMEM.
int transmit_init(struct transmit *transmit, bool join, size_t train_limit);
void transmit_destroy(struct transmit *transmit);

// Returns where to write the next packet (SW_MAX_FRAME bytes), or NULL: flush first.
static inline uint8_t *transmit_room(struct transmit *t) {
    if (t->packet_count == TRANSMIT_PACKETS || t->used + t->apart > TRANSMIT_BYTES)
        return NULL;
    return t->bytes + t->used + TRANSMIT_BEFORE;
}

// Adds the packet written there, of `length` bytes, which do not yet include those of *leaving.
void transmit_add(struct transmit *transmit, size_t length, const struct sw_leaving *leaving);

// Sends all packets. False if the socket takes no more now: call again when it is writable; the
// remaining packets no longer refer to other memory.
bool transmit_flush(struct transmit *transmit, int socket);

// Discards all packets, counted as `down`.
void transmit_discard(struct transmit *transmit);

#endif
