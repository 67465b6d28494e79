#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The commands on a bucket of the tests' S3 server: commands accept the keys that ls prints, and
# report a missing setting or bucket once.
#   KVTIER=build/kvtier sh tests/cli/s3.sh
command=
servers=$(cd "$(dirname "$0")/../servers" && pwd)
. "$(dirname "$0")/lib"
if ! command -v python3 >/dev/null; then
    echo 'skipped: needs python3'
    exit 77
fi

# forget URL...: delete this host's indexes of the buckets
forget() {
    python3 - "$@" <<'END'
import hashlib, os, shutil, sys

for thing in sys.argv[1:]:
    digest = hashlib.sha256(thing.encode()).digest()
    shutil.rmtree("/var/tmp/kvtier-%d/%016x" % (
        os.geteuid(), int.from_bytes(digest[:8], "little")), ignore_errors=True)
END
}

mkfifo hold
python3 -B "$servers/s3.py" --bucket kv --tls <hold >facts 2>log &
exec 9>hold # the server ends with this
await_facts $!
port=$(sed -n 's/.*"port": \([0-9]*\).*/\1/p' facts)
[ -n "$port" ] || { cat log; exit 1; }
host=127.0.0.1:$port
tls_port=$(sed -n 's/.*"tls_port": \([0-9]*\).*/\1/p' facts)
trap 'forget "s3://$host/kv/" "s3://$host/nowhere/" "s3://127.0.0.1:$tls_port/kv/"
    rm -rf "$dir"' EXIT

export AWS_EC2_METADATA_DISABLED=true HOME="$dir" no_proxy='*'
at() { # BUCKET CODE ARGUMENTS...: with its keys
    bucket=$1
    shift
    AWS_ACCESS_KEY_ID=AKTEST AWS_SECRET_ACCESS_KEY=SKTEST expect "$@" \
        --set blocking_timeout_secs=600 --set "remote_url=s3://$bucket" \
        --set "s3_endpoint_url=http://$host"
}
expect_line() { grep -q -- "$1" out err || fail "'$1' is not said"; }
expect_once() { [ "$(cat out err | grep -c -- "$1")" -eq 1 ] || fail "'$1' is not said once"; }

# commands accept a key as given to put and as printed by ls
key=org/my_model@1@0@1a540024b49d3bfe@bfloat16
listed=org_my_model@1@0@1a540024b49d3bfe@bfloat16
head -c 100000 /dev/urandom >in
at kv 0 put "$key" "$dir/in"
at kv 0 ls
expect_line "  $listed\$"
for prefix in org/my_model org_my; do
    at kv 0 ls $prefix
    expect_line '^1 chunks'
done
at kv 0 ls my_model
expect_line '^0 chunks'
for name in "$key" "$listed"; do
    rm -f back
    at kv 0 get "$name" "$dir/back"
    cmp in back || fail "get $name: other bytes"
    at kv 0 stat "$name"
    expect_line '^bytes *100000'
    at kv 0 verify "$name"
    expect_line '1 good'
done
at kv 1 get org/my/model@1@0@1a540024b49d3bfe@bfloat16 "$dir/back"
expect_line 'another key'
at kv 0 rm "$listed"
at kv 1 get "$key" "$dir/back"
expect_line 'No such file'

# a chunk larger than get's first buffer (64 MiB): get reads again with the chunk's size
head -c 67108865 /dev/zero >large
at kv 0 put "$key" "$dir/large"
at kv 0 get "$key" "$dir/back"
cmp large back || fail 'get of a large chunk: other bytes'
rm -f large back

# missing keys or a missing bucket: one message
expect 3 ls --set remote_url=s3://kv --set "s3_endpoint_url=http://$host"
expect_once 'no keys for S3'
expect 1 doctor --set remote_url=s3://kv --set "s3_endpoint_url=http://$host"
expect_once 'no keys for S3'
for command in "put $key $dir/in" "get $key $dir/back" ls verify; do
    words=$command
    command=
    at nowhere 3 $words
    expect_once "404 NoSuchBucket.* at $host\. There is no bucket 'nowhere' there: make it"
done
at nowhere 1 doctor
expect_line 'BAD *s3 list .* There is no bucket .nowhere. there'

# the doctor tries each request that an engine sends
control=$(sed -n 's/.*"control": "\([^"]*\)".*/\1/p' facts)
fault() { # METHOD STATUS [COUNT]: answer COUNT requests (without COUNT: all) with the status
    python3 - "$control" "$@" <<'END'
import json, sys, urllib.request

fault = {"match": {"method": sys.argv[2]}, "do": {"status": int(sys.argv[3])},
         "count": int(sys.argv[4]) if len(sys.argv) > 4 else None}
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
opener.open(sys.argv[1] + "/faults", json.dumps(fault).encode()).read()
END
}
at kv 0 doctor --set s3_file_prefix=some/where
address="requests go to $host by http, path-style, region us-east-1"
expect_line "^ok *s3 address *$address, prefix 'some/where/'"
expect_line '^ok *s3 keys *the keys come from: environment; they do not expire'
for step in 'lookup *an absent object is a miss' 'list *objects can be listed' \
    'write *objects can be stored, and the store supports If-None-Match' \
    'read *the object was read back' 'delete *objects can be deleted'; do
    expect_line "^ok *s3 $step"
