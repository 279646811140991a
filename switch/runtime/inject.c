// SPDX-License-Identifier: Apache-2.0
//
// Packets in process: the simplest driver of a switch.

#include "flow.h"

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

// The frame stays until drain() has sent what comes of it, unless somebody else queues that.
static void arrive(struct sw *sw, uint32_t port, const uint8_t *frame, uint32_t length,
                   uint64_t now_us) {
    struct sw_frame one = {
        .bytes = (uint8_t *)frame,
        .length = length,
        .sum_field = SW_COMPLETE,
        .lasting = !sw->enqueue,
    };
    sw_receive(sw, port, &one, now_us);
}

int sw_inject(struct sw *sw, size_t count, const uint32_t *ports, const uint8_t *frames,
              const uint64_t *offsets, const uint32_t *lengths, uint64_t now_us,
              struct sw_output *outputs, size_t max_outputs, uint8_t *bytes, size_t max_bytes,
              size_t *produced) {
    struct outlet to = {outputs, 0, max_outputs, bytes, 0, max_bytes, 0};
    int result = 0;
    sw_lock_control(sw);
    sw->injecting = 1;
    for (size_t i = 0; i < count; i++) {
        arrive(sw, ports[i], frames + offsets[i], lengths[i], now_us);
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
