#!/usr/bin/env bash
# setup.sh [PACKAGE...] - installs what `make train` and CI use and this machine lacks; says nothing when nothing is missing, asks nothing, never fails
#
# g++, make and python3 are needed. libdnnl-dev (oneDNN) makes the CPU build faster on processors with AMX. PACKAGE: further Debian packages.
# On Debian and Ubuntu: apt-get, as root or through sudo if that needs no password. Elsewhere, or without either: prints what would help, and goes on;
# if a needed tool is missing after all, the build says so.
set -u
missing=()
command -v g++ >/dev/null || missing+=(g++)
command -v make >/dev/null || missing+=(make)
command -v python3 >/dev/null || missing+=(python3)
if command -v g++ >/dev/null; then echo '#include <dnnl.h>' | g++ -x c++ -fsyntax-only - 2>/dev/null || missing+=(libdnnl-dev)
else missing+=(libdnnl-dev); fi
for package in "$@"; do dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package"); done
[ ${#missing[@]} -eq 0 ] && exit 0

by_hand="apt-get update && apt-get install -y ${missing[*]}"
if ! command -v apt-get >/dev/null; then
    echo "setup: not found: ${missing[*]} (names as on Debian). Install them with this system's package manager; libdnnl-dev (oneDNN) is optional. Going on without."
    exit 0
fi
if [ "$(id -u)" -eq 0 ]; then as_root=(env)
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as_root=(sudo -n env)
else
    echo "setup: not installed: ${missing[*]}. Going on with what is there; this line would make it complete (and faster):"
    echo "    sudo sh -c '$by_hand'"
    exit 0
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
waits=(-o DPkg::Lock::Timeout=120 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 -o Acquire::Retries=1)  # no network must not mean minutes
apt() { "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -q -y "${waits[@]}" "$@" </dev/null >>"$log" 2>&1; }
echo "setup: installing ${missing[*]}"
apt update
apt install --no-install-recommends "${missing[@]}" && exit 0
failed=()
for package in "${missing[@]}"; do apt install --no-install-recommends "$package" || failed+=("$package"); done  # one that cannot be had must not stop the others
[ ${#failed[@]} -eq 0 ] && exit 0
tail -n 3 "$log"
echo "setup: could not install ${failed[*]}. Going on without; by hand: $by_hand"
exit 0
