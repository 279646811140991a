// SPDX-License-Identifier: Apache-2.0
//
// rackhub's data plane: a switch as an inner node of an aggregation tree.
//
//   ingress   arrival impairments -> source guard -> node of the tree?  -> no: IPv4 routing
//                                                     |
//                                                     yes: contribution | result | query (node.p4)
//   egress    child's addresses into results -> congestion mark -> departure impairments
//
// docs/reference/protocol.md says what the node does and why.
#define V1MODEL_VERSION 20200408  // indexed externs typed by their index
#include <core.p4>
#include <v1model.p4>

#include "config.p4"
#include "headers.p4"
#include "metadata.p4"
#include "outcomes.p4"
#include "parser.p4"
#include "checksums.p4"
#include "impairment.p4"
#include "source_guard.p4"
#include "forwarding.p4"
#include "node.p4"
#include "egress.p4"

@name("Ingress")
control IngressPipeline(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter<Outcome>((bit<32>)OUTCOMES, CounterType.packets) outcomes;  // each part counts what it does with a packet
    Arrival() arrival;
    SourceGuard() source_guard;
    Forwarding() forwarding;
    Node() aggregation;

    apply {
        arrival.apply(outcomes, hdr, meta, standard_metadata);
        if (!hdr.ipv4.isValid() || hdr.ipv4.version != IPV4_VERSION || hdr.ipv4.ihl < IPV4_WORDS) {
            outcomes.count(Outcome.NOT_IPV4);
        } else if (standard_metadata.checksum_error == 1) {
            outcomes.count(Outcome.BAD_IPV4_CHECKSUM);
        } else {
            source_guard.apply(outcomes, hdr, meta);
            aggregation.apply(outcomes, hdr, meta, standard_metadata);
            if (meta.taken == 0) {
                forwarding.apply(outcomes, hdr, meta, standard_metadata);
            }
        }
    }
}

V1Switch(PacketParser(), VerifyChecksums(), IngressPipeline(), EgressPipeline(), UpdateChecksums(), PacketDeparser()) main;
