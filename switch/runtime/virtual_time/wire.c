// SPDX-License-Identifier: Apache-2.0
//
// Packets in flight between two switches: see wire.h.

#include "wire.h"

#include <string.h>

#include "grow.h"

enum { FIRST_ROOM = 64 }; // packets

struct wire *wire_create(struct timed *to, uint32_t port, int64_t delay, uint64_t rank) {
    struct wire *wire = calloc(1, sizeof *wire);
    if (wire)
        *wire = (struct wire){.to = to, .port = port, .delay = delay, .rank = rank};
    return wire;
}

void wire_destroy(struct wire *wire) {
    if (!wire)
        return;
    free(wire->flying);
    free(wire->frames);
    free(wire);
}

bool wire_room(struct wire *wire) {
    if (wire->first == wire->end)
        wire->first = wire->end = wire->start = wire->stop = 0;
    if (wire->end == wire->room || wire->stop + SW_MAX_FRAME > wire->frames_room) {
        // Reclaims the room of taken packets, if that is worth it.
        if (wire->first > wire->end / 2) {
            memmove(wire->flying, wire->flying + wire->first,
                    (wire->end - wire->first) * sizeof *wire->flying);
            memmove(wire->frames, wire->frames + wire->start, wire->stop - wire->start);
            wire->end -= wire->first;
            wire->stop -= wire->start;
            wire->first = wire->start = 0;
        }
    }
    if (wire->end == wire->room) {
        uint64_t room = wire->room ? 2 * wire->room : FIRST_ROOM;
        if (!grow((void **)&wire->flying, sizeof *wire->flying, room))
            return false;
        wire->room = room;
    }
    if (wire->stop + SW_MAX_FRAME > wire->frames_room) {
        uint64_t room = 2 * wire->frames_room + SW_MAX_FRAME;
        if (!grow((void **)&wire->frames, 1, room))
            return false;
        wire->frames_room = room;
    }
    return true;
}
