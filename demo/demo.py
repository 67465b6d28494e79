#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run a real vLLM with kvtier: one server stores the KV cache, a second server loads it.

The store is a directory, a bucket of an S3 server on this machine, a directory that looks
like 3FS, or two directories with files of LMCache's GDS back end.  Prints the time to the
first token of a long text

    cold     with an empty store,
    warm     in a new server, with the KV cache read from the store,
    floor    with the KV cache in vLLM's own memory,

and whether the answers are bit-identical with vLLM's own answer.
"""
import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

import progress
import workplace
from bucket import Bucket
from mount import Mount
from paths import Paths
from server import (
    Server,
    ServerError,
    install_signal_handlers,
    plain_environment,
    same_answer,
)

PROMPT_TOKENS = 10000
NEW_TOKENS = 32
TOKENS_FOUND = "vllm:external_prefix_cache_hits_total"
BYTES_READ = "vllm:kvtier_load_bytes_total"
PLACES = {"fs": lambda: None, "s3": Bucket, "3fs": Mount, "gds": Paths}

# Steps on a machine with two cores: text, seconds with AVX-512, seconds without AVX-512, and
# what the first run on a machine takes more.
FIRST_STEPS = [
    ("installing packages of Debian", 1, 1, "93 MB of downloads"),
    ("building kvtier", 0.2, 0.2, "40 s of CPU time"),
]
VLLM_STEPS = [
    ("installing vLLM", 0.3, 0.3, "0.8 to 4 GB of downloads"),
    ("making the model", 0.0, 0.0, "6 s of CPU time"),
    ("starting the first vLLM server", 30, 30, None),
    ("warming the first server up with another text", 2, 5, None),
    ("sending the text: nothing is stored", 4.5, 24, None),
    ("sending the text: in vLLM's own memory", 1, 1, None),
    ("waiting until everything is stored", 1.6, 1.6, None),
    ("stopping the first vLLM server", 2, 2, None),
    ("dropping this host's caches of the store", 0.1, 0.1, None),
    ("starting the second vLLM server", 30, 30, None),
    ("warming the second server up with another text", 2, 5, None),
    ("sending the text: stored by the first server", 1, 1, None),
    ("sending the text: in vLLM's own memory", 1, 1, None),
    ("stopping the second vLLM server", 2, 2, None),
]
REPLAY_STEPS = [("replaying 60 requests of a trace, twice", 10, 10, None)]


def lacks_avx512():
    """Return True if vLLM emulates bfloat16 on this CPU, which takes 20 times as long."""
    with open("/proc/cpuinfo") as f:
        return platform.machine() == "x86_64" and " avx512f " not in f.read()


def announce(steps):
    slow = lacks_avx512()
    progress.announce("two cores without AVX-512" if slow else "two cores with AVX-512",
                      [progress.Step(text, without if slow else with_it, first)
                       for text, with_it, without, first in steps])


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="demo.sh", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="DIR",
                        help="use this model and not the small random one")
    parser.add_argument("--store", choices=list(PLACES), default="fs",
                        help="a directory (fs), a bucket (s3), a mount of 3FS as "
                        "the tests' daemon makes it (3fs) or two directories with files "
                        "for GPUDirect Storage (gds); except for fs, the second server "
                        "starts without a local index")
    parser.add_argument("--store-dir", metavar="DIR",
                        help="keep the KV cache here; it must be empty")
    parser.add_argument("--json", metavar="FILE",
                        help="write the figures to FILE too")
    parser.add_argument("--keep", action="store_true",
                        help="leave the store and the server's log behind")
    parser.add_argument("--no-vllm", action="store_true",
                        help="no vLLM: replay a trace of requests through "
                        "kvtier alone")
    parser.add_argument("--wheel", action="store_true",
                        help="build kvtier's wheel, install the wheel without a compiler, "
                        "and run kvtier doctor; only --json counts besides")
    parser.add_argument("--kv-transfer-config", metavar="JSON",
                        type=json.loads,
                        help="use another connector than kvtier's")
    return parser.parse_args()


class Demo:
    """One run: two servers, one after the other, on one store."""

    def __init__(self, args, python, model, directory, place):
        self.args = args
        self.place = place
        self.python = python
        self.directory = directory
        self.model = model
        self.store = os.path.abspath(
            args.store_dir or os.path.join(directory, "store"))
        self.log = os.path.join(directory, "vllm.log")
        self.dtype = "float32" if lacks_avx512() and not args.model else "bfloat16"
        self.prompt = None
        self.start_s = []

    def server(self):
        config = os.path.join(self.directory, "kvtier.yaml")
        given = self.args.model is not None
        workplace.write_config(config, self.store, pool_gb=2 if given else 0.5,
                               **(self.place.settings() if self.place else {}))
        if self.args.kv_transfer_config:
            env = {}
        else:
            env = workplace.kvtier_environment(config)
        if self.place:
            env.update(self.place.environment())
        env["VLLM_CPU_KVCACHE_SPACE"] = "4" if given else "1"
        return Server(
            self.python, self.model, self.log,
            self.args.kv_transfer_config or workplace.transfer_config(),
            ["--max-model-len", str(self.max_model_len()), "--dtype", self.dtype], env)

    def max_model_len(self):
        with open(os.path.join(self.model, "config.json")) as f:
            config = json.load(f)
        config = config.get("text_config", config)
        return min(config.get("max_position_embeddings", 16384), 16384)

    @contextlib.contextmanager
    def running(self, which):
        """Start a server, warm the server up, and stop the server at the end."""
        server = self.server()
        with progress.step(f"starting the {which} vLLM server"):
            server.start()
        self.start_s.append(round(server.start_s, 2))
        try:
            with progress.step(f"warming the {which} server up with another text"):
                tokens = server.tokenize(workplace.read_text("warmup.txt"))
                server.complete(tokens, NEW_TOKENS)
            if self.prompt is None:
                tokens = server.tokenize(workplace.read_text("text.txt"))
                room = self.max_model_len() - NEW_TOKENS
                self.prompt = workplace.whole_chunks(
                    tokens, min(PROMPT_TOKENS, room))
            yield server
        finally:
            with progress.step(f"stopping the {which} vLLM server"):
                server.stop()

    def ask(self, server, what):
        with progress.step(f"sending the text: {what}"):
            return server.complete(self.prompt, NEW_TOKENS)

    def first_server(self):
        with self.running("first") as server:
            cold = self.ask(server, "nothing is stored")
            oracle = self.ask(server, "in vLLM's own memory")
            with progress.step("waiting until everything is stored"):
                files, size = self.wait_until_stored()
        with progress.step("dropping this host's caches of the store"):
            if self.place:
                self.place.forget()
            else:
                workplace.drop_page_cache(self.store)
        return cold, oracle, files, size

    def wait_until_stored(self):
        if self.place:
            return workplace.wait_until_still(self.place.stored)
        return workplace.wait_until_stored(self.store)

    def second_server(self):
        with self.running("second") as server:
            before = server.metrics()
            warm = self.ask(server, "stored by the first server")
            wanted = before[TOKENS_FOUND] + 1
            after = server.settled_metrics(TOKENS_FOUND, wanted)
            found = int(after[TOKENS_FOUND] - before[TOKENS_FOUND])
            size = None
            if BYTES_READ in after:
                after = server.settled_metrics(BYTES_READ,
                                               before[BYTES_READ] + found)
                size = int(after[BYTES_READ] - before[BYTES_READ])
            elif not self.args.kv_transfer_config:
                raise ServerError(f"vLLM's metrics have no {BYTES_READ}")
            floor = self.ask(server, "in vLLM's own memory")
        return warm, floor, found, size

    def run(self):
        cold, oracle, files, size = self.first_server()
        warm, floor, found, read = self.second_server()
        floors = [oracle.ttft_s, floor.ttft_s]
        return {
            "cold_ttft_s": round(cold.ttft_s, 4),
            "warm_ttft_s": round(warm.ttft_s, 4),
            "floor_ttft_s": round(statistics.median(floors), 4),
            "tokens_found": found,
            "bytes_read": read,
            "outputs_equal": found > 0 and same_answer(warm, oracle),
            "prompt_tokens": len(self.prompt),
            "new_tokens": len(warm.token_ids),
            "server_start_s": self.start_s,
            "store": self.args.store,
            "store_files": files,
            "store_bytes": size,
            "model": self.args.model or "small random Llama, 42 M weights",
            "dtype": self.dtype,
        }


def table(result):
    size = "-"
    if result["bytes_read"] is not None:
        size = "%.1f MB" % (result["bytes_read"] / 1e6)
    rows = [
        ("", "first token", "tokens found", "bytes read"),
        ("cold, nothing stored", result["cold_ttft_s"], 0, "-"),
        ("restarted, from the store", result["warm_ttft_s"],
         result["tokens_found"], size),
        ("floor, in vLLM's memory", result["floor_ttft_s"], "", "-"),
    ]
    lines = []
    for name, seconds, tokens, read in rows:
        if isinstance(seconds, float):
            seconds = f"{seconds:.3f} s"
        lines.append(f"  {name:<26} {seconds:>11} {tokens:>13} {read:>11}")
    lines.append("")
    lines.append("  the first token came %.0f times sooner than cold" % (
        result["cold_ttft_s"] / result["warm_ttft_s"]))
    lines.append("  %d tokens of prompt, %.1f MB stored in %d %s" % (
        result["prompt_tokens"], result["store_bytes"] / 1e6,
        result["store_files"],
        "objects" if result["store"] == "s3" else "files"))
    lines.append("  %d new tokens and their log probabilities equal those of "
                 "vLLM's own hit: %s" % (
                     result["new_tokens"],
                     "yes, bit for bit" if result["outputs_equal"] else "NO"))
    return "\n".join(lines)


def replay_table(result):
    rows = [("", "first run", "restarted")]
    for name, key, form in (
            ("tokens asked for", "tokens", "%d"),
            ("tokens found", "hit_tokens", "%d"),
            ("bytes read", "load_bytes", "%d"),
            ("bytes stored", "store_bytes", "%d"),
            ("GB/s while loading", "load_gb_per_s", "%.2f"),
            ("lookup, median ms", "lookup_p50_ms", "%.3f"),
            ("load, median ms", "retrieve_p50_ms", "%.1f"),
            ("tokens with wrong bytes", "wrong_tokens", "%d"),
            ("seconds in all", "seconds", "%.1f")):
        rows.append((name, *(form % one[key] for one in result["passes"])))
    return "\n".join("  %-26s %14s %14s" % row for row in rows)


def replay(args, place):
    """Run the demo on the C engine alone: replay a trace of requests, without a model."""
    kvtier = os.path.join(workplace.REPOSITORY, "build", "kvtier")
    with contextlib.ExitStack() as cleanup:
        store = args.store_dir or cleanup.enter_context(
            tempfile.TemporaryDirectory(prefix="demo-",
                                        dir=workplace.cache_directory()))
        with progress.step("replaying 60 requests of a trace, twice"):
            done = subprocess.run(
                [kvtier, "replay", "--passes", "2", "--scale", "32", "--json",
                 "--set", "max_local_cpu_size=0.5",
                 *(place.arguments() if place else
                   ["--set", f"remote_url=fs://{os.path.abspath(store)}"]),
                 os.path.join(workplace.DEMO, "trace.jsonl")],
                stdout=subprocess.PIPE, text=True,
                env={**plain_environment(),
                     **(place.environment() if place else {})})
        if done.returncode not in (0, 1):
            return done.returncode
        result = json.loads(done.stdout)
    print("\n" + replay_table(result) + "\n", flush=True)
    write_json(args, result)
    return done.returncode


def write_json(args, result):
    if args.json:
        with open(args.json, "w") as f:
            json.dump(result, f, indent=2)
            f.write("\n")


def with_vllm(args, place):
    with progress.step("installing vLLM"):
        python = workplace.vllm_python()
    with progress.step("making the model"):
        model = os.path.abspath(args.model) if args.model else workplace.small_model(python)
    directory = tempfile.mkdtemp(prefix="demo-",
                                 dir=workplace.cache_directory())
    keep = args.keep
    try:
        demo = Demo(args, python, model, directory, place)
        os.makedirs(demo.store, exist_ok=True)
        result = demo.run()
    except ServerError:
        keep = True
        raise
    finally:
        if keep:
            progress.note(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print("\n" + table(result) + "\n", flush=True)
    write_json(args, result)
    return 0 if result["outputs_equal"] else 1


def install():
    """Install kvtier's dependencies and build kvtier."""
    with progress.step("installing packages of Debian"):
        done = subprocess.run(["scripts/install-deps"], cwd=workplace.REPOSITORY)
    if done.returncode:
        raise workplace.Unavailable("the packages cannot be installed here: see above")
    with progress.step("building kvtier"):
        done = subprocess.run(["make", "-s", "programs"], cwd=workplace.REPOSITORY, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        raise workplace.Unavailable(f"kvtier cannot be built here:\n{done.stdout}")


def show(args, place):
    if args.no_vllm:
        return replay(args, place)
    try:
        return with_vllm(args, place)
    except workplace.Unavailable as e:
        print(f"demo.sh: {e}\n"
              "demo.sh: showing the same through the C engine, without vLLM",
              file=sys.stderr)
        announce(REPLAY_STEPS)
        return replay(args, place)


def main():
    args = parse_arguments()
    install_signal_handlers()
    if args.store_dir and os.path.isdir(args.store_dir) and \
            os.listdir(args.store_dir):
        print(f"demo.sh: {args.store_dir} is not empty, so that nothing in it "
              "would be cold: name another directory", file=sys.stderr)
        return 2
    if args.model and not os.path.isfile(
            os.path.join(args.model, "config.json")):
        print(f"demo.sh: {args.model} has no config.json: --model takes the "
              "directory of a model", file=sys.stderr)
        return 2
    if args.store != "fs" and (args.store_dir or args.kv_transfer_config):
        print(f"demo.sh: --store {args.store} goes with neither --store-dir nor "
              "--kv-transfer-config", file=sys.stderr)
        return 2
    place = PLACES[args.store]()
    announce([*FIRST_STEPS, *([(place.begin, 1, 1, None)] if place else []),
              *(REPLAY_STEPS if args.no_vllm else VLLM_STEPS)])
    if lacks_avx512() and not (args.no_vllm or args.model):
        progress.note("The model computes in float32: without AVX-512 vLLM emulates bfloat16.\n")
    try:
        install()
        if place:
            with progress.step(place.begin):
                place.start()
        return show(args, place)
    except workplace.Unavailable as e:
        print(f"demo.sh: {e}", file=sys.stderr)
        return 3
    except ServerError as e:
        print(f"demo.sh: {e}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        if place:
            place.stop()


if __name__ == "__main__":
    sys.exit(main())
