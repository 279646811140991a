// SPDX-License-Identifier: Apache-2.0
// Detects lost packets, and decides which numbers to probe or to retransmit (RACK, RFC 8985).
//
// A probe is a QUERY. All workers submit in the same order, so while the oldest number of a stream
// waits for a straggler the later ones do too, and one probe of the oldest is enough. A window of
// probes from every worker would be a burst: it fills queues that count packets, and delayed
// packets become lost ones. So a stream's timer restarts with every result (RFC 6298, section 5.3),
// and when it expires the oldest number without a result is probed (5.4).
//
// The same holds for streams of less urgent classes, which wait in queues while results of more
// urgent ones come. Where a server holds sums back until a slice is complete, any number may be the
// one that is missing: then all overdue ones are probed.
//
// After a loss the results of later numbers arrive without the lost one, long before a timer. So a
// number is probed as soon as a sum arrives that was sent later by more than reordering explains
// (RFC 8985, section 6.2), and again when one arrives that was sent after the probe, or after an
// answer that said to wait. Each probe needs a result of something sent later, and the window
// bounds those, so probes are few. The last CONTRIBUTE counts as the time of sending: recovering
// one number shows what else was lost before it. If an answer after a timeout shows a loss, all
// overdue numbers of the stream are probed, so a burst of losses costs one timeout. Results are
// compared only with numbers of the same way: stream, server and kind (exponent round, integer sum,
// float32 sum). Others take another path or another order: a chunk's data leaves when its exponent
// round is complete, and where a server answers workers one by one, only some have sent later
// exponent rounds by then. Within a way all workers send in order of submission, so without loss or
// reordering nothing overtakes.
//
// Where packets were lost of late (is_lossy()), a stream's timer is the time in which the next
// result is usual (sample_gap()), so that the last chunks of an iteration, which no later result
// overtakes, do not wait for a timeout. Where most answers show a loss (`lost` above UNASKED), what
// is late is retransmitted without a probe: that is half the hops, and each node that it reaches
// keeps it or passes on what it has. One try in ASK_EVERY is still a probe, whose answer tells
// losses from stragglers; a number that waits for a straggler is probed only. Retransmissions do
// not back off. Where few answers have shown losses (`lost` below OFTEN) a probe without an answer
// counts as a loss only if something that was sent to the same server later was answered: a server
// that stalls answers nothing, and copies that nobody asked for would be all that it gets to read.
//
// A sum that was lost between nodes is missed by all workers below: the first child of each node
// retransmits, the others only if the next answer is the same.
//
// Progress is certain: the lowest of all workers' oldest numbers is probed by every worker that
// lacks its sum, which suffices to complete it.

#include "worker.h"

enum { ASK_EVERY = 4 };
enum { SOONER = 16 }; // least timeout over the least time for which a missing result is waited for
static const double UNASKED = 0.5;    // share of answers that show a loss
static const double WEIGHT = 1.0 / 16; // of an answer in that share
// Between these shares packets are lost by chance: some answers arrive, so no node is gone.
// Timeouts in a row are chance, too, and double the time to wait FEW times at most.
static const double OFTEN = 0.1, GONE = 0.95;
enum { FEW = 2 };

// True if a packet was found lost among the last results.
static int is_lossy(const struct worker *w) { return w->since_loss < w->memory; }

static int64_t way_of(const struct worker *w, int64_t row) {
    int64_t kind = w->stage[row] == DIRECTLY ? 2 : w->entry[row].exponent_round;
    return KINDS * (w->stream[row] * w->servers_count + w->server[row]) + kind;
}

// --- time-outs ---

// Takes a round trip that ends now: RFC 6298, section 2. Excluded are packets sent or probed twice
// (Karn's algorithm) and header-only ones, which return long before packets with payload.
//
// What took far longer than others waited for another worker, perhaps until that one's timeout. If
// all of it counted, workers' timeouts would drive each other up as soon as packets are lost; if
// none of it did, longer round trips would never be known. Of what waited together, for one thing,
// one counts, as a timeout at most: a window of them would make the timeout hundreds of times as
// long.
static void sample_trip(struct worker *w, double now, int64_t stream, double time) {
    double smoothed = w->smoothed[stream], variation, timeout = w->timeouts[stream];
    if (time > 2 * smoothed || (time > timeout && !isnan(smoothed))) {
        if (now - time < w->late[stream])
            return;
        w->late[stream] = now;
    }
    time = time < timeout ? time : timeout;
    if (isnan(smoothed)) {
        smoothed = time;
        variation = time / 2;
    } else {
        variation = 0.75 * w->variation[stream] + 0.25 * fabs(smoothed - time);
        smoothed = 0.875 * smoothed + 0.125 * time;
    }
    w->smoothed[stream] = smoothed;
    w->variation[stream] = variation;
    // Two round trips at least (as RFC 8985, 7.2): variation goes to 0 where all is regular.
    timeout = larger(smoothed + larger(4 * variation, smoothed), w->least);
    w->timeouts[stream] = timeout < w->most ? timeout : w->most;
}

