// SPDX-License-Identifier: Apache-2.0
//
// Runs one input of the fuzzer, record by record, on a switch with full tables and five ports. The
// switch, its queues and ports are the production code; only system calls are replaced (kernel.h).
//
// A second, plain switch gets a complete copy of every packet. Invariant: each packet in the first
// switch's queues has a counterpart in the plain one's, and both send the same, whatever buffers the
// fast path shares, lends or defers.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "packets.h"
#include "kernel.h"
#include "lines.h"
#include "ports_state.h"
#include "records.h"

enum { POOL = 128, CPU_PORT = 64, ROUNDS = 4 };

static struct ports *ports;
static struct sw *sw; // NULL: create it for the next input
static struct sw *plain;
static bool changed;  // tables or ports differ from the setup
static bool attached;
static uint8_t *egress_frame; // SW_MAX_FRAME bytes, exactly

static uint32_t number_of(uint32_t wire) { return wire ? wire : CPU_PORT; }

// ---------------------------------------------------------------------------------------------
// Counterparts

static struct pair {
    struct sw_packet *packet, *counterpart;
} pairs[POOL]; // of what is queued
static size_t pair_count;
static struct sw_packet *queued[POOL + 32]; // by the plain switch, for the fast one to follow
static size_t queued_count, queued_taken;
static sw_enqueue_fn forward;

// Whether the fast switch had no room for a packet, of which the plain one has more: no counterparts
// from then on, and new switches for the next input.
static bool lost(void) { return sw->stats.no_buffer + sw->stats.rounds_lost > 0; }

static void plain_enqueue(void *tm, struct sw_packet *packet, uint64_t now_us) {
    (void)tm;
    (void)now_us;
    if (queued_count == sizeof queued / sizeof *queued)
        wrong("the plain switch queues too much");
    queued[queued_count++] = packet;
}

static void enqueue(void *tm, struct sw_packet *packet, uint64_t now_us) {
    if (!lost()) { // a copy before this one may be what was lost
        if (queued_taken == queued_count || pair_count == POOL)
            wrong("the plain switch did not queue this packet");
        struct sw_packet *counterpart = queued[queued_taken++];
        if (counterpart->port != packet->port || counterpart->priority != packet->priority ||
            counterpart->length != packet->length)
            wrong("port %u, priority %u, %u bytes, but plainly %u, %u, %u", packet->port,
                  packet->priority, packet->length, counterpart->port, counterpart->priority,
                  counterpart->length);
        pairs[pair_count++] = (struct pair){packet, counterpart};
    }
    forward(tm, packet, now_us);
}

static struct sw_packet *counterpart_of(const struct sw_packet *packet) {
    for (size_t i = 0; i < pair_count; i++)
        if (pairs[i].packet == packet) {
            struct sw_packet *counterpart = pairs[i].counterpart;
            pairs[i] = pairs[--pair_count];
            return counterpart;
        }
    if (!lost())
        wrong("a packet without a counterpart");
    return NULL;
}

static void forget_counterparts(void) {
    while (queued_taken < queued_count)
        sw_packet_free(plain, queued[queued_taken++]);
    while (pair_count)
        sw_packet_free(plain, pairs[--pair_count].counterpart);
    struct sw_packet *packet;
    while ((packet = ring_pop(&plain->again)))
        sw_packet_free(plain, packet);
}

// After the same was done with both. taken, count: of an ingress that is not over, as its first
// copies are in egress already, else 0.
static void followed(size_t taken, size_t count) {
    if (lost()) {
        while (queued_taken < queued_count)
            sw_packet_free(plain, queued[queued_taken++]);
        queued_taken = taken;
        queued_count = count;
        forget_counterparts();
        queued_taken = queued_count = 0;
        return;
    }
    if (queued_taken != queued_count)
        wrong("%zu packets are queued, plainly %zu", queued_taken, queued_count);
    queued_taken = taken;
    queued_count = count;
}

// What goes round in the plain switch, set aside while it does an ingress; what that ingress resubmits
// follows when it is over in the fast one too, which may have done egress for copies meanwhile, and
// they may go round as well.
static struct sw_ring before, resubmitted;

static void plain_begins(void) {
    before = plain->again;
    plain->again = (struct sw_ring){0};
}

static void plain_ends(void) {
    resubmitted = plain->again;
    plain->again = before;
}

static void fast_ends(void) {
    struct sw_packet *packet;
    while ((packet = ring_pop(&resubmitted)))
        ring_push(&plain->again, packet);
    followed(0, 0);
}

// ---------------------------------------------------------------------------------------------
// The program's functions

