// SPDX-License-Identifier: Apache-2.0
//
// Segmentation and joining of frames: see offload.h. Headers are loaded and stored in the same
// pieces, since a load that spans several recent stores has to wait for them.

#include "offload.h"

#include <string.h>

#include "packet_checksums.h"
#include "train.h"

enum { ETHERNET = 14, VLAN_TAG = 4, UDP_HEADER = 8 };
enum { LINE = 64 }; // bytes of a cache line
enum { IPPROTO_TCP_ = 6, IPPROTO_UDP_ = 17 };
enum { FLAG_FIN = 0x01, FLAG_PSH = 0x08, FLAG_CWR = 0x80 };

static bool known_gso(uint8_t type) {
    return type == OFFLOAD_GSO_TCPV4 || type == OFFLOAD_GSO_TCPV6 || type == OFFLOAD_GSO_UDP_L4;
}

// Finds the headers of a GSO frame; false unless they match the type and lie within the frame.
static bool parse(struct segments *s, uint8_t type) {
    const uint8_t *frame = s->frame;
    size_t at = ETHERNET;
    if (s->length < at)
        return false;
    uint16_t protocol = load16(frame + 12);
    for (int tags = 0; tags < 2 && (protocol == 0x8100 || protocol == 0x88a8); tags++) {
        if (s->length < at + VLAN_TAG)
            return false;
        protocol = load16(frame + at + 2);
        at += VLAN_TAG;
    }
    s->network = (uint32_t)at;
    s->ipv6 = protocol == 0x86dd;
    s->tcp = type != OFFLOAD_GSO_UDP_L4;
    uint32_t next;
    size_t end;
    if (s->ipv6) {
        if (type == OFFLOAD_GSO_TCPV4 || s->length < at + 40 || frame[at] >> 4 != 6)
            return false;
        next = frame[at + 6]; // frames with extension headers are refused
        end = at + 40 + load16(frame + at + 4);
        at += 40;
    } else {
        if (protocol != 0x0800 || type == OFFLOAD_GSO_TCPV6 || s->length < at + 20)
            return false;
        uint32_t header = (frame[at] & 15) * 4u;
        if (frame[at] >> 4 != 4 || header < 20 || s->length < at + header)
            return false;
        if (load16(frame + at + 6) & 0x3fff) // a fragment
            return false;
        next = frame[at + 9];
        end = at + load16(frame + at + 2);
        s->id = load16(frame + at + 4);
        at += header;
    }
    if (next != (s->tcp ? IPPROTO_TCP_ : IPPROTO_UDP_) || end > s->length)
        return false;
    s->transport = (uint32_t)at;
    uint32_t header = UDP_HEADER;
    if (s->tcp) {
        if (end < at + 20)
            return false;
        header = (frame[at + 12] >> 4) * 4u;
        if (header < 20)
            return false;
        s->sequence = load32(frame + at + 4);
        s->flags = frame[at + 13];
    }
    if (end <= at + header) // a GSO frame has a payload
        return false;
    s->headers = (uint32_t)at + header;
    s->length = end;
    return true;
}

// Notes a checksum that the sender left to hardware (virtio 1.2, 5.1.6.2).
static bool note_checksum(struct segments *s, const struct offload_header *header) {
    size_t start = header->csum_start;
    size_t field = start + header->csum_offset;
    if (start < ETHERNET || field + 2 > s->length)
        return false;
    s->sum_start = (uint32_t)start;
    s->sum_field = (uint32_t)field;
    return true;
}

// Sets the fields of a packet's headers that depend on its length, and the sum of its IPv4 header
// without identification and checksum.
static void set_length(struct segments *s, uint8_t *headers, uint32_t length) {
    uint8_t *ip = headers + s->network, *transport = headers + s->transport;
    uint32_t after = length - s->transport; // bytes of the TCP segment or datagram
    if (s->ipv6) {
        store16(ip + 4, after);
    } else {
        store32(ip + 2, (length - s->network) << 16); // identification 0
        store16(ip + 10, 0);
        s->sum = sum_bytes(0, ip, s->transport - s->network);
    }
    if (!s->tcp)
        store16(transport + 4, after);
    uint16_t partial = s->checksum ? sum_fold(sum_value(s->pseudo, after)) : 0;
    store_sum(transport + (s->tcp ? 16 : 6), partial);
}

