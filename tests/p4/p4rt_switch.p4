// SPDX-License-Identifier: Apache-2.0
//
// A program that has one of everything P4Runtime can address: every match kind, const and keyless
// tables, scoped actions, direct and indexed counters, registers, replication, packet I/O.
//
//   CPU port   <- packet_out header -> the packet goes where it says
//   Ethernet   -> bridge (exact), routes (lpm), policy (ternary, range, optional), in that order

#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 255;

header ethernet_h {
    bit<48> destination;
    bit<48> source;
    bit<16> ether_type;
}

@controller_header("packet_in")
header packet_in_h {
    bit<9> ingress_port;
    bit<7> reason;
}

@controller_header("packet_out")
header packet_out_h {
    bit<9> egress_port;
    bit<7> group;
}

struct headers_t {
    packet_out_h packet_out;
    packet_in_h packet_in;
    ethernet_h ethernet;
}

struct metadata_t {
    bit<7> reason;
}

parser Parse(packet_in packet, out headers_t headers, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        transition select(standard.ingress_port) {
            CPU_PORT: from_controller;
            default: ethernet;
        }
    }
    state from_controller {
        packet.extract(headers.packet_out);
        transition ethernet;
    }
    state ethernet {
        packet.extract(headers.ethernet);
        transition accept;
    }
}

control Switch(inout headers_t headers, inout metadata_t meta,
                inout standard_metadata_t standard) {
    counter(8, CounterType.packets_and_bytes) arrivals;
    register<bit<32>>(4) last;
    register<bit<2048>>(2) wide;
    register<int<12>>(2) signed_cells;
    direct_counter(CounterType.packets_and_bytes) hits;

    action drop() {
        mark_to_drop(standard);
    }
    action forward(bit<9> port) {
        standard.egress_spec = port;
    }
    action flood(bit<16> group) {
        standard.mcast_grp = group;
    }
    action mirror(bit<9> port) {
        standard.egress_spec = port;
        clone(CloneType.I2E, 7);
    }
    action to_controller(bit<7> reason) {
        meta.reason = reason;
        standard.egress_spec = CPU_PORT;
    }

    table bridge {
        key = {
            headers.ethernet.destination: exact @name("destination");
            standard.ingress_port: exact @name("port");
        }
        actions = {
            forward;
            flood;
            mirror;
            to_controller;
            @tableonly drop;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        counters = hits;
        size = 4;
    }
    table routes {
        key = {
            headers.ethernet.source: lpm @name("source");
        }
        actions = {
            forward;
            drop;
        }
        const default_action = drop();
        size = 1024;
    }
    table policy {
        key = {
            headers.ethernet.ether_type: ternary @name("ether_type");
            standard.ingress_port: range @name("port");
            headers.ethernet.source: optional @name("source");
        }
        actions = {
            forward;
            drop;
            NoAction;
        }
        default_action = NoAction();
        size = 64;
    }
    table fixed {
        key = {
            headers.ethernet.ether_type: ternary @name("ether_type");
        }
        actions = {
            forward;
            NoAction;
        }
        default_action = NoAction();
        const entries = {
            0x88b5: forward(5);
            0x8800 &&& 0xff00: forward(6);
        }
    }
    table everything {
        actions = {
            drop;
            NoAction;
        }
        default_action = NoAction();
    }

    apply {
        arrivals.count((bit<32>) standard.ingress_port & 7);
        last.write((bit<32>) standard.ingress_port & 3, headers.ethernet.source[31:0]);
        bit<2048> one;
        wide.read(one, 0);
        wide.write(1, one + 1);
        int<12> cell;
        signed_cells.read(cell, 0);
        signed_cells.write(1, cell - 1);
        if (headers.packet_out.isValid()) {
            if (headers.packet_out.group != 0) {
                standard.mcast_grp = (bit<16>) headers.packet_out.group;
            } else {
                standard.egress_spec = headers.packet_out.egress_port;
            }
            headers.packet_out.setInvalid();
        } else if (!bridge.apply().hit) {
            routes.apply();
            policy.apply();
            fixed.apply();
        }
        everything.apply();
    }
}

control Depart(inout headers_t headers, inout metadata_t meta,
               inout standard_metadata_t standard) {
    apply {
        // Copies show which of the group's or session's replicas they are.
        if (standard.egress_rid != 0) {
            headers.ethernet.destination[15:0] = standard.egress_rid;
        }
        if (standard.egress_port == CPU_PORT) {
            headers.packet_in.setValid();
            headers.packet_in.ingress_port = standard.ingress_port;
            headers.packet_in.reason = meta.reason;
        }
    }
}

control Verify(inout headers_t headers, inout metadata_t meta) {
    apply { }
}

control Compute(inout headers_t headers, inout metadata_t meta) {
    apply { }
}

control Deparse(packet_out packet, in headers_t headers) {
    apply {
        packet.emit(headers.packet_in);
        packet.emit(headers.ethernet);
    }
}

V1Switch(Parse(), Verify(), Switch(), Depart(), Compute(), Deparse()) main;
