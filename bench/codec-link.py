#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the encodings of remote_serde behind a real vLLM on the CPU, with chunks in a real S3
server behind a link of 1 Gb/s: the warm time to first token.  The model is the demo's, or Gemma 3
270M with prompts of the demo's text: cachegen shrinks the KV of random weights less.

The link is kvtier-bench-link, a relay between kvtier and SeaweedFS.  The rate of the link is
measured first, by the download of an object.

Each encoding has a prefix of its own in one bucket.  A first server computes and stores the
prompts: `compute` is the time from the first request to the last answer, `store` the time from
the first request to the last byte of a PUT.  Then a second server of each encoding starts, with
empty host memory for two prompts, and the encodings answer a prompt each in turn.  Each request
is repeated at once: the repetition is a hit of vLLM's own prefix cache, the floor.  In the next
round host memory no longer contains a prompt, and vLLM's prefix cache is reset.

ratio   median of (time to first token / time of naive in the same turn)
link    bytes that passed the link / measured rate of the link
rest    time to first token less floor and link
before, transfer, after  parts of the time to first token: until the first byte of the response,
        until the last byte, until the token

A turn is valid if kvtier found all chunks, and if at least 0.9 of their stored bytes passed the
link.  Right before each request the server answers a short prompt, because an idle server
answers its first request later.
"""
import argparse
import contextlib
import copy
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", folder)
                for folder in ("demo", os.path.join("tests", "servers"))]

import client  # noqa: E402
import workplace  # noqa: E402
from bucket import BUCKET, Bucket  # noqa: E402
from server import Server, ServerError, install_signal_handlers  # noqa: E402

TOKENS_FOUND = "vllm:external_prefix_cache_hits_total"
COUNTERS = ("s3_requests", "s3_repetitions", "s3_hedges", "load_chunks", "memory_hits")
ENCODINGS = ("lossless", "cachegen", "kv8", "kv4")
GOALS = {"lossless": 0.75, "cachegen": 0.35}
ARGUMENTS = ["--max-model-len", "16384"]
# All layers then load all tokens of a prompt, instead of a window of the tokens.
GEMMA_ARGUMENTS = ["--disable-hybrid-kv-cache-manager"]
TEXT_STEP = 100  # tokens from the begin of a prompt in the text to the begin of the next
DOWNLOAD_BYTES = 64 << 20
STILL_S = 3
STORE_TIMEOUT_S = 600

TOKENIZE = """
import json, sys, tokenizers
with open(sys.argv[2], encoding="utf-8") as file:
    print(json.dumps(tokenizers.Tokenizer.from_file(sys.argv[1]).encode(file.read()).ids))
"""


def log(text):
    print("bench-codec-link: " + text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- the link

class Link:
    """kvtier-bench-link in front of a port, in a `with` statement."""

    def __init__(self, port, bytes_per_s):
        program = os.path.join(workplace.REPOSITORY, "build", "kvtier-bench-link")
        if not os.path.exists(program):
            raise workplace.Unavailable(f"{program} is not there: run make first")
        self.command = [program, str(port), str(bytes_per_s)]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.port = json.loads(self.process.stdout.readline())["port"]
        return self

    def __exit__(self, *_exception):
        self.process.stdin.close()
        self.process.wait()

    def counters(self):
        """Return up_bytes, down_bytes and cpu_s since the start."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def through(bucket, link, prefix):
    """Return the bucket behind the link, with a prefix."""
    linked = copy.copy(bucket)
    linked.prefix = prefix
    linked.facts = dict(bucket.facts, port=link.port,
                        endpoint=f"http://127.0.0.1:{link.port}")
    return linked


def download(facts, target):
    """Return the bytes a second of a GET, from the first byte of the response."""
    s3 = client.Client(facts["endpoint"], facts["access"], facts["secret"])
    s3.send("GET", target)
    buffer, n = bytearray(1 << 20), 0
    s3.sock.recv(1, socket.MSG_PEEK)
    began = time.perf_counter()
    while n < DOWNLOAD_BYTES:  # the head of the response is short
        got = s3.sock.recv_into(buffer)
        if not got:
            raise ServerError(f"the download ended after {n} bytes")
        n += got
    seconds = time.perf_counter() - began
    s3.close()
    return n / seconds


