// SPDX-License-Identifier: Apache-2.0
//
// Checksums of IPv4, TCP and UDP, and fields in network order. Sums are in memory order and may be
// unfolded, as in internet_checksum.h; lengths and protocols are added in host order by sum_value.

#ifndef RACKHUB_PACKET_CHECKSUMS_H
#define RACKHUB_PACKET_CHECKSUMS_H

#include <arpa/inet.h>
#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "internet_checksum.h"

static inline uint16_t load16(const uint8_t *at) // network order
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static inline void store16(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static inline uint32_t load32(const uint8_t *at) {
    return (uint32_t)load16(at) << 16 | load16(at + 2);
}

static inline void store32(uint8_t *at, uint32_t value) {
    store16(at, value >> 16);
    store16(at + 2, value & 0xffff);
}

static inline uint64_t load64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return be64toh(value);
}

static inline void store64(uint8_t *at, uint64_t value) {
    value = htobe64(value);
    memcpy(at, &value, sizeof value);
}

typedef uint8_t bytes32 __attribute__((vector_size(32)));

static inline void copy32(uint8_t *to, const uint8_t *from) {
    bytes32 bytes;
    memcpy(&bytes, from, sizeof bytes);
    memcpy(to, &bytes, sizeof bytes);
}

// Copies at least 32 bytes (all headers have as many) in pieces of constant size.
static inline void copy_headers(uint8_t *to, const uint8_t *from, size_t count) {
    copy32(to, from);
    if (count > 96)
        memcpy(to + 64, from + 64, count - 96);
    if (count > 64)
        copy32(to + 32, from + 32);
    copy32(to + count - 32, from + count - 32);
}

// Adds one 16-bit value given in host order.
static inline uint64_t sum_value(uint64_t sum, uint32_t value) {
    return sum + htons((uint16_t)value);
}

static inline void store_sum(uint8_t *at, uint16_t folded) {
    memcpy(at, &folded, 2);
}

// Stores the complement, with 0 written as 0xffff.
static inline void store_checksum(uint8_t *at, uint64_t sum) {
    store_sum(at, sum_checksum(sum));
}

// Sum of the pseudo header of TCP or UDP over IPv4 (RFC 793, RFC 768). ip: the IPv4 header.
static inline uint64_t sum_pseudo4(const uint8_t *ip, uint32_t protocol, uint32_t length) {
    return sum_value(sum_value(sum_bytes(0, ip + 12, 8), protocol), length);
}

// The same over IPv6 (RFC 8200, 8.1), for lengths below 65536.
static inline uint64_t sum_pseudo6(const uint8_t *ip, uint32_t protocol, uint32_t length) {
    return sum_value(sum_value(sum_bytes(0, ip + 8, 32), protocol), length);
}

// Returns the sum of an IPv4 header without options, loaded in the pieces in which it was written.
static inline uint64_t sum_ipv4(const uint8_t *ip) {
    uint64_t first, second;
    uint32_t third;
    memcpy(&first, ip, 8);
    memcpy(&second, ip + 8, 8);
    memcpy(&third, ip + 16, 4);
    return (first & 0xffffffff) + (first >> 32) + (second & 0xffffffff) + (second >> 32) + third;
}

// Writes the header checksum of an IPv4 header of `length` bytes.
static inline void store_ip_checksum(uint8_t *ip, size_t length) {
    store16(ip + 10, 0);
    uint16_t folded = (uint16_t)~sum_fold(sum_bytes(0, ip, length));
    store_sum(ip + 10, folded);
}

#endif
