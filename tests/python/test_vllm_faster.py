# SPDX-License-Identifier: Apache-2.0
"""load_policy: faster in vLLM's scheduler, over the real library and slow storage.  Needs vLLM, no
model and no GPU.  The computation of a token takes token_s, and the storage is an S3 server whose
delay changes, or a directory."""

import contextlib
import io
import os
import sys
import tempfile
import time
import types
import unittest
from importlib.machinery import SourceFileLoader
from unittest import mock

import fake
from vllm_case import SEVERAL_GROUPS, prompt

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "servers"))

import s3  # noqa: E402

if fake.HAVE_VLLM:
    import vllm_sim
    from kvtier import vllm_prefill, vllm_stats
    from vllm_sim import CHUNK, Sim

N_TOKENS = 61  # 7 chunks that a hit can have, and a rest
HIT = 56
SLOW_MS = 300  # of a chunk: more than the computation of all tokens


class Slow(Sim if fake.HAVE_VLLM else object):
    """Sim whose model needs time for each step and token."""

    step_s = 0
    token_s = 0.002

    def _forward(self, output):
        time.sleep(self.step_s + self.token_s * sum(output.num_scheduled_tokens.values()))
        return super()._forward(output)


@unittest.skipUnless(fake.HAVE_VLLM and fake.have_library(),
                     "vLLM or libkvtier.so is not there")
class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.n = 0

    def sim(self, url, windows=(), depth=1, **extra):
        """Return an engine.  All engines of a test have one model's name."""
        model = os.path.join(self.folder, "model")
        os.makedirs(model, exist_ok=True)
        names = types.SimpleNamespace(
            TemporaryDirectory=lambda: contextlib.nullcontext(model))
        with mock.patch.object(vllm_sim, "tempfile", names):
            sim = Slow(None, n_blocks=256, windows=windows, depth=depth, max_batched=64, extra=dict({
                "chunk_size": CHUNK, "local_cpu": False, "model_fingerprint": "f",
                "max_local_cpu_size": 0.0625, "load_policy": "faster", "remote_url": url,
            }, **extra))
        self.addCleanup(sim.close)
        return sim

    def directory(self, faults="", name="store"):
        folder = os.path.join(self.folder, name)
        os.makedirs(folder, exist_ok=True)
        return "fault://%s/fs://%s" % (faults, folder) if faults else "fs://" + folder

    def hit(self, sim, tokens, at_most=100000, **more):
        """Return (the hit of a request with these tokens, the seconds until the first token)."""
        sim.scheduler.reset_prefix_cache()
        self.n += 1
        name = "r%d" % self.n
        before = self.skipped(sim)
        began = time.monotonic()
        sim.add(name, tokens, max_tokens=1, **more)
        sim.run(at_most)
        took = time.monotonic() - began
        after = self.skipped(sim)
        self.last_skipped = {reason: n - before.get(reason, 0) for reason, n in after.items()
                             if n != before.get(reason, 0)}
        return sim.hits[name], took

    def skipped(self, sim):
        half = sim.connector._scheduler
        names = [name for name, *_ in fake._lib.counters()]
        counts = dict(zip(names, half._engine.counters()))
        for name, n in [*half._stats._added.items()] + [
                pair for stats in sim.stats for pair in stats.items()
                if pair[0] in ("skipped_tokens_limit", "skipped_tokens_short")]:
            counts[name] = counts.get(name, 0) + n
        return {name.replace("skipped_tokens_", ""): n for name, n in counts.items()
                if name.startswith("skipped_tokens_") and n}

    def fill(self, url, seeds=range(1, 4), **more):
        """Store prompts, and let the engine measure the computation."""
        sim = self.sim(url, **more)
        for seed in seeds:
            sim.add("fill%d" % seed, prompt(seed, N_TOKENS, more.get("shared", 0)), max_tokens=1)
            sim.run()
        sim.engine.flush(60000)
        sim.close()