uint32_t segments_open(struct segments *s, const struct offload_header *header, uint8_t *frame,
                       size_t length) {
    s->frame = frame;
    s->length = length;
    s->next = 0;
    s->count = 0;
    s->headers = 0;
    s->over = NULL;
    s->sum_start = 0;
    s->sum_field = SW_COMPLETE;
    uint8_t type = header->gso_type & (uint8_t)~OFFLOAD_GSO_ECN;
    if (header->gso_type == OFFLOAD_GSO_NONE) {
        if (header->flags & OFFLOAD_NEEDS_CSUM && !note_checksum(s, header))
            return 0;
        s->size = 0; // marks a frame that is one packet
        return s->count = 1;
    }
    if (!known_gso(type) || !parse(s, type) || header->gso_size == 0)
        return 0;
    uint32_t field = s->tcp ? 16 : 6;
    bool partial = header->flags & OFFLOAD_NEEDS_CSUM;
    if (partial && (header->csum_start != s->transport || header->csum_offset != field))
        return 0;
    s->size = header->gso_size;
    uint32_t payload = (uint32_t)s->length - s->headers;
    uint32_t count = (payload + s->size - 1) / s->size;
    if (s->tcp ? s->size < OFFLOAD_MIN_TCP_SIZE : count > OFFLOAD_MAX_UDP_SEGMENTS)
        return 0;
    // Only UDP over IPv4 may lack one.
    s->checksum = partial || s->tcp || load16(frame + s->transport + field) != 0;
    if (s->checksum) {
        s->sum_start = s->transport;
        s->sum_field = s->transport + field;
    }
    const uint8_t *ip = frame + s->network;
    uint32_t protocol = s->tcp ? IPPROTO_TCP_ : IPPROTO_UDP_;
    s->pseudo = s->ipv6 ? sum_pseudo6(ip, protocol, 0) : sum_pseudo4(ip, protocol, 0);
    copy_headers(s->model, frame, s->headers);
    if (s->tcp)
        s->model[s->transport + 13] &= (uint8_t)~(FLAG_CWR | FLAG_FIN | FLAG_PSH);
    set_length(s, s->model, s->headers + s->size);
    s->words[0] = load64(ip) & 0xffff00000000ffff;     // less length and identification
    s->words[1] = load64(ip + 8) & 0xffff0000ffffffff; // less checksum
    s->words[2] = load64(frame + s->transport) & ~(uint64_t)UINT32_MAX; // ports
    return s->count = count;
}

void segments_swap(struct segments *s) {
    uint8_t headers[OFFLOAD_MAX_HEADERS];
    if (!s->over)
        return;
    copy_headers(headers, s->over, s->headers);
    copy_headers(s->over, s->under, s->headers);
    copy_headers(s->under, headers, s->headers);
}

size_t segments_next(struct segments *s, uint8_t **packet) {
    if (s->over)
        copy_headers(s->over, s->under, s->headers);
    s->over = NULL;
    if (s->next == s->count)
        return 0;
    uint32_t index = s->next++;
    if (s->size == 0) {
        *packet = s->frame;
        return s->length;
    }
    // The headers go right in front of the packet's part of the payload; meanwhile they overwrite
    // the end of the packet before.
    size_t offset = (size_t)index * s->size;
    uint8_t *at = s->frame + offset;
    bool last = s->next == s->count;
    size_t length = last ? s->length - offset : s->headers + s->size;
    if (index > 0) {
        s->over = at;
        copy_headers(s->under, at, s->headers);
    }
    copy_headers(at, s->model, s->headers);
    if (last)
        set_length(s, at, (uint32_t)length);
    // Stores whole words, and loads nothing that was just stored: loads, a program's too, would
    // wait.
    if (!s->ipv6) {
        uint32_t id = (uint16_t)(s->id + index), whole = (uint32_t)length - s->network;
        uint16_t sum = (uint16_t)~sum_fold(sum_value(s->sum, id));
        store64(at + s->network, s->words[0] | (uint64_t)whole << 32 | id << 16);
        store64(at + s->network + 8, s->words[1] | (uint64_t)ntohs(sum) << 32);
    }
    if (s->tcp) {
        uint8_t *transport = at + s->transport;
        store64(transport, s->words[2] | (s->sequence + (uint32_t)offset));
        if (last || index == 0)
            transport[13] = s->flags & (uint8_t)~((index ? FLAG_CWR : 0) |
                                                  (last ? 0 : FLAG_FIN | FLAG_PSH));
    }
    if (!last) { // prefetch from the sender's core while this packet is processed
        const uint8_t *following = at + s->headers + s->size;
        for (uint32_t i = 0; i < s->size; i += LINE)
            __builtin_prefetch(following + i);
    }
    *packet = at;
    return length;
}

