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
// step into the next, which doubles the expression each time.
control Draw(in bit<32> seed, in bit<32> count, in port_t port, in bit<8> kind, out bit<32> value) {
    bit<32> x;

    apply {
        hash(x, HashAlgorithm.crc32, 32w0, { seed, count, (bit<16>)port, kind }, 33w0x100000000);
        x = x + (x * x | 5);
        hash(value, HashAlgorithm.crc32, 32w0, { x, seed }, 33w0x100000000);
    }
}

struct quality_t {
    bit<32> seed;
    bit<32> loss;
    bit<32> duplicate;
    bit<32> reorder;
    bit<32> corrupt;
}

struct draws_t {
    bool lost;
    bool duplicated;
    bool reordered;
    bool corrupted;
    bit<32> noise;  // never 0
}

control Draws(in port_t port, in quality_t quality, out draws_t draws) {
    register<bit<32>, bit<32>>(PORTS) packets;
    Draw() draw_loss;
    Draw() draw_duplicate;
    Draw() draw_reorder;
    Draw() draw_corrupt;
    bit<32> count;
    bit<32> value;

    apply {
        packets.read(count, (bit<32>)port);
        packets.write((bit<32>)port, count + 1);
        draw_loss.apply(quality.seed, count, port, 0, value);
        draws.lost = value < quality.loss;
        draw_duplicate.apply(quality.seed, count, port, 1, value);
        draws.duplicated = value < quality.duplicate;
        draw_reorder.apply(quality.seed, count, port, 2, value);
        draws.reordered = value < quality.reorder;
        draw_corrupt.apply(quality.seed, count, port, 3, value);
        draws.corrupted = value < quality.corrupt;
        draws.noise = value | 1;
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
control Arrival(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata,
                out Outcome outcome, out bool on_its_way) {
    counter<Impaired>((bit<32>)IMPAIRMENTS, CounterType.packets) impaired;
    quality_t quality;
    Draws() draw;
    Corrupt() corruption;
    draws_t draws;

    action impair(bit<32> seed, bit<32> loss, bit<32> duplicate, bit<32> reorder, bit<32> corrupt) {
        quality.seed = seed;
        quality.loss = loss;
        quality.duplicate = duplicate;
        quality.reorder = reorder;
        quality.corrupt = corrupt;
    }

    table impairments {
        key = { meta.ingress_port: exact @name("ingress_port"); }
        actions = { impair; NoAction; }
        const default_action = NoAction();
        size = PORTS;
    }

    apply {
        quality = { 0, 0, 0, 0, 0 };
        outcome = Outcome.IMPAIRED;
        on_its_way = true;
        meta.ingress_port = standard_metadata.ingress_port;
        if (standard_metadata.instance_type == INSTANCE_RECIRCULATED && meta.detour.kind == Detour.DEPARTURE) {
            standard_metadata.egress_spec = meta.detour.port;
            on_its_way = false;
        } else if (standard_metadata.instance_type == INSTANCE_RECIRCULATED) {
            meta.ingress_port = meta.detour.port;
        } else if (impairments.apply().hit) {
            draw.apply(meta.ingress_port, quality, draws);
            meta.detour.kind = Detour.ARRIVAL;
            meta.detour.port = meta.ingress_port;
            if (draws.lost) {
                impaired.count(Impaired.LOST);
                on_its_way = false;
            } else {
                if (draws.duplicated) {
                    impaired.count(Impaired.DUPLICATED);
                    clone_preserving_field_list(CloneType.I2E, (bit<32>)meta.ingress_port, DETOUR_FIELDS);
                }
                if (draws.corrupted) {
                    impaired.count(Impaired.CORRUPTED);
                    corruption.apply(hdr, draws.noise);
                }
                if (draws.reordered) {
                    impaired.count(Impaired.REORDERED);
                    meta.recirculate = 1;
                    standard_metadata.egress_spec = meta.ingress_port;
                    on_its_way = false;
                }
            }
        }
    }
}

// Packets going out. A duplicate is a clone of the finished packet; a reordered one goes round and leaves as it is.
control Departure(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter<Impaired>((bit<32>)IMPAIRMENTS, CounterType.packets) impaired;
    quality_t quality;
    Draws() draw;
    Corrupt() corruption;
    draws_t draws;

    action impair(bit<32> seed, bit<32> loss, bit<32> duplicate, bit<32> reorder, bit<32> corrupt) {
        quality.seed = seed;
        quality.loss = loss;
        quality.duplicate = duplicate;
        quality.reorder = reorder;
        quality.corrupt = corrupt;
    }

    table impairments {
        key = { standard_metadata.egress_port: exact @name("egress_port"); }
        actions = { impair; NoAction; }
        const default_action = NoAction();
        size = PORTS;
    }

    apply {
        quality = { 0, 0, 0, 0, 0 };
        if (impairments.apply().hit) {
            draw.apply(standard_metadata.egress_port, quality, draws);
            if (draws.lost) {
                impaired.count(Impaired.LOST);
                mark_to_drop(standard_metadata);
            } else {
                if (draws.duplicated) {
                    impaired.count(Impaired.DUPLICATED);
                    clone_preserving_field_list(CloneType.E2E, (bit<32>)standard_metadata.egress_port, DETOUR_FIELDS);
                }
                if (draws.corrupted) {
                    impaired.count(Impaired.CORRUPTED);
                    corruption.apply(hdr, draws.noise);
                }
                if (draws.reordered) {
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
