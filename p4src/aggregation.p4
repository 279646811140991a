// SPDX-License-Identifier: Apache-2.0
//
// rackhub's data plane: a switch as an inner node of an aggregation tree.
//
//   ingress   gate -> arrival impairments -> node of the tree?  -> no: source guard -> IPv4 routing
//                                               |
//                                               yes: contribution of a child | source guard -> result | query (node.p4)
//   egress    child's addresses into results -> congestion mark -> departure impairments
//
// The gate says what no link of the switch asks for, which is then not looked up. A child's entry names its port and address, so
// that a contribution that it accepts needs no guard.
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
#include "gate.p4"
#include "impairment.p4"
#include "source_guard.p4"
#include "forwarding.p4"
#include "node.p4"
#include "egress.p4"

@name("Ingress")
control IngressPipeline(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter<Outcome>((bit<32>)OUTCOMES, CounterType.packets) outcomes;  // each part counts what it does with a packet
    Gate() gate;
    Arrival() arrival;
    Forwarding() forwarding;
    Node() aggregation;

    apply {
        gate.apply(meta);
        if (meta.unimpaired == 0 || standard_metadata.instance_type == INSTANCE_RECIRCULATED) {
            arrival.apply(outcomes, hdr, meta, standard_metadata);
        }
        if (hdr.ipv4.isValid() && hdr.ipv4.version == IPV4_VERSION && hdr.ipv4.ihl >= IPV4_WORDS &&
            standard_metadata.checksum_error == 0) {
            aggregation.apply(outcomes, hdr, meta, standard_metadata);
            if (meta.taken == 0) {
                forwarding.apply(outcomes, hdr, meta, standard_metadata);
            }
        } else if (!hdr.ipv4.isValid() || hdr.ipv4.version != IPV4_VERSION || hdr.ipv4.ihl < IPV4_WORDS) {
            outcomes.count(Outcome.NOT_IPV4);
        } else {
            outcomes.count(Outcome.BAD_IPV4_CHECKSUM);
        }
    }
}

V1Switch(PacketParser(), VerifyChecksums(), IngressPipeline(), EgressPipeline(), UpdateChecksums(), PacketDeparser()) main;
