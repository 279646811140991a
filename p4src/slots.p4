// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_SLOTS
#define RACKHUB_SLOTS

#include "metadata.p4"

// The state of every slot, one register access to read it and one to write it: slot_t packed into 256 bits, since BMv2
// has no struct registers. P4Runtime cannot clear registers either: job and epoch in the slot tell an old owner's
// leftovers from a chunk in flight, and job 0, which a register never written holds, is no job.
control Slots(inout metadata_t meta, in bool save) {
    register<bit<256>, bit<32>>(SLOTS) state;
    bit<256> packed;

    action unpack() {
        meta.slot.job = packed[255:240];
        meta.slot.epoch = packed[239:224];
        meta.slot.seq = packed[223:192];
        meta.slot.chunk = packed[191:160];
        meta.slot.server = packed[159:128];
        meta.slot.children = packed[127:96];
        meta.slot.checksum = packed[95:64];
        meta.slot.workers = packed[63:48];
        meta.slot.lanes = packed[47:32];
        meta.slot.exponent = (int<8>)packed[31:24];
        meta.slot.max_exponent = (int<8>)packed[23:16];
        meta.slot.flags = packed[15:8];
        meta.slot.server_port = packed[5:2];
        meta.slot.phase = (Phase)packed[1:0];
    }

    action pack() {
        packed[255:240] = meta.slot.job;
        packed[239:224] = meta.slot.epoch;
        packed[223:192] = meta.slot.seq;
        packed[191:160] = meta.slot.chunk;
        packed[159:128] = meta.slot.server;
        packed[127:96] = meta.slot.children;
        packed[95:64] = meta.slot.checksum;
        packed[63:48] = meta.slot.workers;
        packed[47:32] = meta.slot.lanes;
        packed[31:24] = (bit<8>)meta.slot.exponent;
        packed[23:16] = (bit<8>)meta.slot.max_exponent;
        packed[15:8] = meta.slot.flags;
        packed[7:6] = 0;
        packed[5:2] = meta.slot.server_port;
        packed[1:0] = meta.slot.phase;
    }

    apply {
        packed = 0;
        if (save) {
            pack();
            state.write(meta.index, packed);
        } else {
            state.read(packed, meta.index);
            unpack();
        }
    }
}

#endif
