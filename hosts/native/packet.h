// SPDX-License-Identifier: Apache-2.0
// The aggregation header in wire format (protocol/header.py), and functions on it.
#ifndef RACKHUB_PACKET_H
#define RACKHUB_PACKET_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>

// Numbers are in network order. Headers may begin at any address: none needs alignment.
struct header {
    uint8_t version_op, flags;
    uint16_t job, epoch;
    uint8_t stream, sender;
    uint32_t seq, chunk, children;
    uint16_t workers;
    int8_t exponent, max_exponent;
    uint16_t lanes, node;
    uint32_t checksum;
} __attribute__((packed));

_Static_assert(sizeof(struct header) == 32, "the header has 32 bytes");

struct peer {
    uint32_t ipv4;
    uint16_t port;
} __attribute__((packed));

// Words of a payload (LANE in protocol/header.py) or of a row; neither is necessarily aligned.
typedef uint32_t word __attribute__((aligned(1), may_alias));
typedef uint16_t half __attribute__((aligned(1), may_alias));

enum { VERSION = 1 };
enum { CONTRIBUTE = 1, RESULT = 2, QUERY = 3, STATE = 4 };
enum { OVERFLOW = 0x01, RETRANSMIT = 0x02, DIRECT = 0x04, NONFINITE = 0x08, ECN = 0x40 };
enum { AGGREGATING = 0, PARTIAL = 1, FINAL = 2, PHASE_SHIFT = 4 }; // in the flags of a STATE


static inline uint16_t two(uint16_t value) { return be16toh(value); }
static inline uint32_t four(uint32_t value) { return be32toh(value); }

static inline int op_of(const struct header *header) { return header->version_op & 15; }

// See carries_payload() in protocol/header.py.
static inline int carries_payload(const struct header *header) {
    int op = op_of(header);
    int whole = !(header->flags & (OVERFLOW | NONFINITE)) || (header->flags & DIRECT);
    return header->lanes != 0 && (op == CONTRIBUTE || op == RESULT) && whole;
}

// See chunk_hash() in protocol/payloads.py.
static inline uint32_t chunk_hash(const struct header *header) {
    uint32_t words[3] = {
        (uint32_t)two(header->job) << 16 | (uint32_t)header->stream << 8 |
            (uint8_t)header->exponent,
        four(header->seq),
        four(header->chunk),
    };
    uint32_t hash = 0x9E3779B9;
    for (int i = 0; i < 3; i++) {
        hash = (hash ^ words[i]) * 0x85EBCA6B;
        hash ^= hash >> 15;
    }
    hash *= 0xC2B2AE35;
    return hash ^ hash >> 13;
}

#endif
