// SPDX-License-Identifier: Apache-2.0
//
// What ports.c and port.c (threads, commands, interfaces), receive.c and forward.c (packets) share.

#ifndef RACKHUB_PORT_H
#define RACKHUB_PORT_H

#include <pthread.h>
#include <stdbool.h>

#include "capture.h"
#include "intake.h"
#include "interface.h"
#include "ports.h"
#include "ring.h"
#include "tm.h"
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
    bool blocked;    // its socket takes no more; epoll tells when it does
    bool was_down;   // said so in the log
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
    uint64_t now_ns;              // of the packet in hand
    struct port *pending[SW_PORTS];
    uint32_t pending_count;
    bool passing;                 // a packet is in egress
    bool more;                    // packets wait to go round again
    bool captures;                // something waits in a capture buffer
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

// In microseconds of the program: at a time, and now.
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

// port.c: each returns 0 or -errno

int port_watch(struct ports *ports, int file, uint32_t tag);
// Asks to be told when the port's socket takes frames again, or not to be any more.
void port_watch_output(struct ports *ports, struct port *port);
int port_attach(struct ports *ports, const struct ports_program *program);
int port_add(struct ports *ports, uint32_t number, const struct ports_options *options);
int port_remove(struct ports *ports, uint32_t number);
int port_read(struct ports *ports, uint32_t number, struct ports_statistics *into);
void port_links_news(struct ports *ports);
void port_flush_captures(struct ports *ports);

// receive.c

// Takes one batch of frames from the port's interface and sends on what comes of it.
void receive_batch(struct ports *ports, struct port *port);
// The same for packet-outs.
void receive_packet_outs(struct ports *ports);
// Takes in frames of whose links the last bit is there now. Switch locked, if there is one.
void receive_due(struct ports *ports);

// forward.c

// Ports whose time has come, and packets that go round again.
void forward_due(struct ports *ports);
// The interface takes frames again.
void forward_writable(struct ports *ports, struct port *port);
// When forward_due is to be called next; UINT64_MAX: not before something arrives.
uint64_t forward_next_ns(const struct ports *ports);
// The traffic manager's enqueue.
void forward_enqueue(void *context, struct sw_packet *packet, uint64_t now_us);
// Sends what ports may send of what was enqueued since the last call. Switch locked.
void forward_serve_pending(struct ports *ports);
// What came out of a batch: packets that go round again, then everything that waits to be sent.
// Switch locked; unlocks it.
void forward_finish(struct ports *ports);
// Whether it is time: to wait for less than 50 us costs more than it is worth.
bool forward_is_due(const struct ports *ports, uint64_t at_ns);

#endif
