#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kvtier replay of a small trace: hits by tier, exit codes, JSON.
#   KVTIER=build/kvtier sh tests/cli/replay.sh
command=replay
. "$(dirname "$0")/lib"

# The second request begins with the tokens of the first request.
cat >trace <<END
{"input_length": 1024, "hash_ids": [1, 2]}
{"input_length": 1536, "hash_ids": [1, 2, 3]}
END
# The timeouts are longer than the script.
store="--set remote_url=fs://$dir/store --set max_local_cpu_size=0.0625 \
    --set lookup_timeout_ms=600000 --set blocking_timeout_secs=600"

expect 0 --scale 1024 --passes 2 --json $store trace
if command -v python3 >/dev/null; then
    python3 - out <<'END' || fail 'the JSON is not as it should be'
import json, sys

all = json.load(open(sys.argv[1]))
assert all["scale"] == 1024 and all["bytes_per_token"] == 128, all
assert all["pool_mib"] == 64 and all["kv_mib"] > 0, all
first, second = all["passes"]
# A hit consists of whole chunks and leaves at least one token to compute.
assert first["tokens"] == 2560 and first["hit_tokens"] == 1024, first
assert second["hit_tokens"] == 768 + 1280, second
for one in first, second:
    found = one["hit_tokens"] / one["tokens"]
    assert abs(one["hit_rate"] - found) < 1e-4, one
    where = one["memory_hit_rate"] + one["storage_hit_rate"]
    assert abs(where - found) < 1e-4, one
    assert one["wrong_tokens"] == one["load_failed"] == 0, one
    for name in ("lookup", "store", "retrieve"):
        assert 0 <= one[name + "_p50_ms"] <= one[name + "_p99_ms"], one
assert first["memory_hit_rate"] > 0, first
assert first["storage_hit_rate"] == 0 and first["load_bytes"] == 0, first
assert first["store_bytes"] == 1536 * 128 and first["store_gb_per_s"] > 0, first
# The second pass starts with empty memory: the first request loads from storage, the second
# request hits the loaded chunks in memory.
assert second["load_bytes"] > 0 and second["memory_hit_rate"] > 0, second
END
fi

expect 0 --scale 1024 --requests 1 $store trace
grep -q '^  from host memory, % ' out || fail 'no row for host memory'
grep -q '^  of it the pool  *64.0$' out || fail 'no row for the pool'

# Truncated files, as after a power failure: the chunks are not loaded, and no byte is wrong.
find "$dir/store" -name '*.data' -exec truncate -s 65536 {} +
expect 1 --scale 1024 --requests 1 --json $store trace
grep -q '"wrong_tokens": 0,' out || fail 'tokens of truncated files are served'
grep -q '"load_failed": [1-9]' out || fail 'truncated files are not reported'

# The replay may end before the pool has allocated all memory.
expect 0 --scale 1024 --requests 1 --json $store --set max_local_cpu_size=2 trace
grep -q '"rest_mib": \(null\|[0-9]\)' out || fail 'memory beside the pool is less than none'

expect 2 --scale 3 $store trace
grep -q "scale '3'" err || fail 'the scale is not named'
expect 2 --scale 4096 $store trace
expect 2 $store
expect 2 $store absent
expect 2 --config absent $store trace
echo '{"input_length": 1024, "hash_ids": [1]}' >short
expect 2 $store short
grep -q 'line 1' err || fail 'the line is not named'
finish cli/replay
