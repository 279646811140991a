// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_NODE
#define RACKHUB_NODE

#include "metadata.p4"
#include "outcomes.p4"
#include "slots.p4"
#include "blocks.p4"

// The state machine of one node of an aggregation tree (docs/reference/protocol.md, "A node"). A packet with no entry in `nodes` is
// not for this switch and left alone (taken = false): that makes aggregation transparent. A QUERY_ANSWERED packet is a STATE
// for the caller to route.
control Node(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata,
             out Outcome outcome, out bool taken) {
    Slots() slots;
    Blocks() blocks;

    bool newer;           // the packet's chunk is newer than the slot's, or the slot is another job's
    bool current;         // the packet is about the slot's chunk
    bool same_number;     // the slot's number in the stream; `current` also says the same chunk and server
    bool sum_has_payload;
    bool lanes_overflowed;
    bool well_formed;
    bit<16> expected_length;
    bit<16> server_port;  // of the packet: where it goes, or a RESULT comes from
    seq_t age;
    children_t bit_of_sender;
    ipv4_t asker;
    bit<16> asker_port;

    // -- tables -----------------------------------------------------------------------------------------------------

    action root(bit<32> base, bit<32> mask, children_t full, bit<16> group) {
        meta.node.is_root = 1;
        meta.node.base = base;
        meta.node.mask = mask;
        meta.node.full = full;
        meta.node.group = group;
    }

    action inner(bit<32> base, bit<32> mask, children_t full, bit<16> group, port_t parent_port, mac_t parent_mac,
                 bit<16> parent, bit<8> sender, ipv4_t address) {
        meta.node.is_root = 0;
        meta.node.base = base;
        meta.node.mask = mask;
        meta.node.full = full;
        meta.node.group = group;
        meta.node.parent_port = parent_port;
        meta.node.parent_mac = parent_mac;
        meta.node.parent = parent;
        meta.node.sender = sender;
        meta.node.address = address;
    }

    table nodes {
        key = {
            hdr.aggregation.job: exact @name("job");
            hdr.aggregation.epoch: exact @name("epoch");
            hdr.aggregation.stream: exact @name("stream");
            hdr.aggregation.node: exact @name("node");
        }
        actions = { root; inner; NoAction; }
        const default_action = NoAction();
        size = MAX_NODES;
    }

    action worker(ipv4_t source, bit<16> workers) {
        meta.from_child.source = source;
        meta.from_child.workers = workers;
        meta.from_child.is_subtree = 0;
    }

    action subtree(ipv4_t source, bit<16> workers) {
        meta.from_child.source = source;
        meta.from_child.workers = workers;
        meta.from_child.is_subtree = 1;
    }

    table children {
        key = {
            hdr.aggregation.job: exact @name("job");
            hdr.aggregation.epoch: exact @name("epoch");
            hdr.aggregation.stream: exact @name("stream");
            hdr.aggregation.node: exact @name("node");
            hdr.aggregation.sender: exact @name("sender");
            meta.ingress_port: exact @name("ingress_port");
        }
        actions = { worker; subtree; NoAction; }
        const default_action = NoAction();
        size = MAX_CHILDREN;
    }

    // -- what a contribution does to the slot ------------------------------------------------------------------------

    action claim() {
        meta.slot.job = hdr.aggregation.job;
        meta.slot.epoch = hdr.aggregation.epoch;
        meta.slot.seq = hdr.aggregation.seq;
        meta.slot.chunk = hdr.aggregation.chunk;
        meta.slot.server = hdr.ipv4.destination;
        meta.slot.server_port = server_port[3:0];
        meta.slot.children = bit_of_sender;
        meta.slot.workers = hdr.aggregation.workers;
        meta.slot.lanes = hdr.aggregation.lanes;
        meta.slot.checksum = hdr.aggregation.checksum;
        meta.slot.exponent = hdr.aggregation.exponent;
        meta.slot.max_exponent = hdr.aggregation.max_exponent;
        meta.slot.flags = hdr.aggregation.flags & (FLAGGED | ECN);
        meta.slot.phase = Phase.AGGREGATING;
    }

    action add() {
        meta.slot.children = meta.slot.children | bit_of_sender;
        meta.slot.workers = meta.slot.workers + hdr.aggregation.workers;
        meta.slot.checksum = meta.slot.checksum + hdr.aggregation.checksum;
        meta.slot.flags = meta.slot.flags | (hdr.aggregation.flags & (FLAGGED | ECN));
    }

    // The parent's sum takes the place of this node's own.
    action store_result() {
        meta.slot.workers = hdr.aggregation.workers;
        meta.slot.lanes = hdr.aggregation.lanes;
        meta.slot.checksum = hdr.aggregation.checksum;
        meta.slot.exponent = hdr.aggregation.exponent;
        meta.slot.max_exponent = hdr.aggregation.max_exponent;
        meta.slot.flags = hdr.aggregation.flags & (FLAGGED | ECN);
        meta.slot.phase = Phase.FINAL;
    }

    // -- what leaves ------------------------------------------------------------------------------------------------

    // The slot's sum in the packet at hand. The blocks are filled by `blocks`.
    action fill_sum() {
        hdr.aggregation.flags = meta.slot.flags;
        hdr.aggregation.chunk = meta.slot.chunk;
        hdr.aggregation.children = meta.slot.children;
        hdr.aggregation.workers = meta.slot.workers;
        hdr.aggregation.lanes = meta.slot.lanes;
        hdr.aggregation.checksum = meta.slot.checksum;
        hdr.aggregation.exponent = meta.slot.exponent;
        hdr.aggregation.max_exponent = meta.slot.max_exponent;
        hdr.udp.checksum = 0;
        hdr.ipv4.ttl = INITIAL_TTL;
    }

    // Without blocks the lengths alone say so, and egress cuts the packet to them.
    action without_payload() {
#define INVALIDATE(i) hdr.block##i.setInvalid();
        FOR_EACH_BLOCK(INVALIDATE)
#undef INVALIDATE
        hdr.udp.length = UDP_BYTES + AGGREGATION_BYTES;
        hdr.ipv4.total_length = IPV4_BYTES + UDP_BYTES + AGGREGATION_BYTES;
    }

    // A contribution of this node to its parent, still addressed to the chunk's server.
    action send_up() {
        hdr.aggregation.op = CONTRIBUTE;
        hdr.aggregation.node = meta.node.parent;
        hdr.aggregation.sender = meta.node.sender;
        hdr.ipv4.source = meta.node.address;
        hdr.udp.source = AGGREGATION_PORT;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = meta.node.parent_mac;
        standard_metadata.egress_spec = meta.node.parent_port;
    }

    // A result, as if from the chunk's server; egress addresses it to each child.
    action send_down() {
        hdr.aggregation.op = RESULT;
        hdr.ipv4.source = meta.slot.server;
        hdr.udp.source = SERVER_PORTS | (bit<16>)meta.slot.server_port;
        meta.for_child = 1;
        standard_metadata.mcast_grp = meta.node.group;
    }

    action reply_to_child() {
        hdr.aggregation.op = RESULT;
        hdr.ipv4.source = meta.slot.server;
        hdr.udp.source = SERVER_PORTS | (bit<16>)meta.slot.server_port;
        meta.for_child = 1;
        meta.child = (bit<16>)hdr.aggregation.sender;
        standard_metadata.egress_spec = meta.ingress_port;
    }

    // The worker that asked stays the source: the answer goes to it straight from whoever knows. The TTL tells the parent
    // that the child itself sent this, and did not merely forward what a host wrote.
    action pass_query_up() {
        hdr.aggregation.node = meta.node.parent;
        hdr.aggregation.sender = meta.node.sender;
        hdr.aggregation.workers = meta.slot.workers;
        hdr.udp.checksum = 0;
        hdr.ipv4.ttl = NEIGHBOUR_TTL;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = meta.node.parent_mac;
        standard_metadata.egress_spec = meta.node.parent_port;
    }

    // Routed to the worker like any packet.
    action answer_query(children_t seen, Phase phase) {
        asker = hdr.ipv4.source;
        asker_port = hdr.udp.source;
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.ipv4.destination = asker;
        hdr.ipv4.ttl = INITIAL_TTL;
        hdr.udp.source = hdr.udp.destination;
        hdr.udp.destination = asker_port;
        hdr.udp.checksum = 0;
        hdr.aggregation.op = STATE;
        hdr.aggregation.flags = (bit<8>)(bit<2>)phase << 4;
        hdr.aggregation.children = seen;
    }

    // -- the packet against the slot ------------------------------------------------------------------------------------

    action locate() {
        meta.index = meta.node.base + (hdr.aggregation.seq & meta.node.mask);
        bit_of_sender = (children_t)1 << hdr.aggregation.sender;
    }

    action compare() {
        age = hdr.aggregation.seq - meta.slot.seq;
        same_number = meta.slot.job == hdr.aggregation.job && meta.slot.epoch == hdr.aggregation.epoch && age == 0;
        newer = meta.slot.job != hdr.aggregation.job || meta.slot.epoch != hdr.aggregation.epoch ||
                (age != 0 && age[31:31] == 0);
        current = same_number && meta.slot.chunk == hdr.aggregation.chunk;
        sum_has_payload = meta.slot.lanes != 0 && (meta.slot.flags & FLAGGED) == 0;
    }

    // Lengths must add up, or a sum written into this packet would not fit it. Without blocks a payload has any length. The
    // port must be a server's, as its last bits stand for it in the slot.
    action check_form() {
        server_port = hdr.aggregation.op == RESULT ? hdr.udp.source : hdr.udp.destination;
        expected_length = UDP_BYTES + AGGREGATION_BYTES + (meta.has_payload == 1 ? PAYLOAD_BYTES : 0);
#if BLOCKS == 0
        expected_length = meta.has_payload == 1 ? hdr.udp.length : expected_length;
#endif
        well_formed = standard_metadata.parser_error == error.NoError &&
                      (server_port & SERVER_PORTS_MASK) == SERVER_PORTS &&
                      hdr.udp.length == expected_length &&
                      hdr.ipv4.total_length == expected_length + IPV4_BYTES &&
                      standard_metadata.packet_length == (bit<32>)(expected_length + IPV4_BYTES + ETHERNET_BYTES);
    }

    apply {
        taken = false;
        outcome = Outcome.MALFORMED;
        if (hdr.aggregation.isValid() && hdr.aggregation.version == VERSION &&
            (hdr.aggregation.flags & UNTOUCHED) == 0 &&
            (hdr.aggregation.op == CONTRIBUTE || hdr.aggregation.op == RESULT || hdr.aggregation.op == QUERY)) {
            taken = nodes.apply().hit;
        }
        if (taken) {
            check_form();
            if (well_formed) {
                if (hdr.ipv4.ecn == CONGESTION_EXPERIENCED) {
                    hdr.aggregation.flags = hdr.aggregation.flags | ECN;
                }
                locate();
                slots.apply(meta, false);
                compare();
                if (hdr.aggregation.op == RESULT) {
                    if (meta.node.is_root == 1 || meta.ingress_port != meta.node.parent_port ||
                        hdr.ipv4.source != meta.slot.server || server_port[3:0] != meta.slot.server_port) {
                        outcome = Outcome.RESULT_REJECTED;
                    } else if (!current || meta.slot.phase != Phase.PARTIAL) {
                        outcome = Outcome.RESULT_UNEXPECTED;
                    } else {
                        outcome = Outcome.RESULT_DOWN;
                        store_result();
                        if (meta.has_payload == 1) {
                            meta.payload = Payload.STORE;
                        }
                        fill_sum();
                        send_down();
                    }
                } else if (!children.apply().hit) {
                    outcome = Outcome.NOT_A_CHILD;
                } else if (hdr.ipv4.source != meta.from_child.source &&
                           !(hdr.aggregation.op == QUERY && meta.from_child.is_subtree == 1 &&
                             hdr.ipv4.ttl == NEIGHBOUR_TTL)) {
                    outcome = Outcome.WRONG_SOURCE;
                } else if (hdr.aggregation.workers != meta.from_child.workers) {
                    outcome = Outcome.WRONG_WORKERS;
                } else if (hdr.aggregation.op == QUERY) {
                    if (newer) {  // nobody has contributed yet
                        outcome = Outcome.QUERY_ANSWERED;
                        answer_query(0, Phase.AGGREGATING);
                    } else if (!current) {
                        outcome = Outcome.QUERY_STALE;
                    } else if (meta.slot.phase == Phase.PARTIAL) {
                        outcome = Outcome.QUERY_PASSED_UP;
                        pass_query_up();
                    } else {
                        outcome = Outcome.QUERY_ANSWERED;
                        answer_query(meta.slot.children, meta.slot.phase);
                    }
                } else {  // CONTRIBUTE
                    if (newer) {
                        outcome = Outcome.CLAIMED;
                        claim();
                        if (meta.has_payload == 1) {
                            meta.payload = Payload.STORE;
                        }
                    } else if (!same_number) {
                        outcome = Outcome.STALE;
                    } else if (!current || meta.slot.server != hdr.ipv4.destination ||
                               meta.slot.server_port != server_port[3:0]) {
                        outcome = Outcome.OTHER_CHUNK;
                    } else if (meta.slot.phase != Phase.AGGREGATING && sum_has_payload && meta.has_payload == 0) {
                        outcome = Outcome.MALFORMED;  // no room for the answer
                    } else if (meta.slot.phase == Phase.FINAL) {
                        outcome = Outcome.REPLAYED;
                    } else if ((meta.slot.children & bit_of_sender) == 0) {
                        outcome = Outcome.ADDED;
                        if (hdr.aggregation.exponent != meta.slot.exponent ||
                            hdr.aggregation.lanes != meta.slot.lanes) {
                            meta.overflowed = 1;
                        } else if (sum_has_payload && meta.has_payload == 1) {
                            meta.payload = Payload.ADD;
                        }
                        if (hdr.aggregation.max_exponent > meta.slot.max_exponent) {
                            meta.slot.max_exponent = hdr.aggregation.max_exponent;
                        }
                        add();
                    } else if (meta.slot.phase == Phase.PARTIAL) {
                        outcome = Outcome.RESENT;
                    } else {
                        outcome = Outcome.DUPLICATE;
                    }

                    if (outcome == Outcome.CLAIMED || outcome == Outcome.ADDED) {
                        if (meta.slot.children == meta.node.full) {
                            meta.completed = 1;
                            meta.slot.phase = meta.node.is_root == 1 ? Phase.FINAL : Phase.PARTIAL;
                        }
                    } else if ((outcome == Outcome.REPLAYED || outcome == Outcome.RESENT) && sum_has_payload) {
                        meta.payload = Payload.LOAD;
                    }
                }

                blocks.apply(hdr, meta, lanes_overflowed);
                if (lanes_overflowed) {
                    meta.overflowed = 1;
                }
                if (meta.overflowed == 1) {
                    meta.slot.flags = meta.slot.flags | OVERFLOW;
                }

                if (outcome == Outcome.CLAIMED || outcome == Outcome.ADDED || outcome == Outcome.RESULT_DOWN) {
                    slots.apply(meta, true);
                }
                if (meta.completed == 1 || outcome == Outcome.REPLAYED || outcome == Outcome.RESENT) {
                    fill_sum();
                    if (outcome == Outcome.REPLAYED) {
                        reply_to_child();
                    } else if (meta.slot.phase == Phase.FINAL) {
                        send_down();
                    } else {
                        send_up();
                    }
                    if (meta.slot.lanes == 0 || (meta.slot.flags & FLAGGED) != 0) {
                        without_payload();
                    }
                }
            }
        }
    }
}

#endif
