#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The gpu cases of kvtier-bench with fake drivers and devices: the output, and the messages if a
# driver or device is missing or fails.  Asserts nothing about speed.
#   KVTIER=build/kvtier sh tests/bench/gpu.sh
command=
. "$(dirname "$0")/../cli/lib"
kvtier=$(dirname "$kvtier")/kvtier-bench
tests=$(dirname "$kvtier")/tests
cuda=$tests/fakes/cufile:$tests/fakes/nvrtc hip=$tests/fakes/hipfile:$tests/fakes/hiprtc
unset GDS_FAKE GPU_FAKE GPU_FAKE_FAIL GPU_FAKE_IDLE FAKE_GPU_GUARD CUFILE_ENV_PATH_JSON
mkdir work

cases='gds.gpu.write gds.gpu.read gpu.gather.nhd gpu.gather.hnd gpu.scatter.nhd
    gpu.scatter.hnd gpu.store.nhd gpu.store.hnd gpu.load.nhd gpu.load.hnd'

# run_bench CODE OPTIONS...: run kvtier-bench and expect the exit code and an empty work directory.
run_bench() {
    code=$1
    shift
    expect "$code" --quick --json --dir work "$@"
    [ -z "$(ls -A work)" ] || fail "work is not empty: $(ls -A work)"
}

# --- without a driver, and without a device: one message for all cases, and no figures

export LD_LIBRARY_PATH=/nowhere
run_bench 0 --case 'gpu.*'
if [ ! -s out ]; then # otherwise the machine has a GPU
    [ "$(wc -l <err)" -eq 1 ] || fail 'expected one message'
    grep -q 'need a GPU, and there is none (libcuda.so.1 cannot be loaded; .*): skipped' err ||
        fail 'the message does not name the missing library'
fi
if [ ! -e "$tests/fakes/hipfile/libamdhip64.so.7" ] || [ ! -e "$tests/faulty/libcuda.so.1" ]; then
    echo 'bench/gpu: only without a GPU: the fakes were not built'
    finish bench/gpu
fi
LD_LIBRARY_PATH=$cuda
export GPU_FAKE=0
run_bench 0 --case gpu.gather.nhd --case gpu.load.nhd
grep -q 'libcuda.so.1 does not start: 100 (CUDA_ERROR_NO_DEVICE); .*: skipped' err ||
    fail 'the message does not say that there is no device'
[ ! -s out ] && [ "$(wc -l <err)" -eq 1 ] || fail 'expected one message without a device'
unset GPU_FAKE

# --- all cases, on the fake machines of both vendors.  FAKE_GPU_GUARD makes the host's accesses
# to GPU memory fail.  The fake of cuFile has the host access GPU memory, so the cases gds.gpu.*
# run without the guard.

for vendor in cuda hip; do
    [ $vendor = cuda ] && LD_LIBRARY_PATH=$cuda || LD_LIBRARY_PATH=$hip
    export FAKE_GPU_GUARD=1
    run_bench 0 --case 'gpu.*'
    unset FAKE_GPU_GUARD
    mv out copies
    run_bench 0 --case 'gds.gpu.*'
    cat copies >>out
    command -v python3 >/dev/null || continue
    python3 - out $vendor $cases <<'END' || fail "unexpected JSON with the fakes of $vendor"
import json, sys

lines = [json.loads(line) for line in open(sys.argv[1])]
assert [line["case"] for line in lines] == sys.argv[3:], lines
for line in lines:
    for name in ("value", "limit", "ratio"):
        assert isinstance(line[name], float) and line[name] > 0, (name, line)
    assert line["unit"] == "GB/s" and line["chunks"] == 4, line
    assert line["device"].startswith(sys.argv[2].upper() + " device 0 (fake 0), "), line
    if line["case"].split(".")[1] in ("store", "load"):
        assert line["concurrent_work"] == "copies", line
    if line["case"].startswith("gds."):
        slower = min(line["bus_gb_per_s"], line["baseline_gb_per_s"])
        assert line["threads"] == 4 and line["limit"] <= 1.001 * slower, line
        if sys.argv[2] == "hip": # cuFile reads /proc/modules, which may be absent
            assert line["data_path"].startswith("libhipfile 0.2.0 transfers chunks"), line
END
done
export GDS_FAKE=buffer=5030
run_bench 0 --case gds.gpu.read # with the fakes of hip
unset GDS_FAKE
grep -q '"data_path": ".*bytes go through host memory' out ||
    fail 'data_path does not name host memory'
expect 0 --quick --case gpu.gather.nhd --dir work
grep -q '^gpu.gather.nhd .* GB/s ' out || fail 'no row of gpu.gather.nhd'
grep -q ', device: HIP device 0 (fake 0), ' out || fail 'the row does not name the device'

# --- too little GPU memory: fewer chunks; an error of the driver: exit code 3; wrong bytes: 1

LD_LIBRARY_PATH=$tests/faulty:$tests/fakes/nvrtc
export GPU_FAKE_FAIL=cuMemAlloc_v2:0
for name in gpu.gather.hnd gpu.store.nhd gds.gpu.write; do
    run_bench 0 --case $name
    grep -q '"chunks": 2,' out || fail "$name: expected fewer chunks with little GPU memory"
done
GPU_FAKE_FAIL=cuStreamCreateWithPriority:0
run_bench 3 --case gpu.store.nhd
grep -q 'CUDA_ERROR_OUT_OF_MEMORY' err || fail 'the message does not name the error of the driver'
unset GPU_FAKE_FAIL
export GPU_FAKE_IDLE=1
for name in gpu.gather.nhd gpu.scatter.hnd gpu.store.hnd gpu.load.nhd; do
    run_bench 1 --case $name
    grep -q 'WRONG BYTES' err || fail "$name: wrong bytes were not reported"
    [ ! -s out ] || fail "$name: a figure after wrong bytes"
done
finish bench/gpu
