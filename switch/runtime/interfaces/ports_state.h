// SPDX-License-Identifier: Apache-2.0
//
// Shared by ports_thread.c and port_setup.c (thread, commands, interfaces), receive.c and forward.c
// (packets).
//
// struct ports holds all ports by number and, dense, in `numbers`; `pending` lists ports to serve,
// each at most once (port->pending). Only the thread touches these. A port is `blocked` while its
// socket takes no more frames: then its payloads are in memory of its own and epoll watches for
// EPOLLOUT. Between batches nothing refers to a received frame.

#ifndef RACKHUB_PORTS_STATE_H
#define RACKHUB_PORTS_STATE_H

#include <pthread.h>
#include <stdbool.h>

#include "capture.h"
#include "delayed_arrivals.h"
#include "interface.h"
#include "ports.h"
#include "record_ring.h"
#include "traffic_manager.h"
#include "transmit.h"

struct port {
    uint32_t number;
    bool cpu;
    struct interface interface;
    struct tm_port queue;
    struct transmit transmit;
    struct capture capture_in, capture_out;
    struct ports_statistics statistics;
    bool pending;    // in the list of ports to serve
    bool blocked;    // its socket takes no more; epoll reports when it does
    bool was_down;   // reported in the log
    bool said_plain, said_error;
    uint64_t quantum_ns; // a paced port with a backlog is served at most this often
    uint64_t wake_ns;    // and not before this
    struct intake intake;
};

struct command;

struct ports {
    uint32_t cpu_port;
    struct port *ports[SW_PORTS];
    uint32_t numbers[SW_PORTS]; // of the ports that exist
    uint32_t count;
    struct traffic_manager tm;
    struct ports_program program; // sw NULL: none attached
    uint64_t now_ns;              // of the present packet
    struct port *pending[SW_PORTS];
    uint32_t pending_count;
    bool passing;                 // a packet is in egress
    bool more;                    // packets wait to recirculate
    bool captures;                // a capture buffer is not empty
    struct segments *in_hand;     // the frame whose packets are being processed, or NULL
    struct ring events;           // to Python
    struct ring packet_outs;

    pthread_t thread;
    bool running;
    int epoll, wake, timer, links;
    uint64_t timer_ns; // what the timer is set to, 0 = not
    bool stop;
    pthread_mutex_t callers; // one command at a time
    pthread_mutex_t handover;
    pthread_cond_t done;
    struct command *command;
};

uint64_t clock_ns(void); // monotonic
uint64_t wall_ns(void);  // for captures

// Microseconds of the program: at a time, and now.
static inline uint64_t ports_us(const struct ports *ports, uint64_t ns) {
    return (ns - ports->program.start_ns) / 1000;
}

static inline uint64_t ports_now_us(const struct ports *ports) {
    return ports_us(ports, ports->now_ns);
}

__attribute__((format(printf, 3, 4))) void ports_log(struct ports *ports,
                                                     enum ports_event_kind kind,
                                                     const char *format, ...);

// epoll's data: a port's number, or one of these.
enum { TAG_WAKE = SW_PORTS, TAG_TIMER, TAG_LINKS };

// port_setup.c: each returns 0 or -errno

int port_watch(struct ports *ports, int file, uint32_t tag);
// Watches for the port's socket to take frames again, or stops watching.
void port_watch_output(struct ports *ports, struct port *port);
int port_attach(struct ports *ports, const struct ports_program *program);
int port_add(struct ports *ports, uint32_t number, const struct ports_options *options);
void port_destroy(struct port *port);
int port_read(struct ports *ports, uint32_t number, struct ports_statistics *into);
void port_links_news(struct ports *ports);
void port_flush_captures(struct ports *ports);

// receive.c

// Receives one batch of frames from the port's interface and forwards them.
void receive_batch(struct ports *ports, struct port *port);
// Forwards waiting packet-outs.
void receive_packet_outs(struct ports *ports);
// Forwards held frames whose last bit has arrived. Switch locked, if there is one.
void receive_due(struct ports *ports);

// forward.c

// Serves ports whose time has come, and recirculated packets.
void forward_due(struct ports *ports);
// Sends what waited until the interface takes frames again.
void forward_writable(struct ports *ports, struct port *port);
// Returns when to call forward_due next; UINT64_MAX: not before something arrives.
uint64_t forward_next_ns(const struct ports *ports);
// The traffic manager's enqueue.
void forward_enqueue(void *context, struct sw_packet *packet, uint64_t now_us);
// Sends what ports may send of the packets enqueued since the last call. Switch locked.
void forward_serve_pending(struct ports *ports);
// Ends a batch: runs recirculated packets, then sends everything that may be sent. Switch locked;
// unlocks it.
void forward_finish(struct ports *ports);
// Returns true if it is time: waiting for less than 50 us costs more than it is worth.
bool forward_is_due(const struct ports *ports, uint64_t at_ns);

#endif
