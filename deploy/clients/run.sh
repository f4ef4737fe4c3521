#!/bin/sh
# Tests common clients: grpcurl and a Python client generated from the proto files list, call and follow a live service; redis-py,
# redis-cli, redis-benchmark and curl look keys up.
# `make test TOPIC=clients` runs it. Python packages go into a virtual environment, grpcurl into a directory, both under CACHE.
set -eu
: "${BIN:?folder of the built binaries; run this through make test TOPIC=clients}" "${CACHE:?folder that is kept between runs}"
here=$(cd "$(dirname "$0")" && pwd)
proto="$here/../../proto/proto"
work=$(mktemp -d "${TMPDIR:-/tmp}/solkv-clients.XXXXXX")
children=""
# shellcheck disable=SC2086 -- a list of processes
trap 'kill $children 2>/dev/null; wait; rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

python="$CACHE/python"
[ -x "$python/bin/python" ] || python3 -m venv "$python"
"$python/bin/pip" install -q grpcio==1.76.0 grpcio-tools==1.76.0 grpcio-reflection==1.76.0 redis==7.1.0 base58==2.1.1
"$python/bin/python" -m grpc_tools.protoc -I "$proto" --python_out="$work" --grpc_python_out="$work" \
    "$proto/solkv/v1/kv.proto" "$proto/solkv/v1/feed.proto"

pairs=20000 listen=127.0.0.1:17400 stream=127.0.0.1:17402 redis=17403 http=17404
"$BIN/bootstrap" --engine strata --dir "$work/store" --pairs $pairs --seed 7 --slot 999 --extract account-owner 2>"$work/load.log"
"$BIN/bootstrap" export --dir "$work/store" --sample 2000 --to "$work/keys.csv" 2>>"$work/load.log"
"$BIN/loadgen" stream --listen $stream --pairs $pairs --seed 7 --events 200000 --rate 40000 --change-share 0.5 \
    > "$work/stream.log" 2>&1 &
children="$children $!"
"$BIN/service" --engine strata --dir "$work/store" --geyser http://$stream --listen $listen --uds "$work/kv.sock" \
    --metrics 127.0.0.1:17401 --redis 127.0.0.1:$redis --redis-uds "$work/redis.sock" \
    --http 127.0.0.1:$http --http-uds "$work/http.sock" \
    > "$work/service.log" 2>&1 &
children="$children $!"

echo "== Python: reflection, a lookup, and the feed from a copy of the map to 50,000 changes"
PYTHONPATH="$work" "$python/bin/python" "$here/follow.py" $listen $pairs 50000
echo "== Python: the same over the Unix socket, up to the end of the copy"
PYTHONPATH="$work" "$python/bin/python" "$here/follow.py" "unix:$work/kv.sock" $pairs 0

echo "== redis-py: the same answers as over gRPC"
PYTHONPATH="$work" "$python/bin/python" "$here/redis_keys.py" $listen $redis "$work/redis.sock" "$work/keys.csv"
if command -v redis-cli >/dev/null 2>&1; then
    echo "== redis-cli and redis-benchmark"
    key=$(sed -n '2s/,.*//p' "$work/keys.csv")
    [ "$(redis-cli -p $redis GET "$key" | wc -c)" -ge 33 ]
    redis-cli -3 -s "$work/redis.sock" SOLKV.GET "$key" COMMITMENT confirmed
    redis-benchmark -p $redis -c 8 -P 16 -n 100000 -q GET "$key"
else
    echo "== redis-cli: left out, it is not installed (Debian: redis-tools)"
fi

echo "== curl: the value of a key, over both sockets and in a batch"
key=$(sed -n '2s/,.*//p' "$work/keys.csv")
value=$(curl -sf "127.0.0.1:$http/v1/get/$key" | sed 's/.*"value":"\([^"]*\)".*/\1/')
[ "${#value}" -ge 32 ]
curl -sf --unix-socket "$work/http.sock" "localhost/v1/get/$key?commitment=confirmed"
echo
curl -sf --json "{\"keys\":[\"$key\",\"$key\"]}" "127.0.0.1:$http/v1/get-many" | grep '"values":\["[^"]*","[^"]*"\]'
[ "$(curl -s -o /dev/null -w '%{http_code}' "127.0.0.1:$http/v1/get/no-key")" = 400 ]

if command -v go >/dev/null 2>&1; then
    echo "== grpcurl"
    [ -x "$CACHE/grpcurl" ] || GOBIN="$CACHE" go install github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3
    "$CACHE/grpcurl" -plaintext $listen list
    "$CACHE/grpcurl" -plaintext -d '{}' $listen solkv.v1.Kv/Status
    "$CACHE/grpcurl" -plaintext -max-time 20 -d "{\"from_seq\":$((pairs + 1))}" $listen solkv.v1.Feed/Subscribe \
        2>/dev/null | grep -m 2 -A 3 '"seq"'
else
    echo "== grpcurl: left out, there is no Go to install it with"
fi
