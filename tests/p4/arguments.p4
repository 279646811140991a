// SPDX-License-Identifier: Apache-2.0
//
// Headers and standard metadata as arguments: of actions outside of the control, which p4c gives a
// copy, of functions, and of `?:`; dropped packets, and those that only their copy is; priorities.
#include <core.p4>
#include <v1model.p4>

header order_h { bit<8> what; bit<8> number; bit<16> seen; }
header item_h { bit<8> kind; bit<16> value; bit<8> more; }
struct headers_t {
    order_h order;
    item_h[3] items;
    item_h left;
    item_h right;
    item_h chosen;
}
struct metadata_t { bit<8> count; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.order);
        transition item;
    }
    state item {
        packet.extract(hdr.items.next);
        transition select(hdr.items.last.kind) {
            0: item;
            1: accept;
            default: sides;
        }
    }
    state sides {
        packet.extract(hdr.left);
        transition select(hdr.left.kind) { 0: right; default: accept; }
    }
    state right {
        packet.extract(hdr.right);
        transition accept;
    }
}

action discard(inout standard_metadata_t given) { mark_to_drop(given); }
action discard_long(inout standard_metadata_t given, in bit<32> limit) {
    bit<9> port = given.egress_spec;
    mark_to_drop(given);
    given.egress_spec = given.packet_length > limit ? given.egress_spec : port;
}
action rescue(inout standard_metadata_t given, in bit<9> port) {
    mark_to_drop(given);
    given.egress_spec = port;
}
action grouped(inout standard_metadata_t given) {
    mark_to_drop(given);
    given.mcast_grp = 1;
}
action swap(inout item_h one, inout item_h other) {
    item_h kept = one;
    one = other;
    other = kept;
}
bit<16> taken(inout item_h from) {
    bit<16> value = from.value;
    from.value = 0;
    from.more = from.more + 1;
    return value;
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Update(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    // Conditions around assignments in actions are `?:` to BMv2, between headers, too.
    action choose() {
        if (hdr.order.number > 3) { hdr.chosen = hdr.left; } else { hdr.chosen = hdr.items[1]; }
        if (hdr.order.number == 9) { hdr.right = hdr.items[0]; }
    }
    apply {
        bit<9> port = (bit<9>)(hdr.order.number & 7);
        standard.egress_spec = port;
        if (hdr.order.what == 1) { discard(standard); }
        else if (hdr.order.what == 2) { discard(standard); standard.egress_spec = port; }
        else if (hdr.order.what == 3) {
            standard_metadata_t copy = standard;
            mark_to_drop(copy);
            if (copy.egress_spec == 511) { hdr.order.seen = 3; }
        }
        else if (hdr.order.what == 4) { discard_long(standard, 20); }
        else if (hdr.order.what == 5) { rescue(standard, port); }
        else if (hdr.order.what == 6) { grouped(standard); }
        else if (hdr.order.what == 7) { standard.mcast_grp = 1; discard(standard); }
        else if (hdr.order.what == 8) { swap(hdr.left, hdr.right); }
        else if (hdr.order.what == 9) {
            if (hdr.left.isValid()) { hdr.order.seen = taken(hdr.left); }
        }
        else if (hdr.order.what == 10) {
            hdr.chosen = hdr.order.number > 3 ? hdr.left : hdr.right;
        }
        else if (hdr.order.what == 11) {
            hdr.chosen = hdr.order.number > 3 ? (hdr.order.number > 5 ? hdr.left : hdr.items[0]) : hdr.items[1];
        }
        else if (hdr.order.what == 12) { standard.priority = (bit<3>)(hdr.order.number >> 3); }
        else if (hdr.order.what == 13) { standard.mcast_grp = 2; standard.priority = 1; }
        else if (hdr.order.what == 18) { choose(); }
        else if (hdr.order.what == 14) {
            if (hdr.left == hdr.right) { hdr.order.seen = 14; }
        }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.order.what == 15) { discard(standard); }
        else if (hdr.order.what == 16) { discard_long(standard, 24); }
        else if (hdr.order.what == 17) {
            standard_metadata_t copy = standard;
            mark_to_drop(copy);
        }
    }
}
control Emit(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.order);
        packet.emit(hdr.items);
        packet.emit(hdr.left);
        packet.emit(hdr.right);
        packet.emit(hdr.chosen);
    }
}
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
