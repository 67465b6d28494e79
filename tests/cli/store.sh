# SPDX-License-Identifier: Apache-2.0
#
# The commands on a store of files: output and exit codes.
set -eu
kvtier=${KVTIER:-build/kvtier}
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
key=org/model@1@0@1a540024b49d3bfe@bfloat16

run() { "$kvtier" "$@" --set "remote_url=fs://$temp/store"; }
ends() { # CODE COMMAND...
    want=$1
    shift
    code=0
    run "$@" >"$temp/out" 2>"$temp/err" || code=$?
    if [ "$code" != "$want" ]; then
        echo "kvtier $*: exit code $code, not $want"
        cat "$temp/err"
        exit 1
    fi
}
prints() {
    grep -q -- "$1" "$temp/out" "$temp/err" && return
    echo "'$1' not printed:"
    cat "$temp/out" "$temp/err"
    exit 1
}

head -c 100000 /dev/urandom >"$temp/in"
flip() { # FILE OFFSET: make one byte another one
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\$(printf %03o $(((byte + 1) % 256)))" |
        dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}
ends 1 stat "$key"
ends 1 stat "$key" --json
python3 -c '
import json, sys
o = json.load(open(sys.argv[1]))
assert not o["done"] and o["error"], o' "$temp/out"
ends 0 put "$key" "$temp/in"
ends 0 get "$key" "$temp/back"
cmp "$temp/in" "$temp/back"
run get "$key" - | cmp - "$temp/in"
ends 0 ls
prints "$key"
# KVTIER_LOG_LEVEL determines the log level of commands, as of engines
ends 0 ls --set chunck_size=1
prints "warning: unknown key 'chunck_size'"
KVTIER_LOG_LEVEL=ERROR ends 0 ls --set chunck_size=1
! grep -q warning "$temp/err" || { echo 'a warning in spite of KVTIER_LOG_LEVEL=ERROR'; exit 1; }
ends 0 ls other
prints '^0 chunks'
ends 0 stat "$key"
prints '^bytes *100000'
! grep -q expires "$temp/out"
ends 0 put "$key" "$temp/in" --set max_ttl_seconds=1000
ends 0 stat "$key"
prints '^expires *[0-9]*-[0-9]*-[0-9]* [0-9:]*$'
ends 0 stat "$key" --json
python3 -c '
import json, sys, time
end = json.load(open(sys.argv[1]))["expires"]
assert time.time() < end <= time.time() + 1000, end' "$temp/out"
rm -r "$temp"/store/.kvtier
ends 1 get "$key" "$temp/back"
prints 'the chunk has a time to live, and the index does not contain the end'
ends 0 put "$key" "$temp/in"
ends 0 stat "$key" --json
! grep -q expires "$temp/out"
ends 0 put "$key" "$temp/in" --set max_ttl_seconds=1
sleep 1 # ends are rounded down to 16 s
ends 1 get "$key" "$temp/back"
prints "the chunk's time to live has ended"
ends 1 get "$key" "$temp/back" --json
prints '"error": ".*time to live has ended'
# storage that other hosts share takes no chunk with a time to live
"$kvtier" put "$key" "$temp/in" --set "remote_url=fault://shared=1/fs://$temp/shared" \
    --set "local_disk=$temp/disk" --set max_local_disk_size=1 --set max_ttl_seconds=1000
[ "$(find "$temp/disk" -name '*bfloat16*' | wc -l)" = 1 ]
[ "$(find "$temp/shared" -name '*bfloat16*' | wc -l)" = 0 ]
ends 0 put "$key" "$temp/in"
ends 0 stat --json
python3 -c '
import json, sys
t = json.load(open(sys.argv[1]))
assert t[0]["chunks"] == 1, t' "$temp/out"
ends 0 get "$key" "$temp/back" --json
prints '"done": true.*"bytes": 100000.*"has_checksum": true'
ends 2 get "$key" - --json
prints 'name a FILE'
ends 0 put org/model@1@0@5@bfloat16 "$temp/in" --json
prints '"done": true, "bytes": 100000'
ends 1 rm org/model@1@0@5@bfloat16 org/model@1@0@6@bfloat16 --json
prints '"key": "org/model@1@0@5@bfloat16", "done": true'
prints '"key": "org/model@1@0@6@bfloat16", "done": false, "error"'
ends 0 verify
prints '1 good'

