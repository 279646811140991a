// SPDX-License-Identifier: Apache-2.0
//
// Hash and checksum algorithms: see hash.h. Tables are small: constant for CRC-32, one per
// calculation for custom CRCs, which are computed unreflected with input and output reflected as
// asked.

#include "hash.h"

#include "bytes.h"

uint64_t hash_crc16(const uint8_t *bytes, size_t length) {
    uint16_t crc = 0;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = (uint16_t)(crc >> 1 ^ (crc & 1 ? 0xa001 : 0));
    }
    return crc;
}

// Four bits at a time, so that the table is small enough to be constant.
uint64_t hash_crc32(const uint8_t *bytes, size_t length) {
    static const uint32_t nibble[16] = {
        0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
        0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c,
    };
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return crc ^ 0xffffffff;
}

static uint32_t reflected(uint32_t value, uint32_t width) {
    uint32_t result = 0;
    for (uint32_t bit = 0; bit < width; bit++) result |= (value >> bit & 1) << (width - 1 - bit);
    return result;
}

void hash_crc_set(struct hash_crc *crc, uint32_t width, uint32_t poly, uint32_t init,
                  uint32_t xor_out, int reflect_in, int reflect_out) {
    uint32_t ones = width < 32 ? (1u << width) - 1 : UINT32_MAX;
    crc->width = width;
    crc->init = init & ones;
    crc->xor_out = xor_out & ones;
    crc->reflect_in = reflect_in != 0;
    crc->reflect_out = reflect_out != 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte << (width - 8);
        for (int bit = 0; bit < 8; bit++)
            rest = (rest << 1 ^ (rest >> (width - 1) & 1 ? poly : 0)) & ones;
        crc->table[byte] = rest;
    }
}

uint64_t hash_crc_custom(const struct hash_crc *crc, const uint8_t *bytes, size_t length) {
    uint32_t ones = crc->width < 32 ? (1u << crc->width) - 1 : UINT32_MAX;
    uint32_t rest = crc->init;
    for (size_t i = 0; i < length; i++) {
        uint32_t byte = crc->reflect_in ? reflected(bytes[i], 8) : bytes[i];
        rest = (rest << 8 ^ crc->table[(rest >> (crc->width - 8) ^ byte) & 255]) & ones;
    }
    return (crc->reflect_out ? reflected(rest, crc->width) : rest) ^ crc->xor_out;
}

uint64_t hash_xor16(const uint8_t *bytes, size_t length) {
    uint64_t value = 0;
    for (; length >= 2; bytes += 2, length -= 2) value ^= load16(bytes);
    return length ? value ^ (uint64_t)*bytes << 8 : value;
}

uint64_t hash_identity(const uint8_t *bytes, size_t length) {
    uint64_t value = 0;
    for (size_t i = 0; i < length && i < 8; i++) value = value << 8 | bytes[i];
    return value;
}

// Stores a field of any width at any bit.
static void store_bits(uint8_t *at, size_t offset, const uint64_t *field, int width) {
    for (int bit = 0; bit < width; bit++) {
        size_t place = offset + (size_t)(width - 1 - bit);
        at[place / 8] |= (uint8_t)((field[bit / 64] >> bit % 64 & 1) << (7 - place % 8));
    }
}

void hash_put(struct hash_bits *to, const uint64_t *field, int width) {
    size_t end = (to->bits + (size_t)width + 7) / 8;
    if (end > to->room) return;
    for (size_t i = (to->bits + 7) / 8; i < end; i++) to->bytes[i] = 0;
    if (to->bits % 8 == 0 && width % 8 == 0) {
        for (int i = width / 8 - 1, at = (int)(to->bits / 8); i >= 0; i--, at++)
            to->bytes[at] = (uint8_t)(field[i / 8] >> i % 8 * 8);
    } else {
        store_bits(to->bytes, to->bits, field, width);
    }
    to->bits += (size_t)width;
}

void hash_put_bytes(struct hash_bits *to, const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t byte = bytes[i];
        hash_put(to, &byte, 8);
    }
}
