// SPDX-License-Identifier: Apache-2.0
//
// Varbit fields: at the end of a header and in its middle, in a stack, of lengths that the packet
// says, right or wrong; copied, assigned, summed, and sent as they came.
#include <core.p4>
#include <v1model.p4>

header ip_h {
    bit<4> version; bit<4> words; bit<8> what; bit<16> length; bit<16> checksum; bit<8> items;
    bit<8> error_;
    varbit<320> options;
}
header item_h { bit<8> kind; bit<8> bytes; varbit<64> value; bit<8> last; }
struct headers_t { ip_h ip; item_h[2] items; item_h one; }
struct metadata_t { bit<8> left; bit<8> kind; bit<8> bytes; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    bit<8> words;
    state start {
        words = packet.lookahead<bit<8>>() & 0xf;
        packet.extract(hdr.ip, (bit<32>)words * 32);
        meta.left = hdr.ip.items;
        transition items;
    }
    state items {
        transition select(meta.left) { 0: accept; 9: one; default: item; }
    }
    state item {
        meta.left = meta.left - 1;
        packet.extract(hdr.items.next, (bit<32>)packet.lookahead<bit<16>>()[7:0]);
        transition items;
    }
    state one {
        packet.extract(hdr.one, (bit<32>)(packet.lookahead<bit<8>>() & 0x3f));
        transition accept;
    }
}
control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ip.isValid(), { hdr.ip.version, hdr.ip.words, hdr.ip.what,
                                            hdr.ip.length, hdr.ip.options },
                        hdr.ip.checksum, HashAlgorithm.csum16);
    }
}
control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ip.isValid(), { hdr.one.value, hdr.ip.version, hdr.ip.words,
                                            hdr.ip.what, hdr.ip.length, hdr.ip.options },
                        hdr.ip.checksum, HashAlgorithm.csum16);
    }
}
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.ip.error_ = 0;
        if (standard.parser_error == error.PacketTooShort) { hdr.ip.error_ = 1; }
        else if (standard.parser_error == error.HeaderTooShort) { hdr.ip.error_ = 2; }
        else if (standard.parser_error == error.ParserInvalidArgument) { hdr.ip.error_ = 3; }
        else if (standard.parser_error == error.StackOutOfBounds) { hdr.ip.error_ = 4; }
        if (standard.checksum_error == 1) { hdr.ip.error_[7:7] = 1; }
        if (hdr.items[0].isValid()) {
            hdr.items[0].last = hdr.items[0].last + 1;
            if (hdr.ip.what == 1 && !hdr.one.isValid()) { hdr.one = hdr.items[0]; }
            else if (hdr.ip.what == 2) { hdr.items[0].setInvalid(); }
            else if (hdr.ip.what == 3) { hdr.items.push_front(1); }
            else if (hdr.ip.what == 4) { hdr.items.pop_front(1); }
            else if (hdr.ip.what == 5 && hdr.one.isValid()) {
                hdr.one.value = hdr.items[0].value;
            } else if (hdr.ip.what == 6) {
                hash(hdr.ip.length, HashAlgorithm.crc16, (bit<16>)0,
                     { hdr.ip.words, hdr.items[0].value, hdr.ip.options }, (bit<16>)0xffff);
            }
        }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.ip.what == 7) { hdr.one.setInvalid(); }
        hdr.ip.length = (bit<16>)standard.packet_length;
    }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