// The time after a result in which the next one is expected; NaN before any sample.
static double longest_gap(const struct worker *w, int64_t stream) {
    return w->gap[stream] + fmax(4 * w->gap_variation[stream], w->gap[stream]);
}

// Takes the time between results of a stream, the earliest sent at `sent`: the last arrives now.
// All workers send in the same order, so results come as regularly as the slowest worker's packets
// leave it. A gap of twice the usual is seen long before a timeout, which has to allow for a whole
// window in a queue: the probe timeout of RFC 8985, section 7.2. It is no sample if none of the
// results was on its way when the one before arrived.
static void sample_gap(struct worker *w, double now, int64_t stream, double sent) {
    double gap = now - w->gap_last[stream];
    w->gap_last[stream] = now;
    if (sent > now - gap)
        return;
    if (isnan(w->gap[stream])) {
        w->gap[stream] = gap;
        w->gap_variation[stream] = gap / 2;
        return;
    }
    gap = fmin(gap, 2 * longest_gap(w, stream)); // a straggler or a loss must not hide the next one
    w->gap_variation[stream] =
        0.75 * w->gap_variation[stream] + 0.25 * fabs(w->gap[stream] - gap);
    w->gap[stream] = 0.875 * w->gap[stream] + 0.125 * gap;
}

// The time after a result until the oldest number of a stream is probed.
static double timeout_of(const struct worker *w, int64_t stream) {
    double timeout = w->timeouts[stream], longest = longest_gap(w, stream);
    if (!is_lossy(w) || isnan(longest))
        return timeout;
    return fmin(timeout, larger(w->least / SOONER, longest));
}

// The time to wait for the answer to a probe of a row, or its result: doubled with each timeout,
// where losses are frequent with the first ones only.
static double patience(const struct worker *w, int64_t row) {
    int64_t stream = w->stream[row], backoff = probing_of(w, row)->backoff;
    double shortest = w->timeouts[stream];
    int64_t most = 30;
    if (is_lossy(w)) {
        shortest = fmin(shortest, fmax(timeout_of(w, stream), w->smoothed[stream]));
        if (w->lost > OFTEN && w->lost < GONE)
            most = FEW;
    }
    return fmin(ldexp(shortest, (int)(backoff < most ? backoff : most)), w->most);
}

// Restarts the timer of a stream, see deadline_of(). Numbers that were probed in vain keep their
// deadline if it is later; all others get the timeout that holds now, counted from when they leave.
static void restart(struct worker *w, int64_t stream, double now) {
    double timeout = timeout_of(w, stream), ring = now + timeout;
    if (w->backed_off[stream])
        for (int64_t number = w->left[stream]; number < w->next[stream]; number++) {
            int64_t row = row_of(w, stream, number);
            if (probing_of(w, row)->backoff && in_flight(w, row)) {
                double leaves = w->progress[row].sent_last + timeout;
                w->deadline[row] = fmax(w->deadline[row], fmax(ring, leaves));
            }
        }
    w->ring[stream] = ring;
    w->nearest[stream] = INFINITY;
    w->ring_timeout[stream] = timeout;
    w->restarts[stream]++;
    w->soonest = smaller(w->soonest, ring);
}

// Returns the earliest deadline of a stream. Without backoffs none is before `ring` and `nearest`,
// so mostly the oldest row in flight ends the search.
static double first_of(const struct worker *w, int64_t stream) {
    double first = INFINITY;
    double bound = w->backed_off[stream] ? -INFINITY : smaller(w->ring[stream], w->nearest[stream]);
    for (int64_t number = w->left[stream]; number < w->next[stream] && first > bound; number++)
        first = smaller(first, deadline_of(w, row_of(w, stream, number)));
    return first;
}

// Returns the earliest deadline.
double first_deadline(struct worker *w) {
    double first = INFINITY;
    for (int64_t stream = 0; stream < w->streams; stream++)
        first = smaller(first, first_of(w, stream));
    return w->soonest = first;
}

// --- what arrives ---

