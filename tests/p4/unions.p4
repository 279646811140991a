// SPDX-License-Identifier: Apache-2.0
//
// Header unions: extracted, one after the other, made valid and invalid, copied, asked whether they
// are valid, with checksums and a large header.
#include <core.p4>
#include <v1model.p4>

header order_h { bit<8> first; bit<8> second; bit<8> what; bit<8> seen; bit<32> length; }
header short_h { bit<16> value; }
header long_h { bit<32> value; bit<16> checksum; }
header large_h { bit<1280> value; }
header_union choice_h {
    short_h short;
    long_h long;
    large_h large;
}
header_union rest_h {
    short_h short;
    large_h large;
}
struct headers_t { order_h order; choice_h one; choice_h other; rest_h rest; }
struct metadata_t { bit<8> seen; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        transition select(hdr.order.first) {
            1: short_;
            2: long_;
            3: large;
            4: both;
            default: second;
        }
    }
    state short_ { packet.extract(hdr.one.short); transition second; }
    state long_ { packet.extract(hdr.one.long); transition second; }
    state large { packet.extract(hdr.one.large); transition second; }
    state both {
        packet.extract(hdr.one.short);
        packet.extract(hdr.one.long);
        transition select(hdr.one.long.value[31:31]) { 1: short_; default: second; }
    }
    state second {
        transition select(hdr.order.second) {
            1: other_short;
            2: other_long;
            3: rest_short;
            4: rest_large;
            default: accept;
        }
    }
    state other_short { packet.extract(hdr.other.short); transition accept; }
    state other_long { packet.extract(hdr.other.long); transition accept; }
    state rest_short { packet.extract(hdr.rest.short); transition accept; }
    state rest_large { packet.extract(hdr.rest.large); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.other.long.isValid(), { hdr.other.long.value },
                        hdr.other.long.checksum, HashAlgorithm.csum16);
    }
}
control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.one.long.isValid(), { hdr.one.long.value, hdr.order.seen, 8w0 },
                        hdr.one.long.checksum, HashAlgorithm.csum16);
    }
}
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = standard.ingress_port;
        if (hdr.one.isValid()) { meta.seen = 1; }
        if (hdr.other.isValid()) { meta.seen = meta.seen | 2; }
        if (standard.checksum_error == 1) { meta.seen = meta.seen | 4; }
        if (hdr.order.what == 1) { hdr.one.short.setValid(); hdr.one.short.value = 0x1234; }
        else if (hdr.order.what == 2) { hdr.one.long.setValid(); hdr.one.long.value = 7; }
        else if (hdr.order.what == 3) { hdr.one.long.setInvalid(); }
        else if (hdr.order.what == 4) { hdr.one = hdr.other; }
        else if (hdr.order.what == 5) { hdr.other = hdr.one; hdr.one.short.setInvalid(); }
        else if (hdr.order.what == 6) { hdr.other.short = { 0x5678 }; }
        else if (hdr.order.what == 7) { hdr.one.large.setValid(); hdr.one.large.value = 9; }
        else if (hdr.order.what == 8) { hdr.one.short = hdr.other.short; }
        if (hdr.one.short.isValid() && hdr.other.short.isValid() &&
            hdr.one.short == hdr.other.short) { meta.seen = meta.seen | 8; }
        if (hdr.one.isValid()) { meta.seen = meta.seen | 16; }
        hdr.order.seen = meta.seen;
        hdr.order.length = standard.packet_length;
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.order.what == 9) { hdr.rest.short.setValid(); hdr.rest.short.value = 1; }
        else if (hdr.order.what == 10) { hdr.rest.large.setValid(); }
        hdr.order.length[31:16] = (bit<16>)standard.packet_length;
    }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
