// SPDX-License-Identifier: Apache-2.0
//
// Whatever a packet can ask for, several at once: multicast, clones with and without metadata,
// resubmission, recirculation, truncation, drops, exits. Each bit of `ingress` and `egress` is one.
#include <core.p4>
#include <v1model.p4>

header order_h {
    bit<8> ingress;  // 1 multicast, 2 clone, 4 clone with fields, 8 resubmit, 0x10 drop first,
                     // 0x20 drop last, 0x40 truncate, 0x80 exit
    bit<8> egress;   // 1 clone, 2 clone with fields, 4 recirculate, 8 drop, 0x10 truncate,
                     // 0x20 grow, 0x40 shrink, 0x80 exit
    bit<8> port; bit<8> group; bit<8> session; bit<8> rounds; bit<16> size;
}
header trace_h {
    bit<8> passes; bit<8> kept; bit<8> lost; bit<8> more; bit<8> kind; bit<16> instance;
    bit<16> ingress_port; bit<16> egress_port; bit<16> egress_spec; bit<32> length;
    bit<32> ingress_length; bit<8> seen;
}
header extra_h { bit<64> filler; }
struct headers_t { order_h order; trace_h trace; extra_h extra; }
struct metadata_t {
    @field_list(1, 2) bit<8> kept;
    @field_list(2) bit<8> more;
    @field_list(2) bit<9> port;
    bit<8> lost;
    bit<32> length;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start { packet.extract(hdr.order); packet.extract(hdr.trace); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    counter(8, CounterType.packets_and_bytes) passes;
    register<bit<32>>(8) kinds;
    apply {
        if (!hdr.trace.isValid()) { mark_to_drop(standard); exit; }
        passes.count((bit<32>)standard.instance_type);
        bit<32> number;
        kinds.read(number, (bit<32>)standard.instance_type);
        kinds.write((bit<32>)standard.instance_type, number + standard.packet_length);
        meta.length = standard.packet_length;
        hdr.trace.passes = hdr.trace.passes + 1;
        hdr.trace.seen = meta.kept;
        standard.egress_spec = (bit<9>)hdr.order.port;
        meta.lost = 0x55;
        if (hdr.order.ingress & 0x10 != 0) { mark_to_drop(standard); }
        if (hdr.order.ingress & 1 != 0) { standard.mcast_grp = (bit<16>)hdr.order.group; }
        if (hdr.order.ingress & 0x40 != 0) { truncate((bit<32>)hdr.order.size); }
        if (meta.kept < hdr.order.rounds) {
            meta.kept = meta.kept + 1;
            meta.more = 0x77;
            if (hdr.order.ingress & 2 != 0) {
                clone(CloneType.I2E, (bit<32>)hdr.order.session);
            }
            if (hdr.order.ingress & 4 != 0) {
                clone_preserving_field_list(CloneType.I2E, (bit<32>)hdr.order.session, 2);
            }
            if (hdr.order.ingress & 8 != 0) { resubmit_preserving_field_list(1); }
        }
        if (hdr.order.ingress & 0x80 != 0) { exit; }
        hdr.trace.more = meta.more;
        if (hdr.order.ingress & 0x20 != 0) { mark_to_drop(standard); }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    counter(512, CounterType.packets_and_bytes) sent;
    apply {
        sent.count((bit<32>)standard.egress_port);
        hdr.trace.kept = meta.kept;
        hdr.trace.lost = meta.lost;
        hdr.trace.kind = (bit<8>)standard.instance_type;
        hdr.trace.instance = standard.egress_rid;
        hdr.trace.ingress_port = (bit<16>)standard.ingress_port;
        hdr.trace.egress_port = (bit<16>)standard.egress_port;
        hdr.trace.egress_spec = (bit<16>)standard.egress_spec;
        if (hdr.order.egress & 0x20 != 0) { hdr.extra.setValid(); hdr.extra.filler = 0x0102030405060708; }
        hdr.trace.length = standard.packet_length;
        hdr.trace.ingress_length = meta.length;
        if (standard.instance_type == 0 || standard.instance_type == 5) {
            if (hdr.order.egress & 1 != 0) { clone(CloneType.E2E, (bit<32>)hdr.order.session); }
            if (hdr.order.egress & 2 != 0) {
                clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.order.session, 2);
            }
        }
        if (hdr.order.egress & 0x80 != 0) { exit; }
        if (hdr.order.egress & 4 != 0 && meta.kept < hdr.order.rounds) {
            meta.kept = meta.kept + 1;
            recirculate_preserving_field_list(1);
        }
        if (hdr.order.egress & 0x10 != 0) { truncate((bit<32>)hdr.order.size); }
        if (hdr.order.egress & 0x40 != 0) { hdr.trace.setInvalid(); }
        if (hdr.order.egress & 8 != 0) { mark_to_drop(standard); }
    }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
