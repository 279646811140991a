// SPDX-License-Identifier: Apache-2.0
//
// The departures of one port in one call: see departures.h.

#include "departures.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "grow.h"

enum { FIRST_ROOM = 64 }; // packets

// Bytes that all ports of this process hold. Memory that is kept is not cleared by the kernel again;
// but of thousands of ports each would keep as much as it ever sent at once.
static _Atomic uint64_t held;
enum { MOST_HELD = 256 << 20 };
enum { GIVEN = 256 << 10 }; // bytes that are cheaper to give, in new memory, than to copy

static uint64_t size_of(const struct departed *departed) {
    uint64_t packet = 3 * sizeof(int64_t) + sizeof(uint32_t) + 1;
    packet += departed->watched ? sizeof(int64_t) : 0;
    return departed->room * packet + departed->frames_room;
}

void departed_forget(struct departed *departed) {
    departed->count = departed->kept = departed->bytes = 0;
    departed->most = 0;
    departed->least = UINT32_MAX;
}

void departed_clear(struct departed *departed) {
    held -= size_of(departed);
    free(departed->ends);
    free(departed->lengths);
    free(departed->inputs);
    free(departed->came);
    free(departed->stored);
    free(departed->priorities);
    free(departed->frames);
    *departed = (struct departed){
        .watched = departed->watched, .given = departed->given, .least = UINT32_MAX};
}

void departed_spare(struct departed *departed) {
    departed_forget(departed);
    if (held > MOST_HELD)
        departed_clear(departed);
}

bool departed_room(struct departed *departed) {
    if (departed->count == departed->room) {
        uint64_t room = departed->room ? 2 * departed->room : FIRST_ROOM;
        if (!grow((void **)&departed->ends, sizeof *departed->ends, room) ||
            !grow((void **)&departed->lengths, sizeof *departed->lengths, room) ||
            !grow((void **)&departed->inputs, sizeof *departed->inputs, room) ||
            (departed->watched && !grow((void **)&departed->came, sizeof *departed->came, room)) ||
            !grow((void **)&departed->stored, sizeof *departed->stored, room) ||
            !grow((void **)&departed->priorities, sizeof *departed->priorities, room))
            return false;
        held -= size_of(departed);
        departed->room = room;
        held += size_of(departed);
    }
    if (departed->kept + SW_MAX_FRAME > departed->frames_room) {
        uint64_t room = 2 * departed->frames_room + SW_MAX_FRAME;
        if (room < departed->given + SW_MAX_FRAME) // mostly it is as much again
            room = departed->given + SW_MAX_FRAME;
        if (!grow((void **)&departed->frames, 1, room))
            return false;
        held += room - departed->frames_room;
        departed->frames_room = room;
    }
    return true;
}

void departed_add(struct departed *departed, const struct departure *one) {
    uint64_t n = departed->count++;
    departed->ends[n] = one->end;
    departed->inputs[n] = one->input;
    departed->lengths[n] = (int64_t)one->length;
    departed->priorities[n] = one->priority;
    departed->stored[n] = one->stored;
    if (departed->watched)
        departed->came[n] = one->came;
    departed->most = one->stored > departed->most ? one->stored : departed->most;
    departed->least = one->stored < departed->least ? one->stored : departed->least;
    departed->kept += one->stored;
    departed->bytes += one->length;
}

void departed_copy(const struct departed *departed, const struct timed_departures *into,
                   uint64_t at) {
    uint64_t n = departed->count;
    memcpy(into->ends + at, departed->ends, n * sizeof *departed->ends);
    memcpy(into->lengths + at, departed->lengths, n * sizeof *departed->lengths);
    memcpy(into->inputs + at, departed->inputs, n * sizeof *departed->inputs);
    if (departed->watched)
        memcpy(into->came + at, departed->came, n * sizeof *departed->came);
    memcpy(into->priorities + at, departed->priorities, n * sizeof *departed->priorities);
}

bool departed_gives(const struct departed *departed) {
    return departed->most == departed->least && departed->kept >= GIVEN;
}

void departed_copy_frames(const struct departed *departed, uint8_t *rows) {
    const uint8_t *frame = departed->frames;
    if (departed->most == departed->least) {
        memcpy(rows, frame, departed->kept);
        return;
    }
    for (uint64_t i = 0; i < departed->count; i++) {
        uint32_t stored = departed->stored[i];
        memcpy(rows, frame, stored);
        memset(rows + stored, 0, departed->most - stored);
        rows += departed->most;
        frame += stored;
    }
}

uint8_t *departed_give(struct departed *departed) {
    uint8_t *frames = departed->frames;
    held -= departed->frames_room;
    departed->given = departed->kept;
    departed->frames = NULL;
    departed->frames_room = 0;
    return frames;
}
