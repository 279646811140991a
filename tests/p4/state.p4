// SPDX-License-Identifier: Apache-2.0
//
// Registers of several widths, counters, hashes, exit, assertions and messages.
#include <core.p4>
#include <v1model.p4>

header request_h { bit<8> op; bit<8> index; bit<72> value; }
header answer_h { bit<72> value; bit<32> crc32; bit<16> crc16; bit<16> csum16; bit<16> xor16;
                  bit<64> identity; }
struct headers_t { request_h request; answer_h answer; }
struct metadata_t {}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start { packet.extract(hdr.request); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<72>>(8) wide;
    register<bit<12>>(8) narrow;
    register<int<20>>(8) signed;
    counter(8, CounterType.packets_and_bytes) seen;
    apply {
        standard.egress_spec = standard.ingress_port;
        bit<32> index = (bit<32>)hdr.request.index;
        seen.count(index);
        hdr.answer.setValid();
        if (hdr.request.op == 0) {          // write all
            wide.write(index, hdr.request.value);
            narrow.write(index, (bit<12>)hdr.request.value);
            signed.write(index, (int<20>)(bit<20>)hdr.request.value);
            exit;
        } else if (hdr.request.op == 1) {
            wide.read(hdr.answer.value, index);
        } else if (hdr.request.op == 2) {
            bit<12> cell; narrow.read(cell, index); hdr.answer.value = (bit<72>)cell;
        } else if (hdr.request.op == 3) {   // sign extended
            int<20> cell; signed.read(cell, index);
            hdr.answer.value = (bit<72>)(int<72>)cell;
        } else if (hdr.request.op == 4) {
            log_msg("value {} of {}", { hdr.request.value, (int<8>)(int<8>)hdr.request.index });
            assert(hdr.request.value != 7);
        }
        hash(hdr.answer.crc32, HashAlgorithm.crc32, 32w0, { hdr.request }, 64w0x100000000);
        hash(hdr.answer.crc16, HashAlgorithm.crc16, 16w0, { hdr.request }, 32w0x10000);
        hash(hdr.answer.csum16, HashAlgorithm.csum16, 16w0, { hdr.request }, 32w0x10000);
        hash(hdr.answer.xor16, HashAlgorithm.xor16, 16w10, { hdr.request.index, hdr.request.op[3:0],
            hdr.request.op[7:4] }, 32w1000);
        hash(hdr.answer.identity, HashAlgorithm.identity, 64w0, { hdr.request.value[63:0] },
            64w0xffffffffffffffff);
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
