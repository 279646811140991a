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
    free(wire->flight.flying);
    free(wire->flight.frames);
    free(wire->leaving.flying);
    free(wire->leaving.frames);
    free(wire);
}

// Room for so many more packets and bytes.
static bool flight_room(struct flight *flight, uint64_t packets, uint64_t bytes) {
    if (flight->first == flight->end)
        flight->first = flight->end = flight->start = flight->stop = 0;
    if (flight->end + packets > flight->room || flight->stop + bytes > flight->frames_room) {
        // Reclaims the room of taken packets, if that is worth it.
        if (flight->first > flight->end / 2) {
            memmove(flight->flying, flight->flying + flight->first,
                    (flight->end - flight->first) * sizeof *flight->flying);
            memmove(flight->frames, flight->frames + flight->start, flight->stop - flight->start);
            flight->end -= flight->first;
            flight->stop -= flight->start;
            flight->first = flight->start = 0;
        }
    }
    if (flight->end + packets > flight->room) {
        uint64_t room = 2 * flight->room + packets + FIRST_ROOM;
        if (!grow((void **)&flight->flying, sizeof *flight->flying, room))
            return false;
        flight->room = room;
    }
    if (flight->stop + bytes > flight->frames_room) {
        uint64_t room = 2 * flight->frames_room + bytes;
        if (!grow((void **)&flight->frames, 1, room))
            return false;
        flight->frames_room = room;
    }
    return true;
}

bool wire_room(struct wire *wire) {
    return flight_room(&wire->leaving, 1, SW_MAX_FRAME);
}

bool wire_join(struct wire *wire) {
    struct flight *flight = &wire->flight, *leaving = &wire->leaving;
    if (flight->first == flight->end) {
        struct flight taken = *flight;
        *flight = *leaving;
        *leaving = taken;
    } else {
        if (!flight_room(flight, leaving->end, leaving->stop))
            return false;
        memcpy(flight->flying + flight->end, leaving->flying,
               leaving->end * sizeof *leaving->flying);
        memcpy(flight->frames + flight->stop, leaving->frames, leaving->stop);
        flight->end += leaving->end;
        flight->stop += leaving->stop;
    }
    leaving->first = leaving->end = leaving->start = leaving->stop = 0;
    return true;
}
