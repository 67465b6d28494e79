#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kvtier cp: an engine hits the copies; cp does not copy corrupt and unverifiable chunks; a second
# cp resumes an interrupted copy.
#   KVTIER=build/kvtier sh tests/cli/cp.sh
command=
servers=$(cd "$(dirname "$0")/../servers" && pwd)
. "$(dirname "$0")/lib"
if ! command -v python3 >/dev/null; then
    echo 'skipped: needs python3'
    exit 77
fi

has() { grep -q -- "$1" out err || fail "'$1' is not printed"; }
# json EXPRESSION: must be true for o, the last JSON object in the file out
json() {
    python3 -c "import json; o = json.loads(open('out').read().splitlines()[-1]); assert $1, o" ||
        fail "$1"
}

common='max_local_cpu_size: 0.0625
local_cpu: false
lookup_timeout_ms: 600000
blocking_timeout_secs: 600'
make() { # NAME SETTING...: write the configuration NAME.yaml
    name=$1
    shift
    { echo "$common"; printf '%s\n' "$@"; } >"$name.yaml"
}
for name in fs other; do make $name "remote_url: fs://$dir/$name"; done
make disk "local_disk: $dir/disk" 'max_local_disk_size: 1'
make gds "gds_path: $dir/gds"

# An engine stores the chunks of two requests.
cat >trace <<END
{"input_length": 1024, "hash_ids": [1, 2]}
{"input_length": 8192, "hash_ids": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]}
END
engine() { expect 0 replay --scale 1024 --json --config "$@" trace; }
hits() { # CONFIGURATION: an engine hits all that an engine with fs hits
    engine "$1"
    json 'o["passes"][0]["hit_tokens"] == 768 + 7936'
    json 'o["passes"][0]["storage_hit_rate"] > 0'
    json 'o["passes"][0]["wrong_tokens"] == o["passes"][0]["load_failed"] == 0'
}
engine fs.yaml
hits fs.yaml
expect 0 ls --config fs.yaml
total=$(sed -n '$s/ chunks.*//p' out)
[ "$total" -ge 32 ] || fail "only $total chunks"

for to in disk other gds; do
    expect 0 cp --from fs.yaml --to $to.yaml
    has "^$total chunks, .* copied, 0 skipped, 0 failed\$"
    expect 0 verify --config $to.yaml
    has "^$total chunks.*: $total good"
    cp -r $to $to.before
    hits $to.yaml
    expect 0 cp --from fs.yaml --to $to.yaml --json
    json "o['copied_chunks'] == 0 and o['skipped_chunks'] == $total and o['complete']"
done

# Between storage with the same format a copy is byte for byte the source, header included; a copy
# by way of gds keeps the shape of the KV.
make disk2 "local_disk: $dir/disk2" 'max_local_disk_size: 1'
make gds2 "gds_path: $dir/gds2"
make other2 "remote_url: fs://$dir/other2"
for pair in 'fs other' 'disk disk2' 'gds gds2' 'gds other2'; do
    set -- $pair
    [ "$pair" = 'fs other' ] || expect 0 cp --from "$1.yaml" --to "$2.yaml"
    same=$1
    [ "$pair" != 'gds other2' ] || same=fs
    diff -r -x .kvtier "$same" "$2" >out 2>&1 || fail "the copy from $1 to $2 differs"
done
rm -rf disk2 gds2 other2

# A chunk that one of two targets has is copied to the other target.
make both "local_disk: $dir/disk" 'max_local_disk_size: 1' "remote_url: fs://$dir/both"
expect 0 cp --from disk.yaml --to both.yaml --model replay
has "^$total chunks, .* copied, 0 skipped, 0 failed\$"
expect 0 cp --from disk.yaml --to both.yaml --model replay
has "^0 chunks, .* copied, $total skipped, 0 failed\$"
expect 0 ls --config both.yaml
has "^$((2 * total)) chunks"
rm -rf both

# cp copies no chunks from shared host memory, and does not count the chunks as failures.
shm=$(mktemp -d /dev/shm/kvtier-test.XXXXXX) || exit 1
trap 'rm -rf "$dir" "$shm"' EXIT
make shared "remote_url: fs://$dir/fs" 'max_shared_cpu_size: 0.0625' "shared_cpu_path: $shm"
engine shared.yaml
expect 0 stat --config shared.yaml
has '^shared_cpu'
make third "remote_url: fs://$dir/third"
expect 0 cp --from shared.yaml --to third.yaml
has "^$total chunks, .* copied, 0 skipped, 0 failed\$"

# A copy has the source chunk's identity and tokens.
expect 0 ls --config fs.yaml --json
key=$(python3 -c 'import json; print(json.loads(open("out").readline())["key"])')
expect 0 stat "$key" --config fs.yaml --json
cp out first
expect 0 stat "$key" --config disk.yaml --json
cmp -s out first || fail 'stat of a copy differs'

# A copy would outlive a chunk with a time to live, so cp skips the chunk.
make brief "remote_url: fs://$dir/brief" 'max_ttl_seconds: 1000'
make kept "remote_url: fs://$dir/kept"
head -c 1000 /dev/urandom >in
expect 0 put org/m@1@0@1f@bfloat16 in --config brief.yaml
expect 0 cp --from brief.yaml --to kept.yaml
has '^0 chunks, .* copied, 1 skipped, 0 failed$'
expect 0 ls --config kept.yaml
has '^0 chunks'

