#!/bin/sh
# Lays out what is installed below a folder: deb.sh and tarball.sh pack it, the Dockerfile copies it.
# tree.sh BIN DEST: BIN holds the built bootstrap, service and loadgen; DEST must not exist.
set -eu
bin=${1:?folder of the built binaries} dest=${2:?folder to fill}
cd "$(dirname "$0")/../.."
[ ! -e "$dest" ] || { echo "tree: is there already, remove it: dest=$dest" >&2; exit 1; }
umask 022
share=$dest/usr/share
mkdir -p "$dest/usr/bin" "$share/man/man1" "$share/bash-completion/completions" "$share/zsh/vendor-completions" \
    "$share/fish/vendor_completions.d"
for name in service bootstrap loadgen; do
    program=$dest/usr/bin/solkv-$name
    # Without debug information, which is nine tenths of it; symbols stay, so that a backtrace names functions.
    objcopy --strip-debug "$bin/$name" "$program"
    chmod 755 "$program"
    "$program" man "$share/man/man1"
    "$program" completions bash >"$share/bash-completion/completions/solkv-$name"
    "$program" completions zsh >"$share/zsh/vendor-completions/_solkv-$name"
    "$program" completions fish >"$share/fish/vendor_completions.d/solkv-$name.fish"
done
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
for dropin in deploy/systemd/memory-*.conf; do
    put 644 "$dropin" "usr/share/solkv/systemd/$(basename "$dropin")"
done
put 644 deploy/package/solkv.toml etc/solkv/solkv.toml
for doc in README.md RUNBOOK.md ARCHITECTURE.md CHANGELOG.md; do
    put 644 "$doc" "usr/share/doc/solkv/$doc"
done
