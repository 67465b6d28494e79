#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kvtier codec on files and keys, and the other commands on encoded chunks: output, exit codes,
# JSON, the HTML page.
#   KVTIER=build/kvtier sh tests/cli/codec.sh
command=
top=$(cd "$(dirname "$0")/../.." && pwd)
library=${KVTIER_LIBRARY:-$top/build/libkvtier.so}
. "$(dirname "$0")/lib"
if ! command -v python3 >/dev/null || ! command -v cc >/dev/null; then
    echo 'skipped: needs python3 and a C compiler'
    exit 77
fi

# json CODE: the Python code CODE, with the lines of out as the list `lines`, must not fail
json() {
    python3 -c "import json; lines = [json.loads(line) for line in open('out')]; $1" ||
        fail "the JSON is not as it should be: $1"
}

# flip FILE OFFSET: change a byte
flip() {
    python3 -c 'import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(int(sys.argv[2])); b = f.read(1)[0] ^ 1; f.seek(int(sys.argv[2])); f.write(bytes([b]))' "$@"
}

# A file of LMCache (header, no trailer) with K and V of 2 layers, 64 tokens, 128 channels; its
# payload; the first lossless and the first kv8 frame of the seeds of fuzz-frame.
python3 - "$top/fuzz/frame.seeds" <<'END'
import random, re, struct, sys

random.seed(1)
payload = b"".join(struct.pack("<f", random.gauss(0, 2 ** (i % 5)))[2:]
                   for i in range(2 * 2 * 64 * 128))
header = struct.pack("<7I", len(payload), 1, 3, 2, 2, 64, 128)
open("lmcache.data", "wb").write(header + payload)
open("payload", "wb").write(payload)
for line in open(sys.argv[1]):
    frame = bytes(int(x, 16) for x in re.findall(r"\\x(..)", line))
    if frame:
        name = {1: "lossless", 2: "kv8", 3: "kv4"}.get(frame[24], "other") + ".frame"
        with open(name, "ab") as file:
            if not file.tell():
                file.write(frame)
END
key=org/model@1@0@5@bfloat16
store="--set remote_url=fs://$dir/store"

# ---------------------------------------------------------------- files
expect 0 codec lmcache.data
grep -q '^1 chunks, 65.5 kB$' out || fail 'the sum is not printed'
grep -q '^lossless  *1\.[2-5]' out || fail 'no ratio of lossless'
grep -q '^kv8  *1\.[5-9].* 0\.[0-9]* ' out || fail 'no error of kv8'
expect 0 codec --json lmcache.data kv8.frame
json 'a, b, all = lines
assert (a["name"], a["dtype"], a["encoding"], a["bytes"]) == (
    "lmcache.data", "bfloat16", "naive", 65536), a
assert not a["is_lossy"] and not a["is_estimate"], a
assert b["encoding"] == "kv8" and b["is_lossy"] and not b["is_estimate"], b
assert (all["chunks"], all["failed"], all["lossy"], all["estimates"]) == (2, 0, 1, 0), all
for row in a["codecs"] + all["codecs"]:
    assert row["left_out"] == 0 and row["encode_bytes_per_s"] > 0, row
    assert abs(row["ratio"] - row["bytes"] / row["encoded_bytes"]) < 1e-4, row
    assert (row["rms_error"] == 0) == (row["codec"] == "lossless"), row
sums = {row["codec"]: row for row in all["codecs"]}
assert {"lossless", "kv8", "kv4"} <= set(sums), sums
for x, y in zip(a["codecs"], b["codecs"]):
    sum = sums[x["codec"]]
    assert sum["encoded_bytes"] == x["encoded_bytes"] + y["encoded_bytes"], sum'
expect 0 codec --each lmcache.data kv8.frame
grep -q '^kv8.frame$' out || fail 'no table for each chunk'
grep -q '1 of 2 chunks are stored by a lossy codec: their errors are relative' out ||
    fail 'no note about the lossy chunk'

# Without layout only lossless is measured, with the type in the name.
cp payload 'org-SEP-model@1@0@5@bfloat16.data'
expect 0 codec org*
grep -q '^kv8: 1 of 1 chunks left out: the layout of the chunk is unknown' out ||
    fail 'no reason for kv8'
grep -q '^1 of 1 chunks have no known layout' out || fail 'no note about the estimate'
expect 0 codec --json org*
json 'chunk, all = lines
assert chunk["is_estimate"] and all["estimates"] == 1, lines
assert [row["chunks"] for row in all["codecs"]] == [1] + [0] * (len(all["codecs"]) - 1), all
assert all["codecs"][1]["why"], all'

# A pipe is a file.
cat lmcache.data | expect 0 codec /dev/stdin

# ---------------------------------------------------------------- bad files
mkdir folder
: >empty
head -c 20000 lmcache.data >cut.data
head -c 1000 kv8.frame >cut.frame
cp kv8.frame flipped.frame
flip flipped.frame 500
for file in empty cut.data cut.frame flipped.frame payload; do
    expect 1 codec $file
    [ -s err ] || fail "codec $file: no error"
done
grep -q 'payload: the type of the elements is unknown' err || fail 'no reason'
truncate -s 8E sparse 2>/dev/null || truncate -s 4T sparse
for file in folder absent folder/absent sparse; do
    expect 3 codec $file
    grep -q "codec: read $file: " err || fail "codec $file: no reason"
