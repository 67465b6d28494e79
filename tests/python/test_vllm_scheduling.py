# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler with the connector: lookups, loads, saves, resets, partial chunks and
statistics.  Needs vLLM, no model and no GPU."""

import unittest
from unittest import mock

import fake
from vllm_case import ALONE, Case, groupings, prompt

if fake.HAVE_VLLM:
    from kvtier import vllm_digest, vllm_stats
    import vllm_sim


class Basics(Case):
    def test_a_restart_finds_stored_chunks(self):
        for windows in groupings((), (10,), (10, 16), ALONE):
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

    def test_only_absent_tokens_are_loaded(self):
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
        # vLLM holds 20 tokens (5 blocks): the load skips block 0 of the chunk at token 16.
        (group, chunks, blocks, _), = loads[0]
        ids = memoryview(blocks).cast("i").tolist()
        self.assertEqual(len(chunks) // fake.CHUNK_BYTES, 5)
        self.assertEqual(ids[0], -1)
        self.assertTrue(all(block > 0 for block in ids[1:]))

    def test_generated_tokens_are_stored_if_configured(self):
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

    def test_sliding_groups_store_only_possible_ends_of_a_hit(self):
        sim = self.sim(windows=(9,))
        sim.add("a", prompt(1, 70))  # steps of 32, 32 and 6 tokens
        sim.run()
        groups = [group for group, _ in self.store.chunks]
        self.assertEqual(groups.count(1), 8)
        self.assertEqual(groups.count(0), 2)

    def test_chunks_of_a_hit_are_not_stored_again(self):
        """Otherwise a load would prolong the life of the chunks."""
        sim = self.sim(windows=(20,))
        sim.add("a", prompt(1, 64))
        sim.run()
        sim.scheduler.reset_prefix_cache()
        seen = []
        sim.engine.before_store = seen.extend
        sim.add("b", prompt(1, 64))
        sim.run()
        sim.check_rest()
        self.assertEqual([(io[0], len(io[1]) // fake.CHUNK_BYTES) for io in seen],
                         [(0, 1), (1, 1)])  # the hit lacks the last token

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

    def test_max_offload_tokens_limits_the_saved_tokens(self):
        self.addCleanup(setattr, fake.Config, "extra", {})
        for decoded in (False, True):
            fake.Config.extra = {"save_decode_cache": decoded}
            for most, saved in ((0, 0), (7, 0), (8, 1), (20, 2), (30, 3),
                                (99, 4 if decoded else 3)):
                with self.subTest(decoded=decoded, most=most):
                    self.store.chunks.clear()
                    sim = self.sim()
                    sim.add("a", prompt(1, 30), max_tokens=9,
                            kv_transfer_params={"max_offload_tokens": most})
                    sim.run()
                    sim.check_rest()
                    self.assertEqual(len(self.store.chunks), saved)

    def test_max_load_tokens_limits_the_tokens_beyond_vllms_own_hit(self):
        first = self.sim()
        first.add("a", prompt(1, 61))
        first.run()
        for most, hit in ((0, 0), (7, 0), (8, 8), (31, 24), (56, 56), (99, 56)):
            again = self.sim()
            again.add("a", prompt(1, 61), kv_transfer_params={"max_load_tokens": most})
            again.run()
            again.check_rest()
            self.assertEqual(again.hits["a"], hit)
            self.assertEqual(again.tokens["a"], first.tokens["a"])
        again = self.sim()
        again.add("short", prompt(1, 61)[:22])
        again.run()
        again.add("a", prompt(1, 61), kv_transfer_params={"max_load_tokens": 20})
        again.run()
        again.check_rest()
        self.assertEqual(again.hits["a"], 40)  # vLLM has 20 tokens

    def test_a_request_with_a_bad_control_is_neither_looked_up_nor_stored(self):
        for bad in ({"max_load_tokens": "8"}, {"max_offload_tokens": -1},
                    {"pin_seconds": 72001}, {"pin_seconds": 1.5}, {"lmcache.ttl": 0},
                    {"lmcache.ttl": 15552001}, {"lmcache.ttl": "60"}, {"lmcache.ttl": True}):
            sim = self.sim()
            with self.assertLogs("vllm.kvtier") as logs:
                sim.add("a", prompt(1, 30), kv_transfer_params=bad)
                sim.run()
            self.assertIn(next(iter(bad)), logs.output[0])
            self.assertEqual((self.store.lookups, len(self.store.chunks)), (0, 0))

    def test_a_request_names_the_time_to_live_of_its_chunks(self):
        self.addCleanup(setattr, fake.Config, "extra", {})
        fake.Config.extra = {"save_unfull_chunk": True}
        for params, ttl in (({"lmcache.ttl": 60}, 60), ({"lmcache.ttl": 15552000}, 15552000),
                            ({}, 0), (None, 0)):
            seen = []
            self.store.chunks.clear()
            sim = self.sim(windows=[20])
            sim.engine.before_store = seen.extend
            sim.add("a", prompt(1, 30), kv_transfer_params=params)
            sim.run()
            self.assertEqual({io[4] for io in seen}, {ttl})
            self.assertGreater(len(seen), 2)  # whole chunks and the partial chunk

    def test_the_server_limits_all_requests(self):
        self.addCleanup(setattr, fake.Config, "extra", {})
        fake.Config.extra = {"max_offload_tokens": 40, "max_load_tokens": 20}
        for hit in (0, 16):
            sim = self.sim()
            sim.add("a", prompt(1, 61), kv_transfer_params={"max_offload_tokens": 50})
            sim.run()
            sim.check_rest()
            self.assertEqual((sim.hits["a"], len(self.store.chunks)), (hit, 5))

    def test_pin_seconds_pins_what_a_hit_needs(self):
        self.addCleanup(setattr, fake.Config, "extra", {})
        fake.Config.extra = {"max_pinned_size": 1, "save_unfull_chunk": True}
        sim = self.sim(windows=[20])
        sim.add("other", prompt(2, 61))
        sim.run()
        self.assertEqual(self.store.pins, {})
        sim.add("a", prompt(1, 61), kv_transfer_params={"pin_seconds": 60})
        sim.run()
        while sim.connector.has_pending_push_work():  # vLLM before 0.32 does not ask
            sim.step()
        again = self.sim(windows=[20])
        again.add("a", prompt(1, 61))
        again.run()
        self.assertEqual(again.hits["a"], 60)
        # 7 whole chunks and the partial chunk, and the last 4 in the window of 20 tokens.
        self.assertEqual(sorted(group for group, _ in self.store.pins), [0] * 4 + [1] * 8)
        self.assertTrue(set(self.store.pins.values()) <= {66, 67})
        self.store.chunks = {key: value for key, value in self.store.chunks.items()
                             if key in self.store.pins}
        last = self.sim(windows=[20])
        last.add("a", prompt(1, 61))
        last.run()
        self.assertEqual(last.hits["a"], 60)

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

    def test_second_use_stores_what_an_earlier_request_used(self):
        self.addCleanup(setattr, fake.Config, "extra", {})
        fake.Config.extra = {"store_policy": "second_use"}
        sim = self.sim()
        for name, tokens, stored in (
                ("first", prompt(1, 61), 0), ("other", prompt(2, 61), 0),
                ("longer", prompt(1, 45) + prompt(3, 40), 5),  # 45 tokens: 5 whole chunks
                ("again", prompt(1, 45) + prompt(3, 40), 10),
                ("first again", prompt(1, 61), 12)):
            sim.add(name, tokens)
            sim.run()
            sim.scheduler.reset_prefix_cache()
            self.assertEqual(len(self.store.chunks), stored, name)
        sim.check_rest()
        self.assertEqual([sim.hits[name] for name in ("longer", "again", "first again")],
                         [0, 40, 40])

    def test_second_use_counts_partial_chunks_and_answers(self):
        self.addCleanup(setattr, fake.Config, "extra", {})
        fake.Config.extra = {"store_policy": "second_use", "save_unfull_chunk": True,
                             "save_decode_cache": True}
        sim = self.sim()
        for name, stored in (("first", 0), ("second", 4 + 1 + 4), ("third", 4 + 1 + 4)):
            sim.add(name, prompt(1, 35), max_tokens=32)
            sim.run()
            sim.scheduler.reset_prefix_cache()
            self.assertEqual(len(self.store.chunks), stored, name)
        sim.check_rest()

    def test_an_undecided_lookup_is_repeated(self):
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
        # vLLM looks a waiting request up in every step: kvtier makes no sequence again.
        seqs = self.store.seqs
        half = sim.connector._scheduler
        waiting = sim.add("b", prompt(2, 30))
        for _ in range(100):
            self.assertEqual(half.matched_tokens(waiting, 0), (0, False))
        self.assertEqual(self.store.seqs, seqs + 1)
        sim.run()
        sim.check_rest()

    def test_a_preempted_load_does_not_wait_for_blocks_of_a_failed_load(self):
        """vLLM reserves blocks for request a, whose load failed; request c is ahead."""
        self.addCleanup(setattr, fake.Config, "extra", {})
        fake.Config.extra = {"save_decode_cache": True}
        first = self.sim()
        for name, n in (("a", 92), ("c", 37)):
            first.add(name, prompt(ord(name), n))
        first.run()
        sim = self.sim(n_blocks=41)
        sim.add("b", prompt(1, 25), max_tokens=120)
        with mock.patch.object(sim, "_end_loads"):
            sim.step()
            sim.add("a", prompt(ord("a"), 92), max_tokens=1)
            sim.add("c", prompt(ord("c"), 37), max_tokens=60)
            while len(sim.tokens["b"]) < 38:
                sim.step()
        for load, fails in zip(list(sim.engine.loading), (True, False), strict=True):
            sim.engine.complete(load, lambda io, chunk, fails=fails: fails)
        while sim.scheduler.running:
            sim.step()
        self.assertEqual(set(sim.scheduler.requests), {"a", "c"})  # b has taken the room of c
        sim.run()
        sim.check_rest()

    def test_only_the_scheduler_identifies_the_weights(self):
        for found, weights in (("digest:1", ""), (None, "random 1")):
            with mock.patch.object(vllm_digest, "fingerprint",
                                   return_value=found) as asked:
                sim = self.sim()
            self.assertEqual(asked.call_count, 1)
            engine = sim.connector._scheduler._engine
            self.assertEqual(engine.model.fingerprint, (found or "").encode())
            self.assertEqual(engine.weights, weights)
            self.assertEqual((sim.engine.model.fingerprint, sim.engine.weights),
                             (b"", ""))
            sim.close()

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
        stored = set(self.store.chunks)
        self.assertTrue(sim.connector.reset_cache())
        sim.run()
        self.assertEqual(sim.hits["a"], 0)
        self.assertEqual(set(self.store.chunks), stored)
        sim.check_rest()

    def test_a_reset_takes_nothing_from_others(self):
        first, other = self.sim(), self.sim()
        for sim in (first, other):
            sim.add("a", prompt(1, 61))
            sim.run()
        self.assertEqual((first.hits["a"], other.hits["a"]), (0, 56))
        self.assertTrue(first.reset())
        # vLLM 0.28 does not cache the block that follows a load.
        for sim, hits in ((first, (0,)), (other, (60, 56)), (self.sim(), (56,))):
            sim.add("b", prompt(1, 61))
            sim.run()
            self.assertIn(sim.hits["b"], hits)
        first.add("c", prompt(1, 61))
        first.run()
        self.assertEqual(first.hits["c"], 60)  # KV of request "b", in vLLM's own blocks

    def test_queued_stores_at_a_reset_have_the_new_weights(self):
        sim = self.sim()
        sim.add("a", prompt(1, 61))
        self.assertIsNotNone(sim.connector._scheduler._requests)
        self.assertEqual(sim.connector.get_num_new_matched_tokens(
            sim.scheduler.requests["a"], 0), (0, False))
        self.assertTrue(sim.reset())
        sim.run()
        self.assertEqual(len(self.store.chunks), 7)
        for (group, prefix), found in self.store.chunks.items():
            self.assertEqual(sim.expected[prefix][1], 1)
            self.assertTrue(vllm_sim.is_stored_right(
                found, *sim.expected[prefix], group))
        sim.check_rest()

    def test_a_step_under_way_at_a_reset_keeps_its_weights(self):
        sim = self.sim(depth=2)
        sim.add("a", prompt(1, 61))
        sim.step()  # scheduled, not executed
        self.assertEqual((len(sim.flying), len(self.store.chunks)), (1, 0))
        self.assertTrue(sim.reset())
        sim.run()
        weights = sorted(sim.expected[prefix][1] for _, prefix in self.store.chunks)
        self.assertEqual(weights, [0] * 4 + [1] * 7)
        for (group, prefix), found in self.store.chunks.items():
            self.assertTrue(vllm_sim.is_stored_right(
                found, *sim.expected[prefix], group))
        sim.check_rest()

    def test_a_running_request_stores_nothing_after_a_reset(self):
        for depth in (1, 2):
            self.store.chunks.clear()
            sim = self.sim(depth=depth)
            sim.add("a", prompt(1, 61))
            sim.step()
            self.assertTrue(sim.connector.reset_cache())  # the request continues
            before = len(sim.flying)
            sim.run()
            self.assertEqual(len(self.store.chunks), 4, before)
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


class PartialChunks(Case):
    """save_unfull_chunk: prompts that end with a partial chunk."""

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

    def test_the_end_of_the_prompt_is_stored_once(self):
        for save, expected in ((False, {8: 2, 4: 1}), (True, {8: 5, 4: 1})):
            self.store.chunks.clear()
            self.settings(save_unfull_chunk=True, save_decode_cache=save)
            for depth in (1, 2):
                sim = self.sim(depth=depth)
                sizes = {}
                store = sim.engine.store

                def count(ios):
                    for _, chunks, *_ in ios:
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

    def test_a_partial_chunk_is_loaded_into_its_blocks(self):
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

    def test_aborted_during_a_load(self):
        self.run_one(21)
        sim = self.sim()
        sim.add("a", prompt(1, 21))
        self.abort_while_loading(sim)

    def test_without_the_setting_there_are_none(self):
        self.run_one(21)
        self.assertEqual(len(self.store.chunks), 3)
        self.settings()
        self.assertEqual(self.run_one(21).hits["a"], 16)
        self.store.chunks.clear()
        self.run_one(21)
        self.assertEqual(len(self.store.chunks), 2)


class Statistics(Case):
    def test_vllm_gets_the_counts_of_scheduler_and_worker(self):
        with mock.patch.object(vllm_stats, "_PERIOD_S", 0):
            first = self.sim()
            first.add("a", prompt(1, 61))
            first.run()
            sim = self.sim()
            sim._fails = lambda io, chunk: chunk == 5
            sim.add("a", prompt(1, 61))
            while not sim.engine.loading:
                sim._execute(sim.scheduler.schedule())
            sim._execute(sim.scheduler.schedule())
            self.assertEqual(total(sim.stats, "loads_pending"), 7)
            sim.run()
        self.assertEqual(total(first.stats, "hit_tokens"), 0)
        self.assertEqual({name: total(sim.stats, name) for name in (
            "hit_tokens", "load_failed", "loads_pending")},
            {"hit_tokens": 56, "load_failed": 1, "loads_pending": 0})


def total(stats, name):
    return sum(one.get(name, 0) for one in stats)


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
        self.assertFalse(half._saves._open)


if __name__ == "__main__":
    unittest.main()
