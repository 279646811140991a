// SPDX-License-Identifier: Apache-2.0
//
// Arithmetic on wide integers that is not inlined: see wide_integers.h. Division and formatting use
// buffers per thread, sized for WIDE_DIVISION_LIMBS.

#include "wide_integers.h"

#include <stdio.h>

int wide_compare(const limb *a, const limb *b, int n) {
    for (int i = n - 1; i >= 0; i--)
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    return 0;
}

int wide_compare_signed(const limb *a, const limb *b, int n) {
    int64_t top_a = (int64_t)a[n - 1], top_b = (int64_t)b[n - 1];
    if (top_a != top_b) return top_a < top_b ? -1 : 1;
    return wide_compare(a, b, n - 1);
}

void wide_multiply(limb *out, int k, const limb *a, int n, const limb *b, int m) {
    memset(out, 0, (size_t)k * sizeof *out);
    for (int i = 0; i < n && i < k; i++) {
        limb carry = 0;
        for (int j = 0; i + j < k; j++) {
            limb factor = j < m ? b[j] : 0;
            if (j >= m && carry == 0) break;
            unsigned __int128 sum = (unsigned __int128)a[i] * factor + out[i + j] + carry;
            out[i + j] = (limb)sum;
            carry = (limb)(sum >> 64);
        }
    }
}

static int significant(const limb *a, int n) {
    while (n > 0 && a[n - 1] == 0) n--;
    return n;
}

// Schoolbook division in base 2^32 (Knuth, TAOCP 2, 4.3.1, algorithm D).
void wide_divide(limb *quotient, limb *remainder, const limb *a, int n, const limb *b, int m) {
    static _Thread_local uint32_t u[2 * WIDE_DIVISION_LIMBS + 1], v[2 * WIDE_DIVISION_LIMBS];
    if (quotient) memset(quotient, 0, (size_t)n * sizeof *quotient);
    if (remainder) memset(remainder, 0, (size_t)m * sizeof *remainder);
    int b_limbs = significant(b, m), a_limbs = significant(a, n);
    if (b_limbs == 0 || n > WIDE_DIVISION_LIMBS || m > WIDE_DIVISION_LIMBS) return;
    int digits = 2 * b_limbs - (b[b_limbs - 1] >> 32 == 0);
    int shift = __builtin_clz((uint32_t)(b[(digits - 1) / 2] >> (digits % 2 ? 0 : 32)));

    memset(u, 0, sizeof *u * (size_t)(2 * a_limbs + 1));
    for (int i = 0; i < 2 * a_limbs; i++) {
        uint64_t digit = (uint32_t)(a[i / 2] >> (i % 2 * 32));
        u[i] |= (uint32_t)(digit << shift);
        u[i + 1] = (uint32_t)(digit << shift >> 32);
    }
    for (int i = 0; i < digits; i++) {
        uint64_t digit = (uint32_t)(b[i / 2] >> (i % 2 * 32));
        uint32_t lower = i ? (uint32_t)(b[(i - 1) / 2] >> ((i - 1) % 2 * 32)) : 0;
        v[i] = (uint32_t)(digit << shift) | (shift ? lower >> (32 - shift) : 0);
    }
    for (int j = 2 * a_limbs - digits; j >= 0; j--) {
        uint64_t head = (uint64_t)u[j + digits] << 32 | u[j + digits - 1];
        uint64_t guess = head / v[digits - 1], rest = head % v[digits - 1];
        while (guess >> 32 ||
               (digits > 1 && guess * v[digits - 2] > (rest << 32 | u[j + digits - 2]))) {
            guess--;
            rest += v[digits - 1];
            if (rest >> 32) break;
        }
        int64_t borrow = 0;
        uint64_t carry = 0;
        for (int i = 0; i < digits; i++) {
            uint64_t product = guess * v[i] + carry;
            carry = product >> 32;
            int64_t difference = (int64_t)u[i + j] - borrow - (int64_t)(uint32_t)product;
            u[i + j] = (uint32_t)difference;
            borrow = difference < 0;
        }
        int64_t top = (int64_t)u[j + digits] - borrow - (int64_t)carry;
        u[j + digits] = (uint32_t)top;
        if (top < 0) { // the guess was one too large
            guess--;
            uint64_t again = 0;
            for (int i = 0; i < digits; i++) {
                again += (uint64_t)u[i + j] + v[i];
                u[i + j] = (uint32_t)again;
                again >>= 32;
            }
            u[j + digits] += (uint32_t)again;
        }
        if (quotient) quotient[j / 2] |= guess << (j % 2 * 32);
    }
    if (!remainder) return;
    for (int i = 0; i < digits && i <= 2 * a_limbs; i++) {
        uint64_t upper = i + 1 <= 2 * a_limbs && i + 1 <= digits ? u[i + 1] : 0;
        uint32_t digit = (uint32_t)(((upper << 32 | u[i]) >> shift));
        remainder[i / 2] |= (uint64_t)digit << (i % 2 * 32);
    }
}

int wide_format(char *out, int size, const limb *a, int n, int is_signed) {
    static _Thread_local limb value[WIDE_DIVISION_LIMBS], next[WIDE_DIVISION_LIMBS];
    static _Thread_local uint64_t parts[WIDE_DIVISION_LIMBS * 2];
    const limb base = 1000000000000000000u;
    int negative = is_signed && (int64_t)a[n - 1] < 0, count = 0;
    memcpy(value, a, (size_t)n * sizeof *value);
    if (negative) {
        limb carry = 1;
        for (int i = 0; i < n; i++) {
            value[i] = ~value[i] + carry;
            carry = carry && value[i] == 0;
        }
    }
    do {
        limb part;
        wide_divide(next, &part, value, n, &base, 1);
        memcpy(value, next, (size_t)n * sizeof *value);
        parts[count++] = part;
    } while (!wide_zero(value, n));
    int length = snprintf(out, (size_t)size, "%s%llu", negative ? "-" : "",
                          (unsigned long long)parts[count - 1]);
    for (int i = count - 2; i >= 0 && length < size - 1; i--)
        length += snprintf(out + length, (size_t)(size - length), "%018llu",
                           (unsigned long long)parts[i]);
    return length < size ? length : size - 1;
}
