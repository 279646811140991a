// SPDX-License-Identifier: Apache-2.0
// Reproducible matrix products: every element is a sum over k in ascending order, with each product
// and each sum rounded to float32. Vectors run along rows, so their width does not change results.

#include "kernels.h"

#include <string.h>

#if defined __AVX512F__
enum { LANES = 16 };
#elif defined __AVX__
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

enum {
    COLUMNS = 16,              // of b at a time
    VECTORS = COLUMNS / LANES, // that hold them
    ROWS = LANES / 2,          // of a at a time: the sums are in 8 registers
    PANEL = 512,               // rows of b that are padded at a time
};

typedef float vector
    __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

static inline const void *moved(const void *from, ptrdiff_t bytes)
{
    return (const char *)from + bytes;
}

// Adds to `height` rows of COLUMNS sums the products with `inner` rows of b. Where it is called the
// height is a constant, so that the sums stay in registers.
static inline __attribute__((always_inline)) void
add_products(float *out, size_t out_row, const void *a, ptrdiff_t a_row, ptrdiff_t a_column,
             const float *b, size_t b_row, size_t inner, const int height)
{
    vector sums[ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < height; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            sums[i][j] = *(const vector *)(out + i * out_row + j * LANES);
    for (size_t k = 0; k < inner; k++) {
#pragma GCC unroll 8
        for (int i = 0; i < height; i++) {
            const float factor = *(const float *)moved(a, i * a_row + (ptrdiff_t)k * a_column);
#pragma GCC unroll 8
            for (int j = 0; j < VECTORS; j++)
                sums[i][j] += factor * *(const vector *)(b + k * b_row + j * LANES);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < height; i++)
#pragma GCC unroll 8
        for (int j = 0; j < VECTORS; j++)
            *(vector *)(out + i * out_row + j * LANES) = sums[i][j];
}

static void add_rows(float *out, size_t out_row, const void *a, ptrdiff_t a_row, ptrdiff_t a_column,
                     const float *b, size_t b_row, size_t rows, size_t inner)
{
    size_t i = 0;
    for (; i + ROWS <= rows; i += ROWS)
        add_products(out + i * out_row, out_row, moved(a, (ptrdiff_t)i * a_row), a_row, a_column, b,
                     b_row, inner, ROWS);
    for (; i < rows; i++)
        add_products(out + i * out_row, out_row, moved(a, (ptrdiff_t)i * a_row), a_row, a_column, b,
                     b_row, inner, 1);
}

// The same for fewer than COLUMNS columns: on copies with columns that are not used.
static void add_narrow_rows(float *out, size_t out_row, const void *a, ptrdiff_t a_row,
                            ptrdiff_t a_column, const float *b, size_t b_row, size_t rows,
                            size_t inner, size_t columns)
{
    float wide[PANEL * COLUMNS], sums[ROWS * COLUMNS] = {0};
    const size_t bytes = columns * sizeof *out;
    for (size_t first = 0; first < inner; first += PANEL) {
        const size_t many = inner - first < PANEL ? inner - first : PANEL;
        memset(wide, 0, many * COLUMNS * sizeof *wide);
        for (size_t k = 0; k < many; k++)
            memcpy(wide + k * COLUMNS, b + (first + k) * b_row, bytes);
        const void *factors = moved(a, (ptrdiff_t)first * a_column);
        for (size_t i = 0; i < rows; i += ROWS) {
            const size_t high = rows - i < ROWS ? rows - i : ROWS;
            for (size_t j = 0; j < high; j++)
                memcpy(sums + j * COLUMNS, out + (i + j) * out_row, bytes);
            add_rows(sums, COLUMNS, moved(factors, (ptrdiff_t)i * a_row), a_row, a_column, wide,
                     COLUMNS, high, many);
            for (size_t j = 0; j < high; j++)
                memcpy(out + (i + j) * out_row, sums + j * COLUMNS, bytes);
        }
    }
}

void product(float *restrict out, const void *restrict a, ptrdiff_t a_row, ptrdiff_t a_column,
             const float *restrict b, size_t rows, size_t inner, size_t columns)
{
    memset(out, 0, rows * columns * sizeof *out);
    size_t j = 0;
    for (; j + COLUMNS <= columns; j += COLUMNS)
        add_rows(out + j, columns, a, a_row, a_column, b + j, columns, rows, inner);
    if (j < columns)
        add_narrow_rows(out + j, columns, a, a_row, a_column, b + j, columns, rows, inner,
                        columns - j);
}

void row_sums(float *restrict out, const float *restrict values, size_t rows, size_t columns)
{
    for (size_t i = 0; i < rows; i++) {
        const float *row = values + i * columns;
        out[i] = row[0];
        for (size_t j = 1; j < columns; j++)
            out[i] += row[j];
    }
}
