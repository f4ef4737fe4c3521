#!/usr/bin/env bash
# Tests .ci/libclang on fake machines made of files: complete and incomplete layouts of Debian, Fedora, Arch and others.
# Needs no root and installs nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset LIBCLANG_PATH BINDGEN_EXTRA_CLANG_ARGS LD_LIBRARY_PATH LIBRARY_PATH
fail() { echo "setup: $*" >&2; exit 1; }
machine() { # machine FILE...: a new machine with these libraries and headers
    rm -rf "$work/root"
    mkdir -p "$work/root/usr/lib"
    local file
    for file; do
        mkdir -p "$work/root/$(dirname "$file")"
        printf '\177ELF\002' >"$work/root/$file"
    done
}
looks=0
missing() { # missing WHAT EXPECTED
    found=$(.ci/libclang --root "$work/root")
    [ "$found" = "$2" ] || fail "$1: missing is said to be '$found', not '$2'"
    looks=$((looks + 1))
}
lib=usr/lib/x86_64-linux-gnu
headers() { echo "usr/lib/llvm-$1/lib/clang/$2/include/stddef.h"; }

machine
missing "nothing there" libclang-dev
machine $lib/libclang-cpp.so.14 usr/lib/llvm-14/lib/libclang-cpp.so.14 $lib/libLLVM-14.so
missing "clang's C++ library alone" libclang-dev
machine $lib/libclang-cpp.so.14 "$(headers 14 14.0.6)"
missing "headers and the C++ library alone" libclang-dev
machine $lib/libclang-14.so.1 $lib/libclang-14.so.14.0.6 usr/lib/llvm-14/lib/libclang.so.1
missing "libclang without its headers" libclang-common-14-dev
machine $lib/libclang-14.so.1 usr/lib/llvm-14/lib/libclang.so "$(headers 14 14.0.6)"
missing "Debian, whole" ""
machine usr/lib/llvm-14/lib/libclang.so.1 "$(headers 14 14.0.6)"
missing "in the folder of its version alone" ""
machine $lib/libclang-14.so.1 "$(headers 14 14.0.6)" $lib/libclang-16.so.16
missing "a newer libclang without headers, which bindgen would choose" libclang-common-16-dev
machine $lib/libclang-14.so.1 $lib/libclang-9.so.1 "$(headers 14 14.0.6)"
missing "an older libclang without headers, which bindgen would not choose" ""
machine $lib/libclang-16.so.16 "$(headers 14 14.0.6)"
missing "the headers of another version" libclang-common-16-dev
machine usr/lib64/libclang.so.18.1.8 usr/lib64/libclang.so.13 usr/lib/clang/18/include/stddef.h
missing "Fedora" ""
machine usr/lib64/libclang.so.13 usr/lib64/clang/17/include/stddef.h
missing "openSUSE" ""
machine usr/lib/libclang.so usr/lib/clang/18/include/stddef.h
missing "Arch" ""
machine usr/lib/libclang.so
missing "a library that says no version, without headers" libclang-dev
machine usr/local/llvm-19/lib/libclang.so usr/local/llvm-19/lib/clang/19/include/stddef.h
missing "one's own, in /usr/local" ""
machine "$(headers 14 14.0.6)"
mkdir -p "$work/root/$lib"
ln -s libclang-14.so.14.0.6 "$work/root/$lib/libclang-14.so.1"
missing "a link to nothing" libclang-dev
printf '\177ELF\001' >"$work/root/$lib/libclang-14.so.14.0.6"
missing "a library for 32 bits" libclang-dev
machine $lib/libclang-14.so.1
BINDGEN_EXTRA_CLANG_ARGS=-I/opt/clang/include missing "headers that are named" ""
machine opt/llvm/libclang.so opt/llvm/clang/20/include/stddef.h
LIBCLANG_PATH=$work/root/opt/llvm missing "a library that is named by its folder" ""
LIBCLANG_PATH=$work/root/opt/llvm/libclang.so missing "a library that is named" ""
code=0
said=$(LIBCLANG_PATH=$work/root/opt .ci/libclang --root "$work/root" 2>&1) || code=$?
[ "$code" -eq 1 ] && grep -q "LIBCLANG_PATH=.*correct it, or unset it" <<<"$said" || fail "a wrong LIBCLANG_PATH: code=$code $said"
echo "setup: $((looks + 1)) machines, each with what bindgen needs or without"