# a put replaces the bytes of a key
echo short | run put "$key" -
ends 0 get "$key" "$temp/back"
[ "$(cat "$temp/back")" = short ]

# concurrent puts of a key: all succeed, and the chunk of one writer stays
writers=
for n in 1 2 3 4 5 6; do
    echo "writer $n" | run put "$key" - & writers="$writers $!"
done
for pid in $writers; do wait "$pid"; done
run get "$key" - | grep -q '^writer [1-6]$'

# a flipped byte: the chunk is corrupt
run put "$key" "$temp/in"
file=$(find "$temp/store" -name '*.data')
flip "$file" 5000
ends 1 verify
prints '^bad: '
rm "$temp/back"
ends 1 get "$key" "$temp/back"
[ ! -e "$temp/back" ]

# a truncated file has no checksum, but the header's length differs from the file's length
cut=org/model@1@0@77@bfloat16
run put "$cut" "$temp/in"
cut_file=$(find "$temp/store" -name '*@77@*')
truncate -s 50000 "$cut_file"
ends 1 verify "$cut"
prints '^bad: '
ends 1 get "$cut" "$temp/back"
[ ! -e "$temp/back" ]
ends 0 put "$cut" "$temp/in"
ends 0 get "$cut" "$temp/back"
ends 0 rm "$cut"
rm "$temp/back"

# a renamed file contains the chunk of another key
run put "$key" "$temp/in"
mv "$file" "$(echo "$file" | sed s/1a540024b49d3bfe/1a540024b49d3bff/)"
ends 1 get "$(echo "$key" | sed s/1a540024b49d3bfe/1a540024b49d3bff/)" "$temp/back"
prints 'another key'

run put "$key" "$temp/in"
ends 0 rm "$key"
ends 1 rm "$key"
ends 2 put no-key "$temp/in"
ends 2 get
ends 2 ls --no-such-option
ends 3 put "$key" "$temp/absent"
code=0 # a directory that cannot be made
"$kvtier" ls --set remote_url=fs:///proc/absent 2>"$temp/err" || code=$?
[ "$code" = 3 ] || { echo "ls of what cannot be opened: exit code $code"; exit 1; }

ends 0 doctor
prints 'stored, read back and removed'
ends 1 doctor --set max_local_cpu_size=100000
prints 'BAD *memory'

# local_disk: ls prints a key with '-' in place of '/'; both forms name the file
run() { "$kvtier" "$@" --set "local_disk=$temp/a,$temp/b" --set max_local_disk_size=1; }
listed=org-model@1@0@1a540024b49d3bfe@bfloat16
ends 0 put "$key" "$temp/in"
[ -e "$temp/a/$listed.pt" ]
mv "$temp/a/$listed.pt" "$temp/b" # another number of workers put it there
ends 0 get "$key" "$temp/back"
cmp "$temp/in" "$temp/back"
ends 0 ls
prints "$listed"
ends 0 get "$listed" "$temp/back"
cmp "$temp/in" "$temp/back"
ends 0 stat "$listed"
ends 0 verify "$listed"
ends 0 verify
prints '1 good'
ends 0 stat
prints 'local_disk'
ends 0 doctor
ends 0 rm "$listed"
ends 1 stat "$key"

# gds_path: LMCache's directory tree, without a GPU
run() { "$kvtier" "$@" --set "gds_path=$temp/g0,$temp/g1,$temp/g2,$temp/g3"; }
gds=18/97/org%2Fmodel%401%400%401a540024b49d3bfe%40bfloat16.kvcache.safetensors
ends 0 put "$key" "$temp/in"
cmp -n 4096 "$temp/g0/$gds" "$temp/g0/$gds.metadata"
tail -c +4097 "$temp/g0/$gds" | cmp - "$temp/in"
for n in 1 2 3; do [ -d "$temp/g$n" ]; done
mkdir -p "$temp/g2/18/97"
mv "$temp/g0/$gds" "$temp/g0/$gds.metadata" "$temp/g2/18/97" # another GPU wrote it
ends 0 get "$key" "$temp/back"
cmp "$temp/in" "$temp/back"
ends 0 ls
prints "$key"
ends 0 verify
prints '1 good'
ends 0 doctor
prints 'stored, read back and removed'
ends 0 rm "$key"
[ -z "$(find "$temp"/g? -name '*.safetensors*')" ]
ends 0 ls --set use_gds=true # an engine's affair
ends 2 put "$key" "$temp/in" --set use_gds=false --set 'extra_config={"use_hipfile": true}'
prints 'use_hipfile: true .* contradicts use_gds: false'

