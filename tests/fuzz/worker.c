// SPDX-License-Identifier: Apache-2.0
//
// Runs one input on a worker's transport (hosts/native/worker.h): the first bytes choose a job, the
// others what happens. All workers of the job have the same values, so what a worker sends tells
// what the sum is. After each step the state must be what worker.h says; in the end every number
// gets its result.

#include "worker.h"

#define SUBJECT "worker"
#include "drawn.h"

enum { MOST_STREAMS = 3, MOST_CHUNKS = 6, MOST_SERVERS = 2, MOST_LANES = 4, LARGEST_WINDOW = 8 };
enum { MOST_NUMBERS = 96, MOST_STEPS = 200, MOST_BATCH = 8, MOST_WORK = 2000 };
enum { SMALL = 78, LARGE = SMALL + 4 * MOST_LANES };
enum { JOB = 7, EPOCH = 3, BLOCKS = 80 };
static const double SECOND = 1e9;
enum { PLAIN, OPTIMIZER, ASYNCHRONOUS, PULLED, MODES };
enum { SUBMIT, POLL, ARRIVE, RUN, PASS, WAKE, TRANSFER, EXCHANGE, OPERATIONS };

void worker_receive(struct worker *w, const struct arrivals *a, double now);
int64_t worker_prepare(struct worker *w, double now);
void worker_poll(struct worker *w, double now, struct departures *out);
int64_t worker_run(struct worker *w, const struct arrivals *a, struct driver *driver,
                   struct departures *out);
void complete_rows(struct worker *w, const int64_t *rows, const struct arrivals *a);
void check_results(struct worker *w, const struct arrivals *a, const int64_t *rows,
                   int64_t *failed);
void find_tickets(const struct worker *w, const struct arrivals *a, int64_t *tickets);

struct packet {
    struct header header;
    uint32_t words[MOST_LANES]; // in network order
    struct peer peer;
    bool full;
};

// A number that was submitted, in the order of its stream.
struct number {
    struct entry entry;
    int64_t stream;
    uint32_t seq;
    float *values, *sums, kept[MOST_LANES];
    struct packet sent[2]; // the first CONTRIBUTE, by whether it is DIRECT
    bool was_sent[2];
    bool forged;   // a packet for it may pass the check with wrong words
    bool answered; // a packet arrived that may be its result
    bool complete, reported, failed;
    int64_t bad; // packets that may have failed a check
};

static struct worker *w;
static double now, following;
static int64_t mode, delivered, moved_direct, contributions, queries, reports;
static int64_t windows[MOST_STREAMS], begun[MOST_CHUNKS], starting[MOST_STREAMS];
static struct number numbers[MOST_NUMBERS], *numbered[MOST_STREAMS][MOST_NUMBERS];
static struct submission places[MOST_NUMBERS];
static uint64_t scattered[MOST_NUMBERS];
static int64_t count, counted[MOST_STREAMS], orders;
// By chunk: the results of its rounds before this epoch, and in it, and the exponent round's.
static int64_t preset[MOST_CHUNKS];
static int preset_exponent[MOST_CHUNKS], first_exponent[MOST_CHUNKS];
static int found_exponents[MOST_CHUNKS][MOST_NUMBERS];

static struct block {
    void *at, *copy, *other;
    size_t size;
    bool padded; // it may differ where there are no fields
} blocks[BLOCKS];
static int blocks_length;

// ---------------------------------------------------------------------------------------------
// The worker's memory: hosts/worker/core.py

// Makes an array of zeros that the pointer at `field` points to.
static void *make(void *field, int64_t length, size_t size, bool padded) {
    must(blocks_length < BLOCKS, "more than %d arrays", BLOCKS);
    struct block *block = &blocks[blocks_length++];
    block->size = (size_t)length * size;
    block->padded = padded;
    block->at = exact(block->size);
    block->copy = exact(block->size);
    block->other = exact(block->size);
    memset(block->at, 0, block->size);
    memcpy(field, &block->at, sizeof block->at);
    return block->at;
}

#define MAKE(field, length) make(&w->field, length, sizeof *w->field, false)
#define MAKE_PADDED(field, length) make(&w->field, length, sizeof *w->field, true)
#define FILL(field, length, value)                                                                 \
    do {                                                                                           \
        MAKE(field, length);                                                                       \
        for (int64_t i_ = 0; i_ < (length); i_++)                                                  \
            w->field[i_] = value;                                                                  \
    } while (0)

// Sets the window of a stream, as a policy does after a round trip.
static int adapt(int64_t stream) {
    w->limits[stream] = 1 + (w->met[stream] + w->next[stream]) % windows[stream];
    w->met[stream] = w->marked[stream] = w->retransmitted[stream] = 0;
    int64_t end = w->left[stream] + w->limits[stream];
    w->trip_ends[stream] = end > w->next[stream] ? end : w->next[stream];
    return 0;
}

static void make_rows(void) {
    int64_t rows = w->rows;
    MAKE(stage, rows);
    MAKE(flags, rows);
    MAKE(due, rows);
    MAKE(probe_pending, rows);
    MAKE(seq, rows);
    MAKE(hash, rows);
    MAKE(server, rows);
    MAKE(failures, rows);
    MAKE(held_next, rows);
    MAKE(mark, rows);
    MAKE(exponent, rows);
    MAKE_PADDED(entry, rows);
    MAKE_PADDED(progress, rows);
    MAKE(results, rows);
    MAKE(words, 4 * rows * w->width);
    MAKE(probed, rows);
    MAKE(chosen, rows);
    MAKE(heap, 2 * rows + 1);
    MAKE_PADDED(failed, rows);
    FILL(deadline, rows, INFINITY);
    MAKE_PADDED(probing, rows);
    uint8_t *stream = MAKE(stream, rows);
    for (int64_t s = 0; s < w->streams; s++)
        for (int64_t i = 0; i < 2 * windows[s]; i++)
            *stream++ = (uint8_t)s;
}

