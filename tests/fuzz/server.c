// SPDX-License-Identifier: Apache-2.0
//
// Runs one input on the root of a stream (hosts/native/root.h): the first bytes choose a tree and
// how it answers, the others what packets arrive. A plain model keeps every copy of a number that
// may count, and makes sums, answers and counts of them; the root must agree with it after each
// call. Packets are made by the tree's rules and then damaged.

#include <string.h>

#include "root.h"

#define SUBJECT "server"
#include "drawn.h"

enum { MOST_CHILDREN = 5, MOST_CHUNKS = 6, MOST_LANES = 4, MOST_SLOTS = 16, MOST_BATCH = 12 };
enum { MOST_STEPS = 200, JOB = 7, EPOCH = 3, STREAM = 2, NODE = 90 };

int64_t root_contribute(struct root *root, struct received *received, int plain);
void root_forecast(const struct root *root, struct received *received);
void root_visible(struct root *root, struct received *received, int measured, bool *visible);
void root_query(struct root *root, struct received *received);
int64_t root_finish(struct root *root, const int64_t *slots, size_t n, int64_t *released,
                    uint8_t *packets, bool *whole);

struct packet {
    struct header header;
    uint32_t words[MOST_LANES]; // in network order
    struct peer peer;
    bool full;
};

// A slot: the copies that are in it, in the order they came.
struct model {
    struct packet copies[MOST_CHILDREN];
    int count;
    bool final, complete;
    uint32_t row[MOST_LANES], checksum; // of complete ones; native byte order
    bool overflow;
};

static struct root *root;
static struct model slots[MOST_SLOTS];
static struct outcomes expected;
static int64_t pending[MOST_SLOTS], pending_count; // complete, and not given to root_finish()
static int64_t waiting[MOST_SLOTS], waiting_count; // given to it, and held back
static int64_t newest;                             // sequence number, about

// ---------------------------------------------------------------------------------------------
// The tree: hosts/server/root_node.py

static void *made[16];
static int made_count;

static void *zeros(size_t size) { return memset(exact(size), 0, size); }

static void *make(size_t length, size_t size) { return made[made_count++] = zeros(length * size); }

#define FIELD(field, length) ((void *)(uintptr_t)(root->field = make(length, sizeof *root->field)))

static void begin(void) {
    made_count = 0;
    memset(slots, 0, sizeof slots);
    memset(&expected, 0, sizeof expected);
    pending_count = waiting_count = 0;
    newest = draw(2) ? (1ll << 32) - 4 : 0; // some begin before numbers start from 0 again
    root = zeros(sizeof *root);
    uint32_t count = 2u << draw(4);
    root->mask = count - 1;
    root->chunks = 1 + (uint32_t)draw(MOST_CHUNKS);
    root->children = 1 + (uint32_t)draw(MOST_CHILDREN);
    root->width = draw(3) ? MOST_LANES : 0;
    root->job = JOB;
    root->epoch = EPOCH;
    root->stream = STREAM;
    root->node = NODE;
    root->merging = (uint8_t)draw(3);
    int64_t kind = draw(5);
    root->steps = kind == 1;
    root->pulls = kind == 2;
    root->holds = kind == 3;
    FIELD(slots, count);
    FIELD(forecast, count);
    FIELD(rows, count * root->width * (root->merging == WIDE ? root->children : 1));
    bool *mine = FIELD(mine, root->chunks);
    struct peer *peers = FIELD(peers, root->children);
    uint16_t *below = FIELD(below, root->children), *nodes = FIELD(nodes, root->children);
    uint64_t *workers = FIELD(workers, 3);
    for (uint32_t i = 0; i < root->chunks; i++)
        mine[i] = draw(8) != 7;
    for (uint32_t i = 0; i < root->children; i++) {
        int64_t above = draw(3); // a switch, with so many workers
        peers[i] = (struct peer){four(0x0A000001 + i), two(4000)};
        nodes[i] = above ? (uint16_t)(NODE + 1 + i) : 0;
        below[i] = above ? (uint16_t)above : 1;
        root->world += below[i];
    }
    for (uint32_t i = 0; i < 3; i++)
        workers[i] = (uint64_t)(0x0A000001 + 2 * i) << 16 | 4000;
    root->worker_count = 3;
    if (!root->holds)
        return;
    int64_t *pieces = FIELD(pieces, root->chunks), *lengths = FIELD(lengths, root->chunks);
    int64_t *missing = FIELD(missing, root->chunks);
    FIELD(held, count);
    for (uint32_t i = 0, piece = 0; i < root->chunks; i++) {
        piece += i && draw(2);
        pieces[i] = piece;
        lengths[piece]++;
        missing[piece]++;
    }
}

