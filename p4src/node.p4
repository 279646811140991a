// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_NODE
#define RACKHUB_NODE

#include "metadata.p4"
#include "outcomes.p4"
#include "slots.p4"
#include "source_guard.p4"

// The state machine of one node of an aggregation tree (docs/reference/protocol.md, "A node"). A packet with no entry in `nodes` is
// not for this switch and left alone (meta.taken = 0): that makes aggregation transparent. So is a STATE, which answers a
// QUERY, once it is made.
control Node(counter<Outcome> outcomes, inout headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard_metadata) {
    @name("slots.number") register<bit<64>, bit<32>>(SLOTS) numbers;
    @name("slots.origin") register<bit<64>, bit<32>>(SLOTS) origins;
    @name("slots.tally") register<bit<64>, bit<32>>(SLOTS) tallies;
    @name("slots.state") register<bit<64>, bit<32>>(SLOTS) states;
#include "blocks.p4"  // store_blocks, add_blocks, load_blocks
    SourceGuard() source_guard;

    bit<48> asker;  // address and UDP port

    // -- tables -----------------------------------------------------------------------------------------------------

    // In another action than the index: in one p4c would have it computed for each register.
    action recall() {
        numbers.read(meta.slot.number, meta.index);
        origins.read(meta.slot.origin, meta.index);
        tallies.read(meta.slot.tally, meta.index);
        states.read(meta.slot.state, meta.index);
    }

    // Everything that is needed of a packet for this node, whatever its operation.
    action take(bit<32> base, bit<32> mask, children_t full, bit<16> group) {
        meta.taken = 1;
        meta.node.full = full;
        meta.node.group = group;
        meta.index = base + (hdr.aggregation.seq & mask);
    }

    action root(bit<32> base, bit<32> mask, children_t full, bit<16> group) {
        take(base, mask, full, group);
    }

    action inner(bit<32> base, bit<32> mask, children_t full, bit<16> group, port_t parent_port, mac_t parent_mac,
                 bit<16> parent, bit<8> sender, ipv4_t address) {
        take(base, mask, full, group);
        meta.node.is_inner = 1;
        meta.node.parent_port = parent_port;
        meta.node.parent = parent_mac ++ parent;
        meta.node.self = address ++ sender;
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
        recall();
        meta.sender = 1w1 ++ (bit<1>)(hdr.ipv4.source == source) ++ (bit<1>)(hdr.aggregation.workers == workers);
    }

    // The TTL tells that a switch sent a QUERY itself, for one of its workers.
    action subtree(ipv4_t source, bit<16> workers) {
        recall();
        meta.sender = 1w1 ++ (bit<1>)(hdr.ipv4.source == source ||
                                      (hdr.aggregation.op == QUERY && hdr.ipv4.ttl == NEIGHBOUR_TTL)) ++
                      (bit<1>)(hdr.aggregation.workers == workers);
    }

    table children {
        key = {
            hdr.aggregation.job: exact @name("job");
            hdr.aggregation.epoch: exact @name("epoch");
            hdr.aggregation.stream: exact @name("stream");
            hdr.aggregation.node: exact @name("node");
            hdr.aggregation.sender: exact @name("sender");
            standard_metadata.ingress_port: exact @name("ingress_port");
        }
        actions = { worker; subtree; NoAction; }
        const default_action = NoAction();
        size = MAX_CHILDREN;
    }

    // -- the packet against the slot ------------------------------------------------------------------------------------

#define PACKET_NUMBER (hdr.aggregation.job ++ hdr.aggregation.epoch ++ hdr.aggregation.seq)
#define PACKET_ORIGIN (hdr.aggregation.chunk ++ hdr.ipv4.destination)
// What the packet's sum or its path says of it. A mark in the IP header counts as one of the sum.
#define PACKET_FLAGS ((hdr.aggregation.flags & (FLAGGED | ECN)) | (hdr.ipv4.ecn == CONGESTION_EXPERIENCED ? ECN : 0))
#define PACKET_STATE (hdr.aggregation.workers ++ hdr.aggregation.lanes ++ (bit<8>)hdr.aggregation.exponent ++ \
                     (bit<8>)hdr.aggregation.max_exponent ++ PACKET_FLAGS)
