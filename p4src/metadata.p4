// SPDX-License-Identifier: Apache-2.0
// What travels with a packet through the pipeline.
#ifndef RACKHUB_METADATA
#define RACKHUB_METADATA

#include "headers.p4"
#include "outcomes.p4"
#include "slots.p4"

// This switch as a node of the packet's aggregation tree (from table nodes).
struct node_t {
    bit<1> is_root;
    children_t full;      // bitmap of all children
    bit<16> group;        // multicast group of all children
    port_t parent_port;
    mac_t parent_mac;
    bit<16> parent;       // node id of the parent
    bit<8> sender;        // own child index there
    ipv4_t address;       // own address, source of what goes up
}

// How badly a port treats packets, as fractions of 2^32 (impairment.p4), and what that means for the packet at hand.
struct quality_t {
    bit<32> seed;
    bit<32> loss;
    bit<32> duplicate;
    bit<32> reorder;
    bit<32> corrupt;
}

struct draws_t {
    bool lost;
    bool duplicated;
    bool reordered;
    bool corrupted;
    bit<32> noise;  // never 0
}

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

// Every field costs BMv2 time for each packet and each copy that multicast makes. All are 0 at the beginning.
struct metadata_t {
    port_t ingress_port;      // standard_metadata's, or the one before a detour
    bit<1> has_payload;       // a chunk follows the header; its blocks were parsed, if the build has any
    bit<1> for_child;         // egress addresses the packet to child `child`
    bit<1> recirculate;       // egress sends the packet back to ingress, untouched
    bool congested;           // it found a long queue
    bit<16> child;
    detour_t detour;
    quality_t quality;
    draws_t draws;
    bit<1> taken;             // the packet is for a node here; else it is routed
    Outcome routed;           // what it counts as if it is
    node_t node;
    bit<32> index;            // of the slot
    slot_t slot;
    seq_t age;                // how far the packet's number is beyond the slot's
    bit<16> server_port;      // where the packet goes, or a RESULT comes from
    children_t bit_of_sender;
    bool wrong_source;        // the packet is not as `children` says
    bool wrong_workers;
}

// Set by v1model targets in standard_metadata.instance_type.
const bit<32> INSTANCE_INGRESS_CLONE = 1;
const bit<32> INSTANCE_EGRESS_CLONE = 2;
const bit<32> INSTANCE_RECIRCULATED = 4;

#endif
