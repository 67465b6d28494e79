# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler with the connector: overlapping batches, aborts, preemption,
failed loads, hybrid attention.  Needs vLLM, no model and no GPU."""

import os
import random
import sys
import tempfile
import unittest
from unittest import mock

import fake
from kvtier import _lib

if fake.HAVE_VLLM:
    from kvtier.vllm_worker import Worker
    import vllm_sim
    from vllm_sim import CHUNK, Sim
    SEVERAL_GROUPS = vllm_sim.KVConnectorTransferResults is not None


def groupings(*windows):
    """Those of the lists of sliding windows that kvtier can do in this vLLM."""
    return [one for one in windows if not one or SEVERAL_GROUPS]


def prompt(seed, n, shared=0):
    """n tokens, of which the first `shared` are everybody's."""
    common = random.Random(1)
    own = random.Random(seed + 100)
    return [common.randrange(3, 1000) for _ in range(shared)] + [
        own.randrange(3, 1000) for _ in range(n - shared)]


@unittest.skipUnless(fake.HAVE_VLLM, "vLLM is not installed")
class Case(unittest.TestCase):
    def setUp(self):
        self.store = fake.Store(8)
        self.addCleanup(fake.install(_lib, self.store))

    def sim(self, windows=(), **kwargs):
        if windows and not SEVERAL_GROUPS:
            self.skipTest("no hybrid attention with this vLLM")
        return Sim(self.store, windows=windows, **kwargs)


