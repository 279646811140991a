// SPDX-License-Identifier: Apache-2.0
#include "control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "packets.h"
#include "kernel.h"
#include "setup.h"

// Groups and sessions, members and choices that are not the setup's; messages of digests taken at once.
enum { OWN_GROUPS = 16, OWN_MEMBERS = 40, SIGNAL_AT = 2, TAKEN = 8 };

static int64_t *handles; // of the setup's entries, -1: deleted; the same in both switches

static int64_t insert(struct sw *of, const struct setup_entry *entry) {
    return sw_table_insert(of, entry->table, entry->value, entry->mask, entry->low, entry->high,
                           entry->priority, entry->action, entry->args);
}

static int set_member(struct sw *of, const struct setup_member *one, uint32_t number) {
    return sw_member_set(of, one->profile, number, one->action, one->args);
}

static void enable_digests(struct sw *of) {
    for (uint32_t i = 0; i < program_digest_count; i++)
        if (sw_digest_enable(of, i, 0) || sw_digest_enable(of, i, SIGNAL_AT))
            wrong("digest %u", i);
}

static void fill(struct sw *of) {
    for (size_t i = 0; i < setup_member_count; i++)
        if (set_member(of, &setup_members[i], setup_members[i].number))
            wrong("member %zu", i);
    for (size_t i = 0; i < setup_choice_count; i++) {
        const struct setup_choice *one = &setup_choices[i];
        if (sw_choices_set(of, one->profile, one->number, one->members, one->count))
            wrong("choices %zu", i);
    }
    for (size_t i = 0; i < setup_entry_count; i++)
        if ((handles[i] = insert(of, &setup_entries[i])) < 0)
            wrong("entry %zu: %ld", i, (long)handles[i]);
    for (size_t i = 0; i < setup_group_count; i++) {
        const struct setup_list *one = &setup_groups[i];
        if (sw_group_set(of, one->number, one->replicas, one->count))
            wrong("group %u", one->number);
    }
    for (size_t i = 0; i < setup_session_count; i++) {
        const struct setup_list *one = &setup_sessions[i];
        if (sw_session_set(of, one->number, one->replicas, one->count, one->truncate,
                           one->priority))
            wrong("session %u", one->number);
    }
    enable_digests(of);
}

void control_begin(struct sw *plain, struct sw *sw) {
    if (!handles)
        handles = calloc(setup_entry_count + 1, sizeof *handles);
    if (!handles)
        wrong("no memory");
    fill(plain);
    fill(sw);
}

static void forget(struct sw *of) {
    for (uint32_t i = 0; i < program_register_count; i++)
        if (madvise(of->registers[i], program_registers[i].size * program_registers[i].limbs * 8,
                    MADV_DONTNEED))
            wrong("registers: %s", strerror(errno));
    of->random = 0;
    enable_digests(of);
}

void control_forget(struct sw *plain, struct sw *sw) {
    forget(plain);
    forget(sw);
}

static void delete_lists(struct sw *of) {
    for (uint32_t number = 0; number <= OWN_GROUPS; number++) {
        (void)sw_group_delete(of, number);
        (void)sw_session_delete(of, number);
    }
    for (size_t i = 0; i < setup_group_count; i++)
        (void)sw_group_delete(of, setup_groups[i].number);
    for (size_t i = 0; i < setup_session_count; i++)
        (void)sw_session_delete(of, setup_sessions[i].number);
    munmap(of->groups, SW_GROUPS * sizeof *of->groups);
    munmap(of->sessions, SW_SESSIONS * sizeof *of->sessions);
    of->groups = of->sessions = NULL;
}

void control_end(struct sw *plain, struct sw *sw) {
    delete_lists(plain);
    delete_lists(sw);
}

// ---------------------------------------------------------------------------------------------
// Allocation for writes of the control plane, which fails on request.

void *fuzz_malloc(size_t size);
void *fuzz_calloc(size_t count, size_t size);
void *fuzz_realloc(void *old, size_t size);
void *fuzz_aligned_alloc(size_t alignment, size_t size);

