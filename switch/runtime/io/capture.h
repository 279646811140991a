// SPDX-License-Identifier: Apache-2.0
//
// Packet capture to a pcap file with nanosecond time stamps (magic 0xa1b23c4d, Ethernet).
//
// Records collect in a bounded buffer and reach the file when it is full or capture_flush is
// called. A write that fails ends the capture: what was written before stays readable.

#ifndef RACKHUB_CAPTURE_H
#define RACKHUB_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

#define CAPTURE_BUFFER (256 * 1024)

struct capture {
    int file; // -1: not capturing
    size_t used;
    int error;        // errno that ended it, or 0
    uint64_t lost;    // packets not recorded since
    uint8_t *buffer;
};

// Creates the file (replacing one that is there). 0, or -errno and the capture is off.
int capture_open(struct capture *capture, const char *path);

// One packet; wall_ns: nanoseconds since 1970.
void capture_write(struct capture *capture, const uint8_t *packet, size_t length,
                   uint64_t wall_ns);

void capture_flush(struct capture *capture);
void capture_close(struct capture *capture);

#endif
