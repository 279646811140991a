#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what rackhub needs, and says what: Debian packages (through apt, with sudo unless root) and
# Python packages (into .venv, which is made from the system's Python because Mininet's library is
# there; for tests also into .venv-finsy). Run as `scripts/setup.sh run` or `scripts/setup.sh test`;
# again: takes a moment.
set -eu
cd "$(dirname "$0")/.."
purpose=${1:-run}

venv=.venv
FINSY='finsy==0.30.0'
python=/usr/bin/python3

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# Runs a command ($3..) whose output goes to the file $1, and of it what function $2 makes of each line
# to the terminal: it takes minutes. Its exit status is the command's.
telling() {
    into=$1 teller=$2
    shift 2
    : >"$into"
    {
        failed=0
        "$@" 2>&1 || failed=$?
        printf '\nexit status %s\n' "$failed"
    } | while IFS= read -r line; do
        printf '%s\n' "$line" >>"$into"
        $teller "$line"
    done
    [ "$(tail -n 1 "$into")" = "exit status 0" ]
}

# What is large, and what comes after all of it is there.
of_apt() {
    case $1 in
    "Need to get "*) say "  fetching ${1#Need to get }" ;;
    "Setting up "*)
        name=${1#Setting up }
        say "  ${name%% *}"
        ;;
    esac
}
of_pip() {
    case $1 in
    *"Downloading "*" MB)" | *"Using cached "*" MB)")
        name=${1##*Downloading }
        name=${name##*Using cached }
        say "  ${name%%-*} ${name##* (}" | tr -d ')'
        ;;
    "Installing collected packages: "*)
        say "  unpacking $(printf '%s\n' "${1#*: }" | tr ',' '\n' | wc -l) packages"
        ;;
    esac
}

# command or file that shows that a package is there -> package
run_packages="
/usr/bin/python3=python3
/usr/bin/mnexec=mininet
/usr/lib/python3/dist-packages/mininet/net.py=mininet
ip=iproute2
tc=iproute2
ethtool=ethtool
unshare=util-linux
cc=gcc
/usr/include/stdlib.h=libc6-dev
/usr/include/linux/if_packet.h=linux-libc-dev
"
test_packages="
tshark=tshark
shellcheck=shellcheck
clang=clang
/usr/lib/$(uname -m)-linux-gnu/libcairo.so.2=libcairo2
"

missing() {
    for entry in $1; do
        thing=${entry%%=*}
        case $thing in
        /*) [ -e "$thing" ] || printf '%s\n' "${entry#*=}" ;;
        *) PATH=$PATH:/usr/sbin:/sbin command -v "$thing" >/dev/null || printf '%s\n' "${entry#*=}" ;;
        esac
    done
    # Debian splits venv from Python; it is there if it can make pip.
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

wanted=$run_packages
if [ "$purpose" = test ]; then wanted="$wanted $test_packages"; fi
packages=$(missing "$wanted" | sort -u | tr '\n' ' ')
install_packages() { # the names in $1
    command -v apt-get >/dev/null ||
        fail "not installed: $1- and there is no apt-get here; install what provides them"
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            fail "not installed: $1- and there is no sudo; as root: apt-get install $1"
        as_root=sudo
    fi
    say "installing Debian packages: $1"
    say "  reading the lists of packages"
    $as_root apt-get update -qq || say "apt-get update failed; trying with the lists there are"
    # tshark's package asks who may capture; mininet's recommends servers that nobody needs here.
    log=$(mktemp)
    # shellcheck disable=SC2086
    telling "$log" of_apt $as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C \
        apt-get install -y -q --no-install-recommends $1 || {
        tail -n 20 "$log" >&2
        fail "apt-get could not install: $1"
    }
    rm -f "$log"
}
if [ -n "${packages% }" ]; then install_packages "$packages"; fi
# libFuzzer comes with clang, or in a package of its own that clang only recommends.
if [ "$purpose" = test ] &&
    [ ! -e "$(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a")" ]; then
    install_packages "libclang-rt-dev "
fi

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$python is $("$python" -V); Python 3.10 or newer is needed"

# Anew if it is another Python's, cannot see the system's packages, or was moved here from elsewhere.
if [ ! -x $venv/bin/python ] ||
    ! $venv/bin/python -c 'import mininet, sys; sys.exit(sys.prefix != sys.argv[1])' \
        "$PWD/$venv" 2>/dev/null; then
    say "making $venv from $("$python" -V)"
    "$python" -m venv --clear --system-site-packages $venv
fi

# Installed for these files already?
stamp=$venv/installed-$purpose
state=$(cat pyproject.toml scripts/setup.sh | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" != "$state" ]; then
    extras=
    if [ "$purpose" = test ]; then extras='[test]'; fi
    say "installing Python packages into $venv (rackhub$extras and what it needs), which takes minutes"
    log=$venv/pip.log
    if ! telling "$log" of_pip "$venv/bin/python" -m pip install --disable-pip-version-check \
        --progress-bar off -e ".$extras"; then
        tail -n 20 "$log" >&2
        fail "pip could not install the Python packages; all it said is in $log"
    fi
    printf '%s\n' "$state" >"$stamp"
    if [ "$purpose" = test ]; then printf '%s\n' "$state" >"$venv/installed-run"; fi
fi

# finsy, a P4Runtime client that tests drive the switch with, needs a newer protobuf than
# p4runtime-shell: it has an environment of its own. Without it its test is skipped.
finsy=.venv-finsy
if [ "$purpose" = test ] && [ "$(cat $finsy/installed 2>/dev/null)" != "$FINSY" ]; then
    say "installing $FINSY into $finsy"
    if "$python" -m venv --clear $finsy &&
        $finsy/bin/python -m pip install --disable-pip-version-check -q "$FINSY" >"$finsy/pip.log" 2>&1
    then
        printf '%s\n' "$FINSY" >$finsy/installed
    else
        tail -n 5 "$finsy/pip.log" >&2 || true
        rm -rf $finsy
        say "no finsy: tests/packet/test_p4runtime_finsy.py will be skipped"
    fi
fi