static void make_streams(void) {
    int64_t streams = w->streams;
    struct header *common = MAKE(common, streams);
    int64_t *bases = MAKE(bases, streams), *masks = MAKE(masks, streams);
    int64_t *nodes = MAKE(nodes, streams), *senders = MAKE(senders, streams);
    int64_t *priorities = MAKE(priorities, streams), *index = MAKE(stream_index, 256);
    MAKE(left, streams);
    MAKE(next, streams);
    MAKE(limits, streams);
    MAKE(queues, streams);
    MAKE(ring, streams);
    MAKE(ring_timeout, streams);
    MAKE(restarts, streams);
    MAKE(backed_off, streams);
    MAKE(met, streams);
    MAKE(marked, streams);
    MAKE(retransmitted, streams);
    MAKE(trip_ends, streams);
    FILL(smoothed, streams, NAN);
    FILL(variation, streams, 0);
    FILL(timeouts, streams, 0.01);
    FILL(late, streams, -INFINITY);
    FILL(lowest, streams, INFINITY);
    FILL(nearest, streams, INFINITY);
    FILL(unheard, streams, INFINITY);
    FILL(gap_last, streams, -INFINITY);
    FILL(gap, streams, NAN);
    FILL(gap_variation, streams, NAN);
    FILL(heard, (w->rows >> BLOCK_BITS) + 1, INFINITY);
    FILL(longest, streams, -1);
    FILL(earliest, streams, INFINITY);
    FILL(latest, KINDS * streams * w->servers_count, -INFINITY);
    FILL(answered, w->servers_count, -INFINITY);
    for (int i = 0; i < 256; i++)
        index[i] = -1;
    int64_t base = 0, late = draw(2);
    for (int64_t s = 0; s < streams; s++) {
        int64_t kind = draw(8);
        bases[s] = base;
        masks[s] = 2 * windows[s] - 1;
        nodes[s] = 10 + s;
        senders[s] = kind & 1;
        priorities[s] = kind >> 1 & 1;
        index[3 * s + 1] = s;
        common[s] = (struct header){
            .version_op = VERSION << 4 | CONTRIBUTE,
            .job = two(JOB),
            .epoch = two(EPOCH),
            .stream = (uint8_t)(3 * s + 1),
            .sender = (uint8_t)senders[s],
            .workers = two(1),
            .node = two((uint16_t)nodes[s]),
        };
        base += 2 * windows[s];
        // Some begin shortly before sequence numbers do from 0 again.
        starting[s] = w->left[s] = w->next[s] = late ? (1ll << 32) - 2 : 0;
        w->limits[s] = kind & 4 ? windows[s] : 1 + windows[s] / 2;
        w->trip_ends[s] = w->left[s] + w->limits[s];
        w->queues[s].entries = exact(0);
    }
}

static int64_t moves; // chunks that change their server after each round

static void make_chunks(void) {
    int64_t chunks = 1 + draw(MOST_CHUNKS), history = draw(4);
    moves = draw(chunks + 1);
    int64_t held = w->optimizes ? chunks : 0;
    MAKE(contacted, chunks);
    MAKE(first, chunks);
    MAKE(after, chunks * w->depth);
    MAKE(folded, chunks);
    MAKE(last_headers, held);
    MAKE(last_words, 4 * held * w->width);
    FILL(reported, chunks * w->depth, UNREPORTED);
    FILL(held_first, chunks, -1);
    struct peer *servers = MAKE(servers, w->servers_count);
    for (int64_t i = 0; i < w->servers_count; i++)
        servers[i] = (struct peer){(uint32_t)(99 + i), 4000};
    MAKE(responses, w->servers_count);
    for (int64_t i = 0; i < MOST_CHUNKS; i++)
        begun[i] = preset[i] = -1;
    for (int64_t i = 0; i < chunks; i++) {
        // Some continue what was before: resume() and restore() in protocol/exponents.py.
        bool known = history & 1 && i % 2 && w->depth == 1;
        int exponent = known ? 3 + (int)i : 0;
        w->contacted[i] = known || w->is_asynchronous;
        w->first[i] = w->after[i * w->depth] = (int16_t)exponent;
        begun[i] = preset[i] = w->folded[i] = known && history & 2 ? 2 : 0;
        preset_exponent[i] = first_exponent[i] = exponent;
    }
}

static void begin(void) {
    w = exact(sizeof *w);
    memset(w, 0, sizeof *w);
    blocks_length = 0;
    memset(numbers, 0, sizeof numbers);
    memset(counted, 0, sizeof counted);
    count = orders = delivered = moved_direct = contributions = queries = reports = 0;
    now = following = 1;
    mode = draw(MODES);
    w->streams = 1 + draw(MOST_STREAMS);
    w->servers_count = 1 + draw(MOST_SERVERS);
    w->width = draw(2) * MOST_LANES;
    w->world = 1 + draw(4);
    w->rank = draw(w->world);
    w->depth = 1 + draw(3);
    w->exponent_headroom = draw(3);
    w->job = JOB;
    w->epoch = EPOCH;
    w->optimizes = mode == OPTIMIZER;
    w->is_asynchronous = mode == ASYNCHRONOUS;
    w->pulls = mode == PULLED;
    w->adapts = draw(2);
    w->adapt = adapt;
    w->sum_digits = 30;
    w->finest_scale = 149;
    w->least_digits = 8;
    w->least_exponent = -126;
    w->most_exponent = 127;
    w->rate = draw(2) * 8e6;
    w->backlog = 1e-4 * (double)(1 + draw(8));
    w->clear = -INFINITY;
    w->host = draw(2) ? four((uint32_t)(99 + draw(w->servers_count))) : 0;
    w->small = SMALL;
    w->large = w->width ? LARGE : SMALL;
    w->least = 0.001;
    w->most = 0.1;
    w->soonest = INFINITY;
    w->submissions = places;
    w->since_loss = w->memory = draw(2) ? 4096 : 5;
    for (int64_t s = 0; s < w->streams; s++) {
        windows[s] = 1 << draw(4);
        w->rows += 2 * windows[s];
    }
    make_rows();
    make_streams();
    make_chunks();
}

static void end(void) {
    for (int64_t s = 0; s < w->streams; s++)
        free((void *)(uintptr_t)w->queues[s].entries);
    for (int i = 0; i < blocks_length; i++) {
        free(blocks[i].at);
        free(blocks[i].copy);
        free(blocks[i].other);
    }
    for (int64_t i = 0; i < count; i++) {
        if (numbers[i].values != numbers[i].sums)
            free(numbers[i].sums);
        free(numbers[i].values);
    }
    free(w);
}