// ---------------------------------------------------------------------------------------------
// Trains

enum { IP = ETHERNET, TRANSPORT = ETHERNET + 20 };

// Sums an outgoing packet's bytes from an even offset within its first piece on.
static uint64_t sum_from(uint64_t sum, const struct outgoing *packet, size_t start) {
    size_t head = packet->length - packet->rest_length;
    if (!packet->rest)
        return sum_bytes(sum, packet->start + start, packet->length - start);
    sum = sum_bytes(sum, packet->start + start, head - start);
    return sum_bytes(sum, packet->rest, packet->rest_length);
}

void outgoing_gather(struct outgoing *packet, uint32_t count) {
    if (!packet->rest || count == 0)
        return;
    memcpy(packet->start + packet->length - packet->rest_length, packet->rest, count);
    packet->rest += count;
    packet->pulled += count;
    packet->rest_length -= count;
    if (packet->rest_length == 0)
        packet->rest = NULL;
}

void outgoing_complete(struct outgoing *packet) {
    if (packet->sum_field == SW_COMPLETE)
        return;
    store_checksum(packet->start + packet->sum_field, sum_from(0, packet, packet->sum_start));
    packet->sum_field = SW_COMPLETE;
}

// pseudo: sum of the pseudo header without the length.
static inline bool valid_checksum(const struct outgoing *packet, bool tcp, uint64_t pseudo) {
    const uint8_t *transport = packet->start + TRANSPORT;
    uint32_t after = packet->length - TRANSPORT;
    uint32_t field = tcp ? 16 : 6;
    uint64_t sum = sum_value(pseudo, after);
    if (packet->sum_field != SW_COMPLETE) {
        uint16_t found, wanted = sum_fold(sum);
        memcpy(&found, transport + field, sizeof found);
        return packet->sum_start == TRANSPORT && packet->sum_field == TRANSPORT + field &&
               found == wanted;
    }
    if (!tcp && load16(transport + 6) == 0)
        return true;
    if (tcp && load16(transport + 16) == 0xffff) // valid, but splitting would write 0
        return false;
    return sum_fold(sum_from(sum, packet, TRANSPORT)) == 0xffff;
}

