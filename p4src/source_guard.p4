// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_SOURCE_GUARD
#define RACKHUB_SOURCE_GUARD

#include "metadata.p4"
#include "outcomes.p4"

// Edge ports take only their own host's source addresses, so that everything behind this line may trust a source address.
// For an edge port the control plane writes (port, address/32) -> permit per address, and (port, 0.0.0.0/0) -> deny;
// ports between switches have no entry.
control SourceGuard(counter<Outcome> outcomes, in headers_t hdr, in standard_metadata_t standard_metadata) {
    action permit() {}
    action deny() {}

    table sources {
        key = {
            standard_metadata.ingress_port: exact @name("ingress_port");
            hdr.ipv4.source: lpm @name("source");
        }
        actions = { permit; deny; }
        const default_action = permit();
        size = MAX_SOURCES;
    }

    apply {
        switch (sources.apply().action_run) {
            deny: {
                outcomes.count(Outcome.SPOOFED_SOURCE);
                exit;
            }
        }
    }
}

#endif
