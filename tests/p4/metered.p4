// SPDX-License-Identifier: Apache-2.0
//
// Uses a meter, which the embedded target does not execute.
#include <core.p4>
#include <v1model.p4>

struct headers_t {}
struct metadata_t { bit<2> color; }
parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) { state start { transition accept; } }
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    meter(16, MeterType.bytes) limit;
    apply { limit.execute_meter(32w1, meta.color); }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Emit(packet_out packet, in headers_t hdr) { apply {} }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