// ---------------------------------------------------------------------------------------------
// Submissions: hosts/worker/chunk_queues.py

static void push(int64_t stream, const struct entry *entry) {
    struct queue *queue = &w->queues[stream];
    int64_t pending = queue->tail - queue->head;
    struct entry *kept = exact((size_t)(pending + 1) * sizeof *kept);
    memcpy(kept, queue->entries + queue->head, (size_t)pending * sizeof *kept);
    kept[pending] = *entry;
    free((void *)(uintptr_t)queue->entries);
    *queue = (struct queue){kept, 0, pending + 1};
    w->incomplete++;
    w->moved = 1;
}

// A chunk's own exponent and flags: chunk_exponents() in protocol/payloads.py.
static void measure(struct entry *entry, const float *values) {
    float largest = 0;
    entry->own = NO_EXPONENT;
    if (w->is_asynchronous) {
        entry->own = 0;
        return;
    }
    for (int64_t j = 0; j < w->width; j++)
        if (isfinite(values[j]))
            largest = fmaxf(largest, fabsf(values[j]));
        else
            entry->unfit = NONFINITE;
    int exponent;
    frexpf(largest, &exponent);
    if (exponent > 127)
        entry->unfit |= OVERFLOW;
    if (largest > 0)
        entry->own = (int16_t)(exponent > 127 ? 127 : exponent < -126 ? -126 : exponent);
}

static void add(struct entry entry, int64_t kind) {
    int64_t stream = entry.chunk % w->streams;
    struct number *number = &numbers[count];
    size_t size = 4 * (size_t)w->width;
    number->values = exact(size);
    number->sums = kind & 1 ? exact(size) : number->values;
    for (int64_t j = 0; j < w->width; j++) {
        int scale = (int[]){0, 0, 1, -6, 11, -149, 122, 127}[kind >> 1 & 7];
        number->values[j] = ldexpf((float)(kind % 7 - 3 + j), scale);
        if (kind >= 240 && j == 1)
            number->values[j] = kind & 1 ? NAN : INFINITY;
    }
    uint64_t before = 4 * (uint64_t)w->width * (uint64_t)entry.row; // each is a submission
    entry.submission = (int32_t)count;
    places[count] = (struct submission){(uint64_t)(uintptr_t)number->values - before,
                                        (uint64_t)(uintptr_t)number->sums - before};
    if (kind & 2) { // rows of values wherever they are
        scattered[count] = (uint64_t)(uintptr_t)number->values;
        uintptr_t table = (uintptr_t)&scattered[count] - sizeof *scattered * (uintptr_t)entry.row;
        places[count].values_at = 0;
        places[count].scattered = (const uint64_t *)table;
    }
    measure(&entry, number->values);
    if (entry.exponent_round)
        entry.unfit = 0;
    entry.order = orders++;
    number->entry = entry;
    number->stream = stream;
    number->seq = (uint32_t)(starting[stream] + counted[stream]);
    numbered[stream][counted[stream]++] = number;
    count++;
    push(stream, &entry);
}

static void submit(void) {
    int64_t n = 1 + draw(4), chunk = draw(MOST_CHUNKS), contacting[MOST_CHUNKS] = {0};
    for (int64_t i = 0; i < n && count + 2 <= MOST_NUMBERS; i++, chunk++) {
        int64_t one = chunk % MOST_CHUNKS, kind = draw(256);
        if (begun[one] < 0)
            continue;
        struct entry entry = {
            .chunk = (int32_t)one, .round = (int32_t)begun[one]++, .row = (int32_t)i};
        int64_t turn = one + (one < moves ? entry.round : 0);
        entry.server = (uint16_t)(turn % w->servers_count);
        // Ticket: of the chunk's data, which follows its exponent round.
        contacting[one] = entry.round == 0 && !w->contacted[one];
        entry.ticket = count + contacting[one];
        if (contacting[one]) {
            entry.exponent_round = true;
            add(entry, kind);
            entry.exponent_round = false;
        }
        entry.lanes = MOST_LANES;
        add(entry, kind);
    }
}

// ---------------------------------------------------------------------------------------------
// What is right

// The exponent after a round: protocol/exponents.py.
static int exponent_after(int64_t chunk, int64_t round) {
    if (round < preset[chunk])
        return preset_exponent[chunk];
    int found = found_exponents[chunk][round];
    if (found == NO_EXPONENT)
        return round ? exponent_after(chunk, round - 1) : first_exponent[chunk];
    found += (int)w->exponent_headroom;
    return found > 127 ? 127 : found < -126 ? -126 : found;
}

static int exponent_of(const struct number *number) {
    int64_t chunk = number->entry.chunk, round = number->entry.round;
    int64_t source = round - w->depth > 0 ? round - w->depth : 0;
    if (number->entry.exponent_round)
        return 0;
    return round ? exponent_after(chunk, source) : first_exponent[chunk];
}

