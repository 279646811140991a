// SPDX-License-Identifier: Apache-2.0
// Chooses the packets that a worker sends, as far as its link has room, and builds them.

#include <stdlib.h>

#include "worker.h"

// --- packets ---

static void write_header(const struct worker *w, int64_t row, struct header *header) {
    const struct entry *entry = &w->entry[row];
    *header = w->common[w->stream[row]];
    header->seq = four(w->seq[row]);
    header->chunk = four((uint32_t)entry->chunk);
    if (w->stage[row] == DIRECTLY) {
        header->flags = DIRECT;
        header->node = 0;
        header->sender = (uint8_t)w->rank;
    }
    if (w->is_asynchronous)
        header->children = four((uint32_t)(entry->round + 1));
}

// True if the CONTRIBUTE of a row carries a payload; before it is built: unless its flags change.
static int carries(const struct worker *w, int64_t row) {
    return w->entry[row].lanes != 0 &&
           (w->stage[row] == DIRECTLY || !(w->flags[row] & (OVERFLOW | NONFINITE)));
}

// Sets the flags of a chunk that is to be summed in integers.
static void set_flags(struct worker *w, int64_t row) {
    const struct entry *entry = &w->entry[row];
    if (w->stage[row] != WAITING || entry->exponent_round)
        return;
    int fits = entry->own <= w->exponent[row];
    // Initial parameters must not be rounded: the server gets them in float32.
    int initial = w->optimizes && entry->round == 0;
    w->flags[row] = (uint8_t)(entry->unfit | (fits && !initial ? 0 : OVERFLOW));
}

// Writes a CONTRIBUTE; returns whether it carries a payload. What is retransmitted has the same
// bits.
static int write_contribution(struct worker *w, int64_t row, uint8_t *packet) {
    struct header *header = (struct header *)packet;
    word *words = (word *)(header + 1);
    const struct entry *entry = &w->entry[row];
    write_header(w, row, header);
    set_flags(w, row);
    header->exponent = (int8_t)w->exponent[row];
    if (w->stage[row] == (w->is_asynchronous ? DIRECTLY : WAITING))
        w->hash[row] = chunk_hash(header);
    header->flags |= w->flags[row] | (w->progress[row].sent > 0 ? RETRANSMIT : 0);
    header->max_exponent = (int8_t)entry->own;
    header->lanes = two(entry->lanes);
    uint32_t sum = 0;
    int full = carries(w, row);
    if (!full)
        memset(words, 0, sizeof *words * (size_t)w->width);
    else if (!w->width)
        ; // payloads are left out
    else if (w->stage[row] == DIRECTLY)
        sum = write_floats((const float *)values_at(w, entry), words, w->width);
    else if (w->encode)
        w->error |= w->encode(values_at(w, entry), w->exponent[row], (uint8_t *)words, &sum);
    else
        sum = write_integers((const float *)values_at(w, entry), words, w->width,
                             scale_of(w, w->exponent[row]));
    header->checksum = four(sum + w->hash[row]);
    return full;
}

static void write_query(const struct worker *w, int64_t row, uint8_t *packet) {
    struct header *header = (struct header *)packet;
    write_header(w, row, header);
    header->version_op = (uint8_t)(header->version_op + QUERY - CONTRIBUTE);
}

// --- the link ---

// The bytes that may be handed over to the link now. One packet may exceed it.
double room(const struct worker *w, double now) {
    if (w->rate <= 0)
        return INFINITY;
    return larger(0.0, (w->backlog - larger(0.0, w->clear - now)) * w->rate / 8);
}

// True if packets to a server leave on the link: not those to one on this host.
int uses_link(const struct worker *w, const struct peer *server) {
    return four(server->ipv4) != w->host;
}

// The bytes of the link that a row's packet of `size` takes.
static int64_t on_link(const struct worker *w, int64_t row, int64_t size) {
    return uses_link(w, &w->servers[w->server[row]]) ? size : 0;
}

// Accounts for a packet that is handed over now. Returns when it has left.
static double hand_over(struct worker *w, double now, int64_t size) {
    if (w->rate <= 0 || !size)
        return now;
    return w->clear = larger(now, w->clear) + (double)(size * 8) / w->rate;
}

