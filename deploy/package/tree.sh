#!/bin/sh
# Installs all files of the package below a directory: deb.sh and tarball.sh pack it, the Dockerfile copies it.
# tree.sh BIN DEST [DEBUG]: BIN holds the built bootstrap, service and loadgen; DEST must not exist. Installed programs
# are stripped. DEBUG, if given, gets the symbols and lines, at the paths where gdb and backtraces look for them.
set -eu
bin=${1:?folder of the built binaries} dest=${2:?folder to fill} debug=${3:-}
cd "$(dirname "$0")/../.."
[ ! -e "$dest" ] || { echo "tree: is there already, remove it: dest=$dest" >&2; exit 1; }
umask 022
share=$dest/usr/share
mkdir -p "$dest/usr/bin" "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/vendor-completions" \
    "$share/fish/vendor_completions.d"
for name in service bootstrap loadgen; do
    program=$dest/usr/bin/solkv-$name
    # Symbols and debug information are 95% of the built program.
    objcopy --strip-all "$bin/$name" "$program"
    chmod 755 "$program"
    if [ -n "$debug" ]; then
        id=$(readelf -n "$program" | sed -n 's/^ *Build ID: *//p')
        [ ${#id} -gt 2 ] || { echo "tree: has no build id, link it with --build-id: file=$bin/$name" >&2; exit 1; }
        symbols=$debug/usr/lib/debug/.build-id/$(echo "$id" | cut -c 1-2)/$(echo "$id" | cut -c 3-).debug
        mkdir -p "$(dirname "$symbols")"
        objcopy --only-keep-debug --compress-debug-sections "$bin/$name" "$symbols"
        chmod 644 "$symbols"
        objcopy --add-gnu-debuglink="$symbols" "$program"
    fi
    "$program" man "$share/man/man1"
    "$program" completions bash >"$share/bash-completion/completions/solkv-$name"
    "$program" completions zsh >"$share/zsh/vendor-completions/_solkv-$name"
    "$program" completions fish >"$share/fish/vendor_completions.d/solkv-$name.fish"
done
deploy/package/man.sh "$share/man/man1"
install -m 644 deploy/host/solkv-host-check.1 "$share/man/man1/"
gzip -9n "$share/man/man1"/*.1
put() { # put MODE FILE TARGET
    mkdir -p "$(dirname "$dest/$3")"
    install -m "$1" "$2" "$dest/$3"
}
put 755 deploy/host/check.sh usr/bin/solkv-host-check
for unit in solkv.service solkv@.service solkv-bootstrap@.service solkv.slice; do
    put 644 "deploy/systemd/$unit" "usr/lib/systemd/system/$unit"
done
put 644 deploy/systemd/solkv.sysusers usr/lib/sysusers.d/solkv.conf
put 644 deploy/systemd/solkv.tmpfiles usr/lib/tmpfiles.d/solkv.conf
for dropin in deploy/systemd/memory-*.conf deploy/systemd/bootstrap-memory-*.conf; do
    put 644 "$dropin" "usr/share/solkv/systemd/$(basename "$dropin")"
done
put 644 deploy/package/solkv.toml etc/solkv/solkv.toml
deploy/package/docs.sh "$dest"
.ci/links --root "$dest" "$dest"/usr/share/doc/solkv/*.md
