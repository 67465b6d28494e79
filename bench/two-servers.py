#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two vLLM servers on one host share the KV in host memory, without storage: the time to
first token of prompts that the other server computed.

kvtier      `shared_cpu: true`.
LMCache MP  LMCache's MP server behind both servers.

Each round has its own prompts.  A vLLM server without a connector answers each prompt twice,
the second time from vLLM's own prefix cache: the reference of the answers.  Then, for each
system:

cold      server 1 computes each prompt,
own       server 1 has forgotten its prefix cache,
other     server 2 has never seen the prompt,
killed    server 1 was killed with SIGKILL while it stored another prompt, and restarted;
          server 2 went on,
both      both servers were killed, and server 1 was restarted.

Each request is repeated at once: the repetition is a hit of vLLM's own prefix cache, the
floor.  limit is 0.3 of the floor, and the time in which memcpy moves the KV.  The speed of
memcpy is measured before each pair, with one thread and with one thread for each core; the
faster counts.  Servers are warmed up with another prompt, which server 2 gets from
server 1; server 2 also right before `other`, because a server that was idle for a minute
answers its first requests later.  As root the program has an empty /dev/shm of its own.
"""
import argparse
import concurrent.futures
import contextlib
import ctypes
import json
import mmap
import os
import random
import statistics
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "demo"))

import mp_server  # noqa: E402
import workplace  # noqa: E402
from server import (  # noqa: E402
    Server,
    ServerError,
    install_signal_handlers,
    same_answer,
)

TOKENS_FOUND = "vllm:external_prefix_cache_hits_total"
CASES = ("cold", "own", "other", "killed", "both")
GOAL = 0.3
TOKENS_OF_ANSWER = 8


def log(text):
    print("bench-two-servers: " + text, file=sys.stderr, flush=True)


# -------------------------------------------------------------------- memory

def own_shm():
    """Mount an empty /dev/shm for this process and the processes that it starts."""
    new_mounts, recursive, private = 0x20000, 1 << 14, 1 << 18
    libc = ctypes.CDLL(None)
    if (libc.unshare(new_mounts) or
            libc.mount(None, b"/", None, recursive | private, None) or
            libc.mount(b"kvtier-bench", b"/dev/shm", b"tmpfs", 0, None)):
        log("no right to mount: other programs use /dev/shm too")


class Memcpy:
    """Copies from shared memory to private memory."""

    def __init__(self, n_bytes):
        self.n_bytes = n_bytes
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            file.truncate(n_bytes)
            self.source = mmap.mmap(file.fileno(), n_bytes)
        self.target = mmap.mmap(-1, n_bytes)
        for buffer in self.source, self.target:
            buffer.write(os.urandom(1 << 20) * (n_bytes >> 20))
        self.pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())

    def seconds(self, n_threads):
        to, source = (ctypes.addressof(ctypes.c_char.from_buffer(buffer))
                      for buffer in (self.target, self.source))
        part = self.n_bytes // n_threads
        began = time.perf_counter()
        list(self.pool.map(lambda i: ctypes.memmove(to + i * part, source + i * part, part),
                           range(n_threads)))
        return time.perf_counter() - began

    def speed(self):
        """Return bytes a second, of the faster number of threads."""
        return max(self.n_bytes / statistics.median(self.seconds(n) for _ in range(3))
                   for n in {1, os.cpu_count()})


# ------------------------------------------------------------------- systems

class System:
    """Two servers and the state that survives them."""

    def __init__(self, bench, directory):
        self.bench = bench
        self.directory = directory
        self.stack = contextlib.ExitStack()
        os.makedirs(directory)

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        self.stack.close()

    def start(self, what, transfer=None, env=()):
        log(f"{self.name}: {what}")
        server = Server(self.bench.python, self.bench.model,
                        os.path.join(self.directory, "log"), transfer,
                        ["--max-model-len", "16384"],
                        dict(env, VLLM_SERVER_DEV_MODE="1",
                             # By default vLLM has fewer threads without a connector.
                             VLLM_CPU_OMP_THREADS_BIND="nobind"))
        return self.stack.enter_context(server)


class Alone(System):
    name = "no connector"

    def server(self, what):
        return self.start(what)


class Kvtier(System):
    name = "kvtier"

    def server(self, what):
        config = os.path.join(self.directory, "kvtier.yaml")
        workplace.write_config(config, None, self.bench.args.memory_gb,
                               remote_url=None, shared_cpu="true")
        return self.start(what, workplace.transfer_config(),
                          workplace.kvtier_environment(config))


class LMCache(System):
    name = "LMCache MP"

    def __init__(self, bench, directory):
        super().__init__(bench, directory)
        self.lmcache = None

    def server(self, what):
        env = mp_server.environment(self.bench.lmcache)
        if not self.lmcache:
            log(f"{self.name}: its server")
            self.lmcache = self.stack.enter_context(mp_server.MPServer(
                self.bench.python, os.path.join(self.directory, "log"), env,
                self.bench.args.memory_gb))
        return self.start(what, self.lmcache.transfer_config(), env)


SYSTEMS = {"kvtier": Kvtier, "lmcache": LMCache}


# ----------------------------------------------------------------- the bench

def kill_while_storing(server, prompt):
    """Kill all processes of the server during a request."""
    def ask():
        with contextlib.suppress(Exception):
            server.complete(prompt, 1)
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    time.sleep(1.5)
    server.kill()
    thread.join()


class Bench:
    def __init__(self, args):
        self.args = args
        self.python = workplace.vllm_python()
        self.model = workplace.small_model(self.python)
        self.lmcache = mp_server.install(self.python) if "lmcache" in args.systems else None
        with open(os.path.join(self.model, "config.json")) as file:
            config = json.load(file)
        self.vocabulary = config["vocab_size"]
        # K and V, 2 bytes an element.
        self.token_bytes = (4 * config["num_hidden_layers"] * config["head_dim"] *
                            config["num_key_value_heads"])
        self.random = random.Random(args.seed)
        self.n_tokens = len(self.prompt())
        self.memcpy = Memcpy((self.n_tokens - 16) * self.token_bytes)
        self.pairs = {}

    def prompt(self):
        return workplace.whole_chunks([self.random.randrange(2, self.vocabulary)
                                       for _ in range(self.args.tokens)])

    def ask(self, server, prompt):
        return server.complete(prompt, TOKENS_OF_ANSWER)

    def references(self, directory, prompts):
        """Return (answer of a cold server, answer of its prefix cache) of each prompt."""
        with Alone(self, directory) as system:
            server = system.server("the reference")
            self.ask(server, self.prompt())
            return [(self.ask(server, prompt), self.ask(server, prompt))
                    for prompt in prompts]

    def pair(self, system, server, case, prompt, reference):
        speed = self.memcpy.speed()
        # A vLLM without a connector does not have this counter: metrics() returns 0.
        before = server.metrics()[TOKENS_FOUND]
        first = self.ask(server, prompt)
        if case == "cold":
            time.sleep(2)  # both systems store in the background
        second = self.ask(server, prompt)
        expected = 0 if case == "cold" else len(prompt) - 16
        after = server.settled_metrics(TOKENS_FOUND, before + expected)
        found = int(after[TOKENS_FOUND] - before)
        copying = found * self.token_bytes / speed
        oracle = reference[0 if case == "cold" else 1]
        self.pairs.setdefault((system.name, case), []).append({
            "ttft_s": first.ttft_s, "floor_s": second.ttft_s,
            "above_s": first.ttft_s - second.ttft_s,
            "limit_s": GOAL * second.ttft_s + copying, "copy_s": copying,
            "bytes": found * self.token_bytes, "tokens": len(prompt), "found": found,
            "equal": same_answer(first, oracle) and same_answer(second, reference[1]),
            "memcpy_gb_per_s": speed / 1e9, "load_average": os.getloadavg()[0]})

    def measure(self, system, prompts, references):
        def case(server, name):
            log(f"{system.name}: {name}")
            for prompt, reference in zip(prompts, references):
                self.pair(system, server, name, prompt, reference)

        def warm(server):
            self.ask(server, warmup)

        warmup = self.prompt()
        one = system.server("server 1")
        warm(one)
        two = system.server("server 2")
        warm(two)
        case(one, "cold")
        one.reset_prefix_cache()
        case(one, "own")
        two.reset_prefix_cache()
        warm(two)
        case(two, "other")
        kill_while_storing(one, self.prompt())
        one = system.server("server 1 again")
        warm(one)
        case(one, "killed")
        one.kill()
        two.kill()
        one = system.server("server 1 after both were killed")
        warm(one)
        case(one, "both")

    def run(self, directory):
        for i in range(self.args.rounds):
            log(f"round {i + 1} of {self.args.rounds}")
            prompts = [self.prompt() for _ in range(self.args.prompts)]
            references = self.references(os.path.join(directory, f"{i}"), prompts)
            for name in self.args.systems[::1 if i % 2 == 0 else -1]:
                with SYSTEMS[name](self, os.path.join(directory, f"{i}-{name}")) as system:
                    self.measure(system, prompts, references)


def result_lines(bench):
    for (name, case), pairs in bench.pairs.items():
        each = {key: [pair[key] for pair in pairs] for key in pairs[0]}
        line = {"system": name, "case": case, "pairs": len(pairs)}
        for key in ("ttft_s", "floor_s", "above_s", "limit_s", "copy_s",
                    "memcpy_gb_per_s", "load_average"):
            line[key] = round(statistics.median(each[key]), 4)
        line["bytes"] = statistics.median(each["bytes"])
        yield {**line, "equal": sum(each["equal"]), "each": each}


def print_results(bench, as_json):
    if as_json:
        for line in result_lines(bench):
            print(json.dumps(line))
        return
    print("| system | case | first token (least to most) | floor | above floor | limit | "
          "tokens found | MB | memcpy GB/s | equal answers |\n" + "|---" * 10 + "|")
    for line in result_lines(bench):
        each = line["each"]
        print("| %s | %s | %.3f (%.3f to %.3f) | %.3f | %.3f | %s | %d to %d of %d | %.1f | "
              "%.1f | %d of %d |" % (
                  line["system"], line["case"], line["ttft_s"], min(each["ttft_s"]),
                  max(each["ttft_s"]), line["floor_s"], line["above_s"],
                  "" if line["case"] == "cold" else "%.3f" % line["limit_s"],
                  min(each["found"]), max(each["found"]), each["tokens"][0],
                  line["bytes"] / 1e6, line["memcpy_gb_per_s"], line["equal"],
                  line["pairs"]))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=5, help="prompts of a round "
                        "(%(default)s)")
    parser.add_argument("--tokens", type=int, default=10000,
                        help="tokens of a prompt at most (%(default)s)")
    parser.add_argument("--memory-gb", type=float, default=2,
                        help="shared host memory (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true",
                        help="print an object a line, with each figure")
    parser.add_argument("--keep", metavar="DIR", help="keep the servers' logs in DIR")
    args = parser.parse_args()
    install_signal_handlers()
    own_shm()
    try:
        bench = Bench(args)
    except workplace.Unavailable as e:
        log(str(e))
        return 3
    code = 0
    with tempfile.TemporaryDirectory(prefix="bench-two-servers-",
                                     dir=workplace.cache_directory()) as directory:
        try:
            bench.run(args.keep or directory)
        except ServerError as e:
            log(str(e))
            code = 3
    print_results(bench, args.json)
    return code or any(line["equal"] < line["pairs"] for line in result_lines(bench))


if __name__ == "__main__":
    sys.exit(main())
