// SPDX-License-Identifier: Apache-2.0
//
// The transmit path of one port: see transmit.h.
//
// A packet is added in one of these ways, cheapest first: join_next (expected headers, payload
// continues the run in memory: only the headers are copied), in_place (its head is written in front
// of its rest when it is sent), follow (moved behind the packet before, without headers), join
// (headers and rest apart), or as a frame of its own.

#define _GNU_SOURCE
#include "transmit.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "train.h"

// Room for the headers of parted trains: see part.
enum { HEADER = sizeof(struct offload_header), HEADERS_ROOM = 192 };
enum { KEPT_BYTES = TRANSMIT_BYTES + SW_MAX_FRAME };

// Behind the packets; untouched until needed.
#define HEADERS_AT ((size_t)TRANSMIT_BYTES + 2 * TRANSMIT_BEFORE + SW_MAX_FRAME)

int transmit_init(struct transmit *t, bool join, size_t train_limit) {
    memset(t, 0, sizeof *t);
    t->join = join;
    t->train_limit = train_limit;
    t->largest = SW_MAX_FRAME;
    t->bytes = malloc(HEADERS_AT + (size_t)TRANSMIT_PACKETS * HEADERS_ROOM);
    t->kept = malloc(KEPT_BYTES);
    if (t->bytes && t->kept)
        return 0;
    transmit_destroy(t);
    return -ENOMEM;
}

void transmit_destroy(struct transmit *t) {
    free(t->bytes);
    free(t->kept);
    t->bytes = t->kept = NULL;
}

static struct transmit_frame *add_frame(struct transmit *t, uint32_t packet) {
    struct transmit_frame *frame = &t->frames[t->frame_count++];
    frame->first = packet;
    frame->count = 1;
    frame->closed = false;
    frame->end = NULL;
    frame->train.count = 0;
    return frame;
}

// A shorter rest is copied instead of referred to.
enum { LEAST_REST = 192, LEAST_PIECE = 2048 };

// Moves bytes of the rest to the first piece: those that would not last, as many as make it
// `least`, all if little is left or a checksum cannot be completed otherwise.
static void gather(struct outgoing *packet, uint32_t least) {
    if (!packet->rest)
        return;
    uint32_t head = packet->length - packet->rest_length;
    uint32_t count = head < least ? least - head : 0;
    if (count + packet->pulled < packet->fragile)
        count = packet->fragile - packet->pulled;
    count += (head + count) & 1;
    head += count;
    bool whole = count + LEAST_REST > packet->rest_length;
    if (packet->sum_field != SW_COMPLETE)
        whole |= packet->sum_field + 2 > head || ((head - packet->sum_start) & 1);
    outgoing_gather(packet, whole ? packet->rest_length : count);
}

// Extends the frame's contiguous payload if the next packet's continues it in memory, else ends it.
static void extend(struct transmit_frame *frame, const struct outgoing *packet) {
    uint32_t head = packet->length - packet->rest_length, skip = frame->train.headers;
    bool there = packet->rest && skip >= head - packet->pulled + packet->fragile;
    if (there && frame->end == packet->rest - (head - skip))
        frame->end += packet->length - skip;
    else
        frame->end = NULL;
}

// Returns the frame that the next packet may join, or NULL.
static inline struct transmit_frame *open_frame(struct transmit *t) {
    if (!t->join || t->frame_count == t->sent)
        return NULL;
    struct transmit_frame *last = &t->frames[t->frame_count - 1];
    return last->closed || last->train.count == 0 || last->train.closed ? NULL : last;
}

// Adds the packet to a frame if it continues it.
static bool join(struct transmit *t, struct transmit_frame *frame, struct outgoing *packet) {
    struct train *train = &frame->train;
    gather(packet, train->headers);
    if (!train_join(train, packet, t->train_limit))
        return false;
    frame->count++;
    // If it needs a piece of its own anyway, a short rest becomes part of it.
    uint32_t written = packet->length - packet->rest_length - packet->pulled;
    if (written > train->headers && packet->rest_length < LEAST_PIECE)
        outgoing_gather(packet, packet->rest_length);
    extend(frame, packet);
    // There is no room for the rest: it is sent from where it is.
    packet->alone = packet->rest == NULL;
    t->used += TRANSMIT_BEFORE + (packet->length - packet->rest_length + 63) / 64 * 64;
    t->apart += packet->rest_length;
    return true;
}

