// SPDX-License-Identifier: Apache-2.0
//
// A fuzzer's input as a source of choices, and findings: of harnesses of hosts' C code, which define
// SUBJECT, their name.
#ifndef RACKHUB_FUZZ_DRAWN_H
#define RACKHUB_FUZZ_DRAWN_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const uint8_t *input;
static size_t remaining;

// Returns the next byte of the input modulo `below`; 0 at its end.
static int64_t draw(int64_t below) {
    if (!remaining)
        return 0;
    remaining--;
    return *input++ % below;
}

__attribute__((noreturn, format(printf, 1, 2))) static void wrong(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs(SUBJECT ": ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

#define must(holds, ...) ((holds) ? (void)0 : wrong(__VA_ARGS__))

// Allocates just these bytes, so that the sanitizer sees any access beyond them.
static void *exact(size_t size) {
    void *made = malloc(size ? size : 1);
    must(made, "no memory");
    return made;
}

#endif
