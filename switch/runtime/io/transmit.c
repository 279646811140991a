// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "transmit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

// In front of each packet: its frame's offload header.
enum { ROOM_BEFORE = 64, HEADER = sizeof(struct offload_header) };

int transmit_init(struct transmit *t, bool join, size_t train_limit) {
    memset(t, 0, sizeof *t);
    t->join = join;
    t->train_limit = train_limit;
    t->largest = SW_MAX_FRAME;
    t->bytes = malloc(TRANSMIT_BYTES + ROOM_BEFORE + SW_MAX_FRAME);
    return t->bytes ? 0 : -ENOMEM;
}

void transmit_destroy(struct transmit *t) {
    free(t->bytes);
    t->bytes = NULL;
}

uint8_t *transmit_room(struct transmit *t) {
    if (t->packet_count == TRANSMIT_PACKETS || t->used > TRANSMIT_BYTES)
        return NULL;
    return t->bytes + t->used + ROOM_BEFORE;
}

static struct transmit_frame *add_frame(struct transmit *t, uint32_t packet) {
    struct transmit_frame *frame = &t->frames[t->frame_count++];
    frame->first = packet;
    frame->count = 1;
    frame->closed = false;
    frame->train.count = 0;
    return frame;
}

// Less than this in memory of its own is not worth referring to.
enum { LEAST_REST = 192, LEAST_PIECE = 2048 };

// How many bytes of the rest belong to the first piece: what would not last, as many headers as
// trains look at, all if little is left or a checksum cannot be completed otherwise.
static uint32_t head_lacks(const struct outgoing *packet, uint32_t fragile) {
    uint32_t head = packet->length - packet->rest_length;
    uint32_t count = head < HEAD_BYTES ? HEAD_BYTES - head : 0;
    if (count < fragile)
        count = fragile;
    count += (head + count) & 1;
    if (count + LEAST_REST > packet->rest_length)
        return packet->rest_length;
    head += count;
    if (packet->sum_field != SW_COMPLETE &&
        (packet->sum_field + 2 > head || ((head - packet->sum_start) & 1)))
        return packet->rest_length;
    return count;
}

void transmit_add(struct transmit *t, size_t length, const struct sw_leaving *leaving) {
    uint32_t number = t->packet_count++;
    struct outgoing *packet = &t->waiting[number];
    *packet = (struct outgoing){
        .start = t->bytes + t->used + ROOM_BEFORE,
        .rest = leaving->payload,
        .length = (uint32_t)length,
        .rest_length = leaving->payload ? leaving->payload_length : 0,
        .sum_start = leaving->sum_start,
        .sum_field = leaving->sum_field,
        .fragile = leaving->fragile,
    };
    t->used += ROOM_BEFORE + (length + 63) / 64 * 64;
    if (packet->rest)
        outgoing_gather(packet, head_lacks(packet, leaving->fragile));
    if (!t->join) {
        add_frame(t, number);
        return;
    }
    if (t->frame_count > t->sent) {
        struct transmit_frame *last = &t->frames[t->frame_count - 1];
        if (!last->closed && train_join(&last->train, packet, t->train_limit)) {
            last->count++;
            // Where a piece of its own is needed anyway, a short rest had better be part of it.
            uint32_t written = packet->length - packet->rest_length - packet->pulled;
            if (written > last->train.headers && packet->rest_length < LEAST_PIECE)
                outgoing_gather(packet, packet->rest_length);
            return;
        }
    }
    struct transmit_frame *frame = add_frame(t, number);
    if (length <= t->largest)
        (void)train_open(&frame->train, packet);
}

static uint32_t frame_bytes(const struct transmit *t, const struct transmit_frame *frame) {
    uint32_t bytes = 0;
    for (uint32_t n = frame->first; n < frame->first + frame->count; n++)
        bytes += t->waiting[n].length;
    return bytes;
}

// Gives up joining for good: what waits is sent packet by packet too.
static void fall_back(struct transmit *t, int error) {
    t->join = false;
    t->plain_error = error;
    uint32_t first = t->frames[t->sent].first;
    for (uint32_t i = t->sent; i < t->frame_count; i++)
        if (t->frames[i].closed)
            train_undo(&t->frames[i].train);
    t->frame_count = t->sent;
    for (uint32_t i = first; i < t->packet_count; i++)
        add_frame(t, i);
}