// True if a packet is like most of a long run: as long as the first, with an incomplete checksum
// like the first's. With the headers that the train expects it may join.
static inline bool is_usual(const struct transmit *t, const struct train *train, size_t length,
                            const struct sw_leaving *leaving) {
    return train->implied && length == train->headers + train->size &&
           leaving->sum_field == train->sum_field && leaving->sum_start == train->sum_start &&
           train->count < TRAIN_MAX_PACKETS &&
           ETH_HLEN + train->ip_length + train->size <= t->train_limit &&
           train->ip_length + train->size <= TRAIN_MAX_IP_LENGTH;
}

// Joins such a packet, whose headers are not all written, if its payload follows the last one's.
static inline bool join_next(struct transmit *t, struct transmit_frame *frame, size_t length,
                             const struct sw_leaving *leaving) {
    struct train *train = &frame->train;
    uint32_t head = (uint32_t)length - leaving->payload_length, count = train->headers - head;
    if (count > 64 || count < leaving->fragile || leaving->payload_length < LEAST_REST + 64 ||
        frame->end != leaving->payload + count || !is_usual(t, train, length, leaving))
        return false;
    uint8_t *start = t->bytes + t->used + TRANSMIT_BEFORE;
    copy32(start + head, leaving->payload);
    if (count > 32)
        copy32(start + head + 32, leaving->payload + 32);
    if (!train_expects(train, start))
        return false;
    train_extend(train);
    frame->count++;
    frame->end += train->size;
    struct outgoing *packet = &t->waiting[t->packet_count++];
    packet->start = start;
    packet->rest = leaving->payload + count;
    packet->length = (uint32_t)length;
    packet->rest_length = train->size;
    packet->pulled = count;
    packet->fragile = leaving->fragile;
    packet->sum_start = leaving->sum_start;
    packet->sum_field = leaving->sum_field;
    packet->alone = packet->in_place = packet->headless = false;
    t->used += TRANSMIT_BEFORE + (train->headers + 63) / 64 * 64;
    t->apart += train->size;
    return true;
}

// True if the packet's part of a train can become one piece at its rest, by writing what follows
// its headers in front of that when it is sent.
static bool in_place(const struct outgoing *packet, uint32_t headers) {
    uint32_t head = packet->length - packet->rest_length;
    return packet->rest && !packet->fragile && head >= headers && head % 2 == 0 &&
           head - headers <= packet->spare;
}

// True if a train may take the packet in one piece with the last one: what follows its headers is
// moved there, so that the whole frame is one piece for the system.
static bool can_follow(const struct transmit_frame *frame, const struct outgoing *packet,
                       const struct outgoing *before) {
    uint32_t head = packet->length - packet->rest_length;
    return head > frame->train.headers && head % 2 == 0 && packet->length < LEAST_PIECE &&
           !before->rest;
}

static void follow(struct transmit *t, const struct transmit_frame *frame, struct outgoing *packet,
                   const struct outgoing *before) {
    uint32_t headers = frame->train.headers, head = packet->length - packet->rest_length - headers;
    uint8_t *to = before->start + before->length;
    memmove(to, packet->start + headers, head);
    if (packet->rest)
        memcpy(to + head, packet->rest, packet->rest_length);
    packet->start = to - headers;
    packet->rest = NULL;
    packet->rest_length = 0;
    packet->headless = true;
    t->used = ((size_t)(packet->start - t->bytes) + packet->length + 63) / 64 * 64;
}

// Joins a packet whose headers are all written.
static inline bool join_whole(const struct transmit *t, struct train *train,
                              const struct outgoing *packet, const struct sw_leaving *leaving) {
    if (is_usual(t, train, packet->length, leaving) && train_expects(train, packet->start)) {
        train_extend(train);
        return true;
    }
    return train_join(train, packet, t->train_limit);
}

