// SPDX-License-Identifier: Apache-2.0
//
// A parser with stacks, lookahead, advance, masks and several keys, and what it found: the number
// of labels, the parser's error, and the sum of the labels by index.
#include <core.p4>
#include <v1model.p4>

header start_h { bit<4> kind; bit<12> length; bit<16> tag; }
header label_h { bit<20> value; bit<3> class; bit<1> bottom; bit<8> ttl; }
header tail_h { bit<24> value; }
header found_h { bit<8> error_; bit<8> labels; bit<32> first; bit<8> peeked; bit<8> equal; }
struct headers_t { found_h found; start_h start; label_h[3] labels; tail_h tail; }
struct metadata_t { bit<8> peeked; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.start);
        transition select(hdr.start.kind, hdr.start.tag) {
            (1, 0x8847): labels;
            (2, _): skip;
            (3, 0x100 &&& 0xf00): tail;
            (4 .. 6, 0x0 .. 0xff): peek;
            default: accept;
        }
    }
    state labels {
        packet.extract(hdr.labels.next);
        transition select(hdr.labels.last.bottom) { 0: labels; 1: accept; }
    }
    state skip { packet.advance((bit<32>)hdr.start.length * 8); transition tail; }
    state peek {
        meta.peeked = packet.lookahead<bit<12>>()[7:0];
        transition select(packet.lookahead<bit<8>>()) { 0xab: tail; default: accept; }
    }
    state tail { packet.extract(hdr.tail); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.found.setValid();
        hdr.found.error_ = 0;
        if (standard.parser_error == error.PacketTooShort) { hdr.found.error_ = 1; }
        else if (standard.parser_error == error.StackOutOfBounds) { hdr.found.error_ = 2; }
        if (hdr.labels[0].isValid()) {
            hdr.found.labels = 1;
            hdr.found.first = (bit<32>)hdr.labels[0].value;
            if (hdr.labels[1].isValid()) {
                hdr.found.labels = 2;
                if (hdr.labels[0] == hdr.labels[1]) { hdr.found.equal = 1; }
                hdr.labels.pop_front(1);
            } else {
                hdr.labels.push_front(2);
                hdr.labels[0] = hdr.labels[2];
                hdr.labels[0].ttl = hdr.labels[0].ttl - 1;
            }
        }
        hdr.found.peeked = meta.peeked;
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
