// SPDX-License-Identifier: Apache-2.0
//
// One direction of a link in virtual time: a rate, and a bounded FIFO queue in front of it. No
// clock is read. A queue holds waiting packets, not the one being sent.
//
// Times are picoseconds and exact: a departure follows from all the bytes since the line was last
// idle, with the fraction of a picosecond in `rest`. So times do not depend on how packets are
// divided among calls.
//
// `waiting` is a ring of (start of transmission, size) in order of start, which is all that is
// needed to know the queue's content at a later time; entries are removed when their start is past.
// Invariants: held = sum of their sizes <= limit; times of line_wait do not decrease.
//
// A line may change its rate: a packet takes the rate of the time at which it begins to leave, rounded
// down to a picosecond. `changes` are in order of time; those before change_next have happened.

#ifndef RACKHUB_LINE_H
#define RACKHUB_LINE_H

#include <stdbool.h>
#include <stdint.h>

// A byte takes parts / whole ps (parts 0: no time); each frame has `overhead` bytes more, and
// counts as `least` bytes at least without these. limit: bytes of frames that may wait. longest:
// bytes of a frame. exact: a packet waits until its start has passed to the fraction of a picosecond,
// as with priorities; else to its whole.
struct line_options {
    uint64_t parts, whole;
    uint64_t overhead, least, longest;
    uint64_t limit;
    uint64_t exact;
};

struct line_counters {
    uint64_t dropped, dropped_bytes; // the queue was full
    uint64_t oversized;
    uint64_t queue_most; // most bytes that waited at once, the last arrival included
};

struct line_waiting {
    int64_t start;
    uint64_t size;
};

// A byte takes parts / whole ps from a time on.
struct line_change {
    int64_t at;
    uint64_t parts, whole;
};

struct line {
    struct line_options options; // with the rate of the last packet
    struct line_counters counters;
    int64_t free;  // when all accepted packets have left ..
    uint64_t rest; // .. plus this many 1 / whole ps
    int64_t last;  // arrival of the last packet
    struct line_waiting *waiting; // a ring, room a power of two
    uint32_t first, count, room;
    uint64_t held; // bytes in it
    struct line_change *changes;
    uint32_t change_count, change_next;
};

void line_init(struct line *line, const struct line_options *options);
void line_clear(struct line *line);

// Offers a packet of `size` bytes at a time not before the last one's. 1: it may leave from *start
// on; 0: the queue is full; SW_NO_MEMORY.
int line_wait(struct line *line, int64_t at, uint64_t size, int64_t *start);
// Sends the packet of the last line_wait with this many bytes. Returns its bytes on the wire.
uint64_t line_occupy(struct line *line, uint64_t length);

// Replaces the changes that have not happened by `count` others, in order of time. 0, or SW_NO_MEMORY.
int line_change(struct line *line, const struct line_change *changes, uint64_t count);

// For Python

struct line *line_create(const struct line_options *options);
void line_destroy(struct line *line);
void line_read(const struct line *line, struct line_counters *counters);

// n packets of a train. mark_above: marks packets that find more bytes waiting; UINT64_MAX: none.
struct line_offer {
    uint64_t n, stored, mark_above;
    const int64_t *times, *lengths;
    // For the `kept` packets that leave: end of transmission, index, 1 if marked.
    int64_t *ends;
    int64_t *rows;
    uint8_t *marks;
    uint64_t kept, bytes, wire, marked;
    int64_t free; // when the line is
};

enum line_error {
    LINE_UNORDERED = -10, // times decrease within the train
    LINE_LATE = -11,      // it begins before the last one's end
    LINE_SHORT = -12,     // a frame is shorter than what is stored of it, or than a header
};

// 0, or an error (nothing was accepted), or SW_NO_MEMORY.
int line_offer(struct line *line, struct line_offer *offer);

// Returns the bytes that wait at a time not before the last packet's.
uint64_t line_held(const struct line *line, int64_t at);
// Returns the earliest time at which at most `most` bytes wait if no packet arrives.
int64_t line_drained(const struct line *line, uint64_t most);

#endif
