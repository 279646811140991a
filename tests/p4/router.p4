// SPDX-License-Identifier: Apache-2.0
//
// An IPv4 router: checksums verified and updated, longest prefix match, TTL, options refused.
#include <core.p4>
#include <v1model.p4>

header ethernet_h { bit<48> destination; bit<48> source; bit<16> type; }
header ipv4_h {
    bit<4> version; bit<4> ihl; bit<8> dscp; bit<16> length;
    bit<16> identification; bit<3> flags; bit<13> offset;
    bit<8> ttl; bit<8> protocol; bit<16> checksum; bit<32> source; bit<32> destination;
}
struct headers_t { ethernet_h ethernet; ipv4_h ipv4; }
struct metadata_t {}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) { 0x0800: ipv4; default: accept; }
    }
    state ipv4 {
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.version == 4 && hdr.ipv4.ihl == 5, error.ParserInvalidArgument);
        transition accept;
    }
}
control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.length,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl,
              hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(),
            { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.length,
              hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.offset, hdr.ipv4.ttl,
              hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination },
            hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}
control Route(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets_and_bytes) used;
    // 0: parser error, 1: bad checksum, 2: TTL, 3: no route
    counter(4, CounterType.packets) refused;
    action drop() { mark_to_drop(standard); }
    action forward(bit<9> port, bit<48> next_hop) {
        standard.egress_spec = port;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = next_hop;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
    }
    action no_route() { refused.count(3); mark_to_drop(standard); }
    table routes {
        key = { hdr.ipv4.destination: lpm; }
        actions = { forward; no_route; }
        counters = used;
        default_action = no_route();
        size = 1024;
    }
    apply {
        drop();
        if (standard.parser_error != error.NoError) { refused.count(0); }
        else if (hdr.ipv4.isValid()) {
            if (standard.checksum_error == 1) { refused.count(1); }
            else if (hdr.ipv4.ttl <= 1) { refused.count(2); }
            else { routes.apply(); }
        }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Route(), Leave(), Update(), Emit()) main;
