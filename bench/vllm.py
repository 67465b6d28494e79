#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure kvtier inside a real vLLM on the CPU, with the demo's model: the cost of an idle
step, and the time to first token.

vllm.step  Time in the connector's methods during a decode step without loads and saves: the
           median of 1,000 steps.
vllm.ttft  Time to first token of prompts of 10,000 tokens in a restarted, warmed server.  Each
           prompt is sent twice: the first time kvtier reads the chunks from the disk (past
           the page cache), the second time vLLM's own prefix cache answers, which is the
           floor.  value is the median difference of the pairs.  limit is 0.3 of the floor
           plus the time in which a minimal loop reads as many bytes of the same files,
           measured between the pairs.
vllm.ttft.memory  The same with the chunks in host memory.
"""
import argparse
import concurrent.futures
import contextlib
import glob
import json
import mmap
import os
import random
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "demo"))

import workplace  # noqa: E402
from server import Server, ServerError, install_signal_handlers  # noqa: E402

TOKENS_FOUND = "vllm:external_prefix_cache_hits_total"
READ_THREADS = 4
STEP_GOAL_US = 100
TTFT_GOAL = 0.3


def log(text):
    print("bench-vllm: " + text, file=sys.stderr, flush=True)


class Bench:
    def __init__(self, args, python, directory):
        self.args = args
        self.python = python
        self.directory = directory
        self.store = os.path.join(directory, "store")
        self.model = workplace.small_model(python)
        with open(os.path.join(self.model, "config.json")) as config:
            self.vocabulary = json.load(config)["vocab_size"]
        self.random = random.Random(1)
        self.prompts = [self.prompt(args.tokens) for _ in range(args.prompts)]
        os.mkdir(self.store)

    def prompt(self, n_tokens):
        return workplace.whole_chunks(
            [self.random.randrange(2, self.vocabulary) for _ in range(n_tokens)])

    @contextlib.contextmanager
    def server(self, what, transfer, env=(), **settings):
        """Start a server and warm the server up with a prompt of the same length."""
        config = os.path.join(self.directory, "kvtier.yaml")
        workplace.write_config(config, self.store, **settings)
        everything = workplace.kvtier_environment(config)
        everything["PYTHONPATH"] += os.pathsep + os.path.join(HERE, "connector")
        everything["VLLM_SERVER_DEV_MODE"] = "1"  # for /reset_prefix_cache
        everything.update(env)
        log(f"starting {what}")
        with Server(self.python, self.model,
                    os.path.join(self.directory, "vllm.log"), transfer,
                    ["--max-model-len", "16384"], everything) as server:
            server.complete(self.prompt(self.args.tokens), 4)
            yield server

    # -- the time inside the connector

    def idle_steps(self):
        """Return [(microseconds, calls)] of the last steps of one long answer, for each
        process (scheduler, worker)."""
        path = os.path.join(self.directory, "steps")
        transfer = dict(workplace.transfer_config(), kv_connector="TimedConnector",
                        kv_connector_module_path="timed_connector")
        n = self.args.steps
        with self.server("a server with a clock in its connector", transfer,
                         {"KVTIER_BENCH_STEPS": path}) as server:
            log(f"generating {n + 300} tokens")
            server.complete(self.prompt(600), n + 300)
        processes = []
        for one in glob.glob(path + ".*"):
            with open(one) as f:
                steps = [tuple(map(int, line.split())) for line in f]
            # The connector writes in batches: up to 255 further steps are missing.
            processes.append([(ns / 1e3, calls) for ns, calls in steps[-n:]])
        return processes

    def step(self):
        """Return the result line; the value is the sum of the processes' medians, because
        the scheduler and the worker run one after the other."""
        processes = self.idle_steps()
        medians = [statistics.median(us for us, _ in steps) for steps in processes]
        value = sum(medians)
        return {"case": "vllm.step", "value": value, "unit": "us",
                "limit": STEP_GOAL_US, "ratio": STEP_GOAL_US / value,
                "each_process": medians, "steps": min(map(len, processes)),
                "calls": sum(statistics.median(calls for _, calls in steps)
                             for steps in processes)}

    # -- the time to first token

    def fill(self):
        with self.server("the first server", workplace.transfer_config()) as server:
            cold = []
            for i, prompt in enumerate(self.prompts, 1):
                log(f"prompt {i} of {len(self.prompts)}, cold")
                cold.append(server.complete(prompt, 4).ttft_s)
            workplace.wait_until_stored(self.store)
        return cold

    def pair(self, server, prompt):
        """Return (seconds with kvtier, seconds with vLLM's own hit)."""
        before = server.metrics()[TOKENS_FOUND]
        first = server.complete(prompt, 4)
        second = server.complete(prompt, 4)
        expected = before + len(prompt) - 16
        found = server.settled_metrics(TOKENS_FOUND, expected)[TOKENS_FOUND]
        if found != expected:
            raise ServerError("kvtier found %d of %d tokens" %
                              (found - before, len(prompt)))
        return first.ttft_s, second.ttft_s

    def rounds(self, server, disk_speeds=None):
        pairs = []
        for prompt in self.prompts:
            if disk_speeds is not None:
                workplace.drop_page_cache(self.store)
                disk_speeds.append(read_speed(self.store))
            pairs.append(self.pair(server, prompt))
        return pairs

    def ttft(self):
        """Return the result lines.  The restart has emptied host memory: the first round
        reads chunks from disk and leaves the chunks in memory for the second round."""
        cold = self.fill()
        n_files, size = workplace.stored(self.store)
        speeds = []
        pool_gb = size / 2**30 * 1.2 + 1
        with self.server("the restarted server", workplace.transfer_config(),
                         pool_gb=round(pool_gb, 2)) as server:
            log("asking for each prompt twice: from disk, from vLLM")
            disk = self.rounds(server, speeds)
            server.request("POST", "/reset_prefix_cache")
            log("asking for each prompt twice: from host memory, from vLLM")
            memory = self.rounds(server)
        per_token = size / n_files / workplace.CHUNK_TOKENS
        read = (len(self.prompts[0]) - 16) * per_token
        seconds = read / statistics.median(speeds)
        more = {"cold_s": statistics.median(cold), "bytes": int(read),
                "disk_gb_per_s": statistics.median(speeds) / 1e9}
        return [pairs_line("vllm.ttft", disk, seconds, more),
                pairs_line("vllm.ttft.memory", memory, 0, {})]


def pairs_line(case, pairs, seconds, more):
    floor = statistics.median(local for _, local in pairs)
    value = statistics.median(ours - local for ours, local in pairs)
    limit = TTFT_GOAL * floor + seconds
    return {"case": case, "value": value, "unit": "s", "limit": limit,
            "ratio": limit / value if value > 0 else float(len(pairs)),
            "ttft_s": statistics.median(ours for ours, _ in pairs),
            "floor_s": floor, "disk_s": seconds, "pairs": len(pairs), **more}


# ------------------------------------------------------------------ the disk

def read_file(path):
    """Read a file past the page cache, in a loop of system calls; return the bytes read."""
    size = os.stat(path).st_size
    buffer = mmap.mmap(-1, 1 << 20)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        at = 0
        while at < size:
            at += os.preadv(fd, [buffer], at)
    finally:
        os.close(fd)
        buffer.close()
    return size


def read_speed(store, at_most=150 << 20):
    """Return bytes a second, measured with files of about one prompt."""
    paths, size = [], 0
    for path in workplace.files_below(store):
        if path.endswith(".data") and size < at_most:
            paths.append(path)
            size += os.stat(path).st_size
    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(READ_THREADS) as pool:
        total = sum(pool.map(read_file, paths))
    return total / (time.perf_counter() - began)


# ------------------------------------------------------------------- running

def print_result(line):
    print(json.dumps(line), flush=True)


def run(args):
    python = workplace.vllm_python()
    with tempfile.TemporaryDirectory(prefix="bench-vllm-",
                                     dir=args.dir) as directory:
        bench = Bench(args, python, directory)
        try:
            if args.case in (None, "step"):
                print_result(bench.step())
            if args.case in (None, "ttft"):
                for line in bench.ttft():
                    print_result(line)
        except ServerError as e:
            log(str(e))
            return 3
    return 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=("step", "ttft"), help="run only this case")
    parser.add_argument("--prompts", type=int, default=9, help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=10000,
                        help="tokens of a prompt at most (%(default)s)")
    parser.add_argument("--steps", type=int, default=1000,
                        help="steps of vllm.step (%(default)s)")
    parser.add_argument("--dir", default=workplace.cache_directory(),
                        help="the store is below DIR (%(default)s)", metavar="DIR")
    args = parser.parse_args()
    install_signal_handlers()
    try:
        return run(args)
    except workplace.Unavailable as e:
        log(str(e))
        return 3


if __name__ == "__main__":
    sys.exit(main())
