// SPDX-License-Identifier: Apache-2.0
//
// For tests of ports: what arrives on a port leaves by the one that its table says. Packets of UDP
// port 9 (discard) go to the CPU port. The DSCP's upper three bits are the queue's priority.
// deepest_queue keeps the deepest queue that a packet of each egress port has met.
#include <core.p4>
#include <v1model.p4>

header ethernet_h {
    bit<48> destination;
    bit<48> source;
    bit<16> type;
}

header ipv4_h {
    bit<4> version;
    bit<4> header_length;
    bit<8> dscp_ecn;
    bit<16> length;
    bit<16> id;
    bit<16> fragment;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    bit<32> source;
    bit<32> destination;
}

header udp_h {
    bit<16> source;
    bit<16> destination;
    bit<16> length;
    bit<16> checksum;
}

struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
}

struct metadata_t {}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x0800: ipv4;
            default: accept;
        }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.header_length, hdr.ipv4.protocol) {
            (5, 17): udp;
            default: accept;
        }
    }
    state udp {
        packet.extract(hdr.udp);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Switch(inout headers_t hdr, inout metadata_t meta,
                inout standard_metadata_t standard_metadata) {
    action forward(bit<9> port) {
        standard_metadata.egress_spec = port;
    }
    action drop() {
        mark_to_drop(standard_metadata);
    }
    table wires {
        key = { standard_metadata.ingress_port: exact; }
        actions = { forward; drop; }
        default_action = drop();
        size = 512;
    }
    apply {
        wires.apply();
        if (hdr.ipv4.isValid()) {
            standard_metadata.priority = hdr.ipv4.dscp_ecn[7:5];
        }
        if (hdr.udp.isValid() && hdr.udp.destination == 9) {
            standard_metadata.egress_spec = 510;
        }
    }
}

control Depart(inout headers_t hdr, inout metadata_t meta,
               inout standard_metadata_t standard_metadata) {
    register<bit<32>>(512) deepest_queue;
    apply {
        bit<32> deepest;
        deepest_queue.read(deepest, (bit<32>)standard_metadata.egress_port);
        if ((bit<32>)standard_metadata.enq_qdepth > deepest) {
            deepest_queue.write((bit<32>)standard_metadata.egress_port,
                             (bit<32>)standard_metadata.enq_qdepth);
        }
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control Deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
    }
}

V1Switch(Parse(), Verify(), Switch(), Depart(), Update(), Deparse()) main;