done
grep -q 'does not fit in memory' err || fail 'sparse: no reason'
expect 3 codec lmcache.data folder
grep -q '^1 chunks, 65.5 kB, 1 failed$' out || fail 'the good chunk is not measured'
expect 1 codec --json lmcache.data empty
json 'a, b, all = lines
assert b["name"] == "empty" and b["error"], b
assert (all["chunks"], all["failed"]) == (1, 1), all'
expect 2 codec
expect 2 codec $key
expect 3 codec --html absent/page.html lmcache.data
[ ! -s out ] || fail 'a measurement without a page'

# ---------------------------------------------------------------- the page
name='<b>&"@bfloat16'
cp payload "$name"
expect 1 codec --html page.html lmcache.data kv8.frame "$name" empty
grep -q '<svg' page.html || fail 'no chart'
grep -q '&lt;b&gt;&amp;&quot;@bfloat16' page.html || fail 'the name is not escaped'
grep -q '<b>\|http\|<script\|src=' page.html && fail 'the page refers to other files'
grep -q 'class="failed">empty: the file is truncated' page.html || fail 'the failure is not shown'
[ ! -e page.html.kvtier-part ] || fail 'a temporary file stays'

# ---------------------------------------------------------------- keys
expect 1 codec $key $store
expect 0 put $key payload $store
expect 0 codec --json $key lmcache.data $store
json 'assert [x["is_estimate"] for x in lines[:2]] == [True, False], lines'
expect 3 codec $key --set remote_url=fs:///proc/absent
expect 2 codec no@key $store

# An encoded chunk under its key, and bytes that are no encoded chunk.
encoded="org/model@1@0@6@bfloat16@kvt%lossless"
expect 0 put "$encoded" lossless.frame $store
expect 0 stat "$encoded" $store
grep -q '^encoding  lossless$' out || fail 'stat: no encoding'
expect 0 stat "$encoded" --json $store
json 'assert lines[0]["encoding"] == "lossless", lines'
expect 0 stat $key $store
grep -q '^encoding  naive$' out || fail 'stat: no encoding of a naive chunk'
expect 0 get "$encoded" back $store
cmp lossless.frame back || fail 'get: other bytes'
grep -q 'is encoded as lossless; --decode writes' err || fail 'get: no note'
expect 0 get --decode "$encoded" decoded $store
[ ! -s err ] || fail 'get --decode: a note'
[ "$(wc -c <decoded)" -gt "$(wc -c <back)" ] || fail 'get --decode: not decoded'
expect 0 get --decode $key back $store
cmp payload back || fail 'get --decode of a naive chunk'
expect 0 verify $store
grep -q '2 good, 0 without checksum, 0 bad' out || fail 'verify'
expect 0 codec "$encoded" $store
for bad in kv8.frame payload flipped.frame empty; do
    expect 0 put "$encoded" $bad $store
    expect 1 verify $store
    grep -q 'bad: .*kvt%lossless: ' out || fail "verify of $bad"
    expect 0 get "$encoded" back $store
    cmp $bad back || fail 'get: other bytes'
done
expect 1 get --decode "$encoded" absent $store
[ ! -e absent ] || fail 'get --decode wrote a corrupt chunk'
expect 1 codec "$encoded" $store

# A sample of the store.
expect 0 codec --sample 5 --set "remote_url=fs://$dir/none"
grep -q '^0 chunks, 0 B$' out || fail 'the sample of an empty store'
expect 1 codec --sample 2 $store
grep -q '^1 chunks, 65.5 kB, 1 failed$' out || fail 'the sample of a store'
expect 2 codec --sample 0 $store

# The chunks of an engine: each command works, and a copy is byte for byte the source.
# Lossy codecs need a known packing of the blocks.
sed 's|group.n_layers = 1;|&\n    group.n_heads = 1, group.packing = KVT_PACKING_HEADS;\n    group.head_bytes = BLOCK_BYTES / (2 * BLOCK);|' \
    "$top/examples/store-and-load.c" >example.c
cc -std=gnu11 -I"$top/include" example.c "$library" \
    -Wl,-rpath,"$(dirname "$library")" -o example
for codec in lossless kv8; do
    KVTIER_REMOTE_SERDE=$codec ./example "$dir/$codec" >/dev/null || fail 'the example'
    printf 'remote_url: fs://%s/%s\nremote_serde: %s\n' "$dir" $codec $codec >from.yaml
    printf 'remote_url: fs://%s/%s-copy\nremote_serde: %s\n' "$dir" $codec $codec >to.yaml
    expect 0 ls --json --config from.yaml
    keys=$(python3 -c 'import json; print(*[json.loads(x)["key"] for x in open("out")])')
    [ "$(echo $keys | wc -w)" = 4 ] || fail "$codec: the engine has stored $keys"
    expect 0 verify --config from.yaml
    grep -q '4 good, 0 without checksum, 0 bad' out || fail "$codec: verify"
    expect 0 codec --json $keys --config from.yaml
    json "assert lines[-1]['chunks'] == 4 and lines[0]['encoding'] == '$codec', lines"
    expect 0 codec --json "$codec"/kvtier/*
    json "assert lines[-1]['chunks'] == 4 and lines[0]['encoding'] == '$codec', lines"
    expect 0 codec --json --sample 3 --config from.yaml
    json "assert lines[-1]['chunks'] == 3, lines"
    expect 0 cp --from from.yaml --to to.yaml
    diff -r -x .kvtier $codec $codec-copy || fail "$codec: the copy differs"
    KVTIER_REMOTE_SERDE=$codec ./example "$dir/$codec-copy" | grep -q '^1024 of 1025' ||
        fail "$codec: the copy is no hit"
done
finish cli/codec
