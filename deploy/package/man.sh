#!/bin/sh
# Makes manual pages out of what clap writes: man.sh DIR. A description that only repeats the name's line goes, the part that
# clap calls EXTRA (notes, examples, exit codes) is called NOTES, and every page says where to read on.
set -eu
cd "${1:?folder of the pages}"
pages=$(ls -- *.1)
for page in $pages; do
    name=${page%.1}
    also=""
    for other in solkv-service solkv-bootstrap solkv-loadgen solkv-host-check; do
        [ "$other" = "$name" ] || also="$also${also:+, }$other(1)"
    done
    awk -v also="$also" '
        /^\.SH / { section = $2 }
        section == "NAME" && / \\- / { about = $0; sub(/^.* \\- /, "", about) }
        /^\.SH DESCRIPTION/ { next }
        # Its first line says what NAME says: left out. What is more than that keeps the heading.
        section == "DESCRIPTION" && $0 == about { next }
        section == "DESCRIPTION" { section = "said"; print ".SH DESCRIPTION" }
        /^\.SH EXTRA/ { $0 = ".SH NOTES" }
        { print }
        END { print ".SH SEE ALSO"; gsub(/-/, "\\-", also); print also }
    ' "$page" >"$page.new"
    mv "$page.new" "$page"
done
