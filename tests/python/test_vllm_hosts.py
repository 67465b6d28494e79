# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler with the connector in an engine over several hosts, each with directories,
indexes and host memory of its own, over the real library.  Needs vLLM, no model and no GPU."""

import contextlib
import glob
import os
import random
import shutil
import tempfile
import unittest
from types import SimpleNamespace
from unittest import mock

import fake
from vllm_case import ALONE, groupings, prompt

if fake.HAVE_VLLM:
    import vllm_sim
    from kvtier import vllm_hosts
    from kvtier.vllm_worker import Worker
    from test_vllm_stages import REPORTS, failing
    from vllm_hosts_sim import Hosts
    from vllm_sim import CHUNK

MEMORY = {"local_cpu": True, "remote_url": None}  # no storage
SHARE = 1 if os.environ.get("KVTIER_TEST_ALL") else 3  # of the random operations
# Ranks on two hosts: layers of the stages, and tensor parallel size.
LAYOUTS = {"tp2": {}, "tp4": {"tp": 4}, "pp2": {"layers": (1, 2), "tp": 1},
           "pp2 tp2": {"layers": (1, 2)}, "four hosts": {"tp": 4, "n_hosts": 4}}


@unittest.skipUnless(fake.HAVE_VLLM and fake.have_library() and REPORTS,
                     "vLLM with reports of workers, or libkvtier.so, is not there")
class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def sim(self, **kwargs):
        sim = Hosts(self.folder, **kwargs)
        self.addCleanup(sim.close)
        return sim

    def hit(self, sim, name, tokens, **kwargs):
        """Run a request without vLLM's own cache; return the hit."""
        sim.scheduler.reset_prefix_cache()
        sim.add(name, tokens, **kwargs)
        sim.run(at_most=10**6)
        sim.flush()
        sim.check_rest()
        return sim.hits[name]

    def restarted(self, tokens, **kwargs):
        """Return the hit of a prompt in a new engine, and the ranks of failed loads."""
        with mock.patch.object(Worker, "_fail", failing()) as fail:
            sim = self.sim(**kwargs)
            hit = self.hit(sim, "a", tokens)
            sim.close()
        self.failed = fail.ranks
        return hit

    def files(self, host, rank=None, world=2):
        return sorted(glob.glob(os.path.join(
            self.folder, "host%d" % host, "kvtier",
            "*" if rank is None else "*@%d@%d@*" % (world, rank))))

    def lose(self, host, paths):
        """Delete files and the index of a host without an engine."""
        for path in paths:
            os.unlink(path)
        shutil.rmtree(os.path.join(self.folder, "host%d" % host, ".kvtier"))

    def held_back(self, sim, rank):
        """Return a list that, while not empty, keeps a rank from answering."""
        take, held = sim.answers(rank).take, [True]
        sim.answers(rank).take = lambda: {} if held else take()
        return held


