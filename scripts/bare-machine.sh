#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the README's two commands, `make run` and `make test`, on a bare Debian: a minbase root of the
# suite with git, make and ca-certificates, entered by pivot_root(2).
#
#   scripts/bare-machine.sh bookworm              as root, then as an ordinary user without sudo
#   scripts/bare-machine.sh trixie user           as one of them
#   TESTS=tests/unit scripts/bare-machine.sh ..   only these tests
#
# The ordinary user starts with the Debian packages of `scripts/setup.sh packages` and nothing else, a dumb
# terminal, the C locale, umask 077 and 1,024 open files. What is tested is the last commit. Prints a line
# each for root and the user, and keeps their logs. Needs root, mmdebstrap and 4 GB in TMPDIR (/var/tmp).
# Exit status 1 if a command failed.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ $# -eq 0 ] || [ "$1" = --help ]; then
    sed -n '3,13s/^# \{0,1\}//p' "$0"
    exit $(($# == 0 ? 2 : 0))
fi
suite=$1
shift
if [ $# -eq 0 ]; then set -- root user; fi
fail() {
    printf 'bare-machine: %s\n' "$*" >&2
    exit 2
}
[ "$(id -u)" -eq 0 ] || fail "run this as root"
command -v mmdebstrap >/dev/null || fail "apt-get install mmdebstrap"
for who; do case $who in root | user) ;; *) fail "$who: root or user" ;; esac done

place=$(mktemp -d "${TMPDIR:-/var/tmp}/rackhub-$suite.XXXXXX")
chmod 755 "$place"
trap 'rm -rf --one-file-system "$place"/{bare,root,user}' EXIT
trap 'exit 130' INT TERM

# Of the caller's environment, only how package indexes are reached and what is to be tested.
environment=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb)
for name in http_proxy https_proxy no_proxy PIP_INDEX_URL TESTS; do
    if [ -n "${!name:-}" ]; then environment+=("$name=${!name}"); fi
done

make_root() { # of the suite, in $1
    mmdebstrap --quiet --variant=minbase --include=git,make,ca-certificates "$suite" "$1"
    cp --remove-destination /etc/resolv.conf "$1/etc/resolv.conf"
    if [ -n "${PIP_CERT:-}" ]; then
        cp "$PIP_CERT" "$1/etc/ssl/package-index.pem"
        environment+=(PIP_CERT=/etc/ssl/package-index.pem)
    fi
}

# Runs the shell script $2 in the root $1 through the command $3.. . Its processes and mounts end with it.
inside() {
    local root=$1 script=$2
    shift 2
    # shellcheck disable=SC2016 # expanded inside
    unshare --mount --pid --fork --kill-child sh -ec '
        root=$1
        shift
        mount --make-rprivate /
        mount --bind "$root" "$root"
        cd "$root"
        mount -t proc proc proc
        mount -t sysfs sysfs sys
        mount --rbind /dev dev
        mount -t tmpfs -o mode=1777 tmpfs tmp
        mount -t tmpfs tmpfs run
        mkdir -p old
        pivot_root . old
        umount -l old
        cd /
        exec "$@"' sh "$root" env -i "${environment[@]}" "$@" sh -ec "$script" </dev/null
}

# Runs `make $3` in the checkout of the user $2 in the root $1; prints how it ended and how long it took.
command_of() {
    local root=$1 who=$2 target=$3 log=$place/$2-$3.log begin=$SECONDS how=ok words
    if [ "$who" = root ]; then
        inside "$root" "cd ~/rackhub && make $target" HOME=/root >"$log" 2>&1 || how=FAILED
    else
        inside "$root" "umask 077; ulimit -n 1024; cd ~/rackhub && make $target" HOME=/home/user LC_ALL=C \
            setpriv --reuid=1000 --regid=1000 --clear-groups --no-new-privs >"$log" 2>&1 || how=FAILED
    fi
    case $target in
    run) words=$(grep -a -o -m 1 -E '(matches|differs from) reference' "$log" || true) ;;
    test) words=$(grep -a -o -E '[0-9]+ (passed|failed|errors?).* in [0-9.]+s' "$log" | tail -n 1 || true) ;;
    esac
    printf '; make %s: %s, %d s%s' "$target" "$how" $((SECONDS - begin)) "${words:+ ($words)}"
    [ "$how" = ok ]
}

status=0
make_root "$place/bare"
# shellcheck disable=SC1091
name=$(. "$place/bare/etc/os-release" && echo "$PRETTY_NAME")
for who; do
    root=$place/$who
    cp -a "$place/bare" "$root"
    if [ "$who" = user ]; then
        chroot "$root" useradd --uid 1000 --create-home user
        git clone --quiet --no-local . "$root/home/user/rackhub"
        chown -R 1000:1000 "$root/home/user"
        inside "$root" "/home/user/rackhub/scripts/setup.sh packages" HOME=/root >"$place/user-packages.log" 2>&1 ||
            fail "scripts/setup.sh packages: see $place/user-packages.log"
    else
        git clone --quiet --no-local . "$root/root/rackhub"
    fi
    printf '%s, %s' "$name" "$who"
    command_of "$root" "$who" run || status=1
    command_of "$root" "$who" test || status=1
    printf '; logs: %s\n' "$place"
    rm -rf --one-file-system "$root"
done
exit $status
