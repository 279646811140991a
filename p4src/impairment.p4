// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_IMPAIRMENT
#define RACKHUB_IMPAIRMENT

#include "metadata.p4"
#include "outcomes.p4"

// Bad links, made by the data plane itself: many kernels have no netem, and a seeded draw per packet gives the same
// faults on every target. A port with an entry loses, duplicates, reorders and corrupts packets with the given
// probabilities (fractions of 2^32), drawn from a hash of the port's packet count and a seed.

// Draws for the packet at hand, part of controls Arrival and Departure. CRC alone is linear, so that draws of one packet would be
// copies of each other; between two CRCs stands the bijection x + (x*x | 5) mod 2^32 (Klimov and Shamir, CHES 2002). The first CRC
// is of seed, count, port and kind of draw; being linear, it differs between kinds by constants, and is computed once. p4c makes
// a variable of the argument of each hash.
#define FIRST_CRC_DUPLICATED 0x77073096  // CRC-32 of byte 1 instead of 0 at the end, that is, of Impaired.DUPLICATED
#define FIRST_CRC_REORDERED 0xEE0E612C
#define FIRST_CRC_CORRUPTED 0x990951BA
#define DRAWS \
    @name("draw.packets") register<bit<32>, bit<32>>(PORTS) packets; \
    action begin() { \
        packets.read(meta.impairment.count, meta.impairment.port); \
        hash(meta.impairment.first, HashAlgorithm.crc32, 32w0, \
             { meta.impairment.seed ++ meta.impairment.count ++ meta.impairment.port[15:0] ++ 8w0 }, 33w0x100000000); \
        packets.write(meta.impairment.port, meta.impairment.count + 1); \
    } \
    action draw(bit<32> kind) { \
        meta.impairment.drawn = meta.impairment.first ^ kind; \
        hash(meta.impairment.drawn, HashAlgorithm.crc32, 32w0, \
             { (meta.impairment.drawn + (meta.impairment.drawn * meta.impairment.drawn | 5)) ++ meta.impairment.seed }, \
             33w0x100000000); \
    }

// A broken lane of the first block, or, where there is no block, a broken checksum.
control Corrupt(inout headers_t hdr, in bit<32> drawn) {
    bit<32> noise = drawn | 1;  // never 0

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
    DRAWS
    Corrupt() corruption;

    action impair(bit<32> seed, bit<32> loss, bit<32> duplicate, bit<32> reorder, bit<32> corrupt) {
        meta.impairment.port = (bit<32>)standard_metadata.ingress_port;
        meta.impairment.seed = seed;
        meta.impairment.loss_duplicate = loss ++ duplicate;
        meta.impairment.reorder_corrupt = reorder ++ corrupt;
    }

    table impairments {
        key = { standard_metadata.ingress_port: exact @name("ingress_port"); }
        actions = { impair; NoAction; }
        const default_action = NoAction();
        size = PORTS;
    }

    apply {
        if (standard_metadata.instance_type == INSTANCE_RECIRCULATED) {
            if (meta.detour.kind == Detour.DEPARTURE) {
                meta.unimpaired = 0;  // it went through everything but the wire
                standard_metadata.egress_spec = meta.detour.port;
                outcomes.count(Outcome.IMPAIRED);
                exit;
            }
            standard_metadata.ingress_port = meta.detour.port;
        } else if (impairments.apply().hit) {
            begin();
            meta.detour.kind = Detour.ARRIVAL;
            meta.detour.port = standard_metadata.ingress_port;
            draw(0);
            if (meta.impairment.drawn < IMPAIRMENT_LOSS(meta.impairment)) {
                impaired.count(Impaired.LOST);
                outcomes.count(Outcome.IMPAIRED);
                exit;
            }
            draw(FIRST_CRC_DUPLICATED);
            if (meta.impairment.drawn < IMPAIRMENT_DUPLICATE(meta.impairment)) {
                impaired.count(Impaired.DUPLICATED);
                clone_preserving_field_list(CloneType.I2E, meta.impairment.port, DETOUR_FIELDS);
            }
            draw(FIRST_CRC_CORRUPTED);
            if (meta.impairment.drawn < IMPAIRMENT_CORRUPT(meta.impairment)) {
                impaired.count(Impaired.CORRUPTED);
                corruption.apply(hdr, meta.impairment.drawn);
            }
            draw(FIRST_CRC_REORDERED);
            if (meta.impairment.drawn < IMPAIRMENT_REORDER(meta.impairment)) {
                impaired.count(Impaired.REORDERED);
                meta.recirculate = 1;
                standard_metadata.egress_spec = standard_metadata.ingress_port;
                outcomes.count(Outcome.IMPAIRED);
                exit;
            }
        }
    }
}

// Packets going out. A duplicate is a clone of the finished packet; a reordered one goes round and leaves as it is.
control Departure(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter<Impaired>((bit<32>)IMPAIRMENTS, CounterType.packets) impaired;
    DRAWS
    Corrupt() corruption;

    action impair(bit<32> seed, bit<32> loss, bit<32> duplicate, bit<32> reorder, bit<32> corrupt) {
        meta.impairment.port = (bit<32>)standard_metadata.egress_port;
        meta.impairment.seed = seed;
        meta.impairment.loss_duplicate = loss ++ duplicate;
        meta.impairment.reorder_corrupt = reorder ++ corrupt;
    }

    table impairments {
        key = { standard_metadata.egress_port: exact @name("egress_port"); }
        actions = { impair; NoAction; }
        const default_action = NoAction();
        size = PORTS;
    }

    apply {
        if (impairments.apply().hit) {
            begin();
            draw(0);
            if (meta.impairment.drawn < IMPAIRMENT_LOSS(meta.impairment)) {
                impaired.count(Impaired.LOST);
                mark_to_drop(standard_metadata);
            } else {
                draw(FIRST_CRC_DUPLICATED);
                if (meta.impairment.drawn < IMPAIRMENT_DUPLICATE(meta.impairment)) {
                    impaired.count(Impaired.DUPLICATED);
                    clone_preserving_field_list(CloneType.E2E, meta.impairment.port, DETOUR_FIELDS);
                }
                draw(FIRST_CRC_CORRUPTED);
                if (meta.impairment.drawn < IMPAIRMENT_CORRUPT(meta.impairment)) {
                    impaired.count(Impaired.CORRUPTED);
                    corruption.apply(hdr, meta.impairment.drawn);
                }
                draw(FIRST_CRC_REORDERED);
                if (meta.impairment.drawn < IMPAIRMENT_REORDER(meta.impairment)) {
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