static void end(void) {
    for (int i = 0; i < made_count; i++)
        free(made[i]);
    free(root);
}

static uint32_t everyone(void) { return (1u << root->children) - 1; }

// ---------------------------------------------------------------------------------------------
// Packets

static uint32_t sum_of(const uint32_t *words) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i < root->width; i++)
        sum += four(words[i]);
    return sum;
}

static struct packet draw_packet(int op) {
    uint32_t sender = (uint32_t)draw(root->children), back = (uint32_t)draw(24);
    uint32_t seq = (uint32_t)newest + 2 - back;
    if (back < 2)
        newest += 2 - back;
    const struct slot *slot = &root->slots[seq & root->mask];
    uint32_t chunk = (uint32_t)(seq * 5 / 3) % root->chunks;
    // Which numbers are exponent rounds is agreed upon, as are exponents but for a switch's faults.
    bool round = seq % 3 == 0;
    struct packet packet = {
        .header =
            {
                .version_op = (uint8_t)(VERSION << 4 | op),
                .job = two(JOB),
                .epoch = two(EPOCH),
                .stream = STREAM,
                .sender = (uint8_t)sender,
                .seq = four(seq),
                .chunk = four(chunk),
                .workers = two(root->below[sender]),
                .exponent = (int8_t)(round ? -128 : (int)(seq % 200) - 100),
                .max_exponent = (int8_t)draw(256),
                .lanes = two(round ? 0 : MOST_LANES),
                .node = two(NODE),
            },
        .peer = root->peers[sender],
    };
    int64_t damage = draw(64), value = draw(256);
    if (op == CONTRIBUTE && damage >= 48 && damage < 54)
        packet.header.flags = (uint8_t)(value & (OVERFLOW | NONFINITE | ECN | RETRANSMIT));
    packet.full = root->width && carries_payload(&packet.header);
    for (uint32_t i = 0; packet.full && i < root->width; i++)
        packet.words[i] = four((uint32_t)draw(256) << (8 * (i % 4)));
    packet.header.checksum =
        four(two(packet.header.workers) * chunk_hash(&packet.header) + sum_of(packet.words));
    switch (damage) {
    case 54:
        packet.header.node = two((uint16_t)value);
        break;
    case 55:
        packet.header.sender = (uint8_t)value;
        break;
    case 56:
        packet.peer = (struct peer){four(0x0A000001 + (uint32_t)value % 8), two(4000)};
        break;
    case 57:
        packet.header.workers = two((uint16_t)value);
        break;
    case 58:
        packet.header.chunk = four((uint32_t)value);
        break;
    case 59:
        packet.header.checksum ^= 1u << value % 32;
        break;
    case 60:
        packet.header.exponent ^= (int8_t)value; // its checksum fails, mostly
        break;
    case 61: // as far behind as a late copy may be, and one more
        packet.header.seq = four(slot->seq - LATEST_COPY - (value & 1) * (root->mask + 1));
        break;
    case 62:
        packet.header.exponent ^= (int8_t)value;
        packet.header.checksum =
            four(two(packet.header.workers) * chunk_hash(&packet.header) + sum_of(packet.words));
        break;
    case 63:
        packet.header.seq = four((uint32_t)value << 24 | seq);
        break;
    }
    return packet;
}

static int draw_packets(int op, struct packet *packets) {
    int n = 1 + (int)draw(MOST_BATCH);
    for (int i = 0; i < n; i++)
        packets[i] = i && !draw(8) ? packets[draw(i)] : draw_packet(op);
    return n;
}

