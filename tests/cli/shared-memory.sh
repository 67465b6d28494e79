#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Shared host memory on the command line: kvtier replay, stat, ls, clear, doctor, config check.
#   KVTIER=build/kvtier sh tests/cli/shared-memory.sh
command=
. "$(dirname "$0")/lib"

# A directory of the test on a tmpfs.
shm=$(mktemp -d /dev/shm/kvtier-test.XXXXXX) || { echo 'no /dev/shm: skipped'; exit 77; }
trap 'rm -rf "$dir" "$shm"' EXIT
shared="--set shared_cpu=true --set max_shared_cpu_size=0.0625 --set shared_cpu_path=$shm"
only="$shared --set local_cpu=false --set max_local_cpu_size=0.0625
      --set lookup_timeout_ms=600000 --set blocking_timeout_secs=600"

# json EXPRESSION: must be true for o, the JSON in the file out
json() {
    command -v python3 >/dev/null || return 0
    python3 -c "import json; o = json.load(open('out')); assert $1, o" || fail "$1"
}

cat >trace <<END
{"input_length": 1024, "hash_ids": [1, 2]}
{"input_length": 1536, "hash_ids": [1, 2, 3]}
END

# Before an engine creates the memory, no command creates the memory.
expect 0 clear $shared
grep -q '^0 chunks deleted' out || fail 'a clear without memory'
expect 3 stat $shared
grep -q "no shared host memory in $shm" err || fail 'the missing memory is not named'
expect 0 ls $shared --set "remote_url=fs://$dir/store"
expect 0 doctor $shared --set max_local_cpu_size=0.0625
grep -q "^ok *shared memory *the host and $shm have room for 0.06 GiB" out ||
    fail 'doctor does not look for room'
[ ! -e "$shm/kvtier-$(id -u)/shared/table" ] || fail 'a command has made the memory'
expect 2 clear
grep -q 'shared_cpu is false' err || fail 'the missing setting is not named'

# The second engine finds the chunks of the first engine in host memory.
expect 0 replay --scale 1024 --json $only trace
json 'o["passes"][0]["hit_tokens"] == 1024'
expect 0 replay --scale 1024 --json $only trace
json 'o["passes"][0]["hit_tokens"] == 768 + 1280'
json 'o["passes"][0]["storage_hit_rate"] == 0'
json 'abs(o["passes"][0]["memory_hit_rate"] - o["passes"][0]["hit_rate"]) < 1e-4'
json 'o["passes"][0]["wrong_tokens"] == o["passes"][0]["load_failed"] == 0'

# Commands use the existing memory, also if the configured size differs.
expect 0 stat $shared
grep -q '^  chunks  6$' out || fail 'not 6 chunks'
grep -q '^  memory  .* of 67.1 MB allocated, last use: [12]' out || fail 'no line for memory'
expect 0 stat --json --set max_shared_cpu_size=0.125 --set "shared_cpu_path=$shm"
json 'o[0]["tier"] == "shared_cpu" and o[0]["chunks"] == 6'
json '0 < o[0]["allocated_bytes"] <= o[0]["limit_bytes"] == 1 << 26'
json 'o[0]["last_use"] > 1e9'
expect 0 ls $shared
grep -q '^6 chunks' out || fail 'not 6 chunks are listed'
key=$(sed -n '1s/.* //p' out)
expect 0 ls $shared other
grep -q '^0 chunks' out || fail 'a prefix lists all chunks'
expect 0 doctor $shared --set max_local_cpu_size=0.0625
grep -q "^ok *shared memory *0.06 GiB in $shm exist" out || fail 'doctor sees no memory'
grep -q '1 MiB was stored, read back and removed' out || fail 'doctor stores no chunk'
expect 0 config check $shared
grep -q "shared host memory takes 0.06 GiB of $shm" out || fail 'config check has no line'

# A load of more chunks than the process has pins finds all chunks, and each load again.
awk 'BEGIN { printf "{\"input_length\": 768000, \"hash_ids\": [0"
    for (i = 1; i < 1500; i++) printf ", %d", i
    print "]}" }' >long
mkdir "$shm/long"
long="--scale 1024 --json $only --set max_shared_cpu_size=0.25 --set shared_cpu_path=$shm/long"
# Until all of the memory is allocated, which takes a while on a busy machine, the first chunks are
# evicted.
n=0
until expect 0 replay $long long
      expect 0 stat --json $only --set max_shared_cpu_size=0.25 --set "shared_cpu_path=$shm/long"
      grep -q '"limit_bytes": 268435456.*"allocated_bytes": 268435456' out || [ $n -gt 100 ]; do
    n=$((n + 1))
done
expect 0 replay $long long
for i in 1 2; do
    expect 0 replay $long long
    json 'o["passes"][0]["hit_tokens"] == 768000 - 256'
    json 'o["passes"][0]["load_failed"] == 0 and o["passes"][0]["memory_hit_rate"] > 0.99'
done

# Requests by key.
expect 0 stat $shared "$key"
expect 0 get $shared "$key" chunk
expect 0 rm $shared "$key"
expect 1 stat $shared "$key"
expect 1 get $shared "$key" chunk
expect 0 put $shared "$key" chunk
expect 0 get $shared "$key" again
cmp -s chunk again || fail 'other bytes come back'
# storage that other hosts share takes no chunk with a time to live, and the memory takes the chunk
expect 0 put $shared --set "remote_url=fault://shared=1/fs://$dir/other" \
    --set max_ttl_seconds=1000 "$key" chunk
expect 0 stat $shared "$key"
grep -q '^expires *2' out || fail 'no end of the time to live'
expect 0 verify $shared
grep -q '^6 chunks.* 0 good, 6 without checksum, 0 bad' out || fail 'not 6 chunks without checksum'

# Another process has the memory open: the chunks go, the memory stays.
mkfifo input
"$kvtier" put $shared other@1@0@5@bfloat16 input &
holder=$!
exec 3>input
expect 1 clear $shared
grep -q '^6 chunks deleted$' out || fail 'the chunks are not deleted'
grep -q '1 other process has the memory open' err || fail 'the other process is not named'
[ -e "$shm/kvtier-$(id -u)/shared/table" ] || fail 'the memory is gone'
echo bytes >&3
exec 3>&-
wait $holder || fail 'put into cleared memory'
expect 0 ls $shared
grep -q '^1 chunks' out || fail 'the memory is not used after clear'

# No process has the memory open: clear frees the memory.
expect 0 clear --json $shared
json 'o["deleted_chunks"] == 1 and o["freed_bytes"] > 0 and not o["in_use"]'
[ ! -e "$shm/kvtier-$(id -u)/shared/table" ] || fail 'the memory stays after clear'
expect 0 replay --scale 1024 --json --requests 1 $only trace
json 'o["passes"][0]["hit_tokens"] == 0'
expect 0 clear $shared --set remote_url=s3://no-such-bucket --set s3_region=none
grep -q '^4 chunks deleted' out || fail 'clear needs the storage'
finish cli/shared-memory
