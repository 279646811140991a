// SPDX-License-Identifier: Apache-2.0
//
// Checksums of headers and of payloads, verified and updated, some only on a condition, some of
// headers that are not there; hashes of odd widths and into ranges.
#include <core.p4>
#include <v1model.p4>

header order_h { bit<8> what; bit<8> seed; }
header first_h { bit<4> a; bit<12> b; bit<16> checksum; bit<32> c; }
header second_h { bit<16> checksum; bit<16> length; bit<24> d; bit<8> e; }
header seen_h {
    bit<8> wrong; bit<16> crc16; bit<32> crc32; bit<16> csum16; bit<16> xor16; bit<48> identity;
    bit<8> ranged; bit<32> odd; bit<32> whole; bit<64> large; bit<32> reversed; bit<16> partial;
}
struct headers_t { seen_h seen; order_h order; first_h first; second_h second; }
struct metadata_t { bit<16> sum; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        transition select(hdr.order.what[1:0]) { 1: first; 2: second; 3: both; default: accept; }
    }
    state first { packet.extract(hdr.first); transition accept; }
    state second { packet.extract(hdr.second); transition accept; }
    state both { packet.extract(hdr.first); transition second; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.first.isValid() && hdr.order.what[2:2] == 1,
            { hdr.first.a, hdr.first.b, hdr.first.c }, hdr.first.checksum, HashAlgorithm.csum16);
        verify_checksum_with_payload(hdr.second.isValid() && hdr.order.what[3:3] == 1,
            { hdr.order.seed, 8w0, hdr.second.length, hdr.second.d, hdr.second.e },
            hdr.second.checksum, HashAlgorithm.csum16);
    }
}
control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.first.isValid() && hdr.order.what[4:4] == 1,
            { hdr.first.a, hdr.first.b, hdr.first.c }, hdr.first.checksum, HashAlgorithm.csum16);
        // Fields of a header that is not there count for nothing.
        update_checksum(hdr.seen.isValid(),
            { hdr.order.seed, 8w0, hdr.first.c, hdr.second.d, hdr.second.e },
            hdr.seen.partial, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.second.isValid() && hdr.order.what[5:5] == 1,
            { hdr.order.seed, 8w0, hdr.second.length, hdr.second.d, hdr.second.e },
            hdr.second.checksum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.second.isValid() && hdr.order.what[6:6] == 1,
            { hdr.order.seed, hdr.second.e, hdr.second.d, hdr.second.length },
            hdr.second.checksum, HashAlgorithm.crc16);
    }
}
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        hdr.seen.setValid();
        hdr.seen.wrong = (bit<8>)standard.checksum_error;
        if (hdr.first.isValid() && hdr.second.isValid()) {
            hash(hdr.seen.crc16, HashAlgorithm.crc16, 16w0, { hdr.first.c, hdr.second.d }, 17w0x10000);
            hash(hdr.seen.crc32, HashAlgorithm.crc32, 32w0,
                 { hdr.first.a, hdr.first.b, hdr.second.d, hdr.second.e, 16w0xabcd }, 33w0x100000000);
            hash(hdr.seen.xor16, HashAlgorithm.xor16, 16w0, { hdr.first, hdr.second.d }, 17w0x10000);
            hash(hdr.seen.whole, HashAlgorithm.crc32, 32w5, { hdr.first, hdr.second },
                 (bit<32>)hdr.order.seed);
            hash(hdr.seen.large, HashAlgorithm.identity, 64w0, { hdr.first, hdr.second },
                 64w0xffffffffffffffff);
        }
        if (hdr.second.isValid()) {
            hash(hdr.seen.csum16, HashAlgorithm.csum16, 16w0, { hdr.order, hdr.second.d }, 17w0x10000);
            hash(hdr.seen.identity, HashAlgorithm.identity, 48w0, { hdr.second.d, hdr.second.e },
                 48w0xffffffffffff);
        }
        if (hdr.first.isValid()) {
            hash(hdr.seen.ranged, HashAlgorithm.crc32, (bit<8>)hdr.order.seed, { hdr.first }, 8w13);
            hash(hdr.seen.odd, HashAlgorithm.crc32, 32w0, { hdr.first.a, hdr.order.what[2:0] },
                 33w0x100000000);
            hash(hdr.seen.reversed, HashAlgorithm.crc32, 32w0, { hdr.first.c, hdr.first.b },
                 33w0x100000000);
        }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
