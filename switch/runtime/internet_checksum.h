// SPDX-License-Identifier: Apache-2.0
//
// The Internet checksum (RFC 1071) as an inline sum over byte ranges. Sums are kept in memory order
// (not host order): folding and storing them with memcpy is right on any byte order.

#ifndef RACKHUB_INTERNET_CHECKSUM_H
#define RACKHUB_INTERNET_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
    for (size_t i = 4 * words; i < length; i++) rest[i - 4 * words] = at[i];
    uint32_t word;
    memcpy(&word, rest, 4);
    return sum + word;
}

// The 16-bit one's complement sum, in memory order.
static inline uint16_t sum_fold(uint64_t sum) {
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

// The complement as a checksum, with 0 written as 0xffff (RFC 768; for the other protocols both
// mean the same).
static inline uint16_t sum_checksum(uint64_t sum) {
    uint16_t folded = (uint16_t)~sum_fold(sum);
    return folded == 0 ? 0xffff : folded;
}

// Completes a checksum that the sender left to hardware: its field holds the sum of the pseudo
// header, to which everything from `start` on is added (virtio 1.2, 5.1.6.2). start <= field <=
// length - 2.
static inline void complete_sum(uint8_t *packet, size_t length, size_t start, size_t field) {
    uint16_t checksum = sum_checksum(sum_bytes(0, packet + start, length - start));
    memcpy(packet + field, &checksum, sizeof checksum);
}

#endif
