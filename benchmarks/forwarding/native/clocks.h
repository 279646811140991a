// SPDX-License-Identifier: Apache-2.0
//
// Clocks: the monotonic time, and the calling thread's kernel and waiting time.
#ifndef BENCH_CLOCKS_H
#define BENCH_CLOCKS_H

#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

static inline int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static inline double kernel_seconds(void) {
    struct rusage usage = {0};
    getrusage(RUSAGE_THREAD, &usage);
    return (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec / 1e6;
}

// Seconds that this thread was runnable but not running (second field of schedstat).
static inline double waited_seconds(void) {
    unsigned long long waited = 0;
    FILE *file = fopen("/proc/thread-self/schedstat", "re");
    if (file) {
        if (fscanf(file, "%*u %llu", &waited) != 1)
            waited = 0;
        fclose(file);
    }
    return (double)waited / 1e9;
}

#endif