static uint32_t allocations_left; // the last of them fails, 0: none
static bool allocation_failed;

static bool fails(void) {
    if (allocations_left == 0 || --allocations_left)
        return false;
    return allocation_failed = true;
}

void *fuzz_malloc(size_t size) { return fails() ? NULL : malloc(size); }
void *fuzz_calloc(size_t count, size_t size) { return fails() ? NULL : calloc(count, size); }
void *fuzz_realloc(void *old, size_t size) { return fails() ? NULL : realloc(old, size); }
void *fuzz_aligned_alloc(size_t alignment, size_t size) {
    return fails() ? NULL : aligned_alloc(alignment, size);
}

// ---------------------------------------------------------------------------------------------
// Calls. Each returns 0, or an error that only a lack of memory permits; *read gets what it read.

enum { READ = 512 };

struct read {
    uint64_t words[READ];
    size_t count;
};

static void keep(struct read *read, const void *from, size_t bytes) {
    if (bytes > sizeof read->words - 8 * read->count)
        wrong("a call reads %zu bytes", bytes);
    memcpy(read->words + read->count, from, bytes);
    read->count += (bytes + 7) / 8;
}

// Handle of an entry of the setup. The handle of a deleted entry is invalid.
static int64_t entry_call(struct sw *of, const uint16_t *n, const uint64_t *rates) {
    size_t which = n[1] % setup_entry_count;
    const struct setup_entry *entry = &setup_entries[which];
    const struct setup_entry *other = &setup_entries[n[2] % setup_entry_count];
    bool there = handles[which] >= 0, metered = program_tables[entry->table].metered;
    switch (n[0] % CONTROLS) {
    case DELETE_ENTRY:
        return there ? sw_table_delete(of, entry->table, handles[which]) : 0;
    case INSERT_ENTRY:
        return there ? 0 : insert(of, entry);
    case MODIFY_ENTRY:
        return there && other->table == entry->table
                   ? sw_table_modify(of, entry->table, handles[which], other->action, other->args)
                   : 0;
    case SET_DEFAULT:
        return sw_table_set_default(of, entry->table, entry->action, entry->args);
    default: // SET_ENTRY_METER
        return there && metered
                   ? sw_table_meter_write(of, entry->table, handles[which], n[2] ? rates : NULL)
                   : 0;
    }
}

static void note_handle(const uint16_t *n, int64_t result) {
    size_t which = n[1] % setup_entry_count;
    if (n[0] % CONTROLS == DELETE_ENTRY)
        handles[which] = -1;
    if (n[0] % CONTROLS == INSERT_ENTRY && handles[which] < 0)
        handles[which] = result;
}

static int profile_call(struct sw *of, const uint16_t *n, const uint32_t *members, size_t count) {
    const struct setup_member *one = &setup_members[n[1] % setup_member_count];
    uint32_t number = n[2] % OWN_MEMBERS;
    switch (n[0] % CONTROLS) {
    case SET_MEMBER:
        return set_member(of, one, number);
    case DELETE_MEMBER: // entries and choices may name it
        (void)sw_member_delete(of, one->profile, number);
        return 0;
    case SET_CHOICES:
        return sw_choices_set(of, one->profile, number, members, (uint32_t)count);
    default: // DELETE_CHOICES
        (void)sw_choices_delete(of, one->profile, number);
        return 0;
    }
}

static void register_call(struct sw *of, const uint16_t *n, struct read *read) {
    uint64_t words[64] = {n[3], n[4], ~0ull};
    uint32_t array = n[1] % program_register_count;
    if (program_registers[array].limbs > 64)
        return;
    (void)sw_register_write(of, array, n[2], words);
    if (sw_register_read(of, array, n[2], words) == 0)
        keep(read, words, 8 * program_registers[array].limbs);
}

