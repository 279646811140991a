// SPDX-License-Identifier: Apache-2.0
//
// Stacks of header unions: extracted one after the other, looked at while parsing, by constant
// indices, copied as unions and as stacks.
#include <core.p4>
#include <v1model.p4>

header order_h { bit<8> what; bit<8> seen; }
header kind_h { bit<8> kind; }
header short_h { bit<8> next; bit<8> value; }
header long_h { bit<8> next; bit<24> value; }
header text_h { bit<8> next; bit<8> length; varbit<32> text; }
header_union item_h {
    short_h short;
    long_h long;
    text_h text;
}
struct headers_t { order_h order; item_h[3] items; item_h[3] copies; item_h alone; }
struct metadata_t { }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        transition next;
    }
    state next {
        transition select(packet.lookahead<bit<8>>()) {
            0 &&& 0xc0: short_;
            0x40 &&& 0xc0: long_;
            0x80 &&& 0xc0: text;
            0xc0 &&& 0xf0: single;
            default: accept;
        }
    }
    state short_ {
        packet.extract(hdr.items.next.short);
        transition next;
    }
    state long_ {
        packet.extract(hdr.items.next.long);
        transition next;
    }
    state text {
        packet.extract(hdr.items.next.text, (bit<32>)(packet.lookahead<bit<16>>()[2:0]) << 3);
        transition next;
    }
    state single {
        packet.extract(hdr.alone.short);
        transition accept;
    }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Update(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = standard.ingress_port;
        if (standard.parser_error != error.NoError) { hdr.order.seen = 0xff; }
        if (hdr.items[0].short.isValid()) { hdr.order.seen = hdr.order.seen | 1; }
        if (hdr.items[1].long.isValid()) { hdr.order.seen = hdr.order.seen | 2; }
        if (hdr.items[2].text.isValid()) { hdr.order.seen = hdr.order.seen | 4; }
        if (hdr.order.what == 1) { hdr.copies = hdr.items; }
        else if (hdr.order.what == 2) { hdr.copies[1] = hdr.items[0]; }
        else if (hdr.order.what == 3) { hdr.items[0] = hdr.items[2]; }
        else if (hdr.order.what == 4) { hdr.alone = hdr.items[1]; }
        else if (hdr.order.what == 5) { hdr.items[1].long.setValid(); hdr.items[1].long = { 9, 9 }; }
        else if (hdr.order.what == 6) { hdr.items[0].short.setInvalid(); }
        else if (hdr.order.what == 7) { if (hdr.items[0].short.isValid()) { hdr.items[0].short.value = 0x77; } }
        else if (hdr.order.what == 11) { hdr.items.push_front(1); }
        else if (hdr.order.what == 12) { hdr.items.pop_front(2); }
        else if (hdr.order.what == 8) { hdr.copies[2].short = hdr.items[0].short; }
        else if (hdr.order.what == 9) { hdr.copies = hdr.items; hdr.items = hdr.copies; hdr.copies[0] = hdr.alone; }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.order.what == 10) { hdr.copies[0] = hdr.items[0]; hdr.items[0].long.setValid(); hdr.items[0].long = { 1, 2 }; }
    }
}
control Emit(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.order);
        packet.emit(hdr.items);
        packet.emit(hdr.copies);
        packet.emit(hdr.alone);
    }
}
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
