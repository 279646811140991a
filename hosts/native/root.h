// SPDX-License-Identifier: Apache-2.0
// The root of one stream at a server: the state of its chunks, and what root.c does with packets.
// hosts/server/root_node.py makes ctypes structures and numpy types of the structures here, so each
// is declared once; it owns all memory.
//
// Number `seq` is in slot `seq & mask`, of 2W slots, as at a switch's node
// (docs/reference/protocol.md). A slot is
//   free      until the first number claims it (`used` is 0),
//   open      while copies are missing: `in` has a bit for each child whose copy is in the sum,
//   complete  once all are in; no number may claim it, as its result was not sent,
//   final     when its result was sent; a copy that comes again is answered with it.
// A newer number claims an open or final slot, and abandons what is in it.
//
// Copies of chunks are merged as in PHub (SoCC'18). A stream's slots are two merge buffers of W
// chunks: one fills while the results of the other are sent, and the worker's window rule swaps
// them. Each slice belongs to one server, so one core has all copies of a chunk and nothing is
// locked.
//   TALL        adds a copy to the slot's row as it arrives, while it is in the cache.
//   WIDE        keeps every copy, in a row by sender and slot, and adds all to that of sender 0 when
//               the last is in; each is written to memory and read again.
//   DISCARDING  drops copies, to measure the cost of adding: all sums are zero.
// TALL and WIDE give the same bits, as integer addition is associative. Rows are in native byte
// order. The first `mask + 1` rows are the results of complete and final slots: sums, or the words
// of parameters that the server makes of them.
#ifndef RACKHUB_ROOT_H
#define RACKHUB_ROOT_H

#include <stdbool.h>

#include "packet.h"

enum { DISCARDING = 0, TALL = 1, WIDE = 2 };

// A number that is 1 to so many behind the slot's is a late copy of a packet whose sum every worker
// has long had; any other is of the slot's next owner, and claims it. The two cannot be told apart
// by the half circle of RFC 1982. A live number is never behind: who sends `seq` has all results up
// to `seq - W`, so everyone has sent those and has all up to `seq - 2W`, the number in the slot
// before. But it may be far ahead: only this server's chunks, and of the DIRECT ones only those that
// integers could not hold, come here, so a slot may rest for billions of numbers (up to 2^32 - 2^24
// of a stream, hours at a million chunks a second). A copy is late by what the stream moves on while
// the network holds it back, which has nothing to do with W: this allows for 16 s at a million
// chunks a second, minutes at what hosts here can send.
enum { LATEST_COPY = 1 << 24 };

struct slot {
    uint32_t seq, chunk, in, checksum; // the checksum is the sum of those of the copies
    uint16_t lanes;
    int8_t exponent, max_exponent;
    uint8_t flags;
    bool used, final;
};

// Packets (or chunks) by outcome since root_node.py last counted them.
struct outcomes {
    uint64_t not_a_child, wrong_source, wrong_workers, other_server, bad_checksum;
    uint64_t claimed, added, replayed, duplicate, other_chunk, stale, early, overflowed, completed;
    uint64_t query_stale, query_answered;
};

struct root {
    struct slot *slots, *forecast; // `mask` + 1 each; the second is scratch
    uint32_t *rows;                // by slot, or (WIDE) by sender and slot
    const bool *mine;              // by chunk: this server sums it
    const struct peer *peers;      // by sender
    const uint16_t *below, *nodes; // by sender: workers below it; its node, 0: it is a worker
    const uint64_t *workers;       // ascending peer_key of all workers
    // Of `holds` (hosts/server/slice_release.py): by chunk, its piece; by piece, its chunks, and
    // those of them without a sum; the slots whose sums wait.
    const int64_t *pieces, *lengths;
    int64_t *missing, *held, held_count;
    uint32_t mask, chunks, children, width, worker_count;
    uint16_t node, job, epoch, world;
    uint8_t stream, merging;
    bool steps; // optimizer steps make results of the sums
    bool pulls; // results are sent to those that query
    bool holds; // results wait for others
    uint32_t open, most_open; // slots; and the most since root_node.py last took it
    struct outcomes outcomes;
};

// Packets of this stream that arrived, all CONTRIBUTEs or all QUERYs and not DIRECT; and what they
// led to.
struct received {
    const struct header *headers; // contiguous
    const uint8_t *words;         // payloads begin `stride` bytes apart
    const bool *full;
    const struct peer *peers;
    uint64_t stride, count;
    // Of CONTRIBUTEs slots that became complete; of QUERYs indices of those that get a STATE.
    int64_t *done;
    int64_t *again; // indices of packets that get the result of a final slot
    int64_t *bad;   // indices of CONTRIBUTEs that failed their check
    uint64_t done_count, again_count, bad_count;
    uint8_t *packets; // to send: results by `done`, or headers of STATEs
    bool *whole;      // by packet: it has a payload
};

#endif
