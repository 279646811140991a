// SPDX-License-Identifier: Apache-2.0
// Which nodes of a network run next, and until when (see simulation/kernel/rounds.py).
//
// The first unknown event reaches a node after the shortest path, over links and calls, from any
// node with a pending event. A node's horizon is when it may do so, and the node may run until then.
// Calls may go from any node to any other, and are bounded by when packets may lead to one.

#include <stdbool.h>

#include "link.h"

#define NEVER INT64_MAX
#define LONG (NEVER / 4)

struct way {
    const struct link *link;
    uint64_t sender, receiver;
};

// A node. next: its first own event. calls: its first call that no packet leads to. Results: due: its
// first known event; called, earliest: its first call and its first event, at least; horizon;
// affects: when its first event may affect another node, at least.
struct node {
    int64_t next, calls, now;
    int64_t due, called, earliest, horizon, affects;
    uint8_t eager, answered, patient, hears, chosen;
};

// latency: of calls. span: the most that a node runs at once. patience: see choose_urgent. ways are
// by sender, and those of node n begin with number firsts[n]. Result: late: the number of a way by
// which a packet comes too late, else way_count.
struct network {
    struct node *nodes;
    const struct way *ways;
    const uint64_t *firsts;
    uint64_t node_count, way_count;
    int64_t latency, span, patience;
    uint64_t late;
};

// A node that runs in a round, its first event, and until when it may run.
struct turn {
    int64_t node, due, until;
};

static int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }

// Sum of two times that are not negative.
static int64_t plus(int64_t a, int64_t b) { return a < NEVER - b ? a + b : NEVER; }

// Returns when the receiver notices a packet that arrives at a time.
static int64_t noticed(const struct link *link, int64_t at) {
    int64_t early = link->interval > 1 ? at % link->interval : 0;
    return early ? plus(at, link->interval - early) : at;
}

// Returns when a packet that leaves the sender at a time arrives at the earliest.
static int64_t arrival(const struct link *link, int64_t leaves) {
    return plus(most_of(leaves, link->free), link->least);
}

// Returns a lower bound on the arrival of unknown packets if the sender is idle until a time.
static int64_t earliest(const struct link *link, int64_t sender) {
    return arrival(link, least_of(plus(sender, link->latency), link->pending));
}

// Sets each node's first known event; returns the first of all.
int64_t rounds_due(struct network *network) {
    struct node *nodes = network->nodes;
    int64_t first = NEVER;
    network->late = network->way_count;
    for (uint64_t n = 0; n < network->node_count; n++)
        nodes[n].due = nodes[n].next;
    for (uint64_t w = 0; w < network->way_count; w++) {
        const struct way *way = &network->ways[w];
        struct node *receiver = &nodes[way->receiver];
        if (way->link->head < receiver->now)
            network->late = w;
        receiver->due = least_of(receiver->due, noticed(way->link, way->link->head));
    }
    for (uint64_t n = 0; n < network->node_count; n++)
        first = least_of(first, nodes[n].due);
    return first;
}

// Sets when each node makes its next call, at least. Returns when any does, at least, unless a packet
// that has not been sent yet leads to a call.
static int64_t find_calls(struct network *network, int64_t first) {
    struct node *nodes = network->nodes;
    int64_t known = NEVER;
    for (uint64_t n = 0; n < network->node_count; n++) {
        nodes[n].called = nodes[n].calls;
        known = least_of(known, nodes[n].calls);
    }
    for (uint64_t w = 0; w < network->way_count; w++) {
        const struct link *link = network->ways[w].link;
        struct node *receiver = &nodes[network->ways[w].receiver];
        if (!receiver->hears)
            continue;
        int64_t news = noticed(link, least_of(link->news, arrival(link, link->pending)));
        // No packet is sent before the first event of any node, and those that lead to no call take
        // their time.
        int64_t next = arrival(link, plus(first, link->latency));
        int64_t most = LONG / most_of(link->shortest, 1);
        next = noticed(link, plus(next, least_of(link->silent, most) * link->shortest));
        known = least_of(known, news);
        receiver->called = least_of(receiver->called, least_of(next, news));
    }
    return known;
}

// Lets horizons end where a call of another node may come.
static void bound_by_calls(struct network *network, int64_t called) {
    struct node *nodes = network->nodes;
    int64_t lowest = NEVER, second = NEVER;
    for (uint64_t n = 0; n < network->node_count; n++) {
        // Whatever leads to a call may have been led to by one.
        int64_t call = least_of(nodes[n].called, called);
        second = call < lowest ? lowest : least_of(second, call);
        lowest = least_of(lowest, call);
    }
    for (uint64_t n = 0; n < network->node_count; n++) {
        bool own = least_of(nodes[n].called, called) == lowest;
        int64_t others = plus(own ? second : lowest, network->latency);
        nodes[n].horizon = least_of(nodes[n].horizon, others);
    }
}

