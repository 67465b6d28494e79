#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the digest of a checkpoint's weight files with a cold page cache.

Makes FILES safetensors files of GB gigabytes with TENSORS tensors each in a new directory
below DIRECTORY, and deletes the files at the end.
The sampled pages are written and synced, so a cold digest reads these pages from the
disk; the digest never touches the other pages.  The file system allocates all pages, so
that the samples lie as far apart on the disk as in a real checkpoint; with --sparse the
other pages are holes.
"""
import argparse
import json
import os
import pathlib
import struct
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
from kvtier import vllm_samples  # noqa: E402


def make(path, size, n_tensors, sparse):
    each = size // n_tensors // 2 * 2
    header = json.dumps({
        "model.layers.%d.mlp.experts.%d.up_proj.weight" % divmod(i, 128): {
            "dtype": "BF16", "shape": [each // 2],
            "data_offsets": [i * each, (i + 1) * each]}
        for i in range(n_tensors)}).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        base = file.tell()
        file.flush()
        fd = file.fileno()
        if not sparse:
            os.posix_fallocate(fd, base, n_tensors * each)
        for i in range(n_tensors):
            for at in (base + i * each, base + i * each + each // 2 - 64,
                       base + (i + 1) * each - 64):
                start = max(base, at // 4096 * 4096)
                end = min(start + 8192, base + n_tensors * each)
                os.pwrite(fd, os.urandom(end - start), start)
        os.fsync(fd)


def forget(paths):
    """Drop the files' pages; return the method."""
    try:
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
        return "drop_caches"
    except OSError:
        for path in paths:
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return "posix_fadvise"


def measure(args, directory):
    paths = [os.path.join(directory, "model-%05d.safetensors" % i) for i in range(args.files)]
    for path in paths:
        make(path, int(args.gb * 1e9), args.tensors, args.sparse)
    size = sum(os.path.getsize(path) for path in paths)
    print("%d files, %.1f GB, %d tensors" % (
        len(paths), size / 1e9, len(paths) * args.tensors))
    cold, digests = [], set()
    for _ in range(args.rounds):
        how = forget(paths)
        start = time.perf_counter()
        digests.add(vllm_samples.digest(paths))
        cold.append(time.perf_counter() - start)
    start = time.perf_counter()
    digests.add(vllm_samples.digest(paths))
    warm = time.perf_counter() - start
    if len(digests) != 1:
        sys.exit("weights-digest: the digests differ")
    print("cold (%s): %s s, median %.2f s; warm: %.2f s" % (
        how, " ".join("%.2f" % s for s in cold), sorted(cold)[len(cold) // 2], warm))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", default="/var/tmp", help="(%(default)s)")
    parser.add_argument("--files", type=int, default=30, help="(%(default)s)")
    parser.add_argument("--gb", type=float, default=5,
                        help="gigabytes of a file (%(default)s)")
    parser.add_argument("--tensors", type=int, default=24, help="tensors in a file (%(default)s)")
    parser.add_argument("--sparse", action="store_true",
                        help="allocate only the sampled pages")
    parser.add_argument("--rounds", type=int, default=5,
                        help="cold digests (%(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-weights-", dir=args.directory) as directory:
        measure(args, directory)


if __name__ == "__main__":
    main()
