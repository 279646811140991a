// SPDX-License-Identifier: Apache-2.0
// Turns the values of a chunk into the words of a payload: the integers that switches add, or bits
// of float32. protocol/codecs/ is the reference.

#include <stdlib.h>

#include "worker.h"

// Codec.encode, for codecs that round to nearest. Returns the sum of the words.
uint32_t write_integers(const float *values, word *words, int64_t width, int64_t scale) {
    uint32_t sum = 0;
    if (labs(scale) <= 126) { // the scaling is exact in float32
        float factor = ldexpf(1, (int)scale);
        for (int64_t j = 0; j < width; j++) {
            uint32_t value = (uint32_t)(int32_t)rintf(values[j] * factor);
            sum += value;
            words[j] = four(value);
        }
    } else {
        double factor = ldexp(1, (int)scale);
        for (int64_t j = 0; j < width; j++) {
            uint32_t value = (uint32_t)(int32_t)rint(values[j] * factor);
            sum += value;
            words[j] = four(value);
        }
    }
    return sum;
}

// For the float32 sum of a server. Returns the sum of the words.
uint32_t write_floats(const float *values, word *words, int64_t width) {
    uint32_t sum = 0;
    for (int64_t j = 0; j < width; j++) {
        uint32_t bits;
        memcpy(&bits, &values[j], sizeof bits);
        sum += bits;
        words[j] = four(bits);
    }
    return sum;
}
