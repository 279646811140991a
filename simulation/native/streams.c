// SPDX-License-Identifier: Apache-2.0
// The stream ends of a host: segments and acknowledgments (see simulation/nodes/byte_streams.py).
//
// struct streams has the ends sorted by their ports, the frames to send by interface, and in came
// the arrived frames [first, last), in order of time. Each end has two ring buffers: flying holds
// the end position of every segment in flight, at most `window`, and waiting the bytes left of
// every message; a message leaves it when its last segment is sent. An acknowledgment removes from
// flying all segments up to its number, and waiting segments follow. Positions in a stream are
// bytes from its beginning, 64 bits here and modulo 2^32 on the wire.

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { HEADERS = 14 + 20 + 32, IP_AND_TCP = HEADERS - 14 };
enum { TCP = 6, PUSH = 0x08, ACK = 0x10 };
enum { NO_MEMORY = -1, MISSING = -2 };

// A queue of 64-bit numbers; room is a power of two.
struct numbers {
    int64_t *at;
    uint64_t first, count, room;
};

// A connection at one of its ends.
struct end {
    uint32_t ports; // of arriving frames: the sender's and the receiver's
    uint32_t interface;
    uint32_t sum; // partial checksum of the head's IPv4 words
    uint8_t head[HEADERS];
    int64_t window, segment; // segments in flight, bytes of data in a full one
    int64_t sent;            // bytes
    struct numbers flying;   // where each segment in flight ends
    struct numbers waiting;  // bytes that are left of each message
    int64_t arrived, wanted; // bytes; wanted 0: no task waits
    bool odd;                // the last segment is not acknowledged yet
    bool woken;
};

// An arrived frame.
struct segment {
    int64_t time;
    uint32_t end, number; // where data begins, or ends that has arrived, mod 2^32
    uint32_t data;        // bytes; 0: an acknowledgment
    bool push;            // the last of a message
};

// Frames to send by an interface.
struct leaving {
    int64_t *times, *lengths;
    uint8_t *frames;
    uint64_t count, room;
};

struct streams {
    struct end *ends; // in the order of their ports
    uint64_t count;
    struct leaving *leaving; // by interface
    uint64_t interfaces;
    struct segment *came;
    uint64_t first, last, room;
};

static bool grow(struct numbers *numbers) {
    uint64_t room = numbers->room ? 2 * numbers->room : 64;
    int64_t *at = malloc(room * sizeof *at);
    if (!at)
        return false;
    for (uint64_t i = 0; i < numbers->count; i++)
        at[i] = numbers->at[(numbers->first + i) & (numbers->room - 1)];
    free(numbers->at);
    *numbers = (struct numbers){at, 0, numbers->count, room};
    return true;
}

static bool add(struct numbers *numbers, int64_t number) {
    if (numbers->count == numbers->room && !grow(numbers))
        return false;
    numbers->at[(numbers->first + numbers->count++) & (numbers->room - 1)] = number;
    return true;
}

static int64_t *head_of(const struct numbers *numbers) {
    return &numbers->at[numbers->first & (numbers->room - 1)];
}

static void drop(struct numbers *numbers) {
    numbers->first++;
    numbers->count--;
}

static uint64_t word(const uint8_t *at) { return (uint64_t)at[0] << 8 | at[1]; }

