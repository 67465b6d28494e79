#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kvtier doctor on 3FS: without a mount, and with a daemon of the tests that works, hangs, or has
# ended.
#   KVTIER=build/kvtier sh tests/cli/doctor-3fs.sh
command=doctor
demo=$(cd "$(dirname "$0")/../../demo" && pwd)
. "$(dirname "$0")/lib"
built=$(dirname "$kvtier")/tests
daemon=$built/servers/usrbiod
unset HF3FS_CLIENT HF3FS_USRBIO_DONT_CHECKFS_FOR_MP LD_LIBRARY_PATH

expect_line() { # VERDICT CHECK TEXT
    grep -q "^$1 *3fs $2 .*$3" out || fail "no '$1 3fs $2 ... $3'"
}

# on DIRECTORIES CODE OPTIONS...: run the doctor on 3FS tiers; the exit code must be CODE
on() {
    at=$1
    shift
    expect "$@" --set remote_storage_plugins=hf3fs.primary \
        --set "extra_config={\"remote_storage_plugin.hf3fs.primary.base_path\": \"$at\"}"
}

# --- no mount

on "$dir/kv" 1
expect_line BAD mount "hf3fs.primary: $dir/kv: $dir lies on a file system of another type"
expect_line ok library "kvtier's own client is used"
expect_line ok numa 'hf3fs_numa_id is -1'
expect_line ok memory 'a worker shares 0.20 GiB of /dev/shm'
expect_line ok memlock 'only where shared memory is pinned for a GPU'
grep -q '^warn *tiers *not opened' out || fail 'the tiers are not left alone'
on "$dir/kv" 1 --set "hf3fs_mount_point=$dir/none"
expect_line BAD mount "hf3fs_mount_point: $dir/none: no such directory"
if [ -e /sys/devices/system/node/has_memory ]; then
    on "$dir/kv" 1 --set hf3fs_numa_id=1023
    expect_line BAD numa 'hf3fs_numa_id: this machine has no memory node 1023; it has 0'
fi
expect 1 --set "remote_url=hf3fs://$dir/kv"
expect_line BAD mount "remote_url: $dir/kv: "
on "$dir/kv" 1 --json
python3 - <<'END' || fail 'that is another JSON'
import json
found = [(each["check"], each["verdict"]) for each in json.load(open("out"))]
assert ("3fs mount", "bad") in found and ("3fs memory", "ok") in found, found
END
expect 0 --set "remote_url=fs://$dir/fs"
! grep -q 3fs out || fail '3FS is not configured'

HF3FS_CLIENT=library
export HF3FS_CLIENT
on "$dir/kv" 1
expect_line BAD library 'HF3FS_CLIENT is library, and .* cannot be loaded .* LD_LIBRARY_PATH'
HF3FS_CLIENT=none
on "$dir/kv" 1
expect_line BAD library "HF3FS_CLIENT is 'none': use library or own"
HF3FS_CLIENT=own
on "$dir/kv" 1
expect_line ok library "kvtier's own client is used (HF3FS_CLIENT is own)"
unset HF3FS_CLIENT
export LD_LIBRARY_PATH="$built/fakes/hf3fs"
on "$dir/kv" 1
expect_line ok library "the site's libhf3fs_api_shared.so is used"
LD_LIBRARY_PATH=$built/fakes/incomplete
on "$dir/kv" 1
expect_line ok library "kvtier's own client is used; .* has no function"
unset LD_LIBRARY_PATH

# a small /dev/shm, as in a container, if this process may mount a tmpfs
if unshare -m mount -t tmpfs none /dev/shm 2>/dev/null; then
    unshare -m sh -c "mount -t tmpfs -o size=64m none /dev/shm && \"$kvtier\" doctor \
        --set remote_storage_plugins=hf3fs --set hf3fs_base_path=\"$dir/kv\"" >out 2>err
    expect_line BAD memory 'and 0.06 GiB are free there: give it more (docker: --shm-size)'
fi

# --- a daemon

if [ ! -x "$daemon" ] || [ ! -w /dev/fuse ]; then
    echo 'skipped: what needs a mount'
    finish cli/doctor-3fs
fi
mkdir backing mount other
mkfifo hold
"$daemon" backing mount <hold >facts 2>log &
pid=$!
exec 9>hold # the daemon ends with this
mount=$(cd mount && pwd -P)
trap 'PYTHONPATH="$demo" python3 -B -c "import sys, mount; m = mount.Mount(); \
m.store = sys.argv[1]; m.forget()" "$mount/kv"; kill -KILL $pid 2>/dev/null; wait; \
umount -l "$mount"; rm -rf "$dir"' EXIT
await_facts $!
semaphore=$(sed -n 's/.*"submit_ios": *"\([^"]*\)".*/\1/p' facts)
[ -n "$semaphore" ] || { cat log; exit 1; }

on "$mount/kv" 0
expect_line ok mount "hf3fs.primary: $mount/kv lies in the 3FS at $mount (fuse.hf3fs)"
expect_line ok daemon "the daemon of $mount responds, serves rings, and lets this user open its"
grep -q '^ok *store *a chunk of 1 MiB was stored, read back and removed' out ||
    fail 'nothing was stored'
on "$mount/kv,$dir/other" 1
expect_line ok mount "$mount/kv lies in"
expect_line BAD mount "hf3fs.primary: $dir/other lies on a file system of another type"
expect_line ok daemon "$mount"
on "$mount/kv" 1 --set "hf3fs_mount_point=$mount/kv"
expect_line BAD mount "hf3fs_mount_point: $mount/kv is no mount point; 3FS is mounted at $mount"

# ls allocates no transfer memory in /dev/shm; put allocates transfer memory
if unshare -m mount -t tmpfs none /dev/shm 2>/dev/null; then
    settings="--set remote_storage_plugins=hf3fs --set hf3fs_base_path=$mount/kv"
    unshare -m sh -c "mount -t tmpfs -o size=64m none /dev/shm && \"$kvtier\" ls $settings" \
        >out 2>err || fail 'ls wants memory'
    unshare -m sh -c "mount -t tmpfs -o size=64m none /dev/shm && \"$kvtier\" put \
        model@1@0@1@bfloat16 facts $settings" >out 2>err && fail 'put wants no memory'
    grep -q 'no room for 200 MiB .* reduce hf3fs_iov_size' err || fail 'why is not said'
fi

mv "/dev/shm/sem.$semaphore" "/dev/shm/sem.$semaphore.away"
on "$mount/kv" 1
mv "/dev/shm/sem.$semaphore.away" "/dev/shm/sem.$semaphore"
expect_line BAD daemon 'open the semaphore .* does this process share /dev/shm with the daemon'

kill -STOP $pid
on "$mount/kv" 1
kill -CONT $pid
expect_line BAD daemon "$mount/kv: the daemon of this mount hangs; .* (no result for 15 seconds)"
kill -KILL $pid
wait $pid 2>/dev/null
on "$mount/kv" 1
expect_line BAD mount "$mount/kv: .* the daemon of this mount has ended; start the daemon again"
finish cli/doctor-3fs