static int scale(int exponent) {
    int digits = 30 - (w->world > 2 ? 2 : w->world > 1 ? 1 : 0) - exponent;
    return digits < 149 ? digits : 149;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t sum_of_words(const struct packet *packet) {
    uint32_t sum = 0;
    for (int64_t j = 0; packet->full && j < w->width; j++)
        sum += four(packet->words[j]);
    return sum;
}

static bool is_flagged(const struct header *header) {
    return header->flags & (OVERFLOW | NONFINITE);
}

// The result of what all workers have sent for a number.
static struct packet result_of(const struct number *number, bool direct) {
    struct packet result = number->sent[direct];
    struct header *header = &result.header;
    uint32_t hash = chunk_hash(header) * (direct ? 1 : (uint32_t)w->world);
    header->version_op = VERSION << 4 | RESULT;
    header->workers = two((uint16_t)w->world);
    header->node = two(3);
    result.full = carries_payload(header);
    for (int64_t j = 0; result.full && j < w->width; j++) {
        float parameter = (float)(number->entry.order + j);
        if (w->optimizes || w->is_asynchronous)
            result.words[j] = four(bits_of(parameter));
        else if (direct)
            result.words[j] = four(bits_of((float)w->world * float_of(four(result.words[j]))));
        else
            result.words[j] = four((uint32_t)w->world * four(result.words[j]));
    }
    header->checksum = four(hash + sum_of_words(&result));
    return result;
}

static void check_contribution(struct number *number, const struct packet *packet) {
    const struct entry *entry = &number->entry;
    const struct header *header = &packet->header;
    struct header expected = w->common[number->stream];
    bool direct = header->flags & DIRECT;
    int flags = entry->unfit, exponent = exponent_of(number);
    must(direct ? !entry->exponent_round : !w->is_asynchronous, "number %u is DIRECT", number->seq);
    must(!direct || w->is_asynchronous || number->was_sent[0], "number %u is DIRECT at first",
         number->seq);
    if (!entry->exponent_round && !w->is_asynchronous &&
        (entry->own > exponent || (w->optimizes && entry->round == 0)))
        flags |= OVERFLOW;
    expected.flags = (uint8_t)(flags | (direct ? DIRECT : 0) |
                               (number->was_sent[direct] ? RETRANSMIT : 0));
    expected.seq = four(number->seq);
    expected.chunk = four((uint32_t)entry->chunk);
    expected.exponent = (int8_t)exponent;
    expected.max_exponent = (int8_t)entry->own;
    expected.lanes = two(entry->lanes);
    expected.children = w->is_asynchronous ? four((uint32_t)(entry->round + 1)) : 0;
    if (direct) {
        expected.node = 0;
        expected.sender = (uint8_t)w->rank;
    }
    must(packet->full == carries_payload(header), "number %u: full is %d", number->seq,
         packet->full);
    expected.checksum = four(chunk_hash(&expected) + sum_of_words(packet));
    must(!memcmp(header, &expected, sizeof expected),
         "number %u: flags %x %x, exponent %d %d, checksum %x %x", number->seq, header->flags,
         expected.flags, header->exponent, expected.exponent, header->checksum, expected.checksum);
    for (int64_t j = 0; j < w->width; j++) {
        float value = number->values[j];
        uint32_t word = 0;
        if (packet->full)
            word = direct ? bits_of(value)
                          : (uint32_t)(int32_t)rint(ldexp((double)value, scale(exponent)));
        must(four(packet->words[j]) == word, "number %u: %x instead of %x", number->seq,
             four(packet->words[j]), word);
    }
    if (!number->was_sent[direct])
        number->sent[direct] = *packet;
    number->was_sent[direct] = true;
    contributions++;
}

static void check_query(const struct number *number, const struct header *header) {
    struct header expected = w->common[number->stream];
    bool direct = header->flags & DIRECT;
    must(number->was_sent[direct], "number %u is probed before it is sent", number->seq);
    expected.version_op = VERSION << 4 | QUERY;
    expected.seq = four(number->seq);
    expected.chunk = four((uint32_t)number->entry.chunk);
    expected.children = w->is_asynchronous ? four((uint32_t)(number->entry.round + 1)) : 0;
    if (direct) {
        expected.flags = DIRECT;
        expected.node = 0;
        expected.sender = (uint8_t)w->rank;
    }
    must(!memcmp(header, &expected, sizeof expected), "a wrong QUERY of number %u", number->seq);
    queries++;
}

static struct number *number_of(int64_t stream, uint32_t seq) {
    uint32_t at = seq - (uint32_t)starting[stream];
    return at < counted[stream] ? numbered[stream][at] : NULL;
}

static const struct peer *server_of(const struct number *number) {
    return &w->servers[number->entry.server];
}

// A packet that leaves: it must be what the protocol says for its number.
static struct number *check_departure(const struct packet *packet) {
    const struct header *header = &packet->header;
    int64_t stream = w->stream_index[header->stream];
    struct number *number = stream < 0 ? NULL : number_of(stream, four(header->seq));
    must(number && !number->complete, "a packet leaves for no open number");
    int64_t at = (uint32_t)(number->seq - (uint32_t)starting[stream]) - windows[stream];
    must(at < 0 || numbered[stream][at]->answered, "number %u is sent before the result of %u",
         number->seq, number->seq - (uint32_t)windows[stream]);
    must(!memcmp(&packet->peer, server_of(number), sizeof packet->peer),
         "number %u goes to another server", number->seq);
    if (op_of(header) == QUERY)
        check_query(number, header);
    else
        check_contribution(number, packet);
    return number;
}

// A sum that has arrived: the words that are kept for it, and what became of them.
static void check_sum(struct number *number, int64_t row) {
    const struct header *header = &w->results[row];
    bool direct = header->flags & DIRECT;
    for (int64_t j = 0; j < w->width; j++) {
        uint32_t word;
        memcpy(&word, w->words + 4 * (row * w->width + j), sizeof word);
        word = four(word);
        float expected = float_of(word);
        if (!direct && !w->optimizes)
            expected = (float)ldexp((double)(int32_t)word, -scale(w->exponent[row]));
        must(!memcmp(&number->sums[j], &expected, sizeof expected), "number %u: %g instead of %g",
             number->seq, (double)number->sums[j], (double)expected);
        must(number->forged || word == four(result_of(number, direct).words[j]),
             "number %u has a sum of other words", number->seq);
    }
}

static void take_sums(void) {
    for (int64_t i = 0; i < count; i++) {
        struct number *number = &numbers[i];
        int64_t chunk = number->entry.chunk, at = (uint32_t)(number->seq -
                                                             (uint32_t)starting[number->stream]);
        int64_t row = row_of(w, number->stream, starting[number->stream] + at);
        if (number->complete || w->seq[row] != number->seq || w->stage[row] != DONE ||
            starting[number->stream] + at >= w->next[number->stream])
            continue;
        number->complete = true;
        must(number->answered, "number %u is complete without a result", number->seq);
        int found = w->results[row].max_exponent;
        if (number->entry.exponent_round) {
            first_exponent[chunk] = found == NO_EXPONENT ? 0 : found;
            continue;
        }
        found_exponents[chunk][number->entry.round] = found;
        check_sum(number, row);
    }
    for (int64_t i = 0; i < w->sums_length; i++) {
        const struct sum *sum = &w->sums[i];
        must(sum->ticket >= 0 && sum->ticket < count, "a sum of ticket %ld", (long)sum->ticket);
        struct number *number = &numbers[sum->ticket];
        const struct entry *entry = &number->entry;
        must(!number->reported && number->complete && !entry->exponent_round,
             "the sum of number %u is reported", number->seq);
        must(entry->chunk == sum->chunk && entry->row == sum->row &&
                 entry->submission == sum->submission,
             "the sum of number %u has another name", number->seq);
        number->reported = true;
        reports++;
    }
    for (int64_t i = 0; i < count; i++)
        must(numbers[i].reported == (numbers[i].complete && !numbers[i].entry.exponent_round),
             "the sum of number %u is not reported", numbers[i].seq);
    w->sums_length = 0;
}

static void take_failures(void) {
    for (int64_t i = 0; i < w->failed_length; i++) {
        const struct failure *failure = &w->failed[i];
        struct number *number = number_of(failure->stream, failure->seq);
        must(number && number->entry.chunk == failure->chunk &&
                 number->entry.exponent_round == failure->exponent_round,
             "a failure of no number");
        must(number->bad > 1 && !number->failed, "number %u has failed", number->seq);
        number->failed = true;
    }
    w->failed_length = 0;
}

// ---------------------------------------------------------------------------------------------
// What worker.h says of the state

static void check_row(int64_t row, int64_t *open) {
    int64_t stream = w->stream[row], number = w->next[stream] - 1;
    number -= (number - (row - w->bases[stream])) & w->masks[stream]; // the last of this row
    bool is_open = number >= w->left[stream], waits;
    if (number < starting[stream]) {
        must(w->stage[row] == EMPTY, "row %ld had no number", (long)row);
        return;
    }
    must(w->seq[row] == (uint32_t)number, "row %ld has number %u", (long)row, w->seq[row]);
    must(is_open ? w->stage[row] != EMPTY : w->stage[row] == DONE, "row %ld is in stage %d",
         (long)row, w->stage[row]);
    waits = w->stage[row] == WAITING || w->stage[row] == DIRECTLY;
    must(w->due[row] + in_flight(w, row) == waits, "row %ld: stage %d, due %d, deadline %g",
         (long)row, w->stage[row], w->due[row], w->deadline[row]);
    must(!w->probe_pending[row] || in_flight(w, row), "row %ld is to be probed", (long)row);
    must(!isnan(w->deadline[row]) && w->soonest <= deadline_of(w, row),
         "row %ld has its deadline at %g, the first is at %g", (long)row, deadline_of(w, row),
         w->soonest);
    *open += w->stage[row] != DONE;
}

static void check_heap(void) {
    must(w->heap_length <= 2 * w->rows, "%ld rows are due", (long)w->heap_length);
    bool there[2 * MOST_STREAMS * LARGEST_WINDOW] = {0};
    for (int64_t i = 0; i < w->heap_length; i++) {
        const struct due *one = &w->heap[i], *above = &w->heap[i ? (i - 1) / 2 : 0];
        must(one->row >= 0 && one->row < w->rows, "row %ld is due", (long)one->row);
        must(one->rank == above->rank ? one->order >= above->order : one->rank > above->rank,
             "row %ld is behind a later one", (long)one->row);
        if (one->order == w->entry[one->row].order)
            there[one->row] = true;
    }
    for (int64_t row = 0; row < w->rows; row++)
        must(!w->due[row] || there[row], "row %ld is not in the heap", (long)row);
}

static void check_held(void) {
    int64_t held = 0;
    for (int64_t chunk = 0; chunk < MOST_CHUNKS && begun[chunk] >= 0; chunk++)
        for (int64_t row = w->held_first[chunk]; row >= 0; row = w->held_next[row]) {
            int64_t round = w->entry[row].round, source = round > w->depth ? round - w->depth : 0;
            must(w->stage[row] == HELD && w->entry[row].chunk == chunk, "row %ld is held",
                 (long)row);
            must(round ? w->folded[chunk] <= source : !w->contacted[chunk],
                 "row %ld is held in vain", (long)row);
            must(++held <= w->rows, "a list of held rows is a ring");
        }
    for (int64_t row = 0; row < w->rows; row++)
        held -= w->stage[row] == HELD;
    must(!held, "%ld rows are in lists and not held", (long)held);
}

static void check_counts(void) {
    const struct counts *c = &w->counts;
    int64_t taken = c->completed + c->completed_direct + c->initial + c->exponent_rounds;
    must(c->completed + c->completed_direct + c->initial == reports, "%ld sums are reported",
         (long)reports);
    must(c->sent == contributions && c->queries == queries, "%ld packets and %ld queries left",
         (long)contributions, (long)queries);
    int64_t met = taken + c->states + c->duplicates + c->wrong_checksum + c->foreign + c->stale +
                  c->other_chunk + c->wrong_source + c->unexpected + c->unasked +
                  c->wrong_workers + c->wrong_lanes + c->wrong_exponent;
    // Not counted: sums that went DIRECT, and results announced.
    must(met <= delivered && (w->pulls || met + moved_direct >= delivered),
         "%ld packets arrived, %ld are counted", (long)delivered, (long)met);
}

static void check_state(void) {
    int64_t pending = 0, open = 0;
    take_sums();
    take_failures();
    must(!w->error, "an exception");
    for (int64_t row = 0; row < w->rows; row++) {
        check_row(row, &open);
        pending += w->probe_pending[row];
    }
    must(pending == w->pending, "%ld rows are to be probed, not %ld", (long)pending,
         (long)w->pending);
    for (int64_t s = 0; s < w->streams; s++) {
        int64_t backed_off = 0, waiting = w->queues[s].tail - w->queues[s].head;
        for (int64_t row = w->bases[s]; row <= w->bases[s] + w->masks[s]; row++)
            backed_off += probing_of(w, row)->backoff > 0;
        must(backed_off == w->backed_off[s], "%ld rows have a backoff, not %ld", (long)backed_off,
             (long)w->backed_off[s]);
        must(w->left[s] <= w->next[s] && w->next[s] <= w->left[s] + windows[s],
             "numbers %ld to %ld are open", (long)w->left[s], (long)w->next[s]);
        must(w->next[s] + waiting == starting[s] + counted[s], "%ld numbers entered",
             (long)w->next[s]);
        must(w->timeouts[s] >= w->least && w->timeouts[s] <= w->most, "a timeout of %g s",
             w->timeouts[s]);
        open += waiting;
    }
    must(open == w->incomplete, "%ld numbers are open, not %ld", (long)open, (long)w->incomplete);
    must(w->lost >= 0 && w->lost <= 1, "a share of %g is lost", w->lost);
    check_heap();
    check_held();
    check_counts();
}

// ---------------------------------------------------------------------------------------------
// Steps

// Time passes, in whole nanoseconds: the clock of virtual time.
static void pass(double seconds) { now = rint((now + seconds) * SECOND) / SECOND; }

static void pass_until(double time) {
    if (isfinite(time) && time > now)
        now = ceil(time * SECOND) / SECOND;
}

static struct departures make_room(int64_t room) {
    return (struct departures){
        .packets = exact((size_t)room * (sizeof(struct header) + 4 * (size_t)w->width)),
        .full = exact((size_t)room * sizeof(bool)),
        .peers = exact((size_t)room * sizeof(struct peer)),
        .times = exact((size_t)room * sizeof(double)),
        .stride = (int64_t)sizeof(struct header) + 4 * w->width,
        .room = room,
    };
}

static void free_room(struct departures *out) {
    free(out->packets);
    free(out->full);
    free(out->peers);
    free(out->times);
}

static struct packet departure(const struct departures *out, int64_t i) {
    struct packet packet = {.peer = out->peers[i], .full = out->full[i]};
    memcpy(&packet.header, out->packets + i * out->stride, sizeof packet.header);
    if (op_of(&packet.header) == CONTRIBUTE)
        memcpy(packet.words, out->packets + i * out->stride + sizeof packet.header,
               4 * (size_t)w->width);
    return packet;
}

// Looks at what has left in a poll: probes, then what is due, each in order.
static void depart(const struct departures *out, int64_t first, struct number **whose) {
    const struct number *before = NULL;
    int last = QUERY;
    must(out->count <= out->room, "%ld packets leave", (long)out->count);
    for (int64_t i = first; i < out->count; i++) {
        struct packet packet = departure(out, i);
        struct number *number = check_departure(&packet);
        int op = op_of(&packet.header);
        must(op == last || op == CONTRIBUTE, "number %u is probed too late", number->seq);
        if (before && op == last) {
            int64_t rank = w->priorities[number->stream];
            int64_t other = w->priorities[before->stream];
            must(rank == other ? number->entry.order > before->entry.order : rank < other,
                 "number %u leaves too late", number->seq);
        }
        last = op;
        before = number;
        if (whose)
            whose[i] = number;
    }
}

// Polls; returns how many packets leave, and whose they are.
static int64_t poll_at(double time, struct number **whose) {
    struct departures out = make_room(worker_prepare(w, time));
    int64_t waits = 0, window = 0;
    worker_poll(w, time, &out);
    depart(&out, 0, whose);
    following = out.following;
    for (int64_t s = 0; s < w->streams; s++)
        window += windows[s];
    for (int64_t row = 0; row < w->rows; row++)
        waits += w->stage[row] == WAITING || w->stage[row] == DIRECTLY;
    must(out.count <= window, "%ld packets leave at once", (long)out.count);
    for (int64_t i = 0; i < out.count; i++)
        must(out.times[i] == time, "a packet is handed over at %g", out.times[i]);
    must(following > time && (!waits || isfinite(following)), "the next poll at %g is at %.9g",
         time, following);
    if (w->rate > 0)
        must(w->clear <= time + w->backlog + LARGE * 8 / w->rate + 1e-9 || !out.count,
             "the link is busy for %g s", w->clear - time);
    int64_t sent = out.count;
    free_room(&out);
    return sent;
}

struct batch {
    struct arrivals a;
    struct header *headers;
    struct peer *peers;
    uint8_t *words;
    bool *full;
};

static struct batch make_batch(const struct packet *packets, int64_t n) {
    int64_t stride = 4 * w->width + 3; // nothing is aligned
    struct batch batch = {
        .headers = exact((size_t)n * sizeof *batch.headers),
        .peers = exact((size_t)n * sizeof *batch.peers),
        .words = exact((size_t)(n * stride - 3)),
        .full = exact((size_t)n),
    };
    for (int64_t i = 0; i < n; i++) {
        batch.headers[i] = packets[i].header;
        batch.peers[i] = packets[i].peer;
        batch.full[i] = packets[i].full;
        memcpy(batch.words + i * stride, packets[i].words, 4 * (size_t)w->width);
        if (!packets[i].full) // then it is what was there before
            memset(batch.words + i * stride, 0xAA, 4 * (size_t)w->width);
    }
    batch.a = (struct arrivals){.headers = batch.headers, .peers = batch.peers,
                                .words = batch.words, .full = batch.full, .stride = stride,
                                .count = n};
    w->places = exact((size_t)n * sizeof *w->places);
    w->kinds = exact((size_t)n * sizeof *w->kinds);
    w->taken = exact((size_t)n * sizeof *w->taken);
    w->sums = exact((size_t)n * sizeof *w->sums);
    return batch;
}

static void free_batch(struct batch *batch) {
    free(batch->headers);
    free(batch->peers);
    free(batch->words);
    free(batch->full);
    free(w->places);
    free(w->kinds);
    free(w->taken);
    free(w->sums);
}

// Notes what packets may lead to.
static void note_arrivals(const struct packet *packets, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const struct header *header = &packets[i].header;
        int64_t stream = w->stream_index[header->stream];
        struct number *number = stream < 0 ? NULL : number_of(stream, four(header->seq));
        delivered++;
        if (!number || op_of(header) != RESULT)
            continue;
        bool direct = header->flags & DIRECT;
        moved_direct += !direct && is_flagged(header);
        number->bad++;
        number->answered |= (direct || !is_flagged(header)) && two(header->job) == w->job &&
                            two(header->epoch) == w->epoch && two(header->workers) == w->world &&
                            four(header->chunk) == number->entry.chunk &&
                            !memcmp(&packets[i].peer, server_of(number), sizeof packets[i].peer);
    }
}