void transmit_add(struct transmit *t, size_t length, const struct sw_leaving *leaving) {
    struct transmit_frame *open = open_frame(t);
    if (open && leaving->payload && join_next(t, open, length, leaving))
        return;
    uint32_t number = t->packet_count++;
    struct outgoing *packet = &t->waiting[number];
    *packet = (struct outgoing){
        .start = t->bytes + t->used + TRANSMIT_BEFORE,
        .rest = leaving->payload,
        .length = (uint32_t)length,
        .rest_length = leaving->payload ? leaving->payload_length : 0,
        .sum_start = leaving->sum_start,
        .sum_field = leaving->sum_field,
        .fragile = leaving->fragile,
        .spare = leaving->spare,
    };
    packet->in_place = open && in_place(packet, open->train.headers);
    if (open && (packet->in_place || can_follow(open, packet, packet - 1))) {
        if (join_whole(t, &open->train, packet, leaving)) {
            open->count++;
            open->end = NULL;
            packet->alone = packet->in_place;
            if (packet->in_place)
                t->used += TRANSMIT_BEFORE + (length + 63) / 64 * 64;
            else
                follow(t, open, packet, packet - 1);
            return;
        }
        packet->in_place = false;
    } else if (open && join(t, open, packet)) {
        return;
    }
    uint32_t written = packet->length - packet->rest_length - packet->pulled;
    const struct outgoing before = *packet;
    gather(packet, HEAD_BYTES);
    packet->alone = true;
    t->used += TRANSMIT_BEFORE + (length + 63) / 64 * 64;
    struct transmit_frame *frame = add_frame(t, number);
    if (!t->join || length > t->largest || !train_open(&frame->train, packet))
        return;
    // The next packet may follow it. (Later is too late: the next packet's headers may overwrite
    // its end.)
    if (packet->rest && length < LEAST_PIECE && written > frame->train.headers &&
        !in_place(&before, frame->train.headers))
        outgoing_gather(packet, packet->rest_length);
    if (packet->rest)
        frame->end = packet->rest + packet->rest_length;
}

static uint32_t frame_bytes(const struct transmit *t, const struct transmit_frame *frame) {
    return frame->count > 1 ? frame->train.bytes : t->waiting[frame->first].length;
}

// Restores the headers of a train's packets.
static void part(struct transmit *t, struct transmit_frame *frame) {
    if (frame->closed)
        train_undo(&frame->train);
    for (uint32_t n = frame->first + 1; n < frame->first + frame->count; n++) {
        struct outgoing *packet = &t->waiting[n];
        if (!packet->headless)
            continue;
        uint32_t headers = frame->train.headers;
        packet->rest = packet->start + headers;
        packet->rest_length = packet->length - headers;
        packet->start = t->bytes + HEADERS_AT + (size_t)n * HEADERS_ROOM + TRANSMIT_BEFORE;
        train_headers(&frame->train, n - frame->first, packet);
    }
}

// Gives up joining for good; waiting packets are sent one by one, too.
static void fall_back(struct transmit *t, int error) {
    t->join = false;
    t->plain_error = error;
    uint32_t first = t->frames[t->sent].first;
    for (uint32_t i = t->sent; i < t->frame_count; i++)
        part(t, &t->frames[i]);
    t->frame_count = t->sent;
    for (uint32_t i = first; i < t->packet_count; i++)
        add_frame(t, i);
}

// Handles the failure to send the first waiting frame. False if it is to be retried later.
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

// Adds a packet without its first `skip` bytes as pieces of a frame that begins at `start`: with 0
// it is the first packet, with the offload header in front. Contiguous payloads become one piece.
// (Whole packets are read where they were written: there the headers are those of the joined
// frame.)
//
// written: end of what was written in place for this system call; of two copies of a packet only
// the first can be.
static struct iovec *add_parts(const struct iovec *start, struct iovec *part,
                               const struct outgoing *packet, uint32_t skip,
                               const uint8_t **written) {
    uint32_t head = packet->length - packet->rest_length, before = skip ? 0 : HEADER;
    if (skip && packet->in_place && packet->rest && packet->rest - (head - skip) >= *written) {
        uint8_t *to = (uint8_t *)packet->rest - (head - skip);
        struct iovec *last = part - 1;
        memcpy(to, packet->start + skip, head - skip);
        *written = packet->rest + packet->rest_length;
        if ((uint8_t *)last->iov_base + last->iov_len == to)
            last->iov_len += packet->length - skip;
        else
            *part++ = (struct iovec){to, packet->length - skip};
        return part;
    }
    const uint8_t *rest = packet->rest;
    if (rest && skip && skip >= head - packet->pulled + packet->fragile) {
        rest -= head - skip; // all the rest is there
        head = skip;
    }
    if (head > skip) {
        struct iovec *last = part - 1;
        const uint8_t *from = packet->start + skip;
        if (skip && (const uint8_t *)last->iov_base + last->iov_len == from)
            last->iov_len += head - skip;
        else
            *part++ = (struct iovec){packet->start + skip - before, head - skip + before};
    }
    if (rest) {
        struct iovec *last = part - 1;
        if (head == skip && last > start && (const uint8_t *)last->iov_base + last->iov_len == rest)
            last->iov_len += packet->length - head;
        else
            *part++ = (struct iovec){(void *)rest, packet->length - head};
    }
    return part;
}

