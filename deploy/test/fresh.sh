#!/usr/bin/env bash
# Tries both commands of README.md on machines that have never seen solkv: clean roots of Debian with only `make`, this
# machine's Rust toolchain and cargo's downloads, both read-only. fresh-inside.sh runs there.
#
# fresh.sh [CASE...], by default all of them:
#   setup  .ci/setup alone, with nothing and with several kinds of clang and LLVM installed before; then bindgen runs
#   demo   `make demo` from nothing
#   strata `ENGINES=strata make test` from nothing
#   all    `make test` with all engines; RocksDB's C++ comes from the archive that this machine keeps
#
# Needs root, systemd-nspawn, mmdebstrap and a Debian mirror. SUITE is the Debian release (bookworm), KINDS the machines
# of setup. CACHE keeps the clean root between runs, and the roots in use (5 GB). OUT keeps the logs. Setup takes ten
# minutes; the others compile all of solkv, 15 minutes to an hour each on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=deploy/test/container.sh
. deploy/test/container.sh
container_needs fresh mmdebstrap
SUITE=${SUITE:-bookworm}
CACHE=${CACHE:-${SOLKV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/solkv}}
[ $# -gt 0 ] || set -- setup demo strata all

mkdir -p "$CACHE"
work=$(mktemp -d -p "$CACHE" fresh.XXXXXX)
out=$(realpath -m "${OUT:-$work/out}")
mkdir -p "$out"
trap 'rm -rf "$work"' EXIT

tar=$CACHE/debian-$SUITE-fresh.tar
if [ ! -f "$tar" ]; then
    mmdebstrap --quiet --format=tar --variant=minbase --include=make,ca-certificates "$SUITE" "$tar.part"
    mv "$tar.part" "$tar"
fi
toolchain=$(rustc --print sysroot)
registry=${CARGO_HOME:-$HOME/.cargo}/registry
# cargo has no network inside, so its downloads must be here before.
cargo fetch --locked

# run ROOT CASE ARGUMENTS...: runs one case in its own root. The output is in OUT/CASE.log.
run() {
    local root=$1 name=$2 log
    log=$out/$(tr ' ' - <<<"${*:2}").log
    shift 2
    local kept=()
    if [ "$name" = all ]; then
        mkdir -p "$root/root/.cache/solkv/rocksdb"
        kept=("--bind-ro=$(dirname "$(engines/rocksdb/static-lib.sh)"):/root/.cache/solkv/rocksdb")
    fi
    # strata uses io_uring if allowed, and nspawn forbids it by default.
    systemd-nspawn -q -D "$root" --machine="solkv-fresh-$$" --as-pid2 --register=no --keep-unit --console=pipe --resolv-conf=copy-host \
        --system-call-filter='io_uring_setup io_uring_enter io_uring_register' \
        --bind-ro="$toolchain:/opt/rust" --bind-ro="$registry:/root/.cargo/registry" "${kept[@]}" \
        --setenv=PATH=/opt/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin --setenv=CARGO_NET_OFFLINE=true --setenv=HOME=/root \
        --chdir=/srv/solkv /bin/bash deploy/test/fresh-inside.sh "$name" "$@" >"$log" 2>&1 || true
    grep '^== ' "$log" || true
    grep -qx "all of it holds" "$log" && return 0
    echo "failed: case=$name $*; the last of $log:" >&2
    tail -n 30 "$log" >&2
    return 1
}
# Makes a new root with the tracked files and no build output.
root() {
    rm -rf "$work/root"
    mkdir -p "$work/root/srv/solkv" "$work/root/root/.cargo/registry"
    tar -C "$work/root" -xf "$tar"
    # Every installed machine and container has this line; Debian's smallest variant does not.
    echo '127.0.0.1 localhost' >"$work/root/etc/hosts"
    git ls-files -z --cached --others --exclude-standard | tar --null --files-from - --create |
        tar -C "$work/root/srv/solkv" --extract
    # bindgen is compiled only once for all kinds of machines.
    [ ! -d "$work/target" ] || mv "$work/target" "$work/root/srv/target"
}
for case in "$@"; do
    if [ "$case" = setup ]; then
        for kind in ${KINDS:-nothing cpp llvm libclang clang}; do
            root
            run "$work/root" setup "$kind"
            mv "$work/root/srv/target" "$work/target"
        done
        rm -rf "$work/target"
    else
        root
        run "$work/root" "$case"
    fi
done
echo "fresh: $* hold on Debian $SUITE"