class SeveralHosts(Case):
    def test_a_restarted_engine_loads_the_chunks_of_all_hosts(self):
        for name, layout in LAYOUTS.items():
            with self.subTest(name):
                self.assertEqual(self.restarted(prompt(1, 61), **layout), 0)
                self.assertEqual(self.restarted(prompt(1, 61), **layout), 56)
                shutil.rmtree(self.folder)

    def test_host_memory_of_all_hosts_is_found(self):
        for name, layout in LAYOUTS.items():
            with self.subTest(name):
                sim = self.sim(extra=MEMORY, **layout)
                self.assertEqual(self.hit(sim, "a", prompt(1, 61)), 0)
                self.assertEqual(self.hit(sim, "b", prompt(1, 61)), 56)
                sim.close()

    def test_the_tail_of_a_prompt_and_requests_with_tags_are_found(self):
        extra = {"save_unfull_chunk": True}
        sim = self.sim(extra=extra)
        for tags in {}, {"kv_transfer_params": {"lmcache.tag.user": "x"}}:
            self.assertEqual(self.hit(sim, "a%d" % len(tags), prompt(1, 61), **tags), 0)
            self.assertEqual(self.hit(sim, "b%d" % len(tags), prompt(1, 61), **tags), 60)

    def test_storage_that_all_hosts_share_is_found(self):
        with tempfile.TemporaryDirectory() as shared:
            for prefix in "", "fault://shared=1/":
                for seed, hit in (prefix != "", 0), (prefix != "", 56):
                    self.assertEqual(self.restarted(prompt(seed, 61), extra={
                        "remote_url": "%sfs://%s" % (prefix, shared)}), hit)
                    self.assertFalse(self.failed)

    def test_a_hit_needs_the_chunks_of_every_host(self):
        tokens = prompt(1, 61)
        for windows in groupings((), (10,), (13, 30), ALONE):
            for host in range(2):
                with self.subTest(windows=windows, host=host):
                    self.restarted(tokens, windows=windows)
                    most = self.restarted(tokens, windows=windows)
                    self.assertGreater(most, 0)
                    files = self.files(host)
                    self.lose(host, random.Random(host).sample(files, len(files) // 2))
                    less = self.restarted(tokens, windows=windows)
                    self.assertLess(less, most)
                    self.assertFalse(self.failed)
                    self.assertEqual(self.restarted(tokens, windows=windows), most)
                    shutil.rmtree(self.folder)

    def test_hosts_agree_on_the_windows_of_a_shorter_hit(self):
        """The first host lacks the last chunk, the second host the windows of a shorter hit."""
        for windows in groupings((10,)):
            self.restarted(prompt(1, 61), windows=windows)
            sim = self.sim(windows=windows)
            sim.step()  # the workers report their hosts
            answers = {0: {60: 48, 48: 48, 24: 24}, 1: {60: 56, 48: 24, 24: 24}}
            for rank, by_limit in answers.items():
                sim.answers(rank)._lookup = lambda sought, by=by_limit: (
                    by[sought.most])
            with mock.patch.object(sim.connector._scheduler, "allocated") as allocated:
                sim.add("a", prompt(1, 61))
                while not allocated.called:
                    sim.step()
            self.assertEqual(allocated.call_args.args[2], 24)

    def test_a_damaged_chunk_of_another_host_ends_in_a_computed_prompt(self):
        for host in range(2):
            self.restarted(prompt(1, 61))
            with open(self.files(host)[0], "r+b") as file:
                file.write(b"damage")
            self.assertLess(self.restarted(prompt(1, 61)), 56)
            self.assertEqual(self.failed, [host])
            self.assertEqual(self.restarted(prompt(1, 61)), 56)

    def test_a_host_that_restarts_empty_is_filled_again(self):
        self.restarted(prompt(1, 61))
        shutil.rmtree(os.path.join(self.folder, "host1"))
        for hit in 0, 56:
            self.assertEqual(self.restarted(prompt(1, 61)), hit)
            self.assertFalse(self.failed)

    def test_several_hosts_are_asked_although_the_configuration_does_not_name_them(self):
        """As with Ray."""
        self.restarted(prompt(1, 61))
        configure = Hosts._configure

        def as_ray(sim, *args, **kwargs):
            made = configure(sim, *args, **kwargs)
            made.parallel_config.nnodes = 1
            made.parallel_config.distributed_executor_backend = "ray"
            return made

        with mock.patch.object(Hosts, "_configure", as_ray):
            self.assertEqual(self.restarted(prompt(1, 61)), 56)
            self.assertIsNone(self.sim(n_hosts=1).connector._scheduler)

    def test_one_host_asks_no_worker(self):
        for layout in {}, {"layers": (1, 2)}:
            sim = self.sim(n_hosts=1, **layout)
            self.assertEqual(bool(sim.connector._scheduler), not layout)
            self.hit(sim, "a", prompt(1, 61))
            with mock.patch.object(vllm_hosts.Answers, "receive") as asked:
                self.assertEqual(self.hit(sim, "b", prompt(1, 61)), 56)
            self.assertIsNone(sim.lookups())
            asked.assert_not_called()
            sim.close()
            shutil.rmtree(self.folder)

    def test_pins_of_several_hosts_are_a_warning(self):
        sim = self.sim(extra={"max_pinned_size": 1})
        with self.assertLogs("vllm.kvtier", "WARNING") as said:
            sim.step()
        self.assertIn("max_pinned_size has no effect", str(said.output))

    def test_a_request_counts_once_although_its_lookup_is_repeated(self):
        for n_hosts in 1, 2:
            with self.subTest(n_hosts=n_hosts):
                sim = self.sim(n_hosts=n_hosts, extra={"lookup_timeout_ms": 100})
                with self.assertLogs("vllm.kvtier", "WARNING"):  # no prefill engine stores
                    self.hit(sim, "a", prompt(1, 61), kv_transfer_params={
                        "do_remote_prefill": True, "remote_num_tokens": 56})
                self.hit(sim, "b", prompt(1, 61))
                sim.step()
                self.assertEqual([sum(stats.get(name, 0) for stats in sim.stats)
                                  for name in ("lookup_tokens", "hit_tokens")], [120, 56])
                sim.close()
                shutil.rmtree(self.folder)

    def test_a_host_with_another_chunk_size_is_one_warning(self):
        sim = self.sim(of_host={1: {"chunk_size": 2 * CHUNK}})
        with self.assertLogs("vllm.kvtier", "WARNING") as said:
            for name in "abc":
                sim.scheduler.reset_prefix_cache()
                sim.add(name, prompt(1, 61))
                sim.run()
        self.assertEqual(sim.hits, dict.fromkeys("abc", 0))
        self.assertEqual(len(said.output), 1, said.output)
        self.assertIn("chunk_size is 16 in the worker of rank 1, and 8 in the scheduler",
                      said.output[0])
        self.assertFalse(self.files(0))

    # ------------------------------------------------------------ late answers

    def test_a_request_waits_for_the_answer_of_a_late_host(self):
        self.restarted(prompt(1, 61))
        sim = self.sim()
        held = self.held_back(sim, 1)
        sim.add("a", prompt(1, 61))
        for _ in range(50):
            sim.step()
        self.assertNotIn("a", sim.hits)
        held.clear()
        sim.run(at_most=10**6)
        sim.check_rest()
        self.assertEqual(sim.hits, {"a": 56})

    def test_a_prompt_is_computed_if_a_host_does_not_answer(self):
        self.restarted(prompt(1, 61))
        with mock.patch.object(vllm_hosts, "_MARGIN_S", -0.9):
            sim = self.sim(extra={"lookup_timeout_ms": 10, "blocking_timeout_secs": 1})
            held = self.held_back(sim, 1)
            for name in "ab":
                sim.add(name, prompt(ord(name), 61))
            with self.assertLogs("vllm.kvtier") as said:
                sim.run(at_most=10**6)
        self.assertEqual(str(said.output).count("only 1 of 2 workers answered"), 1)
        self.assertEqual(sim.hits, {"a": 0, "b": 0})
        held.clear()
        self.assertEqual(self.hit(sim, "c", prompt(1, 61)), 56)

    def test_an_answer_after_a_reset_does_not_count(self):
        sim = self.sim(extra=MEMORY)
        self.hit(sim, "a", prompt(1, 61))
        held = self.held_back(sim, 1)
        sim.scheduler.reset_prefix_cache()
        sim.add("b", prompt(1, 61))
        for _ in range(5):
            sim.step()
        self.assertTrue(sim.reset())
        held.clear()
        sim.run(at_most=10**6)
        sim.check_rest()
        self.assertEqual(sim.hits["b"], 0)

    # ------------------------------------------------------- resets and leases

    def test_a_reset_reaches_the_memory_and_directories_of_all_hosts(self):
        for extra in MEMORY, {}:
            sim = self.sim(extra=extra)
            self.hit(sim, "a", prompt(1, 61))
            self.assertTrue(sim.reset())
            self.assertEqual(self.hit(sim, "b", prompt(1, 61)), 0)
            self.assertEqual(self.hit(sim, "c", prompt(1, 61)), 56)
            self.assertEqual([sim.found(rank, prompt(1, 61)) for rank in range(2)], [56, 56])
            sim.close()

    def crowd(self, sim, rank, n=400):
        """Store n chunks of other prompts on a rank's host."""
        engine = sim.ranks[rank].half._engine
        for seed in range(n // 50):
            tokens = prompt(1000 + seed, 50 * CHUNK)
            for at in range(50):
                chunk = sim.chunks(tokens)[at * fake.CHUNK_BYTES:][:fake.CHUNK_BYTES]
                engine.store([(0, chunk, b"\1\0\0\0\2\0\0\0", None)])
                engine.flush(60000)

    def tiny(self, **kwargs):
        """Return an engine whose second host has memory for few chunks, and no storage."""
        return self.sim(extra=MEMORY, of_host={1: {"max_local_cpu_size": 0.001}}, **kwargs)

    def test_a_lease_protects_the_chunks_of_another_host_until_the_load_ends(self):
        tokens = prompt(1, 61)
        sim = self.tiny()
        self.hit(sim, "a", tokens)
        sim.scheduler.reset_prefix_cache()
        sim.add("b", tokens)
        allocate = sim.scheduler.kv_cache_manager.allocate_slots
        sim.scheduler.kv_cache_manager.allocate_slots = lambda *args, **kwargs: None
        for _ in range(5):
            sim.step()  # the hit is known, and vLLM has no blocks for the request
        self.crowd(sim, 1)
        self.assertEqual(sim.found(1, tokens), 56)
        sim.scheduler.kv_cache_manager.allocate_slots = allocate
        with mock.patch.object(Worker, "_fail", failing()) as fail:
            sim.run(at_most=10**6)
        self.assertEqual((sim.hits["b"], fail.ranks), (56, []))
        sim.scheduler.schedule()
        self.hit(sim, "other", prompt(2, 9))
        self.crowd(sim, 1)
        self.assertEqual(sim.found(1, tokens), 0)
        self.assertEqual(self.hit(sim, "c", tokens), 0)

    def test_an_aborted_request_leaves_no_lease_on_another_host(self):
        tokens = prompt(1, 61)
        sim = self.tiny()
        self.hit(sim, "a", tokens)
        sim.scheduler.reset_prefix_cache()
        sim.add("b", tokens)
        sim.step()
        self.assertEqual(sim.n_sought(), [1, 1])
        sim.abort("b")
        sim.run()
        sim.check_rest()
        self.assertEqual(sim.n_sought(), [0, 0])
        self.crowd(sim, 1)
        self.assertEqual(sim.found(1, tokens), 0)


@unittest.skipUnless(fake.HAVE_VLLM, "vLLM is not installed")
class Times(unittest.TestCase):
    """The times of a lookup of two ranks, with a clock of the test."""

    def setUp(self):
        self.now = 1000.0
        patch = mock.patch.object(vllm_hosts, "time", SimpleNamespace(
            monotonic=lambda: self.now))
        patch.start()
        self.addCleanup(patch.stop)
        self.seq = mock.Mock(tags="", **{"n_tokens.return_value": 61, "chunks.return_value": b""})

    def lookups(self, pin=300):
        return vllm_hosts.Lookups(SimpleNamespace(chunk_tokens=CHUNK), {
            "pin_timeout_sec": pin, "lookup_timeout_ms": 3000, "blocking_timeout_secs": 10},
            n_ranks=2, has_windows=False)

    def turns(self, lookups):
        """Send the questions; return them as [(key, turn)]."""
        asks, _ = lookups.take_messages() or ({}, ())
        return [(key, ask[0]) for key, ask in asks.items()]

    def answer(self, lookups, question, *ranks):
        lookups.answered({question: {rank: 56 for rank in ranks}})

    def test_an_answer_counts_for_a_few_seconds(self):
        """A chunk's life may end soon after the answer."""
        for ranks in ([0, 1], [1, 0]):
            lookups = self.lookups()
            self.assertIsNone(lookups.lookup(self.seq, 0, 60))
            [question] = self.turns(lookups)
            self.now += 140  # the workers read the chunks
            for rank in ranks:
                self.now += 1
                self.answer(lookups, question, rank)
            for _ in range(3):
                self.now += 1
                self.assertEqual(lookups.lookup(self.seq, 0, 60), 56)
            self.now += 1  # vLLM has had no room for the request
            self.assertIsNone(lookups.lookup(self.seq, 0, 60))
            [question] = self.turns(lookups)
            self.answer(lookups, question, 0, 1)
            self.assertEqual(lookups.lookup(self.seq, 0, 60), 56)

    def test_a_slow_answer_lets_the_scheduler_ask_again(self):
        lookups = self.lookups()
        self.assertIsNone(lookups.lookup(self.seq, 0, 60))
        [question] = self.turns(lookups)
        self.answer(lookups, question, 0)
        self.now += 6
        self.answer(lookups, question, 1)
        self.assertIsNone(lookups.lookup(self.seq, 0, 60))
        [question] = self.turns(lookups)
        self.answer(lookups, question, 0, 1)
        self.assertEqual(lookups.lookup(self.seq, 0, 60), 56)

    def test_a_request_waits_once_for_a_worker_that_does_not_answer(self):
        lookups = self.lookups()
        self.assertIsNone(lookups.lookup(self.seq, 0, 60))
        [question] = self.turns(lookups)
        self.answer(lookups, question, 0)
        self.now += 18
        with self.assertLogs("vllm.kvtier"):
            self.assertEqual(lookups.lookup(self.seq, 0, 60), 0)
        self.now += 100  # vLLM has had no room for the request
        self.assertEqual(lookups.lookup(self.seq, 0, 60), 0)
        self.now += 32
        self.assertIsNone(lookups.lookup(self.seq, 0, 60))

    def test_a_lookup_that_is_repeated_after_the_leases_asks_again(self):
        lookups = self.lookups(pin=8)
        self.assertIsNone(lookups.lookup(self.seq, 0, 60))
        [question] = self.turns(lookups)
        self.now += 3
        self.answer(lookups, question, 0, 1)
        self.assertEqual(lookups.lookup(self.seq, 0, 60), 56)
        self.now += 2
        self.assertIsNone(lookups.lookup(self.seq, 0, 60))

    def test_a_late_answer_joins_no_answer_whose_lease_has_ended(self):
        lookups = self.lookups(pin=4)
        self.assertIsNone(lookups.lookup(self.seq, 0, 60))
        [question] = self.turns(lookups)
        self.answer(lookups, question, 0)
        self.now += 5
        self.answer(lookups, question, 1)
        with self.assertLogs("vllm.kvtier"):
            self.assertEqual(lookups.lookup(self.seq, 0, 60), 0)

    def test_the_time_until_a_question_is_sent_does_not_count(self):
        lookups = self.lookups()
        self.assertIsNone(lookups.lookup(self.seq, 0, 60))
        self.now += 100  # vLLM schedules no step
        [question] = self.turns(lookups)
        self.assertIsNone(lookups.lookup(self.seq, 0, 60))
        self.answer(lookups, question, 0, 1)
        self.assertEqual(lookups.lookup(self.seq, 0, 60), 56)


class Storm:
    """Random operations on an engine over several hosts.  Wrong KV fails in the model, and the
    oracle asks the library of each rank.  vanish: also delete or damage files of chunks."""

    def __init__(self, test, seed, vanish=False, **kwargs):
        self.test, self.rand, self.vanish = test, random.Random(seed), vanish
        self.kwargs = dict(kwargs, seed=seed)
        self.n, self.hits, self.promised = 0, 0, 0
        self.holds = []  # of ranks that do not answer
        self.open()

    def open(self):
        windows = self.kwargs.get("windows", ())
        self.sim = self.test.sim(n_blocks=40 * (1 + len(windows)), **self.kwargs)
        self.sim.step()
        self.holds = [self.test.held_back(self.sim, rank)
                      for rank in range(len(self.sim.ranks))]
        for held in self.holds:
            held.clear()
        half = self.sim.connector._scheduler
        allocated = half.allocated

        def check(request, blocks, external):
            if external > 0:
                self.check_promise(half._requests[request.request_id], external)
            allocated(request, blocks, external)
        half.allocated = check

    def check_promise(self, state, external):
        """Check that every rank can load the promised chunks."""
        self.promised += 1
        if self.vanish:  # a failed load removes damaged chunks despite leases
            if self.rand.random() < 0.2:
                self.spoil(self.test.files(self.rand.randrange(2)))
            return
        hit = state.computed + external
        chunks = state.seq.chunks(0, -(-state.seq.n_tokens() // CHUNK))
        for rank in self.sim.ranks:
            seq = rank.half._engine.seq_from_chunks(chunks, state.seq.tags)
            self.test.assertEqual(rank.half._engine.lookup(seq, state.computed, hit), hit)
            rank.half._engine.release(seq)
            seq.free()

    def run(self, n_ops):
        ops = {self.add: 60, self.abort: 12, self.late: 20, self.rest: 2, self.reset_cache: 4,
               self.reset: 3, self.damage: 30 * self.vanish}
        for _ in range(n_ops):
            self.rand.choices(list(ops), ops.values())[0]()
            for _ in range(self.rand.randrange(3)):
                self.sim.step()
        self.rest()
        self.sim.close()

    def prompt(self):
        n = self.rand.randrange(5, 90)
        return prompt(self.rand.randrange(14), n, min(n, self.rand.choice((0, 16, 40))))

    def add(self):
        self.n += 1
        self.sim.add("r%d" % self.n, self.prompt(), max_tokens=self.rand.randrange(1, 12))

    def abort(self):
        live = list(self.sim.scheduler.requests)
        if live:
            self.sim.abort(self.rand.choice(live))

    def late(self):
        held = self.rand.choice(self.holds)
        if held:
            held.clear()
        else:
            held.append(True)

    def reset_cache(self):
        self.sim.scheduler.reset_prefix_cache()

    def reset(self):
        self.sim.reset()

    def rest(self):
        """Run all requests, then compare a hit with the oracle's."""
        for held in self.holds:
            held.clear()
        self.sim.run(at_most=10**6)
        self.sim.flush()
        self.sim.check_rest()
        tokens = self.prompt()
        want = len(tokens) - 1
        while True:
            least = min(self.sim.found(rank, tokens, want)
                        for rank in range(len(self.sim.ranks)))
            if least == want:
                break
            want = least
        self.n += 1
        hit = self.test.hit(self.sim, "r%d" % self.n, tokens)
        if self.vanish:
            self.test.assertLessEqual(hit, want)
        else:
            self.test.assertEqual(hit, want)
        self.hits += hit > 0

    def damage(self):
        files = self.test.files(self.rand.randrange(2))
        self.spoil(self.rand.sample(files, min(1, len(files))))

    def spoil(self, files):
        """Delete or damage files of chunks."""
        for path in files:
            with contextlib.suppress(FileNotFoundError):
                if self.rand.random() < 0.5:
                    os.unlink(path)
                else:
                    with open(path, "r+b") as file:
                        file.write(b"damage")


class Disorder(Case):
    def storm(self, n_ops, seed=0, **kwargs):
        with mock.patch.object(Worker, "_fail", failing()) as fail:
            storm = Storm(self, seed, **kwargs)
            storm.run(n_ops // SHARE)
        self.assertGreater(storm.promised, 0)
        if not storm.vanish:
            self.assertGreater(storm.hits, 0)
        return fail.ranks

    def test_leases_hold_while_host_memory_evicts(self):
        for windows in groupings((), (10,), ALONE):
            for layout, depth in (({}, 1), ({"is_async": True}, 2), ({"tp": 4}, 2),
                                  ({"layers": (1, 2), "tp": 1}, 3)):
                with self.subTest(windows=windows, layout=layout, depth=depth):
                    self.assertFalse(self.storm(
                        700, windows=windows, depth=depth, extra=MEMORY,
                        of_host={1: {"max_local_cpu_size": 0.001}}, **layout))

    def test_storage_of_all_hosts_is_read_and_verified_before_a_promise(self):
        for windows in groupings((), (10,)):
            with self.subTest(windows=windows), tempfile.TemporaryDirectory() as shared:
                self.assertFalse(self.storm(400, windows=windows, depth=2, extra={
                    "remote_url": "fault://shared=1/fs://" + shared}))

    def test_files_of_chunks_vanish_on_any_host(self):
        failed = []
        for windows in groupings((), (10,)):
            for seed in range(3):
                with self.subTest(windows=windows, seed=seed):
                    failed += self.storm(500, seed, windows=windows, depth=2, vanish=True)
        self.assertEqual(set(failed), {0, 1})


if __name__ == "__main__":
    unittest.main()
