// SPDX-License-Identifier: Apache-2.0
// In place of the words of p4src/blocks.p4 an array of registers for each lane: read, add and write, 64 times. What overflows
// wraps round and is not noted, as that would cost this form still more.
const bit<32> SIGNS = 0x80000000;

#define QUOTED(name) #name
#define REGISTER(b, i) @name(QUOTED(blocks.block##b.lanes##i)) register<bit<32>, bit<32>>(SLOTS) block##b##_lane##i;
#define REGISTERS(b) FOR_EACH_LANE_OF(b, REGISTER)
FOR_EACH_BLOCK(REGISTERS)
#undef REGISTERS

bit<32> stored;
bit<32> overflowed;

action store_blocks() {
#define STORE_LANE(b, i) block##b##_lane##i.write(meta.index, hdr.block##b.lane##i);
#define STORE(b) FOR_EACH_LANE_OF(b, STORE_LANE)
    FOR_EACH_BLOCK(STORE)
#undef STORE
}

action add_blocks() {
    overflowed = 0;
#define ADD_LANE(b, i) \
    block##b##_lane##i.read(stored, meta.index); \
    hdr.block##b.lane##i = stored + hdr.block##b.lane##i; \
    block##b##_lane##i.write(meta.index, hdr.block##b.lane##i);
#define ADD(b) FOR_EACH_LANE_OF(b, ADD_LANE)
    FOR_EACH_BLOCK(ADD)
#undef ADD
}

action load_blocks() {
#define LOAD_LANE(b, i) block##b##_lane##i.read(hdr.block##b.lane##i, meta.index);
#define LOAD(b) FOR_EACH_LANE_OF(b, LOAD_LANE)
    FOR_EACH_BLOCK(LOAD)
#undef LOAD
}
