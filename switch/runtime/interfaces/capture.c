// SPDX-License-Identifier: Apache-2.0
//
// Packet capture to a pcap file: see capture.h.

#include "capture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct file_header {
    uint32_t magic;
    uint16_t major, minor;
    uint32_t zone, accuracy;
    uint32_t snapshot; // longest packet kept
    uint32_t link_type;
};

struct record_header {
    uint32_t seconds, nanoseconds;
    uint32_t captured, length;
};

enum { LINK_TYPE_ETHERNET = 1, LONGEST = 65536 + 64 };

static void append(struct capture *capture, const void *bytes, size_t length) {
    memcpy(capture->buffer + capture->used, bytes, length);
    capture->used += length;
}

int capture_open(struct capture *capture, const char *path) {
    memset(capture, 0, sizeof *capture);
    capture->file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (capture->file < 0)
        return -errno;
    capture->buffer = malloc(CAPTURE_BUFFER);
    if (!capture->buffer) {
        capture_close(capture);
        return -ENOMEM;
    }
    struct file_header header = {0xa1b23c4d, 2, 4, 0, 0, LONGEST, LINK_TYPE_ETHERNET};
    append(capture, &header, sizeof header);
    capture_flush(capture);
    return -capture->error;
}

void capture_write(struct capture *capture, const uint8_t *packet, size_t length,
                   uint64_t wall_ns) {
    if (capture->file < 0) {
        capture->lost += capture->error != 0;
        return;
    }
    uint32_t kept = length < LONGEST ? (uint32_t)length : LONGEST;
    struct record_header header = {(uint32_t)(wall_ns / 1000000000u),
                                   (uint32_t)(wall_ns % 1000000000u), kept, (uint32_t)length};
    if (capture->used + sizeof header + kept > CAPTURE_BUFFER)
        capture_flush(capture);
    if (capture->file < 0) { // the flush failed
        capture->lost++;
        return;
    }
    append(capture, &header, sizeof header);
    append(capture, packet, kept);
}

void capture_flush(struct capture *capture) {
    size_t written = 0;
    while (capture->file >= 0 && written < capture->used) {
        ssize_t count = write(capture->file, capture->buffer + written, capture->used - written);
        if (count >= 0) {
            written += (size_t)count;
        } else if (errno != EINTR) {
            int error = errno;
            capture->used = 0; // the file takes nothing: close without another attempt
            capture_close(capture);
            capture->error = error;
        }
    }
    capture->used = 0;
}

void capture_close(struct capture *capture) {
    if (capture->file < 0)
        return;
    if (capture->used)
        capture_flush(capture);
    if (capture->file >= 0)
        close(capture->file);
    capture->file = -1;
    free(capture->buffer);
    capture->buffer = NULL;
}
