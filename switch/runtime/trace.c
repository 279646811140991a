// SPDX-License-Identifier: Apache-2.0
//
// Writes traces: see trace.h. struct sw_trace has the receiver, the line being built, the parser
// states of the present packet, and for each of the last ORIGINS frames the copies made of it.

#include "trace.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

#ifndef SW_TRACE

int sw_set_trace(struct sw *sw, sw_log_fn log, void *user) {
    (void)sw;
    (void)user;
    return log ? SW_NOT_FOUND : 0;
}

int sw_trace_to(struct sw *sw, int descriptor) {
    (void)sw;
    (void)descriptor;
    return SW_NOT_FOUND;
}

void sw_trace_free(struct sw *sw) { (void)sw; }

#else

#define LINE 8192
#define ORIGINS 65536 // frames whose copies are numbered uniquely

struct sw_trace {
    sw_log_fn log;
    void *user;
    uint64_t frames; // that have arrived
    uint32_t copies[ORIGINS];
    char line[LINE], states[LINE]; // being written; visited by the parser
    size_t length, states_length;
};

int sw_set_trace(struct sw *sw, sw_log_fn log, void *user) {
    struct sw_trace *made = sw->trace ? NULL : calloc(1, sizeof *made);
    if (!sw->trace && !made) return SW_NO_MEMORY;
    sw_lock_control(sw);
    if (made) sw->trace = made;
    sw->trace->log = log;
    sw->trace->user = user;
    sw_unlock(sw);
    return 0;
}

void sw_trace_free(struct sw *sw) { free(sw->trace); }

// Writes a line in the format of Python's logging. A line that cannot be written is lost.
static void write_line(void *user, const char *line) {
    static __thread time_t second;
    static __thread char stamp[32];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (now.tv_sec != second) {
        struct tm parts;
        second = now.tv_sec;
        strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&second, &parts));
    }
    char text[LINE + 64];
    int length = snprintf(text, sizeof text, "%s,%03ld DEBUG switch.trace: %s\n", stamp,
                          now.tv_nsec / 1000000, line);
    if (write((int)(intptr_t)user, text, (size_t)length) < 0) return;
}

int sw_trace_to(struct sw *sw, int descriptor) {
    return sw_set_trace(sw, write_line, (void *)(intptr_t)descriptor);
}

static struct sw_trace *listening(struct sw *sw) {
    return sw->trace && sw->trace->log ? sw->trace : NULL;
}

// ---------------------------------------------------------------------------------------------
// Lines

__attribute__((format(printf, 4, 0)))
static size_t append(char *to, size_t length, size_t room, const char *format, va_list arguments) {
    int count = vsnprintf(to + length, room - length, format, arguments);
    length += count > 0 ? (size_t)count : 0;
    return length < room ? length : room - 1;
}

void sw_trace_end(struct sw *sw) {
    struct sw_trace *trace = listening(sw);
    if (!trace || !trace->length) return;
    trace->length = 0;
    trace->log(trace->user, trace->line);
}

void sw_trace_say(struct sw *sw, const char *format, ...) {
    struct sw_trace *trace = listening(sw);
    if (!trace) return;
    va_list arguments;
    va_start(arguments, format);
    trace->length = append(trace->line, trace->length, LINE, format, arguments);
    va_end(arguments);
}

void sw_trace_begin(struct sw *sw, const struct sw_packet *packet, const char *text) {
    sw_trace_end(sw);
    sw_trace_say(sw, "packet %llu.%u: %s", (unsigned long long)packet->trace_origin,
                 packet->trace_copy, text);
}

void sw_trace_tell(struct sw *sw, const struct sw_packet *packet, const char *format, ...) {
    struct sw_trace *trace = listening(sw);
    if (!trace) return;
    sw_trace_begin(sw, packet, "");
    va_list arguments;
    va_start(arguments, format);
    trace->length = append(trace->line, trace->length, LINE, format, arguments);
    va_end(arguments);
    sw_trace_end(sw);
}

void sw_trace_value(struct sw *sw, const uint64_t *words, uint32_t bits) {
    int at = (int)(bits + 63) / 64 - 1;
    while (at > 0 && !words[at]) at--;
    sw_trace_say(sw, "0x%llx", (unsigned long long)words[at]);
    while (at-- > 0) sw_trace_say(sw, "%016llx", (unsigned long long)words[at]);
}

// ---------------------------------------------------------------------------------------------
// Packets

void sw_trace_arrive(struct sw *sw, struct sw_packet *packet, uint32_t port, uint32_t length) {
    struct sw_trace *trace = listening(sw);
    if (!trace) return;
    packet->trace_origin = ++trace->frames;
    trace->copies[packet->trace_origin % ORIGINS] = 0;
    sw_trace_tell(sw, packet, "arrives on port %u, %u bytes", port, length);
}

