// SPDX-License-Identifier: Apache-2.0
// One direction of a link: class Link of simulation/links/link.py, which says what is what.
#ifndef RACKHUB_LINK_H
#define RACKHUB_LINK_H

#include <stdint.h>

struct link {
    int64_t latency, interval, least, shortest, free, head, news, silent, pending;
};

#endif