static void receive_at(double time, const struct packet *packets, int64_t n) {
    struct batch batch = make_batch(packets, n);
    int64_t *tickets = exact((size_t)n * sizeof *tickets);
    note_arrivals(packets, n);
    find_tickets(w, &batch.a, tickets);
    for (int64_t i = 0; i < n; i++) {
        const struct header *header = &packets[i].header;
        int64_t stream = w->stream_index[header->stream];
        struct number *number = stream < 0 ? NULL : number_of(stream, four(header->seq));
        must(tickets[i] == -1 || (number && number->entry.ticket == tickets[i]), "ticket %ld",
             (long)tickets[i]);
    }
    worker_receive(w, &batch.a, time);
    check_state();
    free(tickets);
    free_batch(&batch);
}

// Makes a packet for a number. What fields that no check covers say is drawn as well.
static struct packet make_packet(struct number *number) {
    int64_t kind = draw(10), change = draw(256), field = draw(14);
    bool direct = number->was_sent[1] && kind != 9;
    struct packet packet = {.peer = number->sent[direct].peer};
    if (number->was_sent[direct])
        packet = result_of(number, direct);
    struct header *header = &packet.header;
    if (!number->was_sent[direct]) {
        *header = w->common[number->stream];
        header->seq = four(number->seq);
        header->chunk = four((uint32_t)number->entry.chunk);
        packet.peer = *server_of(number);
        kind = kind == 8 ? 8 : 6;
    }
    if (kind == 4 && change & 1)
        header->flags |= ECN;
    if (kind == 5)
        header->flags |= change & 1 ? OVERFLOW : NONFINITE;
    if (kind == 6) {
        header->version_op = VERSION << 4 | STATE;
        header->flags = (uint8_t)((direct ? DIRECT : 0) | (change & 3) << 4);
        header->children = four(change & 4 ? UINT32_MAX : 0);
        header->node = two((uint16_t)(10 + (change >> 3 & 3)));
        header->sender = (uint8_t)(change >> 5);
    }
    if (kind == 7) {
        uint8_t *at[] = {
            &header->version_op, &header->flags, (uint8_t *)header + 3, (uint8_t *)header + 5,
            &header->stream, (uint8_t *)header + 11, (uint8_t *)header + 15,
            (uint8_t *)header + 21, (uint8_t *)&header->exponent,
            (uint8_t *)&header->max_exponent, (uint8_t *)header + 25, (uint8_t *)header + 29,
            (uint8_t *)packet.words, (uint8_t *)&packet.peer};
        *at[field] ^= (uint8_t)(change ? change : 1);
        // No check covers op and flags, and a number may have another one's result.
        number->forged |= field < 2;
    }
    if (kind == 8)
        for (size_t i = 0; i < sizeof *header; i++)
            ((uint8_t *)header)[i] = (uint8_t)draw(256);
    if (kind == 7 || kind == 8) {
        int64_t stream = w->stream_index[header->stream];
        struct number *other = stream < 0 ? NULL : number_of(stream, four(header->seq));
        if (other && (kind == 8 || other != number))
            other->forged = true;
    }
    packet.full = carries_payload(header);
    return packet;
}

