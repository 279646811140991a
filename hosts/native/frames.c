// SPDX-License-Identifier: Apache-2.0
// Conversion of datagrams to Ethernet frames and back, and admission of frames to a queue, for
// simulation/nodes/frames.py and host.py.
//
// Frames are rows of a fixed size, of which longer ones keep only their beginning; their lengths
// are given separately.

#include <math.h>
#include <string.h>

#include "frames.h"

enum { PRIORITIES = 8 };

// See protocol/priorities.py.
static int priority_of(uint8_t stream) { return stream < 128 ? 0 : (stream >> 4) & 7; }

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

// Sorts frames, of which `stored` bytes are kept, by endpoint. Returns how many endpoints get some.
//
// Frames are copied to `sorted` and `sorted_lengths` in this order of endpoints, and in their own
// order for each, unless `sorted` is NULL. Those that are no datagrams or for no endpoint are left
// out.
int64_t sort_frames(const struct incoming *in, const uint8_t *frames, size_t stored, size_t n,
                    const int64_t *lengths, uint8_t *sorted, int64_t *sorted_lengths) {
    const struct peer *endpoints = in->endpoints;
    int64_t *owners = in->owners, *order = in->order, *counts = in->counts;
    int64_t found = 0, place = 0; // place: in `order`, of the frame before
    for (size_t i = 0; i < n; i++) {
        const struct envelope *envelope = (const struct envelope *)(frames + i * stored);
        owners[i] = -1;
        if (stored < sizeof *envelope || !is_datagram(envelope, lengths[i]))
            continue;
        struct peer target = {envelope->to, envelope->to_port};
        if (place == found || memcmp(&endpoints[order[place]], &target, sizeof target)) {
            for (place = 0; place < found; place++)
                if (!memcmp(&endpoints[order[place]], &target, sizeof target))
                    break;
            if (place == found) {
                int64_t owner = 0;
                while (owner < in->count && memcmp(&endpoints[owner], &target, sizeof target))
                    owner++;
                if (owner == in->count)
                    continue;
                order[found] = owner;
                counts[found++] = 0;
            }
        }
        owners[i] = place;
        counts[place]++;
    }
    if (!sorted)
        return found;
    size_t to = 0;
    for (place = 0; place < found; place++)
        for (size_t i = 0; i < n; i++)
            if (owners[i] == place) {
                memcpy(sorted + to * stored, frames + i * stored, stored);
                sorted_lengths[to++] = lengths[i];
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

static int is_own(const struct outgoing *o, uint32_t address) {
    for (int64_t i = 0; i < o->own_count; i++)
        if (o->own[i] == address)
            return 1;
    return 0;
}

// Places of frames, in the order that they are written in: for other hosts, then for this one, each
// by descending priority.
enum { PLACES = 2 * PRIORITIES };

static int place_of(const struct outgoing *o, int64_t packet, int64_t peer) {
    int priority = 0;
    if (o->sorts) {
        const struct header *header = (const struct header *)(o->packets + packet * o->stride);
        priority = priority_of(header->stream);
    }
    int local = is_own(o, o->peers[peer].ipv4);
    return local * PRIORITIES + PRIORITIES - 1 - priority;
}

static int64_t write_frame(const struct outgoing *o, int64_t packet, int64_t peer, uint8_t *frame) {
    const uint8_t *from = o->packets + packet * o->stride;
    struct envelope *envelope = (struct envelope *)frame;
    struct header *header = (struct header *)(envelope + 1);
    if (from != (const uint8_t *)header)
        memcpy(header, from, (size_t)o->stored);
    if (o->nodes) {
        header->sender = (uint8_t)peer;
        header->node = two(o->nodes[peer]);
    }
    int64_t size = o->full[packet] ? o->wide : (int64_t)sizeof *header;
    *envelope = *o->template;
    envelope->total = two((uint16_t)(IPV4_BYTES + UDP_BYTES + size));
    envelope->to = o->peers[peer].ipv4;
    envelope->to_port = o->peers[peer].port;
    envelope->length = two((uint16_t)(UDP_BYTES + size));
    envelope->checksum = two((uint16_t)~ipv4_sum(envelope));
    return (int64_t)sizeof *envelope + size;
}

// Writes packets as frames: those for other hosts, then those for this one, each by descending
// priority if `sorts`, else in their order.
//
// Returns 0, with nothing written, if frames are to be written where their packets are (each before
// its packet), but not in the order of these.
int write_frames(struct outgoing *o) {
    int64_t peers = o->nodes ? o->peer_count : 1, next[PLACES], last = 0;
    int in_place = o->frames + sizeof(struct envelope) == o->packets, ordered = 1;
    int64_t found[PLACES] = {0};
    for (int64_t k = 0; k < peers; k++)
        for (int64_t i = 0; i < o->n; i++) {
            int place = place_of(o, i, o->nodes ? k : i);
            found[place]++;
            ordered &= place >= last;
            last = place;
        }
    if (in_place && !ordered)
        return 0;
    o->local = 0;
    for (int64_t place = 0, first = 0; place < PLACES; first += found[place++]) {
        next[place] = first;
        if (place < PRIORITIES) {
            o->counts[PRIORITIES - 1 - place] = found[place];
            o->bytes[PRIORITIES - 1 - place] = 0;
        } else
            o->local += found[place];
    }
    int64_t size = (int64_t)sizeof(struct envelope) + o->stored;
    for (int64_t k = 0; k < peers; k++)
        for (int64_t i = 0; i < o->n; i++) {
            int64_t peer = o->nodes ? k : i;
            int place = place_of(o, i, peer);
            int64_t to = next[place]++;
            o->lengths[to] = write_frame(o, i, peer, o->frames + to * (in_place ? o->stride : size));
            if (place < PRIORITIES)
                o->bytes[PRIORITIES - 1 - place] += o->lengths[to];
        }
    return 1;
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

// Checked by simulation/nodes/frames.py.
const int64_t incoming_bytes = sizeof(struct incoming), outgoing_bytes = sizeof(struct outgoing);
const int64_t frame_priorities = PRIORITIES;
