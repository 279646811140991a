// SPDX-License-Identifier: Apache-2.0
// Sizes of one build. The same sources give three data planes; BLOCKS is set on p4c's command line:
//   0   headers only: the whole state machine, but no payload is parsed, stored or summed. A payload of any length may
//       follow the header and stays with its packet: for experiments in which chunks only have to occupy the wire
//   4   1 KiB chunks, 256 lanes, fits MTU 1500
//   32  8 KiB chunks, 2048 lanes, for MTU 9000
#ifndef RACKHUB_CONFIG
#define RACKHUB_CONFIG

#ifndef BLOCKS
#define BLOCKS 4
#endif

// A block is one machine word of the data plane: 64 signed 32-bit lanes. With LANE_BY_LANE each lane is a word and a register
// of its own, to compare with: the same program, only summed as other data planes for BMv2 do it (benchmarks/forwarding/p4).
#define BLOCK_BITS 2048
#define BLOCK_BYTES 256

// FOR_EACH_BLOCK(X) expands X(0) .. X(BLOCKS-1). P4 has no loop over separately declared registers.
#define BLOCKS_4(X, a, b, c, d) X(a) X(b) X(c) X(d)
#if BLOCKS == 0
#define FOR_EACH_BLOCK(X)
#define SLOTS 65536
#elif BLOCKS == 4
#define FOR_EACH_BLOCK(X) BLOCKS_4(X, 0, 1, 2, 3)
#define SLOTS 8192  // 8 MiB of payload registers per switch
#elif BLOCKS == 32
#define FOR_EACH_BLOCK(X) \
    BLOCKS_4(X, 0, 1, 2, 3) BLOCKS_4(X, 4, 5, 6, 7) BLOCKS_4(X, 8, 9, 10, 11) BLOCKS_4(X, 12, 13, 14, 15) \
    BLOCKS_4(X, 16, 17, 18, 19) BLOCKS_4(X, 20, 21, 22, 23) BLOCKS_4(X, 24, 25, 26, 27) BLOCKS_4(X, 28, 29, 30, 31)
#define SLOTS 1024  // 8 MiB as well
#else
#error "BLOCKS must be 0, 4 or 32"
#endif

#define PORTS 512          // bit<9> port numbers
#define MAX_ROUTES 4096    // one per host and switch address: 1,024 workers, servers and switches
#define MAX_SOURCES 1024   // two per edge port
#define MAX_NODES 1024     // (job, epoch, stream) trees through one switch
#define MAX_CHILDREN 8192  // children of all those nodes

#endif