// What a call gets, each array as large as it says.
static struct received received_of(const struct packet *packets, int n) {
    size_t stride = 4 * root->width + (size_t)draw(2) * 3;
    struct header *headers = exact((size_t)n * sizeof *headers);
    struct peer *peers = exact((size_t)n * sizeof *peers);
    bool *full = exact((size_t)n);
    uint8_t *words = exact((size_t)n * stride);
    for (int i = 0; i < n; i++) {
        headers[i] = packets[i].header;
        peers[i] = packets[i].peer;
        full[i] = packets[i].full;
        memcpy(words + (size_t)i * stride, packets[i].words, 4 * root->width);
    }
    size_t most = (size_t)n * (sizeof(struct header) + 4 * root->width);
    return (struct received){
        .headers = headers, .words = words, .full = full, .peers = peers,
        .stride = stride, .count = (uint64_t)n,
        .done = exact((size_t)n * 8), .again = exact((size_t)n * 8), .bad = exact((size_t)n * 8),
        .packets = exact(most), .whole = exact((size_t)n),
    };
}

static void release(struct received *received) {
    void *all[] = {(void *)(uintptr_t)received->headers, (void *)(uintptr_t)received->words,
                   (void *)(uintptr_t)received->full,    (void *)(uintptr_t)received->peers,
                   received->done,                       received->again,
                   received->bad,                        received->packets,
                   received->whole};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

// ---------------------------------------------------------------------------------------------
// The model

enum place { REFUSED, BAD, NEWER, SAME, ANOTHER_CHUNK, BEHIND };

static bool from_worker(const struct peer *peer) {
    for (uint32_t i = 0; i < root->worker_count; i++)
        if (root->workers[i] == ((uint64_t)four(peer->ipv4) << 16 | two(peer->port)))
            return true;
    return false;
}

// Where a packet belongs. count: of the outcome of one that is refused.
static enum place place_of(const struct packet *packet, uint64_t **count) {
    const struct header *header = &packet->header;
    uint32_t chunk = four(header->chunk), seq = four(header->seq);
    bool query = op_of(header) == QUERY, sums = packet->full;
    *count = &expected.not_a_child;
    if (two(header->node) != NODE || header->sender >= root->children)
        return REFUSED;
    const struct peer *child = &root->peers[header->sender];
    bool child_sent = child->ipv4 == packet->peer.ipv4 && child->port == packet->peer.port;
    *count = &expected.wrong_source;
    if (!child_sent && !(query && root->nodes[header->sender] && from_worker(&packet->peer)))
        return REFUSED;
    *count = &expected.wrong_workers;
    if (two(header->workers) != root->below[header->sender])
        return REFUSED;
    *count = &expected.other_server;
    if (chunk >= root->chunks || !root->mine[chunk])
        return REFUSED;
    uint32_t sum = two(header->workers) * chunk_hash(header) + (sums ? sum_of(packet->words) : 0);
    bool checked = sums || !(header->flags & (OVERFLOW | NONFINITE));
    if (!query && checked && sum != four(header->checksum)) {
        *count = &expected.bad_checksum;
        return BAD;
    }
    const struct model *slot = &slots[seq & root->mask];
    if (!slot->count)
        return NEWER;
    uint32_t of_slot = four(slot->copies[0].header.seq);
    if (of_slot == seq)
        return slot->copies[0].header.chunk == header->chunk ? SAME : ANOTHER_CHUNK;
    return of_slot - seq <= LATEST_COPY ? BEHIND : NEWER;
}

static bool adds(int64_t *row, const struct packet *packet) {
    bool beyond = false;
    for (uint32_t i = 0; packet->full && i < root->width; i++) {
        row[i] += (int32_t)four(packet->words[i]);
        beyond |= row[i] != (int32_t)row[i];
        row[i] = (int32_t)row[i];
    }
    return beyond;
}

// Makes the sum of a slot's copies.
static void complete(struct model *slot) {
    int64_t row[MOST_LANES] = {0};
    bool late = false;
    slot->complete = true;
    slot->checksum = 0;
    for (int i = 0; i < slot->count; i++)
        slot->checksum += four(slot->copies[i].header.checksum);
    for (uint32_t sender = 0; root->merging == WIDE && sender < root->children; sender++)
        for (int i = 0; i < slot->count; i++)
            if (slot->copies[i].header.sender == sender)
                late |= adds(row, &slot->copies[i]);
    for (int i = 0; root->merging == TALL && i < slot->count; i++)
        adds(row, &slot->copies[i]); // what is beyond was counted as it came
    slot->overflow |= late;
    expected.overflowed += late;
    for (uint32_t i = 0; i < root->width; i++)
        slot->row[i] = (uint32_t)row[i];
    expected.completed++;
}

// Counts what is wrong with a copy that was added last.
static void check_copy(struct model *slot) {
    const struct header *first = &slot->copies[0].header;
    const struct packet *last = &slot->copies[slot->count - 1];
    int64_t row[MOST_LANES] = {0};
    bool beyond = first->exponent != last->header.exponent || first->lanes != last->header.lanes;
    for (int i = 0; root->merging == TALL && i < slot->count; i++) {
        bool one = adds(row, &slot->copies[i]);
        beyond |= one && i == slot->count - 1;
    }
    slot->overflow |= beyond;
    expected.overflowed += beyond;
}

static struct header result_of(const struct model *slot) {
    const struct header *first = &slot->copies[0].header;
    struct header header = {
        .version_op = VERSION << 4 | RESULT,
        .flags = slot->overflow ? OVERFLOW : 0,
        .job = two(JOB),
        .epoch = two(EPOCH),
        .stream = STREAM,
        .seq = first->seq,
        .chunk = first->chunk,
        .children = four(everyone()),
        .workers = two(root->world),
        .exponent = first->exponent,
        .max_exponent = first->max_exponent,
        .lanes = first->lanes,
    };
    for (int i = 0; i < slot->count; i++) {
        const struct header *copy = &slot->copies[i].header;
        header.flags |= copy->flags & (OVERFLOW | NONFINITE | ECN);
        if (header.max_exponent < copy->max_exponent)
            header.max_exponent = copy->max_exponent;
    }
    uint32_t checksum = slot->checksum;
    if (root->merging == DISCARDING && !root->steps)
        checksum = root->world * chunk_hash(&header);
    header.checksum = four(checksum);
    return header;
}

static void check_result(const uint8_t *packet, bool whole, int64_t at) {
    const struct model *slot = &slots[at];
    struct header header = result_of(slot), found;
    memcpy(&found, packet, sizeof found);
    must(!memcmp(&found, &header, sizeof header), "result of slot %ld", (long)at);
    must(whole == carries_payload(&header), "payload of slot %ld", (long)at);
    uint32_t words[MOST_LANES] = {0};
    memcpy(words, packet + sizeof header, whole ? 4 * root->width : 0);
    for (uint32_t i = 0; whole && i < root->width; i++)
        must(four(words[i]) == slot->row[i], "sum of slot %ld in lane %u", (long)at, i);
    bool counts = root->merging != DISCARDING && !root->steps && (whole || !root->width);
    if (counts && !(header.flags & (OVERFLOW | NONFINITE)))
        must(root->world * chunk_hash(&header) + (whole ? sum_of(words) : 0) ==
                 four(header.checksum),
             "a worker would refuse the result of slot %ld", (long)at);
}

static void check_state(void) {
    uint32_t open = 0;
    for (uint32_t at = 0; at <= root->mask; at++) {
        const struct slot *slot = &root->slots[at];
        const struct model *model = &slots[at];
        must(slot->used == (model->count > 0), "slot %u is in use or not", at);
        if (!model->count)
            continue;
        uint32_t in = 0;
        for (int i = 0; i < model->count; i++)
            in |= 1u << model->copies[i].header.sender;
        must(slot->in == in, "slot %u has copies %x, not %x", at, slot->in, in);
        must(slot->seq == four(model->copies[0].header.seq), "number in slot %u", at);
        must(slot->final == model->final, "slot %u is final or not", at);
        open += !model->complete;
    }
    must(root->open == open, "%u slots are open, not %u", root->open, open);
    must(root->most_open >= open, "most slots");
    must(!memcmp(&root->outcomes, &expected, sizeof expected), "outcomes are counted");
}

// ---------------------------------------------------------------------------------------------
// Calls

static bool sends_sums(void) { return !(root->steps || root->pulls || root->holds); }

static bool is_among(int64_t one, const int64_t *all, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (all[i] == one)
            return true;
    return false;
}

static void contribute(bool plain) {
    struct packet packets[MOST_BATCH];
    int n = draw_packets(CONTRIBUTE, packets);
    struct received received = received_of(packets, n);
    int64_t forecast[MOST_BATCH], done[MOST_BATCH], again[MOST_BATCH], bad[MOST_BATCH];
    uint64_t forecasts = 0, done_count = 0, again_count = 0, bad_count = 0;
    if (plain) {
        root_forecast(root, &received);
        forecasts = received.done_count;
        memcpy(forecast, received.done, forecasts * sizeof *forecast);
    }
    bool *visible = exact(MOST_BATCH), measured = draw(2);
    root_visible(root, &received, measured, visible);
    int64_t taken = root_contribute(root, &received, plain), expects = 0;
    for (; expects < n; expects++) {
        const struct packet *packet = &packets[expects];
        uint64_t *count;
        enum place place = place_of(packet, &count);
        int64_t at = four(packet->header.seq) & root->mask;
        struct model *slot = &slots[at];
        bool has = false;
        for (int i = 0; i < slot->count; i++)
            has |= slot->copies[i].header.sender == packet->header.sender;
        bool early = place == NEWER && slot->complete && !slot->final;
        bool added = place == NEWER ? !early : place == SAME && !slot->final && !has;
        if (plain && !added)
            break;
        bool completes = added && (place == NEWER ? 0 : slot->count) + 1 == (int)root->children;
        const struct header *first = place == NEWER ? &packet->header : &slot->copies[0].header;
        bool held = root->holds && !root->steps && !measured && first->lanes;
        must(visible[expects] || bad_count || place == BAD || (added && (held || !completes)),
             "an effect of %ld was to be seen", (long)expects);
        if (place == BAD)
            bad[bad_count++] = expects;
        if (place == SAME && slot->final)
            again[again_count++] = expects;
        if (!added) {
            uint64_t *outcome = place == REFUSED || place == BAD ? count
                                : early                          ? &expected.early
                                : place == BEHIND                ? &expected.stale
                                : place == ANOTHER_CHUNK         ? &expected.other_chunk
                                : slot->final                    ? &expected.replayed
                                                                 : &expected.duplicate;
            ++*outcome;
            continue;
        }
        ++*(place == NEWER ? &expected.claimed : &expected.added);
        if (place == NEWER)
            *slot = (struct model){.count = 0};
        slot->copies[slot->count++] = *packet;
        check_copy(slot);
        if (slot->count == (int)root->children) {
            complete(slot);
            done[done_count++] = at;
            if (plain && taken == n)
                must(is_among(expects, forecast, (int64_t)forecasts), "a sum was not forecast");
        }
    }
    must(taken == expects, "%ld contributions are taken, not %ld", (long)taken, (long)expects);
    must(received.done_count == done_count, "%lu sums are complete", (unsigned long)done_count);
    for (uint64_t i = 0; i < done_count; i++) {
        must(is_among(done[i], received.done, (int64_t)done_count), "another slot is complete");
        must(plain || root->holds ? received.done[i] == done[i]
                                  : !i || received.done[i - 1] < received.done[i],
             "order of sums");
        if (sends_sums())
            slots[done[i]].final = true;
        else
            pending[pending_count++] = received.done[i];
    }
    size_t size = sizeof(struct header) + 4 * root->width;
    for (uint64_t i = 0; sends_sums() && i < done_count; i++)
        check_result(received.packets + i * size, received.whole[i], received.done[i]);
    must(received.bad_count == bad_count && !memcmp(bad, received.bad, bad_count * sizeof *bad),
         "bad contributions");
    uint64_t answered = 0;
    for (uint64_t i = 0; i < again_count; i++) {
        uint32_t seq = four(packets[again[i]].header.seq);
        if (seq != four(slots[seq & root->mask].copies[0].header.seq))
            continue; // claimed by a later one
        must(answered < received.again_count && received.again[answered] == again[i],
             "a copy of a finished sum is not answered");
        answered++;
    }
    must(received.again_count == answered, "another packet is answered");
    free(visible);
    release(&received);
}

static void query(void) {
    struct packet packets[MOST_BATCH];
    int n = draw_packets(QUERY, packets);
    struct received received = received_of(packets, n);
    root_query(root, &received);
    uint64_t states = 0, results = 0;
    for (int i = 0; i < n; i++) {
        uint64_t *count;
        enum place place = place_of(&packets[i], &count);
        if (place == REFUSED) {
            ++*count;
            continue;
        }
        if (place != NEWER && place != SAME) {
            expected.query_stale++;
            continue;
        }
        expected.query_answered++;
        const struct model *slot = &slots[four(packets[i].header.seq) & root->mask];
        bool final = place == SAME && slot->final;
        if (final && root->pulls) {
            must(results < received.again_count && received.again[results++] == i, "a pull");
            continue;
        }
        must(states < received.done_count && received.done[states] == i, "a query");
        struct header header;
        memcpy(&header, received.packets + states++ * sizeof header, sizeof header);
        bool waits = root->holds && place == SAME && slot->complete;
        int phase = final ? FINAL : waits ? PARTIAL : AGGREGATING;
        uint32_t in = 0;
        for (int j = 0; place == SAME && j < slot->count; j++)
            in |= 1u << slot->copies[j].header.sender;
        must(header.version_op == (VERSION << 4 | STATE) && header.flags == phase << PHASE_SHIFT &&
                 four(header.children) == in && header.seq == packets[i].header.seq &&
                 header.chunk == packets[i].header.chunk &&
                 header.sender == packets[i].header.sender &&
                 header.workers == packets[i].header.workers &&
                 header.node == packets[i].header.node && !header.lanes,
             "state of %u", four(packets[i].header.seq));
    }
    must(states == received.done_count && results == received.again_count, "more answers");
    release(&received);
}

static int ascending(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

static bool is_held(int64_t at, const int64_t *missing) {
    const struct slot *slot = &root->slots[at];
    return slot->lanes && missing[root->pieces[slot->chunk]];
}

// Gives the complete slots to root_finish(), which answers those that nothing holds back.
static void finish(void) {
    int64_t most = pending_count + waiting_count, out[2 * MOST_SLOTS], n = 0;
    int64_t *given = exact((size_t)pending_count * sizeof *given);
    memcpy(given, pending, (size_t)pending_count * sizeof *given);
    int64_t *released = exact((size_t)most * sizeof *released);
    size_t size = sizeof(struct header) + 4 * root->width;
    uint8_t *packets = exact((size_t)most * size);
    bool *whole = exact((size_t)most);
    for (int64_t i = 0; root->steps && i < pending_count; i++) {
        struct model *slot = &slots[pending[i]];
        struct slot *own = &root->slots[pending[i]];
        for (uint32_t j = 0; j < root->width; j++) // of sums parameters are made
            root->rows[(size_t)pending[i] * root->width + j] = slot->row[j] ^= 0x5A5A5A5A;
        own->checksum = slot->checksum ^= 0x1234;
    }
    // Rounds leave at once, ascending; others when no chunk of their piece is missing any longer.
    int64_t missing[MOST_CHUNKS];
    for (uint32_t piece = 0; root->holds && piece < root->chunks; piece++)
        missing[piece] = root->missing[piece];
    for (int64_t i = 0; i < pending_count; i++) {
        const struct slot *slot = &root->slots[pending[i]];
        if (!root->holds || !slot->lanes) {
            out[n++] = pending[i];
            continue;
        }
        missing[root->pieces[slot->chunk]]--;
        waiting[waiting_count++] = pending[i];
    }
    if (root->holds)
        qsort(out, (size_t)n, sizeof *out, ascending);
    int64_t kept = 0;
    for (int64_t i = 0; i < waiting_count; i++)
        if (is_held(waiting[i], missing))
            waiting[kept++] = waiting[i];
        else
            out[n++] = waiting[i];
    waiting_count = kept;
    int64_t count =
        root_finish(root, given, (size_t)pending_count, released, packets, whole);
    pending_count = 0;
    must(count == n, "%ld results leave, not %ld", (long)count, (long)n);
    must(!root->holds || root->held_count == waiting_count, "sums wait");
    for (int64_t i = 0; i < n; i++) {
        slots[out[i]].final = true;
        check_result(packets + (size_t)i * size, whole[i], out[i]);
    }
    free(given);
    free(released);
    free(packets);
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input = data;
    remaining = size;
    begin();
    for (int i = 0; i < MOST_STEPS && remaining; i++) {
        int64_t operation = draw(8);
        if (operation < 4)
            contribute(false);
        else if (operation < 6)
            // Only roots that send sums themselves take a prefix (RootNode.on_train).
            contribute(sends_sums());
        else if (operation == 6)
            query();
        else if (!sends_sums())
            finish();
        check_state();
    }
    end();
    return 0;
}
