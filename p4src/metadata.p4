// SPDX-License-Identifier: Apache-2.0
// What travels with a packet through the pipeline.
#ifndef RACKHUB_METADATA
#define RACKHUB_METADATA

#include "headers.p4"
#include "outcomes.p4"
#include "slots.p4"

// This switch as a node of the packet's aggregation tree (from table nodes).
struct node_t {
    bit<1> is_inner;      // it has a parent
    children_t full;      // bitmap of all children
    bit<16> group;        // multicast group of all children
    port_t parent_port;
    bit<64> parent;       // the parent's MAC address and node id
    bit<40> self;         // own address, source of what goes up, and own child index there
}

#define NODE_PARENT_MAC(node) node.parent[63:16]
#define NODE_PARENT(node) node.parent[15:0]
#define NODE_ADDRESS(node) node.self[39:8]
#define NODE_SENDER(node) node.self[7:0]

// A contribution's or query's sender, as table `children` finds it: it has an entry; its address is the entry's; so is its number
// of workers.
const bit<3> NO_CHILD = 0b000;
const bit<3> CHILD = 0b111;

// An impaired packet makes a detour through recirculation (impairment.p4).
enum bit<2> Detour {
    NONE = 0,
    ARRIVAL = 1,    // starts again as if it arrived on `port` now
    DEPARTURE = 2   // leaves through `port` as it is
}

const bit<8> DETOUR_FIELDS = 1;

struct detour_t {
    @field_list(DETOUR_FIELDS) Detour kind;
    @field_list(DETOUR_FIELDS) port_t port;
}

// How badly a port treats packets, as fractions of 2^32, and the draws for the packet at hand (impairment.p4).
struct impairment_t {
    bit<32> seed;
    bit<64> loss_duplicate;
    bit<64> reorder_corrupt;
    bit<32> port;
    bit<32> count;            // of the port's packets
    bit<32> first;            // what all draws for the packet begin with
    bit<32> drawn;
}

#define IMPAIRMENT_LOSS(impairment) impairment.loss_duplicate[63:32]
#define IMPAIRMENT_DUPLICATE(impairment) impairment.loss_duplicate[31:0]
#define IMPAIRMENT_REORDER(impairment) impairment.reorder_corrupt[63:32]
#define IMPAIRMENT_CORRUPT(impairment) impairment.reorder_corrupt[31:0]

// Every field costs BMv2 time for each packet and each copy that multicast makes. All are 0 at the beginning.
struct metadata_t {
    bit<1> unimpaired;        // nothing impairs the packet here (gate.p4)
    bit<1> unguarded;         // it came through a port between switches
    bit<19> unmarked;         // a queue of up to so many packets marks none
    bit<1> recirculate;       // egress sends the packet back to ingress, untouched
#if BLOCKS == 0
    bit<1> has_payload;       // a chunk follows the header
#endif
    detour_t detour;
    impairment_t impairment;
    bit<1> taken;             // the packet is for a node here; else it is routed
    Outcome routed;           // what it counts as if it is
    node_t node;
    bit<32> index;            // of the slot
    slot_t slot;
    bit<3> sender;
}

// A chunk follows the header.
#if BLOCKS == 0
#define HAS_PAYLOAD (meta.has_payload == 1)
#else
#define HAS_PAYLOAD hdr.block0.isValid()
#endif

// Set by v1model targets in standard_metadata.instance_type.
const bit<32> INSTANCE_INGRESS_CLONE = 1;
const bit<32> INSTANCE_EGRESS_CLONE = 2;
const bit<32> INSTANCE_RECIRCULATED = 4;

#endif
