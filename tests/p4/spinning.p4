// SPDX-License-Identifier: Apache-2.0
//
// A parser that can go round: on the spot, between two states that only look ahead, and byte by
// byte through the whole packet, which is no error.
#include <core.p4>
#include <v1model.p4>

header order_h { bit<8> what; bit<8> error_; bit<16> steps; }
header step_h { bit<8> value; }
struct headers_t { order_h order; step_h step; }
struct metadata_t { bit<16> steps; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        transition select(hdr.order.what) {
            1: spin;
            2: turn;
            3: walk;
            default: accept;
        }
    }
    state spin {
        meta.steps = meta.steps + 1;
        transition select(packet.lookahead<bit<8>>()) { 0xff: spin; default: accept; }
    }
    state turn { transition select(packet.lookahead<bit<4>>()) { 0xf: back; default: accept; } }
    state back { meta.steps = meta.steps + 1; transition turn; }
    state walk {
        packet.extract(hdr.step);
        meta.steps = meta.steps + 1;
        transition select(hdr.step.value) { 0: accept; default: walk; }
    }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.order.steps = meta.steps;
        hdr.order.error_ = 0;
        if (standard.parser_error == error.PacketTooShort) { hdr.order.error_ = 1; }
        else if (standard.parser_error == error.ParserTimeout) { hdr.order.error_ = 2; }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr.order); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