# Copies to S3.
mkfifo hold
python3 -B "$servers/s3.py" --bucket kv <hold >facts 2>log &
exec 9>hold # the server ends with this
await_facts $!
port=$(sed -n 's/.*"port": \([0-9]*\).*/\1/p' facts)
[ -n "$port" ] || { cat log; exit 1; }
forget() {
    python3 -c 'import hashlib, os, shutil, sys
for url in sys.argv[1:]:
    digest = hashlib.sha256(url.encode()).digest()
    shutil.rmtree("/var/tmp/kvtier-%d/%016x" % (
        os.geteuid(), int.from_bytes(digest[:8], "little")), ignore_errors=True)' "$@"
}
trap 'forget "s3://127.0.0.1:$port/kv/"; rm -rf "$dir" "$shm"' EXIT
export AWS_EC2_METADATA_DISABLED=true HOME="$dir" no_proxy='*'
export AWS_ACCESS_KEY_ID=AKTEST AWS_SECRET_ACCESS_KEY=SKTEST
make s3 'remote_url: s3://kv' "s3_endpoint_url: http://127.0.0.1:$port"
expect 0 cp --from fs.yaml --to s3.yaml
has "^$total chunks, .* copied, 0 skipped, 0 failed\$"
hits s3.yaml

# A key from S3 is ambiguous if the model's name contains '_': --model names the model.
slashed=org/my_model@1@0@1a540024b49d3bfe@bfloat16
head -c 1000 /dev/urandom >in
expect 0 put $slashed in --config s3.yaml
make back "remote_url: fs://$dir/back"
expect 2 cp --from s3.yaml --to back.yaml
has "'org_my_model' may stand for several models"
expect 0 cp --from s3.yaml --to back.yaml --model org/my_model
has '^1 chunks, '
expect 0 get $slashed bytes --config back.yaml
cmp -s in bytes || fail 'other bytes'
expect 0 cp --from s3.yaml --to back.yaml --prefix "${key%%@*}@"
has "^$total chunks, .* copied, 0 skipped"
hits back.yaml

# Corrupt chunks and chunks of LMCache are reported, and the other chunks are copied.
rm -rf other disk
flip() { # FILE OFFSET
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\$(printf %03o $(((byte + 1) % 256)))" |
        dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
files=$(find fs -name '*.data' | sort)
flip "$(echo "$files" | head -n 1)" 100
truncate -s -64 "$(echo "$files" | sed -n 2p)"
expect 1 cp --from fs.yaml --to disk.yaml
has "^$((total - 2)) chunks, .* copied, 0 skipped, 2 failed\$"
has 'the checksum is wrong'
expect 1 cp --from fs.yaml --to disk.yaml --json
json "o['failed_chunks'] == 2 and o['skipped_chunks'] == $((total - 2))"
[ "$(grep -c '"error": ' out)" -eq 2 ] || fail 'not 2 errors'
[ ! -s err ] || fail 'an error on the standard error'

# A full target ends the copy.
make full 'remote_storage_plugins: fault' 'extra_config:' \
    "  remote_storage_plugin.fault.base_path: enospc=1/fs://$dir/full"
rm -rf gds fs
cp -r gds.before gds
expect 3 cp --from gds.yaml --to full.yaml
has 'disk full'

# After an interrupt a second cp skips the copied chunks.
make slow 'disk_io_threads: 1' 'remote_storage_plugins: fault' 'extra_config:' \
    "  remote_storage_plugin.fault.base_path: delay=1,delay_ms=100/fs://$dir/late"
make late "remote_url: fs://$dir/late"
for signal in INT HUP; do
    rm -rf late
    env --default-signal=HUP "$kvtier" cp --from gds.yaml --to slow.yaml >out 2>err &
    pid=$!
    until [ -n "$(find late -name '*.data' 2>/dev/null)" ]; do
        kill -0 $pid || break
        sleep 0.05
    done
    kill -$signal $pid
    wait $pid
    code=$?
    [ $code -eq 1 ] || fail "an interrupted copy: exit $code"
    has ' left: the same command continues$'
    copied=$(sed -n 's/ chunks.*//p' out)
    expect 0 cp --from gds.yaml --to late.yaml --json
    json "o['skipped_chunks'] == $copied and o['copied_chunks'] == $total - $copied"
    hits late.yaml
done

# wrong usage
expect 2 cp --from gds.yaml --to gds.yaml
has 'name the same storage'
KVTIER_REMOTE_URL=fs://$dir/late expect 2 cp --from fs.yaml --to other.yaml
has 'variables override both files'
make nowhere "remote_url: fs://$dir/other" 'store_location: LocalCPUBackend'
expect 2 cp --from gds.yaml --to nowhere.yaml
has 'stores no chunk in storage'
expect 2 cp --from fs.yaml
expect 2 cp --to fs.yaml
expect 2 cp --from fs.yaml --to disk.yaml --set chunk_size=1
expect 2 cp --from absent.yaml --to disk.yaml
finish cli/cp