// Adds a train with contiguous payload: the headers, and the payload by itself, so that the system
// copies it to the beginning of a page.
static struct iovec *add_run(struct iovec *part, const struct transmit_frame *frame,
                             const struct outgoing *first) {
    uint32_t head = first->length - first->rest_length, more = head - frame->train.headers;
    if (more + first->fragile > first->pulled)
        more = 0;
    const uint8_t *run = first->rest - more;
    *part++ = (struct iovec){first->start - HEADER, HEADER + head - more};
    *part++ = (struct iovec){(void *)run, (size_t)(frame->end - run)};
    return part;
}

// Sends the waiting frames with one sendmmsg; returns how many left, or -errno.
static int send_frames(struct transmit *t, int socket) {
    static _Thread_local struct mmsghdr messages[TRANSMIT_PACKETS];
    static _Thread_local struct iovec parts[2 * TRANSMIT_PACKETS];
    uint32_t count = t->frame_count - t->sent;
    struct iovec *part = parts;
    const uint8_t *written = NULL;
    for (uint32_t i = 0; i < count; i++) {
        struct transmit_frame *frame = &t->frames[t->sent + i];
        struct iovec *start = part;
        // The header of a frame that failed before (the socket was full) is computed again.
        if (frame->closed)
            train_undo(&frame->train);
        // A frame of one piece costs the system so much less that a short copy pays.
        struct outgoing *first = &t->waiting[frame->first];
        if (frame->count == 1) {
            outgoing_complete(first);
            if (first->alone && first->rest_length < LEAST_PIECE)
                outgoing_gather(first, first->rest_length);
        }
        struct offload_header header;
        train_close(&frame->train, &header);
        memcpy(first->start - HEADER, &header, HEADER);
        frame->closed = true;
        if (frame->count > 1 && frame->end) {
            part = add_run(part, frame, first);
        } else {
            part = add_parts(start, part, first, 0, &written);
            for (uint32_t n = frame->first + 1; n < frame->first + frame->count; n++)
                part = add_parts(start, part, &t->waiting[n], frame->train.headers,
                                 &written);
        }
        messages[i].msg_hdr = (struct msghdr){
            .msg_iov = start,
            .msg_iovlen = (size_t)(part - start),
        };
    }
    int sent = sendmmsg(socket, messages, count, MSG_DONTWAIT);
    return sent < 0 ? -errno : sent;
}

// Copies what waits for the socket, as it outlives the memory that it refers to.
static void keep(struct transmit *t) {
    for (uint32_t i = t->sent; i < t->frame_count; i++)
        t->frames[i].end = NULL;
    for (uint32_t n = t->frames[t->sent].first; n < t->packet_count; n++) {
        struct outgoing *packet = &t->waiting[n];
        if (packet->headless)
            continue;
        if (packet->alone) {
            outgoing_gather(packet, packet->rest_length);
        } else if (packet->rest < t->kept || packet->rest >= t->kept + t->kept_used) {
            packet->rest = memcpy(t->kept + t->kept_used, packet->rest, packet->rest_length);
            packet->pulled = packet->fragile = 0;
            t->kept_used += packet->rest_length;
        }
    }
}

static void forget(struct transmit *t) {
    t->used = t->apart = t->kept_used = 0;
    t->packet_count = t->frame_count = t->sent = 0;
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
    forget(t);
    return true;
}

void transmit_discard(struct transmit *t) {
    for (uint32_t i = t->sent; i < t->frame_count; i++)
        t->down += t->frames[i].count;
    forget(t);
}
