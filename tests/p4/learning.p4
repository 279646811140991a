// SPDX-License-Identifier: Apache-2.0
//
// A switch that tells its controller what it does not know: digests of two shapes, of which the last
// one in a packet counts, with values as they were when it was made; and hosts that are forgotten.
// Packets of the controller say where they are to have come from.
#include <core.p4>
#include <v1model.p4>

#define CPU_PORT 255

@controller_header("packet_out")
header packet_out_t {
    bit<9> port;
    bit<7> padding;
}

header frame_t {
    bit<48> destination;
    bit<48> source;
    bit<16> type;
}

struct learned_t {
    bit<48> source;
    bit<9>  port;
    bit<1>  from_controller;
}

struct odd_t {
    bit<8>  low;
    bit<72> wide;
    bit<16> type;
}

struct headers_t {
    packet_out_t order;
    frame_t      frame;
}

struct metadata_t {
    bit<9> port;
    odd_t  odd;
    bit<2> color;
}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        meta.port = standard.ingress_port;
        transition select(standard.ingress_port) {
            CPU_PORT: parse_out;
            default: parse_frame;
        }
    }
    state parse_out {
        packet.extract(hdr.order);
        meta.port = hdr.order.port;
        transition parse_frame;
    }
    state parse_frame {
        packet.extract(hdr.frame);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    meter(512, MeterType.packets) arrivals;
    direct_meter<bit<2>>(MeterType.bytes) volume;

    action known() { volume.read(meta.color); }
    action learn() {
        learned_t learned; // p4c copies a local struct whole (assign_header)
        learned.source = hdr.frame.source;
        learned.port = meta.port;
        learned.from_controller = (bit<1>)hdr.order.isValid();
        digest<learned_t>(1, learned);
    }

    table sources {
        key = { hdr.frame.source: exact; }
        actions = { known; @defaultonly learn; }
        const default_action = learn();
        meters = volume;
        support_timeout = true;
        size = 64;
    }

    apply {
        arrivals.execute_meter((bit<32>)meta.port, meta.color);
        sources.apply();
        standard.egress_spec = 2;
        if (hdr.frame.type[15:15] == 1) {
            meta.odd = { hdr.frame.type[7:0], hdr.frame.destination ++ 24w0xabcdef, 1 };
            digest<odd_t>(1, meta.odd);
            meta.odd.type = hdr.frame.type;
        }
        if (hdr.frame.type[14:14] == 1) { mark_to_drop(standard); }
        hdr.order.setInvalid();
        hdr.frame.type[7:6] = meta.color;
    }
}

control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}

control Emit(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.frame);
    }
}

V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
