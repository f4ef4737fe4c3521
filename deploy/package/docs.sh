#!/bin/sh
# Installs the documents below a directory, with the rules, dashboard and proto files that they link to: docs.sh DEST.
# Links to installed parts of the sources lead to the installed files; links to other parts become plain text.
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
for name in README GUIDE RUNBOOK ARCHITECTURE CHANGELOG ERRORS METRICS RELIABILITY; do
    # First, links and code that name installed parts get the installed paths. Then pictures are removed, and links to
    # the rest, which all begin with a small letter, lose their target.
    sed -E \
        -e 's#(\]\(|`)deploy/(grafana|prometheus)#\1/usr/share/solkv/\2#g' \
        -e 's#\]\(proto\)#](/usr/share/solkv/proto)#g' \
        -e 's#\]\(deploy/systemd\)#](/usr/lib/systemd/system)#g' \
        -e '/^!\[[^]]*\]\([^)]*\)$/d' \
        -e 's#\[([^]]*)\]\([a-z][^):]*\)#\1#g' "$name.md" >"$doc/$name.md"
    chmod 644 "$doc/$name.md"
done
