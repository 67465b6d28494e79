# SPDX-License-Identifier: Apache-2.0
"""Place: the directory, store, log, model and servers of an end-to-end test.

The methods of Place start servers on the store and make the checks of several tests.
"""
import collections
import glob
import hashlib
import os
import random
import sys
import threading
import time
import uuid

sys.path.insert(0, os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "demo"))

import workplace  # noqa: E402
from server import Server, max_logprob_difference, same_answer  # noqa: E402

# Limits for differences of log probabilities by rounding.  Rounding depends on the split of
# the prefill and on the other requests in the batch: with the small Llama, rounding changes
# log probabilities by up to 0.016, and by 0.003 on average over an answer.  With a zeroed
# block of 16 tokens the average is 0.018; with swapped heads of two ranks in a chunk of
# eight tokens, 0.08.
TOLERANCE = 0.03
MEAN_TOLERANCE = 0.006
TOKENS_FOUND = "vllm:external_prefix_cache_hits_total"
# Seconds; longer than a process waits for a processor on a busy machine.
PATIENCE_S = 120
MEMORY_FILES = f"/dev/shm/kvtier-{os.geteuid()}"


class Failed(Exception):
    """A check of a test did not hold."""


class Skipped(Exception):
    """The test needs a feature or program that is missing here."""


def check(holds, text):
    if not holds:
        raise Failed(text)


