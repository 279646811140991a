// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_GATE
#define RACKHUB_GATE

#include "metadata.p4"

// What no link of this switch asks for, by the default action of one table: impairments, a guard of source addresses, marks in
// queues of up to so many packets. Tables for these are then not looked up. Until the control plane says so, all are.
control Gate(inout metadata_t meta) {
    action pass(bit<1> unimpaired, bit<1> unguarded, bit<19> unmarked) {
        meta.unimpaired = unimpaired;
        meta.unguarded = unguarded;
        meta.unmarked = unmarked;
    }

    table links {
        actions = { pass; }
        default_action = pass(0, 0, 0);
    }

    apply {
        links.apply();
    }
}

#endif
