// SPDX-License-Identifier: Apache-2.0
//
// Mutations of records and frames. They mostly repair lengths and checksums, so that changes pass the
// first checks, and make offload headers slightly wrong.
#include <stdbool.h>
#include <string.h>

#include "packet_checksums.h"
#include "offload.h"
#include "records.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size,
                                 uint8_t *out, size_t max, unsigned seed);

enum { ETHERNET = 14, IP_HEADER = 20, ROOM = 1 << 17 };

static uint64_t state;

static uint32_t below(uint32_t limit) { // SplitMix64
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) % limit);
}

struct part {
    struct record record;
    const uint8_t *data;
};

static size_t take_apart(const uint8_t *input, size_t size, struct part *parts) {
    size_t at = 0, count = 0;
    while (count < MOST_RECORDS &&
           record_next(input, size, &at, &parts[count].record, &parts[count].data))
        count++;
    return count;
}

static size_t put_together(const struct part *parts, size_t count, uint8_t *out, size_t max) {
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const struct part *one = &parts[i];
        if (at + sizeof one->record + one->record.length > max)
            break;
        memcpy(out + at, &one->record, sizeof one->record);
        memcpy(out + at + sizeof one->record, one->data, one->record.length);
        at += sizeof one->record + one->record.length;
    }
    return at;
}

// ---------------------------------------------------------------------------------------------
// Frames

static bool is_ipv4(const uint8_t *frame, size_t length) {
    return length >= ETHERNET + IP_HEADER && load16(frame + 12) == 0x0800;
}

// Sets lengths, then checksums, as a sender would.
static void repair(uint8_t *frame, size_t length) {
    if (!is_ipv4(frame, length))
        return;
    uint8_t *ip = frame + ETHERNET;
    if (below(8))
        store16(ip + 2, (uint32_t)(length - ETHERNET));
    if (ip[9] == 17 && length >= 42 && below(4)) {
        store16(frame + 38, (uint32_t)(length - 34));
        if (below(2))
            store16(frame + 40, 0);
    }
    if (below(16))
        store_ip_checksum(ip, IP_HEADER);
    uint32_t field = ip[9] == 6 ? 16 : 6;
    if ((ip[9] == 17 || (ip[9] == 6 && length >= 54)) && length >= 42 && below(2)) {
        uint32_t after = (uint32_t)length - 34;
        store16(frame + 34 + field, 0);
        store_checksum(frame + 34 + field, sum_bytes(sum_pseudo4(ip, ip[9], after), frame + 34,
                                                     after));
    }
}

static uint16_t some_number(uint32_t near) {
    switch (below(6)) {
    case 0:
        return (uint16_t)below(65536);
    case 1:
        return (uint16_t)below(128);
    case 2:
        return (uint16_t)(65535 - below(4));
    default:
        return (uint16_t)(near + below(5) - 2);
    }
}

// Writes an offload header that fits the frame, with at most one wrong field.
static void offload(struct part *part) {
    static const uint8_t types[] = {
        OFFLOAD_GSO_NONE,   OFFLOAD_GSO_NONE,   OFFLOAD_GSO_TCPV4,
        OFFLOAD_GSO_TCPV6,  OFFLOAD_GSO_UDP_L4, OFFLOAD_GSO_TCPV4 | OFFLOAD_GSO_ECN,
    };
    size_t length = part->record.length;
    bool tcp = is_ipv4(part->data, length) && part->data[23] == 6;
    struct offload_header header = {
        .flags = OFFLOAD_NEEDS_CSUM,
        .gso_type = tcp ? OFFLOAD_GSO_TCPV4 : OFFLOAD_GSO_UDP_L4,
        .header_length = tcp ? 54 : 42,
        .gso_size = (uint16_t)(below(2) ? 16 + below(1500) : length / (1 + below(8))),
        .csum_start = 34,
        .csum_offset = tcp ? 16 : 6,
    };
    if (below(4) == 0)
        header.gso_type = types[below(sizeof types)];
    switch (below(12)) {
    case 0:
        header.flags = (uint8_t)below(4);
        break;
    case 1:
        header.gso_type = (uint8_t)below(256);
        break;
    case 2:
        header.header_length = some_number(42);
        break;
    case 3:
        header.gso_size = some_number((uint32_t)length);
        break;
    case 4:
        header.csum_start = some_number(below(2) ? 34 : (uint32_t)length);
        break;
    case 5:
        header.csum_offset = some_number(below(2) ? 6 : (uint32_t)length - 34);
        break;
    }
    memcpy(part->record.numbers, &header, sizeof header);
    if (below(4) == 0)
        part->record.stretch = some_number(below(2) ? 4000 : 65535 - (uint32_t)length);
}