// Takes `answers` answers, `lost` of which, as a share, showed a loss.
static void learn(struct worker *w, double lost, int64_t answers) {
    w->lost += (1 - pow(1 - WEIGHT, (double)answers)) * (lost - w->lost);
}

// Takes an answer to what was sent for a row at `sent`.
static void note_answered(struct worker *w, int64_t row, double sent) {
    double *answered = &w->answered[w->server[row]];
    *answered = larger(*answered, sent);
}

// Makes a row due that is to be retransmitted.
static void retransmit(struct worker *w, int64_t row) {
    set_probe(w, row, false);
    make_due(w, row);
    w->since_loss = 0;
}

// When a row was last sent or probed, or heard of.
static double heard_last(const struct worker *w, int64_t row) {
    const struct progress *progress = &w->progress[row];
    if (!progress->probed)
        return progress->sent_last;
    const struct probing *probing = &w->probing[row];
    return fmax(larger(progress->sent_last, probing->probed_last), probing->state_time);
}

// Marks rows for probing that the retransmission of a row overtook.
static void probe_before(struct worker *w, int64_t by) {
    int64_t stream = w->stream[by], way = way_of(w, by);
    for (int64_t number = w->left[stream]; number < w->next[stream]; number++) {
        int64_t row = row_of(w, stream, number);
        if (in_flight(w, row) && w->entry[row].order < w->entry[by].order &&
            way_of(w, row) == way &&
            w->progress[by].sent_last > heard_last(w, row) + w->lowest[stream] / 4)
            set_probe(w, row, true);
    }
}

// Takes the arrival of results of one stage for distinct rows. packets: indices of the packets,
// whose rows are in `places`.
void detect_from_results(struct worker *w, const int64_t *packets, int64_t n,
                         const struct arrivals *a, double now) {
    for (int64_t i = 0; i < n; i++) {
        int64_t row = w->places[packets[i]], stream = w->stream[row];
        const struct progress *progress = &w->progress[row];
        int own = progress->clean;
        double took = larger(now - progress->sent_last, 0.0);
        const struct probing *probing = probing_of(w, row);
        if (w->pulls && probing->probes == 1) { // a requested result waits for no other worker
            took = larger(now - probing->probed_last, 0.0);
            own = 1;
        }
        if (w->entry[row].lanes) {
            struct response *response = &w->responses[w->server[row]];
            response->sums++;
            response->waited += larger(now - progress->sent_first, 0.0);
            response->first = smaller(response->first, progress->sent_first);
            response->sent = larger(response->sent, progress->sent_first);
            response->last = larger(response->last, now);
        }
        if (own && took < w->lowest[stream])
            w->lowest[stream] = took;
        if (own && a->full[packets[i]])
            w->longest[stream] = larger(w->longest[stream], took);
        w->earliest[stream] = smaller(w->earliest[stream], progress->sent_last);
    }
    w->since_loss += n;
    int64_t urgent = 0; // the last streams are the most urgent
    for (int64_t i = 0; i < n; i++) {
        int64_t stream = w->stream[w->places[packets[i]]];
        urgent = stream > urgent ? stream : urgent;
        if (isinf(w->earliest[stream]))
            continue; // done
        if (w->longest[stream] >= 0)
            sample_trip(w, now, stream, w->longest[stream]);
        if (is_lossy(w))
            sample_gap(w, now, stream, w->earliest[stream]);
        restart(w, stream, now);
        w->earliest[stream] = INFINITY;
        w->longest[stream] = -1;
    }
    // What is less urgent waits in queues while these pass, so it is not late.
    for (int64_t stream = 0; stream < urgent; stream++)
        if (w->priorities[stream] < w->priorities[urgent] && w->left[stream] < w->next[stream])
            restart(w, stream, now);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = w->places[packets[i]];
        struct progress *progress = &w->progress[row];
        // A result faster than any round trip answers the first CONTRIBUTE (RFC 8985, 6.2).
        if (progress->sent > 1 && now - progress->sent_last < w->lowest[w->stream[row]])
            progress->sent_last = progress->sent_first;
        double *latest = &w->latest[way_of(w, row)];
        if (progress->sent == 1)
            *latest = larger(*latest, progress->sent_last);
        note_answered(w, row, progress->sent_last);
    }
    for (int64_t i = 0; i < n; i++)
        if (w->progress[w->places[packets[i]]].sent > 1)
            probe_before(w, w->places[packets[i]]);
    w->news |= n > 0;
}

