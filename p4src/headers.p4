// SPDX-License-Identifier: Apache-2.0
// What is on the wire. docs/reference/protocol.md describes aggregation_h field by field.
#ifndef RACKHUB_HEADERS
#define RACKHUB_HEADERS

#include "config.p4"

typedef bit<48> mac_t;
typedef bit<32> ipv4_t;
typedef bit<9> port_t;
const port_t DROP_PORT = 511;

typedef bit<32> seq_t;       // serial-number arithmetic (RFC 1982)
typedef bit<32> children_t;  // one bit per child of a node

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_UDP = 17;
// Server processes listen at one of 16 UDP ports, of which a switch keeps the last four bits: the range is aligned, so that a
// mask tells it. Switches and the first process of a server have the one below.
const bit<16> SERVER_PORTS = 47104;
const bit<16> SERVER_PORTS_MASK = 0xFFF0;
const bit<16> AGGREGATION_PORT = 47110;
const bit<8> INITIAL_TTL = 64;
const bit<8> NEIGHBOUR_TTL = 255;  // nothing that was forwarded arrives with it (RFC 5082)
const bit<4> IPV4_VERSION = 4;
const bit<4> IPV4_WORDS = 5;  // 32-bit words of a header without options
const bit<2> ECN_CAPABLE_0 = 2;  // RFC 3168
const bit<2> ECN_CAPABLE_1 = 1;
const bit<2> CONGESTION_EXPERIENCED = 3;

const bit<4> VERSION = 1;

const bit<4> CONTRIBUTE = 1;
const bit<4> RESULT = 2;
const bit<4> QUERY = 3;
const bit<4> STATE = 4;

const bit<8> OVERFLOW = 0x01;
const bit<8> RETRANSMIT = 0x02;
const bit<8> DIRECT = 0x04;
const bit<8> NONFINITE = 0x08;
const bit<8> PHASE = 0x30;  // mask of the phase in STATE
const bit<8> ECN = 0x40;
const bit<8> BYPASS = 0x80;

// A flagged sum is worthless: it travels without payload and the chunk goes to the server.
const bit<8> FLAGGED = OVERFLOW | NONFINITE;
const bit<8> UNTOUCHED = DIRECT | BYPASS;

// The number of a stream with this bit says the priority of its packets, in the three bits behind it (protocol/priorities.py).
const bit<8> CLASSED = 0x80;

header ethernet_h {
    mac_t destination;
    mac_t source;
    bit<16> type;
}

header ipv4_h {
    bit<4> version;
    bit<4> ihl;
    bit<6> dscp;
    bit<2> ecn;
    bit<16> total_length;
    bit<16> identification;
    bit<3> flags;
    bit<13> fragment_offset;
    bit<8> ttl;
    bit<8> protocol;
    bit<16> checksum;
    ipv4_t source;
    ipv4_t destination;
}

header udp_h {
    bit<16> source;
    bit<16> destination;
    bit<16> length;
    bit<16> checksum;
}

header aggregation_h {
    bit<4> version;
    bit<4> op;
    bit<8> flags;
    bit<16> job;
    bit<16> epoch;
    bit<8> stream;
    bit<8> sender;
    seq_t seq;
    bit<32> chunk;
    children_t children;
    bit<16> workers;
    int<8> exponent;
    int<8> max_exponent;
    bit<16> lanes;
    bit<16> node;
    bit<32> checksum;
}

const bit<16> ETHERNET_BYTES = 14;
const bit<16> IPV4_BYTES = 20;
const bit<16> UDP_BYTES = 8;
const bit<16> AGGREGATION_BYTES = 32;
const bit<16> PAYLOAD_BYTES = BLOCKS * BLOCK_BYTES;

#ifdef LANE_BY_LANE
#include "lanes.p4"  // of the benchmark
#else
header block_h {
    bit<BLOCK_BITS> lanes;
}
#define LAST_LANE lanes[31:0]
#endif

struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
    aggregation_h aggregation;
#define DECLARE(i) block_h block##i;
    FOR_EACH_BLOCK(DECLARE)
#undef DECLARE
}

#endif
