// SPDX-License-Identifier: Apache-2.0
//
// Multicast groups and clone sessions of the packet replication engine: an array of pointers by id,
// NULL or an immutable list. A change builds the new list, swaps the pointer under the lock, and
// frees the old list.

#include <stdlib.h>

#include "packets.h"

static int replicas_set(struct sw *sw, struct sw_replicas **place, const struct sw_replica *list,
                        size_t count, uint32_t truncate, uint32_t priority) {
    struct sw_replicas *made = malloc(sizeof *made + count * sizeof *list);
    if (!made) return SW_NO_MEMORY;
    made->count = count;
    made->truncate = truncate;
    made->priority = priority;
    if (count) memcpy(made->replica, list, count * sizeof *list);
    sw_lock_control(sw);
    struct sw_replicas *old = *place;
    *place = made;
    sw_unlock(sw);
    free(old);
    return 0;
}

static int replicas_delete(struct sw *sw, struct sw_replicas **place) {
    sw_lock_control(sw);
    struct sw_replicas *old = *place;
    *place = NULL;
    sw_unlock(sw);
    free(old);
    return old ? 0 : SW_NOT_FOUND;
}

int sw_group_set(struct sw *sw, uint32_t id, const struct sw_replica *replicas, size_t count) {
    if (id == 0 || id >= SW_GROUPS) return SW_RANGE;
    return replicas_set(sw, &sw->groups[id], replicas, count, 0, 0);
}

int sw_group_delete(struct sw *sw, uint32_t id) {
    return id < SW_GROUPS ? replicas_delete(sw, &sw->groups[id]) : SW_RANGE;
}

int sw_session_set(struct sw *sw, uint32_t id, const struct sw_replica *replicas, size_t count,
                   uint32_t truncate, uint32_t priority) {
    if (id >= SW_SESSIONS || priority >= SW_PRIORITIES) return SW_RANGE;
    return replicas_set(sw, &sw->sessions[id], replicas, count, truncate, priority);
}

int sw_session_delete(struct sw *sw, uint32_t id) {
    return id < SW_SESSIONS ? replicas_delete(sw, &sw->sessions[id]) : SW_RANGE;
}

void sw_replicas_free(struct sw *sw) {
    for (size_t i = 0; sw->groups && i < SW_GROUPS; i++) free(sw->groups[i]);
    for (size_t i = 0; sw->sessions && i < SW_SESSIONS; i++) free(sw->sessions[i]);
}
