// SPDX-License-Identifier: Apache-2.0
//
// The control plane's access to action profiles (action_profiles.h). Lists of groups are allocated
// before and freed after the lock is held.

#include "action_profiles.h"

#include <stdlib.h>
#include <string.h>

#include "program.h"

static uint32_t grown(uint32_t room, uint32_t number) {
    room = room ? room : 16;
    while (room <= number) room *= 2;
    return room;
}

static int make_member_room(struct sw_profile *profile, uint32_t number, size_t stride) {
    if (number < profile->member_room) return 0;
    uint32_t room = grown(profile->member_room, number);
    uint8_t *members = realloc(profile->members, room * stride);
    if (!members) return SW_NO_MEMORY;
    memset(members + profile->member_room * stride, 0, (room - profile->member_room) * stride);
    profile->members = members;
    profile->member_room = room;
    return 0;
}

static int make_group_room(struct sw_profile *profile, uint32_t number) {
    if (number < profile->group_room) return 0;
    uint32_t room = grown(profile->group_room, number);
    struct sw_choices **groups = realloc(profile->groups, room * sizeof *groups);
    if (!groups) return SW_NO_MEMORY;
    memset(groups + profile->group_room, 0, (room - profile->group_room) * sizeof *groups);
    profile->groups = groups;
    profile->group_room = room;
    return 0;
}

int sw_member_set(struct sw *sw, uint32_t index, uint32_t number, uint32_t action,
                  const uint64_t *args) {
    if (index >= program_profile_count || number >= SW_MOST_MEMBERS) return SW_RANGE;
    uint32_t words = program_profiles[index].arg_words;
    struct sw_profile *profile = &sw->profiles[index];
    sw_lock_control(sw);
    int result = make_member_room(profile, number, sw_member_stride(words));
    if (!result) {
        struct sw_member *member =
            (struct sw_member *)(profile->members + sw_member_stride(words) * number);
        member->action = action;
        member->present = 1;
        if (words) memcpy(member->args, args, words * sizeof *args);
    }
    sw_unlock(sw);
    return result;
}

int sw_member_delete(struct sw *sw, uint32_t index, uint32_t number) {
    if (index >= program_profile_count) return SW_RANGE;
    struct sw_profile *profile = &sw->profiles[index];
    sw_lock_control(sw);
    struct sw_member *member =
        (struct sw_member *)sw_member_at(profile, number, program_profiles[index].arg_words);
    if (member) member->present = 0;
    sw_unlock(sw);
    return member ? 0 : SW_NOT_FOUND;
}

int sw_choices_set(struct sw *sw, uint32_t index, uint32_t number, const uint32_t *members,
                   uint32_t count) {
    if (index >= program_profile_count || number >= SW_MOST_MEMBERS) return SW_RANGE;
    struct sw_profile *profile = &sw->profiles[index];
    struct sw_choices *made = malloc(sizeof *made + count * sizeof *members), *old = NULL;
    if (!made) return SW_NO_MEMORY;
    made->count = count;
    if (count) memcpy(made->members, members, count * sizeof *members);
    sw_lock_control(sw);
    int result = make_group_room(profile, number);
    if (!result) {
        old = profile->groups[number];
        profile->groups[number] = made;
    }
    sw_unlock(sw);
    free(result ? made : old);
    return result;
}

int sw_choices_delete(struct sw *sw, uint32_t index, uint32_t number) {
    if (index >= program_profile_count) return SW_RANGE;
    struct sw_profile *profile = &sw->profiles[index];
    struct sw_choices *old = NULL;
    sw_lock_control(sw);
    if (number < profile->group_room) {
        old = profile->groups[number];
        profile->groups[number] = NULL;
    }
    sw_unlock(sw);
    free(old);
    return old ? 0 : SW_NOT_FOUND;
}

void sw_profiles_free(struct sw *sw) {
    for (uint32_t i = 0; sw->profiles && i < program_profile_count; i++) {
        for (uint32_t g = 0; g < sw->profiles[i].group_room; g++) free(sw->profiles[i].groups[g]);
        free(sw->profiles[i].groups);
        free(sw->profiles[i].members);
    }
    free(sw->profiles);
}
