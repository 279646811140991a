// SPDX-License-Identifier: Apache-2.0
//
// Numbers that are wider than what BMv2 takes in their places: lengths of varbit fields, indices.
#include <core.p4>
#define V1MODEL_VERSION 20200408
#include <v1model.p4>

header order_h {
    bit<32> bits;
    bit<48> index;
    bit<16> error_;
    bit<16> value;
}
header text_h { bit<8> kind; varbit<32> text; }
struct headers_t { order_h order; text_h text; }
struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        packet.extract(hdr.text, hdr.order.bits);
        transition accept;
    }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Update(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<16>, bit<48>>(8) cells;
    counter<bit<48>>(8, CounterType.packets) hits;
    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.order.error_ = 1;
        if (standard.parser_error == error.NoError) { hdr.order.error_ = 0; }
        else if (standard.parser_error == error.PacketTooShort) { hdr.order.error_ = 2; }
        else if (standard.parser_error == error.HeaderTooShort) { hdr.order.error_ = 3; }
        bit<16> old;
        cells.read(old, hdr.order.index);
        cells.write(hdr.order.index, hdr.order.value);
        hits.count(hdr.order.index);
        hdr.order.value = old;
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
