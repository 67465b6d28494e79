#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure how the codec of stored chunks (`remote_serde`) changes the answers of a real vLLM on
the CPU, with Gemma 3 270M in bfloat16.

For each codec a first engine computes the beginning of each prompt, the context, and kvtier
stores the context's chunks in files.  A second engine on the same files loads the contexts,
computes the rest of each prompt, and returns the log probability of each token of the rest: the
forced tokens.  The reference ("none") is an engine without a store, which computes the whole
prompts in equal steps.  "rounding" is an engine without a store and with steps of half the tokens:
the order of sums differs, so the changes of this row come from rounding alone.

times smaller   bytes of all files with naive chunks / bytes of all files with this codec
perplexity      of the forced tokens
mean, largest   absolute change of the log probability of a forced token against no store
equal greedy    share of forced tokens in whose place both engines find an equal token most
tokens          likely
as naive        whether all log probabilities and most likely tokens equal those with naive
                chunks, bit for bit
error of K, V   relative rms error of the loaded elements against the computed elements: the
                mean of the layers

A prompt's context must come from files completely: the program ends with status 3 if vLLM or
kvtier counts other loads.
"""
import argparse
import contextlib
import glob
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "demo"))

import progress  # noqa: E402
import workplace  # noqa: E402
from server import (  # noqa: E402
    Server,
    ServerError,
    install_signal_handlers,
    last_lines,
)

CODECS = ("lossless", "kv8", "kv4", "cachegen")
STEP_TOKENS = 512
# Seconds on two cores with AVX-512: start of an engine, and each token of these kinds.
START_S, TOKEN_S, SCORED_TOKEN_S = 35, 0.002, 0.006


class Engine(Server):
    """A vLLM engine without HTTP: runs a job of engine.py and ends."""
    name = "the engine"
    start_timeout_s = 3600

    def __init__(self, python, job, result, log, env):
        super().__init__(python, None, log, env=env)
        self.job = job
        self.result = result

    def command(self):
        return [self.python, os.path.join(HERE, "engine.py"), self.job, self.result]

    def wait_ready(self, began):
        """Wait until the engine has ended."""
        try:
            status = self.process.wait(self.start_timeout_s)
        except subprocess.TimeoutExpired:
            status = "timeout"
        if status != 0:
            raise ServerError("%s ended with status %s; the end of %s:\n%s" %
                              (self.name, status, self.log, last_lines(self.log)))


def delete_index(store):
    """Delete the index of a store without users, which kvtier keeps until another store
    opens."""
    with contextlib.suppress(FileNotFoundError):
        lock = os.stat(os.path.join(store, ".kvtier", "lock"))
        for path in glob.glob("/dev/shm/kvtier-*-%x-%x" % (lock.st_dev, lock.st_ino)):
            os.unlink(path)


class Quality:
    def __init__(self, args, directory):
        self.args = args
        self.directory = directory
        self.python = workplace.vllm_python()
        self.model = workplace.gemma(self.python)
        self.log = os.path.join(args.keep or directory, "vllm.log")

    def engine(self, save, transfer=None, env=(), step=STEP_TOKENS):
        """Run an engine; return the result of engine.py."""
        job, result = (os.path.join(self.directory, name) for name in ("job", "result"))
        with open(job, "w") as file:
            json.dump({"model": self.model, "text": os.path.abspath(self.args.text),
                       "transfer": transfer, "context": self.args.context,
                       "forced": self.args.forced, "prompts": self.args.prompts,
                       "step": step, "save": save}, file)
        with Engine(self.python, job, result, self.log, {
                # Equal threads with and without a connector.
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                "LMCACHE_LOOKUP_TIMEOUT_MS": "600000",
                "LMCACHE_BLOCKING_TIMEOUT_SECS": "600", **dict(env)}):
            with open(result) as file:
                return json.load(file)

    def without_store(self, codec, step):
        with progress.step(step_text(codec)):
            return self.engine(save=False, step=step)["prompts"]

    def with_codec(self, codec):
        """Return (result of the second engine, files, bytes, result of kv_error.py)."""
        with tempfile.TemporaryDirectory(dir=self.directory) as place:
            config, store, blocks = (os.path.join(place, name)
                                     for name in ("kvtier.yaml", "store", "blocks"))
            os.mkdir(store)
            workplace.write_config(config, store, local_cpu="false", remote_serde=codec)
            env = workplace.kvtier_environment(config)
            env["PYTHONPATH"] += os.pathsep + HERE
            env["KVTIER_BENCH_BLOCKS"] = blocks
            transfer = dict(workplace.transfer_config(), kv_connector="RecordingConnector",
                            kv_connector_module_path="recording_connector")
            try:
                with progress.step(step_text(codec, "save")):
                    self.engine(True, transfer, env)
                    files, size = workplace.stored(store)
                with progress.step(step_text(codec, "score")):
                    # A consumer does not store the rest of the prompts.
                    result = self.engine(False, dict(transfer, kv_role="kv_consumer"), env)
            finally:
                delete_index(store)
            self.check_loaded(codec, result)
            return result, files, size, self.kv_error(blocks)

    def check_loaded(self, codec, result):
        """Check that vLLM computed no context, and that kvtier read the chunks from files."""
        cached = [prompt["cached"] for prompt in result["prompts"]]
        counts = {name: int(result["metrics"].get("vllm:kvtier_" + name, 0)) for name in (
            "load_chunks", "load_bytes", "memory_hits", "load_missing", "load_corrupt",
            "load_failed", "load_late")}
        if (cached != [self.args.context] * self.args.prompts or not counts["load_chunks"] or
                not counts["load_bytes"] or any(list(counts.values())[2:])):
            raise ServerError(f"{codec}: the contexts were not loaded from files: {cached} "
                              f"tokens, {counts}")

    def kv_error(self, blocks):
        done = subprocess.run([self.python, os.path.join(HERE, "kv_error.py"), blocks],
                              stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise ServerError("the recorded blocks cannot be compared")
        return json.loads(done.stdout)


# ------------------------------------------------------------------- figures

def forced(prompts):
    """Return [token, log probability, most likely token, log probability] of each forced
    token."""
    return [token for prompt in prompts for token in prompt["tokens"]]


def figures(reference, prompts):
    ours, theirs = forced(prompts), forced(reference)
    changes = [abs(a[1] - b[1]) for a, b in zip(ours, theirs)]
    return {"tokens": len(ours),
            "perplexity": math.exp(-statistics.fmean(token[1] for token in ours)),
            "mean_change": statistics.fmean(changes), "largest_change": max(changes),
            "equal_greedy": statistics.fmean(a[2] == b[2] for a, b in zip(ours, theirs))}


def measure(quality, codecs):
    """Yield a dict of figures for no store, for rounding, and for each codec."""
    reference = quality.without_store("none", STEP_TOKENS)
    yield {"codec": "none", **figures(reference, reference)}
    yield {"codec": "rounding",
           **figures(reference, quality.without_store("rounding", STEP_TOKENS // 2))}
    naive = None
    for codec in codecs:
        result, files, size, error = quality.with_codec(codec)
        if naive is None:
            naive = {"size": size, "tokens": forced(result["prompts"])}
        yield {"codec": codec, **figures(reference, result["prompts"]),
               "as_naive": forced(result["prompts"]) == naive["tokens"],
               "files": files, "bytes": size, "times_smaller": naive["size"] / size,
               "kv_error": error,
               "load_chunks": int(result["metrics"]["vllm:kvtier_load_chunks"]),
               "load_bytes": int(result["metrics"]["vllm:kvtier_load_bytes"])}


COLUMNS = (
    ("codec", lambda line: line["codec"]),
    ("times smaller", lambda line: "%.2f" % line["times_smaller"]),
    ("perplexity", lambda line: "%.3f" % line["perplexity"]),
    ("mean change", lambda line: "%.4f" % line["mean_change"]),
    ("largest change", lambda line: "%.3f" % line["largest_change"]),
    ("equal greedy tokens", lambda line: "%.2f %%" % (100 * line["equal_greedy"])),
    ("as naive", lambda line: "yes" if line["as_naive"] else "no"),
    ("error of K", lambda line: "%.2g %%" % (100 * line["kv_error"]["k"])),
    ("error of V", lambda line: "%.2g %%" % (100 * line["kv_error"]["v"])),
)


def row(line):
    cells = []
    for _, cell in COLUMNS:
        try:
            cells.append(cell(line))
        except KeyError:  # without a store, nothing is stored
            cells.append("")
    return "| " + " | ".join(cells) + " |"


def print_results(lines, as_json):
    """Print each line when the line is measured."""
    if not as_json:
        print("| " + " | ".join(name for name, _ in COLUMNS) + " |\n" +
              "|---" * len(COLUMNS) + "|", flush=True)
    for line in lines:
        print(json.dumps(line) if as_json else row(line), flush=True)


# ------------------------------------------------------------------- running

STEP_TEXTS = {
    "none": "no store: computing all prompts",
    "rounding": "no store, shorter steps: computing all prompts",
    "save": "computing and storing the contexts",
    "score": "loading the contexts, forcing the rest",
}


def step_text(codec, what=None):
    return f"{codec}: {STEP_TEXTS[what]}" if what else STEP_TEXTS[codec]


def announce(args, codecs):
    context, rest = args.prompts * args.context, args.prompts * args.forced
    whole_s = START_S + (context + rest) * SCORED_TOKEN_S
    steps = [progress.Step(step_text("none"), whole_s, "minutes more for vLLM and the model"),
             progress.Step(step_text("rounding"), whole_s)]
    for codec in codecs:
        steps.append(progress.Step(step_text(codec, "save"), START_S + context * TOKEN_S))
        steps.append(progress.Step(step_text(codec, "score"), START_S + rest * SCORED_TOKEN_S))
    progress.announce("two cores with AVX-512", steps)


def supported(codecs):
    """Return the codecs that this kvtier knows; print the others."""
    keys = json.loads(subprocess.run(
        [os.path.join(workplace.REPOSITORY, "build", "kvtier"), "config", "keys", "--json"],
        check=True, stdout=subprocess.PIPE).stdout)
    allowed = next(row["allowed"] for row in keys if row["key"] == "remote_serde")
    known = allowed.replace(",", " ").split()
    for codec in codecs:
        if codec not in known:
            progress.note(f"left out: this kvtier has no remote_serde {codec}")
    return [codec for codec in codecs if codec in known]


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codecs", nargs="*", metavar="CODEC", default=list(CODECS),
                        help="codecs to measure beside naive (%s)" % " ".join(CODECS))
    parser.add_argument("--text", metavar="FILE",
                        default=os.path.join(workplace.DEMO, "text.txt"),
                        help="text of the prompts (the demo's: Alice's Adventures in "
                        "Wonderland)")
    parser.add_argument("--prompts", type=positive, default=4, help="(%(default)s)")
    parser.add_argument("--context", type=positive, default=2048,
                        help="tokens of a prompt that are loaded (%(default)s)")
    parser.add_argument("--forced", type=positive, default=1023,
                        help="forced tokens of a prompt (%(default)s)")
    parser.add_argument("--json", action="store_true",
                        help="print an object a line, with more figures")
    parser.add_argument("--keep", metavar="DIR", help="keep vLLM's log in DIR")
    args = parser.parse_args()
    if args.context % STEP_TOKENS or STEP_TOKENS % workplace.CHUNK_TOKENS:
        parser.error(f"--context: a multiple of {STEP_TOKENS} tokens")
    return args


def run(args):
    with tempfile.TemporaryDirectory(prefix="quality-",
                                     dir=workplace.cache_directory()) as directory:
        quality = Quality(args, directory)
        codecs = ["naive", *supported([c for c in args.codecs if c != "naive"])]
        announce(args, codecs)
        with contextlib.closing(measure(quality, codecs)) as lines:
            print_results(lines, args.json)


def main():
    args = parse_arguments()
    install_signal_handlers()
    began = time.monotonic()
    try:
        run(args)
    except (workplace.Unavailable, ServerError) as e:
        print(f"quality: {e}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    progress.note("measured in %.0f s" % (time.monotonic() - began))
    return 0


if __name__ == "__main__":
    sys.exit(main())
