// SPDX-License-Identifier: Apache-2.0
//
// The way out of one port: the heads of packets are written into a buffer, what is behind stays where
// it is until the packets are sent, or the socket takes no more. Runs of one flow become trains if
// the port joins, and all leave in one sendmmsg.

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
    // Where the payload ends if that of all packets lies in one piece, apart from the first's head;
    // or NULL.
    const uint8_t *end;
};

struct transmit {
    uint8_t *bytes; // heads, and whole packets
    size_t used;
    size_t apart;  // bytes of packets that are not there
    uint8_t *kept; // of these, while the socket takes no more
    size_t kept_used;
    struct outgoing waiting[TRANSMIT_PACKETS];
    struct transmit_frame frames[TRANSMIT_PACKETS];
    uint32_t packet_count, frame_count;
    uint32_t sent; // frames that have left

    bool join;
    size_t train_limit; // bytes of a joined frame
    size_t largest;     // packet that the MTU allows: in a joined frame nobody else would look

    uint64_t packets, total; // sent, and their bytes
    uint64_t handed_over;   // how many frames that were
    uint64_t full;           // packets refused by the interface's queue
    uint64_t oversized;      // packets above the interface's MTU
    uint64_t down;           // packets for an interface that is down or gone
    uint64_t errors;         // packets lost to other errors, the last being:
    int error;
    int plain_error; // errno for which joining was given up, or 0
};

// 0 or -ENOMEM.
int transmit_init(struct transmit *transmit, bool join, size_t train_limit);
void transmit_destroy(struct transmit *transmit);

// Where the next packet may be written (SW_MAX_FRAME bytes), or NULL: flush first.
static inline uint8_t *transmit_room(struct transmit *t) {
    if (t->packet_count == TRANSMIT_PACKETS || t->used + t->apart > TRANSMIT_BYTES)
        return NULL;
    return t->bytes + t->used + TRANSMIT_BEFORE;
}

// The packet there has `length` bytes, those of *leaving not yet among them, and is to be sent.
void transmit_add(struct transmit *transmit, size_t length, const struct sw_leaving *leaving);

// Sends what is there. False if the socket takes no more now: call again when it is writable; what
// is left no longer refers to other memory.
bool transmit_flush(struct transmit *transmit, int socket);

// Forgets what is there; the packets count as `down`.
void transmit_discard(struct transmit *transmit);

#endif
