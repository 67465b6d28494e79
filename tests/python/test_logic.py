# SPDX-License-Identifier: Apache-2.0
"""Unit tests of the connector's parts, without vLLM."""

import logging
import math
import os
import pickle
import sys
import tempfile
import unittest
from array import array
from types import SimpleNamespace as Object
from unittest import mock

import fake

fake.stub_vllm()

from kvtier import (  # noqa: E402
    _lib,
    vllm_extra,
    vllm_log,
    vllm_meta,
    vllm_model,
    vllm_saves,
    vllm_stats,
)
from kvtier.vllm_scheduler import Scheduler  # noqa: E402
from kvtier.vllm_worker import Worker  # noqa: E402


def request(name="a", n=61, **more):
    about = dict(
        request_id=name, prompt_token_ids=list(range(n)), num_prompt_tokens=n,
        num_tokens=n, num_computed_tokens=0, all_token_ids=list(range(n)),
        kv_transfer_params=None)
    about.update(more)
    return Object(**about)


def info(kind=_lib.GROUP_FULL, window=0, table=0):
    group = vllm_model.GroupInfo(table)
    group.kind, group.window = kind, window
    group.block_tokens, group.blocks_per_chunk = 4, 2
    group.n_heads, group.head_bytes, group.block_bytes = 1, 8, 32
    group.layout, group.layers, group.replicated = "l", ["x"], 0
    group.format = _lib.FORMAT_OPAQUE
    return group


def output(scheduled=(), blocks=None, finished=(), resumed=()):
    state = blocks and Object(get_block_ids=blocks.get)
    return Object(
        num_scheduled_tokens=dict(scheduled), finished_req_ids=set(finished),
        scheduled_new_reqs=[], kv_connector_block_state=state or Object(),
        scheduled_cached_reqs=Object(req_ids=[], new_block_ids=[],
                                     resumed_req_ids=set(resumed)))


