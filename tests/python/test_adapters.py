# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: KV of an adapter's files is never used with other files."""

import collections
import os
import sys
import tempfile
import threading
import types
import unittest
from types import SimpleNamespace as Object
from unittest import mock

import fake

fake.stub_vllm()

from kvtier import _lib, vllm_adapters, vllm_files, vllm_meta  # noqa: E402
from kvtier.vllm_scheduler import Scheduler  # noqa: E402
from kvtier.vllm_worker import Worker  # noqa: E402
from test_logic import info, output, request  # noqa: E402

COMMIT, OTHER = "a" * 40, "b" * 40
FILE = "adapter_model.safetensors"


class Manager:
    """The methods of vLLM's WorkerLoRAManager that load adapters."""

    def __init__(self):
        self.during = lambda: None
        self.has = {}  # number -> content of the loaded files

    def list_adapters(self):
        return set(self.has)

    def set_active_adapters(self, requests, mapping=None):
        for lora in requests:
            if (lora.lora_int_id not in self.has
                    or getattr(lora, "load_inplace", False)):
                self.has[lora.lora_int_id] = self._load_adapter(lora)

    def _load_adapter(self, lora_request):
        self.during()
        with open(os.path.join(lora_request.lora_path, FILE), "rb") as file:
            return file.read()


def aggregate(first, *others):
    """Merge the ranks' reports like vLLM's KVOutputAggregator."""
    for other in others:
        first = other if first is None else first.aggregate(other)
    return first


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.lora = Object(lora_name="l", lora_path=self.folder, lora_int_id=1)
        self.write(b"one")
        module = types.ModuleType("vllm.lora.worker_manager")
        module.WorkerLoRAManager = type("WorkerLoRAManager", (Manager,), {
            "_load_adapter": Manager._load_adapter})
        had = sys.modules.get(module.__name__)
        sys.modules[module.__name__] = module
        self.addCleanup(lambda: sys.modules.pop(module.__name__) if had is None
                        else sys.modules.update({module.__name__: had}))
        for patch in (
                mock.patch.object(vllm_adapters, "_loaded", vllm_adapters.Contents()),
                mock.patch.object(vllm_adapters, "_held", {}),
                mock.patch.object(vllm_adapters, "_counts", collections.Counter()),
                mock.patch.object(vllm_adapters, "_unreported", []),
                mock.patch.object(vllm_adapters, "_WAIT_S", 600),
                mock.patch.object(vllm_adapters, "_copy_tensors", lambda model: True),
                # Names alone tell adapters apart.
                mock.patch.object(vllm_adapters, "_paths_count", lambda: False)):
            patch.start()
            self.addCleanup(patch.stop)
        self.manager = module.WorkerLoRAManager()
        self.worker = Object(model_runner=Object(lora_manager=self.manager))
        self.store = fake.Store(8)
        self.addCleanup(fake.install(_lib, self.store))
        self.infos = [info()]

    def watch(self):
        def initialize_from_config(self):
            return vllm_adapters.watch(sys._getframe())
        found = self.manager
        self.manager = initialize_from_config(self.worker)
        self.assertIn(self.manager, (None, found))

    def write(self, content):
        with open(os.path.join(self.folder, FILE),
                  "wb") as file:
            file.write(content)

    def adapter(self):
        return Object(**vars(self.lora)), vllm_adapters.digest(self.lora)


