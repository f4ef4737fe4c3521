#!/bin/sh
# Makes the Debian package, and one with the symbols of its programs (solkv-dbgsym): deb.sh BIN OUT. VERSION overrides
# the workspace's version.
set -eu
bin=${1:?folder of the built binaries} out=${2:?folder for the package}
cd "$(dirname "$0")/../.."
here=deploy/package
version=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
arch=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
symbols=$work/symbols
"$here/tree.sh" "$bin" "$root" "$symbols"
doc=$root/usr/share/doc/solkv
cp "$here/copyright" "$doc/copyright"
# This is the date of the last change, not of the build, so that the same sources make the same package.
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
printf 'solkv (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- solkv <solkv@localhost>  %s\n' \
    "$version" "$(date -uRd "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.gz"
install -D -m 644 "$here/lintian-overrides" "$root/usr/share/lintian/overrides/solkv"
mkdir "$root/DEBIAN" "$work/debian"
# dpkg-shlibdeps only checks that the sources' own control file exists.
printf 'Source: solkv\n\nPackage: solkv\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O root/usr/bin/solkv-service root/usr/bin/solkv-bootstrap \
    root/usr/bin/solkv-loadgen | sed -n 's/^shlibs:Depends=//p')
size=$(du -k -s --exclude=DEBIAN "$root" | cut -f 1)
sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@SIZE@/$size/" -e "s/@DEPENDS@/$depends/" \
    "$here/control.in" >"$root/DEBIAN/control"
echo /etc/solkv/solkv.toml >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
    install -m 755 "$here/$script" "$root/DEBIAN/$script"
done
mkdir "$symbols/DEBIAN"
install -D -m 644 "$here/copyright" "$symbols/usr/share/doc/solkv-dbgsym/copyright"
size=$(du -k -s --exclude=DEBIAN "$symbols" | cut -f 1)
sed -e "s/@VERSION@/$version/" -e "s/@ARCH@/$arch/" -e "s/@SIZE@/$size/" "$here/control-dbgsym.in" >"$symbols/DEBIAN/control"
mkdir -p "$out"
pack() { # pack ROOT FILE COMPRESSION
    (cd "$1" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group "$3" --build "$1" "$2" >/dev/null
    echo "made: $2"
}
pack "$root" "$out/solkv_${version}_$arch.deb" -Zxz
# The contents of the symbols package are compressed already.
pack "$symbols" "$out/solkv-dbgsym_${version}_$arch.deb" -Znone