class Halves(unittest.TestCase):
    def setUp(self):
        self.store = fake.Store(8)
        self.addCleanup(fake.install(_lib, self.store))
        self.infos = [info()]

    def scheduler(self, n_stages=1, **settings):
        engine = _lib.Engine(self.store.config(), _lib.ROLE_SCHEDULER,
                             [i.to_c() for i in self.infos], None)
        return Scheduler(engine, [self.infos] * n_stages, settings, True, True)

    def worker(self):
        engine = _lib.Engine(self.store.config(), _lib.ROLE_WORKER,
                             [i.to_c() for i in self.infos], None)
        worker = Worker(engine, self.infos, 16)
        worker._ready = True
        return worker

    def allocate(self, half, name, computed, hit, *tables):
        self.store.answer = hit
        req = request(name)
        got = half.matched_tokens(req, computed)
        half.allocated(req, Object(get_block_ids=lambda: tables), got[0])
        return req, half.build_meta(output())

    def test_nothing_to_do_is_one_small_object(self):
        half = self.scheduler()
        self.assertIs(half.build_meta(output()), vllm_meta.NOTHING)
        sent = pickle.dumps(vllm_meta.NOTHING)
        self.assertLess(len(sent), 64)
        self.assertIs(pickle.loads(sent), vllm_meta.NOTHING)

    def test_a_load_names_chunks_and_the_blocks_that_are_missing(self):
        half = self.scheduler()
        _, meta = self.allocate(half, "a", 20, 40, tuple(range(1, 16)))
        (name, ((group, chunks, blocks, tags),)), = meta.loads
        self.assertEqual((name, group, tags), ("a", 0, None))
        self.assertEqual(len(chunks), 3 * _lib.CHUNK_BYTES)
        self.assertEqual(array("i", [-1, 6, 7, 8, 9, 10]).tobytes(), blocks)
        self.assertIs(half.build_meta(output()), vllm_meta.NOTHING)

    def test_a_sliding_group_loads_its_window_only(self):
        self.infos = [info(), info(_lib.GROUP_SLIDING, 10, table=1)]
        half = self.scheduler()
        _, meta = self.allocate(half, "a", 0, 40, tuple(range(1, 16)),
                                (0,) * 7 + tuple(range(21, 29)))
        full, sliding = meta.loads[0][1]
        self.assertEqual(len(full[1]) // _lib.CHUNK_BYTES, 5)
        # The window of token 40 has 9 earlier tokens, in chunks 3 and 4; the first block of
        # chunk 3 is before the window.
        self.assertEqual(array("i", [0, 21, 22, 23]).tobytes(), sliding[2])

    def test_chunks_are_saved_when_their_last_token_is_computed(self):
        half = self.scheduler()
        self.store.answer = 0
        req = request()
        half.matched_tokens(req, 0)
        table = {"a": (list(range(1, 17)),)}
        saved = []
        for at, n in ((0, 7), (7, 1), (8, 30), (38, 23), (61, 1), (62, 1)):
            req.num_computed_tokens = at
            meta = half.build_meta(output({"a": n}, table))
            saved.append([len(io[1]) // _lib.CHUNK_BYTES for io in meta.saves])
        self.assertEqual(saved, [[], [1], [3], [3], [], []])
        self.assertFalse(half._saves._open)
        # After a preemption, the request saves all computed chunks again.
        req.num_computed_tokens = 0
        meta = half.build_meta(output({"a": 61}, table, resumed=["a"]))
        self.assertEqual(len(meta.saves[0][1]) // _lib.CHUNK_BYTES, 7)

    def saved_blocks(self, half, req, at, n, new=None, more=None, resumed=()):
        """Run a step of a vLLM that sends only new block ids; return the saved block ids."""
        req.num_computed_tokens = at
        step = output({"a": n}, resumed=resumed)
        if new:
            step.scheduled_new_reqs = [Object(req_id=name, block_ids=(new,))
                                       for name in ("unknown", "a")]
        else:
            step.scheduled_cached_reqs.req_ids = ["unknown", "a"]
            step.scheduled_cached_reqs.new_block_ids = [more and (more,)] * 2
        ids = array("i")
        for _, _, blocks, *_ in half.build_meta(step).saves:
            ids.frombytes(blocks)
        return ids.tolist()

    def test_blocks_that_vllm_names_once_are_kept(self):
        half = self.scheduler()
        self.store.answer = 0
        req = request()
        half.matched_tokens(req, 0)
        self.assertEqual(self.saved_blocks(half, req, 0, 16, new=[1, 2, 3, 4]),
                         [1, 2, 3, 4])
        self.assertEqual(self.saved_blocks(half, req, 16, 7, more=[5, 6]), [])
        self.assertEqual(self.saved_blocks(half, req, 23, 1), [5, 6])
        self.assertEqual(self.saved_blocks(half, req, 0, 24, more=[9, 8, 7, 6, 5, 4],
                                           resumed=["a"]), [9, 8, 7, 6, 5, 4])

    def test_a_partial_chunk_is_saved_with_all_its_blocks_or_not(self):
        self.infos = [info(_lib.GROUP_SLIDING, 2)]
        self.store.answer = 0
        # In the second step, the window begins in the partial chunk's first block (21 tokens)
        # or in the second block (23 tokens).
        for n, last, saved in ((21, 17, [5, 6]), (23, 22, [])):
            half = self.scheduler(save_unfull_chunk=True)
            req = request(n=n)
            half.matched_tokens(req, 0)
            self.saved_blocks(half, req, 0, last, new=[1, 2, 3, 4, 5, 6])
            self.assertEqual(self.saved_blocks(half, req, last, n - last), saved)

    def test_a_partial_chunk_is_saved_again_after_a_preemption(self):
        self.store.answer = 0
        half = self.scheduler(save_unfull_chunk=True)
        req = request(n=13)
        half.matched_tokens(req, 0)
        for _ in range(2):  # for vLLM's second model runner, the resumed request is a new one
            self.assertEqual(self.saved_blocks(half, req, 0, 13, new=[1, 2, 3, 4]), [1, 2, 3, 4])
        self.assertEqual(self.saved_blocks(half, req, 13, 1, more=None), [])

    def test_a_partial_chunk_beyond_max_offload_tokens_is_not_saved(self):
        self.store.answer = 0
        half = self.scheduler(save_unfull_chunk=True, max_offload_tokens=12)
        req = request(n=13)
        half.matched_tokens(req, 0)
        self.assertEqual(self.saved_blocks(half, req, 0, 13, new=[1, 2, 3, 4]), [1, 2])

    def test_blocks_of_an_incomplete_list_are_not_saved(self):
        self.store.answer = 0
        for new, saved in (([1, 2, 3], [1, 2]), (None, [])):
            half = self.scheduler()
            req = request()
            half.matched_tokens(req, 0)
            self.assertEqual(self.saved_blocks(half, req, 0, 16, new=new, more=[1, 2, 3, 4]),
                             saved)

    def test_no_more_is_saved_after_a_reset_or_an_unusable_worker(self):
        settings = {"save_decode_cache": True, "save_unfull_chunk": True}
        unusable = Object(kv_connector_worker_meta=vllm_meta.UnusableWorker(),
                          finished_recving=None)
        for end in (Scheduler.reset, lambda half: half.received(unusable)):
            self.store.answer = 0
            half = self.scheduler(**settings)
            req = request(n=13)
            half.matched_tokens(req, 0)
            self.assertEqual(self.saved_blocks(half, req, 0, 8, new=[1, 2]), [1, 2])
            req.num_computed_tokens = 8
            end(half)
            self.assertEqual(self.saved_blocks(half, req, 8, 5, more=[3, 4]), [])
            req.all_token_ids, req.num_tokens = list(range(16)), 16
            self.assertEqual(self.saved_blocks(half, req, 0, 16, more=[5, 6, 7, 8],
                                               resumed=["a"]), [])

    def test_generated_tokens_that_cannot_be_appended_are_not_saved(self):
        self.store.answer = 0
        half = self.scheduler(save_decode_cache=True)
        req = request(n=8)
        half.matched_tokens(req, 0)
        self.assertEqual(self.saved_blocks(half, req, 0, 8, new=[1, 2]), [1, 2])
        req.all_token_ids, req.num_tokens = list(range(16)), 16
        with mock.patch.object(half._requests["a"].seq, "append", side_effect=OSError("full")):
            with self.assertLogs("vllm.kvtier") as logs:
                self.assertEqual(self.saved_blocks(half, req, 15, 1, more=[3, 4]), [])
        self.assertIn("full", logs.output[0])
        req.all_token_ids, req.num_tokens = list(range(24)), 24
        self.assertEqual(self.saved_blocks(half, req, 23, 1, more=[5, 6]), [])

    def test_found_chunks_are_not_saved_again(self):
        half = self.scheduler()
        self.store.answer = 40
        req = request()
        self.assertEqual(half.matched_tokens(req, 16), (24, True))
        req.num_computed_tokens = 40
        meta = half.build_meta(output({"a": 21}, {"a": (list(range(1, 17)),)}))
        self.assertEqual([len(io[1]) // _lib.CHUNK_BYTES for io in meta.saves], [2, 2])
        half = self.scheduler()
        self.store.answer = 0
        half.matched_tokens(req, 16)
        meta = half.build_meta(output({"a": 21}, {"a": (list(range(1, 17)),)}))
        self.assertEqual([len(io[1]) // _lib.CHUNK_BYTES for io in meta.saves], [7])

    def test_a_failed_load_is_promised_nothing_more(self):
        half = self.scheduler()
        for name, failed, bad in (("a", {"a"}, ()), ("b", (), {7})):
            req, _ = self.allocate(half, name, 0, 40, tuple(range(1, 16)))
            half.received(Object(failed_recving=set(failed), finished_recving=None,
                                 invalid_block_ids=set(bad)))
            half.received(Object(failed_recving=set(), finished_recving={name},
                                 invalid_block_ids=set()))
            for _ in range(2):  # vLLM has no room
                self.assertEqual(half.matched_tokens(req, 0), (0, False))
            half.finished(req)
        self.assertEqual((self.store.seqs, self.store.leased), (0, set()))

    def load(self, half, name, fails=False):
        """Load blocks for a request, which vLLM has not started."""
        req, _ = self.allocate(half, name, 0, 40, tuple(range(1, 16)))
        half.received(Object(failed_recving={name} if fails else None, finished_recving={name},
                             invalid_block_ids=set()))
        return req

    def ask(self, half, *requests):
        """Return the number of tokens to load for each request, in one step."""
        answers = [half.matched_tokens(req, 0) for req in requests]
        half.build_meta(output())
        self.assertTrue(all(load == bool(n) for n, load in answers))
        return [n for n, _ in answers]

    def test_a_request_without_room_lets_loaded_requests_pass(self):
        half = self.scheduler()
        big = request("big")
        self.store.answer = 40
        for started in (lambda req: half.allocated(req, None, 0), half.finished):
            self.assertEqual(self.ask(half, big), [40])  # vLLM has no room
            self.assertEqual(self.ask(half, big), [40])
            req = self.load(half, "a")
            for _ in range(2):
                self.assertEqual(self.ask(half, big), [None])
            started(req)
            self.assertEqual(self.ask(half, big), [40])
            half.finished(req)
            preempted = request("preempted")
            self.assertEqual(self.ask(half, preempted), [40])
            half.allocated(preempted, None, 0)
            req = self.load(half, "b")
            self.assertEqual(self.ask(half, preempted), [40])
            half.finished(preempted)
            half.finished(req)

    def test_no_request_passes_a_request_that_lets_loaded_requests_pass(self):
        half = self.scheduler()
        self.store.answer = 40
        big, loads, computes = request("big"), request("loads"), request("computes")
        computes.skip_reading_prefix_cache = True
        self.assertEqual(self.ask(half, big), [40])  # vLLM has no room
        req = self.load(half, "a")
        self.assertEqual(self.ask(half, loads, big, computes), [40, None, None])
        half.allocated(loads, None, 0)
        self.assertEqual(half.matched_tokens(big, 0), (None, False))
        half.allocated(req, None, 0)  # vLLM starts the loaded request in the same step
        self.assertEqual(self.ask(half, loads, computes), [None, None])
        # vLLM may pass over a request without a question: its adapter has no place.
        self.assertEqual(self.ask(half, loads, computes), [40, 0])

    def test_a_request_without_an_answer_holds_back_no_request(self):
        half = self.scheduler()
        undecided = request("undecided")
        self.store.answer = -1
        self.assertEqual(self.ask(half, undecided), [None])
        self.load(half, "a")
        self.store.answer = -1
        self.assertEqual(half.matched_tokens(undecided, 0), (None, False))
        self.store.answer = 40
        self.assertEqual(self.ask(half, request("loads")), [40])

    def test_a_request_without_room_lets_a_request_pass_whose_load_failed(self):
        """vLLM reserves blocks for the failed load, and the load ahead must leave them free."""
        half = self.scheduler()
        self.store.answer = 40
        loads, computes, later = request("loads"), request("computes"), request("later")
        computes.skip_reading_prefix_cache = later.skip_reading_prefix_cache = True
        failed = self.load(half, "a", fails=True)
        self.assertEqual(self.ask(half, loads, failed), [40, 0])  # vLLM has no room
        self.assertEqual(self.ask(half, computes, loads, later, failed), [0, None, None, 0])
        # With MultiConnector, another connector may load chunks for the request.
        self.assertEqual(self.ask(half, computes, later, failed), [None, None, 0])
        loaded = self.load(half, "b")
        self.assertEqual(self.ask(half, loads, failed), [None, None])
        half.allocated(loaded, None, 0)
        self.assertEqual(self.ask(half, loads, failed), [None, 0])
        half.allocated(failed, None, 0)
        self.assertEqual(self.ask(half, loads, later), [40, 0])

    def load_by_another_connector(self, half, name, fails=False):
        req = request(name)
        half.matched_tokens(req, 0)
        half.allocated(req, Object(get_block_ids=lambda: ([1],)), 0)
        half.received(Object(failed_recving={name} if fails else None, finished_recving={name},
                             invalid_block_ids=set()))
        return req

    def test_loads_of_another_connector_count(self):
        half = self.scheduler()
        self.store.answer = 40
        big = request("big")
        self.assertEqual(self.ask(half, big), [40])  # vLLM has no room
        loaded = self.load_by_another_connector(half, "a")
        self.assertEqual(self.ask(half, big), [None])
        half.finished(loaded)
        half.received(Object(finished_recving={"a"}))
        self.assertEqual(self.ask(half, big), [40])
        # The first load may have room beside the blocks that vLLM reserves for the failed load.
        failed = self.load_by_another_connector(half, "b", fails=True)
        self.assertEqual(self.ask(half, failed), [40])
        self.assertEqual(self.ask(half, big, failed), [None, 0])

    def test_a_request_whose_load_failed_loads_nothing_after_a_reset(self):
        """vLLM still reserves blocks for the failed load, which a new load must leave free."""
        half = self.scheduler()
        failed = self.load(half, "a", fails=True)
        self.assertEqual(self.ask(half, failed), [0])
        failed.num_computed_tokens = 0
        half.reset()
        self.store.answer = 40
        self.assertEqual(self.ask(half, failed, request("loads")), [0, 40])
        half.allocated(failed, None, 0)  # vLLM starts the request, and preempts the request later
        self.assertEqual(self.ask(half, failed), [40])

    def test_a_request_that_loads_at_a_reset_is_not_stored(self):
        half = self.scheduler()
        req, _ = self.allocate(half, "a", 0, 40, tuple(range(1, 16)))
        half.reset()
        half.received(Object(failed_recving={"a"}, finished_recving={"a"},
                             invalid_block_ids=set()))
        self.assertEqual(half.matched_tokens(req, 0), (0, False))
        meta = half.build_meta(output({"a": 61}, {"a": (list(range(1, 17)),)}))
        self.assertFalse(meta.saves)
        self.assertTrue(meta.cancel)
        half.finished(req)
        self.assertEqual((self.store.seqs, self.store.leased), (0, set()))

    def test_a_reset_cancels_queued_read_ahead(self):
        half = self.scheduler()
        half._engine.wanted = lambda seq: [(0, 0, 3)]
        self.store.answer = -1
        req = request()
        self.assertEqual(half.matched_tokens(req, 0), (None, False))
        half.reset()
        self.assertFalse(half.build_meta(output()).prefetches)
        half.matched_tokens(req, 0)
        new = half._requests["a"].seq.chunks(0, 3)
        self.assertEqual(half.build_meta(output()).prefetches, [(0, new, b"", None)])

    def test_a_load_that_ended_well_may_be_followed_by_another(self):
        half = self.scheduler()
        req, _ = self.allocate(half, "a", 0, 40, tuple(range(1, 16)))
        half.received(Object(failed_recving=set(), finished_recving={"a"},
                             invalid_block_ids=set()))
        half.allocated(req, None, 0)  # vLLM starts the request, and preempts the request later
        self.assertEqual(half.matched_tokens(req, 0), (40, True))

    def test_a_request_that_ends_amid_its_load_keeps_no_lease(self):
        half = self.scheduler()
        req, _ = self.allocate(half, "a", 0, 16, [1, 2, 3, 4])
        seq, released = half._requests["a"].seq, []
        half._engine.release = released.append
        half.finished(req)
        self.assertEqual(released, [seq])

    def test_a_load_that_ended_keeps_no_lease(self):
        half = self.scheduler()
        self.allocate(half, "a", 0, 16, [1, 2, 3, 4])
        seq, released = half._requests["a"].seq, []
        half._engine.release = released.append
        half.received(Object(failed_recving=set(), finished_recving={"a"},
                             invalid_block_ids=set()))
        self.assertEqual(released, [seq])

    def test_a_request_that_computes_at_a_reset_keeps_no_lease(self):
        half = self.scheduler()
        self.store.answer = 40
        self.allocate(half, "a", 0, 16, [1, 2, 3, 4])
        computing = request("b", num_computed_tokens=16)
        half.matched_tokens(computing, 16)
        seq, released = half._requests["b"].seq, []
        half._engine.release = released.append
        half.reset()
        self.assertEqual(released, [seq])  # the load still needs the leases of "a"

    def test_a_lookup_that_fails_is_a_miss(self):
        half = self.scheduler()

        def broken(*args):
            raise OSError(5, "broken")
        half._engine.lookup = broken
        with self.assertLogs("vllm.kvtier"):
            self.assertEqual(half.matched_tokens(request(), 0), (0, False))

    def test_a_load_that_cannot_start_is_reported_failed(self):
        worker = self.worker()

        def broken(*args):
            raise OSError(12, "broken")
        worker._engine.load = broken
        ios = [(0, bytes(_lib.CHUNK_BYTES), array("i", [-1, 5]).tobytes(), None)]
        with self.assertLogs("vllm.kvtier"):
            worker.start_loads(vllm_meta.KVTierMetadata([("a", ios)]))
        self.assertEqual(worker.finished(set()), ({"a"}, set()))
        self.assertEqual(worker.take_bad_blocks(), {5})
        self.assertEqual(worker.finished(set()), (None, None))

    def test_a_store_that_fails_does_not_reach_vllm(self):
        worker = self.worker()

        def broken(*args):
            raise ValueError("broken")
        worker._engine.store = broken
        with self.assertLogs("vllm.kvtier"):
            worker.save(vllm_meta.KVTierMetadata((), [1]))

    def test_statistics_are_differences(self):
        engine = Object(values=[5, 0, 0])
        engine.counters = lambda: list(engine.values)
        collector = vllm_stats.Collector(engine)
        self.assertIsNone(collector.collect())
        for values, changed in (([8, 2, 3], {"hit_tokens": 8, "load_failed": 2,
                                             "loads_pending": 3}),
                                ([8, 2, 3], None),  # reads are pending
                                ([8, 2, 1], {"loads_pending": -2}),
                                ([8, 2, 0], {"loads_pending": -1})):
            self.assertTrue(collector._active or values[0] == 8)
            engine.values = values
            collector.touch(ended=True)
            found = collector.collect()
            self.assertEqual(found and found.data, changed)
        collector.touch(ended=True)
        self.assertIsNone(collector.collect())
        self.assertFalse(collector._active)

    def test_statistics_of_ranks_add_up(self):
        stats = vllm_stats.KVTierStats(data={"hit_tokens": 1, "loads_pending": 4})
        stats.aggregate(vllm_stats.KVTierStats(
            data={"hit_tokens": 2, "load_failed": 3, "loads_pending": -1}))
        self.assertEqual(stats.data, {"hit_tokens": 3, "load_failed": 3,
                                      "loads_pending": 3})
        # vLLM logs the result of reduce(): counters only, because the change of a gauge
        # since the last log line has no meaning for a reader.
        self.assertEqual(stats.reduce(), {"hit_tokens": 3, "load_failed": 3})

    def test_loads_of_another_connector_are_not_ours(self):
        half = self.scheduler()
        self.store.answer = 40
        short, other = request("short", 5), request("other")
        self.assertEqual(half.matched_tokens(short, 0), (0, False))
        self.assertEqual(half.matched_tokens(other, 0), (40, True))
        half.allocated(other, Object(get_block_ids=lambda: ([1],)), 0)
        released = []
        half._engine.release = released.append
        half.received(Object(failed_recving={"short", "other"}, invalid_block_ids={1},
                             finished_recving={"short", "other", "unknown"}))
        self.assertEqual(released, [])
        self.assertEqual(half.matched_tokens(other, 0), (40, True))

    def test_tokens_loaded_by_another_connector_are_not_saved(self):
        # With overlapping batches c may share blocks with b before b's load has failed.  With
        # stages more batches overlap: as many as there are stages, and one more.
        for n_stages, expected in ((1, "adef"), (2, "aef"), (4, "a")):
            half = self.scheduler(n_stages=n_stages)
            self.store.answer = 0
            table = {name: (list(range(1, 17)),) for name in "abcdef"}
            saved = ""
            for name in "abcdef":
                half.matched_tokens(request(name), 0)
                step = output({name: 61}, table)
                step.scheduled_new_reqs = [Object(req_id=name)]
                step.has_sync_kv_loads = name == "b"
                if half.build_meta(step) is not vllm_meta.NOTHING:
                    saved += name
            self.assertEqual(saved, expected)
            self.assertIs(half.build_meta(output({"b": 61}, table, resumed=["b"])),
                          vllm_meta.NOTHING)

    def test_the_null_block_is_never_named_as_failed(self):
        for window, named in ((0, ({"a"}, set(), {5})), (10, ({"a"}, {"a"}, set()))):
            self.infos = [info(_lib.GROUP_SLIDING if window else _lib.GROUP_FULL, window)]
            worker = self.worker()
            worker._ready = False
            ios = [(0, bytes(_lib.CHUNK_BYTES), array("i", [0, 5]).tobytes(), None)]
            worker.start_loads(vllm_meta.KVTierMetadata([("a", ios)]))
            self.assertEqual(worker.finished(set()) + (worker.take_bad_blocks(),), named)

    def test_a_worker_closes_its_engine_and_does_not_flush_before(self):
        worker = self.worker()
        calls = []
        worker._engine.flush = lambda *args: calls.append("flush")
        worker._engine.close = lambda: calls.append("close")
        worker.shutdown()
        self.assertEqual(calls, ["close"])

    def test_a_scheduler_that_shuts_down_gives_its_leases_back(self):
        half = self.scheduler()
        self.store.answer = 40
        half.matched_tokens(request(), 0)
        self.store.leased.update(state.seq for state in half._requests.values())
        released = []
        half._engine.release = released.append
        half.shutdown()
        self.assertEqual((len(released), self.store.seqs), (1, 0))


    def test_odd_requests_are_computed(self):
        """An exception would end vLLM's EngineCore."""
        self.store.answer = 40
        half = self.scheduler()
        for odd in (
                dict(kv_transfer_params="lmcache.tag.a"),
                dict(kv_transfer_params=["lmcache.tag.a"]),
                dict(kv_transfer_params={1: 2, "lmcache.tag.a": None}),
                dict(kv_transfer_params={"lmcache.skip_save": {}}),
                dict(kv_transfer_params={"lmcache.tag.a": 10 ** 5000}),
                dict(kv_transfer_params={"max_load_tokens": 10 ** 5000,
                                         "max_offload_tokens": 10 ** 5000}),
                dict(kv_transfer_params={"max_load_tokens": -10 ** 5000}),
                dict(kv_transfer_params={"max_offload_tokens": "x" * 10 ** 6}),
                dict(cache_salt=7), dict(cache_salt="\ud800"), dict(cache_salt="a\0b"),
                dict(prompt_token_ids=[-1] * 61), dict(prompt_token_ids=[None] * 61),
                dict(prompt_token_ids=[1 << 40] * 61),
                dict(mm_features=[Object(identifier=3, mm_position=None)]),
                dict(mm_features=7)):
            req = request(**odd)
            half.new_request(req)
            asked = half.matched_tokens(req, 0)
            self.assertIn(asked, ((0, False), (40, True)), odd)
            half.build_meta(output({"a": 61}, {"a": (list(range(1, 17)),)}))
            half.finished(req)
        self.assertEqual(self.store.seqs, 0)


def describe(digest=None, settings=None, **more):
    return vllm_extra.describe(request(**more), settings or {}, digest)


class Extra(unittest.TestCase):
    def test_requests_not_described_by_tokens_have_no_identity(self):
        for more in ({"prompt_token_ids": None}, {"prompt_embeds": object()},
                     {"prompt_is_token_ids": [True]}, {"resumable": True},
                     {"mm_features": [Object(
                         identifier=None,
                         mm_position=Object(offset=0, length=3))]}):
            self.assertIsNone(describe(**more), more)

    def test_tags_salt_adapter_and_items_enter_the_identity(self):
        extra = describe(
            "d", cache_salt="s",
            lora_request=Object(lora_int_id=1, lora_name="l", lora_path="/no"),
            mm_features=[Object(identifier=i, mm_position=Object(offset=o, length=2))
                         for i, o in (("y", 9), ("x", 3))],
            kv_transfer_params={"lmcache.tag.a": 1, "lmcache.tag.b": "%",
                                "lmcache.skip_save": "true", "other": 2})
        self.assertEqual(extra.mm, [("x", 3, 2), ("y", 9, 2)])
        self.assertEqual((extra.cache_salt, extra.lora), ("s", "l:d"))
        self.assertEqual((extra.tags, extra.most_saved), ("a%1@b%%@lora%l", 0))
        self.assertEqual(extra.most_loaded, math.inf)

    def test_a_bad_number_of_tokens_is_an_error_with_its_name(self):
        for name in ("max_load_tokens", "max_offload_tokens"):
            for bad in (-1, 1.0, "8", True, [], {}):
                with self.assertRaisesRegex(ValueError, name):
                    describe(kv_transfer_params={name: bad})

    def test_a_client_raises_no_limit_of_its_server(self):
        limits = {"max_load_tokens": 8, "max_offload_tokens": 20, "priority_limit": 3}
        for client, server, expected in (
                ({}, {}, (math.inf, math.inf)), ({}, limits, (8, 20)),
                ({"max_load_tokens": 9, "max_offload_tokens": 21}, limits, (8, 20)),
                ({"max_load_tokens": 7, "max_offload_tokens": 0}, limits, (7, 0)),
                ({"lmcache.skip_save": True}, limits, (8, 0))):
            extra = describe(None, server, kv_transfer_params=client)
            self.assertEqual((extra.most_loaded, extra.most_saved), expected)

    def test_requests_of_a_priority_beyond_the_limit_are_not_stored(self):
        for limit, priority, most in ((None, 5, math.inf), (0, 0, math.inf), (0, 1, 0),
                                      (-1, 0, 0), (3, -3, math.inf)):
            extra = describe(None, {"priority_limit": limit}, priority=priority)
            self.assertEqual(extra.most_saved, most)

    def test_an_adapter_without_a_digest_has_no_identity(self):
        self.assertIsNone(describe(
            lora_request=Object(lora_int_id=1, lora_name="l", lora_path="/no")))

    def test_a_tag_cannot_pose_as_another_adapter(self):
        params = {"lmcache.tag.lora": "l"}
        lora = Object(lora_int_id=1, lora_name="l", lora_path="/no")
        self.assertEqual("lora%l", describe(
            "d", lora_request=lora, kv_transfer_params=params).tags)
        other = Object(lora_int_id=2, lora_name="m", lora_path="/no")
        for adapter in (None, other):
            with self.assertLogs("vllm.kvtier"):
                self.assertIsNone(describe(
                    "d", lora_request=adapter, kv_transfer_params=params))

    def test_a_tag_cannot_pose_as_two(self):
        for params in ({"lmcache.tag.a": "1@b%2"}, {"lmcache.tag.a%1@b": "2"},
                       {"lmcache.tag.": "1"}):
            with self.assertLogs("vllm.kvtier"):
                self.assertIsNone(describe(kv_transfer_params=params))


class Spec:
    block_size, num_kv_heads, head_size, page_size_bytes = 4, 1, 1, 32
    dtype = Object(itemsize=4)
    sliding_window = 512


FullAttentionSpec = type("FullAttentionSpec", (Spec,), {})
SlidingWindowSpec = type("SlidingWindowSpec", (Spec,), {})
MLAAttentionSpec = type("MLAAttentionSpec", (FullAttentionSpec,), {})
MambaSpec = type("MambaSpec", (Spec,), {})


class Model(unittest.TestCase):
    def cache(self, *specs):
        return Object(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[
            Object(kv_cache_spec=spec, layer_names=["x"]) for spec in specs])

    def config(self, prefix_caching=True, **parallel):
        parallel = dict({"tensor_parallel_size": 1}, **parallel)
        return Object(parallel_config=Object(**parallel),
                      device_config=Object(device_type="cpu"),
                      cache_config=Object(cache_dtype="auto",
                                          enable_prefix_caching=prefix_caching))

    def test_unsupported_configurations_are_errors(self):
        newest = MLAAttentionSpec()
        newest.model_version = "deepseek_v4"
        narrow = SlidingWindowSpec()
        narrow.sliding_window = 1
        mla = type("SlidingWindowMLASpec", (SlidingWindowSpec,), {})()
        for spec, parallel, why in (
                (newest, {}, "the KV cache of deepseek_v4"),
                (MLAAttentionSpec(), {"prefix_caching": False},
                 "MLA without prefix caching"),
                (mla, {}, "kind SlidingWindowMLASpec"),
                (MambaSpec(), {}, "MambaSpec.*mamba_cache_mode none; use --enable-prefix-caching"),
                (narrow, {}, "a sliding window of 1"),
                (FullAttentionSpec(), {"decode_context_parallel_size": 2},
                 "decode_context_parallel_size > 1"),
                (FullAttentionSpec(), {"prefill_context_parallel_size": 2},
                 "prefill_context_parallel_size > 1"),
                (FullAttentionSpec(),
                 {"distributed_executor_backend": "external_launcher", "world_size": 2},
                 "external_launcher")):
            with self.assertRaisesRegex(vllm_model.Unsupported, why):
                vllm_model.check_supported(self.config(**parallel),
                                           self.cache(spec))
        for specs, why in (((), "without KV cache"),
                           ((FullAttentionSpec(),) * 65, "65 KV cache groups")):
            with self.assertRaisesRegex(vllm_model.Unsupported, why):
                vllm_model.check_supported(self.config(), self.cache(*specs))
        vllm_model.check_supported(self.config(
            distributed_executor_backend="external_launcher", world_size=1), self.cache(
            FullAttentionSpec(), SlidingWindowSpec(), MLAAttentionSpec()))
        silent = self.config()
        del silent.cache_config.enable_prefix_caching
        vllm_model.check_supported(silent, self.cache(MLAAttentionSpec()))

    def test_states_need_a_vllm_that_reports_final_states(self):
        def state(mode="align", n_speculative=0):
            spec = MambaSpec()
            spec.mamba_cache_mode, spec.num_speculative_blocks = mode, n_speculative
            spec.num_prefill_checkpoint_blocks, spec.block_size = 1, 528
            return spec

        def cache(**settings):
            config = self.config()
            vars(config.cache_config).update(settings)
            return config

        replay, device = cache(use_replayssm=True), self.config()
        within = cache(prefix_match_unit=16, prefix_cache_retention_interval=528)
        device.device_config.device_type = "xpu"
        for spec, config, reports, why in (
                (state(), self.config(), False, "does not report the blocks of all final states"),
                (state("all"), self.config(), True, "mamba_cache_mode all"),
                (state("none"), self.config(), True, "mamba_cache_mode none"),
                (state(n_speculative=2), self.config(), True, "speculative decoding"),
                (state(), replay, True, "use_replayssm"),
                (state(), within, True, "both --prefix-match-unit and"),
                (state(), device, True, "a device of type xpu")):
            with mock.patch.object(vllm_model, "reports_states", lambda: reports):
                with self.assertRaisesRegex(vllm_model.Unsupported, why):
                    vllm_model.check_supported(config, self.cache(FullAttentionSpec(), spec))
                vllm_model.check_supported(self.config(), self.cache(state()) if reports
                                           else self.cache(FullAttentionSpec()))
        with mock.patch.object(vllm_model, "reports_states", lambda: True):
            for settings in ({"prefix_match_unit": 16, "prefix_cache_retention_interval": 0},
                             {"prefix_cache_retention_interval": 528},
                             {"prefix_match_unit": 528, "prefix_cache_retention_interval": None}):
                vllm_model.check_supported(cache(**settings), self.cache(state()))

    def test_a_null_block_has_no_state(self):
        """A step may begin behind a block whose state vLLM has moved."""
        saves = vllm_saves.Saves({}, [Object(table=0, is_state=True)], 8, {}, None, None, 2)
        for block, expected in ((vllm_model.NULL_BLOCK, []), (5, [[5]])):
            ios = []
            state = Object(saved=0, stored=range(0), chunks=lambda first, last: b"",
                           tags=Object(tags=None, ttl=0))
            self.assertEqual(saves._save_states(ios, state, 0, [block], 8, 1, []), bool(expected))
            self.assertEqual([array("i", io[2]).tolist() for io in ios], expected)

    def test_states_need_vllm_0_32(self):
        """vLLM 0.29 has the report, too, but keeps other states."""
        field = {"__dataclass_fields__": {"boundary_state_offloads": None}}
        for version, fields, expected in (
                ("0.29.0", field, False), ("0.31.1", field, False), ("0.32.0", field, True),
                ("0.33.0.dev2+g1", field, True), ("1.0.0", field, True), ("dev", field, True),
                ("0.0.0", field, True), ("0.32.0", {}, False)):
            modules = {"vllm": Object(__version__=version), "vllm.v1.core.sched.output": Object(
                KVConnectorBlockState=type("KVConnectorBlockState", (), fields))}
            with mock.patch.dict(sys.modules, modules):
                self.assertEqual(vllm_model.reports_states(), expected, version)

    def test_the_chunk_of_a_model_with_states_is_a_block(self):
        state, small = MambaSpec(), FullAttentionSpec()
        state.mamba_cache_mode, state.block_size, small.block_size = "align", 528, 16
        self.assertEqual(vllm_model.forced_settings(self.cache(FullAttentionSpec())), [])
        self.assertEqual(vllm_model.forced_settings(self.cache(small, state)),
                         ["save_unfull_chunk=false", "chunk_size=528"])
        small.block_size = 32  # states are kept more often than the chunk is complete
        self.assertIn("chunk_size=1056", vllm_model.forced_settings(self.cache(small, state)))
        with self.assertRaisesRegex(vllm_model.Unsupported, "528 tokens"):
            vllm_model.groups(self.config(), self.cache(small, state), 1056)

    def test_each_stage_needs_layers_of_each_group(self):
        config = self.config(pipeline_parallel_size=2)
        cache = self.cache(FullAttentionSpec(), SlidingWindowSpec())
        vllm_model.check_supported(config, cache)
        cache.kv_cache_groups[1].layer_names = []
        with self.assertRaisesRegex(vllm_model.Unsupported, "KV cache group 1"):
            vllm_model.check_supported(config, cache)
        vllm_model.check_supported(self.config(), cache)

    def test_ranks_are_numbered_in_one_engine(self):
        """vLLM numbers the ranks stage by stage, and LMCache's keys have the number."""
        config = self.config(tensor_parallel_size=2, pipeline_parallel_size=3,
                             data_parallel_size=2, enable_expert_parallel=True)
        config.model_config = Object(model="m")
        infos = [Object(table=0, dtype="torch.bfloat16", is_state=False)]
        models = [vllm_model.model(config, infos, rank, "") for rank in (0, 5, 6, 11)]
        self.assertEqual([(model.world_size, model.rank) for model in models],
                         [(6, 0), (6, 5), (6, 0), (6, 5)])

    def test_ranks_of_tensor_parallel_mla_have_equal_chunks(self):
        cache = self.cache(FullAttentionSpec(), MLAAttentionSpec())
        full, mla = vllm_model.groups(self.config(tensor_parallel_size=2), cache, 8)
        self.assertEqual((full.replicated, mla.replicated), (0, 1))
        self.assertEqual((full.to_c().replicated, mla.to_c().replicated), (0, 1))
        self.assertEqual(mla.kind, _lib.GROUP_FULL)
        alone = vllm_model.groups(self.config(), cache, 8)
        self.assertEqual([info.replicated for info in alone], [0, 0])
        # All tensor-parallel sizes share the chunks of MLA, so the layouts must be equal.
        self.assertEqual(alone[1].layout, mla.layout)
        self.assertNotEqual(full.layout, mla.layout)

    def test_the_hosts_of_other_data_parallel_engines_do_not_count(self):
        for hosts, ranks in ((2, 4), (1, 8)):
            config = self.config(tensor_parallel_size=8, nnodes=4,
                                 nnodes_within_dp=hosts)
            self.assertEqual(vllm_model.local_ranks(config), ranks)
            config.parallel_config.pipeline_parallel_size = 2
            self.assertEqual(vllm_model.local_ranks(config), 2 * ranks)
        self.assertEqual(vllm_model.local_ranks(self.config()), 1)

    def test_only_engines_with_stages_or_several_hosts_need_reports(self):
        for needs, about in (
                (False, {}), (False, {"tensor_parallel_size": 8}),
                (False, {"distributed_executor_backend": "mp"}),
                (False, {"distributed_executor_backend": "uni"}),
                (True, {"distributed_executor_backend": "ray"}),
                (True, {"distributed_executor_backend": "module.ExecutorOnHosts"}),
                (True, {"distributed_executor_backend": type("ExecutorOnHosts", (), {})}),
                (True, {"pipeline_parallel_size": 2}),
                (True, {"tensor_parallel_size": 8, "nnodes_within_dp": 2})):
            self.assertEqual(vllm_model.needs_reports(
                self.config(**about), self.cache(FullAttentionSpec())), needs, about)

    def test_only_the_class_decides_that_blocks_leave_a_window(self):
        full, sliding = vllm_model.groups(self.config(), self.cache(
            FullAttentionSpec(), SlidingWindowSpec()), 8)
        self.assertEqual((full.kind, full.window), (_lib.GROUP_FULL, 0))
        self.assertEqual((sliding.kind, sliding.window),
                         (_lib.GROUP_SLIDING, 512))

    def test_packed_blocks_of_a_cpu_and_of_a_gpu_have_different_layouts(self):
        layouts = set()
        for device in ("cpu", "cuda"):
            config = self.config()
            config.device_config.device_type = device
            found = vllm_model.groups(
                config, self.cache(SlidingWindowSpec(), FullAttentionSpec()), 4)
            layouts.add(found[1].layout)
            self.assertEqual(found[1].format, vllm_model._lib.FORMAT_OPAQUE)
        self.assertEqual(len(layouts), 2, layouts)

    def test_chunk_size_that_is_no_multiple_names_the_nearest(self):
        vllm_model.check_chunk_size(256, [16, 128])
        for chunk, sizes, said in ((200, [128], "256"), (100, [128], "128"),
                                   (100, [16, 24], "96"), (1, [16], "16")):
            with self.assertRaisesRegex(
                    ValueError, "chunk_size %d .* block size %d.* is %s$"
                    % (chunk, sizes[0], said)):
                vllm_model.check_chunk_size(chunk, sizes)


class Log(unittest.TestCase):
    def level(self, **variables):
        with mock.patch.dict(os.environ, variables):
            for name in {"KVTIER_LOG_LEVEL", "LMCACHE_LOG_LEVEL"} - set(variables):
                os.environ.pop(name, None)
            return vllm_log.level()

    def test_level_is_that_of_the_library(self):
        self.assertEqual(self.level(), logging.NOTSET)
        for name in ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"):
            self.assertEqual(self.level(LMCACHE_LOG_LEVEL=name), getattr(logging, name))
        self.assertEqual(self.level(LMCACHE_LOG_LEVEL="error"), logging.ERROR)
        self.assertEqual(self.level(LMCACHE_LOG_LEVEL="LOUD"), logging.NOTSET)
        self.assertEqual(self.level(LMCACHE_LOG_LEVEL="DEBUG", KVTIER_LOG_LEVEL="ERROR"),
                         logging.ERROR)


if __name__ == "__main__":
    unittest.main()
