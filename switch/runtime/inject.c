// SPDX-License-Identifier: Apache-2.0
//
// Packets in process: the simplest driver of a switch. Packets between ingress and egress wait in
// sw->fifo, which is empty again after each frame; outputs go to the caller's arrays (struct
// outlet).

#include "packets.h"

#define MOST_ROUNDS 65536

struct outlet {
    struct sw_output *outputs;
    size_t count, room;
    uint8_t *bytes;
    size_t used, bytes_room;
    int lost;
};

static void drain(struct sw *sw, struct outlet *to, uint64_t now_us) {
    uint8_t own[SW_MAX_FRAME];
    struct sw_packet *packet;
    while ((packet = ring_pop(&sw->fifo))) {
        uint32_t port = packet->port;
        uint8_t *frame = to->used + SW_MAX_FRAME <= to->bytes_room ? to->bytes + to->used : own;
        packet->deq_qdepth = (uint32_t)sw->fifo.count;
        size_t length = sw_egress(sw, packet, now_us, frame, SW_MAX_FRAME);
        if (!length) continue;
        if (to->count == to->room || to->used + length > to->bytes_room) {
            to->lost = 1;
            continue;
        }
        to->outputs[to->count++] = (struct sw_output){port, (uint32_t)length, to->used};
        if (frame == own) memcpy(to->bytes + to->used, frame, length);
        to->used += length;
    }
}

// The frame is valid until drain() has sent its packets, unless a traffic manager queues them.
static struct sw_frame frame_of(const struct sw *sw, const uint8_t *bytes, uint32_t length) {
    return (struct sw_frame){
        .bytes = (uint8_t *)bytes,
        .length = length,
        .sum_field = SW_COMPLETE,
        .lasting = !sw->enqueue,
    };
}

// Runs each step for all packets, so that their lookups wait for memory at the same time.
static void several(struct sw *sw, size_t count, const uint32_t *ports, const uint8_t *frames,
                    const uint64_t *offsets, const uint32_t *lengths, uint64_t now_us,
                    struct outlet *to) {
    struct sw_packet *packets[SW_AHEAD];
    for (size_t i = 0; i < count; i++) {
        struct sw_frame one = frame_of(sw, frames + offsets[i], lengths[i]);
        packets[i] = sw_arrive(sw, ports[i], &one, now_us);
    }
    for (size_t i = 0; i < count; i++)
        if (packets[i]) program_look_ahead(sw, packets[i]);
    for (size_t i = 0; i < count; i++)
        if (packets[i] && packets[i]->hint.waits) program_look_up(sw, packets[i]);
    for (size_t i = 0; i < count; i++) {
        struct sw_frame one = frame_of(sw, frames + offsets[i], lengths[i]);
        if (packets[i]) sw_ingress(sw, packets[i], &one, now_us);
        drain(sw, to, now_us);
    }
}

int sw_inject(struct sw *sw, size_t count, const uint32_t *ports, const uint8_t *frames,
              const uint64_t *offsets, const uint32_t *lengths, uint64_t now_us,
              struct sw_output *outputs, size_t max_outputs, uint8_t *bytes, size_t max_bytes,
              size_t *produced) {
    struct outlet to = {outputs, 0, max_outputs, bytes, 0, max_bytes, 0};
    int result = 0;
    sw_lock_control(sw);
    sw->injecting = 1;
    for (size_t i = 0, together; i < count; i += together) {
        together = sw->ahead < count - i ? sw->ahead : count - i;
        if (together > 1) {
            several(sw, together, ports + i, frames, offsets + i, lengths + i, now_us, &to);
            continue;
        }
        struct sw_frame one = frame_of(sw, frames + offsets[i], lengths[i]);
        sw_receive(sw, ports[i], &one, now_us);
        drain(sw, &to, now_us);
    }
    for (size_t rounds = 0; sw->again.head; rounds++) {
        if (rounds == MOST_ROUNDS) {
            struct sw_packet *packet;
            while ((packet = ring_pop(&sw->again))) sw_packet_free(sw, packet);
            result = SW_RANGE;
            break;
        }
        sw_recirculate(sw, now_us, 1);
        drain(sw, &to, now_us);
    }
    sw->injecting = 0;
    sw_unlock(sw);
    *produced = to.count;
    return to.lost ? SW_FULL : result;
}
