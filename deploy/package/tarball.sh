#!/bin/sh
# Makes the tarball for systems without dpkg, and one with the symbols of its programs: tarball.sh BIN OUT. Unpacked
# over / with tar's --strip-components=1 it installs the same files as the package. The programs need only the C and C++
# runtime of the machine that built them, or a newer one.
set -eu
bin=${1:?folder of the built binaries} out=${2:?folder for the tarball}
cd "$(dirname "$0")/../.."
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
name=solkv-$version-$(uname -m)-linux-gnu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
deploy/package/tree.sh "$bin" "$work/$name" "$work/$name-dbgsym"
cp LICENSE-APACHE LICENSE-MIT "$work/$name/usr/share/doc/solkv/"
mkdir -p "$out"
stamp=$(git log -1 --format=%ct 2>/dev/null || date +%s)
for each in "$name" "$name-dbgsym"; do
    tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$stamp" -cf - "$each" |
        gzip -9n >"$out/$each.tar.gz"
    echo "made: $out/$each.tar.gz"
done
