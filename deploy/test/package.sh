#!/usr/bin/env bash
# Installs the package on a clean Debian under a real systemd, runs it, upgrades, removes and purges it, and checks the
# result of each step; package-inside.sh runs there. Needs root, systemd-nspawn, mmdebstrap and a Debian mirror.
# DEB is the package, SUITE the Debian release (bookworm). CACHE keeps the clean root between runs; OUT keeps the logs.
set -euo pipefail
: "${DEB:?the package; run this through make test TOPIC=package}"
DEB=$(realpath "$DEB")
cd "$(dirname "$0")/../.."
# shellcheck source=deploy/test/container.sh
. deploy/test/container.sh
container_needs package systemd-nspawn mmdebstrap dpkg-deb
SUITE=${SUITE:-bookworm}

work=$(mktemp -d)
out=$(realpath -m "${OUT:-$work/out}")
mkdir -p "$out" "$work/root"
cleanup() {
    container_leave
    rm -rf "$work"
}
trap cleanup EXIT

# The package's dependencies are installed already, because the container has no network.
tar=${CACHE:-$work}/debian-$SUITE.tar
if [ ! -f "$tar" ]; then
    mkdir -p "$(dirname "$tar")"
    mmdebstrap --quiet --format=tar --variant=minbase --include=systemd,libstdc++6 "$SUITE" "$tar.part"
    mv "$tar.part" "$tar"
fi
tar -C "$work/root" -xf "$tar"
cp "$DEB" "$work/root/srv/first.deb"
# Installed programs are stripped, and the dbgsym package has the symbols of each.
dpkg-deb -x "${DEB/solkv_/solkv-dbgsym_}" "$work/symbols"
dpkg-deb -x "$DEB" "$work/installed"
for program in "$work"/installed/usr/bin/solkv-{service,bootstrap,loadgen}; do
    # .debug_gdb_scripts stays: it is one line by Rust, and is loaded with the program.
    ! readelf -SW "$program" | grep -E '\.(symtab|debug_(info|line|str))' || { echo "package: is not stripped: $program" >&2; exit 1; }
    id=$(readelf -n "$program" | sed -n 's/^ *Build ID: *//p')
    symbols=$work/symbols/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug
    # readelf warns that a file without code has no interpreter.
    { readelf -SW "$symbols" 2>/dev/null | grep '\.debug_line ' && nm "$symbols" | grep ' main$'; } >/dev/null ||
        { echo "package: no symbols: program=$(basename "$program") file=$symbols" >&2; exit 1; }
done
# Every path and link in the installed documents is in the package.
.ci/links --root "$work/installed" "$work"/installed/usr/share/doc/solkv/*.md
# Each alert links to a heading of the installed runbook.
for url in $(sed -n 's/^ *runbook_url: file:\/\///p' "$work/installed/usr/share/solkv/prometheus/solkv.alerts.yml"); do
    grep -qix "### ${url#*#}" "$work/installed${url%%#*}" || { echo "package: leads nowhere: runbook_url=$url" >&2; exit 1; }
done
# The next version has the same programs and a changed default configuration.
dpkg-deb -R "$DEB" "$work/next"
sed -i 's/^Version: .*/Version: 999.0.0/' "$work/next/DEBIAN/control"
echo '# A line of the next version.' >>"$work/next/etc/solkv/solkv.toml"
dpkg-deb --root-owner-group -Znone --build "$work/next" "$work/root/srv/next.deb" >/dev/null
install -m 755 deploy/test/package-inside.sh "$work/root/srv/"
echo "package: $(basename "$DEB") on Debian $SUITE"
container_enter
container_run "$work/root" /srv/package-inside.sh "$out" "${TIME_LIMIT:-300}"
