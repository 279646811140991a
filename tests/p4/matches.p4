// SPDX-License-Identifier: Apache-2.0
//
// A table of every match kind over one header; each writes its verdict into a byte of its own.
#include <core.p4>
#include <v1model.p4>

header query_h { bit<32> a; bit<12> b; bit<4> c; bit<128> d; int<8> e; }
header verdict_h { bit<8> exact_; bit<8> lpm_; bit<8> ternary_; bit<8> range_; bit<8> optional_;
                   bit<8> fixed_; bit<8> hit; }
struct headers_t { query_h query; verdict_h verdict; }
struct metadata_t {}

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start { packet.extract(hdr.query); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action exactly(bit<8> v) { hdr.verdict.exact_ = v; }
    action longest(bit<8> v) { hdr.verdict.lpm_ = v; }
    action masked(bit<8> v) { hdr.verdict.ternary_ = v; }
    action within(bit<8> v) { hdr.verdict.range_ = v; }
    action perhaps(bit<8> v) { hdr.verdict.optional_ = v; }
    action fixed(bit<8> v) { hdr.verdict.fixed_ = v; }
    table exact_table {
        key = { hdr.query.a: exact; hdr.query.b: exact; hdr.query.d: exact; hdr.query.e: exact;
                hdr.verdict.isValid(): exact; }
        actions = { exactly; NoAction; } default_action = exactly(0xee); size = 4;
    }
    table lpm_table {
        key = { hdr.query.c: exact; hdr.query.d: lpm; }
        actions = { longest; NoAction; } default_action = NoAction(); size = 64;
    }
    table ternary_table {
        key = { hdr.query.a: ternary; hdr.query.d: ternary; }
        actions = { masked; NoAction; } size = 1024;
    }
    table range_table {
        key = { hdr.query.b: range; hdr.query.c: exact; hdr.query.a: range; }
        actions = { within; NoAction; }
    }
    table optional_table {
        key = { hdr.query.b: optional; hdr.query.c: optional; }
        actions = { perhaps; NoAction; }
    }
    table fixed_table {
        key = { hdr.query.b: ternary; hdr.query.c: ternary; }
        actions = { fixed; NoAction; }
        const default_action = fixed(0xff);
        const entries = {
            (0x123, _): fixed(1);
            (0x100 &&& 0xf00, 4): fixed(2);
            (_, 4): fixed(3);
        }
    }
    apply {
        standard.egress_spec = standard.ingress_port;
        hdr.verdict.setValid();
        exact_table.apply();
        lpm_table.apply();
        if (ternary_table.apply().hit) { hdr.verdict.hit = 1; }
        range_table.apply();
        optional_table.apply();
        switch (fixed_table.apply().action_run) { NoAction: { hdr.verdict.hit = 7; } default: {} }
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
