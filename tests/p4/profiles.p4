// SPDX-License-Identifier: Apache-2.0
//
// Action profiles and selectors: one profile for two tables, groups by three hashes, over fields of
// a header that may not be there, in ingress and egress; and what comes next by hit and by action.
#include <core.p4>
#include <v1model.p4>

header flow_h { bit<8> kind; bit<16> flow; bit<32> source; bit<8> mark; bit<8> found; bit<40> last; }
header more_h { bit<12> extra; bit<4> rest; }
struct headers_t { flow_h flow; more_h more; }
struct metadata_t { bit<16> spare; }

parser Parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.flow);
        transition select(hdr.flow.kind[7:7]) { 1: more; default: accept; }
    }
    state more { packet.extract(hdr.more); transition accept; }
}
control Verify(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Update(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Enter(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    direct_counter(CounterType.packets_and_bytes) hits;
    action_profile(16) shared;
    action_selector(HashAlgorithm.crc16, 128, 16) spread;
    @max_group_size(8) action_selector(HashAlgorithm.crc32, 64, 32) once;
    action send(bit<9> port, bit<8> mark) { standard.egress_spec = port; hdr.flow.mark = mark; }
    action rewrite(bit<32> source, bit<40> last) {
        hdr.flow.source = source;
        hdr.flow.last = last;
    }
    action deny() { mark_to_drop(standard); }
    table kinds {
        key = { hdr.flow.kind: exact; }
        actions = { send; rewrite; deny; }
        implementation = shared;
        counters = hits;
    }
    table sources {
        key = { hdr.flow.source: lpm; }
        actions = { send; rewrite; }
        implementation = shared;
    }
    table spreading {
        key = {
            hdr.flow.source: ternary;
            hdr.flow.flow: selector;
            hdr.more.extra: selector;
        }
        actions = { send; rewrite; deny; }
        implementation = spread;
    }
    table choosing {
        key = { hdr.flow.kind: exact; hdr.flow.flow: selector; hdr.flow.last: selector; }
        actions = { send; rewrite; }
        implementation = once;
    }
    apply {
        standard.egress_spec = 1;
        if (kinds.apply().hit) { hdr.flow.found = 1; sources.apply(); }
        switch (spreading.apply().action_run) {
            send: { hdr.flow.found = hdr.flow.found | 2; }
            rewrite: { hdr.flow.found = hdr.flow.found | 4; }
        }
        choosing.apply();
    }
}
control Leave(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action_selector(HashAlgorithm.identity, 32, 10) last;
    action leave(bit<8> mark) { hdr.flow.found[7:4] = mark[3:0]; }
    table leaving {
        key = { standard.egress_port: exact; hdr.flow.kind: selector; hdr.flow.mark: selector; }
        actions = { leave; }
        implementation = last;
    }
    apply { leaving.apply(); }
}
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }
V1Switch(Parse(), Verify(), Enter(), Leave(), Update(), Emit()) main;
