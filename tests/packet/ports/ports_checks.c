// SPDX-License-Identifier: Apache-2.0
//
// Checks of splitting, joining and sending that need exact buffers or a refusing kernel. Built with
// AddressSanitizer and UndefinedBehaviorSanitizer by test_ports_offload.py:
//
//   ports_checks lies|split|fallback SEED
//
// Exit status 0 and nothing on standard output if all is well.
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "packet_checksums.h"
#include "offload.h"
#include "transmit.h"

static uint64_t state;

static uint32_t below(uint32_t limit) // SplitMix64
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) % limit);
}

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            printf("line %d: %s\n", __LINE__, #condition);                                        \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

// One packet of a flow, as a sender without offloads makes it. Returns its length.
static size_t make_packet(uint8_t *at, bool tcp, uint16_t id, uint32_t sequence, uint8_t flags,
                          size_t payload, bool checksum) {
    size_t header = tcp ? 32 : 8; // TCP with a time stamp option
    memset(at, 0, 34 + header);
    memcpy(at, "\2\0\0\0\0\2\2\0\0\0\0\1\x08\0", 14);
    uint8_t *ip = at + 14, *transport = at + 34;
    ip[0] = 0x45;
    store16(ip + 2, (uint32_t)(20 + header + payload));
    store16(ip + 4, id);
    ip[8] = 64;
    ip[9] = tcp ? 6 : 17;
    store32(ip + 12, 0x0a000001);
    store32(ip + 16, 0x0a000002);
    store_ip_checksum(ip, 20);
    store16(transport, 4000);
    store16(transport + 2, 5000);
    for (size_t i = 0; i < payload; i++)
        transport[header + i] = (uint8_t)below(256);
    if (tcp) {
        store32(transport + 4, sequence);
        store32(transport + 8, 77);
        transport[12] = 8 << 4;
        transport[13] = flags;
        store16(transport + 14, 500);
        memcpy(transport + 20, "\1\1\x08\x0a\0\0\0\1\0\0\0\2", 12);
    } else {
        store16(transport + 4, (uint32_t)(8 + payload));
    }
    if (checksum) {
        uint32_t length = (uint32_t)(header + payload);
        uint64_t sum = sum_bytes(sum_pseudo4(ip, ip[9], length), transport, length);
        store_checksum(transport + (tcp ? 16 : 6), sum);
    }
    return 34 + header + payload;
}

static struct outgoing whole(uint8_t *packet, size_t length) {
    return (struct outgoing){
        .start = packet, .length = (uint32_t)length, .sum_field = SW_COMPLETE};
}

static void walk(const struct offload_header *header, uint8_t *frame, size_t length) {
    struct segments segments;
    uint32_t count = segments_open(&segments, header, frame, length);
    uint32_t seen = 0;
    uint8_t *packet;
    size_t size;
    while ((size = segments_next(&segments, &packet))) {
        CHECK(packet >= frame && packet + size <= frame + length);
        uint32_t touched = 0;
        for (size_t i = 0; i < size; i++)
            touched += packet[i];
        if (segments.sum_field != SW_COMPLETE)
            complete_sum(packet, size, segments.sum_start, segments.sum_field);
        segments_swap(&segments);
        segments_swap(&segments);
        CHECK(touched < UINT32_MAX);
        seen++;
    }
    CHECK(seen == count);
}

static uint16_t any_length(size_t near) {
    switch (below(4)) {
    case 0:
        return (uint16_t)below(65536);
    case 1:
        return (uint16_t)below(64);
    default:
        return (uint16_t)(near + below(9) - 4);
    }
}

// Headers and frames that disagree in every way: no byte outside the frame is touched.
static void lies(void) {
    static const uint8_t kinds[] = {0, 1, 3, 4, 5, 0x81, 0x84, 0x85};
    for (int round = 0; round < 60000; round++) {
        uint8_t made[2048];
        bool tcp = below(2);
        size_t length = make_packet(made, tcp, 1, 1, 0x18, below(1400), below(2));
        if (below(3) == 0) { // a VLAN tag
            memmove(made + 16, made + 12, length - 12);
            store16(made + 12, 0x8100);
            length += 4;
        }
        if (below(4) == 0) { // IPv6
            store16(made + 12, 0x86dd);
            made[14] = 0x60;
            store16(made + 18, (uint32_t)length - 54);
            made[20] = tcp ? 6 : 17;
        }
        for (uint32_t changes = below(4); changes > 0; changes--)
            made[below(64)] = (uint8_t)below(256);
        if (below(3) == 0)
            length = below((uint32_t)length) + 1;
        struct offload_header header = {
            (uint8_t)below(4), kinds[below(sizeof kinds)], any_length(length), any_length(500),
            any_length(34),    any_length(tcp ? 16 : 6),
        };
        uint8_t *frame = malloc(length); // exact size, so that overruns are detected
        memcpy(frame, made, length);
        walk(&header, frame, length);
        free(frame);
    }
}

// Splitting a joined train gives its packets.
static void split(void) {
    static uint8_t packets[TRAIN_MAX_PACKETS + 2][2048];
    static size_t lengths[TRAIN_MAX_PACKETS + 2];
    for (int round = 0; round < 2000; round++) {
        bool tcp = below(2);
        uint32_t size = 8 + below(1200), count = 2 + below(TRAIN_MAX_PACKETS);
        uint32_t sequence = below(UINT32_MAX);
        uint16_t id = (uint16_t)below(65536);
        struct train train;
        uint8_t first[2048];
        uint32_t joined = 0, odd = below(2) ? below(count) : count;
        for (uint32_t n = 0; n < count; n++) {
            size_t payload = n == odd ? 1 + below(size) : size;
            uint8_t flags = tcp && n + 1 == count && below(2) ? 0x19 : 0x10;
            lengths[n] = make_packet(packets[n], tcp, (uint16_t)(id + n), sequence, flags, payload,
                                     tcp || below(2));
            sequence += (uint32_t)payload;
            struct outgoing packet = whole(n ? packets[n] : first, lengths[n]);
            if (n == 0) {
                memcpy(first, packets[0], lengths[0]);
                if (!train_open(&train, &packet))
                    break; // too small to lead one
            } else if (!train_join(&train, &packet, 1 << 20)) {
                break;
            }
            joined++;
        }
        if (joined < 2)
            continue;
        struct offload_header header;
        train_close(&train, &header);
        CHECK(header.flags == OFFLOAD_NEEDS_CSUM);
        size_t total = lengths[0];
        for (uint32_t n = 1; n < joined; n++)
            total += lengths[n] - train.headers;
        uint8_t *frame = malloc(total);
        size_t at = lengths[0];
        memcpy(frame, first, at);
        for (uint32_t n = 1; n < joined; n++) {
            memcpy(frame + at, packets[n] + train.headers, lengths[n] - train.headers);
            at += lengths[n] - train.headers;
        }
        struct segments segments;
        CHECK(segments_open(&segments, &header, frame, total) == joined);
        for (uint32_t n = 0; n < joined; n++) {
            uint8_t *packet;
            CHECK(segments_next(&segments, &packet) == lengths[n]);
            if (segments.sum_field != SW_COMPLETE)
                complete_sum(packet, lengths[n], segments.sum_start, segments.sum_field);
            if (!tcp && load16(packets[n] + 40) == 0) {
                uint32_t after = (uint32_t)lengths[n] - 34;
                uint64_t sum = sum_pseudo4(packets[n] + 14, 17, after);
                store_checksum(packets[n] + 40, sum_bytes(sum, packets[n] + 34, after));
            }
            CHECK(memcmp(packet, packets[n], lengths[n]) == 0);
        }
        train_undo(&train);
        if (tcp || load16(first + 40) != 0)
            CHECK(memcmp(first, packets[0], lengths[0]) == 0);
        free(frame);
    }
}

// A kernel that refuses big frames with EINVAL: a UDP socket with UDP_SEGMENT takes at most so many
// segments in one message. Everything still leaves, packet by packet.
static void fallback(void) {
    enum { PACKETS = 15, PAYLOAD = 1000, SEGMENT = 100 };
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int receiver = socket(AF_INET, SOCK_DGRAM, 0), sender = socket(AF_INET, SOCK_DGRAM, 0);
    int segment = SEGMENT;
    CHECK(bind(receiver, (struct sockaddr *)&address, size) == 0);
    CHECK(getsockname(receiver, (struct sockaddr *)&address, &size) == 0);
    CHECK(connect(sender, (struct sockaddr *)&address, size) == 0);
    CHECK(setsockopt(sender, IPPROTO_UDP, 103, &segment, sizeof segment) == 0);

    struct transmit *transmit = calloc(1, sizeof *transmit);
    CHECK(transmit_init(transmit, true, 65000) == 0);
    static uint8_t sent[PACKETS][2048];
    for (int n = 0; n < PACKETS; n++) {
        uint8_t *room = transmit_room(transmit);
        CHECK(room);
        size_t length = make_packet(room, false, (uint16_t)n, 0, 0, PAYLOAD, true);
        memcpy(sent[n], room, length);
        // The second half is in another buffer.
        struct sw_leaving leaving = {
            .payload = sent[n] + length / 2,
            .payload_length = (uint32_t)(length - length / 2),
            .sum_field = SW_COMPLETE,
        };
        memset(room + length / 2, 0, length - length / 2);
        transmit_add(transmit, length, &leaving);
    }
    CHECK(transmit->frame_count == 1);
    CHECK(transmit_flush(transmit, sender));
    CHECK(transmit->plain_error == 22 && !transmit->join);
    CHECK(transmit->packets == PACKETS && transmit->handed_over == PACKETS);
    for (int n = 0; n < PACKETS; n++) {
        uint8_t got[2048];
        size_t have = 0;
        while (have < sizeof(struct offload_header) + 42 + PAYLOAD) {
            ssize_t more = recv(receiver, got + have, sizeof got - have, MSG_DONTWAIT);
            CHECK(more > 0);
            have += (size_t)more;
        }
        static const struct offload_header none;
        CHECK(memcmp(got, &none, sizeof none) == 0);
        CHECK(memcmp(got + sizeof none, sent[n], 42 + PAYLOAD) == 0);
    }
    transmit_destroy(transmit);
    free(transmit);
}

// The segments of the largest frame that TCP makes of them, as a router hands them on: it leaves as
// it came, in one piece, even where it is no longer there when the socket takes it at last.
static void reunion(bool later) {
    enum { SEGMENTS = 44, SIZE = 1448, HEADERS = 66, WRITTEN = 34, LENGTH = HEADERS + 63000 };
    static uint8_t frame[LENGTH], got[LENGTH + 100];
    struct offload_header header = {
        .flags = OFFLOAD_NEEDS_CSUM,
        .gso_type = OFFLOAD_GSO_TCPV4,
        .header_length = HEADERS,
        .gso_size = SIZE,
        .csum_start = WRITTEN,
        .csum_offset = 16,
    };
    CHECK(make_packet(frame, true, 65530, 0xfffffff0, 0x18, LENGTH - HEADERS, false) == LENGTH);
    uint64_t pseudo = sum_pseudo4(frame + 14, 6, LENGTH - WRITTEN);
    store_sum(frame + WRITTEN + 16, sum_fold(pseudo));
    uint8_t *expected = malloc(LENGTH);
    memcpy(expected, frame, LENGTH);

    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    uint32_t before = 0;
    while (later && send(ends[0], "", 1, MSG_DONTWAIT) == 1)
        before++;
    struct transmit *transmit = calloc(1, sizeof *transmit);
    CHECK(transmit_init(transmit, true, 65549) == 0);
    transmit->largest = 1514;
    struct segments segments;
    CHECK(segments_open(&segments, &header, frame, LENGTH) == SEGMENTS);
    uint8_t *packet;
    size_t length;
    while ((length = segments_next(&segments, &packet))) {
        uint8_t *room = transmit_room(transmit);
        CHECK(room);
        memcpy(room, packet, WRITTEN);
        struct sw_leaving leaving = {
            .payload = packet + WRITTEN,
            .payload_length = (uint32_t)length - WRITTEN,
            .fragile = HEADERS - WRITTEN,
            .sum_start = segments.sum_start,
            .sum_field = segments.sum_field,
        };
        transmit_add(transmit, length, &leaving);
    }
    CHECK(transmit->frame_count == 1);
    CHECK(transmit_flush(transmit, ends[0]) == !later);
    memset(frame, 0xee, sizeof frame);
    for (; before; before--)
        CHECK(recv(ends[1], got, sizeof got, MSG_DONTWAIT) == 1);
    if (later)
        CHECK(transmit_flush(transmit, ends[0]));
    CHECK(transmit->packets == SEGMENTS && transmit->handed_over == 1);
    CHECK(recv(ends[1], got, sizeof got, MSG_DONTWAIT) == (ssize_t)(sizeof header + LENGTH));
    CHECK(memcmp(got, &header, sizeof header) == 0);
    CHECK(memcmp(got + sizeof header, expected, LENGTH) == 0);
    transmit_destroy(transmit);
    free(transmit);
    free(expected);
}

int main(int count, char **arguments) {
    if (count != 3)
        return 2;
    state = strtoull(arguments[2], NULL, 0);
    if (strcmp(arguments[1], "lies") == 0)
        lies();
    else if (strcmp(arguments[1], "split") == 0)
        split();
    else if (strcmp(arguments[1], "fallback") == 0)
        fallback();
    else if (strcmp(arguments[1], "reunion") == 0)
        reunion(state & 1);
    else
        return 2;
    return 0;
}
