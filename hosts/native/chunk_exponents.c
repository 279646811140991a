// SPDX-License-Identifier: Apache-2.0
// A pass over the values of chunks that are submitted: hosts/native/chunk_exponents.py.

#include <stdint.h>

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
