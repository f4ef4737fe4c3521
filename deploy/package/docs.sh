#!/bin/sh
# Lays out the documents below a folder, and what they point to: rules, dashboard and proto files. docs.sh DEST.
# A link to a part of the sources that is installed leads to where it is installed; one to any other part becomes plain text.
set -eu
dest=${1:?folder to fill}
cd "$(dirname "$0")/../.."
umask 022
doc=$dest/usr/share/doc/solkv share=$dest/usr/share/solkv
mkdir -p "$doc" "$share/prometheus" "$share/grafana"
install -m 644 deploy/prometheus/prometheus.yml deploy/prometheus/solkv.recording.yml deploy/prometheus/solkv.alerts.yml \
    "$share/prometheus/"
install -m 644 deploy/grafana/solkv.json "$share/grafana/"
(cd proto/proto && find . -name '*.proto') | while read -r file; do
    install -D -m 644 "proto/proto/$file" "$share/proto/$file"
done
for name in README GUIDE RUNBOOK ARCHITECTURE CHANGELOG METRICS RELIABILITY; do
    # First the parts that are installed, in links and in code; then pictures go, and links to the rest, which all begin
    # with a small letter, lose their target.
    sed -E \
        -e 's#(\]\(|`)deploy/(grafana|prometheus)#\1/usr/share/solkv/\2#g' \
        -e 's#\]\(proto\)#](/usr/share/solkv/proto)#g' \
        -e 's#\]\(deploy/systemd\)#](/usr/lib/systemd/system)#g' \
        -e '/^!\[[^]]*\]\([^)]*\)$/d' \
        -e 's#\[([^]]*)\]\([a-z][^):]*\)#\1#g' "$name.md" >"$doc/$name.md"
    chmod 644 "$doc/$name.md"
done
