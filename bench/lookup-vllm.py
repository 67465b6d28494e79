#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The case lookup.vllm: for each request, convert, hash and look up a prompt in the form of
vLLM's scheduler, a Python list of token ids.

One process stores every chunk of the prompt; another process looks up the prompt with the
connector's Python bindings.  limit is the time to hash the list's chunks in Python, as
LMCache does, without a lookup.  If cbor2 is installed, sha256_cbor is measured too.

    KVTIER_LIBRARY=build/libkvtier.so bench/lookup-vllm.py [--json]
"""
import argparse
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from array import array

sys.path.insert(0, os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "python"))

from kvtier import _lib  # noqa: E402
from kvtier.vllm_model import View  # noqa: E402

try:
    import cbor2
except ImportError:
    cbor2 = None

CHUNK_TOKENS = 256
BLOCK_TOKENS = 16
BLOCK_BYTES = 256
STEP_CHUNKS = 512  # chunks stored at a time: the small pool holds no more
ALGORITHMS = ("builtin", "sha256_cbor")


def open_engine(directory, algorithm, role):
    config = _lib.Config(settings=[
        "chunk_size=%d" % CHUNK_TOKENS, "max_local_cpu_size=0.0625",
        "local_cpu=false", "pre_caching_hash_algorithm=" + algorithm,
        "remote_url=fs://" + directory])
    group = _lib.Group(kind=_lib.GROUP_FULL, block_tokens=BLOCK_TOKENS, n_layers=1,
                       format=_lib.FORMAT_OPAQUE, n_heads=1, head_bytes=16,
                       block_bytes=BLOCK_BYTES, layout=b"bench", layers=b"a")
    model = _lib.Model(name=b"bench", kv_dtype=b"bfloat16", world_size=1)
    try:
        return _lib.Engine(config, role, [group], model)
    finally:
        config.close()


def store(directory, algorithm, tokens):
    """Store all chunks from the same blocks: the content does not matter."""
    engine = open_engine(directory, algorithm, _lib.ROLE_WORKER)
    per_chunk = CHUNK_TOKENS // BLOCK_TOKENS
    memory = bytearray(per_chunk * BLOCK_BYTES)
    address = (_lib.c_uint8 * len(memory)).from_buffer(memory)
    engine.set_view(0, View([_lib.ctypes.addressof(address)], 1, BLOCK_BYTES, 0, 0,
                            _lib.MEMORY_HOST, 0), per_chunk, -1)
    seq = engine.seq(array("I", tokens))
    n_chunks = len(tokens) // CHUNK_TOKENS
    for first in range(0, n_chunks, STEP_CHUNKS):
        n = min(STEP_CHUNKS, n_chunks - first)
        blocks = array("i", list(range(per_chunk)) * n)
        engine.store([(0, seq.chunks(first, n), blocks.tobytes(), None)])
        engine.flush(60000)
    seq.free()
    engine.close()


def in_child(function, *arguments):
    pid = os.fork()
    if not pid:
        status = 1
        try:
            function(*arguments)
            status = 0
        finally:
            os._exit(status)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        sys.exit("lookup-vllm: the chunks could not be stored")


def look_up(engine, tokens):
    """Return (seconds of the conversion, seconds of the whole lookup) of one request."""
    began = time.perf_counter()
    converted = array("I", tokens)
    after = time.perf_counter()
    seq = engine.seq(converted)
    while (hit := engine.lookup(seq, 0, len(tokens))) is None:
        time.sleep(50e-6)
    ended = time.perf_counter()
    engine.release(seq)
    seq.free()
    if hit != len(tokens) // CHUNK_TOKENS * CHUNK_TOKENS:
        sys.exit("lookup-vllm: %d of %d tokens were found" % (hit, len(tokens)))
    return after - began, ended - began


def hash_in_python(tokens, algorithm):
    """Compute the chained hashes of all chunks; return the seconds."""
    began = time.perf_counter()
    prefix = 0
    for first in range(0, len(tokens), CHUNK_TOKENS):
        chunk = (prefix, tuple(tokens[first:first + CHUNK_TOKENS]), None)
        if algorithm == "builtin":
            prefix = hash(chunk)
        else:
            text = cbor2.dumps(chunk, canonical=True)
            prefix = int.from_bytes(hashlib.sha256(text).digest()[:8], "big")
    return time.perf_counter() - began


def measure(algorithm, args):
    randoms = random.Random(1)
    tokens = [randoms.randrange(128000) for _ in range(args.tokens)]
    by_hand = algorithm == "builtin" or cbor2
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        in_child(store, directory, algorithm, tokens)
        engine = open_engine(directory, algorithm, _lib.ROLE_SCHEDULER)
        look_up(engine, tokens)
        both = []
        for i in range(args.rounds):  # in turns, because the CPU's speed varies
            python = (hash_in_python(tokens, algorithm)
                      if by_hand and i < args.python_rounds else None)
            both.append((look_up(engine, tokens), python))
        engine.close()
    value = statistics.median(ours[1] for ours, _ in both) * 1e3
    convert = statistics.median(ours[0] for ours, _ in both) * 1e3
    line = {"case": "lookup.vllm", "algorithm": algorithm, "value": value,
            "unit": "ms", "threads": 1, "convert_ms": convert,
            "hash_and_lookup_ms": statistics.median(
                ours[1] - ours[0] for ours, _ in both) * 1e3,
            "tokens": args.tokens, "rounds": args.rounds}
    pairs = [(python, ours[1]) for ours, python in both if python is not None]
    if pairs:
        line["limit"] = statistics.median(p for p, _ in pairs) * 1e3
        line["ratio"] = statistics.median(p / mine for p, mine in pairs)
    return line


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000,
                        help="tokens of the prompt (%(default)s)")
    parser.add_argument("--rounds", type=int, default=100,
                        help="lookups (%(default)s)")
    parser.add_argument("--python-rounds", type=int, default=15,
                        help="rounds that also hash in Python (%(default)s)")
    parser.add_argument("--dir", default="/var/tmp", help="the store is below DIR (%(default)s)",
                        metavar="DIR")
    parser.add_argument("--json", action="store_true",
                        help="print a JSON object for each algorithm")
    args = parser.parse_args()
    for algorithm in ALGORITHMS:
        line = measure(algorithm, args)
        if args.json:
            print(json.dumps(line), flush=True)
        else:
            print("lookup.vllm %-12s %8.2f ms, of which conversion %.2f; hashing "
                  "in Python %s" % (
                      algorithm, line["value"], line["convert_ms"],
                      "%.2f" % line["limit"] if "limit" in line else "not measured"),
                  flush=True)


if __name__ == "__main__":
    main()