static void put_word(uint8_t *at, uint64_t value) {
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

static void put_number(uint8_t *at, uint64_t value) {
    put_word(at, value >> 16);
    put_word(at + 2, value);
}

struct streams *streams_create(uint64_t interfaces) {
    struct streams *streams = calloc(1, sizeof *streams);
    if (!streams)
        return NULL;
    streams->interfaces = interfaces;
    streams->leaving = calloc(interfaces, sizeof *streams->leaving);
    if (!streams->leaving) {
        free(streams);
        return NULL;
    }
    return streams;
}

void streams_destroy(struct streams *streams) {
    for (uint64_t i = 0; i < streams->count; i++) {
        free(streams->ends[i].flying.at);
        free(streams->ends[i].waiting.at);
    }
    for (uint64_t i = 0; i < streams->interfaces; i++) {
        free(streams->leaving[i].times);
        free(streams->leaving[i].lengths);
        free(streams->leaving[i].frames);
    }
    free(streams->ends);
    free(streams->leaving);
    free(streams->came);
    free(streams);
}

// Finds the end for frames with these ports; NULL if there is none.
static struct end *find(const struct streams *streams, uint32_t ports) {
    uint64_t low = 0, high = streams->count;
    while (low < high) {
        uint64_t middle = (low + high) / 2;
        if (streams->ends[middle].ports < ports)
            low = middle + 1;
        else
            high = middle;
    }
    return low < streams->count && streams->ends[low].ports == ports ? &streams->ends[low] : NULL;
}

// Adds an end, before any frame arrives.
int streams_connect(struct streams *streams, uint32_t ports, uint32_t interface,
                    const uint8_t *head, int64_t window, int64_t segment) {
    struct end *ends = realloc(streams->ends, (streams->count + 1) * sizeof *ends);
    if (!ends)
        return NO_MEMORY;
    streams->ends = ends;
    uint64_t at = streams->count++;
    for (; at > 0 && ends[at - 1].ports > ports; at--)
        ends[at] = ends[at - 1];
    ends[at] = (struct end){
        .ports = ports, .interface = interface, .window = window, .segment = segment};
    memcpy(ends[at].head, head, HEADERS);
    for (int i = 14; i < 34; i += 2)
        ends[at].sum += (uint32_t)word(head + i);
    return 0;
}

static bool room_for_more(struct leaving *leaving) {
    uint64_t room = leaving->room ? 2 * leaving->room : 256;
    int64_t *times = realloc(leaving->times, room * sizeof *times);
    if (!times)
        return false;
    leaving->times = times;
    int64_t *lengths = realloc(leaving->lengths, room * sizeof *lengths);
    if (!lengths)
        return false;
    leaving->lengths = lengths;
    uint8_t *frames = realloc(leaving->frames, room * HEADERS);
    if (!frames)
        return false;
    leaving->frames = frames;
    leaving->room = room;
    return true;
}

// Queues a frame with `data` bytes at position `number`, or an acknowledgment up to it (data 0).
static bool leave(struct streams *streams, const struct end *end, int64_t now, int64_t data,
                  int64_t number, bool push) {
    struct leaving *leaving = &streams->leaving[end->interface];
    if (leaving->count == leaving->room && !room_for_more(leaving))
        return false;
    uint64_t i = leaving->count++, total = (uint64_t)data + IP_AND_TCP;
    uint8_t *frame = leaving->frames + i * HEADERS;
    leaving->times[i] = now;
    leaving->lengths[i] = data + HEADERS;
    memcpy(frame, end->head, HEADERS);
    uint64_t sum = end->sum + total; // RFC 1071
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    put_word(frame + 16, total);
    put_word(frame + 24, ~sum);
    put_number(frame + (data ? 38 : 42), (uint64_t)number);
    frame[47] = data ? (push ? PUSH : 0) : ACK;
    return true;
}

// Sends the waiting segments that the window allows.
static bool release(struct streams *streams, struct end *end, int64_t now) {
    while (end->waiting.count && (int64_t)end->flying.count < end->window) {
        int64_t *left = head_of(&end->waiting);
        int64_t data = *left < end->segment ? *left : end->segment;
        bool push = *left == data;
        *left -= data;
        if (push)
            drop(&end->waiting);
        if (!add(&end->flying, end->sent + data) ||
            !leave(streams, end, now, data, end->sent, push))
            return false;
        end->sent += data;
    }
    return true;
}

// Sends a message of `size` > 0 bytes to the peer of the end with these ports.
int streams_put(struct streams *streams, uint32_t ports, int64_t size, int64_t now) {
    struct end *end = find(streams, ports);
    return end && add(&end->waiting, size) && release(streams, end, now) ? 0 : NO_MEMORY;
}

// Returns whether the first `upto` bytes have arrived; if not, registers a wait for them.
int streams_want(struct streams *streams, uint32_t ports, int64_t upto) {
    struct end *end = find(streams, ports);
    if (end->arrived >= upto)
        return 1;
    end->wanted = upto;
    return 0;
}

// Adds frames that arrive at these times, in order with earlier ones; `stored` bytes of each are
// given. Returns how many belong to no stream.
int64_t streams_take(struct streams *streams, const int64_t *times, const uint8_t *frames,
                     uint64_t count, uint64_t stored) {
    if (stored < HEADERS)
        return (int64_t)count;
    if (streams->first == streams->last)
        streams->first = streams->last = 0;
    if (streams->last + count > streams->room) {
        uint64_t room = 2 * (streams->last + count);
        struct segment *came = realloc(streams->came, room * sizeof *came);
        if (!came)
            return NO_MEMORY;
        streams->came = came;
        streams->room = room;
    }
    int64_t others = 0;
    const struct end *end = NULL;
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *frame = frames + i * stored;
        uint64_t total = word(frame + 16);
        uint32_t ports = (uint32_t)(word(frame + 34) << 16 | word(frame + 36));
        if (!end || end->ports != ports)
            end = find(streams, ports);
        if (!end || frame[12] != 8 || frame[13] != 0 || frame[23] != TCP || total < IP_AND_TCP) {
            others++;
            continue;
        }
        const uint8_t *number = frame + (total > IP_AND_TCP ? 38 : 42);
        streams->came[streams->last++] = (struct segment){
            .time = times[i],
            .end = (uint32_t)(end - streams->ends),
            .number = (uint32_t)(word(number) << 16 | word(number + 2)),
            .data = (uint32_t)(total - IP_AND_TCP),
            .push = frame[47] & PUSH,
        };
    }
    return others;
}

