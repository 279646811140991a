#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what rackhub needs and says what it installs:
#
#   scripts/setup.sh run        for `make run`: Debian packages (apt, through sudo unless root), .venv, and .venv-shell
#   scripts/setup.sh test       for `make test`, in addition: test packages, and .venv-finsy
#   scripts/setup.sh lint       for `make lint`, in addition: linters, and .venv-docs
#   scripts/setup.sh docs       for `make docs`: only .venv-docs
#   scripts/setup.sh packages   only the Debian packages of run and test: all that needs root
#
# The versions of Python packages are those of requirements/*.txt (`make lock` renews them). .venv is made from
# the system's Python, which Debian's mininet is made for. A second call takes a moment.
set -eu
cd "$(dirname "$0")/.."
purpose=${1:-run}
case $purpose in run | test | lint | docs | packages) ;; *)
    echo "usage: scripts/setup.sh [run|test|lint|docs|packages]" >&2
    exit 2
    ;;
esac

venv=.venv
python=/usr/bin/python3
mininet=/usr/lib/python3/dist-packages/mininet

say() { printf 'setup: %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# Runs the command $3.., which takes minutes: all its output goes to the file $1, and each line to the
# function $2, which prints progress. Returns the command's exit status.
run_logged() {
    into=$1 progress=$2
    shift 2
    : >"$into"
    {
        failed=0
        "$@" 2>&1 || failed=$?
        printf '\nexit status %s\n' "$failed"
    } | while IFS= read -r line; do
        printf '%s\n' "$line" >>"$into"
        $progress "$line"
    done
    [ "$(tail -n 1 "$into")" = "exit status 0" ]
}

# Prints the size of the download and the name of each package that apt has set up.
apt_progress() {
    case $1 in
    "Need to get "*) say "  fetching ${1#Need to get }" ;;
    "Setting up "*)
        name=${1#Setting up }
        say "  ${name%% *}"
        ;;
    esac
}