// Writes lengths and offsets that checks must reject.
static void lie(uint8_t *frame, size_t length) {
    if (!is_ipv4(frame, length) || length < 54)
        return;
    uint8_t *ip = frame + ETHERNET;
    switch (below(7)) {
    case 0:
        store16(ip + 2, some_number((uint32_t)length - ETHERNET));
        break;
    case 1:
        ip[0] = (uint8_t)(0x40 | below(16));
        break;
    case 2:
        store16(frame + 38, some_number((uint32_t)length - 34));
        break;
    case 3:
        store16(ip + 6, (uint16_t)(1 << below(16)));
        break;
    case 4:
        frame[46] = (uint8_t)(below(16) << 4); // TCP's header length
        break;
    case 5:
        ip[9] = below(2) ? 6 : 17;
        break;
    default:
        ip[8] = (uint8_t)below(4); // TTL
    }
    if (below(8))
        store_ip_checksum(ip, IP_HEADER);
}

// One field of a few bytes, anywhere in the headers.
static void change_field(uint8_t *frame, size_t length) {
    size_t size = (size_t)1 << below(3);
    if (length < size)
        return;
    size_t at = below((uint32_t)((length < 96 ? length : 96) - size) + 1);
    uint32_t kind = below(4);
    for (size_t i = 0; i < size; i++)
        frame[at + i] = kind == 0 ? 0 : kind == 1 ? 0xff : (uint8_t)below(256);
    if (kind == 3) // near what a small number is
        for (size_t i = 0; i + 1 < size; i++)
            frame[at + i] = 0;
}

// ---------------------------------------------------------------------------------------------
// For the fuzzer

static void change_data(struct part *part, uint8_t *room) {
    size_t length = part->record.length;
    memcpy(room, part->data, length);
    part->data = room;
    if (length == 0 || below(3) == 0) {
        length = LLVMFuzzerMutate(room, length, 4096 < length ? length : 4096);
    } else if (below(4) == 0) {
        length = below((uint32_t)length + 1); // cut
    } else {
        for (uint32_t changes = 1 + below(3); changes; changes--)
            change_field(room, length);
    }
    if (below(8))
        repair(room, length);
    if (below(4) == 0)
        lie(room, length);
    part->record.length = (uint16_t)length;
}

static void change_record(struct record *record) {
    switch (below(4)) {
    case 0:
        record->operation = (uint8_t)below(OPERATIONS);
        break;
    case 1:
        record->port = (uint8_t)below(8);
        break;
    case 2:
        record->stretch = below(2) ? 0 : some_number(1500);
        break;
    default:
        record->numbers[below(5)] = some_number(record->numbers[0]);
    }
}

static size_t change_order(struct part *parts, size_t count) {
    size_t from = below((uint32_t)count), to = below((uint32_t)count);
    struct part moved = parts[from];
    switch (below(3)) {
    case 0: // again
        if (count == MOST_RECORDS)
            break;
        memmove(parts + to + 1, parts + to, (count - to) * sizeof *parts);
        parts[to] = moved;
        return count + 1;
    case 1: // without it
        if (count == 1)
            break;
        memmove(parts + from, parts + from + 1, (count - from - 1) * sizeof *parts);
        return count - 1;
    default:
        parts[from] = parts[to];
        parts[to] = moved;
    }
    return count;
}

static size_t insert_event(struct part *parts, size_t count) {
    if (count == MOST_RECORDS)
        return count;
    size_t to = below((uint32_t)count + 1);
    memmove(parts + to + 1, parts + to, (count - to) * sizeof *parts);
    struct record made = {
        .operation = (uint8_t)(TIME + below(OPERATIONS - TIME)),
        .port = (uint8_t)below(8),
    };
    for (int i = 0; i < 5; i++)
        made.numbers[i] = below(2) ? (uint16_t)below(CONTROLS) : some_number(100);
    if (made.operation == CONTROL && below(4) == 0)
        made.stretch = (uint16_t)(1 + below(4));
    parts[to] = (struct part){made, (const uint8_t *)""};
    return count + 1;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed) {
    static struct part parts[MOST_RECORDS + 1];
    static uint8_t room[1 << 16], out[ROOM];
    state = seed;
    size_t count = take_apart(data, size, parts);
    if (count == 0 || below(16) == 0)
        return LLVMFuzzerMutate(data, size, max);
    struct part *one = &parts[below((uint32_t)count)];
    switch (below(8)) {
    case 0:
        count = change_order(parts, count);
        break;
    case 1:
        count = insert_event(parts, count);
        break;
    case 2:
        change_record(&one->record);
        break;
    case 3:
    case 4:
        offload(one);
        break;
    default:
        change_data(one, room);
    }
    size_t length = put_together(parts, count, out, max < ROOM ? max : ROOM);
    memcpy(data, out, length);
    return length;
}

// The beginning of one, then the end of the other.
size_t LLVMFuzzerCustomCrossOver(const uint8_t *a, size_t a_size, const uint8_t *b, size_t b_size,
                                 uint8_t *out, size_t max, unsigned seed) {
    static struct part first[MOST_RECORDS], second[MOST_RECORDS];
    state = seed;
    size_t a_count = take_apart(a, a_size, first), b_count = take_apart(b, b_size, second);
    size_t kept = a_count ? below((uint32_t)a_count) : 0, from = b_count ? below((uint32_t)b_count)
                                                                         : 0;
    size_t length = put_together(first, kept, out, max);
    return length + put_together(second + from, b_count - from, out + length, max - length);
}
