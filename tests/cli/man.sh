# SPDX-License-Identifier: Apache-2.0
#
# The manual page describes each command, option and exit code of --help, and formats without a
# warning.
set -eu
kvtier=${KVTIER:-build/kvtier}
page=$(dirname "$kvtier")/kvtier.1
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT

sed 's/\\-/-/g' "$page" >"$temp/page"
lacks() { echo "kvtier.1 lacks '$1' of kvtier $2 --help"; exit 1; }

commands=$("$kvtier" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
[ "$(echo $commands | wc -w)" -gt 5 ] || { echo "--help names few commands: $commands"; exit 1; }
for c in $commands; do
    grep -q "^\.SS \"$c - " "$temp/page" || lacks "$c" ''
    sed -n "/^\.SS \"$c - /,/^\.S[SH] [^\"]*$/p" "$temp/page" |
        sed '1b; /^\.SS/,$d' >"$temp/section"
    for option in $("$kvtier" "$c" --help | grep -o -e '--[a-z][a-z-]*' | sort -u); do
        grep -q -e "$option\b" "$temp/section" || lacks "$option" "$c"
    done
    sed -n '/^\.SH EXIT STATUS/,/^\.SH ENVIRONMENT/p' "$temp/page" | grep -qx "\.B $c" ||
        lacks "exit code 1" "$c"
done
"$kvtier" --help | sed -n '/^Exit codes:/,$s/^  \([0-9]\)  .*/\1/p' >"$temp/codes"
[ "$(wc -l <"$temp/codes")" -eq 4 ]
while read -r code; do
    grep -qx "\.B $code" "$temp/page" || lacks "$code" ''
done <"$temp/codes"
if grep -n '@[A-Z_]*@$' "$temp/page"; then
    echo 'kvtier.1 has a place that was not filled in'
    exit 1
fi

if command -v groff >/dev/null; then
    groff -man -ww -z "$page" 2>"$temp/warnings" || true
elif command -v mandoc >/dev/null; then
    mandoc -T lint -W warning "$page" >"$temp/warnings" || true
else
    exit 0
fi
[ ! -s "$temp/warnings" ] || { cat "$temp/warnings"; exit 1; }