// Draws packets, most for numbers that are open.
static int64_t draw_packets(struct packet *packets) {
    int64_t n = 1 + draw(MOST_BATCH);
    for (int64_t i = 0; i < n; i++) {
        int64_t stream = draw(w->streams), back = draw(2 * LARGEST_WINDOW + 4);
        int64_t at = w->left[stream] - starting[stream] + back - 4;
        if (!counted[stream])
            return i;
        at = at < 0 ? 0 : at < counted[stream] ? at : counted[stream] - 1;
        packets[i] = make_packet(numbered[stream][at]);
    }
    return n;
}

static void arrive(void) {
    struct packet packets[MOST_BATCH];
    int64_t n = draw_packets(packets);
    if (n)
        receive_at(now, packets, n);
}

// Polls, and lets the right results arrive of what leaves.
static int64_t exchange(double later) {
    struct number *whose[2 * MOST_STREAMS * LARGEST_WINDOW];
    struct packet packets[MOST_STREAMS * LARGEST_WINDOW];
    int64_t n = poll_at(now, whose);
    check_state();
    for (int64_t i = 0; i < n; i++)
        packets[i] = result_of(whose[i], whose[i]->was_sent[1]);
    pass(later);
    if (n)
        receive_at(now, packets, n);
    return n;
}

