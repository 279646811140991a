// SPDX-License-Identifier: Apache-2.0
//
// The thread that runs the ports, and the calls of other threads.
//
// A call posts one struct command under `callers` (one call at a time), wakes the thread and waits
// on `done`; the thread executes it between events and clears ports->command under `handover`.
// Packet-ins and log lines go to Python through the ring `events`, packet-outs come through the
// ring `packet_outs`. The timer is set only when the time of the next work changes.

#define _GNU_SOURCE
#include "ports.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "ports_state.h"

enum {
    EVENT_BYTES = 1 << 20,      // packet-ins and log lines not yet fetched by Python
    PACKET_OUT_BYTES = 1 << 20,
    CAPTURE_DELAY_MS = 50,      // a capture file lags by this much at most when it is quiet
    EVENTS = 64,
};

enum command_kind { COMMAND_ATTACH, COMMAND_READ };

struct command {
    enum command_kind kind;
    uint32_t number;
    const void *argument;
    void *answer;
    int result;
};

uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t wall_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void ports_log(struct ports *ports, enum ports_event_kind kind, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length > (int)sizeof text - 1)
        length = sizeof text - 1;
    (void)ring_put(&ports->events, (uint8_t)kind, text, (size_t)length, 0);
}

// ---------------------------------------------------------------------------------------------
// Commands, in the thread

static int execute(struct ports *ports, const struct command *command) {
    switch (command->kind) {
    case COMMAND_ATTACH:
        return port_attach(ports, command->argument);
    case COMMAND_READ:
        return port_read(ports, command->number, command->answer);
    }
    return -EINVAL;
}

static void handle_command(struct ports *ports) {
    pthread_mutex_lock(&ports->handover);
    if (ports->command) {
        ports->command->result = execute(ports, ports->command);
        ports->command = NULL;
        pthread_cond_signal(&ports->done);
    }
    pthread_mutex_unlock(&ports->handover);
}

// ---------------------------------------------------------------------------------------------
// The thread

static void set_timer(struct ports *ports, uint64_t next_ns) {
    if (next_ns == UINT64_MAX || next_ns == 0)
        next_ns = 0; // none
    if (next_ns == ports->timer_ns)
        return;
    struct itimerspec when = {
        .it_value = {(time_t)(next_ns / 1000000000u), (long)(next_ns % 1000000000u)},
    };
    (void)timerfd_settime(ports->timer, TFD_TIMER_ABSTIME, &when, NULL);
    ports->timer_ns = next_ns;
}

