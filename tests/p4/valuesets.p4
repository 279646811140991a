// SPDX-License-Identifier: Apache-2.0
//
// Parser value sets: one that two states look at, one by two parts of a key of which one may be
// masked, one of wide values by lookahead; sets beside constants, in their order.
#include <core.p4>
#include <v1model.p4>

header start_h { bit<8> kind; bit<12> tag; bit<4> rest; bit<8> way; }
header item_h { bit<8> kind; bit<8> value; }
header wide_h { bit<72> value; }
struct headers_t { start_h start; item_h[3] items; wide_h wide; }
struct metadata_t { bit<8> way; }
struct pair_t {
    @match(exact) bit<12> tag;
    @match(ternary) bit<8> kind;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    value_set<bit<8>>(4) kinds;
    value_set<pair_t>(8) pairs;
    value_set<bit<72>>(2) wides;
    state start {
        packet.extract(hdr.start);
        transition select(hdr.start.kind) {
            0x10: pair;
            kinds: item;
            0x20: wide;
            default: accept;
        }
    }
    state item {
        packet.extract(hdr.items.next);
        meta.way = meta.way + 1;
        transition select(hdr.items.last.kind) { kinds: item; default: accept; }
    }
    state pair {
        meta.way = 0x40;
        transition select(hdr.start.tag, hdr.start.kind) { pairs: wide; default: accept; }
    }
    state wide {
        meta.way = meta.way | 0x80;
        transition select(packet.lookahead<bit<72>>()) { wides: extract_wide; default: accept; }
    }
    state extract_wide { packet.extract(hdr.wide); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.start.way = meta.way;
        if (hdr.wide.isValid()) { hdr.wide.value = hdr.wide.value + 1; }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