#define BIT_OF_SENDER ((children_t)1 << hdr.aggregation.sender)
#define SAME_NUMBER (meta.slot.number == PACKET_NUMBER)
#define CURRENT (SAME_NUMBER && SLOT_CHUNK(meta.slot) == hdr.aggregation.chunk)
// Of another job or epoch, or 1 to 2^31 - 1 numbers ahead.
#define NEWER (SLOT_JOB_EPOCH(meta.slot) != hdr.aggregation.job ++ hdr.aggregation.epoch || \
               hdr.aggregation.seq - SLOT_SEQ(meta.slot) - 1 < 0x7FFFFFFF)
#define SUM_HAS_PAYLOAD (SLOT_LANES(meta.slot) != 0 && (SLOT_FLAGS(meta.slot) & FLAGGED) == 0)
#define HAS_ROOM (HAS_PAYLOAD || !SUM_HAS_PAYLOAD)  // for the sum
#define SAME_SHAPE (meta.slot.state[47:24] == hdr.aggregation.lanes ++ (bit<8>)hdr.aggregation.exponent)
#define SAME_CHUNK (SAME_NUMBER && meta.slot.origin == PACKET_ORIGIN && \
                    SLOT_SERVER_PORT(meta.slot) == hdr.udp.destination[3:0])
#define AWAITED (SAME_CHUNK && (SLOT_CHILDREN(meta.slot) & BIT_OF_SENDER) == 0 && \
                 (SLOT_PHASE(meta.slot) == Phase.AGGREGATING || (SLOT_PHASE(meta.slot) == Phase.PARTIAL && HAS_ROOM)))

    // -- what a packet does to the slot ------------------------------------------------------------------------------

    action claim() {
        numbers.write(meta.index, PACKET_NUMBER);
        origins.write(meta.index, PACKET_ORIGIN);
        meta.slot.tally = BIT_OF_SENDER ++ hdr.aggregation.checksum;
        meta.slot.state = PACKET_STATE ++ 2w0 ++ hdr.udp.destination[3:0] ++ Phase.AGGREGATING;
        tallies.write(meta.index, meta.slot.tally);
        states.write(meta.index, meta.slot.state);
        outcomes.count(Outcome.CLAIMED);
    }

    // BMv2 looks up a table for each action that `apply` names, so what goes together is one.
    action claim_blocks() {
        claim();
        store_blocks();
    }

    action add() {
        meta.slot.tally = (SLOT_CHILDREN(meta.slot) | BIT_OF_SENDER) ++
                          (SLOT_CHECKSUM(meta.slot) + hdr.aggregation.checksum);
        meta.slot.state = (SLOT_WORKERS(meta.slot) + hdr.aggregation.workers) ++ meta.slot.state[47:24] ++
                         (hdr.aggregation.max_exponent > (int<8>)SLOT_MAX_EXPONENT(meta.slot)
                              ? (bit<8>)hdr.aggregation.max_exponent
                              : SLOT_MAX_EXPONENT(meta.slot)) ++
                         (SLOT_FLAGS(meta.slot) | PACKET_FLAGS) ++ meta.slot.state[7:0];
        tallies.write(meta.index, meta.slot.tally);
        states.write(meta.index, meta.slot.state);
        outcomes.count(Outcome.ADDED);
    }

#if BLOCKS > 0
    action add_with_blocks() {
        add();
        add_blocks();
    }