class Storage(Case):
    def test_a_fast_tier_is_loaded(self):
        self.fill(self.directory())
        sim = self.sim(self.directory())
        for _ in range(3):
            for seed in 1, 2, 3:
                self.assertEqual(self.hit(sim, prompt(seed, N_TOKENS))[0], HIT)
                self.assertEqual(self.last_skipped, {})

    def test_a_slow_tier_is_measured_once_and_then_computed(self):
        self.fill(self.directory())
        sim = self.sim(self.directory("delay_ms=%d" % SLOW_MS))
        sim.close()
        sim = self.sim(self.directory("delay_ms=%d" % SLOW_MS))
        self.assertEqual(self.hit(sim, prompt(1, N_TOKENS))[0], HIT)
        for seed in 2, 3, 1, 2, 3:
            hit, _ = self.hit(sim, prompt(seed, N_TOKENS))
            self.assertEqual((hit, self.last_skipped), (0, {"slower": HIT}))
        names = [name for name, *_ in fake._lib.counters()]
        stored = dict(zip(names, sim.engine.counters()))
        self.assertEqual(stored["store_chunks"], 0)  # the chunks are in the store

    def test_without_the_policy_a_slow_tier_is_loaded(self):
        self.fill(self.directory())
        sim = self.sim(self.directory("delay_ms=%d" % SLOW_MS), load_policy="all")
        for seed in 1, 2, 3:
            self.assertEqual(self.hit(sim, prompt(seed, N_TOKENS))[0], HIT)
        self.assertEqual(self.last_skipped, {})

    def test_the_part_in_host_memory_is_loaded_and_the_slow_rest_is_computed(self):
        self.fill(self.directory())
        sim = self.sim(self.directory("delay_ms=%d" % SLOW_MS), local_cpu=True)
        self.hit(sim, prompt(3, N_TOKENS))
        shared = prompt(1, N_TOKENS)[:3 * CHUNK]
        self.assertEqual(self.hit(sim, shared + prompt(9, 8))[0], 0)  # computed into memory
        self.assertEqual(self.last_skipped, {"slower": 3 * CHUNK})
        hit, _ = self.hit(sim, prompt(1, N_TOKENS))
        # A trial has read at most one chunk behind the three.
        self.assertIn(hit, (3 * CHUNK, 4 * CHUNK))
        self.assertEqual(self.last_skipped, {"slower": HIT - hit})

    def test_rates_are_kept_over_a_restart(self):
        self.fill(self.directory())
        url = self.directory("delay_ms=%d" % SLOW_MS)
        sim = self.sim(url)
        self.assertEqual(self.hit(sim, prompt(1, N_TOKENS))[0], HIT)
        self.hit(sim, prompt(4, N_TOKENS))
        sim.close()
        sim = self.sim(url)
        self.assertEqual(self.hit(sim, prompt(2, N_TOKENS))[0], 0)
        self.assertEqual(self.last_skipped, {"slower": HIT})

    @unittest.skipUnless(SEVERAL_GROUPS, "no hybrid attention with this vLLM")
    def test_windows_are_loaded_whole_or_not(self):
        windows = (10,)
        self.fill(self.directory(), windows=windows)
        sim = self.sim(self.directory(), windows=windows)
        self.assertEqual(self.hit(sim, prompt(1, N_TOKENS))[0], HIT)
        sim.close()
        sim = self.sim(self.directory("delay_ms=%d" % SLOW_MS), windows=windows)
        self.hit(sim, prompt(1, N_TOKENS))
        self.assertEqual(self.hit(sim, prompt(2, N_TOKENS))[0], 0)
        self.assertEqual(self.last_skipped, {"slower": HIT})
        sim.check_rest()

    def test_storage_is_not_stalled_while_long_steps_delay_the_begin_of_a_load(self):
        self.fill(self.directory())
        sim = self.sim(self.directory(), depth=2)
        self.hit(sim, prompt(3, N_TOKENS))  # measures the storage
        sim.add("decode", prompt(9, 9), max_tokens=20)
        for _ in range(4):
            sim.step()
        with mock.patch.object(sim, "step_s", 0.7):
            sim.add("a", prompt(1, N_TOKENS), max_tokens=1)
            sim.step()  # the workers do not learn of the load before the end of this step
            sim.add("b", prompt(2, N_TOKENS), max_tokens=1)
            sim.step()
        sim.run()
        self.assertEqual((sim.hits["a"], sim.hits["b"]), (HIT, HIT))
        self.assertEqual(self.skipped(sim), {})

    def test_a_decode_engine_does_not_wait_for_chunks_that_it_will_not_load(self):
        self.fill(self.directory())
        sim = self.sim(self.directory("delay_ms=%d" % SLOW_MS), lookup_timeout_ms=60000)
        self.hit(sim, prompt(1, N_TOKENS))
        hit, took = self.hit(sim, prompt(2, N_TOKENS), kv_transfer_params={
            "do_remote_prefill": True, "remote_num_tokens": HIT})
        self.assertEqual(hit, 0)
        self.assertLess(took, 30)

    def test_limits_hold_and_are_counted_by_reason(self):
        self.fill(self.directory())
        for limits, hit, skipped in (
                ({}, HIT, {}),
                ({"max_load_tokens": 20}, 16, {"limit": N_TOKENS - 1 - 16}),
                ({"min_retrieve_tokens": HIT + 1}, 0, {"short": HIT}),
                ({"min_retrieve_tokens": HIT}, HIT, {})):
            for policy in "faster", "all":
                with self.subTest(limits=limits, policy=policy):
                    sim = self.sim(self.directory(), load_policy=policy, **limits)
                    self.assertEqual(self.hit(sim, prompt(1, N_TOKENS))[0], hit)
                    self.assertEqual(self.last_skipped, skipped)
                    sim.close()


