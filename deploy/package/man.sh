#!/bin/sh
# Edits the manual pages that clap generates: man.sh DIR. It removes a description that only repeats the name's line,
# renames clap's section EXTRA (notes, examples, exit codes) to NOTES, and adds a section SEE ALSO to every page.
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
        # The first line repeats NAME and is left out. Any further text keeps the heading.
        section == "DESCRIPTION" && $0 == about { next }
        section == "DESCRIPTION" { section = "said"; print ".SH DESCRIPTION" }
        /^\.SH EXTRA/ { $0 = ".SH NOTES" }
        { print }
        END { print ".SH SEE ALSO"; gsub(/-/, "\\-", also); print also }
    ' "$page" >"$page.new"
    mv "$page.new" "$page"
done
