// SPDX-License-Identifier: Apache-2.0
//
// Meters: of packets and of bytes, by an index that may be out of range, several times in one packet,
// and of the entries that a packet hits, in both controls. Colors are written into the packet.
#include <core.p4>
#include <v1model.p4>

header order_t {
    bit<8> index;
    bit<8> host;
    bit<8> packets; // colors
    bit<8> bytes;
    bit<8> again;
    bit<8> entry;
    bit<8> leaving;
}

struct headers_t { order_t order; }
struct metadata_t {
    bit<2>  entry;
    bit<80> leaving;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    meter(8, MeterType.packets) packets;
    meter(8, MeterType.bytes) bytes;
    direct_meter<bit<2>>(MeterType.packets) each;

    action forward(bit<9> port) {
        each.read(meta.entry);
        standard.egress_spec = port;
    }
    action keep() {
        each.read(meta.entry);
        standard.egress_spec = 1;
    }
    action miss() { standard.egress_spec = 2; }

    table hosts {
        key = { hdr.order.host: ternary; }
        actions = { forward; keep; @defaultonly miss; }
        const default_action = miss();
        meters = each;
        size = 16;
    }

    apply {
        meta.entry = 3;
        hosts.apply();
        hdr.order.entry = (bit<8>)meta.entry;
        hdr.order.packets = 9;
        packets.execute_meter((bit<32>)(hdr.order.index & 7), hdr.order.packets);
        hdr.order.bytes = 9;
        bytes.execute_meter((bit<32>)(hdr.order.index & 7), hdr.order.bytes);
        hdr.order.again = 9;
        if (hdr.order.index > 127) {
            bytes.execute_meter((bit<32>)(hdr.order.index & 7), hdr.order.again);
        }
    }
}

control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    direct_meter<bit<80>>(MeterType.bytes) volume;
    action read() { volume.read(meta.leaving); }

    table ports {
        key = { standard.egress_port: exact; hdr.order.index: range; }
        actions = { read; NoAction; }
        const default_action = NoAction();
        meters = volume;
        size = 16;
    }

    apply {
        meta.leaving = 80w0xfff << 68 | 7;
        ports.apply();
        hdr.order.leaving = meta.leaving[7:0] ^ meta.leaving[79:72];
    }
}

control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.order); } }

V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