class Changing(Case):
    """S3, from which other hosts delete: a hit is read into host memory before its promise."""

    def setUp(self):
        super().setUp()
        # The server in this process needs time too.
        patch = mock.patch.object(Slow, "token_s", 0.01)
        patch.start()
        self.addCleanup(patch.stop)
        self.server = s3.Server(buckets=["kv"])
        self.addCleanup(self.server.stop)
        facts = self.server.facts()
        patch = mock.patch.dict(os.environ, {
            "AWS_ACCESS_KEY_ID": facts["access"], "AWS_SECRET_ACCESS_KEY": facts["secret"],
            "AWS_DEFAULT_REGION": facts["region"], "AWS_ENDPOINT_URL": facts["endpoint"]})
        patch.start()
        self.addCleanup(patch.stop)
        self.sim_s3 = lambda **more: self.sim("s3://kv", lookup_timeout_ms=60000, **more)

    def delay(self, ms):
        self.server.config["delay_ms"] = ms

    def load_soon(self, sim, seeds):
        """Run requests until one loads, and the next request also loads.  On a busy host a read
        can be slower than the computation; a trial follows within 2 s."""
        end = time.monotonic() + 30
        for _ in range(2):
            while not self.hit(sim, prompt(next(seeds), N_TOKENS))[0]:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.3)

    def test_a_tier_that_slows_down_is_left_out_and_used_again_after_its_recovery(self):
        seeds = range(1, 20)
        self.fill("s3://kv", seeds)
        sim = self.sim_s3()
        seed = iter(seeds)
        self.load_soon(sim, seed)
        self.delay(4 * Slow.token_s * N_TOKENS * 1000)
        # The reads of the first request measure the new delay.
        self.hit(sim, prompt(next(seed), N_TOKENS))
        self.assertEqual(self.hit(sim, prompt(next(seed), N_TOKENS))[0], 0)
        self.assertEqual(self.last_skipped, {"slower": HIT})
        self.delay(0)
        self.load_soon(sim, seed)

    def test_a_tier_that_hangs_is_left_out_within_a_second(self):
        seeds = range(1, 12)
        self.fill("s3://kv", seeds)
        sim = self.sim_s3()
        seed = iter(seeds)
        self.load_soon(sim, seed)
        self.delay(30000)
        sim.scheduler.reset_prefix_cache()
        began = time.monotonic()
        sim.add("hangs", prompt(next(seed), N_TOKENS), max_tokens=1)
        while time.monotonic() < began + 1:
            sim.step()
        self.assertNotIn("hangs", sim.finished)
        sim.add("next", prompt(next(seed), N_TOKENS), max_tokens=1)
        while "next" not in sim.finished:
            sim.step()
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual(sim.hits["next"], 0)
        self.assertEqual(self.skipped(sim), {"stalled": HIT})
        self.assertNotIn("hangs", sim.finished)
        self.delay(0)
        sim.abort("hangs")
        sim.run()


@unittest.skipUnless(fake.HAVE_VLLM and fake.have_library(),
                     "vLLM or libkvtier.so is not there")
