# SPDX-License-Identifier: Apache-2.0
"""Digests of weight files by samples, fast enough for checkpoints of 150 GB.

A safetensors file contributes the whole header and SAMPLE_BYTES at the start, in the
middle and at the end of every tensor.  Any other file contributes N_SAMPLES samples
spread over the file, the first and the last byte included.  Files count by their
base names, so a copy of a directory has the same digest.
"""

import concurrent.futures
import hashlib
import json
import os
import stat
import struct

SAMPLE_BYTES = 64
N_SAMPLES = 256

# The format's own limit.
_MAX_HEADER_BYTES = 100_000_000
# Samples closer than this are read together.
_JOIN_BYTES = 4096
_N_THREADS = 16


def digest(paths):
    """Return the hex digest of the files, in the order of their names.

    Threads run only inside the call.  Raises OSError if a file cannot be read."""
    paths = sorted(set(paths), key=lambda path: (os.path.basename(path), path))
    total = hashlib.sha256()
    with concurrent.futures.ThreadPoolExecutor(
            max(1, min(_N_THREADS, len(paths)))) as threads:
        for path, one in zip(paths, threads.map(_file_digest, paths)):
            name = os.path.basename(path).encode("utf-8", "surrogateescape")
            total.update(struct.pack("<Q", len(name)) + name + one)
    return total.hexdigest()


def whole_digest(paths):
    """Return the hex digest of every byte of small files."""
    total = hashlib.sha256()
    for path in sorted(set(paths), key=lambda path: (os.path.basename(path), path)):
        with open(_open(path), "rb") as file:
            content = hashlib.sha256(file.read()).digest()
        name = os.path.basename(path).encode("utf-8", "surrogateescape")
        total.update(struct.pack("<Q", len(name)) + name + content)
    return total.hexdigest()


def _open(path):
    """Return a descriptor of a regular file.  Opening a FIFO would block for ever."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError("%s is not a regular file" % path)
    return fd


def _file_digest(path):
    fd = _open(path)
    try:
        size = os.fstat(fd).st_size
        found = hashlib.sha256(struct.pack("<Q", size))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        header = _header(fd, path, size)
        if header is None:
            spans = _spread(size)
        else:
            found.update(header)
            spans = _tensor_spans(header, 8 + len(header), size)
        # The kernel reads all samples at once; the reads below find them in memory.
        spans = _join(spans)
        for start, end in spans:
            os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_WILLNEED)
        for start, end in spans:
            data = os.pread(fd, end - start, start)
            if len(data) != end - start:
                raise OSError("%s became shorter while it was read" % path)
            found.update(data)
        return found.digest()
    finally:
        os.close(fd)


def _header(fd, path, size):
    """Return a safetensors header; None if the file is of another format."""
    if not path.endswith(".safetensors") or size < 8:
        return None
    length, = struct.unpack("<Q", os.pread(fd, 8, 0))
    if length > min(size - 8, _MAX_HEADER_BYTES):
        return None
    parts, at = [], 8
    os.posix_fadvise(fd, 8, length, os.POSIX_FADV_WILLNEED)
    while length:
        part = os.pread(fd, length, at)
        if not part:
            raise OSError("%s became shorter while it was read" % path)
        parts.append(part)
        at += len(part)
        length -= len(part)
    return b"".join(parts)


def _tensor_spans(header, base, size):
    """Return [(start, end)] of each tensor's samples; if the header is damaged, of samples
    spread over the file."""
    try:
        offsets = sorted(
            tuple(map(int, about["data_offsets"]))
            for name, about in json.loads(header).items() if name != "__metadata__")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError,
            RecursionError):
        return _spread(size)
    spans = []
    for start, end in offsets:
        start, end = base + start, base + end
        if not base <= start <= end <= size:
            return _spread(size)
        middle = (start + end - SAMPLE_BYTES) // 2
        spans += ((at, min(at + SAMPLE_BYTES, end))
                  for at in (start, max(start, middle),
                             max(start, end - SAMPLE_BYTES)) if at < end)
    return spans


def _spread(size):
    """[(start, end)] of N_SAMPLES samples from the first byte to the last."""
    last = max(0, size - SAMPLE_BYTES)
    return [(at, min(at + SAMPLE_BYTES, size))
            for at in sorted({last * i // (N_SAMPLES - 1)
                              for i in range(N_SAMPLES)})]


def _join(spans):
    """Join overlapping and nearly adjacent spans: a single read is cheaper than two reads."""
    joined = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] < _JOIN_BYTES:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return joined
