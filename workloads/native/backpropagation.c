// SPDX-License-Identifier: Apache-2.0
// The gradients of a perceptron, by the operations of backpropagation.py in one call: at its sizes
// calls take as long as what they compute.

#include "kernels.h"

#include <string.h>

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

static void transpose(float *restrict out, const float *restrict values, size_t rows, size_t columns)
{
    enum { BLOCK = 16 }; // of rows, which share cache lines of the result
    for (size_t first = 0; first < rows; first += BLOCK) {
        const size_t last = first + BLOCK < rows ? first + BLOCK : rows;
        for (size_t j = 0; j < columns; j++)
            for (size_t i = first; i < last; i++)
                out[j * rows + i] = values[i * columns + j];
    }
}

static void column_sums(float *restrict out, const float *restrict values, size_t rows,
                        size_t columns)
{
    memset(out, 0, columns * sizeof *out);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < columns; j++)
            out[j] += values[i * columns + j];
}

// The output of a layer; ReLU: as numpy, NaN stays.
static void forward(float *restrict out, const float *restrict values, const float *weights,
                    const float *restrict biases, size_t examples, size_t inputs, size_t outputs,
                    int hidden)
{
    const ptrdiff_t width = sizeof *values;
    product(out, values, (ptrdiff_t)inputs * width, width, weights, examples, inputs, outputs);
    for (size_t i = 0; i < examples; i++)
        for (size_t j = 0; j < outputs; j++) {
            const float value = out[i * outputs + j] + biases[j];
            out[i * outputs + j] = hidden && value <= 0 ? 0 : value;
        }
}

// The losses of examples, and their gradient by the scores, which are overwritten. sums: scratch.
static void cross_entropy(float *restrict losses, float *restrict error, float *restrict scores,
                          float *restrict sums, const int64_t *classes, size_t examples,
                          size_t count)
{
    for (size_t i = 0; i < examples; i++) {
        float *row = scores + i * count, most = row[0];
        for (size_t j = 1; j < count; j++)
            most = row[j] > most || row[j] != row[j] ? row[j] : most;
        for (size_t j = 0; j < count; j++)
            row[j] -= most;
    }
    exponentials(error, scores, examples * count);
    row_sums(sums, error, examples, count);
    logarithms(losses, sums, examples);
    for (size_t i = 0; i < examples; i++) {
        const size_t own = i * count + (size_t)classes[i];
        losses[i] -= scores[own];
        for (size_t j = 0; j < count; j++)
            error[i * count + j] /= sums[i];
        error[own] -= 1;
    }
    for (size_t i = 0; i < examples * count; i++)
        error[i] /= (float)examples;
}

size_t backpropagation_scratch(size_t layers, const size_t *sizes, size_t examples)
{
    size_t values = 0, widest = sizes[0], weights = 0;
    for (size_t n = 0; n < layers; n++) {
        values += sizes[n + 1];
        widest = larger(widest, sizes[n + 1]);
        weights = larger(weights, sizes[n] * sizes[n + 1]);
    }
    return examples * (values + 2 * widest + 1) + weights;
}

void backpropagate(size_t layers, const size_t *sizes, size_t examples, const float *inputs,
                   const int64_t *classes, const float *const *weights, const float *const *biases,
                   float *losses, float *gradients, float *inputs_gradient, float *scratch)
{
    const ptrdiff_t width = sizeof *scratch;
    float *output = scratch; // of the layer that is next
    const float *input = inputs;
    size_t widest = sizes[0];
    for (size_t n = 0; n < layers; n++) {
        forward(output, input, weights[n], biases[n], examples, sizes[n], sizes[n + 1],
                n + 1 < layers);
        input = output;
        output += examples * sizes[n + 1];
        widest = larger(widest, sizes[n + 1]);
        gradients += (sizes[n] + 1) * sizes[n + 1];
    }
    float *error = output, *back = error + examples * widest;
    float *const sums = back + examples * widest, *const turned = sums + examples;
    output -= examples * sizes[layers];
    cross_entropy(losses, error, output, sums, classes, examples, sizes[layers]);
    for (size_t n = layers; n-- > 0;) {
        const size_t in = sizes[n], out = sizes[n + 1];
        const int first = n == 0;
        output -= first ? 0 : examples * in; // of the layer before, if there is one
        input = first ? inputs : output;
        gradients -= (in + 1) * out;
        product(gradients, input, width, (ptrdiff_t)in * width, error, in, examples, out);
        column_sums(gradients + in * out, error, examples, out);
        if (first && inputs_gradient == NULL)
            break;
        float *const result = first ? inputs_gradient : back;
        transpose(turned, weights[n], in, out);
        product(result, error, (ptrdiff_t)out * width, width, turned, examples, out, in);
        for (size_t i = 0; !first && i < examples * in; i++)
            result[i] *= input[i] > 0 ? 1.0f : 0.0f;
        back = error;
        error = result;
    }
}
