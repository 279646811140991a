// SPDX-License-Identifier: Apache-2.0
//
// Sums of 4 x 64 signed 32-bit lanes in 2048-bit registers: op 0 claims a slot (overwrites it), op
// 1 adds to it, and the packet leaves with what the slot then holds, and whether a lane overflowed.
#include <core.p4>
#include <v1model.p4>

typedef bit<2048> block_t;
const bit<512> SIGNS_512 = 512w0x80000000800000008000000080000000800000008000000080000000800000008000000080000000800000008000000080000000800000008000000080000000;
const block_t SIGNS = SIGNS_512 ++ SIGNS_512 ++ SIGNS_512 ++ SIGNS_512;

header ethernet_h { bit<48> destination; bit<48> source; bit<16> type; }
header sum_h { bit<8> op; bit<8> overflow; bit<16> slot; }
header block_h { block_t lanes; }
struct headers_t { ethernet_h ethernet; sum_h sum; block_h b0; block_h b1; block_h b2; block_h b3; }
struct metadata_t { block_t old; block_t overflow; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) { 0x88b5: sum; default: accept; }
    }
    state sum {
        packet.extract(hdr.sum);
        packet.extract(hdr.b0); packet.extract(hdr.b1); packet.extract(hdr.b2); packet.extract(hdr.b3);
        transition accept;
    }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control Block(inout block_h block, in bit<8> op, in bit<16> slot, inout bit<8> overflow, inout metadata_t meta) {
    register<block_t>(256) cells;
    apply {
        block_t a; block_t sum;
        if (op == 1) {
            cells.read(a, (bit<32>)slot);
            sum = ((a & ~SIGNS) + (block.lanes & ~SIGNS)) ^ ((a ^ block.lanes) & SIGNS);
            meta.overflow = (a ^ sum) & (block.lanes ^ sum) & SIGNS;
            block.lanes = sum;
            if (meta.overflow != 0) { overflow = 1; }
        }
        cells.write((bit<32>)slot, block.lanes);
    }
}
control IngressPipe(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Block() block0; Block() block1; Block() block2; Block() block3;
    apply {
        if (hdr.b3.isValid()) {
            block0.apply(hdr.b0, hdr.sum.op, hdr.sum.slot, hdr.sum.overflow, meta);
            block1.apply(hdr.b1, hdr.sum.op, hdr.sum.slot, hdr.sum.overflow, meta);
            block2.apply(hdr.b2, hdr.sum.op, hdr.sum.slot, hdr.sum.overflow, meta);
            block3.apply(hdr.b3, hdr.sum.op, hdr.sum.slot, hdr.sum.overflow, meta);
            standard.egress_spec = standard.ingress_port;
        } else { mark_to_drop(standard); }
    }
}
control EgressPipe(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) { apply {} }
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), IngressPipe(), EgressPipe(), Update(), Emit()) main;