// Takes results from elsewhere: lacking() in hosts/worker/epoch_transfer.py.
static void transfer(void) {
    struct packet packets[MOST_STREAMS * LARGEST_WINDOW];
    int64_t n = 0, rows[MOST_STREAMS * LARGEST_WINDOW], mask = draw(256), failed[24];
    for (int64_t row = 0; row < w->rows; row++) {
        struct number *number = number_of(w->stream[row], w->seq[row]);
        bool direct = w->stage[row] == DIRECTLY;
        if ((w->stage[row] != WAITING && !direct) || !w->progress[row].sent ||
            !(mask >> row % 8 & 1))
            continue;
        struct packet packet = result_of(number, direct);
        if (!direct && is_flagged(&packet.header))
            continue; // no result
        rows[n] = row;
        packets[n++] = packet;
    }
    if (!n)
        return;
    struct batch batch = make_batch(packets, n);
    note_arrivals(packets, n);
    check_results(w, &batch.a, rows, failed);
    for (int64_t i = 0; i < n; i++)
        must(!failed[i], "a right result fails check %ld", (long)failed[i]);
    complete_rows(w, rows, &batch.a);
    check_state();
    free_batch(&batch);
}

// ---------------------------------------------------------------------------------------------
// Packets with times: worker_run() must do what one call after the other does

static void keep_state(struct worker *kept, bool other) {
    *kept = *w;
    for (int i = 0; i < blocks_length; i++)
        memcpy(other ? blocks[i].other : blocks[i].copy, blocks[i].at, blocks[i].size);
    for (int64_t i = 0; !other && i < count; i++)
        memcpy(numbers[i].kept, numbers[i].values, 4 * (size_t)w->width);
}

static void restore_state(const struct worker *kept) {
    *w = *kept;
    for (int i = 0; i < blocks_length; i++)
        memcpy(blocks[i].at, blocks[i].copy, blocks[i].size);
    for (int64_t i = 0; i < count; i++) // sums may have replaced them
        memcpy(numbers[i].values, numbers[i].kept, 4 * (size_t)w->width);
}

