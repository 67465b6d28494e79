# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler with the connector when promised KV is late, deleted or fails to load.
Needs vLLM, no model and no GPU."""

import errno
import json
import sys
import unittest
from unittest import mock

import fake
from vllm_case import ALONE, Case, groupings, prompt

CacheHitSource = None
if fake.HAVE_VLLM:
    from kvtier.connector import CacheHitSource
    from kvtier.vllm_log import log
    from vllm_sim import CHUNK


class Waiting(Case):
    """Lookups that wait until the chunks are in host memory.

    kvtier waits if other hosts delete from the storage, or with enable_async_loading.
    """

    def stored(self, windows=(), seed=1):
        first = self.sim(windows=windows)
        first.add("a", prompt(seed, 61))
        first.run()
        self.store.memory = set()

    def run_one(self, windows=(), **kwargs):
        sim = self.sim(windows=windows, **kwargs)
        sim.add("a", prompt(1, 61))
        sim.run()
        sim.check_rest()
        self.assertEqual(self.store.missed, 0)
        return sim

    def test_a_request_waits_and_hits_the_chunks_read(self):
        for windows in groupings((), (10,), (10, 16)):
            for depth in (1, 2):
                with self.subTest(windows=windows, depth=depth):
                    self.store.chunks.clear()
                    self.store.memory = None
                    self.stored(windows)
                    sim = self.run_one(windows, depth=depth)
                    self.assertEqual(sim.hits["a"], 56)
                    read = {group: len(chunks) // fake.CHUNK_BYTES
                            for group, chunks, _, _ in sim.engine.prefetched}
                    self.assertEqual(len(sim.engine.prefetched), len(read))
                    self.assertEqual(read.pop(len(windows)), 7)
                    self.assertEqual(sorted(read.values()),
                                     [-(-(w - 1) // CHUNK) for w in windows])

    def test_chunks_in_memory_hit_at_once(self):
        self.stored()
        self.run_one()
        again = self.run_one()
        self.assertEqual(again.engine.prefetched, [])
        self.assertEqual(again.hits["a"], 56)

    def test_other_requests_continue_meanwhile(self):
        self.stored()
        self.store.prefetch_works = False
        self.store.patience = 10**6
        sim = self.sim()
        sim.add("a", prompt(1, 61))
        sim.add("b", prompt(2, 30))
        while "b" not in sim.finished:
            sim.step()
        self.assertNotIn("a", sim.hits)
        self.store.patience = 0
        sim.run()
        sim.check_rest()
        self.assertEqual(sim.hits["a"], 0)

    def test_after_the_time_limit_the_chunks_read_are_the_hit(self):
        self.stored()
        for group, prefix in list(self.store.chunks)[:3]:
            self.store.memory.add((group, prefix))
        self.store.prefetch_works = False
        sim = self.run_one()
        self.assertEqual(sim.hits["a"], 24)

    @unittest.skipUnless(fake.HAVE_VLLM and CacheHitSource, "vLLM tells no media")
    def test_hits_are_counted_under_the_medium_that_they_came_from(self):
        for windows in groupings((), (10,)):
            self.store.chunks.clear()
            self.store.memory = None
            self.stored(windows)
            full = [key for key in self.store.chunks if key[0] == len(windows)]
            s3 = {"remote_url": "s3://bucket"}
            for memory, settings, sources in (
                    (None, {}, {"disk": 56}),
                    (None, s3, {"external_unspecified": 56}),
                    (full[:3], {}, {"host": 24, "disk": 32}),
                    (self.store.chunks, s3, {"host": 56})):
                self.store.memory = None if memory is None else set(memory)
                with self.subTest(windows=windows, sources=sources), \
                        mock.patch.object(fake.Config, "extra", settings):
                    sim = self.run_one(windows)
                    self.assertEqual(sim.hits["a"], 56)
                    self.assertEqual(sim.sources, sources)

    def test_chunks_deleted_by_another_host_are_computed(self):
        for windows in groupings((), (10,), (10, 16)):
            for gone in range(7):
                with self.subTest(windows=windows, gone=gone):
                    self.store.chunks.clear()
                    self.store.lost.clear()
                    self.store.memory = None
                    self.stored(windows)
                    full = [key for key in self.store.chunks
                            if key[0] == len(windows)]
                    self.store.lost.add(full[gone])
                    sim = self.run_one(windows)
                    self.assertLessEqual(sim.hits["a"], gone * CHUNK)
                    if not windows:
                        self.assertEqual(sim.hits["a"], gone * CHUNK)

    def waiting(self):
        """Return a simulation in which request "a" waits for a prefetch that never ends."""
        self.stored()
        self.store.prefetch_works = False
        sim = self.sim()
        sim.add("a", prompt(1, 61))
        for _ in range(3):
            sim.step()
        return sim

    def test_a_request_that_ends_while_waiting_leaves_no_state(self):
        sim = self.waiting()
        sim.abort("a")
        sim.run()
        sim.check_rest()

    def test_a_reset_while_a_request_waits(self):
        sim = self.waiting()
        self.assertTrue(sim.connector.reset_cache())
        sim.run()
        self.assertEqual(sim.hits["a"], 0)
        sim.check_rest()

    def test_async_loading_looks_up_before_scheduling(self):
        self.stored()
        settings = {"enable_async_loading": True, "local_cpu": True}
        with mock.patch.object(fake.Config, "extra", settings):
            sim = self.sim()
            sim.add("a", prompt(1, 61))
        self.assertEqual(self.store.lookups, 2)
        sim.run()
        self.assertEqual(sim.hits["a"], 56)

    def test_async_loading_reports_the_hit_if_the_prefetch_fails(self):
        self.stored()
        self.store.shared = False
        self.store.prefetch_works = False
        sim = self.run_one()
        self.assertEqual(len(sim.engine.prefetched), 1)
        self.assertEqual(sim.hits["a"], 56)


class Failures(Case):
    def _store(self, windows):
        sim = self.sim(windows=windows)
        sim.add("a", prompt(1, 61))
        sim.run()

    def test_a_failed_load_keeps_the_good_prefix_of_a_single_group(self):
        self._store(())
        sim = self.sim()
        sim._fails = lambda io, chunk: chunk in (3, 5)
        request = sim.add("a", prompt(1, 61))
        sim.run()
        self.assertEqual(sim.hits["a"], 3 * CHUNK)
        self.assertEqual(request.num_output_tokens, 4)
        self.assertEqual(self.store.lookups, 2)
        sim.check_rest()

    def test_a_failed_load_of_several_groups_starts_over(self):
        self._store((10,))
        sim = self.sim(windows=(10,))
        sim._fails = lambda io, chunk: (io, chunk) == (1, 3)
        request = sim.add("a", prompt(1, 61))
        sim.run()
        self.assertEqual(sim.hits["a"], 0)
        self.assertEqual(request.num_output_tokens, 4)
        self.assertEqual(self.store.lookups, 2)
        sim.check_rest()

    def test_nothing_good_at_all(self):
        for windows in groupings((), (10,), ALONE):
            self.store.chunks.clear()
            self._store(windows)
            sim = self.sim(windows=windows, fail_rate=1.0)
            sim.add("a", prompt(1, 61))
            sim.run()
            self.assertEqual(sim.hits["a"], 0)
            sim.check_rest()

    def test_a_failed_load_of_a_single_sliding_group_starts_over(self):
        self._store(ALONE)
        sim = self.sim(windows=ALONE)
        sim._fails = lambda io, chunk: chunk == 1
        request = sim.add("a", prompt(1, 61))
        other = sim.add("b", prompt(2, 61))
        sim.run()
        self.assertEqual(sim.hits["a"], 0)
        self.assertEqual((request.num_output_tokens, other.num_output_tokens), (4, 4))
        sim.check_rest()

    def policy(self, argv, **transfer):
        with mock.patch.object(sys, "argv", ["serve"] + argv):
            with self.assertLogs("vllm.kvtier") as said:
                log.info("start")
                sim = self.sim(**transfer)
        recomputes = sim.scheduler.recompute_kv_load_failures
        self.assertEqual(any("set to" in line for line in said.output),
                         recomputes and "recompute" not in transfer.values())
        self.assertEqual(any("ends with an error" in line for line in said.output),
                         not recomputes)
        return recomputes

    def test_a_policy_that_the_command_line_leaves_at_its_default_is_recompute(self):
        fail = {"kv_load_failure_policy": "fail"}
        for argv in (["--kv-transfer-config", "{}"], ["--kv_transfer_config={}"],
                     ["--kv-transfer-config.kv_connector", "KVTierConnector"]):
            self.assertTrue(self.policy(argv, **fail), argv)

    def test_an_explicit_policy_stays(self):
        fail = {"kv_load_failure_policy": "fail"}
        for argv in (["--kv-transfer-config", json.dumps(fail)],
                     ["--kv-transfer-config.kv_load_failure_policy", "fail"],
                     ["--kv-transfer-config.kv-load-failure-policy=fail"],
                     ["--config", "vllm.yaml"],  # the policy is in the file
                     ["--config", "vllm.yaml",
                      "--kv-transfer-config.kv_connector", "KVTierConnector"],
                     []):  # a program that calls LLM() sets the policy
            self.assertFalse(self.policy(argv, **fail), argv)
        self.assertTrue(self.policy([], kv_load_failure_policy="recompute"))

    def test_abort_while_loading_gives_the_blocks_back(self):
        for windows in groupings((), (10,), ALONE):
            self.store.chunks.clear()
            self._store(windows)
            sim = self.sim(windows=windows)
            sim.add("a", prompt(1, 61))
            self.abort_while_loading(sim)


class Unusable(Case):
    def test_a_worker_that_cannot_use_its_memory_ends_promises(self):
        first = self.sim()
        first.add("a", prompt(1, 61))
        first.run()
        stored = dict(self.store.chunks)
        no_driver = OSError(errno.ENODEV, "no driver")
        for error in (no_driver, ValueError("strides")):
            with mock.patch.object(fake.Engine, "set_view", side_effect=error):
                with self.assertLogs("vllm.kvtier", "WARNING") as said:
                    sim = self.sim()
                    for name, seed in (("a", 1), ("b", 2), ("c", 1)):
                        request = sim.add(name, prompt(seed, 61))
                        sim.run()
                        self.assertEqual(sim.hits[name], 0)
                        self.assertEqual(request.num_output_tokens, 4)
                        sim.scheduler.reset_prefix_cache()
            self.assertEqual(sum("nothing is" in line for line in said.output), 2,
                             said.output)
            self.assertEqual(self.store.chunks, stored)
            self.assertEqual(sim.engine.loading, [])
            lookups = self.store.lookups
            sim.add("d", prompt(1, 61))
            sim.run()
            self.assertEqual(self.store.lookups, lookups)
            sim.check_rest()


if __name__ == "__main__":
    unittest.main()
