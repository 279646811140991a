// SPDX-License-Identifier: Apache-2.0
//
// CRCs whose parameters are set from outside, over whole bytes and over bits.
#include <core.p4>
#include <v1model.p4>

header text_h { bit<72> value; bit<4> a; bit<4> b; bit<16> c; }
header sums_h { bit<16> crc16; bit<32> crc32; bit<16> odd; bit<8> ranged; }
struct headers_t { sums_h sums; text_h text; }
struct metadata_t { bit<8> spare; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start { packet.extract(hdr.text); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.sums.setValid();
        hash(hdr.sums.crc16, HashAlgorithm.crc16_custom, 16w0, { hdr.text.value }, 32w0x10000);
        hash(hdr.sums.crc32, HashAlgorithm.crc32_custom, 32w0, { hdr.text.value },
             64w0x100000000);
        hash(hdr.sums.odd, HashAlgorithm.crc16_custom, 16w0, { hdr.text.b, hdr.text.c },
             32w0x10000);
        hash(hdr.sums.ranged, HashAlgorithm.crc32_custom, 8w3, { hdr.text }, 32w100);
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
