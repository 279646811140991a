// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_PARSER
#define RACKHUB_PARSER

#include "metadata.p4"

// Blocks are parsed only where a switch may sum them. DIRECT and BYPASS chunks, queries, exponent rounds and flagged
// chunks end with aggregation_h; what follows passes as it is. IPv4 options pass like payload: nothing here reads them.
parser PacketParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard_metadata) {
    state start {
        standard_metadata.egress_spec = DROP_PORT;  // unless something sends it: as mark_to_drop, without a table of its own
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }

    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.flags, hdr.ipv4.protocol) {
            (IPV4_VERSION, IPV4_WORDS, 0, 0 &&& 1, PROTOCOL_UDP): parse_udp;  // no options, no fragment
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.source, hdr.udp.destination) {
            (SERVER_PORTS &&& SERVER_PORTS_MASK, _): parse_aggregation;
            (_, SERVER_PORTS &&& SERVER_PORTS_MASK): parse_aggregation;
            default: accept;
        }
    }

    state parse_aggregation {
        packet.extract(hdr.aggregation);
        transition select(hdr.aggregation.version, hdr.aggregation.op, hdr.aggregation.flags, hdr.aggregation.lanes,
                          hdr.aggregation.stream) {
            (VERSION, CONTRIBUTE, 0 &&& (UNTOUCHED | FLAGGED), 0, 0 &&& CLASSED): accept;
            (VERSION, RESULT, 0 &&& (UNTOUCHED | FLAGGED), 0, 0 &&& CLASSED): accept;
            (VERSION, CONTRIBUTE, 0 &&& (UNTOUCHED | FLAGGED), _, 0 &&& CLASSED): parse_blocks;
            (VERSION, RESULT, 0 &&& (UNTOUCHED | FLAGGED), _, 0 &&& CLASSED): parse_blocks;
            (VERSION, _, _, _, CLASSED &&& CLASSED): parse_priority;
            default: accept;
        }
    }

    // Here rather than in ingress, so that other packets pay nothing for it, and copies and recirculated packets keep it.
    state parse_priority {
        standard_metadata.priority = hdr.aggregation.stream[6:4];
        transition select(hdr.aggregation.op, hdr.aggregation.flags, hdr.aggregation.lanes) {
            (CONTRIBUTE, 0 &&& (UNTOUCHED | FLAGGED), 0): accept;
            (RESULT, 0 &&& (UNTOUCHED | FLAGGED), 0): accept;
            (CONTRIBUTE, 0 &&& (UNTOUCHED | FLAGGED), _): parse_blocks;
            (RESULT, 0 &&& (UNTOUCHED | FLAGGED), _): parse_blocks;
            default: accept;
        }
    }

    state parse_blocks {
#define EXTRACT(i) packet.extract(hdr.block##i);
        FOR_EACH_BLOCK(EXTRACT)
#undef EXTRACT
#if BLOCKS == 0
        meta.has_payload = 1;
#endif
        transition accept;
    }
}

control PacketDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.aggregation);
#define EMIT(i) packet.emit(hdr.block##i);
        FOR_EACH_BLOCK(EMIT)
#undef EMIT
    }
}

#endif