static void note_sent(struct worker *w, int64_t row, double leave) {
    struct progress *progress = &w->progress[row];
    int again = progress->sent > 0;
    if (!again)
        progress->sent_first = leave;
    progress->sent_last = leave;
    progress->sent++;
    progress->clean = !again;
    progress->failed = false;
    clear_probes(w, row);
    set_backoff(w, row, 0);
    w->due[row] = false;
    double *heard = &w->heard[row >> BLOCK_BITS];
    *heard = smaller(*heard, leave);
    w->unheard[w->stream[row]] = smaller(w->unheard[w->stream[row]], leave);
    set_deadline(w, row, leave + w->timeouts[w->stream[row]]);
    w->counts.sent++;
    w->counts.retransmitted += again;
    w->retransmitted[w->stream[row]] += again;
}

// --- a poll ---

// Order of rows, the most urgent first: qsort() has no argument for the worker.
static int by_urgency(const void *one, const void *other) {
    const struct due *a = one, *b = other;
    return a->rank != b->rank ? (a->rank > b->rank) - (a->rank < b->rank)
                              : (a->order > b->order) - (a->order < b->order);
}

static void sort_probed(struct worker *w) {
    int64_t n = w->probed_length;
    struct due *sorted = n > 1 ? malloc((size_t)n * sizeof *sorted) : NULL;
    if (!sorted)
        return; // alone, or without memory for an order
    for (int64_t i = 0; i < n; i++) {
        int64_t row = w->probed[i];
        sorted[i] = due_of(w, row);
    }
    qsort(sorted, (size_t)n, sizeof *sorted, by_urgency);
    for (int64_t i = 0; i < n; i++)
        w->probed[i] = sorted[i].row;
    free(sorted);
}

// Moves windows and chooses what is to be probed or retransmitted now.
void prepare_poll(struct worker *w, double now) {
    if (w->moved)
        advance(w);
    if (w->prepared)
        return;
    prepare_probes(w, now);
    sort_probed(w);
    w->prepared = 1;
}

// Appends the packets to send now; there must be room for all that are due or to be probed.
// Sets the time of the next poll; returns 1 if that is only a lower bound (first_deadline()).
int send_now(struct worker *w, double now, struct departures *out) {
    prepare_poll(w, now);
    w->prepared = 0;
    double most = room(w, now);
    int64_t spent = 0, asked = 0, row = -1;
    int left_over = 0;
    uint8_t *packet = out->packets + out->count * out->stride;
    double first = INFINITY; // deadline of what is sent
    for (; asked < w->probed_length; asked++) {
        row = w->probed[asked];
        int64_t size = on_link(w, row, w->small);
        if (size && !((double)spent < most)) {
            left_over = 1;
            break;
        }
        write_query(w, row, packet);
        out->full[out->count] = false;
        out->peers[out->count] = w->servers[w->server[row]];
        out->times[out->count++] = now;
        packet += out->stride;
        spent += size;
        note_probed(w, row, now, hand_over(w, now, size));
        w->counts.queries++;
    }
    while (!left_over && (row = first_due(w)) >= 0) {
        int64_t size = on_link(w, row, carries(w, row) ? w->large : w->small);
        if (size && !((double)spent < most)) {
            left_over = 1;
            break;
        }
        spent += size;
        int full = write_contribution(w, row, packet);
        out->full[out->count] = full;
        out->peers[out->count] = w->servers[w->server[row]];
        out->times[out->count++] = now;
        packet += out->stride;
        note_sent(w, row, hand_over(w, now, on_link(w, row, full ? w->large : w->small)));
        first = fmin(first, w->deadline[row]);
    }
    if (left_over) { // when half of the backlog is gone
        out->following = larger(now, w->clear - w->backlog / 2);
        return 0;
    }
    if (!w->expired) {
        out->following = w->soonest;
        return 1;
    }
    // Overdue numbers that may not be probed yet must not cause polls.
    for (int64_t i = 0; i < w->chosen_length; i++)
        first = fmin(first, deadline_of(w, w->chosen[i]));
    out->following = first;
    return 0;
}

// Prepares a poll; returns how many packets it may send at most.
int64_t worker_prepare(struct worker *w, double now) {
    prepare_poll(w, now);
    int64_t most = w->probed_length + w->heap_length;
    if (w->host) // packets inside the host need no room
        return most;
    double fit = floor(room(w, now) / (double)w->small) + 1;
    return fit < (double)most ? (int64_t)fit : most;
}

// Sends as send_now(), and sets the exact time of the next poll.
void worker_poll(struct worker *w, double now, struct departures *out) {
    if (send_now(w, now, out))
        out->following = first_deadline(w);
}
