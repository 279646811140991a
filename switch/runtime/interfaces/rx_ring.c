// SPDX-License-Identifier: Apache-2.0
//
// A packet socket's receive ring: see rx_ring.h. The mapping ends with MARGIN bytes of private
// memory, since copies may read over the end of the last frame.

#define _GNU_SOURCE
#include "rx_ring.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rx_slots.h"

enum {
    LONG_SLOTS = 64,
    // Behind the last slot: copies in steps of up to 64 bytes may read over the end of a frame.
    MARGIN = 4096,
    // Cache lines that hold a slot's status and its frame's headers.
    HEAD_LINES = 4,
    ALL = 0x40000,
};

_Static_assert(RX_OFFLOAD_HEADER == sizeof(struct offload_header) && RX_ETHERNET == ETH_HLEN,
               "slots are as large as their headers need");

static int set(int socket, int name, const void *value, socklen_t size) {
    return setsockopt(socket, SOL_PACKET, name, value, size) < 0 ? -errno : 0;
}

static int set_number(int socket, int name, int value) {
    return set(socket, name, &value, sizeof value);
}

// Filters for this ring's frames: those of up to `most` bytes, or the others.
static int part(int socket, bool is_short, uint32_t most) {
    struct sock_filter code[] = {
        {BPF_LD | BPF_W | BPF_LEN, 0, 0, 0},
        {BPF_JMP | BPF_JGT | BPF_K, is_short ? 1 : 0, is_short ? 0 : 1, most},
        {BPF_RET | BPF_K, 0, 0, ALL},
        {BPF_RET | BPF_K, 0, 0, 0},
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) < 0 ? -errno
                                                                                          : 0;
}

static size_t ring_bytes(const struct rx_ring *ring) {
    return (size_t)ring->slots * ring->slot_bytes;
}

static int map(struct rx_ring *ring) {
    struct tpacket_req request = {
        .tp_block_size = RX_BLOCK_SLOTS * ring->slot_bytes,
        .tp_block_nr = ring->slots / RX_BLOCK_SLOTS,
        .tp_frame_size = ring->slot_bytes,
        .tp_frame_nr = ring->slots,
    };
    int error = set(ring->socket, PACKET_RX_RING, &request, sizeof request);
    if (error)
        return error;
    size_t bytes = ring_bytes(ring);
    uint8_t *memory = mmap(NULL, bytes + MARGIN, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -errno;
    ring->memory = memory;
    return mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, ring->socket, 0) ==
                   MAP_FAILED
               ? -errno
               : 0;
}

static int configure(struct rx_ring *ring, int index, bool is_short, uint32_t most) {
    int error = set_number(ring->socket, PACKET_VERSION, TPACKET_V2);
    if (!error)
        error = set_number(ring->socket, PACKET_VNET_HDR, 1);
    if (!error)
        error = set_number(ring->socket, PACKET_IGNORE_OUTGOING, 1);
    if (!error)
        error = set_number(ring->socket, PACKET_RESERVE, RX_RESERVE);
    if (!error)
        error = part(ring->socket, is_short, most);
    if (!error)
        error = map(ring);
    if (error)
        return error;
    struct packet_mreq membership = {.mr_ifindex = index, .mr_type = PACKET_MR_PROMISC};
    error = set(ring->socket, PACKET_ADD_MEMBERSHIP, &membership, sizeof membership);
    if (error)
        return error;
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET,
        .sll_protocol = htons(ETH_P_ALL),
        .sll_ifindex = index,
    };
    return bind(ring->socket, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
}

int rx_ring_open(struct rx_ring *ring, int index, uint32_t mtu, enum rx_lengths lengths) {
    bool is_short = lengths == RX_SHORT_FRAMES;
    uint32_t short_slot = rx_short_slot(mtu);
    *ring = (struct rx_ring){
        // Protocol 0: deaf until bound, so that nothing of another interface gets in.
        .socket = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0),
        .slot_bytes = is_short ? short_slot : rx_slot_for(RX_LONGEST),
        .slots = is_short ? rx_short_slots(mtu) : LONG_SLOTS,
    };
    if (ring->socket < 0)
        return -errno;
    int error = configure(ring, index, is_short, short_slot - RX_IN_FRONT);
    if (error)
        rx_ring_close(ring);
    return error;
}

void rx_ring_close(struct rx_ring *ring) {
    if (ring->memory)
        munmap(ring->memory, ring_bytes(ring) + MARGIN);
    if (ring->socket >= 0)
        close(ring->socket);
    *ring = (struct rx_ring){.socket = -1};
}

static struct tpacket2_hdr *slot(const struct rx_ring *ring, uint32_t number) {
    return (struct tpacket2_hdr *)(ring->memory +
                                   (size_t)(number & (ring->slots - 1)) * ring->slot_bytes);
}

bool rx_ring_ready(const struct rx_ring *ring) {
    uint32_t status = __atomic_load_n(&slot(ring, ring->next)->tp_status, __ATOMIC_ACQUIRE);
    return status & TP_STATUS_USER && ring->taken < ring->slots;
}

uint64_t rx_ring_time(const struct rx_ring *ring) {
    const struct tpacket2_hdr *one = slot(ring, ring->next);
    return one->tp_sec * UINT64_C(1000000000) + one->tp_nsec;
}

void rx_ring_take(struct rx_ring *ring, struct rx_frame *frame) {
    const struct tpacket2_hdr *one = slot(ring, ring->next++);
    ring->taken++;
    const uint8_t *following = (const uint8_t *)slot(ring, ring->next);
    for (int i = 0; i < HEAD_LINES; i++)
        __builtin_prefetch(following + (size_t)i * RX_LINE);
    frame->bytes = (uint8_t *)one + one->tp_mac;
    frame->length = one->tp_snaplen;
    frame->truncated = one->tp_snaplen < one->tp_len;
    memcpy(&frame->header, frame->bytes - sizeof frame->header, sizeof frame->header);
    frame->tagged = one->tp_status & TP_STATUS_VLAN_VALID;
    frame->tag = one->tp_vlan_tci;
    frame->tag_type = one->tp_status & TP_STATUS_VLAN_TPID_VALID ? one->tp_vlan_tpid : ETH_P_8021Q;
}

void rx_ring_give_back(struct rx_ring *ring) {
    for (; ring->taken; ring->taken--)
        __atomic_store_n(&slot(ring, ring->next - ring->taken)->tp_status, TP_STATUS_KERNEL,
                         __ATOMIC_RELEASE);
}

uint64_t rx_ring_drops(const struct rx_ring *ring) {
    struct tpacket_stats statistics;
    socklen_t size = sizeof statistics;
    if (getsockopt(ring->socket, SOL_PACKET, PACKET_STATISTICS, &statistics, &size) < 0)
        return 0;
    return statistics.tp_drops;
}