// Returns the arrival time of the first frame taken; INT64_MAX if none is left.
int64_t streams_next(const struct streams *streams) {
    return streams->first < streams->last ? streams->came[streams->first].time : INT64_MAX;
}

static int arrive(struct streams *streams, const struct segment *one) {
    struct end *end = &streams->ends[one->end];
    if (one->data) {
        if ((uint32_t)end->arrived != one->number)
            return MISSING;
        end->arrived += one->data;
        bool acknowledged = end->odd || one->push;
        end->odd = !acknowledged;
        return !acknowledged || leave(streams, end, one->time, 0, end->arrived, false) ? 0
                                                                                        : NO_MEMORY;
    }
    int64_t upto = end->sent - (uint32_t)((uint32_t)end->sent - one->number);
    while (end->flying.count && *head_of(&end->flying) <= upto)
        drop(&end->flying);
    return release(streams, end, one->time) ? 0 : NO_MEMORY;
}

// Processes arrivals before a time, but at most up to the first time at which a wait is complete.
// Returns the number of complete waits, their ports in `woken`, in order, and in *now the time of
// the last arrival.
int64_t streams_arrive(struct streams *streams, int64_t before, uint32_t *woken, int64_t *now) {
    int64_t count = 0;
    while (streams->first < streams->last) {
        const struct segment *one = &streams->came[streams->first];
        if (one->time >= before)
            break;
        int failed = arrive(streams, one);
        if (failed)
            return failed;
        struct end *end = &streams->ends[one->end];
        if (end->wanted && end->arrived >= end->wanted) {
            end->wanted = 0;
            end->woken = true;
            count++;
            before = one->time + 1;
        }
        *now = one->time;
        streams->first++;
    }
    for (uint64_t i = 0, left = (uint64_t)count; left; i++) {
        if (!streams->ends[i].woken)
            continue;
        streams->ends[i].woken = false;
        *woken++ = streams->ends[i].ports;
        left--;
    }
    return count;
}

// Counts the frames to send by an interface.
uint64_t streams_leaving(const struct streams *streams, uint64_t interface) {
    return streams->leaving[interface].count;
}

// Copies these frames and removes them.
void streams_leave(struct streams *streams, uint64_t interface, int64_t *times, int64_t *lengths,
                   uint8_t *frames) {
    struct leaving *leaving = &streams->leaving[interface];
    memcpy(times, leaving->times, leaving->count * sizeof *times);
    memcpy(lengths, leaving->lengths, leaving->count * sizeof *lengths);
    memcpy(frames, leaving->frames, leaving->count * HEADERS);
    leaving->count = 0;
}
