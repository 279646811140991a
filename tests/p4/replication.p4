// SPDX-License-Identifier: Apache-2.0
//
// Everything that makes copies, or a packet go round: the first byte says what to do, the program
// writes what it sees of itself into the bytes behind it.
#include <core.p4>
#include <v1model.p4>

header trace_h {
    bit<8> op; bit<8> argument;     // 1 multicast, 2 clone at ingress, 3 clone at egress,
                                    // 4 resubmit, 5 recirculate, 6 truncate, 7 drop at egress,
                                    // 8 clone then drop, 9 endless recirculation,
                                    // 10 truncate, and recirculate once
    bit<8> rounds;                  // how often ingress saw it
    bit<8> kept;                    // metadata preserved by the field list
    bit<8> lost;                    // metadata not in it
    bit<8> kind;                    // instance_type at egress
    bit<16> instance;               // egress_rid
    bit<16> ingress_port;           // as egress sees it
    bit<16> egress_port;
    bit<32> length;                 // packet_length at egress
}
struct headers_t { trace_h trace; }
struct metadata_t {
    @field_list(1) bit<8> kept;
    bit<8> lost;
}
parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start { packet.extract(hdr.trace); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        hdr.trace.rounds = hdr.trace.rounds + 1;
        meta.lost = 0x55;
        if (hdr.trace.op == 1) { standard.mcast_grp = (bit<16>)hdr.trace.argument; }
        else if (hdr.trace.op == 2 || hdr.trace.op == 8) {
            meta.kept = 0xaa;
            clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.trace.argument, 1);
            if (hdr.trace.op == 8) { mark_to_drop(standard); }
        } else if (hdr.trace.op == 4 && meta.kept < hdr.trace.argument) {
            meta.kept = meta.kept + 1;
            resubmit_preserving_field_list(1);
        } else if (hdr.trace.op == 6 || (hdr.trace.op == 10 && meta.kept == 0)) {
            truncate((bit<32>)hdr.trace.argument);
        }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.trace.op == 3 && standard.instance_type == 0) {
            meta.kept = 0xbb;
            clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.trace.argument, 1);
        } else if (hdr.trace.op == 5 && meta.kept < hdr.trace.argument) {
            meta.kept = meta.kept + 1;
            recirculate_preserving_field_list(1);
        } else if (hdr.trace.op == 10 && meta.kept == 0) {
            meta.kept = 1;
            recirculate_preserving_field_list(1);
        } else if (hdr.trace.op == 7) { mark_to_drop(standard); }
        else if (hdr.trace.op == 9) { recirculate_preserving_field_list(1); }
        hdr.trace.kept = meta.kept;
        hdr.trace.lost = meta.lost;
        hdr.trace.kind = (bit<8>)standard.instance_type;
        hdr.trace.instance = standard.egress_rid;
        hdr.trace.ingress_port = (bit<16>)standard.ingress_port;
        hdr.trace.egress_port = (bit<16>)standard.egress_port;
        hdr.trace.length = standard.packet_length;
    }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
