// SPDX-License-Identifier: Apache-2.0
//
// The control plane's side of an input: the initial state of both switches, and calls that are made
// on both and must return the same.

#ifndef RACKHUB_FUZZ_CONTROL_H
#define RACKHUB_FUZZ_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "records.h"
#include "target.h"

// Fills both switches with the tables of setup.h.
void control_begin(struct sw *plain, struct sw *sw);
// Runs a record of operation CONTROL. alike: both switches got the same packets, so reads must agree.
void control(struct sw *plain, struct sw *sw, bool alike, const struct record *record,
             const uint8_t *data);
// Resets registers, digests and random numbers.
void control_forget(struct sw *plain, struct sw *sw);
// Before sw_destroy, which looks at every group and session that there could be: that takes longer
// than the rest of an input, and here it is known which ones there are.
void control_end(struct sw *plain, struct sw *sw);

#endif