// Packets that have arrived on a wire but not yet in the program.
static uint64_t missing(uint32_t wire) {
    const struct ports_statistics *statistics = &ports->ports[wire]->statistics;
    return statistics->rx_overrun + statistics->rx_no_program;
}

static void receive_frame(struct sw *of, uint32_t port, const struct sw_frame *frame,
                          uint64_t now_us) {
    uint8_t *exact = malloc(frame->length);
    if (frame->length && !exact)
        wrong("no memory");
    memcpy(exact, frame->bytes, frame->length);
    if (frame->sum_field != SW_COMPLETE)
        complete_sum(exact, frame->length, frame->sum_start, frame->sum_field);
    if (port != CPU_PORT)
        lines_come(port, exact, frame->length, kernel_now(), missing(port));
    if (!lost()) {
        struct sw_frame complete = {
            .bytes = exact, .length = frame->length, .sum_field = SW_COMPLETE};
        plain_begins();
        sw_receive(plain, port, &complete, now_us);
        plain_ends();
    }
    free(exact);
    sw_receive(of, port, frame, now_us);
    fast_ends();
}

static size_t send_packet(struct sw *of, struct sw_packet *packet, uint64_t now_us, uint8_t *out,
                   size_t cap, struct sw_leaving *leaving) {
    uint32_t port = packet->port;
    size_t expected = 0;
    static uint8_t whole[SW_MAX_FRAME];
    if (cap != SW_MAX_FRAME)
        wrong("egress has room for %zu bytes", cap);
    struct sw_packet *counterpart = counterpart_of(packet);
    size_t taken = queued_taken, count = queued_count;
    queued_taken = queued_count;
    if (counterpart) {
        counterpart->enq_qdepth = packet->enq_qdepth;
        counterpart->deq_qdepth = packet->deq_qdepth;
        counterpart->enq_us = packet->enq_us;
        expected = sw_egress(plain, counterpart, now_us, egress_frame, cap);
    }
    size_t length = sw_send(of, packet, now_us, out, cap, leaving);
    followed(taken, count);
    if (counterpart && length != expected)
        wrong("%zu bytes leave, plainly %zu", length, expected);
    if (length == 0)
        return 0;
    if (length > SW_MAX_FRAME)
        wrong("egress returned %zu bytes", length);
    size_t rest = leaving->payload ? leaving->payload_length : 0;
    memcpy(whole, out, length - rest);
    if (rest)
        memcpy(whole + length - rest, leaving->payload, rest);
    if (leaving->sum_field != SW_COMPLETE)
        complete_sum(whole, length, leaving->sum_start, leaving->sum_field);
    if (counterpart && memcmp(whole, egress_frame, length) != 0)
        wrong("%zu bytes leave that are not what leaves plainly", length);
    kernel_expect(port == CPU_PORT ? 0 : port, whole, length);
    return length;
}

static size_t recirculate(struct sw *of, uint64_t now_us, size_t limit) {
    size_t left = of->again.count;
    for (size_t those = left < limit ? left : limit; those; those--) {
        if (!lost()) {
            struct sw_packet *packet = sw_take_round(plain);
            if (!packet)
                wrong("nothing goes round plainly");
            plain_begins();
            sw_round(plain, packet, now_us);
            plain_ends();
        }
        left = sw_recirculate(of, now_us, 1);
        fast_ends();
    }
    if (!lost() && left != plain->again.count)
        wrong("%zu packets go round, plainly %zu", left, plain->again.count);
    return left;
}

static void packet_free(struct sw *of, struct sw_packet *packet) {
    struct sw_packet *counterpart = counterpart_of(packet);
    if (counterpart)
        sw_packet_free(plain, counterpart);
    sw_packet_free(of, packet);
}

static void set_traffic_manager(struct sw *of, sw_enqueue_fn function, void *tm) {
    forward = function;
    sw_set_traffic_manager(of, function ? enqueue : NULL, tm);
}

static void attach(bool program) {
    static const struct sw_functions functions = {
        .set_traffic_manager = set_traffic_manager,
        .lock = sw_lock,
        .unlock = sw_unlock,
        .receive = receive_frame,
        .send = send_packet,
        .packet_keep = sw_packet_keep,
        .recirculate = recirculate,
        .packet_free = packet_free,
    };
    const struct ports_program attached_program = {sw, &functions, POOL, 0};
    attached = program;
    if (ports_attach(ports, program ? &attached_program : NULL))
        wrong("attach");
}

// ---------------------------------------------------------------------------------------------
// The beginning

