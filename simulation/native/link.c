// SPDX-License-Identifier: Apache-2.0
// Reads a field of many links at once, for simulation/links/fields.py.

#include <stddef.h>

#include "link.h"

// Writes the field at an offset of each of n links.
void link_fields(const struct link *const *links, size_t n, size_t offset, int64_t *into) {
    for (size_t i = 0; i < n; i++)
        into[i] = *(const int64_t *)((const char *)links[i] + offset);
}

const int64_t link_bytes = sizeof(struct link); // checked by fields.py
