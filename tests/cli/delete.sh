#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kvtier rm --prefix and kvtier clear --older-than: the deleted chunks, the kept chunks, counts.
#   KVTIER=build/kvtier sh tests/cli/delete.sh
command=
. "$(dirname "$0")/lib"

two="--set remote_url=fs://$dir/store --set local_disk=$dir/disk --set max_local_disk_size=1"
disk="--set local_disk=$dir/disk --set max_local_disk_size=1"
store="--set remote_url=fs://$dir/store"
a=org/a@1@0
b=org/b@1@0

put() { # KEY OPTIONS...
    expect 0 put "$1" "$dir/in" $(shift; echo "$@")
}
has() { grep -q -- "$1" out || fail "'$1' is not printed"; }
files() { find store -name '*.data' | wc -l; }
n_files() { [ "$(files)" -eq "$1" ] || fail "not $1 files but $(files)"; }

head -c 1000 /dev/urandom >in
for i in 1 2 3 4 5 6 7 8 9 a b c; do
    put $a@$i@bfloat16 $store
done
put $b@1@bfloat16 $store

# a dry run deletes nothing
expect 0 rm --prefix $a $store --dry-run
has "^fs  *$a@c@bfloat16\$"
has '^12 chunks, .* would be deleted$'
n_files 13
expect 0 rm --prefix $a $store --dry-run --json
[ "$(grep -c '"key": ' out)" -eq 12 ] || fail 'not 12 keys in JSON'
has '"deleted_chunks": 0, "chunks": 12, .*"dry_run": true'

# wrong usage
expect 2 rm --prefix '' $store
expect 2 rm --prefix $a $a@1@bfloat16 $store
expect 2 rm --dry-run $a@1@bfloat16 $store
expect 2 rm $store
n_files 13

# chunks without the prefix stay
expect 0 rm --prefix $a $store
has '^12 chunks, .* deleted$'
n_files 1
expect 0 stat $b@1@bfloat16 $store
expect 0 rm --prefix $a $store --json
has '"deleted_chunks": 0, "chunks": 0'

# each tier loses its own chunks: a key of local_disk has '-' in place of '/'
put $a@1@bfloat16 $two
expect 0 rm --prefix org-a $two
has '^1 chunks, '
n_files 2
expect 1 stat $a@1@bfloat16 $disk

# failed deletes are counted, and the other chunks are deleted
faulty="--set remote_url=fault://remove_error=1/fs://$dir/store"
expect 3 rm --prefix org/ $faulty
has '^0 chunks, 0 B deleted, 2 chunks were not deleted$'
grep -q 'remove error made by fault' err || fail 'the reason is not printed'
expect 3 rm --prefix org/ $faulty --json
[ "$(grep -c '"error": ' out)" -eq 2 ] || fail 'not 2 errors in JSON'
[ ! -s err ] || fail 'an error on the standard error'
n_files 2
expect 3 clear --older-than 1s --set "remote_url=fs:///proc/absent"

# chunks older than an age, in one tier and in all tiers
rm -rf store disk
put $a@1@bfloat16 $two
put $a@2@bfloat16 $two
find store disk \( -name '*.data' -o -name '*.pt' \) -path '*@1@bfloat16*' \
    -exec touch -d '3 days ago' {} +
expect 0 clear --older-than 4d $two
has '^0 chunks, '
expect 0 clear --older-than 2d --tier local_disk $two
has '^1 chunks, '
expect 1 stat $a@1@bfloat16 $disk
expect 0 stat $a@1@bfloat16 $store
expect 0 clear --older-than 71h $two --json
has '"deleted_chunks": 1, "chunks": 1, '
expect 1 stat $a@1@bfloat16 $two
expect 0 stat $a@2@bfloat16 $disk
expect 0 stat $a@2@bfloat16 $store
for age in 0s 5 5w -1d 1dd '' 99999999d 18446744073709551615d; do
    expect 2 clear --older-than "$age" $two
    grep -q 'is no age' err || fail "the age '$age' is not named"
done
expect 2 clear --tier fs $two
expect 2 clear --older-than 1d --tier s3 $two
grep -q "no tier 's3'" err || fail 'the missing tier is not named'
expect 0 stat $a@2@bfloat16 $store
finish cli/delete
