// SPDX-License-Identifier: Apache-2.0
// Part of control Node: the payload of every slot, a register of words for each block, and what is done with it. Sums 64 lanes
// at once, without a loop: with the sign bits masked off no carry leaves its lane, and a lane's sign is then put right by what
// the addition carried into it. A lane overflowed if both operands have the same sign, and that carry is not that sign.
#ifdef LANE_BY_LANE
#include "lane_blocks.p4"  // of the benchmark
#else
// The sign bit of each of the 64 lanes, and all other bits.
#define EIGHT_LANES(word) word ++ word ++ word ++ word ++ word ++ word ++ word ++ word
const bit<256> SIGNS_OF_8 = EIGHT_LANES(32w0x80000000);
const bit<BLOCK_BITS> SIGNS = EIGHT_LANES(SIGNS_OF_8);
const bit<BLOCK_BITS> MAGNITUDES = ~SIGNS;

#define CARRIED(a, b) ((a & MAGNITUDES) + (b & MAGNITUDES))

// Names as of an array of blocks. P4 has no strings of parts.
#define QUOTED(name) #name
#define REGISTER(i) @name(QUOTED(blocks.block##i.lanes)) register<bit<BLOCK_BITS>, bit<32>>(SLOTS) block##i;
FOR_EACH_BLOCK(REGISTER)
#undef REGISTER

bit<BLOCK_BITS> stored;
bit<BLOCK_BITS> overflowed;  // sign bits of the lanes that overflowed

// One action for all blocks: BMv2's time goes by tables, and p4c makes one of each action that is called.
action store_blocks() {
#define STORE(i) block##i.write(meta.index, hdr.block##i.lanes);
    FOR_EACH_BLOCK(STORE)
#undef STORE
}

action add_blocks() {
    overflowed = 0;
#define ADD(i) \
    block##i.read(stored, meta.index); \
    overflowed = overflowed | (~(stored ^ hdr.block##i.lanes) & (CARRIED(stored, hdr.block##i.lanes) ^ stored)); \
    hdr.block##i.lanes = CARRIED(stored, hdr.block##i.lanes) ^ ((stored ^ hdr.block##i.lanes) & SIGNS); \
    block##i.write(meta.index, hdr.block##i.lanes);
    FOR_EACH_BLOCK(ADD)
#undef ADD
}

action load_blocks() {
#define LOAD(i) block##i.read(hdr.block##i.lanes, meta.index);
    FOR_EACH_BLOCK(LOAD)
#undef LOAD
}
#endif
