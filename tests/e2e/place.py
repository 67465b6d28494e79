# SPDX-License-Identifier: Apache-2.0
"""What every end-to-end test is given: its own directory, store and log, a
model, servers on that store, and the checks that all tests share.
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

# Another split of the prefill, or other requests in the same batch, round
# differently: on the small Llama log probabilities differ by up to 0.016, and by 0.003 on
# average over an answer.  With a zeroed block of 16 tokens the average is 0.018; with
# swapped heads of two ranks in a chunk of eight tokens, 0.08.
TOLERANCE = 0.03
MEAN_TOLERANCE = 0.006
TOKENS_FOUND = "vllm:external_prefix_cache_hits_total"
# Longer than a process of a busy machine waits for a processor.
PATIENCE_S = 120
MEMORY_FILES = f"/dev/shm/kvtier-{os.geteuid()}"


class Failed(Exception):
    """A check of a test did not hold."""


class Skipped(Exception):
    """The test needs something that is not there."""


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
        self.beside = {}  # configurations of connectors "before" and "after" kvtier's
        self.bucket = None  # in place of the directory
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
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                              f"make-{self.model}.py")
        return workplace.make_once(
            self.model, lambda out: [self.python, script, out], [script])

    def server(self, *args, env=None):
        """A server on this test's store, for a `with` statement."""
        everything = {"KVTIER_TEST_BLOCK_HASHES": self.hashes}
        if self.transfer is None:
            self.engine_ids.append(f"e2e-{uuid.uuid4()}")
            config = os.path.join(self.directory, "kvtier.yaml")
            workplace.write_config(config, self.store, **self.settings)
            everything.update(workplace.kvtier_environment(config))
            if self.bucket:
                everything.update(self.bucket.environment())
            transfer = workplace.transfer_config()
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
        """One without kvtier, if transfer does not say otherwise."""
        # Dev mode: resets of the prefix cache.  One thread: two that wait for each
        # other crawl where other programs want the cores too.
        # On a busy machine a lookup that ends after three seconds is a miss, a load that
        # ends after ten has failed, and processes that vLLM kills leave their files.
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
        """The demo's text from token start."""
        if self.tokens is None:
            self.tokens = server.tokenize(workplace.read_text("text.txt"))
        piece = self.tokens[start:start + n_tokens]
        check(len(piece) == n_tokens, "the demo's text is too short")
        return piece

    def prompt(self, server, start, n_tokens):
        """Whole chunks and 16 tokens of it."""
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
        """Wait until everything is on the disk, and not only in memory."""
        self.stores_ended()
        if self.bucket:
            return workplace.wait_until_still(self.bucket.stored)
        files, size = workplace.wait_until_stored(self.store)
        workplace.drop_page_cache(self.store)
        return files, size

    # -- checks

    def hit(self, server, prompt, but=16, **more):
        """Ask; returns the answer and how many tokens came from the store, all but so
        many as a rule."""
        before = server.metrics()[TOKENS_FOUND]
        answer = server.complete(prompt, **more)
        after = server.metrics()[TOKENS_FOUND]
        if after < before + (len(prompt) - but):
            # With the answer to a later request vLLM has published all before it.
            server.complete([5, 6, 7], 2, engine=more.get("engine"))
            after = server.metrics()[TOKENS_FOUND]
        return answer, int(after - before)

    def counted(self, server, name, at_least):
        """All of kvtier's counters, once this one has reached a value."""
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
        """Check that the alternatives of all tokens up to the first different token are
        equal except for rounding."""
        self.check_rounding(differences(answer, other), what)

    def check_every_token(self, server, prompt, answer, what):
        """Check that all tokens of an answer have vLLM's log probabilities without a
        cache."""
        scores = server.score(prompt + answer.token_ids, len(answer.token_ids))
        self.check_rounding([abs(ours - cold) for (ours, _), cold
                             in zip(answer.logprobs, scores)], what)

    def check_rounding(self, found, what):
        """Differences of log probabilities are small, and smaller on average."""
        check(found, f"{what}: no likely token in common")
        worst, mean = max(found), sum(found) / len(found)
        check(worst <= self.tolerance and mean <= self.mean_tolerance,
              "%s: log probabilities differ by up to %.3g and %.3g on average, more "
              "than rounding can (%.3g, %.3g)" % (
                  what, worst, mean, self.tolerance, self.mean_tolerance))

    def check_idle(self, server):
        """Nothing runs or waits, and no KV block is held any more."""
        server.complete([5, 6, 7], 2)
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                     "vllm:kv_cache_usage_perc"):
            value = settle_to_zero(server, name)
            check(value == 0, f"{name} is {value} when all requests are done")

    def memory_directories(self):
        """Where the servers so far said what their host memory holds; each had
        one a rank."""
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
        """Nothing outside the store remains of servers that were stopped."""
        left = self.memory_directories()
        check(not left, "left behind: %s" % ", ".join(left))

    def check_hashes(self, expect_loads=True):
        """Every block that was loaded is one that was saved for its prefix."""
        if self.transfer is not None:
            return
        saved = collections.defaultdict(set)
        loaded = []
        for path in sorted(glob.glob(self.hashes + ".*")):
            with open(path) as f:
                for line in f:
                    fields = line.split()
                    if len(fields) != 5:
                        continue
                    what, prefix, group, block, digest = fields
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
    """Of the log probabilities of the likely first tokens; None: none is common."""
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
    """Call all, each in a thread; their results, or the first exception."""
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
