// SPDX-License-Identifier: Apache-2.0
// Reproducible kernels: single operations in a fixed order (kernels.py). Compile without contraction
// to fused multiply-adds.
#pragma once

#include <stddef.h>
#include <stdint.h>

// out = a b; a_row, a_column: distances between the rows and between the columns of a, in bytes; out
// and b are contiguous.
void product(float *restrict out, const void *restrict a, ptrdiff_t a_row, ptrdiff_t a_column,
             const float *restrict b, size_t rows, size_t inner, size_t columns);
void row_sums(float *restrict out, const float *restrict values, size_t rows, size_t columns);
void exponentials(float *restrict out, const float *restrict values, size_t count);
void logarithms(float *restrict out, const float *restrict values, size_t count);

// The numbers of inputs, hidden units and classes are sizes[0] to sizes[layers]. weights, biases: of
// each layer. gradients: of the weights and biases of each layer in turn. inputs_gradient: may be
// NULL. scratch: as many floats as backpropagation_scratch says.
void backpropagate(size_t layers, const size_t *sizes, size_t examples, const float *inputs,
                   const int64_t *classes, const float *const *weights, const float *const *biases,
                   float *losses, float *gradients, float *inputs_gradient, float *scratch);
size_t backpropagation_scratch(size_t layers, const size_t *sizes, size_t examples);
