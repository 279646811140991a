// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_CHECKSUMS
#define RACKHUB_CHECKSUMS

#include "metadata.p4"

#define IPV4_CHECKSUMMED(ip) \
    { ip.version, ip.ihl, ip.dscp, ip.ecn, ip.total_length, ip.identification, ip.flags, ip.fragment_offset, ip.ttl, \
      ip.protocol, ip.source, ip.destination }

// The checksum after one 16-bit word of the header grew by `growth` (RFC 1624, equation 3): for headers with options, which
// are not parsed and so not summed here. A wrong checksum stays wrong, for the receiver to see. Elsewhere
// UpdateChecksums has the last word.
bit<16> checksum_after(in bit<16> checksum, in bit<16> growth) {
    bit<32> sum = (bit<32>)(~checksum) + (bit<32>)growth;
    return ~(sum[15:0] + sum[31:16]);
}

const bit<16> ONE_HOP = 0xFEFF;  // the TTL, the upper byte of its word, falls by one: -0x0100 in one's complement

control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == IPV4_WORDS, IPV4_CHECKSUMMED(hdr.ipv4), hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}

// A UDP checksum is not computed: v1model cannot sum 8 KiB. What a switch rewrites carries 0, "no checksum" (RFC 768);
// the aggregation checksum covers the sums end to end.
control UpdateChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == IPV4_WORDS, IPV4_CHECKSUMMED(hdr.ipv4), hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}

#endif
