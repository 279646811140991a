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
if [ -n "${packages% }" ]; then
    command -v apt-get >/dev/null ||
        fail "not installed: ${packages}- and there is no apt-get here; install what provides them"
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            fail "not installed: ${packages}- and there is no sudo; as root: apt-get install $packages"
        as_root=sudo
    fi
    say "installing Debian packages: $packages"
    $as_root apt-get update -qq || say "apt-get update failed; trying with the lists there are"
    # tshark's package asks who may capture; mininet's recommends servers that nobody needs here.
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $packages >/dev/null ||
        fail "apt-get could not install: $packages"
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
    say "installing Python packages into $venv (rackhub$extras and what it needs)"
    log=$venv/pip.log
    if ! "$venv/bin/python" -m pip install --disable-pip-version-check -e ".$extras" >"$log" 2>&1
    then
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
