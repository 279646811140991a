// SPDX-License-Identifier: Apache-2.0
//
// Between frames as Linux passes them through a packet socket with PACKET_VNET_HDR (several
// packets in one GSO frame, checksums left to "hardware") and packets as a wire carries them.
//
//   segments_open / segments_next   one received frame -> its packets, each complete and valid
//   train_open / train_join / ...   a run of packets of one flow -> one GSO frame to send
//
// Nothing in an offload header is believed: offsets come from parsing the frame itself, and a
// header that disagrees with the frame is refused.
//
// Sources: virtio specification 1.2, 5.1.6; Linux include/linux/virtio_net.h; for what a segment of
// a frame looks like inet_gso_segment, tcp_gso_segment and __udp_gso_segment.

#ifndef RACKHUB_OFFLOAD_H
#define RACKHUB_OFFLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "target.h"

#define OFFLOAD_NEEDS_CSUM 1
#define OFFLOAD_GSO_NONE 0
#define OFFLOAD_GSO_TCPV4 1
#define OFFLOAD_GSO_TCPV6 4
#define OFFLOAD_GSO_UDP_L4 5 // newer than the headers of some systems
#define OFFLOAD_GSO_ECN 0x80

// Ethernet, two VLAN tags, IPv6 or IPv4 with options, TCP with options.
#define OFFLOAD_MAX_HEADERS (14 + 8 + 60 + 60)
// Linux never makes a UDP GSO frame of more datagrams (UDP_MAX_SEGMENTS), nor TCP segments below
// 8 bytes (TCP_MIN_GSO_SIZE); a frame that claims to would only multiply work.
#define OFFLOAD_MAX_UDP_SEGMENTS 128
#define OFFLOAD_MIN_TCP_SIZE 8
// What every kernel that knows UDP_L4 accepts in one frame.
#define TRAIN_MAX_PACKETS 64
#define TRAIN_MAX_IP_LENGTH 65535
#define TRAIN_MAX_HEADERS (14 + 20 + 60)

// struct virtio_net_hdr in the byte order that packet sockets use (the machine's own).
struct offload_header {
    uint8_t flags;
    uint8_t gso_type;
    uint16_t header_length;
    uint16_t gso_size;
    uint16_t csum_start;
    uint16_t csum_offset;
};

// The packets of one received frame, in order.
struct segments {
    uint8_t *frame;
    size_t length;        // bytes of the frame that count (a GSO frame without what trails it)
    uint32_t count;       // packets in it
    uint32_t next;        // index of the packet that segments_next returns next
    uint32_t headers;     // bytes up to and with the TCP or UDP header
    uint32_t network;     // offset of the IP header
    uint32_t transport;   // offset of the TCP or UDP header
    uint32_t size;        // payload bytes of every packet but the last
    bool ipv6, tcp;
    bool checksum;        // the packets carry an L4 checksum
    uint16_t id;          // IPv4 identification of the first
    uint32_t sequence;    // TCP sequence number of the first
    uint8_t flags;        // TCP flags of the frame
    uint64_t sum;         // of the IPv4 header without identification and checksum
    uint64_t pseudo;      // of the pseudo header without the length
    // Of a packet whose L4 checksum is still to be completed: the field holds the sum of the pseudo
    // header, everything from sum_start on is to be added. SW_COMPLETE: none.
    uint32_t sum_start, sum_field;
    uint8_t model[OFFLOAD_MAX_HEADERS]; // headers of a packet between the first and the last,
    uint64_t words[3];                  // but for what of these words differs
    uint8_t under[OFFLOAD_MAX_HEADERS]; // what the headers of the packet in hand lie over
    uint8_t *over;                      // where; NULL: over nothing
};

// Prepares the packets of a frame of `length` bytes. Returns how many there are, or 0 if the header
// disagrees with the frame or asks for what is not supported. The frame is changed in place.
uint32_t segments_open(struct segments *segments, const struct offload_header *header,
                       uint8_t *frame, size_t length);

// The next packet's bytes and length; 0 after the last. Its L4 checksum is as sum_start and sum_field
// say. Its first `headers` bytes hold only until the next call, those behind as long as the frame
// (of a frame that is one packet all do).
size_t segments_next(struct segments *segments, uint8_t **packet);

// While the packet in hand is not looked at: the frame with what lies under its headers, for those
// who refer to the packet before. The next call puts the headers back.
void segments_swap(struct segments *segments);

// A packet to be sent, in two pieces: with `rest` NULL all of it is at `start`. Else its headers are:
// HEAD_BYTES of it, or as many as the headers of the train that it joins.
#define HEAD_BYTES 96
struct outgoing {
    uint8_t *start;
    const uint8_t *rest;
    uint32_t length, rest_length;  // length: of both
    uint32_t pulled, fragile;      // bytes before the rest that were copied from there; see sw_leaving
    uint32_t sum_start, sum_field; // as in struct segments
    uint32_t spare; // see sw_leaving
    bool alone;     // there is room for all of it at `start`
    bool in_place;  // what follows its headers may be written in front of the rest
    bool headless;  // it was written behind the packet before, without its headers
};

// `count` bytes more of it move to its first piece, where there is room for all of them.
void outgoing_gather(struct outgoing *packet, uint32_t count);

// Puts in the packet's checksum if it is to be completed; the field is in the first piece, and the
// pieces meet an even number of bytes behind sum_start.
void outgoing_complete(struct outgoing *packet);

// A run of packets that can leave as one GSO frame: first packet whole, of the others the payload.
struct train {
    uint8_t *first;      // first packet, in the caller's memory
    uint32_t count;      // packets so far; 0: there is no train
    uint32_t headers;    // bytes of headers of each packet
    uint32_t size;       // payload bytes of each but the last
    uint32_t bytes;      // bytes of all packets with their headers
    uint32_t ip_length;  // of the joined frame
    uint32_t sequence;   // TCP: the next packet's sequence number
    uint64_t sum;        // of the IPv4 header without length, identification and checksum
    uint64_t pseudo;     // of the pseudo header without the length
    uint16_t id;         // the next packet's IPv4 identification
    bool tcp;
    bool closed;         // the last packet ends it (shorter, or TCP PSH / FIN)
    uint8_t last_flags;  // TCP flags of the last packet
    bool implied;        // a packet with headers as expected has the right L4 checksum
    uint32_t sum_start, sum_field; // of the first packet
    uint8_t next[TRAIN_MAX_HEADERS]; // expected of the next packet, if it is not the last
    uint8_t undo[10];    // fields of the first packet that train_close overwrites
};

// Starts a train with this packet if it can lead one: TCP or UDP over IPv4 directly in Ethernet,
// not a fragment, lengths and checksums right (a UDP checksum of 0 counts as right).
// One that is still to be completed counts as right if what is there is the pseudo header's sum.
bool train_open(struct train *train, const struct outgoing *packet);

// Takes the packet into the train if splitting the whole again gives the same bytes, but for a UDP
// checksum of 0, which becomes the right one: same headers, identification one higher, sequence
// number following, equal size (the last may be shorter), `limit` bytes at most as one frame.
bool train_join(struct train *train, const struct outgoing *packet, size_t limit);

// Turns the first packet's headers into those of the joined frame, described by *header. For a
// train of one packet that is the packet as it is and an empty header.
void train_close(struct train *train, struct offload_header *header);

// Writes to the packet's start the headers that the n-th packet (from 0, not the first) of a train
// had. Its checksum is to be completed.
void train_headers(const struct train *train, uint32_t n, struct outgoing *packet);

// Undoes train_close.
void train_undo(struct train *train);

#endif
