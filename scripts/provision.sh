#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes a fresh Ubuntu 22.04 machine ready: p4c and BMv2 from p4lang's package repository, the rest by
# `make setup`. Without the repository the machine still works, on the embedded switch target.
# Run by Vagrant as root; by hand: sudo scripts/provision.sh [FOLDER] [USER].
set -euo pipefail

folder=${1:-/home/vagrant/rackhub}
user=${2:-vagrant}
repository=https://download.opensuse.org/repositories/home:/p4lang/xUbuntu_22.04
keyring=/etc/apt/keyrings/p4lang.gpg
list=/etc/apt/sources.list.d/p4lang.list

export DEBIAN_FRONTEND=noninteractive

say() { printf 'provision: %s\n' "$*"; }

install_p4lang() {
    apt-get install -y -qq --no-install-recommends ca-certificates curl gnupg >/dev/null || return
    install -d -m 0755 "$(dirname "$keyring")" || return
    curl -fsSL --retry 3 "$repository/Release.key" | gpg --dearmor --yes -o "$keyring" || return
    echo "deb [signed-by=$keyring] $repository/ /" >"$list" || return
    apt-get update -qq || return
    apt-get install -y -qq p4lang-p4c p4lang-bmv2 >/dev/null || return
    # Installed is not yet working: their libraries must be there, too.
    p4c-bm2-ss --version && simple_switch_grpc --version
}

apt-get update -qq
apt-get install -y -qq --no-install-recommends make python3 python3-venv >/dev/null

say "installing p4lang-p4c and p4lang-bmv2 from $repository"
if install_p4lang; then
    say "BMv2 is installed: --target auto picks it"
else
    # A broken repository would make every later apt-get update fail.
    rm -f "$list"
    apt-get update -qq
    say "p4lang's packages could not be installed: the embedded switch target is used instead"
fi

say "setting up $folder"
# As root, which needs no sudo, for the Debian packages; then as the user, who owns the venv.
cd "$folder"
scripts/setup.sh run
chown -R "$user:" .
sudo -H -u "$user" make setup
say "done: vagrant ssh -c 'cd rackhub && make run'"
