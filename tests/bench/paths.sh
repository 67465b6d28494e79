#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kvtier-bench: names of cases, exit codes, JSON, and that a case deletes its files.  Asserts
# nothing about speed.
#   KVTIER=build/kvtier sh tests/bench/paths.sh
command=
. "$(dirname "$0")/../cli/lib"
kvtier=$(dirname "$kvtier")/kvtier-bench

cases='file.write file.read file.read.threads file.cpu file.retrieve
    engine.store_file
    cpu.store cpu.retrieve cpu.store.paged cpu.retrieve.paged
    lookup.builtin lookup.sha256_cbor index.bytes index.find index.store index.processes
    codec.lossless.size codec.lossless.encode codec.lossless.decode
    codec.kv8.encode codec.kv8.decode codec.kv4.encode codec.kv4.decode
    codec.cachegen.size codec.cachegen.encode codec.cachegen.decode
    open.index scan.warm scan.cold
    gds.write gds.read gds.scan gds.scan.cold'
s3_cases='s3.get s3.put s3.get.tls s3.put.tls s3.get.rate s3.head s3.memory'
gpu_cases='gds.gpu.write gds.gpu.read gpu.gather.nhd gpu.gather.hnd gpu.scatter.nhd
    gpu.scatter.hnd gpu.store.nhd gpu.store.hnd gpu.load.nhd gpu.load.hnd'
hf3fs_cases='hf3fs.write hf3fs.read hf3fs.cpu.write hf3fs.cpu.read hf3fs.rate hf3fs.exists'

expect 0 --list
for name in $cases $gpu_cases $s3_cases $hf3fs_cases; do
    grep -q "^$name  " out || fail "--list does not name $name"
done
[ "$(wc -l <out)" -eq "$(echo $cases $gpu_cases $s3_cases $hf3fs_cases | wc -w)" ] ||
    fail '--list names other cases'

expect 2 --case no.such.case
grep -q "no case 'no.such.case'" err || fail 'the message does not name the unknown case'
expect 2 --case lookup.builtin --case 'no*'
grep -q "no case 'no\*'" err || fail 'the message does not name the pattern without a case'
expect 2 --nonsense
expect 2 nonsense
expect 3 --quick --case lookup.builtin --dir "$dir/absent"
expect 0 --help

# Expect the gpu cases only if the machine has a GPU; gpu.sh tests the gpu cases with fakes.
"$kvtier" --quick --case gpu.gather.nhd >out 2>err
[ "$(wc -l <out)" -gt 1 ] && cases="$cases $gpu_cases"

# Expect the s3 cases only if their server was built.
[ -x "${kvtier%/*}/tests/servers/http-sink" ] && cases="$cases $s3_cases"
expect 3 --quick --case s3.get --server "$dir/absent"
grep -q 'ninja -C build tests/servers/http-sink' err ||
    fail 'the message does not name the program to build'

# Expect the hf3fs cases only if the machine can mount 3FS; otherwise expect a message with the
# reason.
expect 3 --quick --case hf3fs.read --daemon "$dir/absent"
grep -q "hf3fs cases need a mount of 3FS.*$dir/absent" err ||
    fail 'the message does not name the absent daemon'
if [ -x "${kvtier%/*}/tests/servers/usrbiod" ] && [ -w /dev/fuse ] && mkdir mounts &&
   "$kvtier" --quick --case hf3fs.rate --dir mounts >out 2>err && [ -s out ]; then
    cases="$cases $hf3fs_cases"
else
    expect 0 --quick --case hf3fs.rate
    grep -q 'hf3fs cases .* skipped' err || fail 'no reason why hf3fs.rate is skipped'
    echo 'bench/paths: without the hf3fs cases:' "$(head -n 1 err)"
fi

mkdir work
expect 0 --quick --json --dir work # --quick keeps the page cache, so scan.cold needs no root
if command -v python3 >/dev/null; then
    python3 - out $cases <<'END' || fail 'unexpected JSON'
import json, sys

lines = [json.loads(line) for line in open(sys.argv[1])]
assert [line["case"] for line in lines] == sys.argv[2:], lines
for line in lines:
    for name in ("value", "limit", "ratio"):
        assert isinstance(line[name], float), (name, line)
    assert isinstance(line["unit"], str) and line["threads"] >= 1, line
    # A case of files measured files: all chunks are in storage.
    if line["case"].startswith("file.") or line["case"] == "engine.store_file":
        assert line["storage_bytes"] >= line["chunks"] * line["chunk_bytes"] > 0, line
END
fi
[ -z "$(ls -A work)" ] || fail "work is not empty: $(ls -A work)"

expect 0 --quick --case lookup.builtin --case file.read --dir work
grep -q '^lookup.builtin .* ms ' out || fail 'no row of lookup.builtin'
grep -q '^file.read .* GB/s ' out || fail 'no row of file.read'
if grep -q '^file.write' out; then
    fail 'a case ran that --case does not name'
fi

expect 0 --quick --case 'lookup.*' --case '*.builti[n]' --dir work
[ "$(grep -c '^lookup' out)" -eq 2 ] || fail 'the patterns match two cases: expected each once'
[ "$(grep -c '^[a-z]*\.' out)" -eq 2 ] || fail 'a pattern matched other cases'
finish bench/paths