void sw_trace_copy(struct sw *sw, struct sw_packet *copy, const struct sw_packet *packet) {
    struct sw_trace *trace = listening(sw);
    if (!trace) return;
    copy->trace_origin = packet->trace_origin;
    copy->trace_copy = ++trace->copies[packet->trace_origin % ORIGINS];
}

void sw_trace_state(struct sw *sw, const char *name) {
    struct sw_trace *trace = listening(sw);
    if (!trace) return;
    int count = snprintf(trace->states + trace->states_length, LINE - trace->states_length, "%s%s",
                         trace->states_length ? ", " : "", name);
    trace->states_length += count > 0 ? (size_t)count : 0;
    if (trace->states_length >= LINE) trace->states_length = LINE - 1;
}

void sw_trace_parsed(struct sw *sw, const struct sw_packet *packet, size_t bytes, uint32_t error,
                     const char *const *errors, uint32_t error_count) {
    struct sw_trace *trace = listening(sw);
    if (!trace) return;
    sw_trace_begin(sw, packet, "parser: ");
    sw_trace_say(sw, "%s; %zu bytes", trace->states_length ? trace->states : "no state", bytes);
    trace->states_length = 0;
    trace->states[0] = 0;
    if (error) {
        const char *name = error < error_count ? errors[error] : NULL;
        sw_trace_say(sw, "; error %s", name ? name : "without a name");
    }
    sw_trace_end(sw);
}

// ---------------------------------------------------------------------------------------------
// Tables

static void say_field(struct sw *sw, const struct sw_trace_field *field, const uint64_t *words) {
    uint64_t one = words[field->word] >> field->shift;
    if (field->bits < 64) one &= (1ull << field->bits) - 1;
    sw_trace_value(sw, field->bits <= 64 ? &one : words + field->word, field->bits);
}

static uint32_t ones(const struct sw_trace_field *field, const uint64_t *words) {
    uint32_t count = 0;
    for (uint32_t bit = 0; bit < field->bits; bit++) {
        uint32_t at = field->shift + bit;
        count += words[field->word + at / 64] >> at % 64 & 1;
    }
    return count;
}

// Says the value that an entry matches.
static void say_wanted(struct sw *sw, const struct sw_table *table,
                       const struct sw_trace_field *field, const struct sw_entry *entry) {
    const uint64_t *mask = sw_words_of_mask(table, entry->mask);
    if (field->match == SW_WITHIN) {
        const uint64_t *low = entry->words + table->spec->key_words + field->word;
        sw_trace_value(sw, low, 64);
        sw_trace_say(sw, "..");
        sw_trace_value(sw, low + table->spec->ranges, 64);
        return;
    }
    say_field(sw, field, entry->words);
    if (field->match == SW_LPM) sw_trace_say(sw, "/%u", ones(field, mask));
    if (field->match != SW_TERNARY) return;
    sw_trace_say(sw, " &&& ");
    say_field(sw, field, mask);
}

void sw_trace_lookup(struct sw *sw, const struct sw_packet *packet, const struct sw_table *table,
                     const struct sw_trace_field *fields, uint32_t count, const uint64_t *key,
                     const struct sw_entry *entry, int hit) {
    if (!listening(sw)) return;
    sw_trace_begin(sw, packet, "table ");
    sw_trace_say(sw, "%s", table->spec->name);
    for (uint32_t i = 0; key && i < count; i++) {
        sw_trace_say(sw, "%s%s = ", i ? ", " : " [", fields[i].name);
        if (fields[i].match == SW_WITHIN)
            sw_trace_value(sw, key + table->spec->key_words + fields[i].word, 64);
        else
            say_field(sw, &fields[i], key);
    }
    if (key) sw_trace_say(sw, "]");
    if (!hit) {
        sw_trace_say(sw, "%s", key ? ": misses" : "");
        return;
    }
    uint32_t number = sw_number_of(table, entry);
    sw_trace_say(sw, ": hits handle %lld [", (long long)sw_handle_of(table, number));
    int ranked = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i) sw_trace_say(sw, ", ");
        say_wanted(sw, table, &fields[i], entry);
        ranked |= fields[i].match == SW_TERNARY || fields[i].match == SW_WITHIN;
    }
    sw_trace_say(sw, "]");
    if (ranked) sw_trace_say(sw, ", priority %d", entry->priority);
}

void sw_trace_action(struct sw *sw, const char *name, const struct sw_trace_field *parameters,
                     uint32_t count, const uint64_t *arguments) {
    if (!listening(sw)) return;
    sw_trace_say(sw, ": %s(", name);
    for (uint32_t i = 0; i < count; i++) {
        sw_trace_say(sw, "%s%s = ", i ? ", " : "", parameters[i].name);
        say_field(sw, &parameters[i], arguments);
    }
    sw_trace_say(sw, ")");
    sw_trace_end(sw);
}

#endif
