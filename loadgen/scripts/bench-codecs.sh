#!/bin/sh
# Measures RocksDB with LZ4 and zstd, which no other build of this project has: compiles RocksDB with them (10 to 30 minutes on two
# cores, kept in its own folder), then runs `loadgen/scenarios/codecs`. `make bench-codecs` runs it. A second run
# completes the missing parts.
set -eu
: "${SOLKV_CACHE:?folder of what is built; run this through make bench-codecs}" "${OUT:?folder of the results}"
cd "$(dirname "$0")/../.."
target="$SOLKV_CACHE/codecs"
env -u ROCKSDB_LIB_DIR -u ROCKSDB_STATIC CARGO_TARGET_DIR="$target" CARGO_PROFILE_RELEASE_DEBUG=false \
    cargo build --locked --release -p solkv-loadgen -p solkv-bootstrap -p solkv-engine-rocksdb \
    --features librocksdb-sys/lz4,librocksdb-sys/zstd
mkdir -p "$OUT"
for values in unique owners; do
    "$target/release/loadgen" bench "loadgen/scenarios/codecs/$values.toml" --out "$OUT/codecs-$values.jsonl" --work "$OUT/work"
done