// The first frame waiting could not be sent. False if it is to be tried again later.
static bool failed(struct transmit *t, int error) {
    struct transmit_frame *frame = &t->frames[t->sent];
    if (error == EAGAIN)
        return false;
    if ((error == EIO || error == EINVAL) && frame->count > 1) {
        fall_back(t, error);
        return true;
    }
    switch (error) {
    case EINTR:
        return true;
    case ENOBUFS:
        t->full += frame->count;
        break;
    case EMSGSIZE:
        t->oversized += frame->count;
        break;
    case ENETDOWN:
    case ENODEV:
    case ENXIO:
        t->down += frame->count;
        break;
    default:
        t->errors += frame->count;
        t->error = error;
    }
    t->sent++;
    return true;
}

// A packet without its first `skip` bytes, as pieces of a frame that begins at `start`: with 0 the
// first packet, with the offload header in front of it. Payloads that
// arrived one behind the other go as one piece. (Whole packets are read where they were written:
// there the headers are those of the joined frame.)
static struct iovec *add_parts(const struct iovec *start, struct iovec *part,
                               const struct outgoing *packet, uint32_t skip) {
    uint32_t head = packet->length - packet->rest_length, before = skip ? 0 : HEADER;
    const uint8_t *rest = packet->rest;
    if (rest && skip && skip >= head - packet->pulled + packet->fragile) {
        rest -= head - skip; // all that is left lies there
        head = skip;
    }
    if (head > skip)
        *part++ = (struct iovec){packet->start + skip - before, head - skip + before};
    if (rest) {
        struct iovec *last = part - 1;
        if (head == skip && last > start && (const uint8_t *)last->iov_base + last->iov_len == rest)
            last->iov_len += packet->length - head;
        else
            *part++ = (struct iovec){(void *)rest, packet->length - head};
    }
    return part;
}

// One sendmmsg for the frames that wait; returns how many left, or -errno.
static int send_frames(struct transmit *t, int socket) {
    static _Thread_local struct mmsghdr messages[TRANSMIT_PACKETS];
    static _Thread_local struct iovec parts[2 * TRANSMIT_PACKETS];
    uint32_t count = t->frame_count - t->sent;
    struct iovec *part = parts;
    for (uint32_t i = 0; i < count; i++) {
        struct transmit_frame *frame = &t->frames[t->sent + i];
        struct iovec *start = part;
        // A frame that was tried before (the socket was full) has its header made anew.
        if (frame->closed)
            train_undo(&frame->train);
        // A frame of one piece costs the system so much less that a short copy is the better way.
        struct outgoing *first = &t->waiting[frame->first];
        if (frame->count == 1) {
            outgoing_complete(first);
            if (first->rest_length < LEAST_PIECE)
                outgoing_gather(first, first->rest_length);
        }
        struct offload_header header;
        train_close(&frame->train, &header);
        memcpy(first->start - HEADER, &header, HEADER);
        frame->closed = true;
        for (uint32_t n = frame->first; n < frame->first + frame->count; n++)
            part = add_parts(start, part, &t->waiting[n],
                             n == frame->first ? 0 : frame->train.headers);
        messages[i].msg_hdr = (struct msghdr){
            .msg_iov = start,
            .msg_iovlen = (size_t)(part - start),
        };
    }
    int sent = sendmmsg(socket, messages, count, MSG_DONTWAIT);
    return sent < 0 ? -errno : sent;
}

// What waits until the socket takes more outlives the memory that it refers to.
static void keep(struct transmit *t) {
    for (uint32_t n = t->frames[t->sent].first; n < t->packet_count; n++)
        outgoing_gather(&t->waiting[n], t->waiting[n].rest_length);
}

bool transmit_flush(struct transmit *t, int socket) {
    while (t->sent < t->frame_count) {
        int sent = send_frames(t, socket);
        if (sent < 0 && !failed(t, -sent)) {
            keep(t);
            return false;
        }
        for (; sent > 0; sent--) {
            const struct transmit_frame *frame = &t->frames[t->sent++];
            t->handed_over++;
            t->packets += frame->count;
            t->total += frame_bytes(t, frame);
        }
    }
    t->used = t->packet_count = t->frame_count = t->sent = 0;
    return true;
}

void transmit_discard(struct transmit *t) {
    for (uint32_t i = t->sent; i < t->frame_count; i++)
        t->down += t->frames[i].count;
    t->used = t->packet_count = t->frame_count = t->sent = 0;
}
