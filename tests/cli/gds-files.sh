#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Files in the format of LMCache's GDS back end, without LMCache and without a GPU: the commands
# find, check, copy and remove such files.  tests/lmcache/test_gds.py compares the files with the
# files of the real LMCache.
#   KVTIER=build/kvtier sh tests/cli/gds-files.sh
command=
. "$(dirname "$0")/lib"
key=org/small-model@1@0@6e9ca116c2360103@bfloat16
file=79/70/org%2Fsmall-model%401%400%406e9ca116c2360103%40bfloat16.kvcache.safetensors

# A header of 4096 bytes, and 3072 bytes of payload: byte i is (7 * i + 3) % 256.
payload() {
    i=0
    while [ $i -lt 256 ]; do
        printf "\\$(printf %03o $(((7 * i + 3) % 256)))"
        i=$((i + 1))
    done >page
    cat page page page page page page page page page page page page
}
header='{"kvcache": {"dtype": "BF16", "shape": [2, 3, 16, 16], "data_offsets": [0, 3072], '
header=$header'"fmt": 1, "__metadata__": {"lmcache_version": "1"}}}'
payload >payload
{ printf '\370\017\0\0\0\0\0\0' && printf %-4088s "$header"; } >header

digest() { # WANTED FILE
    [ "$(sha256sum <"$2")" = "$1  -" ] || fail "$2 is not as LMCache writes it"
}
digest aae28bcb66a9ccc7a7aaa46fa4ba4013486b269e300b7be402ffb03a0d8aea1b header

make() { # DIRECTORY
    mkdir -p "$1/79/70"
    cat header payload >"$1/$file"
    cp header "$1/$file.metadata"
    digest faddf0fcaf7e3e547a3cf9025af82a0c12478e7c21df1a1d33457ea6e53bb0bf "$1/$file"
}

on() { # CODE ARGUMENTS...: with two directories
    expect "$@" --set "gds_path=$dir/a, $dir/b" --set max_gds_size=1
}

make "$dir/b" # not the one to which rank 0 writes
on 0 ls
grep -q "$key" out || fail 'not listed'
on 0 get "$key" back
cmp payload back || fail 'other bytes'
on 0 verify --json
grep -q '"without_checksum": 1' out || fail 'not told from those with a checksum'
on 0 stat "$key" --json
grep -q '"bytes": 3072, "has_checksum": false' out || fail 'its size, no checksum'
[ -d a ] || fail 'the other directory was not made'

# kvtier writes a data file and a metadata file into LMCache's directory tree.
on 0 put "$key" page
[ -e "a/$file" ] && [ -e "a/$file.metadata" ] || fail 'two files in the own directory'
head -c 4096 "a/$file" | cmp - "a/$file.metadata" || fail 'other metadata than the header'
tail -c +4097 "a/$file" | cmp - page || fail 'other bytes behind the header'
on 0 get "$key" back
cmp page back || fail 'not the newer bytes'
on 0 verify --json
grep -q '"good": 1, "without_checksum": 0' out || fail 'without a checksum'

# rm deletes the two files in each directory.
on 0 rm "$key"
[ -z "$(find a/79 b/79 -type f)" ] || fail "left: $(find a/79 b/79 -type f)"
on 1 get "$key" back

finish cli/gds-files