class Digest(Case):
    def test_the_digest_of_an_adapter_follows_its_files(self):
        seen = {vllm_adapters.digest(self.lora)}
        self.write(b"two")
        seen.add(vllm_adapters.digest(self.lora))
        with open(os.path.join(self.folder, "adapter_config.json"), "w") as file:
            file.write('{"r": 8}')
        seen.add(vllm_adapters.digest(self.lora))
        self.assertEqual(len(seen), 3)

    def test_how_vllm_reads_the_files_counts(self):
        seen = {vllm_adapters.digest(self.lora)}
        self.lora.base_model_name = "other"
        seen.add(vllm_adapters.digest(self.lora))
        self.lora.is_3d_lora_weight = True
        seen.add(vllm_adapters.digest(self.lora))
        self.assertEqual(len(seen), 3)

    def test_files_that_change_while_they_are_read_have_no_digest(self):
        digests, real = vllm_adapters.Digests(), vllm_adapters.digest

        def changing(lora):
            found = real(lora)
            self.write(b"three")
            return found
        with mock.patch.object(vllm_adapters, "digest", changing):
            with self.assertRaises(vllm_files.Unknown):
                digests._look("place", self.lora)
        self.assertEqual(digests._look("place", self.lora), real(self.lora))

    def test_a_hubs_adapter_counts_by_its_commit(self):
        repo = os.path.join(self.folder, "models--org--lora")
        os.makedirs(os.path.join(repo, "refs"))
        self.lora.lora_path = "org/lora"
        seen = set()
        with mock.patch.object(vllm_files, "_hub_cache", return_value=self.folder):
            for commit in (COMMIT, OTHER, COMMIT):
                snapshot = os.path.join(repo, "snapshots", commit)
                os.makedirs(snapshot, exist_ok=True)
                with open(os.path.join(snapshot, "adapter_model.bin"), "wb") as file:
                    file.write(b"same")
                with open(os.path.join(repo, "refs", "main"), "w") as file:
                    file.write(commit)
                seen.add(vllm_adapters.digest(self.lora))
        self.assertEqual(len(seen), 2)

    def test_a_missing_adapter_has_no_digest(self):
        for path in ("/does/not/exist", "s3://bucket/lora"):
            self.lora.lora_path = path
            with self.assertRaises(vllm_files.Unknown):
                vllm_adapters.digest(self.lora)

    def test_an_adapter_that_cannot_be_identified_is_logged_once(self):
        digests = vllm_adapters.Digests()
        self.lora.lora_path = "/does/not/exist"
        with self.assertLogs("vllm.kvtier") as said:
            for name in (None, "x"):
                self.lora.base_model_name = name
                digest_request = digests.request(self.lora)
                thread = digests._thread
                if thread is not None:
                    thread.join()
                self.assertEqual((digest_request.done, digest_request.digest), (True, None))
        self.assertEqual(len(said.output), 1)

    def test_no_thread_before_the_first_adapter(self):
        before = threading.active_count()
        digests = vllm_adapters.Digests()
        self.assertEqual(threading.active_count(), before)
        for content in (b"one", b"two", b"two"):
            self.write(content)
            digest_request = digests.request(self.lora)
            thread = digests._thread
            if thread is not None:
                thread.join()
            self.assertTrue(digest_request.done)
            self.assertEqual(digest_request.digest, vllm_adapters.digest(self.lora))
        for thread in threading.enumerate():
            if thread.name == "kvtier-adapters":
                thread.join()
        self.assertEqual(threading.active_count(), before)

    def test_digests_of_adapters_long_not_used_are_given_back(self):
        digests = vllm_adapters.Digests()
        with mock.patch.object(vllm_adapters, "_MAX_KNOWN", 2):
            for name in (None, "x", "y", "z"):
                self.lora.base_model_name = name
                digests._look((self.folder, name), self.lora)
        self.assertEqual([place[1] for place in digests._known], ["y", "z"])

    def test_a_tensorizer_adapter_has_no_digest(self):
        digests = vllm_adapters.Digests()
        digests._look("place", self.lora)
        self.lora.tensorizer_config_dict = {"uri": "elsewhere"}
        for find in (vllm_adapters.digest, lambda lora: digests._look("place", lora)):
            with self.assertRaises(vllm_files.Unknown):
                find(self.lora)

    def test_a_file_system_that_hangs_gathers_no_digest_requests(self):
        go, digests = threading.Event(), vllm_adapters.Digests()
        with mock.patch.object(vllm_adapters, "_MAX_KNOWN", 3), \
                mock.patch.object(digests, "_look", lambda place, lora: go.wait() and "d"):
            asked = []
            for name in range(9):
                self.lora.base_model_name = name
                asked.append(digests.request(self.lora))
            self.assertEqual([one.done for one in asked], [False] * 3 + [True] * 6)
            thread = digests._thread
            go.set()
            thread.join()
        self.assertEqual([one.digest for one in asked], ["d"] * 3 + [None] * 6)
        self.assertFalse(digests._pending or digests._queue)

    def test_a_process_without_room_for_a_thread(self):
        digests = vllm_adapters.Digests()
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError):
            digest_request = digests.request(self.lora)
        self.assertEqual((digest_request.done, digest_request.digest), (True, None))
        digest_request = digests.request(self.lora)
        while not digest_request.done:
            thread = digests._thread
            if thread is not None:
                thread.join()
        self.assertEqual(digest_request.digest, vllm_adapters.digest(self.lora))

    def test_an_unchanged_file_is_not_read_again(self):
        digests = vllm_adapters.Digests()
        digests._look("place", self.lora)
        with mock.patch.object(vllm_adapters, "digest",
                               side_effect=AssertionError("read again")):
            digests._look("place", self.lora)


