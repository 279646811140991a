#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command that makes network namespaces: `scripts/with-namespaces.sh COMMAND [ARGUMENT ..]`.
#
# Root may make them. For an ordinary user the command runs in a user namespace in which it keeps its
# user id and has all capabilities (user_namespaces(7)), with loopback as its only interface and an empty
# /run, where `ip netns` has its files. Where the system allows no user namespaces it runs as it is.
set -eu

# shellcheck disable=SC2016 # expanded inside
inside='mount -t tmpfs tmpfs /run && PATH=$PATH:/usr/sbin:/sbin ip link set lo up'
enter() { unshare --user --map-current-user --keep-caps --net --mount "$@"; }

if [ "$(id -u)" -eq 0 ]; then exec "$@"; fi
if ! refusal=$(enter sh -c "$inside" 2>&1); then
    printf 'with-namespaces: no user namespace (%s): tests that need one are skipped\n' "$refusal" >&2
    exec "$@"
fi
enter sh -c "$inside"' && exec "$@"' sh "$@"
