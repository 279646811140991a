// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_IMPAIRMENT
#define RACKHUB_IMPAIRMENT

#include "metadata.p4"
#include "outcomes.p4"

// Bad links, made by the data plane itself: many kernels have no netem, and a seeded draw per packet gives the same
// faults on every target. A port with an entry loses, duplicates, reorders and corrupts packets with the given
// probabilities (fractions of 2^32), drawn from a hash of the port's packet count and a seed.

// One draw. CRC alone is linear, so that draws of one packet would be copies of each other; between two CRCs stands the
// bijection x + (x*x | 5) mod 2^32 (Klimov and Shamir, CHES 2002). The extern calls also keep p4c from substituting one
// step into the next, which doubles the expression each time. Each hash has one argument: p4c makes a variable of each.
control Draws(in port_t port, inout metadata_t meta) {
    register<bit<32>, bit<32>>(PORTS) packets;
    bit<32> count;
    bit<8> kind;
    bit<32> x;
    bit<32> value;

    action draw() {
        hash(x, HashAlgorithm.crc32, 32w0, { meta.quality.seed ++ count ++ (bit<16>)port ++ kind }, 33w0x100000000);
        x = x + (x * x | 5);
        hash(value, HashAlgorithm.crc32, 32w0, { x ++ meta.quality.seed }, 33w0x100000000);
    }

    apply {
        packets.read(count, (bit<32>)port);
        packets.write((bit<32>)port, count + 1);
        kind = 0;
        draw();
        meta.draws.lost = value < meta.quality.loss;
        kind = 1;
        draw();
        meta.draws.duplicated = value < meta.quality.duplicate;
        kind = 2;
        draw();
        meta.draws.reordered = value < meta.quality.reorder;
        kind = 3;
        draw();
        meta.draws.corrupted = value < meta.quality.corrupt;
        meta.draws.noise = value | 1;
    }
}

// A broken lane of the first block, or, where there is no block, a broken checksum.
control Corrupt(inout headers_t hdr, in bit<32> noise) {
    apply {
#if BLOCKS > 0
        if (hdr.block0.isValid()) {
            hdr.block0.LAST_LANE = hdr.block0.LAST_LANE ^ noise;
        } else
#endif
        if (hdr.aggregation.isValid() && (hdr.aggregation.flags & UNTOUCHED) == 0) {
            hdr.aggregation.checksum = hdr.aggregation.checksum ^ noise;
        }
    }
}

// Packets coming in. A duplicate is a clone of the packet as it arrived, sent round through recirculation to arrive once
// more; a reordered packet goes the same way itself and so falls behind those queued after it.
control Arrival(counter<Outcome> outcomes, inout headers_t hdr, inout metadata_t meta,
                inout standard_metadata_t standard_metadata) {
    counter<Impaired>((bit<32>)IMPAIRMENTS, CounterType.packets) impaired;
    Draws() draw;
    Corrupt() corruption;

    action impair(bit<32> seed, bit<32> loss, bit<32> duplicate, bit<32> reorder, bit<32> corrupt) {
        meta.quality.seed = seed;
        meta.quality.loss = loss;
        meta.quality.duplicate = duplicate;
        meta.quality.reorder = reorder;
        meta.quality.corrupt = corrupt;
    }

    table impairments {
        key = { meta.ingress_port: exact @name("ingress_port"); }
        actions = { impair; NoAction; }
        const default_action = NoAction();
        size = PORTS;
    }

    apply {
        if (standard_metadata.instance_type == INSTANCE_RECIRCULATED) {
            if (meta.detour.kind == Detour.DEPARTURE) {
                standard_metadata.egress_spec = meta.detour.port;
                outcomes.count(Outcome.IMPAIRED);
                exit;
            }
            meta.ingress_port = meta.detour.port;
        } else if (impairments.apply().hit) {
            draw.apply(meta.ingress_port, meta);
            meta.detour.kind = Detour.ARRIVAL;
            meta.detour.port = meta.ingress_port;
            if (meta.draws.lost) {
                impaired.count(Impaired.LOST);
                outcomes.count(Outcome.IMPAIRED);
                exit;
            }
            if (meta.draws.duplicated) {
                impaired.count(Impaired.DUPLICATED);
                clone_preserving_field_list(CloneType.I2E, (bit<32>)meta.ingress_port, DETOUR_FIELDS);
            }
            if (meta.draws.corrupted) {
                impaired.count(Impaired.CORRUPTED);
                corruption.apply(hdr, meta.draws.noise);
            }
            if (meta.draws.reordered) {
                impaired.count(Impaired.REORDERED);
                meta.recirculate = 1;
                standard_metadata.egress_spec = meta.ingress_port;
                outcomes.count(Outcome.IMPAIRED);
                exit;
            }
        }
    }
}

// Packets going out. A duplicate is a clone of the finished packet; a reordered one goes round and leaves as it is.
control Departure(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter<Impaired>((bit<32>)IMPAIRMENTS, CounterType.packets) impaired;
    Draws() draw;
    Corrupt() corruption;

    action impair(bit<32> seed, bit<32> loss, bit<32> duplicate, bit<32> reorder, bit<32> corrupt) {
        meta.quality.seed = seed;
        meta.quality.loss = loss;
        meta.quality.duplicate = duplicate;
        meta.quality.reorder = reorder;
        meta.quality.corrupt = corrupt;
    }

    table impairments {
        key = { standard_metadata.egress_port: exact @name("egress_port"); }
        actions = { impair; NoAction; }
        const default_action = NoAction();
        size = PORTS;
    }

    apply {
        if (impairments.apply().hit) {
            draw.apply(standard_metadata.egress_port, meta);
            if (meta.draws.lost) {
                impaired.count(Impaired.LOST);
                mark_to_drop(standard_metadata);
            } else {
                if (meta.draws.duplicated) {
                    impaired.count(Impaired.DUPLICATED);
                    clone_preserving_field_list(CloneType.E2E, (bit<32>)standard_metadata.egress_port, DETOUR_FIELDS);
                }
                if (meta.draws.corrupted) {
                    impaired.count(Impaired.CORRUPTED);
                    corruption.apply(hdr, meta.draws.noise);
                }
                if (meta.draws.reordered) {
                    impaired.count(Impaired.REORDERED);
                    meta.detour.kind = Detour.DEPARTURE;
                    meta.detour.port = standard_metadata.egress_port;
                    recirculate_preserving_field_list(DETOUR_FIELDS);
                }
            }
        }
    }
}

#endif
