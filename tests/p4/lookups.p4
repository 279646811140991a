// SPDX-License-Identifier: Apache-2.0
//
// Tables of every kind, filled at random by tests: keys masked, valid bits, several fields, const
// and initial entries with priorities, default actions with arguments, direct counters, what a
// control does after hit, miss and each action. Every verdict goes into a byte of its own.
#include <core.p4>
#include <v1model.p4>

header query_h { bit<32> a; bit<16> b; bit<8> c; bit<4> d; bit<4> e; bit<128> w; int<16> s; }
header verdict_h {
    bit<8> exact_; bit<8> lpm_; bit<8> ternary_; bit<8> range_; bit<8> optional_; bit<8> masked_;
    bit<8> fixed_; bit<8> prefix_; bit<8> ordered_; bit<8> none_; bit<8> path; bit<32> wide;
}
header mark_h { bit<8> mark; }
struct headers_t { verdict_h verdict; query_h query; mark_h mark; }
struct metadata_t { bit<8> found; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.query);
        transition select(hdr.query.e) { 0x8 &&& 0x8: mark; default: accept; }
    }
    state mark { packet.extract(hdr.mark); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets_and_bytes) exact_hits;
    direct_counter(CounterType.packets_and_bytes) lpm_hits;
    direct_counter(CounterType.packets) ternary_hits;
    direct_counter(CounterType.bytes) range_hits;
    counter(4, CounterType.packets_and_bytes) verdicts;
    action drop() { mark_to_drop(standard); }
    action exactly(bit<8> v, bit<32> wide) {
        hdr.verdict.exact_ = v; hdr.verdict.wide = wide; verdicts.count(0);
    }
    action longest(bit<8> v) { hdr.verdict.lpm_ = v; verdicts.count(1); }
    action ternarily(bit<8> v, bit<9> port) {
        hdr.verdict.ternary_ = v; standard.egress_spec = port; verdicts.count(2);
    }
    action within(bit<8> v) { hdr.verdict.range_ = v; verdicts.count(3); }
    action perhaps(bit<8> v) { hdr.verdict.optional_ = v; }
    action masked(bit<8> v) { hdr.verdict.masked_ = v; }
    action fixed(bit<8> v) { hdr.verdict.fixed_ = v; }
    action prefixed(bit<8> v) { hdr.verdict.prefix_ = v; }
    action ordered(bit<8> v) { hdr.verdict.ordered_ = v; }
    action always(bit<8> v) { hdr.verdict.none_ = v; }
    table exact_table {
        key = { hdr.query.b: exact; hdr.query.d: exact; hdr.query.s: exact; hdr.mark.isValid(): exact; }
        actions = { exactly; drop; NoAction; }
        default_action = exactly(0xee, 7);
        counters = exact_hits;
        size = 64;
    }
    table lpm_table {
        key = { hdr.query.e: exact; hdr.query.a: lpm; }
        actions = { longest; NoAction; }
        const default_action = NoAction();
        counters = lpm_hits;
        size = 64;
    }
    table ternary_table {
        key = { hdr.query.a: ternary; hdr.query.c: exact; hdr.query.w: ternary; }
        actions = { ternarily; drop; NoAction; }
        counters = ternary_hits;
        size = 64;
    }
    table range_table {
        key = { hdr.query.b: range; hdr.query.a: ternary; hdr.query.c: range; }
        actions = { within; NoAction; }
        counters = range_hits;
        size = 64;
    }
    table optional_table {
        key = { hdr.query.b: optional; hdr.query.e: optional; }
        actions = { perhaps; NoAction; }
        size = 64;
    }
    table masked_table {
        key = { hdr.query.a & 0x00ffff00: exact @name("a"); hdr.query.w & 0xff: ternary @name("w"); }
        actions = { masked; NoAction; }
        size = 64;
    }
    table fixed_table {
        key = { hdr.query.c: ternary; hdr.query.d: range; }
        actions = { fixed; NoAction; }
        const default_action = fixed(0xff);
        const entries = {
            (0x10 &&& 0xf0, 0 .. 3): fixed(1);
            (0x10 &&& 0x30, _): fixed(2);
            (_, 5 .. 9): fixed(3);
            (0x01, 15): NoAction();
        }
    }
    table prefix_table {
        key = { hdr.query.b: lpm; }
        actions = { prefixed; NoAction; }
        const entries = {
            0x1200 &&& 0xff00: prefixed(1);
            0x1234: prefixed(2);
            0x1000 &&& 0xf000: prefixed(3);
        }
    }
    table ordered_table {
        key = { hdr.query.c: ternary; }
        actions = { ordered; NoAction; }
        entries = {
            const priority = 30: 0x00 &&& 0x03: ordered(1);
            priority = 20: 0x00 &&& 0x01: ordered(2);
            priority = 10: 0x00 &&& 0x0f: ordered(3);
        }
    }
    table plain_table {
        key = { hdr.query.d: exact; hdr.query.e: exact; }
        actions = { fixed; NoAction; }
        const entries = { (1, 1): fixed(0x10); (0, 0xf): fixed(0x20); (8, 0): NoAction(); }
    }
    table keyless_table { actions = { always; NoAction; } default_action = always(9); }
    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.verdict.setValid();
        if (exact_table.apply().hit) { hdr.verdict.path = hdr.verdict.path | 1; }
        if (lpm_table.apply().miss) { hdr.verdict.path = hdr.verdict.path | 2; }
        switch (ternary_table.apply().action_run) {
            ternarily: { hdr.verdict.path = hdr.verdict.path | 4; }
            drop: { hdr.verdict.path = hdr.verdict.path | 8; }
            default: { optional_table.apply(); }
        }
        if (hdr.query.d != 0) { range_table.apply(); }
        masked_table.apply();
        fixed_table.apply();
        prefix_table.apply();
        ordered_table.apply();
        plain_table.apply();
        keyless_table.apply();
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
