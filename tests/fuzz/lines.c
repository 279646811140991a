// SPDX-License-Identifier: Apache-2.0
#include "lines.h"

#include <linux/if_ether.h>
#include <stdlib.h>
#include <string.h>

#include "packet_checksums.h"
#include "kernel.h"

// What is nearly due is not waited for (forward.c).
enum { EARLY_NS = 50000, TAG = 4 };

struct packet {
    struct packet *next;
    uint64_t ready_ns; // all of it is there, if nothing was lost before
    size_t length;
    uint8_t bytes[];
};

static struct line {
    uint64_t rate, free_ns;
    struct packet *first, **last;
    uint64_t missed, lost; // packets that have not come where later ones did; of `lost` up to now
} lines[WIRES];

static void pop(struct line *line) {
    struct packet *first = line->first;
    line->first = first->next;
    if (!line->first)
        line->last = &line->first;
    free(first);
}

void lines_set(uint32_t wire, uint64_t rate) {
    lines[wire] = (struct line){.rate = rate, .last = &lines[wire].first};
}

void lines_forget(void) {
    for (uint32_t wire = 0; wire < WIRES; wire++)
        while (lines[wire].first)
            pop(&lines[wire]);
}

static void expect(struct line *line, const uint8_t *packet, size_t length, uint64_t now_ns) {
    struct packet *made = malloc(sizeof *made + length);
    if (!made)
        wrong("no memory");
    // What is behind others begins when they have ended, even if nothing looked then.
    if (!line->first && line->free_ns < now_ns)
        line->free_ns = now_ns;
    line->free_ns += (length * 8 * 1000000000 + line->rate - 1) / line->rate;
    *made = (struct packet){.ready_ns = line->free_ns, .length = length};
    memcpy(made->bytes, packet, length);
    *line->last = made;
    line->last = &made->next;
}

void lines_arrive(uint32_t wire, const struct offload_header *header, const uint8_t *bytes,
                  size_t length, int tag, uint64_t now_ns) {
    struct line *line = &lines[wire];
    if (!line->rate || !length)
        return;
    struct offload_header own = *header;
    uint8_t *frame = malloc(length + TAG);
    if (!frame)
        wrong("no memory");
    if (tag >= 0 && length >= 12) {
        memcpy(frame, bytes, 12);
        store16(frame + 12, tag & 1 ? ETH_P_8021AD : ETH_P_8021Q);
        store16(frame + 14, (uint16_t)tag);
        memcpy(frame + 16, bytes + 12, length - 12);
        length += TAG;
        if (own.flags & OFFLOAD_NEEDS_CSUM)
            own.csum_start = (uint16_t)(own.csum_start + TAG);
    } else {
        memcpy(frame, bytes, length);
    }
    struct segments segments;
    uint8_t *packet;
    size_t size;
    if (segments_open(&segments, &own, frame, length))
        while ((size = segments_next(&segments, &packet))) {
            if (size > SW_MAX_FRAME) // refused at once
                continue;
            if (segments.sum_field != SW_COMPLETE)
                complete_sum(packet, size, segments.sum_start, segments.sum_field);
            expect(line, packet, size, now_ns);
        }
    free(frame);
}

void lines_come(uint32_t wire, const uint8_t *packet, size_t length, uint64_t now_ns,
                uint64_t lost) {
    struct line *line = &lines[wire];
    if (!line->rate || length > SW_MAX_FRAME)
        return;
    while (line->first && (line->first->length != length ||
                           memcmp(line->first->bytes, packet, length) != 0)) {
        pop(line);
        line->missed++;
    }
    if (!line->first || line->missed > lost - line->lost)
        wrong("wire %u: a packet of %zu bytes that did not arrive, or not then", wire, length);
    if (lost == line->lost && line->first->ready_ns > now_ns + EARLY_NS)
        wrong("wire %u: a packet of %zu bytes %lu ns too early", wire, length,
              (unsigned long)(line->first->ready_ns - now_ns));
    pop(line);
}

void lines_done(uint32_t wire, uint64_t lost) {
    struct line *line = &lines[wire];
    if (!line->rate)
        return;
    for (; line->first; line->missed++)
        pop(line);
    if (line->missed > lost - line->lost)
        wrong("wire %u: %lu packets have not come, %lu are counted", wire,
              (unsigned long)line->missed, (unsigned long)(lost - line->lost));
    line->missed = 0;
    line->lost = lost;
}
