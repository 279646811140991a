// SPDX-License-Identifier: Apache-2.0
//
// Every operator that p4c leaves to the target, on bit<> and int<> of several widths: in actions,
// in parameters, in conditions, behind slices and casts. Results go into a header of their own.
#include <core.p4>
#include <v1model.p4>

header values_h {
    bit<32> a; bit<32> b; bit<64> c; bit<128> w; bit<48> p;
    bit<8> n; bit<4> x; bit<12> y; bit<1> z; int<7> q;
    int<8> s; int<8> t; int<32> u; int<32> v; int<64> l;
}
header results_h {
    bit<32> sum; bit<32> difference; bit<32> product;
    bit<64> left; bit<64> right; bit<128> wide_left; bit<128> wide_right; bit<128> wide_product;
    bit<32> and_; bit<32> or_; bit<32> xor_; bit<32> not_; bit<32> minus;
    bit<8> saturated_sum; bit<8> saturated_difference; int<8> signed_sum; int<8> signed_difference;
    int<8> s_sum; int<8> s_product; int<32> s_right; int<32> s_left; int<64> extended;
    int<8> cut; bit<8> reinterpreted; bit<16> concatenated; bit<12> sliced; bit<48> assigned;
    bit<64> chosen; bit<8> flags; bit<8> comparisons; bit<8> signed_comparisons; bit<8> equalities;
    bit<32> nested; bit<32> from_parameter; int<64> negated; bit<8> taken; bit<4> rest;
}
struct headers_t { values_h v; results_h r; }
struct metadata_t { bool one; bool other; bit<16> counted; int<12> odd; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start { packet.extract(hdr.v); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }

control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action unsigned_ones() {
        hdr.r.sum = hdr.v.a + hdr.v.b;
        hdr.r.difference = hdr.v.a - hdr.v.b;
        hdr.r.product = hdr.v.a * hdr.v.b;
        hdr.r.left = hdr.v.c << hdr.v.n;
        hdr.r.right = hdr.v.c >> hdr.v.n;
        hdr.r.wide_left = hdr.v.w << hdr.v.n;
        hdr.r.wide_right = hdr.v.w >> hdr.v.n;
        hdr.r.wide_product = hdr.v.w * (bit<128>)hdr.v.c;
        hdr.r.and_ = hdr.v.a & hdr.v.b;
        hdr.r.or_ = hdr.v.a | hdr.v.b;
        hdr.r.xor_ = hdr.v.a ^ hdr.v.b;
        hdr.r.not_ = ~hdr.v.a;
        hdr.r.minus = -hdr.v.a;
        hdr.r.saturated_sum = hdr.v.n |+| (bit<8>)hdr.v.x;
        hdr.r.saturated_difference = (bit<8>)hdr.v.x |-| hdr.v.n;
    }
    action signed_ones() {
        hdr.r.signed_sum = hdr.v.s |+| hdr.v.t;
        hdr.r.signed_difference = hdr.v.s |-| hdr.v.t;
        hdr.r.s_sum = hdr.v.s + hdr.v.t;
        hdr.r.s_product = hdr.v.s * hdr.v.t;
        hdr.r.s_right = hdr.v.u >> hdr.v.n;
        hdr.r.s_left = hdr.v.u << (bit<5>)hdr.v.x;
        hdr.r.extended = (int<64>)hdr.v.q + (int<64>)hdr.v.v;
        hdr.r.cut = (int<8>)hdr.v.l;
        hdr.r.reinterpreted = (bit<8>)hdr.v.s;
        hdr.r.negated = -hdr.v.l;
        meta.odd = (int<12>)hdr.v.u - 1;
    }
    action slices() {
        hdr.r.concatenated = hdr.v.x ++ hdr.v.y;
        hdr.r.sliced = hdr.v.w[70:59];
        hdr.r.assigned = hdr.v.p;
        hdr.r.assigned[40:33] = hdr.v.n;
        hdr.r.assigned[3:0] = hdr.v.p[47:44];
        hdr.r.nested = ((hdr.v.a + hdr.v.b) * 3 - (hdr.v.b >> 3)) ^ ~(hdr.v.a | 0xff)
                       & (bit<32>)hdr.v.c[47:16];
    }
    // A condition in an action, which becomes jumps.
    action jumps(bit<8> limit, bit<32> amount) {
        if (hdr.v.n > limit) {
            hdr.r.taken = hdr.r.taken | 1;
            hdr.r.from_parameter = amount + (bit<32>)limit;
        } else {
            hdr.r.from_parameter = amount ^ hdr.v.a;
            if (hdr.v.z == 1) { hdr.r.taken = hdr.r.taken | 2; }
        }
    }
    table parameters {
        key = { hdr.v.x: exact; }
        actions = { jumps; NoAction; }
        default_action = jumps(128, 0x01020304);
        size = 16;
    }
    apply {
        standard.egress_spec = 1;
        if (!hdr.v.isValid()) { exit; }
        hdr.r.setValid();
        unsigned_ones();
        signed_ones();
        slices();
        parameters.apply();
        hdr.r.chosen = (hdr.v.z == 1 ? hdr.v.c : (bit<64>)hdr.v.a);
        if (hdr.v.a < hdr.v.b) { hdr.r.comparisons = hdr.r.comparisons | 1; }
        if (hdr.v.a <= hdr.v.b) { hdr.r.comparisons = hdr.r.comparisons | 2; }
        if (hdr.v.a > hdr.v.b) { hdr.r.comparisons = hdr.r.comparisons | 4; }
        if (hdr.v.a >= hdr.v.b) { hdr.r.comparisons = hdr.r.comparisons | 8; }
        if (hdr.v.w == (bit<128>)hdr.v.c) { hdr.r.comparisons = hdr.r.comparisons | 16; }
        if (hdr.v.w != (bit<128>)hdr.v.c) { hdr.r.comparisons = hdr.r.comparisons | 32; }
        if (hdr.v.s < hdr.v.t) { hdr.r.signed_comparisons = hdr.r.signed_comparisons | 1; }
        if (hdr.v.u >= hdr.v.v) { hdr.r.signed_comparisons = hdr.r.signed_comparisons | 2; }
        if (hdr.v.q > -3) { hdr.r.signed_comparisons = hdr.r.signed_comparisons | 4; }
        if (hdr.v.l <= (int<64>)hdr.v.u) {
            hdr.r.signed_comparisons = hdr.r.signed_comparisons | 8;
        }
        if (meta.odd < 0) { hdr.r.signed_comparisons = hdr.r.signed_comparisons | 16; }
        meta.one = hdr.v.z == 1;
        meta.other = hdr.v.n > 100 && !(hdr.v.x == 3) || hdr.v.y < 7;
        if (meta.one == meta.other) { hdr.r.equalities = hdr.r.equalities | 1; }
        if (meta.one != (hdr.v.n < 50)) { hdr.r.equalities = hdr.r.equalities | 2; }
        if (meta.other) { hdr.r.equalities = hdr.r.equalities | 4; }
        bool both = meta.one && meta.other;
        hdr.r.flags = (bit<8>)(bit<1>)both;
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
