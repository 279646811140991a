// SPDX-License-Identifier: Apache-2.0
// What travels with a packet through the pipeline, and what a slot remembers between packets.
#ifndef RACKHUB_METADATA
#define RACKHUB_METADATA

#include "headers.p4"

enum bit<2> Phase {
    AGGREGATING = 0,  // some children are missing
    PARTIAL = 1,      // own sum complete and sent up, the parent's result awaited
    FINAL = 2         // the result is here
}

// One chunk in flight. 256 bits, packed into one register by slots.p4.
struct slot_t {
    bit<16> job;
    bit<16> epoch;
    seq_t seq;
    bit<32> chunk;
    ipv4_t server;  // where the contributions were addressed: a RESULT must come from there
    bit<4> server_port;  // which of SERVER_PORTS
    children_t children;
    bit<16> workers;
    bit<16> lanes;
    bit<32> checksum;
    int<8> exponent;
    int<8> max_exponent;
    bit<8> flags;
    Phase phase;
}

// This switch as a node of the packet's aggregation tree (from table nodes).
struct node_t {
    bit<1> is_root;
    bit<32> base;         // first of the stream's slots
    bit<32> mask;         // number of its slots - 1
    children_t full;      // bitmap of all children
    bit<16> group;        // multicast group of all children
    port_t parent_port;
    mac_t parent_mac;
    bit<16> parent;       // node id of the parent
    bit<8> sender;        // own child index there
    ipv4_t address;       // own address, source of what goes up
}

// The child that a packet comes from (from table children).
struct child_t {
    ipv4_t source;
    bit<16> workers;
    bit<1> is_subtree;    // a switch; else a worker
}

// What a block does with the payload of the packet at hand.
enum bit<2> Payload {
    KEEP = 0,
    STORE = 1,  // packet -> slot
    ADD = 2,    // slot + packet -> slot and packet
    LOAD = 3    // slot -> packet
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

struct metadata_t {
    port_t ingress_port;      // standard_metadata's, or the one before a detour
    bit<1> has_payload;       // a chunk follows the header; its blocks were parsed, if the build has any
    bit<1> for_child;         // egress addresses the packet to child `child`
    bit<1> recirculate;       // egress sends the packet back to ingress, untouched
    bit<16> child;
    detour_t detour;
    slot_t slot;
    node_t node;
    child_t from_child;
    bit<32> index;            // of the slot
    bit<1> completed;         // this contribution completed the sum
    bit<1> overflowed;        // this contribution made the sum overflow
    Payload payload;
    bit<WORD_BITS> overflow;  // sign bits of the lanes that overflowed
}

// Set by v1model targets in standard_metadata.instance_type.
const bit<32> INSTANCE_INGRESS_CLONE = 1;
const bit<32> INSTANCE_EGRESS_CLONE = 2;
const bit<32> INSTANCE_RECIRCULATED = 4;

#endif