// Takes pending digests, and acknowledges some of them.
static void digest_call(struct sw *of, const uint16_t *n, struct read *read) {
    uint32_t digest = n[1] % program_digest_count, slots[TAKEN] = {0};
    uint32_t words = program_digest_words[digest];
    uint64_t since = 0, waiting = (uint64_t)sw_digest_waiting(of, digest, &since);
    uint64_t *messages = malloc(TAKEN * words * sizeof *messages + 1);
    if (!messages)
        wrong("no memory");
    size_t most = n[2] % (TAKEN + 1);
    int64_t taken = sw_digest_take(of, digest, most, messages, slots);
    if (taken != (int64_t)(waiting < most ? waiting : most))
        wrong("%ld of %lu messages were taken", (long)taken, (unsigned long)waiting);
    keep(read, &waiting, sizeof waiting);
    keep(read, &since, sizeof since);
    keep(read, messages, (size_t)taken * words * sizeof *messages);
    free(messages);
    for (int i = 0; i < TAKEN; i++)
        slots[i] = n[3] >> i & 1 ? n[4] : slots[i]; // any: the switch looks at them first
    (void)sw_digest_release(of, digest, TAKEN, slots);
}

static int64_t call(struct sw *of, const struct record *record, const uint8_t *data,
                    struct read *read) {
    const uint16_t *n = record->numbers;
    struct sw_replica replicas[32];
    uint32_t members[32];
    size_t count = record->length / 2 < 32 ? record->length / 2 : 32;
    uint64_t counts[2] = {0}, rates[4] = {n[2], n[3], 2ull * n[2], n[4]}, told[4];
    for (size_t i = 0; i < count; i++) {
        replicas[i] = (struct sw_replica){data[2 * i] % SW_PORTS, data[2 * i + 1]};
        members[i] = data[2 * i] % OWN_MEMBERS;
    }
    switch (n[0] % CONTROLS) {
    case SET_GROUP:
        return sw_group_set(of, n[1] % OWN_GROUPS + 1, replicas, count);
    case DELETE_GROUP:
        (void)sw_group_delete(of, n[1]);
        return 0;
    case SET_SESSION:
        return sw_session_set(of, n[1] % OWN_GROUPS, replicas, count, n[2], n[3] % SW_PRIORITIES);
    case WRITE_REGISTER:
        if (program_register_count)
            register_call(of, n, read);
        return 0;
    case READ_COUNTER:
        (void)sw_counter_read(of, n[1], n[2], &counts[0], &counts[1]);
        keep(read, counts, sizeof counts);
        return 0;
    case SET_METER:
        (void)sw_meter_write(of, n[1] % 8, n[2] % 16, n[3] ? rates : NULL);
        if (sw_meter_read(of, n[1] % 8, n[2] % 16, told) == 1)
            keep(read, told, sizeof told);
        return 0;
    case TAKE_DIGESTS:
        if (program_digest_count)
            digest_call(of, n, read);
        return 0;
    case SET_MEMBER:
    case DELETE_MEMBER:
    case SET_CHOICES:
    case DELETE_CHOICES:
        return setup_member_count ? profile_call(of, n, members, count) : 0;
    default:
        return setup_entry_count ? entry_call(of, n, rates) : 0;
    }
}

void control(struct sw *plain, struct sw *sw, bool alike, const struct record *record,
             const uint8_t *data) {
    static struct read reads[2];
    int64_t results[2];
    for (int i = 0; i < 2; i++) {
        memset(&reads[i], 0, sizeof reads[i]);
        allocations_left = record->stretch;
        allocation_failed = false;
        results[i] = call(i ? sw : plain, record, data, &reads[i]);
        allocations_left = 0;
        if (results[i] < 0 && !(allocation_failed && results[i] == SW_NO_MEMORY))
            wrong("control call %d: %ld", record->numbers[0] % CONTROLS, (long)results[i]);
    }
    if (results[0] != results[1])
        wrong("a control call returns %ld, plainly %ld", (long)results[1], (long)results[0]);
    if (alike && (reads[0].count != reads[1].count ||
                  memcmp(reads[0].words, reads[1].words, 8 * reads[0].count) != 0))
        wrong("control call %d reads what it does not plainly", record->numbers[0] % CONTROLS);
    if (setup_entry_count)
        note_handle(record->numbers, results[1] < 0 ? -1 : results[1]);
}
