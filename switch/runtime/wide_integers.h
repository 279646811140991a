// SPDX-License-Identifier: Apache-2.0
//
// Integers of any size as arrays of 64-bit limbs, least significant first, two's complement. The
// generated code does sums and bitwise operations itself, in loops that vectorise; this file has
// the rest. Lengths k, n, m are in limbs.

#ifndef RACKHUB_WIDE_INTEGERS_H
#define RACKHUB_WIDE_INTEGERS_H

#include <stdint.h>
#include <string.h>

typedef uint64_t limb;

// out[0..k) = a[0..n) continued with `fill` (0, or ~0 for a negative value).
static inline void wide_extend(limb *out, int k, const limb *a, int n, limb fill) {
    int i = 0;
    for (; i < n && i < k; i++) out[i] = a[i];
    for (; i < k; i++) out[i] = fill;
}

// The limb that continues a signed value.
static inline limb wide_sign(const limb *a, int n) { return (limb)((int64_t)a[n - 1] >> 63); }

// Value of the low `width` bits of a, 1 <= width <= 64, as signed.
static inline limb wide_signed(limb a, int width) {
    return (limb)((int64_t)(a << (64 - width)) >> (64 - width));
}

// Truncates a to `width` bits (1 <= width <= 64 n) and extends their sign.
static inline void wide_sign_at(limb *a, int n, int width) {
    int top = (width - 1) / 64;
    a[top] = wide_signed(a[top], width - 64 * top);
    limb fill = wide_sign(a, top + 1);
    for (int i = top + 1; i < n; i++) a[i] = fill;
}

static inline int wide_zero(const limb *a, int n) {
    limb any = 0;
    for (int i = 0; i < n; i++) any |= a[i];
    return any == 0;
}

// -1, 0, 1 as a <, =, > b.
int wide_compare(const limb *a, const limb *b, int n);
int wide_compare_signed(const limb *a, const limb *b, int n);

// Shifts are inline, as constant arguments leave nearly nothing of them: out[0..k) = a[0..n) << by,
// or >> by with `fill` coming in from above. out must not overlap a.
static inline void wide_shift_left(limb *out, int k, const limb *a, int n, uint64_t by) {
    uint64_t whole = by / 64;
    int bits = (int)(by % 64);
    for (int i = 0; i < k; i++) {
        limb low = 0, high = 0; // the limbs that end up in the lower and upper part of out[i]
        if ((uint64_t)i >= whole && (uint64_t)i - whole < (uint64_t)n) high = a[i - (int)whole];
        if ((uint64_t)i > whole && (uint64_t)i - whole - 1 < (uint64_t)n)
            low = a[i - (int)whole - 1];
        out[i] = bits ? high << bits | low >> (64 - bits) : high;
    }
}

static inline void wide_shift_right(limb *out, int k, const limb *a, int n, uint64_t by,
                                    limb fill) {
    uint64_t whole = by / 64;
    int bits = (int)(by % 64);
    for (int i = 0; i < k; i++) {
        limb low = fill, high = fill;
        if (whole < (uint64_t)n && (uint64_t)i + whole < (uint64_t)n) low = a[i + (int)whole];
        if (whole < (uint64_t)n && (uint64_t)i + whole + 1 < (uint64_t)n)
            high = a[i + (int)whole + 1];
        out[i] = bits ? low >> bits | high << (64 - bits) : low;
    }
}

// out[0..k) = a[0..n) * b[0..m) mod 2^(64 k), unsigned. out must not overlap a or b.
void wide_multiply(limb *out, int k, const limb *a, int n, const limb *b, int m);

// Unsigned division of a[0..n) by b[0..m); quotient and remainder (n and m limbs, either may be
// NULL) are 0 if b is 0. n, m <= WIDE_DIVISION_LIMBS.
#define WIDE_DIVISION_LIMBS 1026
void wide_divide(limb *quotient, limb *remainder, const limb *a, int n, const limb *b, int m);

// Decimal text of a value, signed if is_signed; at most size - 1 characters. Returns the length.
// n <= WIDE_DIVISION_LIMBS.
int wide_format(char *out, int size, const limb *a, int n, int is_signed);

#endif