// True if the last STATE of a row said that its sum waits for others of its slice.
static int waits_for_slice(const struct worker *w, int64_t row) {
    const struct probing *probing = probing_of(w, row);
    return w->by_slice && isfinite(probing->state_time) && probing->state_phase == PARTIAL;
}

// Takes STATEs that answer probes of distinct rows; what is lost becomes due.
void detect_from_states(struct worker *w, const int64_t *packets, int64_t n,
                        const struct arrivals *a, double now) {
    enum { SHOWS_LOSS = 1 };
    int64_t losses = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = w->places[packets[i]], stream = w->stream[row];
        const struct probing *probing = probing_of(w, row);
        if (probing->probes == 1)
            w->longest[stream] =
                larger(w->longest[stream], larger(now - probing->probed_last, 0.0));
    }
    for (int64_t stream = 0; n && stream < w->streams; stream++) {
        if (w->longest[stream] >= 0)
            sample_trip(w, now, stream, w->longest[stream]);
        w->longest[stream] = -1;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t row = w->places[packets[i]], stream = w->stream[row];
        const struct header *header = &a->headers[packets[i]];
        struct probing *probing = begin_probing(w, row);
        uint32_t children = four(header->children);
        int phase = header->flags >> 4 & 3, direct = (header->flags & DIRECT) != 0;
        int bit = direct ? (int)(w->rank % MOST_CHILDREN) : header->sender;
        int node = two(header->node), absent = (children >> bit & 1) == 0;
        // Probes of a number that waits for others back off, but restart after any change of state:
        // the next result may get lost on the way to this worker.
        int moved = probing->state_node != node || probing->state_phase != phase ||
                    probing->state_children != children;
        int known = isfinite(probing->state_time);
        if (moved && known)
            set_backoff(w, row, 0);
        probing->state_node = (uint16_t)node;
        probing->state_phase = (uint8_t)phase;
        probing->state_children = children;
        probing->state_time = now;
        probing->probes = 0;
        note_answered(w, row, probing->probed_last);
        int above = !direct && node != w->nodes[stream], first = w->senders[stream] == 0;
        int again = phase == FINAL || (phase == AGGREGATING && absent);
        again = again && (!above || first || (known && !moved));
        w->kinds[packets[i]] = again ? SHOWS_LOSS : 0;
        losses += again;
    }
    if (n)
        learn(w, (double)losses / (double)n, n);
    for (int64_t i = 0; i < n; i++)
        if (w->kinds[packets[i]] == SHOWS_LOSS)
            retransmit(w, w->places[packets[i]]);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = w->places[packets[i]];
        set_probe(w, row, false);
        if (!w->due[row]) // it may wait for the link since it was asked about
            set_deadline(w, row, now + patience(w, row));
    }
    // One loss makes others likely: probe all overdue numbers of the stream. So does a sum that is
    // complete and waits for others of its slice; of those, whose state is not known.
    for (int64_t i = 0; i < n; i++) {
        int64_t asked = w->places[packets[i]], stream = w->stream[asked];
        int lost = w->kinds[packets[i]] == SHOWS_LOSS;
        if (!lost && !waits_for_slice(w, asked))
            continue;
        for (int64_t number = w->left[stream]; number < w->next[stream]; number++) {
            int64_t row = row_of(w, stream, number);
            if (deadline_of(w, row) <= now && (lost || !waits_for_slice(w, row)))
                set_probe(w, row, true);
        }
    }
}

// --- what to probe ---

// Puts the oldest number in flight of each stream into `chosen`: those to probe once overdue.
static void choose_oldest(struct worker *w) {
    w->chosen_length = 0;
    for (int64_t stream = 0; stream < w->streams; stream++) {
        int64_t oldest = -1;
        for (int64_t number = w->left[stream]; number < w->next[stream]; number++) {
            int64_t row = row_of(w, stream, number);
            if (in_flight(w, row) &&
                (oldest < 0 || w->entry[row].order < w->entry[oldest].order))
                oldest = row;
        }
        if (oldest >= 0)
            w->chosen[w->chosen_length++] = oldest;
    }
}

// Adds the rows sent a timeout ago, except those behind an oldest row that waits for another
// worker.
static void choose_overdue(struct worker *w, double now) {
    int64_t streams = w->chosen_length;
    for (int64_t i = 0; i < streams; i++) {
        int64_t oldest = w->chosen[i], stream = w->stream[oldest];
        const struct probing *probing = probing_of(w, oldest);
        if (isfinite(probing->state_time) && probing->backoff)
            continue;
        for (int64_t number = w->left[stream]; number < w->next[stream]; number++) {
            int64_t row = row_of(w, stream, number);
            if (row != oldest && in_flight(w, row) &&
                w->progress[row].sent_last + w->timeouts[stream] <= now)
                w->chosen[w->chosen_length++] = row;
        }
    }
}