done
expect_line '^ok *store *a chunk of 1 MiB was stored'
fault HEAD 200 1
at kv 1 doctor
expect_line '^BAD *s3 lookup .*the store reports an object that does not exist'
http_proxy=http://user:secret@127.0.0.1:1 no_proxy= at kv 1 doctor --set blocking_timeout_secs=1
expect_line 's3 address *requests go to the proxy 127.0.0.1:1 for '
! grep -q secret out err || fail 'the password of the proxy is printed'

# -v prints the endpoint and the source of the keys, -vv each request, and never a secret
at kv 0 stat -v "$key"
expect_line "debug: S3: requests go to $host by http, path-style"
expect_line 'debug: S3: the keys come from: environment'
! grep -q trace err || fail '-v prints requests'
at kv 0 -vv put "$key" "$dir/in"
expect_line 'trace: S3: PUT .*: status 200, 100000 bytes after '
expect_line "trace: s3: PUT $key: done"
at kv 0 ls -vv
! grep -q SKTEST out err || fail 'the secret key is printed'
at kv 0 rm "$key"

# -v prints the reason of each retry, and no next attempt after the last attempt
fault PUT 503 1
at kv 0 -v put "$key" "$dir/in"
expect_line 'debug: S3: next attempt in [0-9]* ms; the last attempt: status 503'
at nowhere 3 -v put "$key" "$dir/in"
! grep -q 'next attempt' err || fail 'a next attempt after a final failure'
at nowhere 3 -vv put "$key" "$dir/in"
expect_line 'trace: S3: status 404 NoSuchBucket.* The store says: The specified bucket does not exist'
at kv 0 rm "$key"

# bench deletes a chunk whose write failed after the store had stored the chunk
faults() { # METHOD [JSON]: send a request to the control of the server
    python3 - "$control" "$@" <<'END'
import sys, urllib.request

opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
opener.open(urllib.request.Request(sys.argv[1] + "/faults", sys.argv[3].encode()
                                   if len(sys.argv) > 3 else None, method=sys.argv[2])).read()
END
}
long=$(head -c 100000 /dev/zero | tr '\0' a) # a longer header than kvtier accepts
faults POST '{"match": {"method": "PUT"}, "count": null, "do": {"headers": {"x-long": "'"$long"'"}}}'
AWS_ACCESS_KEY_ID=AKTEST AWS_SECRET_ACCESS_KEY=SKTEST expect 3 bench -vv --size 1 --count 1 \
    --concurrency 1 --set blocking_timeout_secs=1 \
    --set remote_url=s3://kv --set "s3_endpoint_url=http://$host"
expect_line 'trace: S3: HEAD kvtier-bench.*: status 200'
expect_line '1 of 1 operations failed'
faults DELETE
at kv 0 ls
expect_line '^0 chunks'

# a chunk that is in use stays: the exit code is 1, by key and by prefix
at kv 0 put "$key" "$dir/in"
faults POST '{"match": {"method": "DELETE"}, "count": null, "do": {"status": 409,
    "code": "OperationAborted"}}'
for form in "$key" "--prefix org_my"; do
    AWS_ACCESS_KEY_ID=AKTEST AWS_SECRET_ACCESS_KEY=SKTEST expect 1 rm $form \
        --set blocking_timeout_secs=1 --set remote_url=s3://kv \
        --set "s3_endpoint_url=http://$host"
    expect_line 'status 409'
done
faults DELETE
at kv 0 rm "$key"

# the message of a refused key names the reason, also in the doctor, whose HEAD has no reason
reasons() { # ACCESS SECRET TOKEN TEXT
    for words in '3 ls' '1 doctor'; do
        AWS_ACCESS_KEY_ID=$1 AWS_SECRET_ACCESS_KEY=$2 AWS_SESSION_TOKEN=$3 expect $words \
            --set remote_url=s3://kv --set "s3_endpoint_url=http://$host"
        expect_line "$4"
        ! grep -q 'keys need' out err || fail 'missing permissions for a refused key'
    done
}
reasons AKTEST wrong '' 'SignatureDoesNotMatch.* The secret key is wrong'
reasons NOBODY SKTEST '' 'InvalidAccessKeyId.* The store does not know the access key'
reasons AKTEST SKTEST token 'InvalidToken.* The session token is wrong or has expired'

# a certificate of a private authority: the message names the setting
AWS_ACCESS_KEY_ID=AKTEST AWS_SECRET_ACCESS_KEY=SKTEST expect 3 ls --set remote_url=s3://kv \
    --set "s3_endpoint_url=https://127.0.0.1:$tls_port"
expect_line 'certificate is not accepted.* set s3_ca_file'

# a policy that denies DELETE, GET, PUT or LIST.  If the policy denies LIST, a HEAD of an absent
# object returns 403, and lookups fail.
fault DELETE 403
at kv 0 doctor
expect_line '^ok *s3 delete *the object kvtier-doctor.* was not deleted: status 403'
expect_line '^warn *store .*not removed'
at kv 1 doctor --set max_remote_size=1
expect_line '^BAD *s3 delete .*status 403'
fault GET 403
at kv 1 doctor
expect_line '^BAD *s3 list .*status 403.* need s3:ListBucket'
fault PUT 403
fault HEAD 403
at kv 1 doctor
expect_line '^BAD *s3 lookup .*status 403.* eight failures'
at kv 2 put "$key" "$dir/in" --set store_location=LocalCPUBackend
expect_line 'the tiers with storage are RemoteBackend (s3)'
finish cli/s3