// Each packet of the pool has its own allocation, so that overruns are detected.
static void guard_packets(struct sw *of, int count) {
    static uint8_t *buffers[2][2 * POOL];
    static void *contexts[2][2 * POOL];
    struct sw_packet *taken[2 * POOL];
    int which = of == plain;
    for (int i = 0; i < count; i++) {
        if (!buffers[which][i])
            buffers[which][i] = malloc(SW_MAX_FRAME);
        if (!contexts[which][i] && posix_memalign(&contexts[which][i], 64, program_context_size))
            wrong("no memory");
        taken[i] = sw_packet_take(of);
        taken[i]->buffer = buffers[which][i];
        taken[i]->context = contexts[which][i];
        memset(contexts[which][i], 0, program_context_size);
    }
    for (int i = count; i-- > 0;)
        sw_packet_free(of, taken[i]);
}

static void add_ports(void) {
    for (uint32_t wire = 0; wire < WIRES; wire++) {
        // 1: plain; 2: large; 3: slow, with a short queue; 4: short trains; 5: captured. To 2 and 5
        // frames take their time, too.
        uint64_t rate_in = wire == 2 ? 10000000000 : wire == 5 ? 100000000 : 0;
        struct ports_options options = {
            .queue_bytes = wire == 3 ? 20000 : 1 << 20,
            .rate = wire == 3 ? 10000000 : 0,
            .rate_in = rate_in,
            .train_bytes = wire < 2 ? 0 : wire == 4 ? 4000 : 65549,
            .capture_in = wire == 5 ? "/dev/null" : NULL,
            .capture_out = wire == 5 ? "/dev/null" : NULL,
        };
        if (wire)
            snprintf(options.interface, sizeof options.interface, "e%u", wire);
        lines_set(wire, rate_in);
        if (ports_add(ports, number_of(wire), &options))
            wrong("port %u", wire);
    }
}

static void log_nothing(void *user, const char *message) {
    (void)user;
    if (strlen(message) > 4096)
        wrong("a message of %zu bytes", strlen(message));
}

static void begin(void) {
    if (sw)
        return;
    changed = false;
    if (!ports) {
        ports = ports_create(CPU_PORT);
        if (!egress_frame)
            egress_frame = malloc(SW_MAX_FRAME);
        if (!ports || !egress_frame)
            wrong("no memory");
        kernel_reset();
    }
    sw = sw_create(POOL);
    plain = sw_create(2 * POOL); // what is dropped by the queues of the one goes a little later there
    if (!sw || !plain)
        wrong("no switch");
    sw_set_priority_queues(sw, SW_PRIORITIES);
    sw_set_priority_queues(plain, SW_PRIORITIES);
    sw_set_log(sw, log_nothing, NULL);
    sw_set_log(plain, log_nothing, NULL);
    guard_packets(sw, POOL);
    guard_packets(plain, 2 * POOL);
    control_begin(plain, sw);
    sw_set_traffic_manager(plain, plain_enqueue, NULL);
    add_ports();
    attach(true);
}

// ---------------------------------------------------------------------------------------------
// The end of an input: no packet is lost or leaked

static void fetch_events(void) {
    static uint8_t data[SW_MAX_FRAME];
    uint8_t kind;
    int64_t length;
    while ((length = ports_next_event(ports, &kind, data, sizeof data, 0)) >= 0)
        if (kind == PORTS_PACKET_IN)
            kernel_came(0, data, (size_t)length);
}

static void let_out(void) {
    kernel_send_freely();
    for (uint32_t wire = 1; wire < WIRES; wire++)
        forward_writable(ports, ports->ports[wire]);
    for (int round = 0; round < 64 && forward_next_ns(ports) != UINT64_MAX; round++) {
        kernel_pass(1000000000);
        forward_due(ports);
    }
    fetch_events();
}

static void destroy_all(void) {
    control_end(plain, sw);
    ports_destroy(ports);
    ports = NULL;
    sw_destroy(sw);
    sw_destroy(plain);
    sw = plain = NULL;
    lines_forget();
    kernel_reset();
}

static void check_pool(const struct sw *of, size_t size) {
    size_t idle = 0;
    for (const struct sw_packet *packet = of->free; packet; packet = packet->next)
        idle++;
    if (idle != size)
        wrong("%zu of %zu packets are there", idle, size);
}

