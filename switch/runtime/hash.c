// SPDX-License-Identifier: Apache-2.0
//
// Hash and checksum algorithms: see hash.h.

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

// Four bits at a time: a table small enough to be constant.
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

void hash_put(struct hash_bits *to, const uint64_t *field, int width) {
    size_t end = (to->bits + (size_t)width + 7) / 8;
    if (end > to->room) return;
    for (size_t i = (to->bits + 7) / 8; i < end; i++) to->bytes[i] = 0;
    if (to->bits % 8 == 0 && width % 8 == 0) {
        for (int i = width / 8 - 1, at = (int)(to->bits / 8); i >= 0; i--, at++)
            to->bytes[at] = (uint8_t)(field[i / 8] >> i % 8 * 8);
    } else {
        store_any(to->bytes, to->bits, field, width);
    }
    to->bits += (size_t)width;
}