class Benchmark(unittest.TestCase):
    def bench(self, *arguments):
        """Return (standard output, standard error) of the benchmark."""
        with mock.patch.object(sys, "path", list(sys.path)):  # the benchmark replaces an entry
            bench = SourceFileLoader("bench_faster", os.path.join(
                HERE, "..", "..", "bench", "faster.py")).load_module()
        with mock.patch.object(sys, "argv", ["faster.py", *arguments]), \
                self.assertRaises(SystemExit), \
                contextlib.redirect_stdout(io.StringIO()) as out, \
                contextlib.redirect_stderr(io.StringIO()) as err:
            bench.main()
        return out.getvalue(), err.getvalue()

    def test_the_benchmark_prints_a_row_for_each_rate(self):
        out, _ = self.bench("--tokens", "512", "--requests", "1", "--rates", "50", "2000")
        self.assertEqual([row.split()[0] for row in out.splitlines()], ["MB/s", "50", "2000"])

    def test_the_benchmark_refuses_numbers_without_a_meaning(self):
        for option, text, least in (("--tokens", "255", "256"), ("--token-us", "0", "1"),
                                    ("--token-us", "nan", "1"), ("--token-us", "inf", "1"),
                                    ("--requests", "0", "1"), ("--rates", "0", "1")):
            self.assertIn("argument %s: %s must be a finite number of at least %s"
                          % (option, text, least),
                          self.bench(option, text)[1])


@unittest.skipUnless(fake.HAVE_VLLM and fake.have_library(),
                     "vLLM or libkvtier.so is not there")
class Metric(unittest.TestCase):
    def test_skipped_tokens_are_one_metric_with_the_reason_as_label(self):
        made, samples = [], {}

        def metric(name, documentation, labelnames, multiprocess_mode=None):
            made.append((name, labelnames))

            def labels(*values):
                def inc(n):
                    key = name, dict(zip(labelnames, values)).get("reason")
                    samples[key] = samples.get(key, 0) + n
                return types.SimpleNamespace(inc=inc, set=inc)
            return types.SimpleNamespace(labels=labels)
        from prometheus_client import Counter, Gauge, Histogram
        metrics = vllm_stats.KVTierPromMetrics(
            types.SimpleNamespace(kv_transfer_config=None),
            {Gauge: metric, Counter: metric, Histogram: metric}, ["model", "engine"],
            {0: ["m", 0]})
        skipped = [one for one in made if "skipped" in one[0]]
        self.assertEqual(skipped, [("vllm:kvtier_skipped_tokens", ["model", "engine", "reason"])])
        for _ in range(2):
            metrics.observe({"skipped_tokens_slower": 3, "skipped_tokens_limit": 4,
                             "hit_tokens": 5})
        self.assertEqual(samples, {
            ("vllm:kvtier_skipped_tokens", "slower"): 6,
            ("vllm:kvtier_skipped_tokens", "limit"): 8,
            ("vllm:kvtier_hit_tokens", None): 10})


@unittest.skipUnless(fake.HAVE_VLLM, "vLLM is not installed")
class Steps(unittest.TestCase):
    """The measurement of prefill, with a clock of the test."""

    def setUp(self):
        self.notes = []
        self.now = 0
        engine = types.SimpleNamespace(note_prefill=lambda *note: self.notes.append(note))
        self.steps = vllm_prefill.Prefill(engine, now=lambda: self.now)

    def schedule(self, *requests):
        """requests: (tokens in the step, computed tokens, tokens of the prompt)."""
        table = {i: types.SimpleNamespace(num_computed_tokens=computed, num_prompt_tokens=length)
                 for i, (_, computed, length) in enumerate(requests)}
        self.steps.scheduled({i: n for i, (n, _, _) in enumerate(requests)}, table.get)

    def test_a_step_lasts_from_its_begin_to_its_result(self):
        self.now = 5
        self.schedule((4, 10, 100))
        self.now = 25
        self.steps.computed()
        self.assertEqual(self.notes, [(4, 10 + 11 + 12 + 13, 20)])

    def test_steps_in_a_queue_begin_at_the_result_before(self):
        self.schedule((4, 0, 100))
        self.schedule((4, 4, 100))
        self.now = 20
        self.steps.computed()
        self.schedule()
        self.now = 50
        self.steps.computed()
        self.steps.computed()
        self.assertEqual([ns for _, _, ns in self.notes], [20, 30])

    def test_idle_time_and_decoding_do_not_count(self):
        self.schedule((4, 0, 4))
        self.now = 10
        self.steps.computed()
        self.now = 1000
        self.schedule((1, 4, 4), (1, 50, 4))  # decoding
        self.now = 1010
        self.steps.computed()
        self.schedule()  # no tokens
        self.steps.computed()
        self.now = 2000
        self.schedule((8, 0, 8), (1, 4, 4))
        self.now = 2030
        self.steps.computed()
        self.steps.computed()  # more results than steps
        self.assertEqual([(n, ns) for n, _, ns in self.notes], [(4, 10), (9, 30)])


if __name__ == "__main__":
    unittest.main()
