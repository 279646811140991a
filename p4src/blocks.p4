// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_BLOCKS
#define RACKHUB_BLOCKS

#include "metadata.p4"

#ifdef LANE_BY_LANE
#include "lane_blocks.p4"  // of the benchmark
#else
// The sign bit of each of the 64 lanes, and all other bits.
#define EIGHT_LANES(word) word ++ word ++ word ++ word ++ word ++ word ++ word ++ word
const bit<256> SIGNS_OF_8 = EIGHT_LANES(32w0x80000000);
const bit<BLOCK_BITS> SIGNS = EIGHT_LANES(SIGNS_OF_8);
const bit<BLOCK_BITS> MAGNITUDES = ~SIGNS;

// One block of every slot. Sums 64 lanes at once, without a loop: with the sign bits masked off no carry leaves its lane,
// and a lane's sign is then put right by what the addition carried into it. A lane overflowed if both operands have the
// sign that the sum has not.
control Block(inout block_h block, inout metadata_t meta) {
    register<bit<BLOCK_BITS>, bit<32>>(SLOTS) lanes;
    bit<BLOCK_BITS> stored;
    bit<BLOCK_BITS> sum;

    // Three short steps: one expression of all makes p4c's copy propagation explode.
    action add_magnitudes() { sum = (stored & MAGNITUDES) + (block.lanes & MAGNITUDES); }
    action add_signs() { sum = sum ^ ((stored ^ block.lanes) & SIGNS); }
    action note_overflow() { meta.overflow = meta.overflow | ((stored ^ sum) & (block.lanes ^ sum)); }

    apply {
        if (meta.payload == Payload.STORE) {
            lanes.write(meta.index, block.lanes);
        } else if (meta.payload == Payload.ADD) {
            lanes.read(stored, meta.index);
            add_magnitudes();
            add_signs();
            note_overflow();
            lanes.write(meta.index, sum);
            block.lanes = sum;
        } else if (meta.payload == Payload.LOAD) {
            lanes.read(block.lanes, meta.index);
        }
    }
}
#endif

// All blocks of the packet at hand.
control Blocks(inout headers_t hdr, inout metadata_t meta, out bool overflowed) {
#define DECLARE(i) Block() block##i;
    FOR_EACH_BLOCK(DECLARE)
#undef DECLARE

    apply {
        meta.overflow = 0;
#define APPLY(i) block##i.apply(hdr.block##i, meta);
        FOR_EACH_BLOCK(APPLY)
#undef APPLY
        overflowed = (meta.overflow & SIGNS) != 0;
    }
}

#endif
