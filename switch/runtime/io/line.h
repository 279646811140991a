// SPDX-License-Identifier: Apache-2.0
//
// One direction of a link in virtual time: a rate, and a bounded queue in front of it, first in
// first out. Nothing here reads a clock. A queue holds what waits, not what is being sent.
//
// Times are picoseconds and exact: when a packet has left follows from all the bytes since the line
// was last idle, in parts of a picosecond where a byte does not take whole ones. So they do not
// depend on how packets come together in calls.

#ifndef RACKHUB_LINE_H
#define RACKHUB_LINE_H

#include <stdbool.h>
#include <stdint.h>

// A byte takes parts / whole ps (parts 0: no time), each frame `overhead` bytes more, and at least
// `least` in all but that. limit: bytes of frames that may wait. longest: bytes of a frame.
struct line_options {
    uint64_t parts, whole;
    uint64_t overhead, least, longest;
    uint64_t limit;
};

struct line_counters {
    uint64_t dropped, dropped_bytes; // the queue was full
    uint64_t oversized;
    uint64_t queue_most; // bytes that waited at once, with what came last
};

struct line_waiting {
    int64_t start;
    uint64_t size;
};

struct line {
    struct line_options options;
    struct line_counters counters;
    int64_t free;  // when all that was taken has left ..
    uint64_t rest; // .. and this many 1 / whole ps
    int64_t last;  // when the last packet came
    struct line_waiting *waiting; // a ring, room a power of two
    uint32_t first, count, room;
    uint64_t held; // bytes in it
};

void line_init(struct line *line, const struct line_options *options);
void line_clear(struct line *line);

// A packet of `size` bytes comes at a time that is no earlier than the last one's. 1: it may leave
// from *start on; 0: the queue is full; SW_NO_MEMORY.
int line_wait(struct line *line, int64_t at, uint64_t size, int64_t *start);
// The packet for which line_wait was called last does leave, with so many bytes. Returns those that
// it takes on the wire.
uint64_t line_occupy(struct line *line, uint64_t length);

// For Python

struct line *line_create(const struct line_options *options);
void line_destroy(struct line *line);
void line_read(const struct line *line, struct line_counters *counters);

// n packets of a train. mark_above: mark what finds more bytes waiting, UINT64_MAX: nothing.
struct line_offer {
    uint64_t n, stored, mark_above;
    const int64_t *times, *lengths;
    // Of the `kept` packets that leave: when the last bit does, which they are, 1 if marked.
    int64_t *ends;
    int64_t *rows;
    uint8_t *marks;
    uint64_t kept, bytes, wire, marked;
    int64_t free; // when the line is
};

enum line_error {
    LINE_UNORDERED = -10, // times go back within the train
    LINE_LATE = -11,      // it begins before the end of the one before
    LINE_SHORT = -12,     // a frame is shorter than what is stored of it, or than a header
};

// 0, or an error and nothing was taken, or SW_NO_MEMORY.
int line_offer(struct line *line, struct line_offer *offer);

// Bytes that wait at a time no earlier than the last packet's.
uint64_t line_held(const struct line *line, int64_t at);
// The earliest time at which no more than so many bytes wait, if nothing else comes.
int64_t line_drained(const struct line *line, uint64_t most);

#endif
