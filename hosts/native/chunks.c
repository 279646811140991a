// SPDX-License-Identifier: Apache-2.0
// Quantisation of chunks in one pass each, for codecs that round to nearest;
// protocol/codecs/fixed32.py is the reference, to the bit.
//
// Chunks are rows of `width` float32 values at addresses of their own. Integer rows are in network
// order, `stride` bytes apart, and need no alignment.

#include <math.h>
#include <string.h>

#include "packet.h"

typedef float real __attribute__((aligned(4)));

// Writes the bits of the largest |x| of each chunk to `most` (n,). As integers they compare like
// the values, and those of a NaN exceed those of infinity.
void largest_values(const float *values, uint64_t n, uint64_t width, uint32_t *most) {
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t *row = (const uint32_t *)(values + i * width);
        uint32_t found = 0;
        for (uint64_t j = 0; j < width; j++) {
            uint32_t bits = row[j] & 0x7fffffff;
            found = bits > found ? bits : found;
        }
        most[i] = found;
    }
}

// Multiplies chunks by (n,) powers of two and rounds them to integers in network order; writes the
// sums of their words to `sums` (n,).
void quantise_rows(const float *const *values, uint64_t n, uint64_t width, const float *factors,
                   uint8_t *out, uint64_t stride, uint32_t *sums) {
    for (uint64_t i = 0; i < n; i++) {
        const float *row = values[i];
        word *words = (word *)(out + i * stride);
        float factor = factors[i];
        uint32_t sum = 0;
        for (uint64_t j = 0; j < width; j++) {
            uint32_t value = (uint32_t)(int32_t)rintf(row[j] * factor);
            sum += value;
            words[j] = four(value);
        }
        sums[i] = sum;
    }
}

// Writes the sums of the words of rows to `sums` (n,).
void sum_rows(const uint8_t *words, uint64_t stride, uint64_t n, uint64_t width, uint32_t *sums) {
    for (uint64_t i = 0; i < n; i++) {
        const word *row = (const word *)(words + i * stride);
        uint32_t sum = 0;
        for (uint64_t j = 0; j < width; j++)
            sum += four(row[j]);
        sums[i] = sum;
    }
}

// Multiplies words by (n,) powers of two and writes them as float32 to (n,) addresses; copies the
// words to (n,) rows of `kept`.
void dequantise_rows(const uint8_t *words, uint64_t stride, uint64_t n, uint64_t width,
                     const float *factors, float *const *out, uint32_t *kept,
                     const int64_t *rows) {
    for (uint64_t i = 0; i < n; i++) {
        uint32_t *row = kept + (uint64_t)rows[i] * width;
        memcpy(row, words + i * stride, sizeof(word) * width);
        real *restrict into = out[i];
        float factor = factors[i];
        for (uint64_t j = 0; j < width; j++)
            into[j] = (float)(int32_t)four(row[j]) * factor;
    }
}
