// SPDX-License-Identifier: Apache-2.0
//
// One input of the fuzzer: a switch with full tables on five ports, and what happens to it, record
// by record. The switch, its queues and ports are the real ones from system calls inwards
// (kernel.h); so is everything that the sanitizers look at.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "flow.h"
#include "kernel.h"
#include "port.h"
#include "records.h"
#include "setup.h"

enum { POOL = 48, CPU_PORT = 64, ROUNDS = 4, OWN_GROUPS = 16 };

static struct ports *ports;
static struct sw *sw; // NULL: to be made for the next input
static bool changed;  // tables or ports are not what they were at the beginning
static int64_t *handles; // of the setup's entries, -1: deleted
static bool attached;
static uint8_t *egress_frame; // SW_MAX_FRAME bytes, exactly

static uint32_t number_of(uint32_t wire) { return wire ? wire : CPU_PORT; }

// ---------------------------------------------------------------------------------------------
// The program's functions, each buffer exactly as long as promised

static void ingress(struct sw *of, uint32_t port, const uint8_t *frame, size_t length,
                    uint64_t now_us) {
    uint8_t *exact = malloc(length);
    if (length && !exact)
        wrong("no memory");
    memcpy(exact, frame, length);
    sw_ingress(of, port, exact, length, now_us);
    free(exact);
}

static size_t egress(struct sw *of, struct sw_packet *packet, uint64_t now_us, uint8_t *out,
                     size_t cap) {
    uint32_t port = packet->port;
    if (cap != SW_MAX_FRAME)
        wrong("egress has room for %zu bytes", cap);
    size_t length = sw_egress(of, packet, now_us, egress_frame, cap);
    if (length > SW_MAX_FRAME)
        wrong("egress returned %zu bytes", length);
    memcpy(out, egress_frame, length);
    if (length)
        kernel_expect(port == CPU_PORT ? 0 : port, out, length);
    return length;
}

static void attach(bool program) {
    const struct ports_program functions = {
        sw, POOL, sw_set_traffic_manager, sw_lock, sw_unlock, ingress, egress, sw_recirculate,
        sw_packet_free,
    };
    attached = program;
    if (ports_attach(ports, program ? &functions : NULL))
        wrong("attach");
}

// ---------------------------------------------------------------------------------------------
// The beginning

// Every packet of the pool gets memory of its own, so that a byte too far is seen.
static void guard_packets(void) {
    static uint8_t *buffers[POOL];
    static void *contexts[POOL];
    struct sw_packet *taken[POOL];
    for (int i = 0; i < POOL; i++) {
        if (!buffers[i])
            buffers[i] = malloc(SW_MAX_FRAME);
        if (!contexts[i] && posix_memalign(&contexts[i], 64, program_context_size))
            wrong("no memory");
        taken[i] = sw_packet_take(sw);
        taken[i]->buffer = buffers[i];
        taken[i]->context = contexts[i];
        memset(contexts[i], 0, program_context_size);
    }
    for (int i = POOL; i-- > 0;)
        sw_packet_free(sw, taken[i]);
}

static int64_t insert(const struct setup_entry *entry) {
    return sw_table_insert(sw, entry->table, entry->value, entry->mask, entry->low, entry->high,
                           entry->priority, entry->action, entry->args);
}

static void fill_tables(void) {
    for (size_t i = 0; i < setup_entry_count; i++)
        if ((handles[i] = insert(&setup_entries[i])) < 0)
            wrong("entry %zu: %ld", i, (long)handles[i]);
    for (size_t i = 0; i < setup_group_count; i++) {
        const struct setup_list *one = &setup_groups[i];
        if (sw_group_set(sw, one->number, one->replicas, one->count))
            wrong("group %u", one->number);
    }
    for (size_t i = 0; i < setup_session_count; i++) {
        const struct setup_list *one = &setup_sessions[i];
        if (sw_session_set(sw, one->number, one->replicas, one->count, one->truncate,
                           one->priority))
            wrong("session %u", one->number);
    }
}

static void add_ports(void) {
    for (uint32_t wire = 0; wire < WIRES; wire++) {
        // 1: plain; 2: large; 3: slow, with a short queue; 4: short trains; 5: captured.
        struct ports_options options = {
            .queue_bytes = wire == 3 ? 20000 : 1 << 20,
            .rate = wire == 3 ? 10000000 : 0,
            .train_bytes = wire < 2 ? 0 : wire == 4 ? 4000 : 65549,
            .capture_in = wire == 5 ? "/dev/null" : NULL,
            .capture_out = wire == 5 ? "/dev/null" : NULL,
        };
        if (wire)
            snprintf(options.interface, sizeof options.interface, "e%u", wire);
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
        egress_frame = malloc(SW_MAX_FRAME);
        handles = calloc(setup_entry_count + 1, sizeof *handles);
        if (!ports || !egress_frame || !handles)
            wrong("no memory");
        kernel_reset();
    }
    sw = sw_create(POOL);
    if (!sw)
        wrong("no switch");
    sw_set_log(sw, log_nothing, NULL);
    guard_packets();
    fill_tables();
    add_ports();
    attach(true);
}

// ---------------------------------------------------------------------------------------------
// The end: nothing is lost, nothing is kept

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

