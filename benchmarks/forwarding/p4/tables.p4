// SPDX-License-Identifier: Apache-2.0
//
// One lookup of each kind, chosen by EtherType, to see what entries cost: for rackhub bench switch.
#include <core.p4>
#include <v1model.p4>

header ethernet_h { bit<48> destination; bit<48> source; bit<16> type; }
header key_h { bit<32> key; }
struct headers_t { ethernet_h ethernet; key_h key; }
struct metadata_t {}

const bit<16> EXACT = 0x88b5;
const bit<16> LPM = 0x88b6;

parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.key);
        transition accept;
    }
}

control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control IngressPipeline(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action forward(bit<9> port) { standard_metadata.egress_spec = port; }
    action drop() { mark_to_drop(standard_metadata); }

    table by_value {
        key = { hdr.key.key: exact; }
        actions = { forward; drop; }
        const default_action = drop();
        size = 10000;
    }
    table by_prefix {
        key = { hdr.key.key: lpm; }
        actions = { forward; drop; }
        const default_action = drop();
        size = 10000;
    }
    table by_mask {
        key = { hdr.key.key: ternary; }
        actions = { forward; drop; }
        const default_action = drop();
        size = 10000;
    }

    apply {
        if (hdr.ethernet.type == EXACT) {
            by_value.apply();
        } else if (hdr.ethernet.type == LPM) {
            by_prefix.apply();
        } else {
            by_mask.apply();
        }
    }
}

control EgressPipeline(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) { apply {} }

control UpdateChecksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control PacketDeparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr); }
}

V1Switch(PacketParser(), VerifyChecksums(), IngressPipeline(), EgressPipeline(), UpdateChecksums(), PacketDeparser()) main;
