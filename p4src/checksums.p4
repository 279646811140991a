// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_CHECKSUMS
#define RACKHUB_CHECKSUMS

#include "metadata.p4"

#define IPV4_CHECKSUMMED(ip) \
    { ip.version, ip.ihl, ip.dscp, ip.ecn, ip.total_length, ip.identification, ip.flags, ip.fragment_offset, ip.ttl, \
      ip.protocol, ip.source, ip.destination }

control VerifyChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, IPV4_CHECKSUMMED(hdr.ipv4), hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}

// A UDP checksum is not computed: v1model cannot sum 8 KiB. What a switch rewrites carries 0, "no checksum" (RFC 768);
// the aggregation checksum covers the sums end to end.
control UpdateChecksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, IPV4_CHECKSUMMED(hdr.ipv4), hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}

#endif
