// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_LANE_BLOCKS
#define RACKHUB_LANE_BLOCKS

#include "metadata.p4"

const bit<32> SIGNS = 0x80000000;

// One block of every slot, an array of registers for each lane: read, add and write, 64 times. What overflows wraps round and
// is not noted, as that would cost this form still more.
control Block(inout block_h block, inout metadata_t meta) {
#define DECLARE_REGISTER(i) register<bit<32>, bit<32>>(SLOTS) lanes##i;
    FOR_EACH_LANE(DECLARE_REGISTER)
#undef DECLARE_REGISTER
    bit<32> stored;
    bit<32> sum;

    apply {
        if (meta.payload == Payload.STORE) {
#define STORE_LANE(i) lanes##i.write(meta.index, block.lane##i);
            FOR_EACH_LANE(STORE_LANE)
#undef STORE_LANE
        } else if (meta.payload == Payload.ADD) {
#define ADD_LANE(i) \
            lanes##i.read(stored, meta.index); \
            sum = stored + block.lane##i; \
            lanes##i.write(meta.index, sum); \
            block.lane##i = sum;
            FOR_EACH_LANE(ADD_LANE)
#undef ADD_LANE
        } else if (meta.payload == Payload.LOAD) {
#define LOAD_LANE(i) lanes##i.read(block.lane##i, meta.index);
            FOR_EACH_LANE(LOAD_LANE)
#undef LOAD_LANE
        }
    }
}

#endif