class Order(Case):
    """Stores and loads that a worker may do after adapter loads and file changes in each order."""

    def setUp(self):
        super().setUp()
        self.watch()

    def may(self, adapter):
        lora, digest = adapter
        return (vllm_adapters.ensure(self.manager, lora, digest),
                vllm_adapters.may_store(self.manager, vllm_adapters.keys(lora), digest,
                                        vllm_adapters.ANY))

    def load(self):
        """Load the adapter again, like vLLM after an eviction or at a client's request."""
        self.manager.has.pop(self.lora.lora_int_id, None)
        self.manager.set_active_adapters([self.lora])

    def test_the_adapter_that_was_loaded(self):
        self.load()
        self.assertEqual(self.may(self.adapter()), (True, True))
        self.load()  # after an eviction
        self.assertEqual(self.may(self.adapter()), (True, True))

    def test_files_replaced_after_the_adapter_was_loaded(self):
        self.load()
        old = self.adapter()
        self.write(b"two")
        # A request from before the change, and a request with the new files.
        self.assertEqual(self.may(old), (True, True))
        self.assertEqual(self.may(self.adapter()), (False, False))

    def test_reloaded_in_place_or_after_an_eviction(self):
        self.load()
        old = self.adapter()
        self.write(b"two")
        with self.assertLogs("vllm.kvtier") as said:
            self.load()
        self.assertEqual(len(said.output), 1)
        for adapter in (old, self.adapter()):
            self.assertEqual(self.may(adapter), (False, False))
        self.write(b"one")
        with mock.patch.object(vllm_adapters.log, "warning") as said:
            self.load()
        said.assert_not_called()
        self.assertEqual(self.may(old), (False, False))

    def test_kv_that_arrives_before_the_adapter(self):
        old = self.adapter()
        self.assertEqual(self.may(old), (True, True))
        self.write(b"two")
        self.assertEqual(self.may(self.adapter()), (False, False))
        with mock.patch.object(vllm_adapters.log, "warning") as said:
            self.load()
        said.assert_not_called()
        self.assertEqual(self.manager.has, {1: b"one"})
        self.assertEqual(self.may(old), (True, True))
        with self.assertLogs("vllm.kvtier"):
            self.load()  # after an eviction
        self.assertEqual(self.manager.has, {1: b"two"})
        self.assertEqual(self.may(old), (False, False))

    def test_files_replaced_before_the_kv_arrives(self):
        old = self.adapter()
        self.assertTrue(vllm_adapters.may_load(self.manager, *old))
        self.write(b"two")
        self.assertEqual(self.may(old), (False, False))
        # KV of the old files never reached vLLM.
        self.assertEqual(self.may(self.adapter()), (True, True))
        self.load()
        self.assertEqual(self.manager.has, {1: b"two"})

    def test_kv_that_arrives_after_an_eviction(self):
        self.load()
        old = self.adapter()
        self.manager.has.clear()
        self.assertEqual(self.may(old), (True, True))
        self.write(b"two")
        self.load()
        self.assertEqual(self.manager.has, {1: b"one"})

    def test_the_copy_of_a_number_that_another_adapter_takes(self):
        old = self.adapter()
        self.assertEqual(self.may(old), (True, True))
        with tempfile.TemporaryDirectory() as folder:
            self.folder = self.lora.lora_path = folder
            self.write(b"two")
            with self.assertLogs("vllm.kvtier"):
                self.load()
        self.assertEqual(self.manager.has, {1: b"two"})
        self.assertFalse(vllm_adapters._held)
        self.assertEqual(self.may(old), (False, False))

    def test_no_more_adapters_than_may_be_kept_for_vllm(self):
        with mock.patch.object(vllm_adapters, "_MAX_HELD", 2):
            for number in range(1, 4):
                self.lora.lora_name, self.lora.lora_int_id = "l%d" % number, number
                self.assertEqual(self.may(self.adapter()), (number < 3, number < 3))
        self.load()
        self.assertEqual(self.may(self.adapter()), (True, True))

    def test_an_adapter_that_cannot_be_loaded(self):
        old = self.adapter()
        self.manager.during = lambda: self.fail("as vLLM of a wrong rank")
        with self.assertLogs("vllm.kvtier"):
            self.assertEqual(self.may(old), (False, False))
        self.manager.during = lambda: None
        self.load()
        self.assertEqual(self.may(old), (True, True))

    def test_an_adapter_that_is_read_in_each_step(self):
        old = self.adapter()
        self.assertEqual(self.may(old), (True, True))
        self.write(b"two")
        self.lora.load_inplace = True
        with self.assertLogs("vllm.kvtier"):
            self.load()
        self.assertEqual(self.manager.has, {1: b"two"})
        for adapter in (old, self.adapter()):
            self.assertEqual(self.may(adapter), (False, False))

    def test_files_replaced_while_they_are_loaded(self):
        self.manager.during = lambda: self.write(b"two")
        with self.assertLogs("vllm.kvtier"):
            self.load()
        self.assertEqual(self.may(self.adapter()), (False, False))

    def test_a_model_whose_tensors_cannot_be_copied(self):
        with mock.patch.object(vllm_adapters, "_copy_tensors", lambda model: False), \
                self.assertLogs("vllm.kvtier"):
            self.load()
        self.assertEqual(self.may(self.adapter()), (False, False))

    def test_no_exception_comes_between_vllm_and_its_adapter(self):
        with mock.patch.object(vllm_adapters, "digest", side_effect=OverflowError), \
                self.assertLogs("vllm.kvtier"):
            self.load()
        self.assertEqual(self.may(self.adapter()), (False, False))

    def test_another_adapter_of_the_same_name(self):
        self.load()
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, FILE), "wb") as file:
                file.write(b"two")
            self.lora.lora_path = folder
            with self.assertLogs("vllm.kvtier"):
                self.load()
            self.assertEqual(self.may(self.adapter()), (False, False))

    def test_reloaded_in_place_from_another_path(self):
        with mock.patch.object(vllm_adapters, "_paths_count", lambda: True):
            self.load()
            old = self.adapter()
            self.assertEqual(self.may(old), (True, True))
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, FILE), "wb") as file:
                    file.write(b"two")
                self.lora.lora_path = folder
                with self.assertLogs("vllm.kvtier"):
                    self.load()  # the number stays
                # Requests of the old path are computed with the new files.
                for adapter in (old, self.adapter()):
                    self.assertEqual(self.may(adapter), (False, False))
                # vLLM's server unloads and loads the adapter: the number changes.
                self.lora.lora_int_id = 2
                self.load()
                self.assertEqual(self.may(self.adapter()), (True, True))

    def test_a_number_that_another_adapter_has(self):
        self.load()
        self.lora.lora_name = "other"
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, FILE), "wb") as file:
                file.write(b"two")
            self.lora.lora_path = folder
            # vLLM finds the adapter by the number.
            self.assertEqual(self.may(self.adapter()), (False, False))

    def test_no_more_adapters_than_can_be_remembered(self):
        with mock.patch.object(vllm_adapters, "_MAX_CONTENTS", 2):
            self.load()
            first = self.adapter()
            self.lora.lora_name, self.lora.lora_int_id = "other", 2
            self.load()
            self.assertEqual(self.may(self.adapter()), (False, False))
            self.assertEqual(self.may(first), (True, True))

    def test_a_vllm_whose_loads_cannot_be_watched(self):
        for lose in (lambda: setattr(self.worker, "model_runner", None),
                     lambda: delattr(sys.modules["vllm.lora.worker_manager"],
                                     "WorkerLoRAManager")):
            self.doCleanups()
            self.setUp()
            lose()
            with self.assertLogs("vllm.kvtier"):
                self.watch()
            self.assertIsNone(self.manager)
            self.assertEqual(self.may(self.adapter()), (False, False))