# Prints pip's larger downloads and the number of packages that it unpacks.
pip_progress() {
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

# --- Debian packages ---

# A command or file that shows that a package is installed, and the package.
run_packages="
$python=python3
/usr/bin/mnexec=mininet
$mininet/net.py=mininet
ip=iproute2
tc=iproute2
ethtool=ethtool
ping=iputils-ping
unshare=util-linux
cc=gcc
/usr/include/stdlib.h=libc6-dev
/usr/include/linux/if_packet.h=linux-libc-dev
"
test_packages="
tshark=tshark
clang=clang
/usr/lib/$(uname -m)-linux-gnu/libcairo.so.2=libcairo2
"
lint_packages="
shellcheck=shellcheck
"

missing() { # the packages in $1 that are not installed
    for entry in $1; do
        thing=${entry%%=*}
        case $thing in
        /*) [ -e "$thing" ] || printf '%s\n' "${entry#*=}" ;;
        *) PATH=$PATH:/usr/sbin:/sbin command -v "$thing" >/dev/null || printf '%s\n' "${entry#*=}" ;;
        esac
    done
    # Debian splits venv from Python; it is installed if it can make pip.
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
}

install_packages() { # the names in $1
    command -v apt-get >/dev/null ||
        fail "not installed: $1- and there is no apt-get here; install what provides them"
    as_root=
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null ||
            fail "not installed: $1- and there is no sudo; as root: $PWD/scripts/setup.sh packages"
        as_root=sudo
    fi
    say "installing Debian packages: $1"
    say "  reading the lists of packages"
    $as_root apt-get update -qq || say "apt-get update failed; trying with the lists there are"
    # tshark's package asks who may capture; mininet's recommends servers that nobody needs here. A machine that has
    # just booted may be at its automatic upgrades, which hold dpkg's lock for minutes.
    log=$(mktemp)
    # shellcheck disable=SC2086
    run_logged "$log" apt_progress $as_root env DEBIAN_FRONTEND=noninteractive LC_ALL=C \
        apt-get -o DPkg::Lock::Timeout=600 install -y -q --no-install-recommends $1 || {
        tail -n 20 "$log" >&2
        fail "apt-get could not install: $1"
    }
    rm -f "$log"
}

docs_packages="
$python=python3
"

wanted=$run_packages
case $purpose in
docs) wanted=$docs_packages ;;
test | packages) wanted="$wanted $test_packages" ;;
lint) wanted="$wanted $test_packages $lint_packages" ;;
esac
packages=$(missing "$wanted" | sort -u | tr '\n' ' ')
if [ -n "${packages% }" ]; then install_packages "$packages"; fi
# libFuzzer comes with clang, or in a package of its own that clang only recommends.
if [ "$purpose" != run ] && [ "$purpose" != docs ] &&
    [ ! -e "$(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a")" ]; then
    install_packages "libclang-rt-dev "
fi
if [ "$purpose" = packages ]; then exit; fi

# --- Python packages ---

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$python is $("$python" -V); Python 3.10 or newer is needed"
if [ "$purpose" = lint ]; then # the last numpy for 3.10 has types of another kind
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$python is $("$python" -V); the linters need Python 3.11 or newer"
fi

# Makes the virtual environment $1 unless it is one of this Python, here.
make_venv() {
    if [ ! -x "$1/bin/python" ] ||
        ! "$1/bin/python" -c 'import sys; sys.exit(sys.prefix != sys.argv[1])' "$PWD/$1" 2>/dev/null; then
        say "making $1 from $("$python" -V)"
        "$python" -m venv --clear "$1"
    fi
}

# Installs the locked versions $2 of what $3.. names into the virtual environment $1.
pip_install() {
    environment=$1 locked=$2
    shift 2
    if ! run_logged "$environment/pip.log" pip_progress "$environment/bin/python" -m pip install \
        --disable-pip-version-check --progress-bar off --no-compile -c "$locked" "$@"; then
        tail -n 20 "$environment/pip.log" >&2
        fail "pip could not install the Python packages; its output is in $environment/pip.log"
    fi
    # With all cores, which pip does with one. Files that are none of this Python's stay as they are.
    "$environment/bin/python" -m compileall -q -j 0 "$environment/lib" >/dev/null || true
}

# Makes the virtual environment $1 that has nothing but what requirements/$2.in names, in the versions that
# requirements/$2.txt locks.
own_venv() {
    make_venv "$1"
    state=$(cat "requirements/$2.in" "requirements/$2.txt" | sha256sum)
    if [ "$(cat "$1/installed" 2>/dev/null)" != "$state" ]; then
        say "installing the packages of requirements/$2.in into $1"
        pip_install "$1" "requirements/$2.txt" -r "requirements/$2.in"
        printf '%s\n' "$state" >"$1/installed"
    fi
}

# The documentation site's generator needs nothing of rackhub.
if [ "$purpose" = docs ]; then
    own_venv .venv-docs docs
    exit
fi

# P4Runtime clients of others, for `rackhub shell` and for tests: each pins versions of what rackhub needs, too.
others() {
    own_venv .venv-shell shell
    if [ "$purpose" != run ]; then own_venv .venv-finsy finsy; fi
    if [ "$purpose" = lint ]; then own_venv .venv-docs docs; fi
}
others & # beside .venv, which takes as long as all of them
others=$!

# A venv that sees the system's packages would mix Debian's versions with the locked ones.
if ! grep -qs '^include-system-site-packages = false' $venv/pyvenv.cfg; then rm -rf $venv; fi
make_venv $venv
# Of the system's packages, only Mininet's is used: PyPI's lacks mnexec.
packages=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
[ -e "$packages/mininet" ] || ln -sfn $mininet "$packages/mininet"

# Each purpose includes those before it; its stamp says which files it was installed from.
state=$(cat pyproject.toml scripts/setup.sh requirements/rackhub.txt | sha256sum)
if [ "$(cat $venv/installed-"$purpose" 2>/dev/null)" != "$state" ]; then
    case $purpose in
    run) extras='' includes='run' ;;
    test) extras='[test]' includes='run test' ;;
    lint) extras='[test,lint]' includes='run test lint' ;;
    esac
    say "installing Python packages into $venv (rackhub$extras and what it needs), which takes minutes"
    # Without a build environment, whose packages would not be locked.
    pip_install $venv requirements/rackhub.txt setuptools
    pip_install $venv requirements/rackhub.txt --no-build-isolation -e ".$extras"
    for each in $includes; do printf '%s\n' "$state" >"$venv/installed-$each"; done
fi

wait "$others"
