#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time to the first token with load_policy: faster, against always and never loading.

The storage is a directory whose reads are limited to 10 MB/s, then to higher rates.  The
connector's scheduler and the real engine look up and load; a sleep stands for the computation
of tokens.  Each rate begins with the measurements of the rate before.  Exit status 1: a median
is more than 5 % above the better of always and never.  Needs vLLM's packages, no model.

    KVTIER_LIBRARY=build/libkvtier.so python bench/faster.py [--tokens N] [--requests N]
        [--rates MB/S ...]
"""
import argparse
import ctypes
import math
import os
import random
import statistics
import sys
import tempfile
import time
from array import array
from types import SimpleNamespace

# In place of this directory, which has a file vllm.py.
sys.path[0] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python")

from kvtier import _lib  # noqa: E402
from kvtier.vllm_model import GroupInfo, View  # noqa: E402
from kvtier.vllm_scheduler import Scheduler  # noqa: E402

MB_S = (10, 20, 40, 60, 80, 100, 150, 300, 1000, 2000)
CHUNK = 256
BLOCK = 16
TOKEN_BYTES = 16384
STEP_TOKENS = 2048
N_PROMPTS = 3
ENOUGH = 1.05


def group():
    made = GroupInfo()
    made.kind, made.window, made.replicated = _lib.GROUP_FULL, 0, 0
    made.block_tokens, made.blocks_per_chunk = BLOCK, CHUNK // BLOCK
    made.n_heads, made.head_bytes, made.block_bytes = 1, TOKEN_BYTES, BLOCK * TOKEN_BYTES
    made.format, made.layout, made.layers = _lib.FORMAT_OPAQUE, "bench", ["a"]
    return made


def open_engine(url, role, policy):
    config = _lib.Config(settings=[
        "chunk_size=%d" % CHUNK, "max_local_cpu_size=0.25", "local_cpu=false",
        "load_policy=" + policy, "remote_url=" + url, "max_remote_size=4"])
    model = _lib.Model(name=b"bench", kv_dtype=b"bfloat16", world_size=1, fingerprint=b"f")
    try:
        return _lib.Engine(config, role, [group().to_c()], model, instance="bench-%d" % os.getpid())
    finally:
        config.close()


class Worker:
    def __init__(self, url, policy, n_tokens):
        self.engine = open_engine(url, _lib.ROLE_WORKER, policy)
        n_blocks = -(-n_tokens // BLOCK)
        self.memory = ctypes.create_string_buffer(n_blocks * BLOCK * TOKEN_BYTES)
        self.engine.set_view(0, View([ctypes.addressof(self.memory)], 1,
                                     BLOCK * TOKEN_BYTES, 0, 0, _lib.MEMORY_HOST, 0),
                             n_blocks, -1)

    def run(self, meta):
        """Execute the loads and prefetches of a step, and wait for the loads."""
        if getattr(meta, "prefetches", None):
            self.engine.prefetch(meta.prefetches)
        done = set()
        for request_id, ios in getattr(meta, "loads", ()):
            load = self.engine.load(ios)
            while load not in self.engine.poll():
                time.sleep(0.0005)
            load.free()
            done.add(request_id)
        return done


class Serving:
    """An engine with one request at a time."""

    def __init__(self, url, policy, n_tokens, token_s):
        self.worker = Worker(url, policy, n_tokens)
        self.scheduler = Scheduler(
            open_engine(url, _lib.ROLE_SCHEDULER, policy), [[group()]],
            {"load_policy": policy, "lookup_timeout_ms": 3000}, can_load=True, can_save=False)
        self.token_s = token_s
        self.n = 0

    def close(self):
        self.scheduler.shutdown()
        self.worker.engine.close()

    def step(self, scheduled):
        output = SimpleNamespace(
            scheduled_cached_reqs=SimpleNamespace(
                resumed_req_ids=(), req_ids=(), new_block_ids=()),
            scheduled_new_reqs=(), num_scheduled_tokens=scheduled,
            kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: None))
        return self.scheduler.build_meta(output)

    def ask(self, tokens, loads=True):
        """Return (seconds to the first token, loaded tokens)."""
        self.n += 1
        request = SimpleNamespace(
            request_id="r%d" % self.n, prompt_token_ids=tokens, num_prompt_tokens=len(tokens),
            num_tokens=len(tokens), num_computed_tokens=0, cache_salt=None,
            kv_transfer_params=None if loads else {"max_load_tokens": 0})
        began = time.perf_counter()
        while (hit := self.scheduler.matched_tokens(request, 0)[0]) is None:
            self.worker.run(self.step({}))
            self.scheduler.take_events()
            time.sleep(0.0005)
        if hit:
            ids = list(range(len(tokens) // BLOCK))
            self.scheduler.allocated(
                request, SimpleNamespace(get_block_ids=lambda: [ids]), hit)
        done = self.worker.run(self.step({}))
        self.scheduler.take_events()
        self.scheduler.received(SimpleNamespace(finished_recving=done))
        request.num_computed_tokens = hit
        while request.num_computed_tokens < len(tokens):
            n = min(STEP_TOKENS, len(tokens) - request.num_computed_tokens)
            self.step({request.request_id: n})
            time.sleep(n * self.token_s)
            self.scheduler.take_events()
            request.num_computed_tokens += n
        took = time.perf_counter() - began
        self.scheduler.finished(request)
        return took, hit


def store(url, prompts):
    worker = Worker(url, "all", len(prompts[0]))
    for tokens in prompts:
        seq = worker.engine.seq(array("I", tokens))
        for i in range(len(tokens) // CHUNK):
            blocks = array("i", range(i * CHUNK // BLOCK, (i + 1) * CHUNK // BLOCK))
            worker.engine.store([(0, seq.chunks(i, 1), blocks.tobytes(), None)])
            worker.engine.flush(60000)
        seq.free()
    worker.engine.close()


def serve(rate, folders, prompts, args):
    """Return the median times of always, never and faster, and the loaded share with faster.
    The requests alternate, so that other load of the machine hits all alike."""
    kinds = [(kind, Serving("fault://read_mb_s=%d/fs://%s" % (rate, folders[policy]), policy,
                            args.tokens, args.token_us / 1e6))
             for kind, policy in (("faster", "faster"), ("always", "all"), ("never", "all"))]
    times = {kind: [] for kind, _ in kinds}
    loaded = 0
    # Short loads, which other work on the machine delays most.
    short = rate > 2 * TOKEN_BYTES / args.token_us
    for i in range(args.requests * (4 if short else 1)):
        for kind, serving in kinds:
            if kind == "never" and i >= args.requests:
                continue
            took, hit = serving.ask(prompts[i % N_PROMPTS], loads=kind != "never")
            times[kind].append(took)
            loaded += hit if kind == "faster" else 0
    for _, serving in kinds:
        serving.close()
    return ([statistics.median(times[kind]) for kind in ("always", "never", "faster")],
            loaded / len(times["faster"]) / args.tokens)


def number(kind, least):
    """Return a parser of a finite number of at least `least`."""
    def parse(text):
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError("%s must be a finite number of at least %s"
                                             % (text, least))
        return value
    parse.__name__ = kind.__name__  # in argparse's message about text without a number
    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tokens", type=number(int, CHUNK), default=4096)
    parser.add_argument("--token-us", type=number(float, 1), default=200)
    parser.add_argument("--requests", type=number(int, 1), default=9)
    parser.add_argument("--rates", type=number(int, 1), nargs="+", default=MB_S, metavar="MB/S",
                        help="limits of the storage, in this order")
    args = parser.parse_args()
    randoms = random.Random(1)
    prompts = [[randoms.randrange(128000) for _ in range(args.tokens)]
               for _ in range(N_PROMPTS)]
    failed = False
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        folders = {policy: os.path.join(folder, policy) for policy in ("all", "faster")}
        for path in folders.values():
            os.mkdir(path)
            store("fs://" + path, prompts)
        cold = Serving("fs://" + folders["faster"], "faster", args.tokens, args.token_us / 1e6)
        cold.ask(prompts[0], loads=False)
        cold.close()
        print("%8s %9s %9s %9s %8s %7s" % (
            "MB/s", "always s", "never s", "faster s", "loaded", "ratio"))
        for rate in args.rates:
            (always, never, faster), share = serve(rate, folders, prompts, args)
            ratio = faster / min(always, never)
            failed |= ratio > ENOUGH
            print("%8d %9.3f %9.3f %9.3f %7.0f%% %7.3f" % (
                rate, always, never, faster, 100 * share, ratio), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