static void same_state(const struct worker *kept) {
    struct worker held = *kept;
    held.soonest = w->soonest; // a bound in one, exact in the other
    held.sums_length = w->sums_length; // they were taken
    must(!memcmp(&held, w, sizeof held), "the worker's state differs after a run");
    for (int i = 0; i < blocks_length; i++)
        must(blocks[i].padded || !memcmp(blocks[i].other, blocks[i].at, blocks[i].size),
             "array %d differs after a run", i);
}

// Does what worker_run() has done, call by call: it took so many packets, sent `total`, and stopped
// before the poll at `until`. Returns the time of the next poll.
static double step_by_step(const struct batch *batch, const struct packet *packets, int64_t taken,
                           double until, int64_t total, const struct driver *driver,
                           struct departures *out) {
    double time = NAN, next, wake;
    for (int64_t first = 0, last; first < taken; first = last) {
        time = batch->a.times[first];
        for (last = first + 1; last < batch->a.count && batch->a.times[last] == time;)
            last++;
        struct arrivals some = batch->a;
        some.headers += first;
        some.peers += first;
        some.full += first;
        some.words += first * some.stride;
        some.count = last - first;
        note_arrivals(packets + first, last - first);
        worker_receive(w, &some, time);
        take_sums();
        if (w->failed_length || (last == batch->a.count && !driver->polls_last)) {
            must(last == taken, "a run took more packets");
            return NAN;
        }
        next = last < batch->a.count ? batch->a.times[last] : INFINITY;
        wake = time;
        for (bool polled = false; wake < next; polled = true) {
            bool there = polled ? wake == until && out->count == total : isnan(until);
            if (last == taken && there) {
                worker_prepare(w, wake); // it did not fit
                return polled ? wake : NAN;
            }
            int64_t before = out->count, most = worker_prepare(w, wake);
            must(out->count + most <= out->room, "no room");
            worker_poll(w, wake, out);
            depart(out, before, NULL);
            double wait = fmax(out->count > before ? 0 : driver->tick, out->following - wake);
            wake = isfinite(wait) ? (rint(wake * driver->second) + rint(wait * driver->second)) /
                                        driver->second
                                  : INFINITY;
            if (last == batch->a.count)
                return wake;
        }
    }
    wrong("a run took another prefix");
}

static void check_queue(const struct departures *out, const struct driver *driver) {
    double waiting = driver->waiting, since = driver->since;
    for (int64_t i = 0; i < out->count; i++) {
        waiting = fmax(0, waiting - driver->pace * (out->times[i] - since));
        since = out->times[i];
        waiting += out->full[i] ? (double)w->large : (double)w->small;
        must(waiting <= driver->bytes, "%g bytes are in a queue of %g", waiting, driver->bytes);
    }
}

static void run(void) {
    struct packet packets[MOST_BATCH];
    double times[MOST_BATCH] = {0};
    struct worker before, after;
    int64_t n = draw_packets(packets), room = draw(64), loose = draw(2), reported = reports;
    struct driver driver = {.second = SECOND, .tick = 1e-6, .pace = 1e6,
                            .bytes = 300 + 60 * (double)draw(32),
                            .waiting = 20 * (double)draw(8),
                            .polls_last = draw(2)};
    if (!n)
        return;
    for (int64_t i = 0; i < n; i++) {
        int64_t gap = draw(16);
        pass((gap < 4 ? 0 : gap < 12 ? 1e-5 : 1e-3) * (double)gap);
        times[i] = now;
    }
    driver.since = times[0];
    struct driver first = driver;
    struct batch batch = make_batch(packets, n);
    batch.a.times = times;
    struct departures out = make_room(room + loose * 128);
    keep_state(&before, false);
    int64_t taken = worker_run(w, &batch.a, &driver, &out);
    must(taken > 0 && taken <= n, "%ld packets are taken", (long)taken);
    keep_state(&after, true);
    restore_state(&before);
    struct departures same = make_room(out.count + 2 * w->rows);
    double until =
        step_by_step(&batch, packets, taken, out.following, out.count, &driver, &same);
    must(isnan(until) ? isnan(out.following) : until == out.following,
         "a run polls at %g instead of %g", out.following, until);
    must(out.count == same.count, "%ld packets leave a run, %ld else", (long)out.count,
         (long)same.count);
    for (int64_t i = 0; i < out.count; i++) {
        struct packet one = departure(&out, i), other = departure(&same, i);
        must(!memcmp(&one, &other, sizeof one) && out.times[i] == same.times[i],
             "packet %ld of a run differs", (long)i);
    }
    same_state(&after);
    must(reports == reported + after.sums_length, "a run reports %ld sums",
         (long)after.sums_length);
    check_queue(&out, &first);
    check_state();
    now = times[taken - 1];
    pass_until(out.following); // NaN: now
    following = now;
    if (w->prepared) // for this time
        poll_at(now, NULL);
    free_room(&out);
    free_room(&same);
    free_batch(&batch);
}

// ---------------------------------------------------------------------------------------------
// One input

static void step(void) {
    switch (draw(OPERATIONS)) {
    case SUBMIT:
        submit();
        break;
    case POLL:
        poll_at(now, NULL);
        break;
    case ARRIVE:
        arrive();
        break;
    case RUN:
        run();
        break;
    case PASS:
        pass(1e-4 * (double)draw(256));
        break;
    case WAKE:
        pass_until(following);
        poll_at(now, NULL);
        break;
    case TRANSFER:
        transfer();
        break;
    case EXCHANGE:
        exchange(1e-5 * (double)draw(256));
        break;
    }
    check_state();
}

// Answers everything: then all numbers get their results in finite time.
static void finish(void) {
    for (int64_t i = 0; w->incomplete; i++) {
        must(i < MOST_WORK, "%ld numbers get no result", (long)w->incomplete);
        if (!exchange(1e-4))
            pass_until(following);
    }
    for (int64_t i = 0; i < count; i++)
        must(numbers[i].complete, "number %u has no result", numbers[i].seq);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input = data;
    remaining = size;
    begin();
    for (int i = 0; i < MOST_STEPS && remaining; i++)
        step();
    finish();
    end();
    return 0;
}
