// SPDX-License-Identifier: Apache-2.0
// Reproducible matrix products: every element is a sum over k in ascending order, with each product
// and each sum rounded to float32. Compile without contraction to fused multiply-adds; vectors run
// along rows, so their width does not change results.

#include <stddef.h>
#include <string.h>

void product(float *restrict out, const float *restrict a, const float *restrict b, size_t rows,
             size_t inner, size_t columns)
{
    memset(out, 0, rows * columns * sizeof *out);
    for (size_t i = 0; i < rows; i++) {
        float *restrict row = out + i * columns;
        for (size_t k = 0; k < inner; k++) {
            const float factor = a[i * inner + k];
            const float *restrict other = b + k * columns;
            for (size_t j = 0; j < columns; j++)
                row[j] += factor * other[j];
        }
    }
}
