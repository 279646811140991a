// SPDX-License-Identifier: Apache-2.0
//
// An action that entries of a table name and that is called, too: p4c makes an action of each, with
// one name and different parameters.
#include <core.p4>
#include <v1model.p4>

header order_h { bit<8> key; bit<8> what; bit<16> value; }
struct headers_t { order_h order; }
struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        transition accept;
    }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Update(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action add(bit<16> number, bit<8> place) {
        hdr.order.value = hdr.order.value + number;
        hdr.order.what = place;
    }
    table numbers {
        key = { hdr.order.key: exact; }
        actions = { add; NoAction; }
        default_action = NoAction();
    }
    table others {
        key = { hdr.order.what: exact; }
        actions = { add; NoAction; }
        default_action = NoAction();
    }
    apply {
        standard.egress_spec = standard.ingress_port;
        if (hdr.order.what == 1) { add(500, 7); }
        if (!numbers.apply().hit && hdr.order.what == 2) { add((bit<16>)hdr.order.key, 9); }
        others.apply();
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
