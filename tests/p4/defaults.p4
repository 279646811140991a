// SPDX-License-Identifier: Apache-2.0
//
// Cases of a select that match whatever comes, before others.
#include <core.p4>
#include <v1model.p4>

header order_h { bit<8> kind; bit<8> way; }
header item_h { bit<8> value; }
struct headers_t { order_h order; item_h one; item_h other; }
struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        transition select(hdr.order.kind) {
            1: one;
            4 &&& 0: other;
            2: both;
            default: accept;
        }
    }
    state one {
        packet.extract(hdr.one);
        transition accept;
    }
    state other {
        packet.extract(hdr.other);
        transition accept;
    }
    state both {
        packet.extract(hdr.one);
        transition select(hdr.order.way) {
            3: accept;
            0 &&& 0: accept;
            7 &&& 0: other;
        }
    }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Update(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = standard.ingress_port;
        if (hdr.one.isValid()) { hdr.one.value = hdr.one.value + 1; }
        if (hdr.other.isValid()) { hdr.other.value = hdr.other.value + 16; }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