static void check_counts(void) {
    if (ports->tm.packets)
        wrong("%u packets wait in no queue", ports->tm.packets);
    check_pool(sw, POOL);
    check_pool(plain, 2 * POOL);
    for (uint32_t wire = 0; wire < WIRES; wire++) {
        struct ports_statistics statistics;
        if (ports_get_statistics(ports, number_of(wire), &statistics))
            wrong("statistics of port %u", wire);
        if (statistics.tx_packets != kernel_delivered(wire))
            wrong("port %u counts %lu packets, %lu came", wire,
                  (unsigned long)statistics.tx_packets, (unsigned long)kernel_delivered(wire));
    }
}

// Restores the switch for the next input: recreated if tables or ports changed, else with registers
// set to 0.
static void end(void) {
    let_out();
    kernel_done();
    for (uint32_t wire = 1; wire < WIRES; wire++)
        lines_done(wire, missing(wire));
    attach(false);
    struct sw_packet *packet;
    while ((packet = ring_pop(&sw->again)))
        sw_packet_free(sw, packet);
    forget_counterparts();
    check_counts();
    if (changed || lost()) {
        destroy_all();
        return;
    }
    control_forget(plain, sw);
    attach(true);
}

// ---------------------------------------------------------------------------------------------
// Records

static void arrive(uint32_t wire, const struct record *record, const uint8_t *data, int tag,
                   size_t *stretched) {
    static uint8_t frame[2 * 65536];
    size_t length = record->length, more = record->stretch;
    if (*stretched + more > MOST_STRETCH)
        more = 0;
    *stretched += more;
    memcpy(frame, data, length);
    for (size_t i = 0; i < more; i++)
        frame[length + i] = length ? frame[i] : 0;
    struct offload_header header;
    memcpy(&header, record->numbers, sizeof header);
    kernel_arrive(wire, &header, frame, length + more, tag);
}

static void receive(uint32_t wire) {
    struct port *port = wire ? ports->ports[wire] : NULL;
    if (port && port->interface.socket >= 0 && kernel_waits(wire))
        receive_batch(ports, port);
}

static void happens(const struct record *record, uint32_t wire, const uint8_t *data) {
    if (record->operation % OPERATIONS > TIME)
        changed = true;
    switch (record->operation % OPERATIONS) {
    case PACKET_OUT:
        (void)ports_packet_out(ports, data, record->length);
        receive_packet_outs(ports);
        break;
    case TIME:
        kernel_pass(record->numbers[0] * 1000ull);
        forward_due(ports);
        break;
    case LINK:
        kernel_link(wire, record->numbers[0] % LINK_NEWS, record->numbers[1]);
        port_links_news(ports);
        break;
    case SEND:
        kernel_fail_send(wire, record->numbers[0], record->numbers[1]);
        break;
    case RECEIVE_ERROR:
        kernel_fail_receive(wire, record->numbers[0]);
        receive(wire);
        break;
    case WRITABLE:
        forward_writable(ports, ports->ports[wire]);
        break;
    case CONTROL:
        control(plain, sw, !lost(), record, data);
        break;
    case ATTACH:
        attach(!attached);
        break;
    }
}

int record_next(const uint8_t *input, size_t size, size_t *at, struct record *record,
                const uint8_t **data) {
    if (size - *at < sizeof *record)
        return 0;
    memcpy(record, input + *at, sizeof *record);
    *at += sizeof *record;
    *data = input + *at;
    if (record->length > size - *at)
        record->length = (uint16_t)(size - *at);
    *at += record->length;
    return 1;
}

const char *__asan_default_options(void);
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

// No leaks: what the pool gives is counted here, LeakSanitizer sees nothing behind mmap and does not
// run everywhere. A short quarantine keeps the same pages in use.
const char *__asan_default_options(void) { return "detect_leaks=0:quarantine_size_mb=8"; }

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    struct record record;
    const uint8_t *data;
    size_t at = 0, stretched = 0;
    uint32_t reading = 0; // the wire whose frames collect
    begin();
    for (int i = 0; i < MOST_RECORDS && record_next(input, size, &at, &record, &data); i++) {
        uint32_t wire = record.port % (WIRES - 1) + 1;
        bool frame = record.operation % OPERATIONS <= TAGGED_FRAME;
        if (reading && (!frame || wire != reading))
            receive(reading);
        reading = frame ? wire : 0;
        if (frame) {
            bool tagged = record.operation % OPERATIONS == TAGGED_FRAME;
            arrive(wire, &record, data, tagged ? record.numbers[1] : -1, &stretched);
            continue;
        }
        happens(&record, wire, data);
        for (int round = 0; round < ROUNDS && forward_next_ns(ports) == 0; round++)
            forward_due(ports);
        fetch_events();
    }
    receive(reading);
    end();
    return 0;
}
