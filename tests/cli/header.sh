# SPDX-License-Identifier: Apache-2.0
#
# The public header compiles alone as C99 and C++.  The library exports exactly the functions of
# the header.  The example is short and runs.
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
library=${KVTIER_LIBRARY:-$top/build/libkvtier.so}
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT

echo '#include <kvtier.h>
struct kvt_op op = KVT_INIT(struct kvt_op);' >"$temp/header.c"
cp "$temp/header.c" "$temp/header.cc"
cc -std=c99 -pedantic -Wall -Wextra -Werror -I"$top/include" -c "$temp/header.c" -o "$temp/c.o"
c++ -std=c++11 -pedantic -Wall -Werror -I"$top/include" -c "$temp/header.cc" -o "$temp/cc.o"

sed -n 's/.*\b\(kvt_[a-z0-9_]*\)(.*/\1/p' "$top/include/kvtier.h" | sort -u >"$temp/declared"
nm -D --defined-only "$library" | awk '$2 == "T" { sub(/@.*/, "", $3); print $3 }' |
    sort -u >"$temp/exported"
missing=$(comm -23 "$temp/declared" "$temp/exported")
[ -z "$missing" ] || { echo "in the header, not exported: $missing"; exit 1; }
extra=$(comm -13 "$temp/declared" "$temp/exported")
[ -z "$extra" ] || { echo "exported, not in the header: $extra"; exit 1; }

[ "$(wc -l <"$top/examples/store-and-load.c")" -le 100 ] || { echo "the example grew"; exit 1; }
cc -std=gnu11 -Wall -Wextra -Werror -I"$top/include" "$top/examples/store-and-load.c" \
    "$library" -Wl,-rpath,"$(dirname "$library")" -o "$temp/example"
"$temp/example" "$temp/store" >"$temp/first"
"$temp/example" "$temp/store" >"$temp/second"
grep -q '^0 of 1025 tokens' "$temp/first"
grep -q '^1024 of 1025 tokens' "$temp/second"
grep -q 'block 32 equals block 0' "$temp/second"
