#!/bin/sh
# Compiles RocksDB's C++ once per machine and keeps the static library outside the checkout, so that no cargo
# profile, feature set or clean checkout pays for it again. Prints the folder to use as ROCKSDB_LIB_DIR.
# The folder's name holds all that the library depends on: version, CPU level, compiler, and that it is compiled without
# debug information, which would make the library 1.5 GB instead of 45 MB, and each program and test that links it 400 MB larger.
set -eu
cd "$(dirname "$0")/../.."
cache=${SOLKV_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/solkv}
version=$(sed -n '/^name = "librocksdb-sys"$/{n;s/version = "\(.*\)"/\1/p;}' Cargo.lock)
cpu=$(sed -n 's/.*-Ctarget-cpu=\([^"]*\)".*/\1/p' .cargo/config.toml)
compiler=$(${CXX:-g++} -dumpmachine)-$(${CXX:-g++} -dumpfullversion)
folder=$cache/rocksdb/$version-$cpu-$compiler-nodebug
if [ ! -f "$folder/librocksdb.a" ]; then
    build=$cache/rocksdb-build
    echo "compiling RocksDB $version once for this machine (10 to 30 minutes on two cores) into $folder" >&2
    # Built as cargo builds it for the engine, so flags and headers match; then only the archive is kept.
    env -u ROCKSDB_LIB_DIR -u ROCKSDB_STATIC CARGO_TARGET_DIR="$build" CARGO_PROFILE_RELEASE_DEBUG=false \
        cargo build --locked --release -p librocksdb-sys >&2
    archive=$(find "$build" -name librocksdb.a -print -quit)
    [ -n "$archive" ] || { echo "no librocksdb.a under $build: remove the folder and try again" >&2; exit 1; }
    mkdir -p "$folder"
    # Renamed into place: an interrupted copy is never taken for the library.
    cp "$archive" "$folder/librocksdb.a.part"
    mv "$folder/librocksdb.a.part" "$folder/librocksdb.a"
    rm -rf "$build"
fi
echo "$folder"
