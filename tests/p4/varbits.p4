// SPDX-License-Identifier: Apache-2.0
//
// Varbit fields that are compared, alone and with their headers, and summed with the payload.
#include <core.p4>
#include <v1model.p4>

header order_h { bit<8> first; bit<8> second; bit<8> seen; bit<8> kind; bit<16> checksum; }
header text_h { bit<8> length; varbit<64> text; }
header mark_h { bit<8> mark; }
struct headers_t { order_h order; text_h one; text_h other; text_h copy; mark_h mark; }
struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        packet.extract(hdr.one, (bit<32>)hdr.order.first << 3);
        packet.extract(hdr.other, (bit<32>)hdr.order.second << 3);
        transition accept;
    }
}
control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum_with_payload(hdr.order.kind == 1, { hdr.one.text, hdr.order.seen },
                                     hdr.order.checksum, HashAlgorithm.csum16);
    }
}
control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum_with_payload(hdr.order.kind == 2,
                                     { hdr.order.seen, hdr.one.text, hdr.other.length },
                                     hdr.order.checksum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.order.kind == 3, { hdr.other.text },
                                     hdr.order.checksum, HashAlgorithm.crc16);
    }
}
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = standard.ingress_port;
        if (standard.checksum_error == 1) { hdr.order.seen = hdr.order.seen | 1; }
        if (hdr.one.isValid() && hdr.other.isValid()) {
            if (hdr.one.text == hdr.other.text) { hdr.order.seen = hdr.order.seen | 2; }
            if (hdr.one.text != hdr.other.text) { hdr.order.seen = hdr.order.seen | 4; }
            if (hdr.one == hdr.other) { hdr.order.seen = hdr.order.seen | 8; }
            if (hdr.one != hdr.other) { hdr.order.seen = hdr.order.seen | 16; }
        }
        if (hdr.order.kind == 4 && hdr.one.isValid()) { hdr.copy = hdr.one; }
        if (hdr.copy.isValid() && hdr.copy.text == hdr.one.text) {
            hdr.mark.setValid();
            hdr.mark.mark = 0x55;
        }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
