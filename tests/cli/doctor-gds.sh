#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# kvtier doctor on gds_path: without a vendor's library, and with the tests' fake libraries.
#   KVTIER=build/kvtier sh tests/cli/doctor-gds.sh
command=doctor
. "$(dirname "$0")/lib"
fakes=$(dirname "$kvtier")/tests/fakes
unset GDS_FAKE GPU_FAKE GPU_LOST CUFILE_ENV_PATH_JSON

expect_line() { # VERDICT TEXT
    grep -q "^$1 *gds .*$2" out || fail "no '$1 gds ... $2'"
}

# on CODE OPTIONS...: run the doctor on gds_path; the exit code must be CODE
on() {
    code=$1
    shift
    expect "$code" --set "gds_path=$dir/kv" --set gds_buffer_size=64 "$@"
}

mkdir kv
export LD_LIBRARY_PATH=

# --- without a library

on 0
expect_line ok "$dir/kv: bytes go through host memory; direct transfers lack the library: "
expect_line ok 'libcufile.so.0 cannot be loaded .* LD_LIBRARY_PATH'
on 1 --set use_gds=true
expect_line BAD "use_gds is true (.*), and the library is missing for $dir/kv: "
on 0 --set use_gds=false
expect_line ok "$dir/kv: bytes go through host memory: use_gds is false"
expect 0 --set "gds_path=$dir/none" --set gds_buffer_size=64
expect_line ok "$dir/none does not exist yet"
expect 0 --set "remote_url=fs://$dir/fs"
! grep -q gds out || fail 'gds_path is not configured'

# --- with a library: direct transfers work, or a GPU or a kernel module is missing

[ -e "$fakes/hipfile/libhipfile.so.0" ] || finish cli/doctor-gds
LD_LIBRARY_PATH=$fakes/hipfile
on 0 --set gds_backend=hipfile
directly='it is reached directly by libhipfile 0.2.0 (1 MiB was written and read back)'
expect_line ok "GPUs 0 to 1: $dir/kv: $directly"
export GPU_FAKE=1
on 0 --set gds_backend=hipfile
expect_line ok "GPU 0: $dir/kv: $directly"
GPU_FAKE=6
export GPU_LOST=3
on 1 --set gds_backend=hipfile
expect_line ok "GPUs 0 to 2, 4 to 5: $dir/kv: $directly"
expect_line BAD 'GPU 3: gds_backend is hipfile (.*), and the GPU is missing .* returns 46'
on 1 --set gds_backend=hipfile --json
n=$(grep -c '"gpu": [0-5]' out) || :
[ "$n" = 6 ] || fail "JSON has $n GPUs, not 6"
GPU_FAKE=0
unset GPU_LOST
on 1 --set gds_backend=hipfile
unset GPU_FAKE
expect_line BAD "gds_backend is hipfile (.*), and the GPU is missing .* hipInit returns 101"
LD_LIBRARY_PATH=$fakes/cufile
export GDS_FAKE=file=5030
on 0
if [ -r /proc/modules ]; then
    expect_line ok 'direct transfers lack udev: .* returns 5030: .*/run/udev'
else
    expect_line ok 'direct transfers lack nvidia-fs or P2PDMA: .*/proc/modules cannot be read'
fi
finish cli/doctor-gds
