// SPDX-License-Identifier: Apache-2.0
// Conversion of datagrams to Ethernet frames and back, and admission of frames to a queue, for
// simulation/nodes/frames.py and host.py.
//
// Frames are rows of a fixed size, of which longer ones keep only their beginning; their lengths
// are given separately.

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "packet.h"

// The headers before an aggregation packet: Ethernet, IPv4 without options, UDP; in network order.
struct envelope {
    uint8_t target[6], source[6];
    uint16_t ethertype;
    uint8_t version, service;
    uint16_t total, id, fragment;
    uint8_t hops, protocol;
    uint16_t checksum;
    uint32_t from, to;
    uint16_t from_port, to_port, length, udp_checksum;
} __attribute__((packed));

enum { ETHERNET_BYTES = 14, IPV4_BYTES = 20, UDP_BYTES = 8 };
_Static_assert(sizeof(struct envelope) == ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES, "OVERHEAD");

// Returns the ones' complement sum of the IPv4 header (RFC 1071).
static uint16_t ipv4_sum(const struct envelope *envelope) {
    // Read in place: of a copy on the stack GCC 12.2 makes aligned stores where it is not aligned.
    const half *words = (const half *)&envelope->version;
    uint32_t sum = 0;
    for (size_t i = 0; i < IPV4_BYTES / 2; i++)
        sum += two(words[i]);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)((sum & 0xffff) + (sum >> 16));
}

static int is_datagram(const struct envelope *envelope, int64_t length) {
    return envelope->ethertype == two(0x0800) && envelope->version == 0x45 &&
           envelope->protocol == 17 && ipv4_sum(envelope) == 0xffff &&
           two(envelope->total) == length - ETHERNET_BYTES &&
           two(envelope->length) == length - ETHERNET_BYTES - IPV4_BYTES;
}

// Finds the UDP datagrams among frames of which `stored` bytes are kept: `good`, with the peers that
// they come from and are for. Returns their number.
int find_datagrams(const uint8_t *frames, size_t stored, size_t n, const int64_t *lengths,
                       struct peer *sources, struct peer *targets, bool *good) {
    int found = 0;
    for (size_t i = 0; i < n; i++) {
        const struct envelope *envelope = (const struct envelope *)(frames + i * stored);
        sources[i] = (struct peer){envelope->from, envelope->from_port};
        targets[i] = (struct peer){envelope->to, envelope->to_port};
        found += good[i] = is_datagram(envelope, lengths[i]);
    }
    return found;
}

// A packet that is `wide` bytes long with payload: returns whether it has one, -1 if malformed.
static int payload_of(const struct header *header, int64_t length, int64_t wide) {
    int op = op_of(header), full = carries_payload(header);
    if (header->version_op >> 4 != VERSION || op < CONTRIBUTE || op > STATE ||
        length != (full ? wide : (int64_t)sizeof *header))
        return -1;
    return full;
}

// Parses datagrams that begin `stride` bytes apart. Returns 1, with `headers` and `full` filled in,
// if all are well-formed packets, `wide` bytes long with payload; else 0.
int read_datagrams(const uint8_t *datagrams, size_t stride, size_t n, const int64_t *lengths,
                   int64_t wide, struct header *headers, bool *full) {
    for (size_t i = 0; i < n; i++) {
        memcpy(&headers[i], datagrams + i * stride, sizeof *headers);
        int carries = payload_of(&headers[i], lengths[i], wide);
        if (carries < 0)
            return 0;
        full[i] = carries;
    }
    return 1;
}

// Parses frames of which `stored` bytes are kept.
//
// Returns 1, with `headers`, `full` and `sources` filled in, if all are datagrams for the peer
// `mine` and well-formed packets, `wide` bytes long with payload; else 0.
int read_frames(const uint8_t *frames, size_t stored, size_t n, const int64_t *lengths,
                const struct peer *mine, int64_t wide, struct header *headers, uint8_t *full,
                struct peer *sources) {
    for (size_t i = 0; i < n; i++) {
        const struct envelope *envelope = (const struct envelope *)(frames + i * stored);
        int64_t length = lengths[i];
        if (!is_datagram(envelope, length) || envelope->to != mine->ipv4 ||
            envelope->to_port != mine->port)
            return 0;
        memcpy(&headers[i], envelope + 1, sizeof *headers);
        int carries = payload_of(&headers[i], length - (int64_t)sizeof *envelope, wide);
        if (carries < 0)
            return 0;
        full[i] = (uint8_t)carries;
        sources[i] = (struct peer){envelope->from, envelope->from_port};
    }
    return 1;
}

// Writes the envelopes of datagrams, each from `template` with its own peer and length, to frames
// `stride` bytes apart. A datagram is `wide` bytes long if it is full, else as long as a header;
// writes the lengths of frames to `lengths`.
void write_envelopes(const struct envelope *template, size_t n, const uint8_t *full, int64_t wide,
                     const struct peer *peers, uint8_t *frames, size_t stride, int64_t *lengths) {
    for (size_t i = 0; i < n; i++) {
        struct envelope *envelope = (struct envelope *)(frames + i * stride);
        int64_t size = full[i] ? wide : (int64_t)sizeof(struct header);
        *envelope = *template;
        envelope->total = two((uint16_t)(IPV4_BYTES + UDP_BYTES + size));
        envelope->to = peers[i].ipv4;
        envelope->to_port = peers[i].port;
        envelope->length = two((uint16_t)(UDP_BYTES + size));
        envelope->checksum = two((uint16_t)~ipv4_sum(envelope));
        lengths[i] = (int64_t)sizeof *envelope + size;
    }
}

// Returns 1 if all frames find room, with a margin, in a queue of `queue` bytes.
//
// They arrive at ascending `times`; frames of one time find the queue as it was before them. pace:
// bytes per second that leave; waiting: bytes in the queue at the first arrival.
int find_room(const int64_t *times, const int64_t *sizes, size_t n, double second, double pace,
              int64_t waiting, int64_t queue) {
    double gone = 0, lowest = 0;
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (i && times[i] != times[i - 1])
            gone = (double)(times[i] - times[0]) / second * pace;
        sum += sizes[i];
        double level = (double)sum - gone + (double)waiting, before = level - (double)sizes[i];
        lowest = before < lowest ? before : lowest;
        if (level - lowest > (double)(queue - 2 * sizes[i]))
            return 0;
    }
    return 1;
}