// sw_destroy looks at every group and session that there could be, which takes longer than the rest
// of an input; here it is known which ones there are.
static void destroy(void) {
    for (uint32_t number = 0; number <= OWN_GROUPS; number++) {
        (void)sw_group_delete(sw, number);
        (void)sw_session_delete(sw, number);
    }
    for (size_t i = 0; i < setup_group_count; i++)
        (void)sw_group_delete(sw, setup_groups[i].number);
    for (size_t i = 0; i < setup_session_count; i++)
        (void)sw_session_delete(sw, setup_sessions[i].number);
    munmap(sw->groups, SW_GROUPS * sizeof *sw->groups);
    munmap(sw->sessions, SW_SESSIONS * sizeof *sw->sessions);
    sw->groups = sw->sessions = NULL;
    sw_destroy(sw);
    sw = NULL;
    for (uint32_t wire = 0; wire < WIRES; wire++)
        if (ports_remove(ports, number_of(wire)))
            wrong("removal of port %u", wire);
    kernel_reset();
}

static void check_counts(void) {
    if (ports->tm.packets)
        wrong("%u packets wait in no queue", ports->tm.packets);
    size_t idle = 0;
    for (struct sw_packet *packet = sw->free; packet; packet = packet->next)
        idle++;
    if (idle != POOL)
        wrong("%zu of %d packets are there", idle, POOL);
    for (uint32_t wire = 0; wire < WIRES; wire++) {
        struct ports_statistics statistics;
        if (ports_get_statistics(ports, number_of(wire), &statistics))
            wrong("statistics of port %u", wire);
        if (statistics.tx_packets != kernel_delivered(wire))
            wrong("port %u counts %lu packets, %lu came", wire,
                  (unsigned long)statistics.tx_packets, (unsigned long)kernel_delivered(wire));
    }
}

// The next input finds the switch as this one did: made anew if tables or ports were changed, else
// with registers at 0.
static void end(void) {
    let_out();
    kernel_done();
    attach(false);
    struct sw_packet *packet;
    while ((packet = ring_pop(&sw->again)))
        sw_packet_free(sw, packet);
    check_counts();
    if (changed) {
        destroy();
        return;
    }
    for (uint32_t i = 0; i < program_register_count; i++)
        if (madvise(sw->registers[i], program_registers[i].size * program_registers[i].limbs * 8,
                    MADV_DONTNEED))
            wrong("registers: %s", strerror(errno));
    sw->random = 0;
    attach(true);
}

// ---------------------------------------------------------------------------------------------
// Records

static void control(const struct record *record, const uint8_t *data) {
    const uint16_t *n = record->numbers;
    size_t which = setup_entry_count ? n[1] % setup_entry_count : 0;
    const struct setup_entry *entry = &setup_entries[which];
    const struct setup_entry *other = &setup_entries[setup_entry_count ? n[2] % setup_entry_count
                                                                       : 0];
    struct sw_replica replicas[32];
    size_t count = record->length / 2 < 32 ? record->length / 2 : 32;
    uint64_t packets, bytes, words[64] = {n[3], n[4], ~0ull};
    int result = 0;
    for (size_t i = 0; i < count; i++)
        replicas[i] = (struct sw_replica){data[2 * i] % SW_PORTS, data[2 * i + 1]};
    switch (n[0] % CONTROLS) {
    case DELETE_ENTRY:
        if (setup_entry_count && handles[which] >= 0) {
            result = sw_table_delete(sw, entry->table, handles[which]);
            handles[which] = -1;
        }
        break;
    case INSERT_ENTRY:
        if (setup_entry_count && handles[which] < 0)
            result = (handles[which] = insert(entry)) < 0;
        break;
    case MODIFY_ENTRY:
        if (setup_entry_count && handles[which] >= 0 && other->table == entry->table)
            result = sw_table_modify(sw, entry->table, handles[which], other->action, other->args);
        break;
    case SET_DEFAULT:
        if (setup_entry_count)
            result = sw_table_set_default(sw, entry->table, entry->action, entry->args);
        break;
    case SET_GROUP:
        result = sw_group_set(sw, n[1] % OWN_GROUPS + 1, replicas, count);
        break;
    case DELETE_GROUP:
        (void)sw_group_delete(sw, n[1]);
        break;
    case SET_SESSION:
        result = sw_session_set(sw, n[1] % OWN_GROUPS, replicas, count, n[2], n[3] % SW_PRIORITIES);
        break;
    case WRITE_REGISTER:
        if (program_register_count) {
            uint32_t array = n[1] % program_register_count;
            if (program_registers[array].limbs <= 64) {
                (void)sw_register_write(sw, array, n[2], words);
                (void)sw_register_read(sw, array, n[2], words);
            }
        }
        break;
    case READ_COUNTER:
        (void)sw_counter_read(sw, n[1], n[2], &packets, &bytes);
        break;
    }
    if (result)
        wrong("control call %d: %d", n[0] % CONTROLS, result);
}

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
        forward_receive(ports, port);
}

static void happens(const struct record *record, uint32_t wire, const uint8_t *data) {
    if (record->operation % OPERATIONS > TIME)
        changed = true;
    switch (record->operation % OPERATIONS) {
    case PACKET_OUT:
        (void)ports_packet_out(ports, data, record->length);
        forward_packet_outs(ports);
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
        control(record, data);
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
