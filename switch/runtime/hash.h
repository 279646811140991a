// SPDX-License-Identifier: Apache-2.0
//
// The hash and checksum algorithms of v1model over a byte string, as in BMv2. hash_bits
// builds such a string from fields of any width: bits 0 .. bits - 1 are written, and the rest of
// the last byte is zero.

#ifndef RACKHUB_HASH_H
#define RACKHUB_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "internet_checksum.h"

uint64_t hash_crc16(const uint8_t *bytes, size_t length);  // CRC-16/ARC
uint64_t hash_crc32(const uint8_t *bytes, size_t length);  // CRC-32 of IEEE 802.3
uint64_t hash_xor16(const uint8_t *bytes, size_t length);
uint64_t hash_identity(const uint8_t *bytes, size_t length); // the first 8 bytes

// A CRC of 16 or 32 bits with parameters, named as in the Rocksoft model (R. Williams, "A painless
// guide to CRC error detection algorithms", 1993).
struct hash_crc {
    uint32_t width, init, xor_out, reflect_in, reflect_out;
    uint32_t table[256]; // remainder of every byte
};
void hash_crc_set(struct hash_crc *crc, uint32_t width, uint32_t poly, uint32_t init,
                  uint32_t xor_out, int reflect_in, int reflect_out);
uint64_t hash_crc_custom(const struct hash_crc *crc, const uint8_t *bytes, size_t length);

static inline uint64_t hash_csum16(const uint8_t *bytes, size_t length) { // RFC 1071
    uint16_t sum = (uint16_t)~sum_fold(sum_bytes(0, bytes, length));
    return (uint64_t)*(const uint8_t *)&sum << 8 | ((const uint8_t *)&sum)[1];
}

// A byte string built from fields of any width.
struct hash_bits {
    uint8_t *bytes;
    size_t bits, room; // room in bytes
};
void hash_put(struct hash_bits *to, const uint64_t *field, int width);
void hash_put_bytes(struct hash_bits *to, const uint8_t *bytes, size_t count);

#endif