// Marks the rows of a stream among a block of rows that sums of later numbers have overtaken. last:
// the latest of all its ways.
static void probe_block(struct worker *w, int64_t stream, int64_t block, double last) {
    int64_t end = (block + 1) << BLOCK_BITS;
    double margin = w->lowest[stream] / 4, heard = INFINITY;
    for (int64_t row = block << BLOCK_BITS; row < end && row < w->rows; row++) {
        if (!in_flight(w, row))
            continue;
        double one = heard_last(w, row);
        heard = smaller(heard, one);
        if (last > one + margin && w->stream[row] == stream &&
            w->latest[way_of(w, row)] > one + margin)
            set_probe(w, row, true);
    }
    w->heard[block] = heard;
}

// Marks rows for probing that sums of later numbers have overtaken. `heard` is at most the earliest
// time at which a row in flight of a block was last heard of, and `unheard` the least of a stream's,
// so only the blocks of the oldest numbers are looked at, and not with each sum.
static void probe_overtaken(struct worker *w) {
    w->news = 0;
    for (int64_t stream = 0; stream < w->streams; stream++) {
        int64_t ways = KINDS * w->servers_count;
        const double *latest = &w->latest[stream * ways];
        double last = -INFINITY, margin = w->lowest[stream] / 4, least = INFINITY;
        for (int64_t way = 0; way < ways; way++)
            last = larger(last, latest[way]);
        if (!(last > w->unheard[stream] + margin))
            continue;
        int64_t first = w->bases[stream] >> BLOCK_BITS;
        int64_t end = (w->bases[stream] + w->masks[stream]) >> BLOCK_BITS;
        for (int64_t block = first; block <= end; block++) {
            if (last > w->heard[block] + margin)
                probe_block(w, stream, block, last);
            least = smaller(least, w->heard[block]);
        }
        w->unheard[stream] = least;
    }
}

// Chooses the rows to probe now (`probed`); rows to retransmit unasked become due.
void prepare_probes(struct worker *w, double now) {
    int unasked = w->lost > UNASKED && !w->pulls;
    int64_t late = 0;
    w->expired = w->soonest <= now && first_deadline(w) <= now;
    if (w->news)
        probe_overtaken(w);
    w->stamp++;
    if (w->expired) {
        choose_oldest(w);
        if (unasked)
            choose_overdue(w, now);
        for (int64_t i = 0; i < w->chosen_length; i++)
            if (deadline_of(w, w->chosen[i]) <= now) {
                w->probed[late++] = w->chosen[i];
                w->mark[w->chosen[i]] = w->stamp;
            }
    }
    if (w->pending)
        for (int64_t row = 0; row < w->rows; row++)
            if (w->probe_pending[row] && w->mark[row] != w->stamp)
                w->probed[late++] = row;
    int64_t unanswered = 0;
    for (int64_t i = 0; i < late; i++) {
        int64_t row = w->probed[i];
        const struct probing *probing = probing_of(w, row);
        int known = w->lost > OFTEN || probing->probed_last < w->answered[w->server[row]];
        unanswered += probing->probes > 0 && known &&
                      probing->probed_last + w->timeouts[w->stream[row]] <= now;
    }
    if (unanswered)
        learn(w, 1, unanswered);
    w->probed_length = unasked ? 0 : late;
    for (int64_t i = 0; unasked && i < late; i++) {
        int64_t row = w->probed[i];
        const struct progress *progress = &w->progress[row];
        const struct probing *probing = probing_of(w, row);
        int waits = isfinite(probing->state_time) && progress->sent_last < probing->state_time;
        int turn = (progress->sent + probing->probes + row) % ASK_EVERY == 0;
        if ((waits || turn) && probing->probes == 0)
            w->probed[w->probed_length++] = row;
        else
            retransmit(w, row);
    }
}

// Records a QUERY for a row that is sent now and leaves the host at `leave`.
void note_probed(struct worker *w, int64_t row, double now, double leave) {
    struct probing *probing = begin_probing(w, row);
    set_probe(w, row, false);
    probing->probes++;
    probing->probed_last = leave;
    set_backoff(w, row, probing->backoff + (deadline_of(w, row) <= now));
    w->progress[row].clean = false;
    set_deadline(w, row, leave + patience(w, row));
}
