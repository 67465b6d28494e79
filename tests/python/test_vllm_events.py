# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV cache events for the chunks in kvtier: a subscriber that decodes the stream with
vLLM's own types knows which blocks are in host memory and in storage.  Needs vLLM, no model and
no GPU."""

import collections
import json
import os
import random
import subprocess
import tempfile
import time
import unittest
from array import array
from unittest import mock

import fake
from kvtier import _lib
from test_vllm_multi import together
from vllm_case import SEVERAL_GROUPS, Case, groupings, prompt

if fake.HAVE_VLLM:
    import msgspec
    from kvtier import _store, vllm_events
    from kvtier.vllm_worker import Worker
    from vllm.distributed.kv_events import (
        AllBlocksCleared,
        BlockRemoved,
        BlockStored,
        KVEventBatch,
    )
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.request import Request
    from vllm_sim import BLOCK, CHUNK, Sim

KVTIER = os.environ.get("KVTIER") or os.path.join(
    os.path.dirname(os.environ.get("KVTIER_LIBRARY", "")), "kvtier")


def hashes_of(tokens, extra=lambda i: None):
    """Return the hashes of whole blocks as vLLM computes the hashes."""
    found, parent = [], None
    for i in range(len(tokens) // BLOCK):
        parent = kv_cache_utils.hash_block_tokens(
            sha256, parent, tokens[i * BLOCK:(i + 1) * BLOCK], extra(i))
        found.append(parent)
    return [kv_cache_utils.maybe_convert_block_hash(one) for one in found]


class Subscriber:
    """vLLM's publisher and a router in one: encodes each batch as vLLM's publisher does, decodes
    the bytes with vLLM's types, and follows the events of kvtier's media."""

    def __init__(self):
        self.blocks = collections.defaultdict(dict)  # (medium, group) -> {hash: BlockStored}
        self.n = collections.Counter()
        self.stored = []

    def publish(self, batch):
        data = msgspec.msgpack.encode(batch)
        for event in msgspec.msgpack.decode(data, type=KVEventBatch).events:
            self.apply(event)

    def apply(self, event):
        if isinstance(event, AllBlocksCleared) or event.medium == "GPU":
            return  # vLLM's own cache
        self.n[type(event).__name__, event.medium] += 1
        known = self.blocks[event.medium, event.group_idx]
        if isinstance(event, BlockRemoved):
            for one in event.block_hashes:
                del known[one]
        else:
            assert isinstance(event, BlockStored)
            assert not known.keys() & event.block_hashes, "stored twice"
            assert len(event.token_ids) == event.block_size * len(event.block_hashes)
            known.update(dict.fromkeys(event.block_hashes, event))
            self.stored.append(event)

    def have(self, medium, group=0):
        return set(self.blocks[medium, group])

    def shutdown(self):
        pass


def subscribe(sim):
    found = sim.scheduler.kv_event_publisher = Subscriber()
    return found


def settle(sim, subscriber):
    """Step until all requests have ended and no event comes any more."""
    sim.run(at_most=10**6)
    sim.engine.flush(60000)
    before = None
    while before != subscriber.n:
        before = collections.Counter(subscriber.n)
        for _ in range(3):
            sim.step()


@unittest.skipUnless(fake.HAVE_VLLM, "vLLM is not installed")
class Stream(Case):
    """Events over the fake engine."""

    def setUp(self):
        super().setUp()
        for name, value in (("PERIOD_S", 0.0), ("SETTLE_S", 0.0)):
            self.patch(vllm_events, name, value)
        self.store.memory = set()
        self.settings(local_cpu=True, kv_events_storage="host")

    def patch(self, where, name, value):
        patched = mock.patch.object(where, name, value)
        patched.start()
        self.addCleanup(patched.stop)

    def settings(self, **values):
        self.patch(fake.Config, "extra", values)

    def open(self, **kwargs):
        sim = self.sim(events=True, **kwargs)
        self.addCleanup(sim.close)
        return sim, subscribe(sim)

    def serve(self, sim, subscriber, tokens, name="a", **kwargs):
        request = sim.add(name, tokens, **kwargs)
        settle(sim, subscriber)
        return request

    def test_blocks_have_the_hashes_parents_and_tokens_of_vllms_own_events(self):
        sim, router = self.open()
        tokens = prompt(0, 3 * CHUNK + 3)
        self.serve(sim, router, tokens)
        hashes = hashes_of(tokens)[:6]
        self.assertEqual(router.have("CPU"), set(hashes))
        self.assertEqual(router.have("STORAGE"), set(hashes))
        for i, event in enumerate(one for one in router.stored if one.medium == "CPU"):
            self.assertEqual(event.block_hashes, hashes[2 * i:2 * i + 2])
            self.assertEqual(event.parent_block_hash, hashes[2 * i - 1] if i else None)
            self.assertEqual(event.token_ids, tokens[i * CHUNK:(i + 1) * CHUNK])
            self.assertEqual((event.block_size, event.lora_name), (BLOCK, None))

    def test_a_block_is_removed_when_a_medium_loses_the_chunk(self):
        sim, router = self.open()
        tokens = prompt(0, 2 * CHUNK + 3)
        self.serve(sim, router, tokens)
        hashes = hashes_of(tokens)
        self.store.memory.clear()
        settle(sim, router)
        self.assertEqual(router.have("CPU"), set())
        self.assertEqual(router.have("STORAGE"), set(hashes[:4]))
        self.store.chunks.clear()
        settle(sim, router)
        self.assertEqual(router.have("STORAGE"), set())

    def test_storage_is_reported_only_if_the_configuration_asks(self):
        for storage, expected in (("none", False), ("host", False), ("all", True)):
            with self.subTest(storage=storage):
                self.settings(local_cpu=True, kv_events_storage=storage)
                self.store.chunks.clear()
                self.store.memory.clear()
                sim, router = self.open()
                with mock.patch.object(fake, "STORAGE", _lib.MEDIUM_SHARED_STORAGE):
                    self.serve(sim, router, prompt(0, 20))
                self.assertEqual(len(router.have("STORAGE")), 4 * expected)
                self.assertEqual(len(router.have("CPU")), 4)

    def test_without_vllms_setting_there_are_no_events_and_no_calls(self):
        sim = self.sim()
        self.addCleanup(sim.close)
        router = subscribe(sim)
        with mock.patch.object(fake.Engine, "media", side_effect=AssertionError):
            self.serve(sim, router, prompt(0, 20))
        self.assertEqual(sim.top.take_events(), ())
        self.assertFalse(router.n)

    def test_without_a_reported_medium_a_warning_names_the_settings(self):
        self.settings(local_cpu=False, kv_events_storage="none")
        with self.assertLogs("vllm.kvtier", "WARNING") as logged:
            sim, router = self.open()
            self.serve(sim, router, prompt(0, 20))
        self.assertIn("kv_events_storage", logged.output[0])
        self.assertFalse(router.n)

    def test_a_reset_removes_all_blocks(self):
        sim, router = self.open()
        self.serve(sim, router, prompt(0, 20))
        self.assertTrue(router.have("CPU") and router.have("STORAGE"))
        self.assertTrue(sim.reset())
        self.assertFalse(sim.scheduler.has_requests())
        sim.step()
        self.assertFalse(router.have("CPU") or router.have("STORAGE"))
        self.serve(sim, router, prompt(0, 20), "b")
        self.assertEqual(len(router.have("CPU")), 4)

    def test_a_hit_of_an_earlier_engine_is_reported(self):
        tokens = prompt(0, 20)
        for name in "ab":
            sim, router = self.open()
            if name == "b":
                sim.engine.store = lambda ios: None
            self.serve(sim, router, tokens, name)
            self.assertEqual(len(router.have("STORAGE")), 4)

    def test_beyond_the_limit_the_oldest_chunks_are_removed_and_counted(self):
        self.patch(vllm_events, "MAX_CHUNKS", 5)
        self.patch(fake, "COUNTERS", fake.COUNTERS + [
            ("events_forgotten", "chunks", "Chunks.", 1)])
        sim, router = self.open()
        tokens = [prompt(i, 3 * CHUNK + 1) for i in range(4)]
        for i, one in enumerate(tokens):
            self.serve(sim, router, one, "r%d" % i)
        kept = hashes_of(tokens[3])[:6] + hashes_of(tokens[2])[2:6]
        self.assertEqual(router.have("CPU"), set(kept))
        counted = sum(one.get("KVTierConnector", one).get("events_forgotten", 0)
                      for one in sim.stats)
        self.assertEqual(counted, 12 - 5)

    def test_only_chunks_in_a_medium_count_as_forgotten(self):
        self.patch(vllm_events, "MAX_CHUNKS", 2)
        sim, router = self.open()
        events = sim.connector._scheduler._events
        with mock.patch.object(fake.Engine, "store", lambda *args: None), mock.patch.object(
                sim.connector._scheduler, "stats", lambda: None):
            for i in range(3):
                self.serve(sim, router, prompt(i, 20), "r%d" % i)
        self.assertEqual((events.forgotten, len(events._order[0].blocks)), (0, 2))

    def test_a_chunk_without_medium_is_watched_for_a_time(self):
        clock = mock.Mock(**{"monotonic.return_value": 1000.0})
        self.patch(vllm_events, "time", clock)
        sim, router = self.open()
        self.serve(sim, router, prompt(0, 20))
        watch, = sim.connector._scheduler._events._order
        for seconds, n in ((1100.0, 2), (1150.0, 2), (1170.0, 0)):
            clock.monotonic.return_value = seconds
            self.store.memory.clear()  # at 1100, long after the note
            self.store.chunks.clear()
            sim.step()
            self.assertEqual([len(part) for part in (watch.blocks, watch.by_chunk, watch.media)],
                             [n, n, n])
        self.assertFalse(sim.connector._scheduler._events._watches)
        self.serve(sim, router, prompt(0, 20), "again")
        self.assertEqual(len(router.have("CPU")), 4)

    def test_a_step_compares_a_limited_number_of_chunks(self):
        self.patch(vllm_events, "COMPARED", 3)
        self.patch(vllm_events, "PERIOD_S", 0.25)
        clock = mock.Mock(**{"monotonic.return_value": 1000.0})
        self.patch(vllm_events, "time", clock)
        sim, router = self.open(windows=groupings((), (13,))[-1])
        compared, media = [], fake.Engine.media

        def count(engine, group, chunks, tags):
            compared[-1] += len(chunks) // _lib.CHUNK_BYTES
            return media(engine, group, chunks, tags)
        self.patch(fake.Engine, "media", count)
        tokens = prompt(0, 8 * CHUNK + 1)
        sim.add("a", tokens)
        for i in range(40):
            compared.append(0)
            clock.monotonic.return_value += 0.125  # every other step compares
            sim.step()
        self.assertLessEqual(max(compared), 3)
        self.assertLessEqual(sum(n > 0 for n in compared), 20)
        full = len(sim.windows) - 1
        self.assertEqual(router.have("CPU", full), set(hashes_of(tokens)))
        self.assertTrue(router.have("CPU", 0))

    def test_blocks_of_a_clients_own_tags_are_not_reported(self):
        sim, router = self.open()
        sim.engine.before_store = lambda ios: None
        self.serve(sim, router, prompt(0, 20),
                   kv_transfer_params={"lmcache.tag.user": "a"})
        self.assertEqual(len(self.store.chunks), 2)
        self.assertFalse(router.n)

    def test_the_partial_chunk_of_a_prompt_is_not_reported(self):
        self.settings(local_cpu=True, kv_events_storage="none", save_unfull_chunk=True)
        sim, router = self.open()
        request = self.serve(sim, router, prompt(0, 20), max_tokens=8)
        self.assertEqual((len(self.store.memory), len(router.have("CPU"))), (3, 4))
        # After a preemption, the tail is loaded for a request with hashes of its answer.
        self.assertGreaterEqual(len(request.block_hashes), 6)
        seq = fake.Seq(self.store, request.prompt_token_ids, fake.root())
        sim.connector._scheduler._events.note(
            request, mock.Mock(tags=None), 0, 0, seq.chunks(0, 3))
        settle(sim, router)
        self.assertEqual(len(router.have("CPU")), 4)
        seq.free()

    def test_without_block_hashes_a_warning_explains_the_lack_of_events(self):
        sim, router = self.open()
        sim.connector._scheduler._events._hash_tokens = 2  # so vLLM lacks half of the hashes
        with self.assertLogs("vllm.kvtier", "WARNING") as logged:
            self.serve(sim, router, prompt(0, 20))
        self.assertIn("--enable-prefix-caching", logged.output[0])
        self.assertEqual(len(logged.output), 1)
        self.assertFalse(router.n)

    def test_a_cache_salt_is_in_the_extra_keys_of_the_first_block(self):
        sim, router = self.open()
        sim.engine.before_store = lambda ios: None
        request = self.serve(sim, router, prompt(0, 20), cache_salt="s")
        self.assertEqual(router.have("CPU"), {
            kv_cache_utils.maybe_convert_block_hash(one) for one in request.block_hashes[:4]})
        keys = [one.extra_keys for one in router.stored if one.medium == "CPU"]
        self.assertEqual([list(map(list, filter(None, one or ()))) for one in keys],
                         [[["s"]], []])

    def test_blocks_of_an_adapter_carry_the_adapters_name(self):
        sim, _ = self.open()
        tokens, events = prompt(0, 20), sim.connector._scheduler._events
        params = SamplingParams(max_tokens=2)
        params.update_from_generation_config({}, 2)
        request = Request(
            request_id="a", prompt_token_ids=tokens, sampling_params=params, pooling_params=None,
            lora_request=LoRARequest("one", 7, "/nowhere"),
            block_hasher=kv_cache_utils.get_request_block_hasher(BLOCK, sha256))
        chunks = fake.Seq(self.store, tokens, fake.root()).chunks(0, 2)
        self.store.memory.update((0, chunks[at:at + 16]) for at in (0, _lib.CHUNK_BYTES))
        events.note(request, mock.Mock(tags="lora%one"), 0, 0, chunks)
        events.note(request, mock.Mock(tags="lora%other"), 0, 0, chunks)
        first, second = events.take()
        self.assertEqual((first.lora_name, first.lora_id), ("one", 7))
        self.assertEqual(first.extra_keys, [("one",), ("one",)])
        self.assertEqual(first.block_hashes + second.block_hashes, [
            kv_cache_utils.maybe_convert_block_hash(one) for one in request.block_hashes[:4]])
        self.assertNotEqual(set(first.block_hashes), set(hashes_of(tokens)[:2]))

    @unittest.skipUnless(SEVERAL_GROUPS, "MultiConnector of this vLLM is not supported")
    def test_a_child_of_multiconnector_reports(self):
        sim, router = self.open(**together("Other", "KVTierConnector"))
        self.serve(sim, router, prompt(0, 20))
        self.assertEqual(router.have("CPU"), set(hashes_of(prompt(0, 20))[:4]))

    @unittest.skipUnless(SEVERAL_GROUPS, "no hybrid attention with this vLLM")
    def test_each_group_reports_its_own_blocks(self):
        sim, router = self.open(windows=(13,))
        tokens = prompt(0, 5 * CHUNK + 3)
        self.serve(sim, router, tokens)
        hashes = hashes_of(tokens)
        self.assertEqual(router.have("CPU", 1), set(hashes[:10]))
        window = {key[1] for key in self.store.memory if key[0] == 0}
        self.assertEqual(len(router.have("CPU", 0)), 2 * len(window))
        kinds = {one.group_idx: one.kv_cache_spec_kind for one in router.stored}
        self.assertEqual(kinds, {0: "sliding_window", 1: "full_attention"})

    def test_an_idle_engine_steps_until_the_last_events_are_taken(self):
        self.patch(vllm_events, "SETTLE_S", 60.0)
        self.settings(local_cpu=True, kv_events_storage="none")
        sim, router = self.open()
        with mock.patch.object(fake.Engine, "store", lambda *args: None):
            sim.add("a", prompt(0, 20))
            for _ in range(20):
                sim.step()
            self.assertTrue(sim.scheduler.has_requests())
        self.store.memory.update(
            (0, bytes(chunk[:16])) for watch in sim.connector._scheduler._events._order
            for chunk in watch.by_chunk)
        sim.step()
        self.assertFalse(sim.scheduler.has_requests())
        self.assertEqual(len(router.have("CPU")), 4)


@unittest.skipUnless(fake.HAVE_VLLM and fake.have_library() and os.path.exists(KVTIER),
                     "vLLM, libkvtier.so or the command kvtier is not there")
class Agreement(unittest.TestCase):
    """After random operations over the real library, the subscriber agrees with `kvtier ls` and
    with lookups."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.url = "fs://localhost:0/" + self.folder
        patched = mock.patch.object(vllm_events, "PERIOD_S", 0.0)
        patched.start()
        self.addCleanup(patched.stop)

    def open(self, windows, depth):
        """Open a simulator with room for few chunks in host memory and in storage."""
        self.sim = Sim(None, n_blocks=40 * (1 + len(windows)), windows=windows, depth=depth,
                       seed=depth, events=True, extra={
                           "chunk_size": CHUNK, "local_cpu": True, "model_fingerprint": "f",
                           "max_local_cpu_size": 0.0003, "max_remote_size": 0.0006,
                           "kv_events_storage": "host", "remote_url": self.url})
        self.router = subscribe(self.sim)
        self.addCleanup(self.sim.close)
        config = _lib.Config(settings=["remote_url=" + self.url])
        self.disk = _store.Store(config)
        config.close()
        self.addCleanup(self.disk.close)

    def files(self):
        folder = os.path.join(self.folder, "kvtier")
        return [os.path.join(folder, name) for name in os.listdir(folder)]

    def corrupt(self, rand):
        """Overwrite the payload of a file, so that the next load of the chunk fails."""
        files = self.files()
        if files:
            try:
                with open(rand.choice(files), "r+b") as file:
                    file.seek(-64, os.SEEK_END)
                    file.write(b"\xff" * 64)
            except FileNotFoundError:
                pass  # evicted meanwhile

    def delete(self, rand):
        """Delete a chunk as `kvtier rm` does."""
        listed = self.listed()
        if listed:
            self.disk.run([_store.Request(_lib.OP_DELETE, rand.choice(listed).encode())])

    def listed(self):
        out = subprocess.run([KVTIER, "ls", "--json", "--set", "remote_url=" + self.url],
                             check=True, stdout=subprocess.PIPE).stdout
        keys = [json.loads(line) for line in out.splitlines()]
        return [one["key"] for one in keys if "key" in one]

    def request(self, rand, name):
        n = rand.randrange(5, 90)
        self.sim.add(name, prompt(rand.randrange(25), n, rand.choice((0, 16, 40))),
                     max_tokens=rand.randrange(1, 8))

    def operate(self, rand, name):
        requests, choice = list(self.sim.scheduler.requests), rand.random()
        if choice < 0.002:
            self.sim.reset()
        elif choice < 0.01:
            self.delete(rand)
        elif choice < 0.04:
            self.corrupt(rand)
        elif choice < 0.06 and requests:
            self.sim.abort(rand.choice(requests))
        elif choice < 0.2 and len(requests) < 12:
            self.request(rand, name)
        else:
            self.sim.step()

    def chunks(self, tokens):
        """Return (sequence, [(name of the chunk in keys, block hashes)]) of a prompt."""
        engine = self.sim.connector._scheduler._engine
        seq, n = engine.seq(array("i", tokens)), len(tokens) // CHUNK
        hashes, chunks = hashes_of(tokens), seq.chunks(0, n)
        return seq, [("%x" % number if number >= 0 else "-%x" % -number,
                      hashes[i * CHUNK // BLOCK:(i + 1) * CHUNK // BLOCK])
                     for i, number in enumerate(
                         int.from_bytes(chunks[at + 16:at + 24], "little", signed=True)
                         for at in range(0, len(chunks), _lib.CHUNK_BYTES))]

    def check(self):
        settle(self.sim, self.router)
        groups = range(len(self.sim.windows))
        names = collections.Counter(key.split("@")[3] for key in self.listed())
        expected = collections.Counter()
        memory = 0
        for tokens in {tuple(one) for one in self.sim.prompts.values()}:
            seq, chunks = self.chunks(list(tokens))
            for name, hashes in chunks:
                for one in hashes:
                    if names[name]:
                        expected[one] = names[name]
            if len(groups) == 1:
                memory += self.check_lookup(seq, chunks)
            seq.free()
        found = collections.Counter(
            one for group in groups for one in self.router.have("STORAGE", group))
        self.assertEqual(found, expected)
        return len(found), memory

    def check_lookup(self, seq, chunks):
        """Compare a lookup with the subscriber; return the chunks of the hit in host memory."""
        engine = self.sim.connector._scheduler._engine
        media = [{medium for medium in ("CPU", "STORAGE")
                  if self.router.have(medium).issuperset(hashes)} for _, hashes in chunks]
        for medium in ("CPU", "STORAGE"):  # a chunk's blocks come and go together
            have = self.router.have(medium)
            for _, hashes in chunks:
                self.assertIn(len(have.intersection(hashes)), (0, len(hashes)))
        end = next((i for i, found in enumerate(media) if not found), len(media))
        while (hit := engine.lookup(seq, 0, len(chunks) * CHUNK)) is None:
            time.sleep(0.001)
        in_memory = seq.in_memory(0, end)
        engine.release(seq)
        self.assertEqual(hit, end * CHUNK)
        self.assertEqual(list(in_memory), ["CPU" in found for found in media[:end]])
        return sum(in_memory)

    def storm(self, windows, depth, n_operations):
        rand = random.Random(depth)
        self.open(windows, depth)
        totals = collections.Counter()
        fail = Worker._fail
        for i in range(n_operations):
            with mock.patch.object(Worker, "_fail", lambda *args: (
                    totals.update(failed=1), fail(*args))[1]):
                self.operate(rand, "r%d" % i)
            if i % 1000 == 999:
                in_storage, in_memory = self.check()
                totals.update(storage=in_storage, memory=in_memory)
        self.assertGreater(totals["storage"], 0)
        removed = self.router.n["BlockRemoved", "STORAGE"], self.router.n["BlockRemoved", "CPU"]
        self.assertGreater(min(removed), n_operations // 100)
        self.assertGreater(totals["failed"], 0)
        self.assertGreater(self.sim.weights, 0)
        return totals

    def test_after_10000_operations_the_subscriber_agrees_with_files_and_lookups(self):
        totals = self.storm((), 2, 10000)
        self.assertGreater(totals["memory"], 0)

    def test_so_do_several_groups(self):
        for windows in groupings((13,)):
            if windows:
                self.storm(windows, 1, 2000)


if __name__ == "__main__":
    unittest.main()