bool train_open(struct train *train, const struct outgoing *outgoing) {
    uint8_t *packet = outgoing->start;
    size_t length = outgoing->length;
    train->count = 0;
    if (length <= TRANSPORT + UDP_HEADER || load16(packet + 12) != 0x0800)
        return false;
    const uint8_t *ip = packet + IP;
    // No options, no fragment, no trailing bytes in the frame.
    if (ip[0] != 0x45 || load16(ip + 6) & 0x3fff || load16(ip + 2) != length - IP)
        return false;
    const uint8_t *transport = packet + TRANSPORT;
    uint32_t header = UDP_HEADER;
    if (ip[9] == IPPROTO_UDP_) {
        train->tcp = false;
        train->closed = false;
        if (load16(transport + 4) != length - TRANSPORT)
            return false;
    } else if (ip[9] == IPPROTO_TCP_) {
        train->tcp = true;
        if (length < TRANSPORT + 20)
            return false;
        header = (transport[12] >> 4) * 4u;
        if (header < 20 || length <= TRANSPORT + header)
            return false;
        // Packets with SYN, RST or URG lead no trains; PSH or FIN ends its train.
        if (transport[13] & 0x26)
            return false;
        train->closed = transport[13] & (FLAG_FIN | FLAG_PSH);
        train->last_flags = transport[13];
        train->sequence = load32(transport + 4) + (uint32_t)(length - TRANSPORT - header);
    } else {
        return false;
    }
    train->headers = TRANSPORT + header;
    train->size = (uint32_t)length - train->headers;
    if (train->tcp && train->size < OFFLOAD_MIN_TCP_SIZE)
        return false;
    uint64_t sum = sum_ipv4(ip);
    train->pseudo = sum_pseudo4(ip, ip[9], 0);
    if (sum_fold(sum) != 0xffff || !valid_checksum(outgoing, train->tcp, train->pseudo))
        return false;
    // Subtracting a value is adding its complement.
    train->sum = sum + (uint16_t)~sum_value(0, load16(ip + 2)) +
                 (uint16_t)~sum_value(0, load16(ip + 4)) + (uint16_t)~sum_value(0, load16(ip + 10));
    train->first = packet;
    train->count = 1;
    train->bytes = (uint32_t)length;
    train->ip_length = (uint32_t)length - IP;
    train->id = load16(ip + 4);
    train->sum_start = outgoing->sum_start;
    train->sum_field = outgoing->sum_field;
    train->implied = train->tcp ? outgoing->sum_field != SW_COMPLETE &&
                                      !(transport[13] & FLAG_CWR) // in the first alone
                                : outgoing->sum_field != SW_COMPLETE || load16(transport + 6) == 0;
    copy_headers(train->next, packet, train->headers);
    train_advance(train);
    return true;
}

// The differing bits of 8 bytes, loaded as the header was stored just before.
static inline uint64_t differ8(const uint8_t *a, const uint8_t *b) {
    return load64(a) ^ load64(b);
}

static inline uint64_t differ4(const uint8_t *a, const uint8_t *b) {
    return load32(a) ^ load32(b);
}

// True if all that splitting copies from the first packet is equal.
static bool same_flow(const struct train *train, const uint8_t *packet) {
    const uint8_t *first = train->first;
    uint64_t difference = differ8(packet, first) | differ4(packet + 8, first + 8);
    difference |= (uint64_t)(load16(packet + 12) ^ load16(first + 12));
    difference |= differ8(packet + IP, first + IP) & 0xffff00000000ffff; // version, TOS; fragment
    difference |= differ8(packet + IP + 8, first + IP + 8) & 0xffff0000ffffffff; // TTL; source
    difference |= differ4(packet + IP + 16, first + IP + 16); // destination
    const uint8_t *a = packet + TRANSPORT, *b = first + TRANSPORT;
    difference |= differ4(a, b); // ports
    if (!train->tcp)
        return difference == 0;
    // Acknowledgement; header length, flags, window. CWR may only be in the first packet, and
    // splitting keeps it there only if the joined frame is marked GSO_ECN: not joined.
    difference |= differ8(a + 8, b + 8) & ~((uint64_t)(FLAG_FIN | FLAG_PSH) << 16);
    difference |= a[13] & FLAG_CWR;
    difference |= differ4(a + 16, b + 16) & 0xffff; // urgent pointer
    for (uint32_t at = 20; at < train->headers - TRANSPORT; at += 4)
        difference |= differ4(a + at, b + at);
    return difference == 0;
}

// True if the packet, not longer than the first, follows the last one.
static bool follows(const struct train *train, const struct outgoing *outgoing) {
    const uint8_t *packet = outgoing->start;
    uint32_t length = outgoing->length;
    const uint8_t *ip = packet + IP, *transport = packet + TRANSPORT;
    if (load16(ip + 2) != length - IP || load16(ip + 4) != train->id || !same_flow(train, packet))
        return false;
    uint16_t checksum;
    memcpy(&checksum, ip + 10, sizeof checksum);
    uint64_t sum = sum_value(sum_value(train->sum, length - IP), train->id);
    if (sum_fold(sum + checksum) != 0xffff)
        return false;
    if (train->tcp ? load32(transport + 4) != train->sequence
                   : load16(transport + 4) != length - TRANSPORT)
        return false;
    // Joined datagrams all get a checksum or none: a mixture changes only those with a checksum of
    // 0, which is allowed, so there is nothing to compare.
    return valid_checksum(outgoing, train->tcp, train->pseudo);
}

