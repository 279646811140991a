// SPDX-License-Identifier: Apache-2.0
//
// The ports of one switch on network interfaces, run by one thread of its own.
//
//   receive -> split, complete checksums -> ingress -> traffic manager -> egress -> join -> send
//
// The thread sleeps in epoll until a frame, a pacing timer, a command or a change of an interface
// arrives. It alone touches ports and queues. All functions here may be called from any thread;
// they pass their work to it (or do it themselves while it is not running).
//
// A library of its own: the program's functions come in struct ports_program, so interfaces, queues
// and statistics outlive the program that forwards.

#ifndef RACKHUB_PORTS_H
#define RACKHUB_PORTS_H

#include <net/if.h>
#include <stddef.h>
#include <stdint.h>

#include "target.h"

struct ports;

// A switch that forwards. call: its library's sw_functions.
struct ports_program {
    struct sw *sw;
    const struct sw_functions *call;
    uint32_t pool; // as given to sw_create
    uint64_t start_ns; // time 0 of its microseconds, by CLOCK_MONOTONIC
};

struct ports_options {
    char interface[IFNAMSIZ]; // empty: the CPU port
    uint64_t rate;            // bit/s of the frames without FCS; 0: none
    uint64_t queue_bytes;
    uint64_t queue_packets;   // of one priority; 0: no limit
    uint64_t rate_in;         // bit/s of the link that ends here (delayed_arrivals.h); 0: none held
    uint64_t train_bytes;     // longest joined frame; 0: do not join
    const char *capture_in;   // path of a pcap file, or NULL
    const char *capture_out;
};

// Counters since the port was added. Packets are counted as on the wire (after splitting, before
// joining), bytes with all headers from Ethernet on, without FCS.
struct ports_statistics {
    uint64_t rx_packets, rx_bytes;
    uint64_t rx_frames;     // as received from the system; a GSO frame is one
    uint64_t rx_overrun;    // frames: a full receive ring, or a full buffer of held frames
    uint64_t rx_bad_offload; // frames with an inconsistent offload header
    uint64_t rx_truncated;  // frames longer than 64 KiB
    uint64_t rx_no_program; // packets while no program was attached
    uint64_t tx_packets, tx_bytes;
    uint64_t tx_frames;
    uint64_t tx_queue_full; // packets: the port's queue was full
    uint64_t tx_refused;    // packets: the interface's own queue was full (or the CPU's ring)
    uint64_t tx_oversized;  // packets above the interface's MTU
    uint64_t tx_down;       // packets for an interface that is down or gone
    uint64_t tx_errors;
    uint64_t queue_packets, queue_bytes;         // now
    uint64_t queue_packets_max, queue_bytes_max; // since the port was added
    uint64_t capture_lost;  // packets that a failed capture did not record
    uint64_t present;       // 1: the interface is open
    uint64_t joining;       // 1: the port joins
};

// cpu_port: its number, or SW_DROP_PORT for none. NULL with errno set on failure.
struct ports *ports_create(uint32_t cpu_port);
void ports_destroy(struct ports *ports); // stops first

// All return 0 or -errno.
int ports_start(struct ports *ports);
int ports_stop(struct ports *ports);
int ports_attach(struct ports *ports, const struct ports_program *program); // NULL: none
// Before ports_start. -EEXIST: the number is taken; what interface_open and capture_open return.
int ports_add(struct ports *ports, uint32_t number, const struct ports_options *options);
int ports_get_statistics(struct ports *ports, uint32_t number, struct ports_statistics *into);

// Processes a packet-out as if it had arrived on the CPU port. -ENOBUFS: too many wait.
int ports_packet_out(struct ports *ports, const uint8_t *frame, size_t length);

enum ports_event_kind {
    PORTS_PACKET_IN = 1, // a frame that left through the CPU port
    PORTS_INFO = 2,      // text for the log
    PORTS_WARNING = 3,
};

// Takes the next event; like ring_get. -EPIPE: the ports were stopped.
int64_t ports_next_event(struct ports *ports, uint8_t *kind, void *data, size_t cap,
                         int timeout_ms);

// Sends a UDP GSO frame over a temporary pair of interfaces in a network namespace of its own.
// Returns 1 if it arrives whole; else 0, and the reason is written to `reason`.
int ports_probe_gso(char *reason, size_t cap);

#endif
