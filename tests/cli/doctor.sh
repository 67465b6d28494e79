#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kvtier doctor on tiers of files: the report of each check.  The doctor leaves no file.
#   KVTIER=build/kvtier sh tests/cli/doctor.sh
command=doctor
. "$(dirname "$0")/lib"
expect_line() { grep -q -- "$1" out || fail "'$1' is not reported"; }
expect_no_file() {
    left=$(find fs disk -type f ! -path '*/.kvtier/lock' ! -path '*/.kvtier/index*' 2>/dev/null)
    [ -z "$left" ] || fail "files stay: $left"
}

expect 0 --set "remote_url=fs://$dir/fs"
expect_line "^ok *fs space *$dir/fs: [0-9.]* of [0-9.]* GiB free"
expect_line "^ok *fs locks *$dir/fs: flock() works"
expect_line "^ok *fs files *$dir/fs: .*O_DIRECT.*; one write [0-9.]* GB/s, one read [0-9.]* GB/s"
expect_line '^ok *store *a chunk of 1 MiB was stored'
expect_no_file

# the doctor checks every directory of a list
expect 0 --set "local_disk=$dir/disk,$dir/disk2" --set max_local_disk_size=0.1
expect_line "^ok *local_disk files *$dir/disk: "
expect_line "^ok *local_disk files *$dir/disk2: "
expect_no_file

# a limit that the file system cannot hold; a directory that cannot be made
expect 1 --set "remote_url=fs://$dir/fs" --set max_remote_size=1000000
expect_line '^BAD *fs space .*the limit of 1000000.0 GiB is larger than the file system'
expect_line '^warn *tiers *not opened'
expect 1 --set remote_url=fs:///dev/null/fs
expect_line '^BAD *fs directory .*/dev/null/fs'

expect 1 --json --set "remote_url=fs://$dir/fs" --set max_remote_size=1000000
python3 - out <<'END' || fail 'the JSON is wrong'
import json, sys

found = {f["check"]: f["verdict"] for f in json.load(open(sys.argv[1]))}
assert found["fs space"] == "bad" and found["fs files"] == "ok", found
END
finish cli/doctor
