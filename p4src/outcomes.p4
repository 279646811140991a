// SPDX-License-Identifier: Apache-2.0
// Indices of counter Ingress.outcomes: what became of a packet. protocol/outcomes.py names them for readers.
#ifndef RACKHUB_OUTCOMES
#define RACKHUB_OUTCOMES

enum bit<32> Outcome {
    FORWARDED = 0,            // routed like any packet
    NOT_IPV4 = 1,             // dropped: no valid IPv4 header
    BAD_IPV4_CHECKSUM = 2,    // dropped
    TTL_EXPIRED = 3,          // dropped
    NO_ROUTE = 4,             // dropped
    SPOOFED_SOURCE = 5,       // dropped: an edge port sent a source address not its host's
    MALFORMED = 6,            // dropped: lengths, version or payload do not fit the header, or no server's port
    NOT_A_CHILD = 7,          // dropped: sender or port is no child of this node
    WRONG_SOURCE = 8,         // dropped: not the child's source address, or a QUERY that the child only forwarded
    WRONG_WORKERS = 9,        // dropped: not the child's number of workers
    CLAIMED = 10,             // contribution opened the slot
    ADDED = 11,               // contribution added to the slot
    DUPLICATE = 12,           // dropped: child already summed
    STALE = 13,               // dropped: older than the slot's chunk
    OTHER_CHUNK = 14,         // dropped: right number, another chunk or server
    REPLAYED = 15,            // contribution answered with the stored result
    RESENT = 16,              // contribution answered by sending the partial sum up again
    PARTIAL_SENT = 17,        // own sum complete, sent up
    COMPLETED = 18,           // root's sum complete, result multicast
    RESULT_DOWN = 19,         // parent's result stored and multicast
    RESULT_UNEXPECTED = 20,   // dropped: result for a slot that does not wait for it
    RESULT_REJECTED = 21,     // dropped: result not from the parent's port or not from the chunk's server
    QUERY_ANSWERED = 22,      // STATE sent
    QUERY_PASSED_UP = 23,     // asked the parent
    QUERY_STALE = 24,         // dropped: about a chunk that the slot no longer knows
    OVERFLOWED = 25,          // a lane overflowed here, or exponents or lanes differed
    IMPAIRED = 26             // taken by an impairment: lost, or on a detour (counted again when it is back)
}

const bit<32> OUTCOMES = 32;

// Indices of counters Ingress.arrival.impaired and Egress.departure.impaired.
enum bit<32> Impaired {
    LOST = 0,
    DUPLICATED = 1,
    REORDERED = 2,
    CORRUPTED = 3
}

const bit<32> IMPAIRMENTS = 4;

#endif
