// SPDX-License-Identifier: Apache-2.0
//
// Converts fields between their position in a frame (big-endian, at any bit) and integers or limbs
// (least significant first). The caller has checked that the bytes exist.

#ifndef RACKHUB_BYTES_H
#define RACKHUB_BYTES_H

#include <stdint.h>
#include <string.h>

static inline uint64_t load8(const uint8_t *at) { return *at; }
static inline uint64_t load16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap16(value);
}
static inline uint64_t load32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap32(value);
}
static inline uint64_t load64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap64(value);
}
static inline void store8(uint8_t *at, uint64_t value) { *at = (uint8_t)value; }
static inline void store16(uint8_t *at, uint64_t value) {
    uint16_t swapped = __builtin_bswap16((uint16_t)value);
    memcpy(at, &swapped, sizeof swapped);
}
static inline void store32(uint8_t *at, uint64_t value) {
    uint32_t swapped = __builtin_bswap32((uint32_t)value);
    memcpy(at, &swapped, sizeof swapped);
}
static inline void store64(uint8_t *at, uint64_t value) {
    uint64_t swapped = __builtin_bswap64(value);
    memcpy(at, &swapped, sizeof swapped);
}

// A byte-aligned field of 64 n bits: its bytes in reverse order, 32 at a time.
typedef uint8_t sw_bytes32 __attribute__((vector_size(32)));

static inline void copy_reversed32(void *to, const void *from) {
    sw_bytes32 bytes;
    memcpy(&bytes, from, sizeof bytes);
    bytes = __builtin_shufflevector(bytes, bytes, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19,
                                    18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1,
                                    0);
    memcpy(to, &bytes, sizeof bytes);
}

// Four limbs of a field; of one in network order (reversed).
typedef uint64_t sw_limbs4 __attribute__((vector_size(32)));

static inline sw_limbs4 sw_load4(const uint64_t *at) {
    sw_limbs4 limbs;
    memcpy(&limbs, at, sizeof limbs);
    return limbs;
}
static inline void sw_store4(uint64_t *at, sw_limbs4 limbs) { memcpy(at, &limbs, sizeof limbs); }
static inline sw_limbs4 sw_reversed4(const uint8_t *at) {
    sw_limbs4 limbs;
    copy_reversed32(&limbs, at);
    return limbs;
}

static inline void load_limbs(uint64_t *field, int n, const uint8_t *at) {
    for (int i = 0; i < n / 4; i++) copy_reversed32(field + 4 * i, at + 8 * (n - 4 - 4 * i));
    for (int i = 0; i < n % 4; i++) field[n - 1 - i] = load64(at + 8 * i);
}
static inline void store_limbs(uint8_t *at, const uint64_t *field, int n) {
    for (int i = 0; i < n / 4; i++) copy_reversed32(at + 8 * (n - 4 - 4 * i), field + 4 * i);
    for (int i = 0; i < n % 4; i++) store64(at + 8 * i, field[n - 1 - i]);
}

// The same, not inlined.
static __attribute__((noinline)) void load_limbs_apart(uint64_t *field, int n, const uint8_t *at) {
    load_limbs(field, n, at);
}
static __attribute__((noinline)) void store_limbs_apart(uint8_t *at, const uint64_t *field, int n) {
    store_limbs(at, field, n);
}

// Loads bytes that begin `shift` bits (1 to 7) behind the first bit of `at`.
static inline void load_shifted(uint8_t *to, const uint8_t *at, size_t count, int shift) {
    for (size_t i = 0; i < count; i++) to[i] = (uint8_t)(at[i] << shift | at[i + 1] >> (8 - shift));
}
// Stores them: the bits before them in the first byte stay, those behind them become 0.
static inline void store_shifted(uint8_t *at, const uint8_t *from, size_t count, int shift) {
    for (size_t i = 0; i < count; i++) {
        at[i] = (uint8_t)(at[i] | from[i] >> shift);
        at[i + 1] = (uint8_t)(from[i] << (8 - shift));
    }
}

// Returns 1 if two varbit fields are the same number, whatever their lengths.
static inline int equal_numbers(const uint8_t *left, uint32_t left_bytes, const uint8_t *right,
                                uint32_t right_bytes) {
    for (; left_bytes > right_bytes; left_bytes--)
        if (*left++) return 0;
    for (; right_bytes > left_bytes; right_bytes--)
        if (*right++) return 0;
    return !memcmp(left, right, left_bytes);
}

#endif
