// SPDX-License-Identifier: Apache-2.0
//
// What becomes of every packet, in words: of programs compiled with -DSW_TRACE, and for all others
// nothing at all. A packet is told of as ORIGIN.COPY: the number of the frame that it came in, and
// 0, or which copy of it.

#ifndef RACKHUB_TRACE_H
#define RACKHUB_TRACE_H

#include "target.h"

#ifdef SW_TRACE
#define SW_ARRIVES(sw, packet, port, length) sw_trace_arrive(sw, packet, port, length)
#define SW_COPIED_FROM(sw, copy, packet) sw_trace_copy(sw, copy, packet)
#define SW_TELL(sw, packet, ...) sw_trace_tell(sw, packet, __VA_ARGS__)
// The last that is told of it.
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

// A line in parts, each behind the ones before; what is told next ends it, too.
void sw_trace_begin(struct sw *sw, const struct sw_packet *packet, const char *text);
void sw_trace_say(struct sw *sw, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sw_trace_value(struct sw *sw, const uint64_t *words, uint32_t bits);
void sw_trace_end(struct sw *sw);

// The parser is in a state; it has come to its end.
void sw_trace_state(struct sw *sw, const char *name);
void sw_trace_parsed(struct sw *sw, const struct sw_packet *packet, size_t bytes, uint32_t error,
                     const char *const *errors, uint32_t error_count);

// How a key field is matched; or a parameter of an action (exact).
enum sw_match { SW_EXACT, SW_LPM, SW_TERNARY, SW_WITHIN };

// Bits `shift` to shift + bits of a key's word, or all words from it on that a wide one takes; of
// SW_WITHIN, the number of the range.
struct sw_trace_field {
    const char *name;
    enum sw_match match;
    uint32_t word, shift, bits;
};

// A line begins: what was looked up, and what it hit. key: NULL if the table has none.
void sw_trace_lookup(struct sw *sw, const struct sw_packet *packet, const struct sw_table *table,
                     const struct sw_trace_field *fields, uint32_t count, const uint64_t *key,
                     const struct sw_entry *entry, int hit);
// And ends: the action and its arguments.
void sw_trace_action(struct sw *sw, const char *name, const struct sw_trace_field *parameters,
                     uint32_t count, const uint64_t *arguments);

#endif

#endif
