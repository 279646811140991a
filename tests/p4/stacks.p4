// SPDX-License-Identifier: Apache-2.0
//
// Headers and stacks of them: parsed in a loop, pushed, popped, copied, compared, indexed by a
// field, made valid and invalid. The first byte's bits say what is done; `seen` tells the rest.
#include <core.p4>
#include <v1model.p4>

error { Odd }

header order_h { bit<8> what; bit<8> index; bit<8> count; }
header item_h { bit<7> value; bit<1> last; bit<16> data; }
header seen_h {
    bit<8> error_; bit<8> last_index; bit<8> valid; bit<8> equal; bit<16> picked; bit<16> peeked;
    bit<32> length; bit<8> rest;
}
header tail_h { bit<16> a; bit<16> b; }
struct headers_t { seen_h seen; order_h order; item_h[4] items; item_h[4] copies; tail_h tail;
                   tail_h other; }
struct metadata_t { bit<8> parsed; bit<8> last_index; bit<16> peeked; bit<8> rest; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        verify(hdr.order.count != 0xff, error.Odd);
        transition select(hdr.order.count & 0xf0, hdr.order.what[0:0] ++ hdr.order.index[0:0]) {
            (0, _): items;
            (0x10, 1): tail;
            (0x20 &&& 0xe0, 2w2): skip;
            default: accept;
        }
    }
    state items {
        packet.extract(hdr.items.next);
        meta.last_index = (bit<8>)hdr.items.lastIndex;
        meta.parsed = meta.parsed + 1;
        transition select(hdr.items.last.last, hdr.items.last.value) {
            (1, 0x11): tail;
            (1, _): accept;
            (0, 0x7f): skip;
            default: items;
        }
    }
    state skip {
        meta.peeked = packet.lookahead<tail_h>().b;
        packet.advance(16);
        transition select(packet.lookahead<bit<8>>(), hdr.order.index) {
            (0x00 .. 0x7f, _): tail;
            (_, 0): reject_it;
            default: accept;
        }
    }
    state reject_it { transition reject; }
    state tail { packet.extract(hdr.tail); meta.rest = 1; transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action shift_up() { hdr.items.push_front(1); hdr.items[0].setValid(); hdr.items[0].data = 0x1234; }
    action shift_down() { hdr.items.pop_front(2); }
    action drop_tail() { hdr.tail.setInvalid(); }
    apply {
        standard.egress_spec = 1;
        hdr.seen.setValid();
        if (standard.parser_error == error.NoError) { hdr.seen.error_ = 0; }
        else if (standard.parser_error == error.PacketTooShort) { hdr.seen.error_ = 1; }
        else if (standard.parser_error == error.StackOutOfBounds) { hdr.seen.error_ = 2; }
        else if (standard.parser_error == error.Odd) { hdr.seen.error_ = 3; }
        else { hdr.seen.error_ = 4; }
        hdr.seen.last_index = meta.last_index;
        hdr.seen.peeked = meta.peeked;
        hdr.seen.rest = meta.rest;
        assume(hdr.seen.isValid());
        if (hdr.order.isValid()) {
            bit<8> index = hdr.order.index & 3;
            if (index < meta.parsed) {
                hdr.seen.picked = hdr.items[index].data;
                if (hdr.order.what[1:1] == 1) { hdr.items[index].data = 0xbeef; }
            }
            if (hdr.order.what[2:2] == 1) { shift_up(); }
            if (hdr.order.what[3:3] == 1) { shift_down(); }
            if (hdr.order.what[4:4] == 1) { hdr.copies = hdr.items; }
            if (hdr.order.what[5:5] == 1) { hdr.items[3] = hdr.items[0]; }
            if (hdr.order.what[6:6] == 1) { drop_tail(); }
            if (hdr.order.what[7:7] == 1) { hdr.other = hdr.tail; hdr.other.a = hdr.other.a + 1; }
            if (hdr.items[0] == hdr.items[1]) { hdr.seen.equal = hdr.seen.equal | 1; }
            if (hdr.items[0] != hdr.items[3]) { hdr.seen.equal = hdr.seen.equal | 2; }
            if (hdr.tail == hdr.other) { hdr.seen.equal = hdr.seen.equal | 4; }
            if (hdr.items[0].isValid()) { hdr.seen.valid = hdr.seen.valid | 1; }
            if (hdr.items[1].isValid()) { hdr.seen.valid = hdr.seen.valid | 2; }
            if (hdr.items[2].isValid()) { hdr.seen.valid = hdr.seen.valid | 4; }
            if (hdr.items[3].isValid()) { hdr.seen.valid = hdr.seen.valid | 8; }
            if (hdr.tail.isValid()) { hdr.seen.valid = hdr.seen.valid | 16; }
            if (hdr.other.isValid()) { hdr.seen.valid = hdr.seen.valid | 32; }
        }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply { hdr.seen.length = standard.packet_length; }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