class Halves(Case):
    """The connector's scheduler half and worker half together."""

    def load(self):
        self.manager.has.clear()
        self.manager.set_active_adapters([self.lora])

    def setUp(self):
        super().setUp()
        self.watch()
        groups = [one.to_c() for one in self.infos]
        self.scheduler = Scheduler(
            _lib.Engine(self.store.config(), _lib.ROLE_SCHEDULER, groups, None),
            [self.infos], {}, True, True)
        self.worker = Worker(
            _lib.Engine(self.store.config(), _lib.ROLE_WORKER, groups, None),
            self.infos, 16, self.manager)
        self.worker._ready = True
        self.stored = []
        self.worker._engine.store = self.stored.extend
        self.started = []
        self.worker._engine.load = lambda ios: self.started.append(ios) or Object()

    def look_up(self, name):
        """Return a request's lookup result once the adapter's digest is known."""
        req = request(name, lora_request=self.lora)
        self.scheduler.new_request(req)
        thread = self.scheduler._digests._thread
        if thread is not None:
            thread.join()
        return req, self.scheduler.matched_tokens(req, 0)

    def plan(self, req, n):
        meta = self.scheduler.build_meta(
            output({req.request_id: n}, {req.request_id: (list(range(1, 17)),)}))
        req.num_computed_tokens += n
        self.assertFalse(getattr(meta, "saves", None))
        return meta

    def save(self, req, n=61):
        self.worker.save(self.plan(req, n))

    def test_until_the_digest_is_known_the_lookup_has_no_answer(self):
        go = threading.Event()
        self.store.answer = 40
        real = vllm_adapters.digest

        def slow(lora):
            go.wait()
            return real(lora)
        with mock.patch.object(vllm_adapters, "digest", slow):
            req = request(lora_request=self.lora)
            self.assertEqual(self.scheduler.matched_tokens(req, 0), (None, False))
            self.assertEqual(self.store.lookups, 0)
            # vLLM computes the request nevertheless: nothing is stored.
            meta = self.scheduler.build_meta(
                output({"a": 61}, {"a": (list(range(1, 17)),)}))
            self.assertFalse(meta.saves or meta.adapter_saves)
            thread = self.scheduler._digests._thread
            go.set()
            thread.join()
        self.assertEqual(self.scheduler.matched_tokens(req, 0), (40, True))

    def test_a_file_system_that_hangs_does_not_hold_a_request(self):
        go = threading.Event()
        self.store.answer = 40
        with mock.patch.object(vllm_adapters, "digest", lambda lora: go.wait()), \
                mock.patch.object(vllm_adapters, "_WAIT_S", -1):
            req = request(lora_request=self.lora)
            self.assertEqual(self.scheduler.matched_tokens(req, 0), (0, False))
            thread = self.scheduler._digests._thread
            go.set()
            thread.join()
        self.assertEqual(self.store.lookups, 0)

    def test_the_adapter_that_was_loaded_is_stored_and_loaded(self):
        self.store.answer = 0
        req, answer = self.look_up("a")
        self.assertEqual(answer, (0, False))
        self.manager._load_adapter(self.lora)
        self.save(req)
        self.assertEqual(len(self.stored), 1)
        self.store.answer = 40
        req, answer = self.look_up("b")
        self.scheduler.allocated(
            req, Object(get_block_ids=lambda: (list(range(1, 17)),)), 40)
        self.worker.start_loads(self.scheduler.build_meta(output()))
        self.assertEqual(len(self.started), 1)
        self.assertFalse(self.scheduler._load_adapters)  # each plan is sent once

    def test_kv_of_another_adapter_is_not_stored(self):
        self.store.answer = 0
        req, _ = self.look_up("a")
        self.write(b"two")
        self.manager._load_adapter(self.lora)
        self.save(req)
        self.assertFalse(self.stored)

    def step(self, req, n):
        """Store in a step of the worker.  Return a function that reports the step to the
        scheduler, together with the reports of other ranks."""
        self.save(req, n)
        report = self.worker.report()
        return lambda *others: self.scheduler.received(Object(
            finished_recving=None, kv_connector_worker_meta=aggregate(report, *others)))

    def have_two_ranks(self):
        self.scheduler._ranks = self.scheduler._saves._ranks = vllm_adapters.Ranks(2)

    def test_ranks_that_load_different_files(self):
        """The KV of a rank depends on the adapters of all ranks."""
        self.have_two_ranks()
        self.store.answer = 0
        keys, digest = vllm_adapters.keys(self.lora), vllm_adapters.digest(self.lora)
        for others, stored in (([(keys, "other")], 0), ([(keys, None)], 0),
                               ([(keys, digest)], 1)):
            with self.subTest(others):
                self.have_two_ranks()
                req, _ = self.look_up("a%s" % others)
                self.load()
                received = self.step(req, 29)
                self.assertFalse(self.stored)
                received(vllm_meta.Report(others))
                self.step(req, 29)
                self.assertEqual(len(self.stored), stored)
                vllm_adapters._counts.clear()

    def test_a_rank_that_loads_other_files_after_an_eviction(self):
        """With overlapping batches, two steps are planned before a report arrives."""
        self.have_two_ranks()
        self.store.answer = 0
        keys, digest = vllm_adapters.keys(self.lora), vllm_adapters.digest(self.lora)
        req, _ = self.look_up("a")
        self.load()
        self.step(req, 29)(vllm_meta.Report([(keys, digest)]))
        plans = [self.plan(req, 16), self.plan(req, 16)]
        self.assertTrue(all(plan.adapter_saves for plan in plans))
        self.load()
        for plan in plans:
            self.worker.save(plan)
            report = self.worker.report()
            if report:
                self.scheduler.received(Object(
                    finished_recving=None, kv_connector_worker_meta=aggregate(
                        report, vllm_meta.Report([(keys, "other")]))))
        self.assertFalse(self.stored)
        self.assertFalse(self.plan(self.look_up("b")[0], 61).adapter_saves)

    def start_load(self):
        """Start the load of a request in the worker; return the request."""
        self.store.answer = 40
        req, answer = self.look_up("a")
        self.assertEqual(answer, (40, True))
        self.scheduler.allocated(
            req, Object(get_block_ids=lambda: (list(range(1, 17)),)), 40)
        self.worker.start_loads(self.scheduler.build_meta(output()))
        return req

    def end_load(self):
        """End the load; return (ended loads, failed loads, bad blocks)."""
        (load, _), = self.worker._loads.values()
        load.status, load.free = lambda at, chunk: 0, lambda: None
        self.worker._engine.poll = lambda: [load]
        return self.worker.finished(set()) + (self.worker.take_bad_blocks(),)

    def test_kv_of_new_files_is_not_loaded_for_the_old_adapter(self):
        self.manager._load_adapter(self.lora)
        self.write(b"two")
        self.start_load()
        self.assertFalse(self.started)
        self.assertEqual(self.worker.finished(set())[0], {"a"})

    def test_vllm_computes_with_the_adapter_whose_kv_was_loaded(self):
        self.start_load()
        self.assertEqual(self.end_load(), ({"a"}, set(), set()))
        self.write(b"two")
        self.manager.set_active_adapters([self.lora])
        self.assertEqual(self.manager.has, {1: b"one"})

    def test_files_replaced_while_kv_is_loaded(self):
        for vllm_first in (False, True):
            with self.subTest(vllm_first):
                self.doCleanups()
                self.setUp()
                self.start_load()
                self.write(b"two")
                if vllm_first:
                    self.manager.set_active_adapters([self.lora])
                self.assertEqual(self.end_load(), ({"a"}, set(), set(range(1, 11))))
                self.manager.set_active_adapters([self.lora])
                self.assertEqual(self.manager.has, {1: b"two"})

    def test_no_adapter_is_loaded_for_a_request_that_has_ended(self):
        self.start_load()
        (load, _), = self.worker._loads.values()
        load.cancel = lambda: None
        self.worker._engine.poll = list
        self.assertEqual(self.worker.finished({"a"}), (set(), set()))
        self.assertEqual(self.end_load()[0], {"a"})
        self.assertFalse(vllm_adapters._held)

    def test_an_adapter_that_is_read_in_each_step_is_not_looked_up(self):
        self.store.answer = 40
        self.lora.load_inplace = True
        req, answer = self.look_up("a")
        self.assertEqual(answer, (0, False))
        self.assertEqual(self.store.lookups, 0)
        self.manager.set_active_adapters([self.lora])
        self.save(req)
        self.assertFalse(self.stored)

    def test_a_name_whose_files_changed_is_not_looked_up(self):
        self.store.answer = 40
        _, answer = self.look_up("a")
        self.assertEqual(answer, (40, True))
        self.write(b"two")
        with self.assertLogs("vllm.kvtier"):
            req, answer = self.look_up("b")
        self.assertEqual(answer, (0, False))
        self.scheduler.finished(req)
        self.assertNotIn("b", self.scheduler._digest_requests)


if __name__ == "__main__":
    unittest.main()
