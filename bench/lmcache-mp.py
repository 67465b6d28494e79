#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare LMCache's MP server and kvtier, in turns, behind the same vLLM on the CPU, with the
demo's model and texts of 10,000 tokens.  Measures the seconds to the first token

cold    of a new text,
disk    after a restart of all servers, with the store's files dropped from the page cache,
memory  with the chunks in host memory.  LMCache: vLLM restarted, the MP server kept running.
        kvtier, which runs in vLLM's processes: vLLM's prefix cache reset.

Each request is repeated at once; vLLM answers the repetition from vLLM's own prefix cache.
This time is the floor.  A connector looks up chunks also for the repetition, so a vLLM
without a connector is measured too.  Each server is first warmed up with another text.  The
script installs LMCache beside vLLM in the cache directory.
"""
import argparse
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "demo"))

import mp_server  # noqa: E402
import workplace  # noqa: E402
from server import Server, ServerError, install_signal_handlers  # noqa: E402

TOKENS_FOUND = "vllm:external_prefix_cache_hits_total"
CASES = ("cold", "disk", "memory")


def log(text):
    print("bench-lmcache-mp: " + text, file=sys.stderr, flush=True)


class Texts:
    """The demo's text with the words in a new random order each time, so that no two texts
    begin with the same chunk."""

    def __init__(self, seed, n_tokens):
        self.random = random.Random(seed)
        self.words = workplace.read_text("text.txt").split()
        self.n_tokens = n_tokens

    def next(self, server):
        """Return a new text as token ids."""
        self.random.shuffle(self.words)
        return workplace.whole_chunks(server.tokenize(" ".join(self.words)),
                                      self.n_tokens)


class System:
    """The measured system, with a new store for each round."""

    def __init__(self, bench, directory):
        self.bench = bench
        self.log = os.path.join(directory, "log")
        self.store = os.path.join(directory, "store")
        os.makedirs(self.store)

    @contextlib.contextmanager
    def vllm(self, what, transfer, env):
        log(f"{self.name}: vLLM, {what}")
        with Server(self.bench.python, self.bench.model, self.log, transfer,
                    ["--max-model-len", "16384"],
                    dict(env, VLLM_SERVER_DEV_MODE="1")) as server:
            server.complete(self.bench.texts.next(server), 4)
            yield server

    def cold(self, server):
        prompts = [self.bench.texts.next(server)
                   for _ in range(self.bench.args.prompts)]
        for prompt in prompts:
            self.pair(server, "cold", prompt)
        return prompts

    def pair(self, server, case, prompt):
        # A vLLM without a connector does not have this counter: metrics() returns 0.
        before = server.metrics()[TOKENS_FOUND]
        first = server.complete(prompt, 4)
        if case == "cold":
            workplace.wait_until_stored(self.store)
        second = server.complete(prompt, 4)
        expected = 0 if case == "cold" else len(prompt) - 16
        after = server.settled_metrics(TOKENS_FOUND, before + expected)
        found = int(after[TOKENS_FOUND] - before)
        self.bench.pairs[self.name, case].append({
            "ttft_s": round(first.ttft_s, 4), "floor_s": round(second.ttft_s, 4),
            "tokens": len(prompt), "found": found,
            "load_average": round(os.getloadavg()[0], 1)})


class Alone(System):
    name = "no connector"

    def round(self):
        with self.vllm("nothing stored", None, {}) as server:
            self.cold(server)


class Kvtier(System):
    name = "kvtier"

    def server(self, what):
        config = os.path.join(os.path.dirname(self.log), "kvtier.yaml")
        workplace.write_config(config, self.store, self.bench.args.memory_gb)
        return self.vllm(what, workplace.transfer_config(),
                         workplace.kvtier_environment(config))

    def round(self):
        with self.server("empty store") as server:
            prompts = self.cold(server)
        workplace.drop_page_cache(self.store)
        with self.server("restarted") as server:
            for prompt in prompts:
                self.pair(server, "disk", prompt)
            server.reset_prefix_cache()
            for prompt in prompts:
                self.pair(server, "memory", prompt)


class LMCache(System):
    name = "LMCache MP"

    def __init__(self, bench, directory):
        super().__init__(bench, directory)
        self.env = mp_server.environment(bench.lmcache)

    def mp_server(self):
        log(f"{self.name}: its server")
        return mp_server.MPServer(self.bench.python, self.log, self.env,
                                  self.bench.args.memory_gb, self.store)

    def server(self, what, lmcache):
        return self.vllm(what, lmcache.transfer_config(), self.env)

    def round(self):
        with self.mp_server() as lmcache:
            with self.server("empty store", lmcache) as server:
                prompts = self.cold(server)
            with self.server("restarted, MP server kept", lmcache) as server:
                for prompt in prompts:
                    self.pair(server, "memory", prompt)
        workplace.drop_page_cache(self.store)
        with self.mp_server() as lmcache, \
                self.server("restarted", lmcache) as server:
            for prompt in prompts:
                self.pair(server, "disk", prompt)


SYSTEMS = (LMCache, Alone, Kvtier)


class Bench:
    def __init__(self, args):
        self.args = args
        self.python = workplace.vllm_python()
        self.model = workplace.small_model(self.python)
        self.lmcache = mp_server.install(self.python)
        self.texts = None
        self.pairs = {(system.name, case): []
                      for case in CASES for system in SYSTEMS}

    def run(self, directory):
        for i in range(self.args.rounds):
            for system in SYSTEMS if i % 2 == 0 else reversed(SYSTEMS):
                log(f"round {i + 1} of {self.args.rounds}, {system.name}")
                self.texts = Texts(i, self.args.tokens)
                place = os.path.join(directory, f"{i}-{system.__name__}")
                system(self, place).round()


def result_lines(bench):
    for (name, case), pairs in bench.pairs.items():
        if not pairs:
            continue
        each = {key: [pair[key] for pair in pairs] for key in pairs[0]}
        above = [pair["ttft_s"] - pair["floor_s"] for pair in pairs]
        yield {"system": name, "case": case,
               "ttft_s": round(statistics.median(each["ttft_s"]), 4),
               "floor_s": round(statistics.median(each["floor_s"]), 4),
               "above_floor_s": round(statistics.median(above), 4),
               "each": each}


def print_results(bench, as_json):
    if not as_json:
        print(f"{'':8}{'':14}{'first token':>22}{'floor':>8}{'above':>10}"
              f"{'tokens found':>22}")
    for line in result_lines(bench):
        if as_json:
            print(json.dumps(line))
            continue
        each = line["each"]
        spread = "%.3f (%.3f-%.3f)" % (line["ttft_s"], min(each["ttft_s"]),
                                       max(each["ttft_s"]))
        found = "%d-%d of %d" % (min(each["found"]), max(each["found"]),
                                 min(each["tokens"]))
        print("%-8s%-14s%22s%8.3f%10.3f%22s" % (
            line["case"], line["system"], spread, line["floor_s"],
            line["above_floor_s"], found))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3,
                        help="rounds, each with new stores (%(default)s)")
    parser.add_argument("--prompts", type=int, default=3,
                        help="texts of a round (%(default)s)")
    parser.add_argument("--tokens", type=int, default=10000,
                        help="tokens of a text at most (%(default)s)")
    parser.add_argument("--memory-gb", type=float, default=1,
                        help="host memory of each system: max_local_cpu_size, "
                        "--l1-size-gb (%(default)s)")
    parser.add_argument("--json", action="store_true",
                        help="print an object a line, with each figure")
    parser.add_argument("--dir", default=workplace.cache_directory(),
                        metavar="DIR",
                        help="the stores are below DIR (%(default)s)")
    args = parser.parse_args()
    install_signal_handlers()
    try:
        bench = Bench(args)
        with tempfile.TemporaryDirectory(prefix="bench-lmcache-mp-",
                                         dir=args.dir) as directory:
            bench.run(directory)
    except (workplace.Unavailable, ServerError) as e:
        log(str(e))
        return 3
    print_results(bench, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
