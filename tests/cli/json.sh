#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# With --json a failed command prints a JSON object with "error" on the standard output and nothing
# on the standard error.  The exit code is equal with and without --json.
#   KVTIER=build/kvtier sh tests/cli/json.sh
command=
. "$(dirname "$0")/lib"
if ! command -v python3 >/dev/null; then
    echo 'skipped: needs python3'
    exit 77
fi

# fails CODE ARGUMENTS...: the command must fail with exit code CODE, with and without --json
fails() {
    expect "$@"
    [ ! -s out ] || fail "kvtier $*: an error on the standard output"
    code=$1
    shift
    expect "$code" "$@" --json
    python3 -c 'import json; o = json.load(open("out")); assert o["error"], o' ||
        fail "kvtier $* --json: not one object with an error"
    [ ! -s err ] || fail "kvtier $* --json: an error on the standard error"
}

key=org/model@1@0@1a540024b49d3bfe@bfloat16
store="--set remote_url=fs://$dir/store"

# --version is the command version
expect 0 --version
grep -q '^kvtier [0-9]' out || fail '--version'
for form in version --version; do
    expect 0 $form --json
    python3 -c 'import json; assert json.load(open("out"))["version"]' || fail "$form --json"
    fails 2 $form extra
done
head -c 1000 /dev/urandom >in

# a missing chunk
fails 1 stat $key $store
fails 1 get $key back $store
fails 1 rm $key $store
expect 1 verify $key $store --json
python3 -c 'import json; bad, all = map(json.loads, open("out"))
assert bad["key"] and bad["error"] and all["bad"] == 1, (bad, all)' || fail 'verify --json'

# a chunk that cannot be read is no corrupt chunk
fault=remote_url=fault://read_error=1/fs://$dir/unread
head -c 1000 /dev/urandom >chunk
expect 0 put $key chunk --set "$fault"
expect 3 verify --set "$fault"
grep -q '0 bad, 1 not read$' out || fail 'verify of a chunk that cannot be read'
expect 3 verify --json --set "$fault"
python3 -c 'import json; bad, all = map(json.loads, open("out"))
assert bad["error"] and (all["bad"], all["failed"]) == (0, 1), (bad, all)' ||
    fail 'verify --json of a chunk that cannot be read'

# missing files and directories of the caller
fails 3 put $key absent $store
expect 0 put $key in $store
fails 3 get $key absent/back $store
fails 2 replay absent $store

# a store that cannot be opened, a wrong configuration
for words in ls stat "stat $key" "get $key back" "put $key in" "rm $key" verify bench; do
    fails 3 $words --set remote_url=fs:///proc/absent
    fails 2 $words $store --set chunk_size=0
    fails 2 $words --set remote_url=s4://bucket
    fails 2 $words --config absent.yaml
done
fails 2 ls
fails 2 clear
fails 2 config show --set chunk_size=0
fails 2 config check absent.yaml
fails 1 config keys no_such_key
expect 1 doctor --json --set max_local_cpu_size=100000
python3 -m json.tool <out >/dev/null || fail 'doctor --json'

# wrong usage, with --json after the command's first word
for words in confg 'config chek' 'ls --no-such' 'get' 'rm' 'stat a b' 'version nonsense' \
    'bench --size 0' 'replay' 'clear nonsense' 'doctor nonsense' 'config keys --set a=b'; do
    expect 2 $words
    expect 2 ${words%% *} --json $(echo "$words" | sed 's/^[^ ]* *//')
    python3 -c 'import json; assert json.load(open("out"))["error"]' || fail "$words"
done

# a key that is not UTF-8
bad=$(printf 'model\377@1@0@5@bfloat16')
fails 1 stat "$bad" $store

# a directory whose name is not UTF-8: the objects are complete
odd=remote_url=fs://$dir/$(printf 'odd\377')
expect 0 stat --json --set "$odd"
python3 -c 'import json; [tier] = json.load(open("out")); assert tier["url"].endswith("odd?")' ||
    fail 'stat: a directory that is not UTF-8'
expect 0 doctor --json --set "$odd"
python3 -c 'import json; assert [o for o in json.load(open("out")) if "odd?:" in o["text"]]' ||
    fail 'doctor: a directory that is not UTF-8'
expect 0 bench --size 1 --count 1 --concurrency 1 --json --set "$odd"
python3 -c 'import json
assert [json.loads(line)["url"][-4:] for line in open("out")] == ["odd?"] * 4' ||
    fail 'bench: a directory that is not UTF-8'
finish cli/json