#endif

    action overflow() {
        meta.slot.state = meta.slot.state | SLOT_OVERFLOW;
        states.write(meta.index, meta.slot.state);
        outcomes.count(Outcome.OVERFLOWED);
    }

    // The parent's sum takes the place of this node's own.
    action store_result() {
        SLOT_CHECKSUM(meta.slot) = hdr.aggregation.checksum;
        meta.slot.state = PACKET_STATE ++ 2w0 ++ SLOT_SERVER_PORT(meta.slot) ++ Phase.FINAL;
        tallies.write(meta.index, meta.slot.tally);
        states.write(meta.index, meta.slot.state);
        outcomes.count(Outcome.RESULT_DOWN);
    }

    // -- what leaves ------------------------------------------------------------------------------------------------

    // The slot's sum in the packet at hand, which is about the slot's chunk. The blocks have been filled.
    action fill_sum() {
        hdr.aggregation.flags = SLOT_FLAGS(meta.slot);
        hdr.aggregation.children = SLOT_CHILDREN(meta.slot);
        hdr.aggregation.workers = SLOT_WORKERS(meta.slot);
        hdr.aggregation.lanes = SLOT_LANES(meta.slot);
        hdr.aggregation.checksum = SLOT_CHECKSUM(meta.slot);
        hdr.aggregation.exponent = (int<8>)SLOT_EXPONENT(meta.slot);
        hdr.aggregation.max_exponent = (int<8>)SLOT_MAX_EXPONENT(meta.slot);
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
        fill_sum();
        hdr.aggregation.op = CONTRIBUTE;
        hdr.aggregation.node = NODE_PARENT(meta.node);
        hdr.aggregation.sender = NODE_SENDER(meta.node);
        hdr.ipv4.source = NODE_ADDRESS(meta.node);
        hdr.udp.source = AGGREGATION_PORT;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = NODE_PARENT_MAC(meta.node);
        standard_metadata.egress_spec = meta.node.parent_port;
    }

    // A result; egress addresses it to each child.
    action send_down() {
        fill_sum();
        hdr.aggregation.op = RESULT;
        standard_metadata.mcast_grp = meta.node.group;
    }

    // A contribution becomes what its server would answer.
    action answer() {
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.udp.source = hdr.udp.destination;
    }

    action reply_to_child() {
        fill_sum();
        answer();
        hdr.aggregation.op = RESULT;
        standard_metadata.egress_rid = (bit<16>)hdr.aggregation.sender + 1;
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        outcomes.count(Outcome.REPLAYED);
    }

    action complete_root() {
        SLOT_PHASE(meta.slot) = Phase.FINAL;
        states.write(meta.index, meta.slot.state);
        send_down();
        answer();
        outcomes.count(Outcome.COMPLETED);
    }

    action complete_inner() {
        SLOT_PHASE(meta.slot) = Phase.PARTIAL;
        states.write(meta.index, meta.slot.state);
        send_up();
        outcomes.count(Outcome.PARTIAL_SENT);
    }

    action send_up_again() {
        send_up();
        outcomes.count(Outcome.RESENT);
    }

    // The worker that asked stays the source: the answer goes to it straight from whoever knows. The TTL tells the parent
    // that the child itself sent this, and did not merely forward what a host wrote.
    action pass_query_up() {
        hdr.aggregation.node = NODE_PARENT(meta.node);
        hdr.aggregation.sender = NODE_SENDER(meta.node);
        hdr.aggregation.flags = hdr.aggregation.flags | (hdr.ipv4.ecn == CONGESTION_EXPERIENCED ? ECN : 0);
        hdr.aggregation.workers = SLOT_WORKERS(meta.slot);
        hdr.udp.checksum = 0;
        hdr.ipv4.ttl = NEIGHBOUR_TTL;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = NODE_PARENT_MAC(meta.node);
        standard_metadata.egress_spec = meta.node.parent_port;
        outcomes.count(Outcome.QUERY_PASSED_UP);
    }

    // Routed to the worker like any packet.
    action answer_query(children_t seen, Phase phase) {
        meta.taken = 0;
        meta.routed = Outcome.QUERY_ANSWERED;
        asker = hdr.ipv4.source ++ hdr.udp.source;
        answer();
        hdr.ipv4.destination = asker[47:16];
        hdr.ipv4.ttl = INITIAL_TTL;
        hdr.udp.destination = asker[15:0];
        hdr.udp.checksum = 0;
        hdr.aggregation.op = STATE;
        hdr.aggregation.flags = (bit<8>)(bit<2>)phase << 4;
        hdr.aggregation.children = seen;
    }

// Lengths must add up, or a sum written into this packet would not fit it. Without blocks a payload has any length.
#if BLOCKS == 0
#define UDP_LENGTH_FITS (HAS_PAYLOAD || hdr.udp.length == UDP_BYTES + AGGREGATION_BYTES)
#else
#define UDP_LENGTH_FITS ((HAS_PAYLOAD && hdr.udp.length == UDP_BYTES + AGGREGATION_BYTES + PAYLOAD_BYTES) || \
                         (!HAS_PAYLOAD && hdr.udp.length == UDP_BYTES + AGGREGATION_BYTES))
