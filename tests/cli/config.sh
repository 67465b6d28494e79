#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kvtier config, help and version: output, exit codes, JSON.  docs/configuration.md is the output of
# kvtier config keys --markdown.
#   KVTIER=build/kvtier sh tests/cli/config.sh
command=
docs=$(cd "$(dirname "$0")/../../docs" && pwd)
. "$(dirname "$0")/lib"

# has FILE TEXT: a line of FILE must contain TEXT
has() {
    if ! grep -qF -- "$2" "$1"; then
        echo "FAIL: no '$2' in $1:"
        cat "$1"
        failed=1
    fi
}

# json: the file out must be JSON
json() {
    if command -v python3 >/dev/null && ! python3 -m json.tool <out >/dev/null; then
        echo "FAIL: no JSON:"
        cat out
        failed=1
    fi
}

printf 'chunk_size: 128\naws_secret_access_key: hidden\n' >good.yaml
printf 'chunk_size: 0\nchunck_size: 7\nenable_p2p: true\n' >bad.yaml

expect 2
expect 0 --help
has out 'config check lmcache.yaml'
expect 2 confg
has err "Did you mean 'config'?"
expect 2 wholly-unknown
has err "See 'kvtier --help'."
expect 0 version
has out 'kvtier '
expect 0 --version
expect 0 version --json
json
expect 2 version nonsense
expect 0 config --help
has out 'kvtier config check [OPTIONS] [--bytes-per-token N] [--tp N] [FILE]'

expect 0 config --help
cp out config.help
expect 0 help config
cmp -s out config.help || fail 'help config is not config --help'
expect 0 help
has out 'Usage: kvtier COMMAND'
expect 2 help confg
has err "Did you mean 'config'?"

expect 2 config
expect 2 config chek
expect 0 config check good.yaml
has out '0 errors, 0 warnings'
expect 1 config check bad.yaml
has out 'error: chunk_size is '
has out 'did you mean chunk_size?'
has out 'warning: enable_p2p'
has out '2 errors, 1 warning'
expect 1 config check --json bad.yaml
json
has out '"ok": false'
expect 0 config check good.yaml --json
json
has out '"ok": true'
expect 2 config check absent.yaml
has err 'absent.yaml: No such file'
expect 2 config check good.yaml bad.yaml
expect 1 config check --config bad.yaml
expect 0 config check --config=good.yaml --set chunk_size=64
expect 1 config check good.yaml --set chunk_size=none
has out chunk_size
expect 2 config check --config good.yaml good.yaml
expect 0 config show --set chunk_size=96 good.yaml
has out 'chunk_size: 96'
expect 2 config keys --set chunk_size=96
expect 2 config check --nonsense good.yaml
has err "unknown option or missing value: --nonsense"