static void handle_event(struct ports *ports, const struct epoll_event *event) {
    uint64_t count;
    uint32_t tag = event->data.u32;
    switch (tag) {
    case TAG_WAKE:
        if (read(ports->wake, &count, sizeof count) < 0)
            return;
        handle_command(ports);
        if (ports->cpu_port < SW_PORTS && ports->ports[ports->cpu_port])
            receive_packet_outs(ports);
        return;
    case TAG_TIMER:
        ports->timer_ns = 0;
        if (read(ports->timer, &count, sizeof count) < 0)
            return;
        forward_due(ports);
        return;
    case TAG_LINKS:
        port_links_news(ports);
        return;
    }
    struct port *port = ports->ports[tag];
    if (port->interface.socket < 0)
        return;
    if (event->events & EPOLLOUT)
        forward_writable(ports, port);
    if (event->events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        receive_batch(ports, port);
}

static void *run(void *argument) {
    struct ports *ports = argument;
    struct epoll_event events[EVENTS];
    while (!__atomic_load_n(&ports->stop, __ATOMIC_ACQUIRE)) {
        uint64_t next = forward_next_ns(ports);
        set_timer(ports, next);
        int timeout = next == 0 ? 0 : ports->captures ? CAPTURE_DELAY_MS : -1;
        int count = epoll_wait(ports->epoll, events, EVENTS, timeout);
        for (int i = 0; i < count; i++)
            handle_event(ports, &events[i]);
        if (next == 0)
            forward_due(ports);
        else if (count == 0 && ports->captures)
            port_flush_captures(ports);
    }
    port_flush_captures(ports);
    return NULL;
}

static void wake(struct ports *ports) {
    uint64_t one = 1;
    // It fails only when the count is at its limit, and then the thread wakes anyway.
    if (write(ports->wake, &one, sizeof one) < 0)
        return;
}

static int call(struct ports *ports, struct command *command) {
    pthread_mutex_lock(&ports->callers);
    if (ports->running) {
        pthread_mutex_lock(&ports->handover);
        ports->command = command;
        wake(ports);
        while (ports->command)
            pthread_cond_wait(&ports->done, &ports->handover);
        pthread_mutex_unlock(&ports->handover);
    } else {
        command->result = execute(ports, command);
    }
    pthread_mutex_unlock(&ports->callers);
    return command->result;
}

// ---------------------------------------------------------------------------------------------
// Public

static int open_files(struct ports *ports) {
    ports->epoll = epoll_create1(EPOLL_CLOEXEC);
    ports->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    ports->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (ports->epoll < 0 || ports->wake < 0 || ports->timer < 0)
        return -errno;
    int error = port_watch(ports, ports->wake, TAG_WAKE);
    if (!error)
        error = port_watch(ports, ports->timer, TAG_TIMER);
    return error;
}

// Opened when the ports start, in the caller's network namespace, which is that of the interfaces.
static int open_links(struct ports *ports) {
    if (ports->links < 0) {
        ports->links = links_open();
        if (ports->links < 0)
            return ports->links;
        return port_watch(ports, ports->links, TAG_LINKS);
    }
    return 0;
}

struct ports *ports_create(uint32_t cpu_port) {
    struct ports *ports = calloc(1, sizeof *ports);
    if (!ports)
        return NULL;
    ports->cpu_port = cpu_port;
    ports->epoll = ports->wake = ports->timer = ports->links = -1;
    pthread_mutex_init(&ports->callers, NULL);
    pthread_mutex_init(&ports->handover, NULL);
    pthread_cond_init(&ports->done, NULL);
    tm_init(&ports->tm, NULL, 0, NULL);
    int error = ring_init(&ports->events, EVENT_BYTES);
    if (!error)
        error = ring_init(&ports->packet_outs, PACKET_OUT_BYTES);
    if (!error)
        error = open_files(ports);
    if (error) {
        ports_destroy(ports);
        errno = -error;
        return NULL;
    }
    return ports;
}

void ports_destroy(struct ports *ports) {
    ports_stop(ports);
    port_attach(ports, NULL);
    for (uint32_t i = 0; i < ports->count; i++)
        port_destroy(ports->ports[ports->numbers[i]]);
    int files[] = {ports->epoll, ports->wake, ports->timer, ports->links};
    for (int i = 0; i < 4; i++)
        if (files[i] >= 0)
            close(files[i]);
    ring_destroy(&ports->events);
    ring_destroy(&ports->packet_outs);
    pthread_mutex_destroy(&ports->callers);
    pthread_mutex_destroy(&ports->handover);
    pthread_cond_destroy(&ports->done);
    free(ports);
}

int ports_start(struct ports *ports) {
    pthread_mutex_lock(&ports->callers);
    int error = open_links(ports);
    if (!error && !ports->running) {
        ports->stop = false;
        ring_reopen(&ports->events);
        ring_reopen(&ports->packet_outs);
        // Signals are for the interpreter's threads.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        error = -pthread_create(&ports->thread, NULL, run, ports);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        ports->running = !error;
        if (!error)
            (void)pthread_setname_np(ports->thread, "switch-ports");
    }
    pthread_mutex_unlock(&ports->callers);
    return error;
}

int ports_stop(struct ports *ports) {
    pthread_mutex_lock(&ports->callers);
    if (ports->running) {
        __atomic_store_n(&ports->stop, true, __ATOMIC_RELEASE);
        wake(ports);
        pthread_join(ports->thread, NULL);
        ports->running = false;
        ring_close(&ports->packet_outs);
        ring_close(&ports->events);
    }
    pthread_mutex_unlock(&ports->callers);
    return 0;
}

int ports_attach(struct ports *ports, const struct ports_program *program) {
    struct command command = {.kind = COMMAND_ATTACH, .argument = program};
    return call(ports, &command);
}

int ports_add(struct ports *ports, uint32_t number, const struct ports_options *options) {
    return ports->running ? -EBUSY : port_add(ports, number, options);
}

int ports_get_statistics(struct ports *ports, uint32_t number, struct ports_statistics *into) {
    struct command command = {.kind = COMMAND_READ, .number = number, .answer = into};
    return call(ports, &command);
}

int ports_packet_out(struct ports *ports, const uint8_t *frame, size_t length) {
    if (length > SW_MAX_FRAME)
        return -EMSGSIZE;
    if (!ring_put(&ports->packet_outs, PORTS_PACKET_IN, frame, length, 0))
        return -ENOBUFS;
    wake(ports);
    return 0;
}

int64_t ports_next_event(struct ports *ports, uint8_t *kind, void *data, size_t cap,
                         int timeout_ms) {
    return ring_get(&ports->events, kind, data, cap, timeout_ms);
}