def measure_link(bucket, link, times=5):
    """Return (bytes a second through the link, without the link), the fastest of several
    downloads: other work only delays a download."""
    target = client.path(BUCKET, "download")
    s3 = client.Client(bucket.facts["endpoint"], bucket.facts["access"],
                       bucket.facts["secret"])
    if s3.do("PUT", target, os.urandom(DOWNLOAD_BYTES)).status != 200:
        raise ServerError("the S3 server refuses an object")
    linked = through(bucket, link, "")
    speeds = [(download(linked.facts, target), download(bucket.facts, target))
              for _ in range(times)]
    s3.do("DELETE", target)
    s3.close()
    return [max(each) for each in zip(*speeds)]


# ------------------------------------------------------------------ an encoding

class Encoding:
    """The servers and the figures of an encoding."""

    def __init__(self, bench, name):
        self.bench = bench
        self.name = name
        self.bucket = through(bench.bucket, bench.link, name)
        self.server = None
        self.turns = []

    @contextlib.contextmanager
    def start(self, what, pool_gb=0.5):
        bench = self.bench
        config = os.path.join(bench.directory, f"{self.name}.yaml")
        workplace.write_config(config, None, round(pool_gb, 3), **{
            **self.bucket.settings(), "remote_serde": self.name})
        log(f"{self.name}: {what}")
        env = {**workplace.kvtier_environment(config), **self.bucket.environment(),
               "VLLM_SERVER_DEV_MODE": "1"}  # for /reset_prefix_cache
        with Server(bench.python, bench.model,
                    os.path.join(bench.directory, f"{self.name}.log"),
                    workplace.transfer_config(), [*ARGUMENTS, *bench.arguments],
                    env) as server:
            server.complete(bench.warmup, 4)
            yield server

    def wait_until_stored(self):
        """Wait until no byte has passed the link upwards for STILL_S; return the time of the
        last byte."""
        last, deadline = None, time.monotonic() + STORE_TIMEOUT_S
        while time.monotonic() < deadline:
            up = self.bench.link.counters()["up_bytes"]
            if up != last:
                last, since = up, time.monotonic()
            elif time.monotonic() - since > STILL_S:
                return since
            time.sleep(0.02)
        raise ServerError(f"the stores did not end in {STORE_TIMEOUT_S} s")

    def fill(self):
        """Store the prompts.  False: this build does not have the encoding."""
        bench = self.bench
        with self.start("the first server") as server:
            self.wait_until_stored()
            warmup = self.bucket.list()
            if self.name != "naive" and not self.is_encoded(warmup):
                return False
            log(f"{self.name}: computing and storing {len(bench.prompts)} prompts")
            began, cold = time.monotonic(), []
            for prompt in bench.prompts:
                cold.append(server.complete(prompt, 1).ttft_s)
            computed = time.monotonic()
            stored = self.wait_until_stored()
        chunks = self.bucket.list()
        n = sum(len(prompt) // workplace.CHUNK_TOKENS for prompt in bench.prompts)
        if len(chunks) - len(warmup) != n:
            raise ServerError("%s: %d of %d chunks are stored" %
                              (self.name, len(chunks) - len(warmup), n))
        self.bytes = (sum(chunk["stored_bytes"] for chunk in chunks) -
                      sum(chunk["stored_bytes"] for chunk in warmup)) / len(bench.prompts)
        self.filled = {"cold_s": statistics.median(cold), "compute_s": computed - began,
                       "store_s": stored - began, "bytes": self.bytes}
        return True

    def is_encoded(self, chunks):
        return all(chunk["key"].endswith(self.name) for chunk in chunks)

    def turn(self, prompt):
        """Answer a prompt from the bucket, then from vLLM's prefix cache."""
        self.server.complete(self.bench.short, 2)
        metrics, link = self.server.metrics(), self.bench.link.counters()
        began = time.monotonic()
        first = self.server.complete(prompt, 1)
        passed = self.bench.link.counters()
        second = self.server.complete(prompt, 1)
        expected = metrics[TOKENS_FOUND] + len(prompt) - 16
        after = self.server.settled_metrics(TOKENS_FOUND, expected)
        if after[TOKENS_FOUND] != expected:
            raise ServerError("%s: kvtier found %d of %d tokens" % (
                self.name, after[TOKENS_FOUND] - metrics[TOKENS_FOUND], len(prompt)))
        n_bytes = passed["down_bytes"] - link["down_bytes"]
        if n_bytes < 0.9 * self.bytes:
            raise ServerError("%s: %d bytes passed the link, %d are stored" %
                              (self.name, n_bytes, self.bytes))
        self.turns.append({
            "ttft_s": first.ttft_s, "floor_s": second.ttft_s, "link_bytes": n_bytes,
            "before_s": passed["down_first_s"] - began,
            "transfer_s": passed["down_last_s"] - passed["down_first_s"],
            "after_s": began + first.ttft_s - passed["down_last_s"],
            "link_cpu_s": passed["cpu_s"] - link["cpu_s"],
            "load_average": os.getloadavg()[0],
            **{name: after["vllm:kvtier_%s_total" % name] -
               metrics["vllm:kvtier_%s_total" % name] for name in COUNTERS}})


# --------------------------------------------------------------------- the bench

class Bench:
    def __init__(self, args, directory):
        self.args = args
        self.directory = directory
        self.python = workplace.vllm_python()
        self.arguments = GEMMA_ARGUMENTS if args.model == "gemma" else []
        self.model = (workplace.gemma if args.model == "gemma" else
                      workplace.small_model)(self.python)
        with open(os.path.join(self.model, "config.json")) as config:
            self.vocabulary = json.load(config)["vocab_size"]
        self.text = self.read_text() if args.model == "gemma" else None
        self.random = random.Random(args.seed)
        self.n_prompts = 0
        self.prompts = [self.prompt(args.tokens) for _ in range(args.prompts)]
        self.warmup = self.prompt(args.tokens)
        self.short = self.prompt(workplace.CHUNK_TOKENS + 16)
        self.bucket = self.link = None
        self.encodings = []

    def read_text(self):
        """Return the tokens of the demo's text."""
        return json.loads(subprocess.run(
            [self.python, "-c", TOKENIZE, os.path.join(self.model, "tokenizer.json"),
             os.path.join(workplace.DEMO, "text.txt")],
            check=True, stdout=subprocess.PIPE, text=True).stdout)

    def prompt(self, n_tokens):
        """Return another prompt: random tokens, or a part of the text.  No two prompts have an
        equal first chunk."""
        if not self.text:
            return workplace.whole_chunks(
                [self.random.randrange(2, self.vocabulary) for _ in range(n_tokens)])
        bos, *text = self.text
        self.n_prompts += 1
        at = self.n_prompts * TEXT_STEP
        if at + n_tokens > len(text):
            raise ServerError("the text has %d tokens" % len(text))
        return workplace.whole_chunks([bos] + text[at:at + n_tokens - 1])

    def run(self, bucket, link):
        self.bucket, self.link = bucket, link
        self.rates = measure_link(bucket, link)
        log("the link: %.1f MB/s (without the link: %.1f MB/s), load average %.1f" %
            (self.rates[0] / 1e6, self.rates[1] / 1e6, os.getloadavg()[0]))
        for name in ["naive", *self.args.encodings]:
            encoding = Encoding(self, name)
            if encoding.fill():
                self.encodings.append(encoding)
            else:
                log(f"{name}: skipped, this build stores naive chunks")
        pool_gb = 2.1 * self.encodings[0].bytes / 2**30
        with contextlib.ExitStack() as servers:
            for encoding in self.encodings:
                encoding.server = servers.enter_context(
                    encoding.start("the second server", pool_gb))
            for i in range(self.args.rounds):
                self.round(i)

    def round(self, i):
        log("round %d of %d, load average %.1f" % (i + 1, self.args.rounds, os.getloadavg()[0]))
        for j, prompt in enumerate(self.prompts):
            for encoding in self.encodings[::1 if (i + j) % 2 == 0 else -1]:
                encoding.turn(prompt)
        for encoding in self.encodings:
            encoding.server.reset_prefix_cache()
            log("%s: %.3f s to the first token, floor %.3f s" % (
                encoding.name, *(statistics.median(turn[key] for turn in encoding.turns)
                                 for key in ("ttft_s", "floor_s"))))


def result_lines(bench):
    naive = bench.encodings[0]
    for encoding in bench.encodings:
        turns = encoding.turns
        each = {key: [turn[key] for turn in turns] for key in turns[0]}
        line = {key: statistics.median(values) for key, values in each.items()}
        ratios = [turn["ttft_s"] / base["ttft_s"]
                  for turn, base in zip(turns, naive.turns)]
        link_s = line["link_bytes"] / bench.rates[0]
        yield {"encoding": encoding.name, "turns": len(turns), **line, **encoding.filled,
               "ratio": statistics.median(ratios), "goal": GOALS.get(encoding.name),
               "smaller": naive.bytes / encoding.bytes, "link_s": link_s,
               "rest_s": line["ttft_s"] - line["floor_s"] - link_s,
               "link_bytes_per_s": bench.rates[0], "server_bytes_per_s": bench.rates[1],
               "each": {**each, "ratio": ratios}}


def print_results(lines, as_json):
    if as_json:
        for line in lines:
            print(json.dumps(line))
        return
    print("Link: %.1f MB/s; the server without the link: %.1f MB/s.\n" %
          (lines[0]["link_bytes_per_s"] / 1e6, lines[0]["server_bytes_per_s"] / 1e6))
    print("| encoding | first token, s (least to most) | ratio | goal | floor, s | link, s | "
          "rest, s | before, transfer, after, s | MB a prompt | times smaller | cold, s | "
          "compute, s | store, s | hedges, retries | load average |\n" + "|---" * 15 + "|")
    for line in lines:
        each = line["each"]
        print("| %s | %.3f (%.3f to %.3f) | %.3f | %s | %.3f | %.3f | %.3f | "
              "%.3f, %.3f, %.3f | %.1f | %.2f | %.2f | %.1f | %.1f | %d, %d | %.1f to %.1f |" % (
                  line["encoding"], line["ttft_s"], min(each["ttft_s"]),
                  max(each["ttft_s"]), line["ratio"], line["goal"] or "", line["floor_s"],
                  line["link_s"], line["rest_s"], line["before_s"], line["transfer_s"],
                  line["after_s"], line["bytes"] / 1e6, line["smaller"], line["cold_s"],
                  line["compute_s"], line["store_s"], sum(each["s3_hedges"]),
                  sum(each["s3_repetitions"]), min(each["load_average"]),
                  max(each["load_average"])))


def run(args, directory):
    bench = Bench(args, args.keep or directory)
    bucket = Bucket("bench")
    try:
        bucket.start()
        with Link(bucket.facts["port"], args.rate * 1000000) as link:
            bench.run(bucket, link)
            for encoding in bench.encodings:
                encoding.bucket.forget()
    finally:
        bucket.stop()
    print_results(list(result_lines(bench)), args.json)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encodings", nargs="+", default=list(ENCODINGS),
                        help="measured beside naive (%(default)s)")
    parser.add_argument("--model", choices=("demo", "gemma"), default="demo",
                        help="(%(default)s)")
    parser.add_argument("--prompts", type=int, default=4, help="at least 3 (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--tokens", type=int, default=10000,
                        help="tokens of a prompt at most (%(default)s)")
    parser.add_argument("--rate", type=int, default=125,
                        help="MB/s of the link in each direction (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true",
                        help="print an object a line, with each figure")
    parser.add_argument("--keep", metavar="DIR", help="keep the servers' logs in DIR")
    args = parser.parse_args()
    install_signal_handlers()
    try:
        with tempfile.TemporaryDirectory(prefix="bench-codec-link-",
                                         dir=workplace.cache_directory()) as directory:
            run(args, directory)
    except (ServerError, workplace.Unavailable) as e:
        log(str(e))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
