// SPDX-License-Identifier: Apache-2.0
// Reproducible exponential functions and logarithms, as in kernels.py, which explains them: the same
// single operations in float64, in the same order.

#include "kernels.h"

#include <string.h>

// 1/13!, 1/12!, ... 1/0!
static const double EXP_TERMS[] = {
    0x1.6124613a86d09p-33, 0x1.1eed8eff8d898p-29, 0x1.ae64567f544e4p-26, 0x1.27e4fb7789f5cp-22,
    0x1.71de3a556c734p-19, 0x1.a01a01a01a01ap-16, 0x1.a01a01a01a01ap-13, 0x1.6c16c16c16c17p-10,
    0x1.1111111111111p-7, 0x1.5555555555555p-5, 0x1.5555555555555p-3, 0x1.0000000000000p-1,
    0x1.0000000000000p+0, 0x1.0000000000000p+0,
};
// 1/21, 1/19, ... 1/1
static const double LOG_TERMS[] = {
    0x1.8618618618618p-5, 0x1.af286bca1af28p-5, 0x1.e1e1e1e1e1e1ep-5, 0x1.1111111111111p-4,
    0x1.3b13b13b13b14p-4, 0x1.745d1745d1746p-4, 0x1.c71c71c71c71cp-4, 0x1.2492492492492p-3,
    0x1.999999999999ap-3, 0x1.5555555555555p-2, 0x1.0000000000000p+0,
};
static const double LN2_INVERSE = 0x1.71547652b82fep+0; // 1 / ln 2
static const double LN2_HIGH = 0x1.62e42fee00000p-1, LN2_LOW = 0x1.a39ef35793c76p-33;
// Added to a number below 2^51, rounds it to an integer, which is in the lowest bits of the sum.
static const double ROUNDER = 0x1.8p52;
static const double HALF_ROOT = 0x1.6a09e667f3bcdp-1; // the root of 1/2
#define COUNT(array) (sizeof(array) / sizeof *(array))
enum { MANTISSA = 52, BIAS = 1023 };

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double number_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline double horner(const double *restrict terms, size_t count, double x)
{
    double value = terms[0];
#pragma GCC unroll 16
    for (size_t i = 1; i < count; i++)
        value = value * x + terms[i];
    return value;
}

void exponentials(float *restrict out, const float *restrict values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double x = values[i];
        x = x < -200 ? -200 : x > 700 ? 700 : x;
        const double rounded = x * LN2_INVERSE + ROUNDER, whole = rounded - ROUNDER;
        const double rest = (x - whole * LN2_HIGH) - whole * LN2_LOW;
        const uint64_t power = bits_of(rounded) - bits_of(ROUNDER) + BIAS;
        out[i] = (float)(horner(EXP_TERMS, COUNT(EXP_TERMS), rest) * number_of(power << MANTISSA));
    }
}

void logarithms(float *restrict out, const float *restrict values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const double x = values[i];
        const uint64_t fraction = bits_of(x) & ((UINT64_C(1) << MANTISSA) - 1);
        double part = number_of(fraction | (uint64_t)(BIAS - 1) << MANTISSA); // 0.5 to 1
        double power = (double)(int)(bits_of(x) >> MANTISSA) - (BIAS - 1);
        const int low = part < HALF_ROOT;
        part = low ? 2 * part : part;
        power = low ? power - 1 : power;
        const double ratio = (part - 1) / (part + 1);
        const double series = 2 * ratio * horner(LOG_TERMS, COUNT(LOG_TERMS), ratio * ratio);
        const double found = power * LN2_HIGH + (power * LN2_LOW + series);
        out[i] = (float)(found + (x - x)); // not a number for infinities and for what is none
    }
}
