# SPDX-License-Identifier: Apache-2.0
#
# The pages that are made from tables say what the tables say.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
temp=$(mktemp)
trap 'rm -f "$temp"' EXIT

"$top/scripts/make-metrics-docs" >"$temp"
cmp "$temp" "$top/docs/metrics.md" || {
    echo "docs/metrics.md differs from src/base/counters.def: run scripts/make-metrics-docs >docs/metrics.md"
    exit 1
}
for word in $(sed -n "s/^tiers = \[\(.*\)\]/\1/p" "$top/src/tier/meson.build" | tr -d "',"); do
    grep -q "^| \`$word\`" "$top/docs/tiers.md" || {
        echo "docs/tiers.md has no row for the tier '$word'"
        exit 1
    }
done
