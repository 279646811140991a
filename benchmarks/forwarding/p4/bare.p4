// SPDX-License-Identifier: Apache-2.0
//
// Summing and nothing else: every packet's lanes are added to the slot that its number says, and it goes back to where it came
// from with what the slot then holds. Once with 2048-bit words, as the data plane sums, and once, with LANE_BY_LANE, with a
// 32-bit register for each lane. For rackhub bench switch; headers and lanes are those of p4src/ (p4c's -I).
#include <core.p4>
#include <v1model.p4>

#include "headers.p4"

#define BARE_SLOTS 1024

struct metadata_t {
    bit<32> index;
}

#ifdef LANE_BY_LANE
control Block(inout block_h block, in metadata_t meta) {
#define DECLARE_REGISTER(i) register<bit<32>>(BARE_SLOTS) lanes##i;
    FOR_EACH_LANE(DECLARE_REGISTER)
#undef DECLARE_REGISTER
    bit<32> stored;

    action add() {
#define ADD_LANE(i) \
        lanes##i.read(stored, meta.index); \
        block.lane##i = block.lane##i + stored; \
        lanes##i.write(meta.index, block.lane##i);
        FOR_EACH_LANE(ADD_LANE)
#undef ADD_LANE
    }

    apply {
        add();
    }
}
#else
#define EIGHT_LANES(word) word ++ word ++ word ++ word ++ word ++ word ++ word ++ word
const bit<256> SIGNS_OF_8 = EIGHT_LANES(32w0x80000000);
const bit<BLOCK_BITS> SIGNS = EIGHT_LANES(SIGNS_OF_8);

control Block(inout block_h block, in metadata_t meta) {
    register<bit<BLOCK_BITS>>(BARE_SLOTS) lanes;
    bit<BLOCK_BITS> stored;

    action add() {
        lanes.read(stored, meta.index);
        block.lanes = ((stored & ~SIGNS) + (block.lanes & ~SIGNS)) ^ ((stored ^ block.lanes) & SIGNS);
        lanes.write(meta.index, block.lanes);
    }

    apply {
        add();
    }
}
#endif

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.aggregation);
#define EXTRACT(i) packet.extract(hdr.block##i);
        FOR_EACH_BLOCK(EXTRACT)
#undef EXTRACT
        transition accept;
    }
}

control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control IngressPipeline(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
#define DECLARE_BLOCK(i) Block() sums##i;
    FOR_EACH_BLOCK(DECLARE_BLOCK)
#undef DECLARE_BLOCK

    apply {
        meta.index = hdr.aggregation.seq & (BARE_SLOTS - 1);
#define APPLY(i) sums##i.apply(hdr.block##i, meta);
        FOR_EACH_BLOCK(APPLY)
#undef APPLY
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }
}

control EgressPipeline(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) { apply {} }

control UpdateChecksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control PacketDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(PacketParser(), VerifyChecksums(), IngressPipeline(), EgressPipeline(), UpdateChecksums(), PacketDeparser()) main;
