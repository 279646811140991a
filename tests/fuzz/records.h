// SPDX-License-Identifier: Apache-2.0
//
// The format of inputs: consecutive records of a head and data. A truncated record ends the input.

#ifndef RACKHUB_FUZZ_RECORDS_H
#define RACKHUB_FUZZ_RECORDS_H

#include <stddef.h>
#include <stdint.h>

enum operation {
    FRAME,         // arrives on a port; frames of one port that follow each other are read at once
    TAGGED_FRAME,  // the system took its VLAN tag out; the tag is the header's second number
    PACKET_OUT,    // from the controller
    TIME,          // first number: microseconds that pass
    LINK,          // first number: what happens to the port's interface (enum link_news)
    SEND,          // what the port's next sendmmsg says: frames it takes, then an error
    RECEIVE_ERROR, // what has happened to the port's interface
    WRITABLE,      // the port's socket takes frames again
    CONTROL,       // the controller writes or reads (enum control)
    ATTACH,        // the program is taken away, or put back
    OPERATIONS,
};

enum link_news { LINK_GONE, LINK_BACK, LINK_MTU, LINK_NEWS_LOST, LINK_NEWS };

enum control {
    DELETE_ENTRY,
    INSERT_ENTRY,
    MODIFY_ENTRY,
    SET_DEFAULT,
    SET_GROUP,
    DELETE_GROUP,
    SET_SESSION,
    WRITE_REGISTER,
    READ_COUNTER,
    SET_METER,
    SET_ENTRY_METER,
    SET_MEMBER,
    DELETE_MEMBER,
    SET_CHOICES,
    DELETE_CHOICES,
    TAKE_DIGESTS,
    CONTROLS,
};

struct record {
    uint8_t operation; // modulo OPERATIONS
    uint8_t port;      // position in the setup's list, modulo its length
    uint16_t numbers[5]; // of a frame: its struct offload_header
    uint16_t stretch;  // bytes that a frame's data is made longer by, the same over and over; of
                       // CONTROL, which allocation of memory fails in it, 0: none
    uint16_t length;   // of the data
};

// Limit per input, which bounds its run time.
enum { MOST_RECORDS = 96, MOST_STRETCH = 1 << 17 };

// The record at *at and its data; false if there is none. Moves *at behind it.
int record_next(const uint8_t *input, size_t size, size_t *at, struct record *record,
                const uint8_t **data);

#endif