#endif
// The port must be a server's, as its last bits stand for it in the slot.
#define IS_SERVER_PORT(port) ((port & SERVER_PORTS_MASK) == SERVER_PORTS)
#define WELL_FORMED \
    (standard_metadata.parser_error == error.NoError && UDP_LENGTH_FITS && \
     ((hdr.aggregation.op != RESULT && IS_SERVER_PORT(hdr.udp.destination)) || \
      (hdr.aggregation.op == RESULT && IS_SERVER_PORT(hdr.udp.source))) && \
     hdr.ipv4.total_length == hdr.udp.length + IPV4_BYTES && \
     standard_metadata.packet_length == (bit<32>)(hdr.ipv4.total_length + ETHERNET_BYTES))

    apply {
        if (hdr.aggregation.isValid() && hdr.aggregation.version == VERSION &&
            (hdr.aggregation.flags & UNTOUCHED) == 0 &&
            (hdr.aggregation.op == CONTRIBUTE || hdr.aggregation.op == RESULT || hdr.aggregation.op == QUERY)) {
            nodes.apply();
        }
        if (meta.taken == 1 && hdr.aggregation.op != RESULT && WELL_FORMED) {
            children.apply();
        }
        // A child's entry has its port and its address: nothing is left to guard.
        if (meta.sender == CHILD && hdr.aggregation.op == CONTRIBUTE && (AWAITED || NEWER)) {
            if (!SAME_NUMBER) {
                if (HAS_PAYLOAD) {
                    claim_blocks();
                } else {
                    claim();
                }
#if BLOCKS > 0
            } else if (SAME_SHAPE && HAS_PAYLOAD && SUM_HAS_PAYLOAD) {
                add_with_blocks();
                if ((overflowed & SIGNS) != 0) {
                    overflow();
                }
#endif
            } else {
                add();
                if (!SAME_SHAPE) {
                    overflow();
                }
            }
            if (SLOT_CHILDREN(meta.slot) == meta.node.full) {
                if (meta.node.is_inner == 0) {
                    complete_root();
                } else {
                    complete_inner();
                }
                if (!SUM_HAS_PAYLOAD) {
                    without_payload();
                }
            }
        } else {
            if (meta.unguarded == 0) {
                source_guard.apply(outcomes, hdr, standard_metadata);
            }
            if (meta.taken == 1) {
                if (!WELL_FORMED) {
                    outcomes.count(Outcome.MALFORMED);
                } else if (hdr.aggregation.op == RESULT) {
                    recall();
                    if (meta.node.is_inner == 0 || standard_metadata.ingress_port != meta.node.parent_port ||
                        hdr.ipv4.source != SLOT_SERVER(meta.slot) || hdr.udp.source[3:0] != SLOT_SERVER_PORT(meta.slot)) {
                        outcomes.count(Outcome.RESULT_REJECTED);
                    } else if (!CURRENT || SLOT_PHASE(meta.slot) != Phase.PARTIAL) {
                        outcomes.count(Outcome.RESULT_UNEXPECTED);
                    } else {
                        store_result();
                        if (HAS_PAYLOAD) {
                            store_blocks();
                        }
                        send_down();
                    }
                } else if (meta.sender == NO_CHILD) {
                    outcomes.count(Outcome.NOT_A_CHILD);
                } else if (meta.sender[1:1] == 0) {
                    outcomes.count(Outcome.WRONG_SOURCE);
                } else if (meta.sender[0:0] == 0) {
                    outcomes.count(Outcome.WRONG_WORKERS);
                } else if (hdr.aggregation.op == QUERY) {
                    if (NEWER) {  // nobody has contributed yet
                        answer_query(0, Phase.AGGREGATING);
                    } else if (!CURRENT) {
                        outcomes.count(Outcome.QUERY_STALE);
                    } else if (SLOT_PHASE(meta.slot) == Phase.PARTIAL) {
                        pass_query_up();
                    } else {
                        answer_query(SLOT_CHILDREN(meta.slot), (Phase)SLOT_PHASE(meta.slot));
                    }
                } else if (!SAME_NUMBER) {
                    outcomes.count(Outcome.STALE);
                } else if (!SAME_CHUNK) {
                    outcomes.count(Outcome.OTHER_CHUNK);
                } else if (SLOT_PHASE(meta.slot) != Phase.AGGREGATING && !HAS_ROOM) {
                    outcomes.count(Outcome.MALFORMED);
                } else if (SLOT_PHASE(meta.slot) == Phase.AGGREGATING) {
                    outcomes.count(Outcome.DUPLICATE);
                } else {
                    if (SUM_HAS_PAYLOAD) {
                        load_blocks();
                    } else {
                        without_payload();
                    }
                    if (SLOT_PHASE(meta.slot) == Phase.FINAL) {
                        reply_to_child();
                    } else {
                        send_up_again();
                    }
                }
            }
        }
    }
}

#endif