# a URL that no tier serves, from each source of settings
printf 'remote_url: s4://bucket\n' >s4.yaml
for source in s4.yaml '--config s4.yaml' '--set remote_url=s4://bucket'; do
    expect 1 config check $source
    has out "no tier for 's4://'"
    expect 2 ls ${source#s4.yaml} --config s4.yaml
    has err "no tier for 's4://'"
done

# a kind of plug-in that no tier serves: an error of the check and of opening
expect 1 config check --set remote_storage_plugins=mooncake.a
has out "no tier for 'mooncake'"
expect 2 ls --set remote_storage_plugins=mooncake.a
has err "no tier for 'mooncake'"

printf 'remote_url: s3://10.1.2.3/b\nmax_local_cpu_size: 0.25\n' >s3.yaml
expect 0 config check --bytes-per-token 16384 --tp 1 s3.yaml
has out 'a chunk of 256 tokens is 4.00 MiB in each of 1 worker'
has out '64 requests to S3 at the same time are 0.25 GiB of the 0.25 GiB of a worker'
has out 'all workers take 0.25 GiB'
has out '0 errors, 0 warnings'
expect 0 config check --bytes-per-token 32768 s3.yaml --tp 2
has out '4.00 MiB in each of 2 workers'
expect 1 config check --bytes-per-token 32768 s3.yaml
has out 'error: max_local_cpu_size is 0.25 GiB (file s3.yaml:2), 64 requests to S3'
has out 'raise it to 0.50, or lower s3_num_io_threads to 32.'
expect 1 config check --bytes-per-token 2097152 s3.yaml
has out 'less than a chunk in each worker: raise it to 32.00, or lower chunk_size.'
KVTIER_S3_MAX_IO_CONCURRENCY=32 "$kvtier" config check --bytes-per-token 32768 s3.yaml >out
has out '32 requests to S3'
printf 'max_local_cpu_size: 1e6\n' >large.yaml
expect 1 config check --bytes-per-token 1 --tp 1024 large.yaml
has out '1024000000.00 GiB for all workers, and '
if grep -q 'requests to S3' out; then
    echo 'FAIL: S3 is not configured'
    failed=1
fi
expect 0 config check --bytes-per-token 16384 --json s3.yaml
json
has out '"chunk_bytes": 4194304'
has out '"s3_requests": 64'
expect 1 config check --bytes-per-token 32768 --json s3.yaml
json
has out '"key": "max_local_cpu_size"'
expect 1 config check --bytes-per-token 16384 bad.yaml
expect 2 config check --bytes-per-token 0 s3.yaml
has err '--bytes-per-token needs a whole number from 1 to'
expect 2 config check s3.yaml --bytes-per-token
expect 2 config check --bytes-per-token 1x s3.yaml
expect 2 config check --bytes-per-token 99999999999999999999 s3.yaml
expect 2 config show --bytes-per-token 1 s3.yaml

cat >3fs.yaml <<'END'
remote_storage_plugins: ["hf3fs.primary"]
extra_config:
  hf3fs_base_path: /3fs/cache
END
"$kvtier" config check 3fs.yaml >out
has out '1 worker shares 0.20 GiB of /dev/shm with'
expect 1 config check --tp 1024 --json 3fs.yaml
json
has out '"shared_bytes": 214984425472'
has out '"key": "hf3fs_iov_size"'
sed -i 's/"hf3fs.primary"/"hf3fs.primary", "hf3fs.other"/' 3fs.yaml
"$kvtier" config check --json 3fs.yaml >out
has out '"shared_bytes": 209945728' # one region for both plug-ins
# a /dev/shm without limit, and a small /dev/shm as in a container, if this process may mount a
# tmpfs
if unshare -m mount -t tmpfs none /dev/shm 2>/dev/null; then
    unshare -m sh -c "mount -t tmpfs -o size=0 none /dev/shm && \"$kvtier\" config check \
        --tp 1024 3fs.yaml" >out || fail 'a limit where there is none'
    has out 'GiB of /dev/shm with 3FS'"'"'s daemon, which has no limit'
    unshare -m sh -c "mount -t tmpfs -o size=64m none /dev/shm && \"$kvtier\" config check \
        3fs.yaml" >out && fail 'no limit where there is one'
    has out 'which has 0.06 GiB free: give it more (docker: --shm-size), or lower it.'
fi

# shared host memory counts once for any number of workers
printf 'max_shared_cpu_size: 0.125\nmax_local_cpu_size: 0.0625\n' >shared.yaml
if unshare -m mount -t tmpfs none /dev/shm 2>/dev/null; then
    unshare -m sh -c "mount -t tmpfs -o size=64m none /dev/shm && \"$kvtier\" config check \
        shared.yaml" >out && fail 'shared host memory above the limit of /dev/shm'
    has out 'max_shared_cpu_size is 0.12 GiB (file shared.yaml:1)'
    has out 'which has 0.06 GiB free: give /dev/shm more (docker: --shm-size), or lower'
    unshare -m sh -c "mount -t tmpfs -o size=256m none /dev/shm && \"$kvtier\" config check \
        --bytes-per-token 2 --tp 2 shared.yaml" >out || fail 'shared host memory that fits'
    has out 'all workers take 0.12 GiB and share 0.12 GiB (max_shared_cpu_size)'
    has out 'shared host memory takes 0.12 GiB of /dev/shm, 0.25 GiB are free there'
    unshare -m sh -c "mount -t tmpfs -o size=256m none /dev/shm && \"$kvtier\" config check \
        --json --tp 2 shared.yaml" >out || fail 'shared host memory in JSON'
    json
    has out '"shared_cpu_bytes": 134217728'
fi
printf 'max_shared_cpu_size: 16384\n' >large-shared.yaml
expect 1 config check --bytes-per-token 1 large-shared.yaml
has out 'beside 5.00 GiB for all workers'
expect 0 config show shared.yaml
has out 'shared_cpu: true'
expect 0 config show --set shared_cpu=true --set max_local_cpu_size=3
has out 'max_shared_cpu_size: 3.0'
has out '# max_local_cpu_size, argument'

expect 0 config show good.yaml
has out 'chunk_size: 128'
has out '# file good.yaml:1'
has out 'aws_secret_access_key: "***"'
if grep -q 'hidden\|max_local_cpu_size' out; then
    echo 'FAIL: a secret or a default is shown'
    failed=1
fi
expect 0 config show --all good.yaml
has out 'max_local_cpu_size: 5.0'
has out '# default'
expect 0 config show --all --json good.yaml
json
expect 0 config show --json
json
expect 2 config show bad.yaml
has err "chunk_size is '0' (file bad.yaml:1)"
"$kvtier" config show good.yaml >again.yaml
expect 0 config check again.yaml

LMCACHE_CONFIG_FILE=good.yaml KVTIER_CHUNK_SIZE=64 "$kvtier" config show >out
has out 'chunk_size: 64'
has out '# KVTIER_CHUNK_SIZE'

expect 0 config keys
has out 'max_local_cpu_size'
expect 0 config keys gds_buffer_size
has out 'Older names: cufile_buffer_size'
expect 0 config keys --json
python3 -c '
import json, sys
keys = json.load(sys.stdin)
assert {"key", "default", "text"} <= set(keys[0]), keys[0]
assert len(keys) > 100
' <out
expect 0 config keys --json chunk_size
grep -q '"key": "chunk_size"' out
expect 1 config keys no_such_key

"$kvtier" config keys --markdown >page.md
if ! cmp -s page.md "$docs/configuration.md"; then
    echo 'FAIL: docs/configuration.md is out of date: run scripts/make-config-docs'
    diff page.md "$docs/configuration.md" | head
    failed=1
fi

# check refuses each address that an engine refuses, from a file as from the command line, and
# never prints a password
refuses() { # URL TEXT
    printf "remote_url: '%s'\n" "$1" >url.yaml
    for form in url.yaml "--config url.yaml" "--set remote_url=$1"; do
        expect 1 config check --set s3_region=us-east-1 $form
        grep -q "^error: remote_url.*$2" out || { echo "FAIL: $1 $form: no '$2'"; failed=1; }
    done
    expect 1 config check --json url.yaml
    json
    ! grep -q hidden out err || { echo 'FAIL: a password is printed'; failed=1; }
}
refuses s3://user:hidden@host/bucket 'keys or a password'
refuses s3://Kv_Cache 'a bucket whose name'
refuses s4://kv-cache 'no tier for'
refuses fs://host:0 'no absolute path'
refuses fs:///var/cache/kv,relative 'no absolute path'
refuses null://x 'no further text'
refuses fault://read_error=2/fs:///kv 'does not take'
refuses fault://seed=1/s3://user:hidden@host/bucket 'keys or a password'
expect 1 config check --set remote_url=s3://kv-cache
has out 'Set s3_region or AWS_REGION'
expect 1 config check --set remote_url=s3://10.1.2.3/kv --set 's3_headers=["hidden"]'
has out 's3_headers: entry 1'
! grep -q hidden out || { echo 'FAIL: a header is printed'; failed=1; }
expect 1 config check --set 'remote_storage_plugins=["fs.a"]' \
    --set remote_storage_plugin.fs.a.base_path=relative
has out 'no absolute path'

if [ -e /dev/full ]; then
    "$kvtier" config keys >/dev/full 2>err
    [ $? -eq 3 ] || { echo 'FAIL: a full output is no error'; failed=1; }
fi
finish cli/config
