// SPDX-License-Identifier: Apache-2.0
//
// The control plane's side of an input: what both switches hold at the beginning, and calls that
// are made in both and have to say the same.

#ifndef RACKHUB_FUZZ_CONTROL_H
#define RACKHUB_FUZZ_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "records.h"
#include "target.h"

// Fills both with what setup.h says.
void control_begin(struct sw *plain, struct sw *sw);
// One record of operation CONTROL. alike: the same packets came to both, so they read the same.
void control(struct sw *plain, struct sw *sw, bool alike, const struct record *record,
             const uint8_t *data);
// Registers, digests and random numbers as they were at the beginning.
void control_forget(struct sw *plain, struct sw *sw);
// Before sw_destroy, which looks at every group and session that there could be: that takes longer
// than the rest of an input, and here it is known which ones there are.
void control_end(struct sw *plain, struct sw *sw);

#endif
