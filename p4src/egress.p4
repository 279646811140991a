// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_EGRESS
#define RACKHUB_EGRESS

#include "metadata.p4"
#include "checksums.p4"
#include "impairment.p4"

// Addresses a result to one child, by its multicast instance, which is its index plus 1: the copy that multicast made for it, or
// the only one of a replay.
control Receivers(inout headers_t hdr, inout standard_metadata_t standard_metadata) {
    action address(ipv4_t destination, bit<16> udp_port, mac_t mac, bit<16> node) {
        hdr.ipv4.destination = destination;
        hdr.udp.destination = udp_port;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = mac;
        hdr.aggregation.node = node;
        hdr.aggregation.sender = (bit<8>)(standard_metadata.egress_rid - 1);
    }

    table children {
        key = {
            hdr.aggregation.job: exact @name("job");
            hdr.aggregation.epoch: exact @name("epoch");
            hdr.aggregation.stream: exact @name("stream");
            standard_metadata.egress_rid: exact @name("child");  // from 1 on
        }
        actions = { address; NoAction; }
        const default_action = NoAction();
        size = MAX_CHILDREN;
    }

    apply {
        if (!children.apply().hit) {
            mark_to_drop(standard_metadata);  // the entry was deleted while the packet was queued
        }
    }
}

// Marks what found a long queue: in the IP header where the sender allows it (RFC 3168), and in a contribution's own
// flags, which the next node ORs into the sum. DIRECT and BYPASS chunks are summed by no switch and get the IP mark alone.
control Congestion(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action mark_above(bit<19> depth) { meta.unmarked = depth; }

    table thresholds {
        key = { standard_metadata.egress_port: exact @name("egress_port"); }
        actions = { mark_above; NoAction; }
        const default_action = NoAction();
        size = PORTS;
    }

    apply {
        if (thresholds.apply().hit) {
            if (standard_metadata.enq_qdepth > meta.unmarked) {
                if (hdr.ipv4.isValid() && (hdr.ipv4.ecn == ECN_CAPABLE_0 || hdr.ipv4.ecn == ECN_CAPABLE_1)) {
                    hdr.ipv4.checksum = checksum_after(hdr.ipv4.checksum,
                                                       (bit<16>)(CONGESTION_EXPERIENCED - hdr.ipv4.ecn));
                    hdr.ipv4.ecn = CONGESTION_EXPERIENCED;
                }
                if (hdr.aggregation.isValid() && hdr.aggregation.version == VERSION &&
                    hdr.aggregation.op == CONTRIBUTE && (hdr.aggregation.flags & UNTOUCHED) == 0) {
                    hdr.aggregation.flags = hdr.aggregation.flags | ECN;
                    hdr.udp.checksum = 0;
                }
            }
        }
    }
}

#if BLOCKS == 0
// Takes the payload off a packet whose lengths say that it has none. Done here for each copy: what multicast copies is not
// cut again by a truncate in ingress.
control Cut(in headers_t hdr) {
    apply {
        if (hdr.aggregation.isValid() && hdr.udp.length == UDP_BYTES + AGGREGATION_BYTES &&
            hdr.ipv4.total_length == IPV4_BYTES + UDP_BYTES + AGGREGATION_BYTES) {
            truncate((bit<32>)(ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES + AGGREGATION_BYTES));
        }
    }
}
#endif

@name("Egress")
control EgressPipeline(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Receivers() receivers;
    Congestion() congestion;
    Departure() departure;
#if BLOCKS == 0
    Cut() cut;
#endif

    apply {
        // Detours are only of packets that were impaired.
        if (meta.unimpaired == 1 ||
            (meta.recirculate == 0 && meta.detour.kind != Detour.DEPARTURE &&
             standard_metadata.instance_type != INSTANCE_INGRESS_CLONE &&
             standard_metadata.instance_type != INSTANCE_EGRESS_CLONE)) {
#if BLOCKS == 0
            cut.apply(hdr);
#endif
            if (standard_metadata.egress_rid != 0) {
                receivers.apply(hdr, standard_metadata);
            }
            if (meta.unimpaired == 0 || standard_metadata.enq_qdepth > meta.unmarked) {
                congestion.apply(hdr, meta, standard_metadata);
                if (meta.unimpaired == 0) {
                    departure.apply(hdr, meta, standard_metadata);
                }
            }
        } else if (meta.recirculate == 1 || standard_metadata.instance_type == INSTANCE_INGRESS_CLONE) {
            recirculate_preserving_field_list(DETOUR_FIELDS);
#if BLOCKS == 0
        } else {
            cut.apply(hdr);
#endif
        }
    }
}

#endif
