// SPDX-License-Identifier: Apache-2.0
//
// Converts between frames as Linux passes them through a packet socket with PACKET_VNET_HDR
// (several packets in one GSO frame, checksums left to "hardware") and packets as on a wire.
//
//   segments_open / segments_next   one received frame -> its packets, each complete and valid
//   train_open / train_join / ...   a run of packets of one flow -> one GSO frame to send
//
// Offload headers are not trusted: offsets come from parsing the frame itself, and a header that is
// inconsistent with the frame is refused.
//
// Segmentation is in place: each packet's headers overwrite the end of the packet before, right in
// front of its own payload; the next call restores the overwritten bytes from `under`. So the
// headers are valid only until then, and the end of the packet before is not meanwhile.
//
// Sources: virtio specification 1.2, 5.1.6; Linux include/linux/virtio_net.h; for the form of a
// frame's segments inet_gso_segment, tcp_gso_segment and __udp_gso_segment.

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
#define OFFLOAD_GSO_UDP_L4 5 // missing from some systems' headers
#define OFFLOAD_GSO_ECN 0x80

// Ethernet, two VLAN tags, IPv6 or IPv4 with options, TCP with options.
#define OFFLOAD_MAX_HEADERS (14 + 8 + 60 + 60)
// Linux never makes a UDP GSO frame of more datagrams (UDP_MAX_SEGMENTS), nor TCP segments below 8
// bytes (TCP_MIN_GSO_SIZE); a frame that claims to would only multiply work.
#define OFFLOAD_MAX_UDP_SEGMENTS 128
#define OFFLOAD_MIN_TCP_SIZE 8
// Accepted in one frame by every kernel that knows UDP_L4.
#define TRAIN_MAX_PACKETS 64
#define TRAIN_MAX_IP_LENGTH 65535
#define TRAIN_MAX_HEADERS (14 + 20 + 60)

// struct virtio_net_hdr in the byte order of packet sockets (the machine's own).
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
    size_t length;        // bytes of the frame, without what trails a GSO frame
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
    // For a packet with an incomplete L4 checksum: the field holds the sum of the pseudo header, to
    // which everything from sum_start on is added. SW_COMPLETE: none.
    uint32_t sum_start, sum_field;
    uint8_t model[OFFLOAD_MAX_HEADERS]; // headers of a packet between the first and the last,
    uint64_t words[3];                  // except the parts of these words that differ
    uint8_t under[OFFLOAD_MAX_HEADERS]; // what the present packet's headers overwrote
    uint8_t *over;                      // where; NULL: nowhere
};

// Prepares the packets of a frame of `length` bytes. Returns their number, or 0 if the header is
// inconsistent with the frame or asks for something unsupported. The frame is changed in place.
uint32_t segments_open(struct segments *segments, const struct offload_header *header,
                       uint8_t *frame, size_t length);

// Returns the next packet's length and bytes; 0 after the last. Its L4 checksum is as sum_start and
// sum_field say. Its first `headers` bytes are valid only until the next call, those behind as long
// as the frame (all of them if the frame is one packet).
size_t segments_next(struct segments *segments, uint8_t **packet);

// Restores the bytes under the present packet's headers, for packets that refer to the packet
// before, until the next call puts the headers back.
void segments_swap(struct segments *segments);

// A packet to send, in two pieces: with `rest` NULL all of it is at `start`. Else its headers are:
// HEAD_BYTES of it, or as many as the headers of the train that it joins.
#define HEAD_BYTES 96
struct outgoing {
    uint8_t *start;
    const uint8_t *rest;
    uint32_t length, rest_length;  // length: of both
    uint32_t pulled, fragile;      // bytes copied from before the rest; see sw_leaving
    uint32_t sum_start, sum_field; // as in struct segments
    uint32_t spare; // see sw_leaving
    bool alone;     // all of it fits at `start`
    bool in_place;  // what follows its headers may be written in front of the rest
    bool headless;  // it was written behind the last packet, without its headers
};

// Moves `count` bytes more to its first piece, where there is room for all of it.
void outgoing_gather(struct outgoing *packet, uint32_t count);

// Completes the packet's checksum if necessary; the field is in the first piece, and the pieces
// meet an even number of bytes behind sum_start.
void outgoing_complete(struct outgoing *packet);

// A run of packets that can be sent as one GSO frame: the first packet whole, the payload of the
// others. Splitting the frame gives exactly these packets again.
struct train {
    uint8_t *first;      // first packet, in the caller's memory
    uint32_t count;      // packets so far; 0: no train
    uint32_t headers;    // bytes of headers of each packet
    uint32_t size;       // payload bytes of each but the last
    uint32_t bytes;      // bytes of all packets with their headers
    uint32_t ip_length;  // of the joined frame
    uint32_t sequence;   // TCP: the next packet's sequence number
    uint64_t sum;        // of the IPv4 header without length, identification and checksum
    uint64_t pseudo;     // of the pseudo header without the length
    uint16_t id;         // the next packet's IPv4 identification
    bool tcp;
    bool closed;         // the last packet ends it (it is shorter, or has TCP PSH / FIN)
    uint8_t last_flags;  // TCP flags of the last packet
    bool implied;        // a packet with headers as expected has a valid L4 checksum
    uint32_t sum_start, sum_field; // of the first packet
    uint8_t next[TRAIN_MAX_HEADERS]; // expected headers of the next packet, if it is not the last
    uint8_t undo[10];    // fields of the first packet that train_close overwrites
};

// Starts a train with this packet if it can lead one: TCP or UDP over IPv4 directly in Ethernet,
// not a fragment, with valid lengths and checksums (a UDP checksum of 0 is valid). An incomplete
// checksum is valid if it is the pseudo header's sum.
bool train_open(struct train *train, const struct outgoing *packet);

// Adds the packet to the train if splitting the whole gives the same bytes again, except for a UDP
// checksum of 0, which becomes the right one: same headers, identification one higher, consecutive
// sequence number, equal size (the last may be shorter), at most `limit` bytes as one frame.
bool train_join(struct train *train, const struct outgoing *packet, size_t limit);

// Turns the first packet's headers into those of the joined frame, described by *header. For a
// train of one packet: the packet as it is and an empty header.
void train_close(struct train *train, struct offload_header *header);

// Writes the headers of a train's n-th packet (from 0, not the first) to the packet's start. Its
// checksum is incomplete.
void train_headers(const struct train *train, uint32_t n, struct outgoing *packet);

// Undoes train_close.
void train_undo(struct train *train);

#endif
