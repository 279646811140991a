// SPDX-License-Identifier: Apache-2.0
//
// What a program's tables hold before the first packet: written by recording.py.

#ifndef RACKHUB_FUZZ_SETUP_H
#define RACKHUB_FUZZ_SETUP_H

#include "target.h"

struct setup_entry {
    uint32_t table;
    const uint64_t *value, *mask, *low, *high;
    int32_t priority;
    uint32_t action;
    const uint64_t *args;
};

struct setup_list { // a multicast group or clone session
    uint32_t number;
    const struct sw_replica *replicas;
    size_t count;
    uint32_t truncate, priority;
};

struct setup_member { // of an action profile
    uint32_t profile, number, action;
    const uint64_t *args;
};

struct setup_choice { // a group of an action profile
    uint32_t profile, number;
    const uint32_t *members;
    uint32_t count;
};

extern const struct setup_entry setup_entries[];
extern const struct setup_list setup_groups[], setup_sessions[];
extern const struct setup_member setup_members[];
extern const struct setup_choice setup_choices[];
extern const size_t setup_entry_count, setup_group_count, setup_session_count;
extern const size_t setup_member_count, setup_choice_count;

#endif
