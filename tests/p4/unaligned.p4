// SPDX-License-Identifier: Apache-2.0
//
// Varbit fields that begin and end within a byte: extracted, assigned, compared, summed, sent.
#include <core.p4>
#include <v1model.p4>

header order_h {
    bit<8> first; bit<8> second; bit<8> third; bit<8> fourth;
    bit<8> what; bit<8> seen; bit<16> checksum;
}
header nibble_h { bit<4> kind; varbit<64> text; bit<12> value; }
header flag_h { bit<1> flag; varbit<24> text; bit<7> rest; }
header wide_h { bit<77> before; varbit<128> text; bit<67> after; }
struct headers_t {
    order_h order; nibble_h one; nibble_h other; flag_h flag; wide_h wide; nibble_h copy;
}
struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        packet.extract(hdr.one, (bit<32>)hdr.order.first << 3);
        packet.extract(hdr.other, (bit<32>)hdr.order.second << 3);
        packet.extract(hdr.flag, (bit<32>)hdr.order.third << 3);
        packet.extract(hdr.wide, (bit<32>)hdr.order.fourth << 3);
        transition accept;
    }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.order.what == 1, { hdr.one.kind, hdr.one.text, hdr.one.value },
                        hdr.order.checksum, HashAlgorithm.crc16);
        update_checksum(hdr.order.what == 2, { hdr.wide.before, hdr.wide.text, hdr.wide.after },
                        hdr.order.checksum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.order.what == 3,
                                     { hdr.flag.flag, hdr.flag.text, hdr.flag.rest },
                                     hdr.order.checksum, HashAlgorithm.csum16);
    }
}
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = standard.ingress_port;
        if (standard.parser_error != error.NoError) { hdr.order.seen = 0x80; }
        if (hdr.one.isValid() && hdr.other.isValid()) {
            if (hdr.one.text == hdr.other.text) { hdr.order.seen = hdr.order.seen | 1; }
            if (hdr.one == hdr.other) { hdr.order.seen = hdr.order.seen | 2; }
            if (hdr.order.what == 4) { hdr.copy = hdr.other; }
            else if (hdr.order.what == 5) {
                hdr.copy.setValid();
                hdr.copy.kind = 0xa;
                hdr.copy.text = hdr.one.text;
                hdr.copy.value = 0x123;
            }
            else if (hdr.order.what == 6) { hdr.other.text = hdr.one.text; hdr.one.kind = 5; }
            else if (hdr.order.what == 7) { hdr.one.value = 0xfed; hdr.other.setInvalid(); }
        }
        if (hdr.wide.isValid()) {
            if (hdr.order.what == 8) { hdr.wide.before = hdr.wide.before + 1; hdr.flag.flag = 1; }
            else if (hdr.order.what == 9) { hdr.wide.after = ~hdr.wide.after; hdr.flag.rest = 0; }
            else if (hdr.order.what == 10) { hdr.flag.setInvalid(); }
        }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
