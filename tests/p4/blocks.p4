// SPDX-License-Identifier: Apache-2.0
//
// A large header that stays where it arrived until somebody looks at it, and all that may become of
// its packet: multicast, clones, resubmission, recirculation, digests, removal and addition;
// and a table with an action selector, direct counters, a direct meter and an idle timeout.
#include <core.p4>
#include <v1model.p4>

header order_h {
    bit<8> ingress;  // 1 multicast, 2 clone, 4 clone with fields, 8 resubmit, 0x10 digest,
                     // 0x20 drop, 0x40 change the block, 0x80 remove it
    bit<8> egress;   // 1 clone, 2 clone with fields, 4 recirculate, 8 drop, 0x10 add the block,
                     // 0x20 grow, 0x40 change the block if both are there (or `blocks` is 7,
                     // which says nothing of the packet), 0x80 remove the second one
    bit<8> port; bit<8> group; bit<8> session; bit<8> rounds; bit<8> key; bit<8> blocks;
}
header trace_h {
    bit<8> passes; bit<8> seen; bit<8> kind; bit<8> color; bit<8> member; bit<8> rid; bit<16> spec;
}
header extra_h { bit<64> filler; }
header block_h { bit<1024> words; }
struct headers_t { order_h order; trace_h trace; extra_h extra; block_h first; block_h second; }
struct told_t { bit<8> key; bit<8> seen; }
struct metadata_t {
    @field_list(1, 2) bit<8> kept;
    @field_list(2) bit<8> more;
    bit<2> color;
    told_t told;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        packet.extract(hdr.trace);
        transition select(hdr.order.blocks) { 1: one; 2: two; 3: other; default: accept; }
    }
    state one { packet.extract(hdr.first); transition accept; }
    state two { packet.extract(hdr.first); packet.extract(hdr.second); transition accept; }
    state other { packet.extract(hdr.second); packet.extract(hdr.first); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<1024>>(8) blocks;
    direct_counter(CounterType.packets_and_bytes) hits;
    direct_meter<bit<2>>(MeterType.packets) volume;
    action_selector(HashAlgorithm.crc16, 128, 16) spread;
    action mark(bit<8> member) { volume.read(meta.color); hdr.trace.member = member; }
    action send(bit<9> port, bit<8> member) {
        volume.read(meta.color);
        standard.egress_spec = port;
        hdr.trace.member = member;
    }
    table keys {
        key = { hdr.order.key: exact; hdr.trace.passes: selector; hdr.order.rounds: selector; }
        actions = { mark; send; }
        implementation = spread;
        counters = hits;
        meters = volume;
        support_timeout = true;
        size = 512;
    }
    apply {
        if (!hdr.trace.isValid()) { mark_to_drop(standard); exit; }
        standard.egress_spec = (bit<9>)hdr.order.port;
        keys.apply();
        hdr.trace.color = (bit<8>)meta.color;
        hdr.trace.passes = hdr.trace.passes + 1;
        hdr.trace.seen = meta.kept;
        if (hdr.order.ingress & 1 != 0) { standard.mcast_grp = (bit<16>)hdr.order.group; }
        if (hdr.order.ingress & 0x40 != 0 && hdr.first.isValid()) {
            bit<1024> before;
            blocks.read(before, (bit<32>)(hdr.order.key & 7));
            blocks.write((bit<32>)(hdr.order.key & 7), hdr.first.words);
            hdr.first.words = before;
        }
        if (hdr.order.ingress & 0x80 != 0) { hdr.first.setInvalid(); }
        if (hdr.order.ingress & 0x10 != 0) {
            meta.told = { hdr.order.key, meta.kept };
            digest<told_t>(1, meta.told);
        }
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
        if (hdr.order.ingress & 0x20 != 0) { mark_to_drop(standard); }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        hdr.trace.kind = (bit<8>)standard.instance_type;
        hdr.trace.rid = (bit<8>)standard.egress_rid;
        hdr.trace.spec = (bit<16>)standard.egress_spec;
        if (hdr.order.egress & 0x20 != 0) {
            hdr.extra.setValid();
            hdr.extra.filler = 0x0102030405060708;
        }
        if (hdr.order.egress & 0x10 != 0) { hdr.first.setValid(); hdr.first.words = 1024w7 << 512; }
        if (hdr.order.egress & 0x40 != 0 &&
            (hdr.order.blocks == 7 || hdr.first.isValid() && hdr.second.isValid())) {
            hdr.first.words = hdr.first.words ^ hdr.second.words;
        }
        if (hdr.order.egress & 0x80 != 0) { hdr.second.setInvalid(); }
        if (standard.instance_type == 0 || standard.instance_type == 5) {
            if (hdr.order.egress & 1 != 0) { clone(CloneType.E2E, (bit<32>)hdr.order.session); }
            if (hdr.order.egress & 2 != 0) {
                clone_preserving_field_list(CloneType.E2E, (bit<32>)hdr.order.session, 2);
            }
        }
        if (hdr.order.egress & 4 != 0 && meta.kept < hdr.order.rounds) {
            meta.kept = meta.kept + 1;
            recirculate_preserving_field_list(1);
        }
        if (hdr.order.egress & 8 != 0) { mark_to_drop(standard); }
    }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
