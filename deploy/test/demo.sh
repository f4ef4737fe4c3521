#!/usr/bin/env bash
# Tests `make build`, `make demo` and `make demo-archive` with scripts in the place of cargo and of the programs: the demos
# run to their end, leave alone what `make build` has made, and take their accounts from the seed. Nothing is compiled.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "demo: $*" >&2; cat "$work/out" >&2; exit 1; }
export FAKE=$work/program FOLLOWED=$work/followed CARGO_TARGET_DIR=$work/target
mkdir "$work/bin"
cat >"$work/bin/cargo" <<'END'
#!/bin/sh
# Builds three programs in the place of earlier ones, as cargo does. Their last line has the options.
mkdir -p "$CARGO_TARGET_DIR/release"
for name in bootstrap service loadgen; do
    rm -f "$CARGO_TARGET_DIR/release/$name"
    { cat "$FAKE"; echo "# $*"; } >"$CARGO_TARGET_DIR/release/$name"
    chmod +x "$CARGO_TARGET_DIR/release/$name"
done
END
cat >"$FAKE" <<'END'
#!/bin/sh
case "$(basename "$0") $*" in
*--keys*) echo "accounts that are not the seed's: $*"; exit 1 ;;
"loadgen archive "*) touch "${*##*--out }/snapshot-1-hash.tar.zst" ;;
"loadgen live "*) touch "$FOLLOWED" ;;
"bootstrap verify "*) [ ! -f "$FOLLOWED" ] || { echo "different: key=ACCOUNT expected=FORMER found=OTHER"; exit 1; } ;;
"bootstrap get "*) echo "ACCOUNT OTHER" ;;
esac
END
chmod +x "$work/bin/cargo"
target() { # target NAME [VARIABLE=VALUE]
    rm -f "$FOLLOWED"
    env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL -u ENGINES -u ENGINE PATH="$work/bin:$PATH" make -o setup "$@" >"$work/out" 2>&1 ||
        fail "failed: make $*"
}

target build ENGINES="lmdb strata"
built=$(sed -n 's/^built: \([^ ]*\) .*/\1/p' "$work/out")
cp "$built" "$work/before"
for demo in demo demo-archive; do
    target "$demo"
    cmp -s "$CARGO_TARGET_DIR/release/bootstrap" "$work/before" && fail "make $demo has built nothing"
    cmp -s "$built" "$work/before" || fail "make $demo has replaced the programs of make build"
done
grep -q '^archive: ACCOUNT FORMER$' "$work/out" && grep -q '^now:     ACCOUNT OTHER$' "$work/out" ||
    fail "make demo-archive does not show a changed account"
echo "demo: the programs of make build stay"
