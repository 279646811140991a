// SPDX-License-Identifier: Apache-2.0
#ifndef RACKHUB_LANES
#define RACKHUB_LANES

// FOR_EACH_LANE(X) expands X(0) .. X(63), in the order in which lanes are on the wire.
#define FOR_EACH_LANE(X) \
    X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) \
    X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) \
    X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23) \
    X(24) X(25) X(26) X(27) X(28) X(29) X(30) X(31) \
    X(32) X(33) X(34) X(35) X(36) X(37) X(38) X(39) \
    X(40) X(41) X(42) X(43) X(44) X(45) X(46) X(47) \
    X(48) X(49) X(50) X(51) X(52) X(53) X(54) X(55) \
    X(56) X(57) X(58) X(59) X(60) X(61) X(62) X(63)

// The same of lanes of a block: X(block, 0) .. X(block, 63).
#define FOR_EACH_LANE_OF(block, X) \
    X(block, 0) X(block, 1) X(block, 2) X(block, 3) X(block, 4) X(block, 5) X(block, 6) X(block, 7) \
    X(block, 8) X(block, 9) X(block, 10) X(block, 11) X(block, 12) X(block, 13) X(block, 14) X(block, 15) \
    X(block, 16) X(block, 17) X(block, 18) X(block, 19) X(block, 20) X(block, 21) X(block, 22) X(block, 23) \
    X(block, 24) X(block, 25) X(block, 26) X(block, 27) X(block, 28) X(block, 29) X(block, 30) X(block, 31) \
    X(block, 32) X(block, 33) X(block, 34) X(block, 35) X(block, 36) X(block, 37) X(block, 38) X(block, 39) \
    X(block, 40) X(block, 41) X(block, 42) X(block, 43) X(block, 44) X(block, 45) X(block, 46) X(block, 47) \
    X(block, 48) X(block, 49) X(block, 50) X(block, 51) X(block, 52) X(block, 53) X(block, 54) X(block, 55) \
    X(block, 56) X(block, 57) X(block, 58) X(block, 59) X(block, 60) X(block, 61) X(block, 62) X(block, 63)

// A block whose lanes are fields.
header block_h {
#define DECLARE_LANE(i) bit<32> lane##i;
    FOR_EACH_LANE(DECLARE_LANE)
#undef DECLARE_LANE
}
#define LAST_LANE lane63

#endif
