// SPDX-License-Identifier: Apache-2.0
//
// Action profiles and selectors: actions that entries of tables share, either alone (members) or in
// groups from which a packet's hash chooses. An entry of such a table has SW_MEMBER or SW_GROUP as
// its action, and the number as its only argument.
//
// Members are an array by number, of equal size, `present` or not; groups an array of pointers by
// number, NULL or an immutable list of member numbers. Both grow by doubling. Numbers may dangle: a
// lookup of a missing member or group is NULL, and the entry does nothing.

#ifndef RACKHUB_ACTION_PROFILES_H
#define RACKHUB_ACTION_PROFILES_H

#include <stddef.h>
#include <stdint.h>

#define SW_MEMBER 0u
#define SW_GROUP 1u
#define SW_MOST_MEMBERS (1u << 24) // and groups

struct sw_profile_spec {
    uint32_t arg_words; // of the action with most
};

struct sw_member {
    uint32_t action;
    uint32_t present;
    uint64_t args[]; // [arg_words]
};

struct sw_choices {
    uint32_t count;
    uint32_t members[]; // may contain a member more than once
};

struct sw_profile {
    uint8_t *members; // struct sw_member, sw_member_stride() bytes each
    uint32_t member_room;
    struct sw_choices **groups;
    uint32_t group_room;
};

static inline size_t sw_member_stride(uint32_t words) {
    return sizeof(struct sw_member) + 8 * (size_t)words;
}

// Returns the member, or NULL. words: the profile's arg_words.
static inline const struct sw_member *sw_member_at(const struct sw_profile *profile,
                                                   uint64_t number, uint32_t words) {
    if (number >= profile->member_room) return 0;
    const struct sw_member *member =
        (const struct sw_member *)(profile->members + sw_member_stride(words) * number);
    return member->present ? member : 0;
}

// Returns the member of a group that a hash chooses; NULL if the group is empty.
static inline const struct sw_member *sw_member_of(const struct sw_profile *profile,
                                                   uint64_t group, uint32_t hash,
                                                   uint32_t words) {
    if (group >= profile->group_room) return 0;
    const struct sw_choices *choices = profile->groups[group];
    if (!choices || !choices->count) return 0;
    return sw_member_at(profile, choices->members[hash % choices->count], words);
}

#endif