// Sets horizons of nodes that stop by themselves before answers to their packets: when a packet can
// reach them that none of their own led to. surely: when a call can.
static void find_unanswered(struct network *network, int64_t surely) {
    struct node *nodes = network->nodes;
    for (uint64_t n = 0; n < network->node_count; n++)
        if (nodes[n].answered)
            nodes[n].horizon = surely;
    for (uint64_t w = 0; w < network->way_count; w++) {
        const struct way *way = &network->ways[w];
        struct node *receiver = &nodes[way->receiver];
        int64_t sends = least_of(nodes[way->sender].due, surely);
        if (receiver->answered)
            receiver->horizon = least_of(receiver->horizon, earliest(way->link, sends));
    }
}

// Begins a round: finds all horizons.
void rounds_begin(struct network *network) {
    struct node *nodes = network->nodes;
    int64_t known = find_calls(network, rounds_due(network)), called = NEVER;
    for (uint64_t n = 0; n < network->node_count; n++)
        called = least_of(called, nodes[n].called);
    called = plus(called, network->latency);
    for (uint64_t n = 0; n < network->node_count; n++) {
        nodes[n].earliest = least_of(nodes[n].due, called);
        nodes[n].horizon = NEVER;
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (uint64_t w = 0; w < network->way_count; w++) {
            const struct way *way = &network->ways[w];
            struct node *receiver = &nodes[way->receiver];
            int64_t at = noticed(way->link, earliest(way->link, nodes[way->sender].earliest));
            if (at < receiver->earliest) {
                receiver->earliest = at;
                changed = true;
            }
        }
    }
    for (uint64_t w = 0; w < network->way_count; w++) {
        const struct way *way = &network->ways[w];
        struct node *receiver = &nodes[way->receiver];
        int64_t at = earliest(way->link, nodes[way->sender].earliest);
        receiver->horizon = least_of(receiver->horizon, at);
    }
    bound_by_calls(network, called);
    find_unanswered(network, plus(known, network->latency));
}

static bool ready(const struct node *node) { return node->due < node->horizon; }

static bool beside_chosen(const struct network *network, uint64_t n) {
    for (uint64_t w = network->firsts[n]; w < network->firsts[n + 1]; w++)
        if (network->nodes[network->ways[w].receiver].chosen)
            return true;
    return false;
}

// Chooses eager nodes, those with the most distant horizons first, no two of them neighbours: if
// neighbours alternate, each advances twice as far as if both run in a round without the other's
// events. Returns whether there are any.
static bool choose_eager(struct network *network) {
    struct node *nodes = network->nodes;
    bool any = false;
    for (uint64_t n = 0; n < network->node_count; n++)
        nodes[n].chosen = false;
    for (;;) {
        uint64_t next = network->node_count;
        int64_t most = 0;
        for (uint64_t n = 0; n < network->node_count; n++) {
            const struct node *node = &nodes[n];
            if (node->eager && !node->chosen && ready(node) && node->horizon - node->due > most &&
                !beside_chosen(network, n)) {
                next = n;
                most = node->horizon - node->due;
            }
        }
        if (next == network->node_count)
            return any;
        nodes[next].chosen = any = true;
    }
}

// Chooses the nodes that could affect others first, and all that are not patient. The links of the
// others stay busy for longer, so that no node can notice their events yet, and later they can
// process more at once.
static void choose_urgent(struct network *network) {
    struct node *nodes = network->nodes;
    int64_t first = NEVER;
    for (uint64_t n = 0; n < network->node_count; n++) {
        struct node *node = &nodes[n];
        if (!ready(node))
            continue;
        node->affects = NEVER;
        for (uint64_t w = network->firsts[n]; w < network->firsts[n + 1]; w++)
            node->affects = least_of(node->affects, earliest(network->ways[w].link, node->due));
        if (network->firsts[n] == network->firsts[n + 1])
            node->affects = 0;
        first = least_of(first, node->affects);
    }
    int64_t until = plus(first, network->patience);
    for (uint64_t n = 0; n < network->node_count; n++)
        nodes[n].chosen = ready(&nodes[n]) && (!nodes[n].patient || nodes[n].affects <= until);
}

// Chooses which of the nodes with events before their horizons run; returns their number.
uint64_t rounds_choose(struct network *network, struct turn *turns) {
    uint64_t count = 0;
    if (!choose_eager(network))
        choose_urgent(network);
    for (uint64_t n = 0; n < network->node_count; n++) {
        const struct node *node = &network->nodes[n];
        int64_t until = least_of(node->horizon, plus(node->due, network->span));
        if (node->chosen)
            turns[count++] = (struct turn){.node = (int64_t)n, .due = node->due, .until = until};
    }
    return count;
}

// Checked by simulation/kernel/rounds.py.
const int64_t way_bytes = sizeof(struct way);
const int64_t node_bytes = sizeof(struct node), network_bytes = sizeof(struct network);
