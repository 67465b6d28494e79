# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler with the connector: overlapping batches, aborts, preemption, resets and
failed loads in random order.  Needs vLLM, no model and no GPU."""

import os
import random
import tempfile
import unittest
from unittest import mock

import fake
from vllm_case import ALONE, PIECES, Case, groupings, prompt

if fake.HAVE_VLLM:
    from kvtier.vllm_worker import Worker
    import vllm_sim
    from vllm_sim import CHUNK, Sim


class Disorder(Case):
    """Many requests with few blocks, aborts and failed loads.

    The connector saves every chunk under the right name and loads chunks into allowed
    blocks only.  vLLM computes every token from the right KV.
    """

    def storm(self, depth, windows, fail_rate, seed, resets=False, **kwargs):
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
                if resets and rand.random() < 0.3:
                    sim.reset()
            sim.run()
            sim.check_rest()
            totals[0] += len(sim.loaded)
            totals[1] += sim.saved
        for (group, prefix), found in self.store.chunks.items():
            self.assertTrue(vllm_sim.is_stored_right(
                found, *(sim.expected.get(prefix) or self.known[prefix]), group))
        self.assertTrue(all(totals))
        self.assertEqual(sim.weights > 0, resets)

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
            for windows in groupings((), (10,), (13, 30), ALONE, PIECES):
                with self.subTest(seed=seed, windows=windows):
                    self.storm(1, windows, 0.0, seed)

    def test_overlapping_batches(self):
        for seed in range(3):
            for windows in groupings((), (10,), (13, 30), ALONE, PIECES):
                with self.subTest(seed=seed, windows=windows):
                    self.storm(2, windows, 0.0, seed)

    def test_overlapping_batches_and_failing_loads(self):
        for seed in range(3):
            for windows in groupings((), (10,), (13, 30), ALONE, PIECES):
                with self.subTest(seed=seed, windows=windows):
                    self.storm(2, windows, 0.3, seed)

    def test_resets_between_batches_that_overlap(self):
        for seed in range(3):
            for depth in (1, 2):
                for windows in groupings((), (10,), (13, 30)):
                    with self.subTest(seed=seed, depth=depth, windows=windows):
                        self.storm(depth, windows, 0.1, seed, resets=True)

    def test_resets_while_generated_tokens_are_stored(self):
        settings = {"save_unfull_chunk": True, "save_decode_cache": True}
        with mock.patch.object(fake.Config, "extra", settings):
            for depth in (1, 2):
                for windows in groupings((), (10,)):
                    self.storm(depth, windows, 0.1, 11, resets=True)

    def test_vllms_second_model_runner(self):
        for windows in groupings((), (13, 30)):
            self.storm(2, windows, 0.1, 6, second_runner=True)

    def test_without_block_reports_of_vllm(self):
        for depth in (1, 2):
            for windows in groupings((), (10,), (13, 30), ALONE, PIECES):
                with self.subTest(depth=depth, windows=windows):
                    self.storm(depth, windows, 0.1, 5, tell_blocks=False)

    def test_partial_chunks_too(self):
        self.addCleanup(setattr, fake.Config, "extra", {})
        for decode in (False, True):
            fake.Config.extra = {"save_unfull_chunk": True,
                                 "save_decode_cache": decode}
            for depth in (1, 2):
                for windows in groupings((), (10,), (13, 30), ALONE, PIECES):
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


@unittest.skipUnless(fake.HAVE_VLLM and fake.have_library(),
                     "vLLM or libkvtier.so is not there")
class Real(unittest.TestCase):
    """Random order of requests, aborts and resets with the real library and a directory."""

    def storm(self, folder, depth, windows, seed, resets=False, **extra):
        rand = random.Random(seed)
        sim = Sim(None, n_blocks=36 * (1 + len(windows)), windows=windows,
                  depth=depth, seed=seed, extra=dict({
                      "chunk_size": CHUNK, "local_cpu": False,
                      "model_fingerprint": "f",
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
            if resets and rand.random() < 0.2:
                sim.reset()
        sim.run(at_most=100000)
        sim.check_rest()
        sim.close()
        return len(sim.loaded)

    def test_disorder_over_the_real_library(self):
        for windows in groupings((), (10,), (13, 30), ALONE, PIECES):
            with tempfile.TemporaryDirectory() as folder:
                self.assertGreater(sum(self.storm(folder, depth, windows, depth)
                                       for depth in (1, 2, 2)), 0)

    def test_resets_over_the_real_library(self):
        for windows in groupings((), (10,), (13, 30)):
            with tempfile.TemporaryDirectory() as folder:
                self.assertGreater(sum(self.storm(folder, depth, windows, depth, resets=True)
                                       for depth in (2, 1, 2)), 0)

    def test_so_with_partial_chunks(self):
        for windows in groupings((), (10,), (13, 30), ALONE, PIECES):
            with tempfile.TemporaryDirectory() as folder:
                self.assertGreater(sum(self.storm(
                    folder, depth, windows, depth, save_unfull_chunk=True,
                    save_decode_cache=depth == 1) for depth in (1, 2, 2)), 0)

    def test_so_while_another_host_deletes_files(self):
        for windows in groupings((), (10,), (13, 30), ALONE, PIECES):
            with tempfile.TemporaryDirectory() as folder:
                self.assertGreater(sum(self.deleting_storm(folder, depth, windows)
                                       for depth in (1, 2, 2)), 0)

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
            loaded = self.storm(
                folder, depth, windows, depth, local_cpu=True,
                remote_url="fault://shared=1/fs://localhost:0/" + folder)
        self.assertEqual(failed, [])
        return loaded


if __name__ == "__main__":
    unittest.main()
