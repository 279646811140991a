// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_SLOTS
#define RACKHUB_SLOTS

#include "headers.p4"

enum bit<2> Phase {
    AGGREGATING = 0,  // some children are missing
    PARTIAL = 1,      // own sum complete and sent up, the parent's result awaited
    FINAL = 2         // the result is here
}

// What a slot remembers of its chunk between packets: four words, a register of each, which are used as they are. As a
// variable for each field they would cost more, since a target reads, copies and writes each, and only a completed sum needs
// most of them. P4Runtime cannot clear registers: job and epoch in the slot tell an old owner's leftovers from a chunk in
// flight, and job 0, which a register never written holds, is no job.
struct slot_t {
    bit<64> number;  // job, epoch and seq
    bit<64> origin;  // chunk; server where the contributions were addressed: a RESULT must come from there
    bit<64> tally;   // children, checksum
    bit<64> state;   // workers, lanes, exponent, max_exponent, flags, 2 bits of 0, server_port (which of SERVER_PORTS), phase
}

#define SLOT_JOB_EPOCH(slot) slot.number[63:32]
#define SLOT_SEQ(slot) slot.number[31:0]
#define SLOT_CHUNK(slot) slot.origin[63:32]
#define SLOT_SERVER(slot) slot.origin[31:0]
#define SLOT_CHILDREN(slot) slot.tally[63:32]
#define SLOT_CHECKSUM(slot) slot.tally[31:0]
#define SLOT_WORKERS(slot) slot.state[63:48]
#define SLOT_LANES(slot) slot.state[47:32]
#define SLOT_EXPONENT(slot) slot.state[31:24]
#define SLOT_MAX_EXPONENT(slot) slot.state[23:16]
#define SLOT_FLAGS(slot) slot.state[15:8]
#define SLOT_SERVER_PORT(slot) slot.state[5:2]
#define SLOT_PHASE(slot) slot.state[1:0]

const bit<64> SLOT_OVERFLOW = (bit<64>)OVERFLOW << 8;

#endif
