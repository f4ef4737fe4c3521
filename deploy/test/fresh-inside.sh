#!/usr/bin/env bash
# Runs in a clean root of Debian, in the directory of the sources: fresh-inside.sh CASE [KIND]. fresh.sh describes the
# cases, and looks for the last line of the output.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
step() { printf '== %-4s s  %s\n' "$SECONDS" "$*"; }
fail() {
    echo "FAILED: $*"
    exit 1
}
# Lists the names of Debian's packages that match, in all versions.
packages() { apt-cache search --names-only "^($1)\$" | cut -d ' ' -f 1 | sort -V; }

# Installs the packages of one kind of machine, runs the setup, and checks the result with bindgen itself.
setup() {
    apt-get update -qq
    local before
    case $1 in
    nothing) before="" ;;
    cpp) before=$(packages 'libclang-cpp[0-9]+') ;;
    llvm) before=$(packages 'libclang-cpp[0-9]+|llvm-[0-9]+|llvm-[0-9]+-runtime|libllvm[0-9]+') ;;
    # bindgen would choose this library, but its headers are missing.
    libclang) before=$(packages 'libclang1-[0-9]+' | tail -n 1) ;;
    clang) before=$(packages 'clang-[0-9]+|libclang-cpp[0-9]+|llvm-[0-9]+|llvm-[0-9]+-runtime|libclang1-[0-9]+') ;;
    *) fail "no such kind of machine: $1" ;;
    esac
    [ "$1" = nothing ] || [ -n "$before" ] || fail "Debian has no such package"
    # shellcheck disable=SC2086 -- a list of package names
    [ -z "$before" ] || apt-get install -y -qq --no-install-recommends $before >/dev/null
    apt-get clean
    rm -rf /var/lib/apt/lists/*
    step "installed before: $(tr '\n' ' ' <<<"$before")"
    .ci/setup | tee /tmp/setup.log
    step "setup: $(grep '^setup: ' /tmp/setup.log || echo nothing to install)"
    [ -z "$(.ci/libclang)" ] || fail "still missing: $(.ci/libclang)"
    .ci/setup | grep -q . && fail "a second setup installs something again"
    mkdir -p /tmp/lib
    # This crate's build script generates the bindings. It compiles no C++, because it is given a library to link.
    rm -rf /srv/target/debug/build/librocksdb-sys-* /srv/target/debug/.fingerprint/librocksdb-sys-*
    ROCKSDB_STATIC=1 ROCKSDB_LIB_DIR=/tmp/lib CARGO_TARGET_DIR=/srv/target cargo check --locked -p librocksdb-sys
    bindings=$(find /srv/target -name bindings.rs -path '*librocksdb-sys*')
    grep -q rocksdb_open "$bindings" || fail "bindings without a function of RocksDB"
    step "bindgen: $(wc -l <"$bindings") lines"
}

case ${1:?the case} in
setup) setup "${2:?the kind of machine}" ;;
demo)
    make demo | tee /tmp/demo.log
    grep -q '^verified: ' /tmp/demo.log || fail "the demo does not end with a verified store"
    grep -q ' into strata$' /tmp/demo.log || fail "the demo is not of strata"
    [ -z "$(find "$HOME/.cache/solkv" -name '*rocksdb-sys*' -print -quit)" ] || fail "the demo compiled RocksDB"
    step "make demo"
    ;;
strata)
    ENGINES=strata make test
    [ -z "$(find "$HOME/.cache/solkv" -name '*rocksdb-sys*' -print -quit)" ] || fail "RocksDB was compiled"
    step "ENGINES=strata make test"
    ;;
all)
    make test
    step "make test"
    ;;
*) fail "no such case: $1" ;;
esac
echo "all of it holds"
