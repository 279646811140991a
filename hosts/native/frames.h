// SPDX-License-Identifier: Apache-2.0
// Packets that become Ethernet frames: frames.c.
#ifndef RACKHUB_FRAMES_H
#define RACKHUB_FRAMES_H

#include <stdbool.h>

#include "packet.h"

struct envelope; // the headers before a packet

// Frames that arrived at a host, to be sorted by the endpoints that their datagrams are for.
struct incoming {
    const struct peer *endpoints; // `count` of them
    int64_t count;
    int64_t *owners; // scratch, as many as frames
    // Results: the endpoints that get some, in the order of their first frames, and how many each.
    int64_t *order, *counts;
};

// Packets to write as frames: `n` that begin `stride` bytes apart, each with its peer; or, with
// `nodes`, `n` for each of `peer_count` peers, to which they go with the fields sender (the peer's
// index) and node.
struct outgoing {
    const struct envelope *template;
    const uint8_t *packets;
    const bool *full; // by packet: it has a payload
    const struct peer *peers;
    const uint16_t *nodes;
    const uint32_t *own; // addresses of this host
    int64_t n, stride, peer_count, own_count;
    int64_t stored; // bytes of a packet that are kept
    int64_t wide;   // bytes of a packet with payload
    int64_t sorts;  // 1: the most urgent first
    // Results: frames, and their lengths. The last `local` are for this host; the others and their
    // bytes are counted by priority, all as 0 unless `sorts`.
    uint8_t *frames;
    int64_t *lengths, *counts, *bytes;
    int64_t local;
};

#endif