class Basics(Case):
    def test_a_restart_finds_what_was_stored(self):
        for windows in groupings((), (10,), (10, 16)):
            with self.subTest(windows=windows):
                self.store.chunks.clear()
                first = self.sim(windows=windows)
                first.add("a", prompt(1, 61))
                first.run()
                self.assertEqual(first.hits["a"], 0)
                again = self.sim(windows=windows)
                again.add("a", prompt(1, 61))
                again.run()
                self.assertEqual(again.hits["a"], 56)
                again.check_rest()
                self.assertEqual(again.tokens["a"], first.tokens["a"])

    def test_whole_prompt_hit_leaves_one_token(self):
        first = self.sim()
        first.add("a", prompt(1, 64))
        first.run()
        again = self.sim()
        again.add("a", prompt(1, 64))
        again.run()
        self.assertEqual(again.hits["a"], 56)

    def test_only_what_the_engine_lacks_is_loaded(self):
        first = self.sim()
        first.add("a", prompt(1, 61))
        first.run()
        again = self.sim()
        again.add("short", prompt(1, 61)[:22])
        again.run()
        loads = []
        load = again.engine.load
        again.engine.load = lambda ios: loads.append(ios) or load(ios)
        again.add("a", prompt(1, 61))
        again.run()
        # 20 tokens (5 blocks) are local: block 0 of the chunk at 16 is skipped.
        (group, chunks, blocks, _), = loads[0]
        ids = memoryview(blocks).cast("i").tolist()
        self.assertEqual(len(chunks) // fake.CHUNK_BYTES, 5)
        self.assertEqual(ids[0], -1)
        self.assertTrue(all(block > 0 for block in ids[1:]))

    def test_generated_tokens_are_stored_when_asked(self):
        self.addCleanup(setattr, fake.Config, "extra", {})
        for save, expected in ((False, 2), (True, 5)):
            self.store.chunks.clear()
            fake.Config.extra = {"save_decode_cache": save}
            for depth in (1, 2):
                sim = self.sim(depth=depth)
                sim.add("a", prompt(1, 20), max_tokens=24)
                sim.run()
                sim.check_rest()
                self.assertEqual(len(self.store.chunks), expected)

    def test_sliding_groups_store_only_what_can_end_a_hit(self):
        sim = self.sim(windows=(9,))
        sim.add("a", prompt(1, 70))  # steps of 32, 32 and 6 tokens
        sim.run()
        groups = [key[1] for key in self.store.chunks]
        self.assertEqual(groups.count(1), 8)
        self.assertEqual(groups.count(0), 2)

    def test_prompt_shorter_than_a_chunk_is_not_looked_up(self):
        sim = self.sim()
        sim.add("a", prompt(1, 7))
        sim.run()
        self.assertEqual((self.store.lookups, len(self.store.chunks)), (0, 0))

    def test_skip_save_and_tags_are_obeyed(self):
        sim = self.sim()
        sim.add("a", prompt(1, 30),
                kv_transfer_params={"lmcache.skip_save": True})
        sim.run()
        self.assertEqual(len(self.store.chunks), 0)
        sim = self.sim()
        seen = []
        seq = sim.connector._scheduler._engine.seq
        sim.connector._scheduler._engine.seq = (
            lambda *args: seen.append(args[-1]) or seq(*args))
        sim.engine.before_store = lambda ios: seen.append(ios[0][3])
        sim.add("a", prompt(1, 30),
                kv_transfer_params={"lmcache.tag.user": "eve",
                                    "lmcache.tag.x": 1})
        sim.run()
        self.assertEqual(seen, ["user%eve@x%1", "user%eve@x%1"])

    def test_min_retrieve_tokens(self):
        first = self.sim()
        first.add("a", prompt(1, 61))
        first.run()
        self.addCleanup(setattr, fake.Config, "extra", {})
        for least, hit in ((56, 56), (57, 0)):
            fake.Config.extra = {"min_retrieve_tokens": least}
            again = self.sim()
            again.add("a", prompt(1, 61))
            again.run()
            again.check_rest()
            self.assertEqual(again.hits["a"], hit)

    def test_unknown_yet_is_asked_again_and_known_is_remembered(self):
        sim = self.sim()
        self.store.answer = -1
        sim.add("a", prompt(1, 30))
        for _ in range(5):
            sim.step()
        self.assertEqual(self.store.lookups, 5)
        self.assertNotIn("a", sim.hits)
        self.store.answer = 0
        sim.run()
        self.assertEqual(sim.hits["a"], 0)
        # A request that waits for room is asked about in every step.
        before = self.store.lookups
        half = sim.connector._scheduler
        waiting = sim.add("b", prompt(2, 30))
        for _ in range(100):
            half.matched_tokens(waiting, 0)
        self.assertEqual(self.store.lookups - before, 1)
        sim.run()
        sim.check_rest()

    def test_reset_takes_effect_at_once(self):
        sim = self.sim()
        sim.add("a", prompt(1, 61))
        sim.run()
        self.assertTrue(sim.scheduler.reset_prefix_cache(reset_connector=True))
        sim.add("b", prompt(1, 61))
        sim.run()
        self.assertEqual(sim.hits["b"], 0)

    def test_reset_fails_loads_under_way_and_stops_saves(self):
        first = self.sim()
        first.add("a", prompt(1, 61))
        first.run()
        sim = self.sim()
        sim.add("a", prompt(1, 61))
        while not sim.engine.loading:
            sim._execute(sim.scheduler.schedule())
        self.assertTrue(sim.connector.reset_cache())
        sim.run()
        self.assertEqual(sim.hits["a"], 0)
        self.assertFalse([k for k in self.store.chunks if k[0] == 1])
        sim.check_rest()

    def test_consumer_does_not_store_and_producer_does_not_load(self):
        sim = self.sim(kv_role="kv_consumer")
        sim.add("a", prompt(1, 30))
        sim.run()
        self.assertFalse(self.store.chunks)
        sim = self.sim(kv_role="kv_producer")
        sim.add("a", prompt(1, 30))
        sim.run()
        self.assertEqual(len(self.store.chunks), 3)
        sim = self.sim(kv_role="kv_producer")
        sim.add("a", prompt(1, 30))
        sim.run()
        self.assertEqual(sim.hits["a"], 0)
        sim.check_rest()


class Waiting(Case):
    """What is to lie in host memory first: storage that other hosts delete from,
    or enable_async_loading."""

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

    def test_a_request_waits_and_is_promised_what_was_read(self):
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

    def test_what_is_in_memory_is_promised_at_once(self):
        self.stored()
        self.run_one()
        again = self.run_one()
        self.assertEqual(again.engine.prefetched, [])
        self.assertEqual(again.hits["a"], 56)

    def test_others_go_on_meanwhile(self):
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

    def test_a_late_answer_is_what_was_read_by_then(self):
        self.stored()
        for group, prefix in [key[1:] for key in list(self.store.chunks)[:3]]:
            self.store.memory.add((0, group, prefix))
        self.store.prefetch_works = False
        sim = self.run_one()
        self.assertEqual(sim.hits["a"], 24)

    def test_what_another_host_deleted_is_computed_without_a_failed_load(self):
        for windows in groupings((), (10,), (10, 16)):
            for gone in range(7):
                with self.subTest(windows=windows, gone=gone):
                    self.store.chunks.clear()
                    self.store.lost.clear()
                    self.store.memory = None
                    self.stored(windows)
                    full = [key for key in self.store.chunks
                            if key[1] == len(windows)]
                    self.store.lost.add(full[gone])
                    sim = self.run_one(windows)
                    self.assertLessEqual(sim.hits["a"], gone * CHUNK)
                    if not windows:
                        self.assertEqual(sim.hits["a"], gone * CHUNK)

    def test_a_request_that_ends_while_it_waits_leaves_nothing(self):
        self.stored()
        self.store.prefetch_works = False
        sim = self.sim()
        sim.add("a", prompt(1, 61))
        for _ in range(3):
            sim.step()
        sim.abort("a")
        sim.run()
        sim.check_rest()

    def test_a_reset_while_it_waits(self):
        self.stored()
        self.store.prefetch_works = False
        sim = self.sim()
        sim.add("a", prompt(1, 61))
        for _ in range(3):
            sim.step()
        self.assertTrue(sim.connector.reset_cache())
        sim.run()
        self.assertEqual(sim.hits["a"], 0)
        sim.check_rest()

    def test_async_loading_asks_before_its_turn(self):
        self.stored()
        settings = {"enable_async_loading": True, "local_cpu": True}
        with mock.patch.object(fake.Config, "extra", settings):
            sim = self.sim()
            sim.add("a", prompt(1, 61))
        self.assertEqual(self.store.lookups, 2)
        sim.run()
        self.assertEqual(sim.hits["a"], 56)

    def test_async_loading_promises_in_the_end_what_is_not_there(self):
        self.stored()
        self.store.shared = False
        self.store.prefetch_works = False
        sim = self.run_one()
        self.assertEqual(len(sim.engine.prefetched), 1)
        self.assertEqual(sim.hits["a"], 56)


class PartialChunks(Case):
    """With save_unfull_chunk: prompts whose end fills no chunk."""

    def setUp(self):
        super().setUp()
        self.settings(save_unfull_chunk=True)

    def settings(self, **extra):
        self.addCleanup(setattr, fake.Config, "extra", {})
        fake.Config.extra = extra

    def run_one(self, n, max_tokens=4, **kwargs):
        sim = self.sim(**kwargs)
        sim.add("a", prompt(1, n), max_tokens=max_tokens)
        sim.run()
        sim.check_rest()
        return sim

    def test_a_restart_finds_all_but_the_last_token(self):
        for windows in groupings((), (3,), (4,), (10,), (10, 16)):
            for n in (2, 3, 5, 8, 9, 20, 21, 25, 32, 61, 64, 65):
                with self.subTest(windows=windows, n=n):
                    self.store.chunks.clear()
                    first = self.run_one(n, windows=windows)
                    again = self.run_one(n, windows=windows)
                    self.assertEqual((first.hits["a"], again.hits["a"]), (0, n - 1))
                    self.assertEqual(again.tokens["a"], first.tokens["a"])

    def test_a_longer_prompt_finds_the_whole_chunks(self):
        for windows in groupings((), (10,)):
            self.store.chunks.clear()
            self.run_one(20, windows=windows)
            again = self.run_one(30, windows=windows)
            self.assertEqual(again.hits["a"], 16)

    def test_the_prompts_end_is_stored_once_and_none_of_what_follows(self):
        for save, expected in ((False, {8: 2, 4: 1}), (True, {8: 5, 4: 1})):
            self.store.chunks.clear()
            self.settings(save_unfull_chunk=True, save_decode_cache=save)
            for depth in (1, 2):
                sim = self.sim(depth=depth)
                sizes = {}
                store = sim.engine.store

                def count(ios):
                    for _, chunks, _, _ in ios:
                        for at in range(0, len(chunks), fake.CHUNK_BYTES):
                            n = fake.chunk_tokens(chunks[at:])
                            sizes[n] = sizes.get(n, 0) + 1
                    store(ios)
                sim.engine.store = count
                sim.add("a", prompt(1, 20), max_tokens=24)
                sim.run()
                sim.check_rest()
                if depth == 1:
                    self.assertEqual(sizes, expected)
                self.assertEqual(len(self.store.chunks), sum(expected.values()))

    def test_it_is_loaded_into_the_blocks_that_it_has(self):
        self.run_one(21)
        again = self.sim()
        loads = []
        load = again.engine.load
        again.engine.load = lambda ios: loads.append(ios) or load(ios)
        again.add("a", prompt(1, 21))
        again.run()
        (_, chunks, blocks, _), = loads[0]
        self.assertEqual([fake.chunk_tokens(chunks[at * fake.CHUNK_BYTES:])
                          for at in range(3)],
                         [8, 8, 5])
        self.assertEqual(len(blocks) // 4, 6)

    def test_one_that_cannot_be_loaded_is_computed(self):
        for windows, hit in zip(groupings((), (10,)), (16, 0)):
            self.store.chunks.clear()
            self.run_one(21, windows=windows)
            sim = self.sim(windows=windows)
            sim._fails = lambda io, chunk: chunk == (1 if io else 2)
            request = sim.add("a", prompt(1, 21))
            sim.run()
            sim.check_rest()
            self.assertEqual(sim.hits["a"], hit)
            self.assertEqual(request.num_output_tokens, 4)

    def test_aborted_while_it_is_loaded(self):
        self.run_one(21)
        sim = self.sim()
        sim.add("a", prompt(1, 21))
        while not sim.engine.loading:
            sim._execute(sim.scheduler.schedule())
        sim.abort("a")
        sim.run()
        sim.check_rest()

    def test_without_the_setting_there_are_none(self):
        self.run_one(21)
        self.assertEqual(len(self.store.chunks), 3)
        self.settings()
        self.assertEqual(self.run_one(21).hits["a"], 16)
        self.store.chunks.clear()
        self.run_one(21)
        self.assertEqual(len(self.store.chunks), 2)


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
        for windows in groupings((), (10,)):
            self.store.chunks.clear()
            self._store(windows)
            sim = self.sim(windows=windows, fail_rate=1.0)
            sim.add("a", prompt(1, 61))
            sim.run()
            self.assertEqual(sim.hits["a"], 0)
            sim.check_rest()

    def test_policy_left_at_its_default_becomes_recompute(self):
        sim = self.sim()
        transfer = sim.config.kv_transfer_config
        self.assertEqual(transfer.kv_load_failure_policy, "recompute")
        self.assertTrue(sim.scheduler.recompute_kv_load_failures)

    def test_policy_that_was_said_stays(self):
        with mock.patch.object(sys, "argv", [
                "serve", '{"kv_load_failure_policy": "fail"}']):
            sim = self.sim()
        self.assertFalse(sim.scheduler.recompute_kv_load_failures)

    def test_abort_while_loading_gives_the_blocks_back(self):
        for windows in groupings((), (10,)):
            self.store.chunks.clear()
            self._store(windows)
            sim = self.sim(windows=windows)
            sim.add("a", prompt(1, 61))
            while not sim.engine.loading:
                sim._execute(sim.scheduler.schedule())
            sim.abort("a")
            sim.run()
            sim.check_rest()


class Disorder(Case):
    """Many requests in little room, some aborted, some loads failing: whatever
    is saved is what its name says, whatever is loaded goes where it may, and
    every token is computed from the right KV."""

    def storm(self, depth, windows, fail_rate, seed, **kwargs):
        rand = random.Random(seed)
        self.store.chunks.clear()
        totals = [0, 0]
        for _ in range(2):
            sim = self.sim(n_blocks=36 * (1 + len(windows)), windows=windows,
                           depth=depth, seed=seed, fail_rate=fail_rate, **kwargs)
            for i in range(30):
                n = rand.randrange(5, 90)
                sim.add("r%d" % i, prompt(seed * 100 + i % 12, n,
                                          min(n, rand.choice((0, 16, 40)))),
                        max_tokens=rand.randrange(1, 24))
                for _ in range(rand.randrange(6)):
                    sim.step()
                if rand.random() < 0.25:
                    sim.abort("r%d" % rand.randrange(i + 1))
            sim.run()
            sim.check_rest()
            totals[0] += sum(hit > 0 for hit in sim.hits.values())
            totals[1] += sim.saved
        for (_, group, prefix), found in self.store.chunks.items():
            self.assertTrue(vllm_sim.is_stored_right(
                found, sim.expected.get(prefix) or self.known[prefix], group))
        self.assertTrue(all(totals))

    def setUp(self):
        super().setUp()
        self.known = {}
        if fake.HAVE_VLLM:
            expect = Sim._expect

            def remember(sim, tokens, **kwargs):
                expect(sim, tokens, **kwargs)
                self.known.update(sim.expected)
            Sim._expect = remember
            self.addCleanup(setattr, Sim, "_expect", expect)

    def test_one_batch_at_a_time(self):
        for seed in range(3):
            for windows in groupings((), (10,), (13, 30)):
                with self.subTest(seed=seed, windows=windows):
                    self.storm(1, windows, 0.0, seed)

    def test_overlapping_batches(self):
        for seed in range(3):
            for windows in groupings((), (10,), (13, 30)):
                with self.subTest(seed=seed, windows=windows):
                    self.storm(2, windows, 0.0, seed)

    def test_overlapping_batches_and_failing_loads(self):
        for seed in range(3):
            for windows in groupings((), (10,), (13, 30)):
                with self.subTest(seed=seed, windows=windows):
                    self.storm(2, windows, 0.3, seed)

    def test_vllms_second_model_runner(self):
        for windows in groupings((), (13, 30)):
            self.storm(2, windows, 0.1, 6, second_runner=True)

    def test_where_vllm_does_not_tell_the_blocks(self):
        for depth in (1, 2):
            for windows in groupings((), (10,), (13, 30)):
                with self.subTest(depth=depth, windows=windows):
                    self.storm(depth, windows, 0.1, 5, tell_blocks=False)

    def test_partial_chunks_too(self):
        self.addCleanup(setattr, fake.Config, "extra", {})
        for decode in (False, True):
            fake.Config.extra = {"save_unfull_chunk": True,
                                 "save_decode_cache": decode}
            for depth in (1, 2):
                for windows in groupings((), (10,), (13, 30)):
                    with self.subTest(decode=decode, depth=depth, windows=windows):
                        self.storm(depth, windows, 0.2, 8)
                        self.storm(depth, windows, 0.0, 9)
            for windows in groupings((), (10,)):
                self.storm(2, windows, 0.1, 10, tell_blocks=False)

    def test_saving_generated_tokens_too(self):
        self.addCleanup(setattr, fake.Config, "extra", {})
        fake.Config.extra = {"save_decode_cache": True}
        for depth in (1, 2):
            for windows in groupings((), (10,)):
                with self.subTest(depth=depth, windows=windows):
                    self.storm(depth, windows, 0.1, 7)


def have_library():
    try:
        _lib.lib()
    except OSError:
        return False
    return True


@unittest.skipUnless(fake.HAVE_VLLM and have_library(),
                     "vLLM or libkvtier.so is not there")
class Real(unittest.TestCase):
    """The same disorder over the real library and a directory."""

    def storm(self, folder, depth, windows, seed, **extra):
        rand = random.Random(seed)
        sim = Sim(None, n_blocks=36 * (1 + len(windows)), windows=windows,
                  depth=depth, seed=seed, extra=dict({
                      "chunk_size": CHUNK, "local_cpu": False,
                      "max_local_cpu_size": 0.0625,
                      "remote_url": "fs://localhost:0/" + folder}, **extra))
        for i in range(40):
            sim.add("r%d" % i, prompt(i % 15, rand.randrange(5, 90),
                                      rand.choice((0, 5))),
                    max_tokens=rand.randrange(1, 24))
            for _ in range(rand.randrange(6)):
                sim.step()
            if rand.random() < 0.25:
                sim.abort("r%d" % rand.randrange(i + 1))
        sim.run(at_most=100000)
        sim.check_rest()
        sim.close()
        return sum(hit > 0 for hit in sim.hits.values())

    def test_disorder_over_the_real_library(self):
        for windows in groupings((), (10,), (13, 30)):
            with tempfile.TemporaryDirectory() as folder:
                for depth in (1, 2, 2):
                    hits = self.storm(folder, depth, windows, depth)
                    self.assertGreater(hits, 0)

    def test_so_with_partial_chunks(self):
        for windows in groupings((), (10,), (13, 30)):
            with tempfile.TemporaryDirectory() as folder:
                for depth in (1, 2, 2):
                    hits = self.storm(folder, depth, windows, depth,
                                      save_unfull_chunk=True,
                                      save_decode_cache=depth == 1)
                    self.assertGreater(hits, 0)


    def test_so_while_another_host_deletes_files(self):
        for windows in groupings((), (10,), (13, 30)):
            with tempfile.TemporaryDirectory() as folder:
                for depth in (1, 2, 2):
                    hits = self.deleting_storm(folder, depth, windows)
                    self.assertGreater(hits, 0)

    def deleting_storm(self, folder, depth, windows):
        rand = random.Random(depth)
        schedule = Sim.step

        def step(sim):
            files = os.listdir(os.path.join(folder, "kvtier"))
            if files and rand.random() < 0.2:
                os.unlink(os.path.join(folder, "kvtier", rand.choice(files)))
            schedule(sim)
        failed = []
        check = Worker._fail
        with mock.patch.object(Sim, "step", step), mock.patch.object(
                Worker, "_fail",
                lambda *args: failed.append(args) or check(*args)):
            hits = self.storm(
                folder, depth, windows, depth, local_cpu=True,
                remote_url="fault://shared=1/fs://localhost:0/" + folder)
        self.assertEqual(failed, [])
        return hits


class Idle(Case):
    def test_a_step_with_nothing_to_do_calls_nothing(self):
        sim = self.sim()
        sim.add("a", prompt(1, 20), max_tokens=200)
        while len(sim.tokens["a"]) < 60:
            sim.step()
        half = sim.connector._scheduler
        for engine in (half._engine, sim.engine):
            engine.calls = 0
        half._stats._active = sim.worker._worker._stats._active = False
        for _ in range(100):
            sim.step()
        self.assertEqual((half._engine.calls, sim.engine.calls), (0, 0))
        self.assertFalse(half._saving)


if __name__ == "__main__":
    unittest.main()
