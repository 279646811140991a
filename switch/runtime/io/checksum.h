// SPDX-License-Identifier: Apache-2.0
//
// The Internet checksum (RFC 1071), as an inline sum over byte ranges. Sums are kept in memory
// order (not host order): folding and storing them with memcpy is right on any byte order.

#ifndef RACKHUB_CHECKSUM_H
#define RACKHUB_CHECKSUM_H

#include <arpa/inet.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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

// Adds bytes to a running sum. Only the last range of a sum may have an odd length. Four bytes at
// a time into 64 bits: 2^32 such additions fit, and the compiler vectorises the loop.
static inline uint64_t sum_bytes(uint64_t sum, const uint8_t *at, size_t length) {
    size_t words = length / 4;
    for (size_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, at + 4 * i, 4);
        sum += word;
    }
    uint8_t rest[4] = {0, 0, 0, 0};
    for (size_t i = 4 * words; i < length; i++)
        rest[i - 4 * words] = at[i];
    uint32_t word;
    memcpy(&word, rest, 4);
    return sum + word;
}

// Adds one 16-bit value given in host order.
static inline uint64_t sum_value(uint64_t sum, uint32_t value) {
    return sum + htons((uint16_t)value);
}

// The 16-bit one's complement sum, in memory order.
static inline uint16_t sum_fold(uint64_t sum) {
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static inline void store_sum(uint8_t *at, uint16_t folded) {
    memcpy(at, &folded, 2);
}

// Stores the complement, with 0 written as 0xffff (RFC 768; for the other protocols both mean the
// same).
static inline void store_checksum(uint8_t *at, uint64_t sum) {
    uint16_t folded = (uint16_t)~sum_fold(sum);
    store_sum(at, folded == 0 ? 0xffff : folded);
}

// Sum of the pseudo header of TCP or UDP over IPv4 (RFC 793, RFC 768). ip: the IPv4 header.
static inline uint64_t sum_pseudo4(const uint8_t *ip, uint32_t protocol, uint32_t length) {
    return sum_value(sum_value(sum_bytes(0, ip + 12, 8), protocol), length);
}

// The same over IPv6 (RFC 8200, 8.1), for lengths below 65536.
static inline uint64_t sum_pseudo6(const uint8_t *ip, uint32_t protocol, uint32_t length) {
    return sum_value(sum_value(sum_bytes(0, ip + 8, 32), protocol), length);
}

// Writes the header checksum of an IPv4 header of `length` bytes.
static inline void store_ip_checksum(uint8_t *ip, size_t length) {
    store16(ip + 10, 0);
    uint16_t folded = (uint16_t)~sum_fold(sum_bytes(0, ip, length));
    store_sum(ip + 10, folded);
}

#endif
