// SPDX-License-Identifier: Apache-2.0
//
// Captures packets to a pcap file with nanosecond timestamps (magic 0xa1b23c4d, Ethernet).
//
// Records collect in a bounded buffer (`used` bytes of CAPTURE_BUFFER) and reach the file when it
// is full or capture_flush is called. A failed write ends the capture (file -1, error set): what
// was written before stays readable.

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

// Creates the file, replacing an existing one. 0, or -errno and the capture is off.
int capture_open(struct capture *capture, const char *path);

// Records one packet. wall_ns: nanoseconds since 1970.
void capture_write(struct capture *capture, const uint8_t *packet, size_t length,
                   uint64_t wall_ns);

void capture_flush(struct capture *capture);
void capture_close(struct capture *capture);

#endif