# if a tier is full, put stores the chunk in the next tier and reports the full disk
run() {
    "$kvtier" "$@" --set "remote_url=fs://$temp/next" --set remote_storage_plugins=fault \
        --set "extra_config={
            \"remote_storage_plugin.fault.base_path\": \"enospc=1/fs://$temp/full\"}"
}
ends 3 put "$key" "$temp/in"
prints 'disk full'
run() { "$kvtier" "$@" --set "remote_url=fs://$temp/next"; }
ends 0 get "$key" "$temp/back"
cmp "$temp/in" "$temp/back"

# LMCache's defaults configure no storage
run() { "$kvtier" "$@"; }
ends 0 doctor
prints 'host memory only'
ends 1 doctor --set local_cpu=false
ends 2 ls
prints 'no tier with storage'

# a put fails if store_location excludes all tiers with storage; the stored chunk stays
run() { "$kvtier" "$@" --set "remote_url=fs://$temp/next"; }
ends 0 put "$key" "$temp/in"
ends 2 put "$key" "$temp/in" --set store_location=LocalCPUBackend
prints 'store_location is LocalCPUBackend, and the tiers with storage are RemoteBackend (fs)'
ends 0 get "$key" "$temp/back"

# get writes to a pipe and through a symbolic link, and replaces neither
mkfifo "$temp/pipe"
timeout 60 cat "$temp/pipe" >"$temp/piped" &
ends 0 get "$key" "$temp/pipe"
wait $!
cmp "$temp/in" "$temp/piped"
[ -p "$temp/pipe" ]
echo old >"$temp/target"
ln -s target "$temp/link"
ends 0 get "$key" "$temp/link"
cmp "$temp/in" "$temp/target"
[ -L "$temp/link" ]
ends 3 get "$key" "$temp"
prints 'Is a directory'

# without standard streams no message goes into a file of the storage
for stream in '0<&-' '1>&-' '2>&-' '0<&- 1>&- 2>&-'; do
    for command in ls stat "get $key -" "put $key $temp/in" verify; do
        eval "run $command $stream" >/dev/null 2>"$temp/err" || true
        ! grep -q 'temporarily unavailable\|Invalid argument' "$temp/err"
    done
done
code=0
run put "$key" - 0<&- 2>"$temp/err" || code=$?
[ $code = 3 ]
grep -q 'put: read -: Bad file descriptor' "$temp/err"
for command in ls "get $key -"; do
    code=0
    run $command 1>&- 2>"$temp/err" || code=$?
    [ $code = 3 ]
    [ "$(cat "$temp/err" | grep -c 'Bad file descriptor')" = 1 ]
done
if [ -e /dev/full ]; then
    run get "$key" - >/dev/full 2>"$temp/err" || code=$?
    [ $code = 3 ]
    [ "$(wc -l <"$temp/err")" = 1 ]
fi
ends 0 get "$key" "$temp/back"
cmp "$temp/in" "$temp/back"
ends 0 verify

# control characters of a key cannot control the terminal
escaped=$(printf 'a\033[31m\nb@1@0@1f@bfloat16')
run() { "$kvtier" "$@" --set "remote_url=fs://$temp/strange"; }
ends 0 put "$escaped" "$temp/in"
for words in ls 'rm --dry-run --prefix a'; do
    ends 0 $words
    prints ' a\\x1b\[31m\\x0ab@1@0@1f@bfloat16$'
done
ends 0 stat "$escaped"
prints '^key  *a\\x1b'
ends 0 rm "$escaped"
for words in get stat verify; do
    last=
    [ $words = get ] && last="$temp/back"
    ends 1 $words "$escaped" $last
    prints 'a\\x1b.*No such file'
    ! grep -q "$(printf '\033')" "$temp/out" "$temp/err"
done
