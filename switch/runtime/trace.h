// SPDX-License-Identifier: Apache-2.0
//
// Traces every step of packets as text, in programs compiled with -DSW_TRACE; otherwise all of it
// compiles to nothing. A packet is named ORIGIN.COPY: the number of the frame that it came in, and
// 0 or the number of its copy.
//
// A line is built in parts (sw_trace_begin, _say, _value, _end) in one buffer per switch, under its
// lock; beginning a line ends the one before. SW_GONE is the last line of a packet: it sets
// trace_over, so that sw_packet_free does not report another drop.

#ifndef RACKHUB_TRACE_H
#define RACKHUB_TRACE_H

#include "target.h"

#ifdef SW_TRACE
#define SW_ARRIVES(sw, packet, port, length) sw_trace_arrive(sw, packet, port, length)
#define SW_COPIED_FROM(sw, copy, packet) sw_trace_copy(sw, copy, packet)
#define SW_TELL(sw, packet, ...) sw_trace_tell(sw, packet, __VA_ARGS__)
// The last line of a packet.
#define SW_GONE(sw, packet, ...) \
    (sw_trace_tell(sw, packet, __VA_ARGS__), (void)((packet)->trace_over = 1))
#else
#define SW_ARRIVES(sw, packet, port, length) ((void)0)
#define SW_COPIED_FROM(sw, copy, packet) ((void)0)
#define SW_TELL(sw, packet, ...) ((void)0)
#define SW_GONE(sw, packet, ...) ((void)0)
#endif

struct sw_entry;

void sw_trace_free(struct sw *sw);

#ifdef SW_TRACE

void sw_trace_arrive(struct sw *sw, struct sw_packet *packet, uint32_t port, uint32_t length);
void sw_trace_copy(struct sw *sw, struct sw_packet *copy, const struct sw_packet *packet);
void sw_trace_tell(struct sw *sw, const struct sw_packet *packet, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

// A line in parts; the next line ends it, too.
void sw_trace_begin(struct sw *sw, const struct sw_packet *packet, const char *text);
void sw_trace_say(struct sw *sw, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sw_trace_value(struct sw *sw, const uint64_t *words, uint32_t bits);
void sw_trace_end(struct sw *sw);

// The parser enters a state; the parser ends.
void sw_trace_state(struct sw *sw, const char *name);
void sw_trace_parsed(struct sw *sw, const struct sw_packet *packet, size_t bytes, uint32_t error,
                     const char *const *errors, uint32_t error_count);

// Match kind of a key field; SW_EXACT for a parameter of an action.
enum sw_match { SW_EXACT, SW_LPM, SW_TERNARY, SW_WITHIN };

// Bits shift .. shift + bits of a key's word, or all words from it on for a wide field; for
// SW_WITHIN, word is the number of the range.
struct sw_trace_field {
    const char *name;
    enum sw_match match;
    uint32_t word, shift, bits;
};

// Begins a line: the lookup and its result. key: NULL if the table has none.
void sw_trace_lookup(struct sw *sw, const struct sw_packet *packet, const struct sw_table *table,
                     const struct sw_trace_field *fields, uint32_t count, const uint64_t *key,
                     const struct sw_entry *entry, int hit);
// Ends it: the action and its arguments.
void sw_trace_action(struct sw *sw, const char *name, const struct sw_trace_field *parameters,
                     uint32_t count, const uint64_t *arguments);

#endif

#endif
