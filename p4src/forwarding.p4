// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_FORWARDING
#define RACKHUB_FORWARDING

#include "metadata.p4"
#include "outcomes.p4"
#include "checksums.p4"

// Plain IPv4 routing of all that no node here takes.
control Forwarding(counter<Outcome> outcomes, inout headers_t hdr, in metadata_t meta,
                   inout standard_metadata_t standard_metadata) {
    action forward(port_t port, mac_t mac) {
        standard_metadata.egress_spec = port;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        hdr.ipv4.checksum = checksum_after(hdr.ipv4.checksum, ONE_HOP);
        outcomes.count(meta.routed);
    }

    action no_route() {
        outcomes.count(Outcome.NO_ROUTE);
    }

    table routes {
        key = { hdr.ipv4.destination: lpm @name("destination"); }
        actions = { forward; no_route; }
        const default_action = no_route();
        size = MAX_ROUTES;
    }

    apply {
        if (hdr.ipv4.ttl > 1) {
            routes.apply();
        } else {
            outcomes.count(Outcome.TTL_EXPIRED);
        }
    }
}

#endif