bool train_join(struct train *train, const struct outgoing *outgoing, size_t limit) {
    size_t length = outgoing->length;
    if (train->count == 0 || train->closed || train->count == TRAIN_MAX_PACKETS)
        return false;
    if (length <= train->headers || length > train->headers + train->size)
        return false;
    uint32_t payload = (uint32_t)length - train->headers;
    if (ETHERNET + train->ip_length + payload > limit ||
        train->ip_length + payload > TRAIN_MAX_IP_LENGTH)
        return false;
    if (!follows(train, outgoing))
        return false;
    if (train->tcp) {
        train->sequence += payload;
        train->last_flags = outgoing->start[TRANSPORT + 13];
        train->closed = train->last_flags & (FLAG_FIN | FLAG_PSH);
    }
    train->closed = train->closed || payload < train->size;
    train->count++;
    train->bytes += (uint32_t)length;
    train->ip_length += payload;
    train_advance(train);
    return true;
}

void train_close(struct train *train, struct offload_header *header) {
    memset(header, 0, sizeof *header);
    if (train->count < 2)
        return;
    uint8_t *ip = train->first + IP;
    uint8_t *transport = train->first + TRANSPORT;
    uint32_t field = train->tcp ? 16 : 6;
    memcpy(train->undo, ip + 2, 2);
    memcpy(train->undo + 2, ip + 10, 2);
    memcpy(train->undo + 4, transport + 4, 2);
    memcpy(train->undo + 6, transport + field, 2);
    store16(ip + 2, train->ip_length);
    store_ip_checksum(ip, 20);
    uint32_t after = train->ip_length - 20;
    uint32_t protocol = train->tcp ? IPPROTO_TCP_ : IPPROTO_UDP_;
    if (train->tcp) {
        train->undo[8] = transport[13];
        transport[13] = train->last_flags;
    } else {
        store16(transport + 4, after);
    }
    store_sum(transport + field, sum_fold(sum_pseudo4(ip, protocol, after)));
    header->flags = OFFLOAD_NEEDS_CSUM;
    header->gso_type = train->tcp ? OFFLOAD_GSO_TCPV4 : OFFLOAD_GSO_UDP_L4;
    header->header_length = (uint16_t)train->headers;
    header->gso_size = (uint16_t)train->size;
    header->csum_start = TRANSPORT;
    header->csum_offset = (uint16_t)field;
}

void train_undo(struct train *train) {
    if (train->count < 2)
        return;
    uint8_t *ip = train->first + IP;
    uint8_t *transport = train->first + TRANSPORT;
    memcpy(ip + 2, train->undo, 2);
    memcpy(ip + 10, train->undo + 2, 2);
    memcpy(transport + 4, train->undo + 4, 2);
    memcpy(transport + (train->tcp ? 16 : 6), train->undo + 6, 2);
    if (train->tcp)
        transport[13] = train->undo[8];
}

void train_headers(const struct train *train, uint32_t n, struct outgoing *packet) {
    uint8_t *ip = packet->start + IP, *transport = packet->start + TRANSPORT;
    uint32_t after = packet->length - TRANSPORT, field = train->tcp ? 16 : 6;
    memcpy(packet->start, train->first, train->headers);
    store16(ip + 2, packet->length - IP);
    store16(ip + 4, load16(train->first + IP + 4) + n);
    store_ip_checksum(ip, 20);
    if (train->tcp) {
        store32(transport + 4, load32(transport + 4) + n * train->size);
        if (n + 1 == train->count)
            transport[13] = train->last_flags;
    } else {
        store16(transport + 4, after);
    }
    uint32_t protocol = train->tcp ? IPPROTO_TCP_ : IPPROTO_UDP_;
    store_sum(transport + field, sum_fold(sum_pseudo4(ip, protocol, after)));
    packet->sum_start = TRANSPORT;
    packet->sum_field = TRANSPORT + field;
}