class Place:
    def __init__(self, directory, python, transfer, seed):
        self.directory = directory
        self.python = python
        self.transfer = transfer
        self.random = random.Random(seed)
        self.store = os.path.join(directory, "store")
        self.log = os.path.join(directory, "vllm.log")
        self.hashes = os.path.join(directory, "hashes")
        self.model = "small-llama"
        self.settings = {}
        self.role = "kv_both"
        self.beside = {}  # configurations of connectors "before" and "after" kvtier's
        self.bucket = None  # S3 bucket, replaces the directory
        self.tokens = None
        self.tolerance = TOLERANCE
        self.mean_tolerance = MEAN_TOLERANCE
        self.engine_ids = []
        self.last_server = None
        os.makedirs(self.store, exist_ok=True)

    # -- servers

    def model_directory(self):
        if self.model == "small-llama":
            return workplace.small_model(self.python)
        if self.model == "gemma":
            return workplace.gemma(self.python)
        return self.made(self.model)

    def made(self, name):
        """Return the directory that make-NAME.py writes."""
        here = os.path.dirname(os.path.abspath(__file__))
        script, common = (os.path.join(here, file)
                          for file in (f"make-{name}.py", "random_model.py"))
        return workplace.make_once(
            name, lambda out: [self.python, script, out], [script, common])

    def server(self, *args, env=None):
        """Return a server on this test's store, for a `with` statement."""
        everything = {"KVTIER_TEST_BLOCK_HASHES": self.hashes}
        if self.transfer is None:
            self.engine_ids.append(f"e2e-{uuid.uuid4()}")
            config = os.path.join(self.directory, "kvtier.yaml")
            workplace.write_config(config, self.store, **self.settings)
            everything.update(workplace.kvtier_environment(config))
            if self.bucket:
                everything.update(self.bucket.environment())
            transfer = {**workplace.transfer_config(), "kv_role": self.role}
            if self.beside:
                transfer = {
                    "kv_connector": "MultiConnector", "kv_role": "kv_both",
                    "kv_connector_extra_config": {"connectors": [
                        *self.beside.get("before", ()), transfer,
                        *self.beside.get("after", ())]}}
            transfer["engine_id"] = self.engine_ids[-1]
        else:
            transfer = dict(self.transfer)
            extra = dict(transfer.get("kv_connector_extra_config", {}))
            transfer["kv_connector_extra_config"] = {
                k: v.replace("{store}", self.store) if isinstance(v, str)
                else v for k, v in extra.items()}
        everything.update(env or {})
        return self.bare_server(*args, transfer=transfer, env=everything)

    def bare_server(self, *args, transfer=None, env=None):
        """Return a server with the connector that `transfer` configures, or without kvtier."""
        # Dev mode allows resets of the prefix cache.  One OpenMP thread: two threads that
        # wait for each other are slow if other programs use the cores.
        # The default timeouts are too short for a busy machine: a lookup of more than three
        # seconds is a miss, a load of more than ten seconds fails, and vLLM kills processes
        # that end late.  Killed processes leave files.
        everything = {"VLLM_SERVER_DEV_MODE": "1", "OMP_NUM_THREADS": "1",
                      "VLLM_CPU_OMP_THREADS_BIND": "nobind",
                      "LMCACHE_LOOKUP_TIMEOUT_MS": "600000",
                      "LMCACHE_BLOCKING_TIMEOUT_SECS": "600", **(env or {})}
        if "--max-model-len" not in args:
            args += ("--max-model-len", "8192")
        server = Server(self.python, self.model_directory(), self.log, transfer,
                        args, everything)
        server.start_timeout_s = 900
        server.shutdown_timeout_s = PATIENCE_S
        server.stop_timeout_s = PATIENCE_S + 30
        self.last_server = server
        return server

    def piece(self, server, start, n_tokens):
        """Return n_tokens tokens of the demo's text, from token `start`."""
        if self.tokens is None:
            self.tokens = server.tokenize(workplace.read_text("text.txt"))
        piece = self.tokens[start:start + n_tokens]
        check(len(piece) == n_tokens, "the demo's text is too short")
        return piece

    def prompt(self, server, start, n_tokens):
        """Return tokens of the demo's text: the whole chunks of n_tokens, and 16 tokens."""
        return workplace.whole_chunks(self.piece(server, start, n_tokens))

    def use_bucket(self, bucket):
        self.bucket = bucket
        self.settings.update(bucket.settings())

    def stores_ended(self):
        """Wait until the last server has written the chunks of all requests so far.
        kvtier's workers report in vLLM's steps, at most twice a second."""
        server, seen = self.last_server, None
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            server.complete([5, 6, 7], 2)
            metrics = server.metrics()
            now = [metrics["vllm:kvtier_" + name] for name in (
                "stores_pending", "store_chunks_total", "store_failed_total",
                "store_dropped_total")]
            if now == seen and not now[0]:
                break
            seen = now
            time.sleep(0.7)

    def stored(self):
        """Wait until all chunks are in the bucket, or in files on the disk, and drop the page
        cache of the files.  Return the result of the wait."""
        self.stores_ended()
        if self.bucket:
            return workplace.wait_until_still(self.bucket.stored)
        files, size = workplace.wait_until_stored(self.store)
        workplace.drop_page_cache(self.store)
        return files, size

    # -- checks

    def hit(self, server, prompt, but=16, ask=None, **more):
        """Send a prompt.  Return the answer and the number of tokens found in the store.

        `but` is the number of tokens that an expected hit leaves out; `ask` is the server that
        gets the prompt, if another than the server that looks for tokens.
        """
        before = server.metrics()[TOKENS_FOUND]
        answer = (ask or server).complete(prompt, **more)
        after = server.metrics()[TOKENS_FOUND]
        if after < before + (len(prompt) - but):
            # vLLM publishes the counts of all earlier requests before it answers this one.
            server.complete([5, 6, 7], 2, engine=more.get("engine"))
            after = server.metrics()[TOKENS_FOUND]
        return answer, int(after - before)

    def counted(self, server, name, at_least):
        """Wait until kvtier's counter `name` is at least `at_least`; return all counters."""
        wanted = f"vllm:kvtier_{name}_total"
        metrics = server.settled_metrics(wanted, at_least, timeout=PATIENCE_S)
        return {key[len("vllm:kvtier_"):-len("_total")]: int(value)
                for key, value in metrics.items()
                if key.startswith("vllm:kvtier_") and key.endswith("_total")}

    def check_equal(self, answer, oracle, what):
        check(same_answer(answer, oracle),
              "%s: the answer is not the oracle's (log probabilities differ "
              "by up to %.3g)" % (what, max_logprob_difference(answer, oracle)))

    def check_close(self, answer, other, what):
        """Check that two answers have equal log probabilities, except for rounding, up to the
        first different token."""
        self.check_rounding(differences(answer, other), what)

    def check_every_token(self, server, prompt, answer, what):
        """Check that the log probabilities of all tokens of an answer equal the values of a
        vLLM without a cache, except for rounding."""
        scores = server.score(prompt + answer.token_ids, len(answer.token_ids))
        self.check_rounding([abs(ours - cold) for (ours, _), cold
                             in zip(answer.logprobs, scores)], what)

    def check_rounding(self, found, what):
        """Check that the largest and the average difference are within the tolerances."""
        check(found, f"{what}: no likely token in common")
        worst, mean = max(found), sum(found) / len(found)
        check(worst <= self.tolerance and mean <= self.mean_tolerance,
              "%s: log probabilities differ by up to %.3g and %.3g on average, more "
              "than rounding can (%.3g, %.3g)" % (
                  what, worst, mean, self.tolerance, self.mean_tolerance))

    def check_idle(self, server):
        """Check that no request runs or waits, and that all KV blocks are free."""
        server.complete([5, 6, 7], 2)
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                     "vllm:kv_cache_usage_perc"):
            value = settle_to_zero(server, name)
            check(value == 0, f"{name} is {value} when all requests are done")

    def memory_directories(self):
        """Return the existing directories of this test's servers in /dev/shm.

        Each rank of a running server publishes the content of the rank's host memory in a
        directory.
        """
        return sorted(
            path for engine_id in self.engine_ids
            for suffix in ("", "_dp0", "_dp1")  # of data-parallel engines
            for path in glob.glob("%s/%016x-*" % (
                MEMORY_FILES, int.from_bytes(hashlib.sha256(
                    (engine_id + suffix).encode()).digest()[:8], "little"))))

    def read_log(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def check_nothing_left(self):
        """Check that the stopped servers left no directory in /dev/shm."""
        left = self.memory_directories()
        check(not left, "left behind: %s" % ", ".join(left))

    def read_hashes(self):
        """Yield ("save" or "load", prefix, group, block, digest) of each moved block."""
        for path in sorted(glob.glob(self.hashes + ".*")):
            with open(path) as f:
                for line in f:
                    fields = line.split()
                    if len(fields) == 5:
                        yield fields

    def check_hashes(self, expect_loads=True):
        """Check that each loaded block equals a block saved for an equal prefix.

        The connector writes the hashes of saved and loaded blocks (place.hashes).
        """
        if self.transfer is not None:
            return
        saved = collections.defaultdict(set)
        loaded = []
        for what, prefix, group, block, digest in self.read_hashes():
            if what == "save":
                saved[prefix, group, block].add(digest)
            else:
                loaded.append(((prefix, group, block), digest))
        check(saved, f"the connector wrote no hashes of blocks to {self.hashes}")
        check(loaded or not expect_loads, "no block was loaded")
        wrong = [key for key, digest in loaded if digest not in saved[key]]
        check(not wrong, "%d of %d loaded blocks hold other bytes than were "
              "saved for their prefix, first: prefix %s group %s block %s" %
              ((len(wrong), len(loaded)) + (wrong[0] if wrong else ("",) * 3)))


def differences(a, b):
    """Return the differences of likely tokens' log probabilities, up to the first
    different token."""
    found = []
    for i, ((_, ours), (_, theirs)) in enumerate(zip(a.logprobs, b.logprobs)):
        found += (abs(ours[token] - theirs[token]) for token in set(ours) & set(theirs))
        if a.token_ids[i] != b.token_ids[i]:
            break
    return found


def first_token_difference(a, b):
    """Return the largest difference of log probabilities of the likely first tokens, or None
    if the answers have no likely first token in common."""
    ours, theirs = a.logprobs[0][1], b.logprobs[0][1]
    return max((abs(ours[token] - theirs[token])
                for token in set(ours) & set(theirs)), default=None)


def settle_to_zero(server, name, tries=5 * PATIENCE_S):
    pause = threading.Event()
    for _ in range(tries):
        value = server.metrics()[name]
        if value == 0:
            break
        pause.wait(0.2)
    return value


def in_parallel(jobs):
    """Call each job in a thread.  Return the results, or raise the first exception."""
    results = [None] * len(jobs)
    errors = []

    def run(i, job):
        try:
            results[i] = job()
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=item, daemon=True)
               for item in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
