# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode in two engines: two of vLLM's schedulers over one store."""

import contextlib
import os
import shutil
import tempfile
import time
import types
import unittest
from unittest import mock

import fake
from kvtier import vllm_handoff
from vllm_case import ALONE, PIECES, Case, groupings, prompt

if fake.HAVE_VLLM:
    import vllm_sim
    from vllm_sim import CHUNK, Sim

PREFILL = {"do_remote_decode": True, "do_remote_prefill": False,
           "remote_engine_id": None, "remote_block_ids": None}


class Handoff(Case):
    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, fake.Config, "extra", {})
        fake.Config.extra = {"lookup_timeout_ms": 3000}
        self.now = 100.0
        clock = mock.patch.object(time, "monotonic", lambda: self.now)
        clock.start()
        self.addCleanup(clock.stop)

    def answered(self, tokens, max_tokens=1, sim=None, **params):
        """Return the kv_transfer_params of a prefill engine's answer."""
        sim = sim or self.sim()
        finish, answers = sim.connector.request_finished, []

        def request_finished(request, block_ids):
            answers.append(finish(request, block_ids))
            return answers[-1]

        with mock.patch.object(sim.connector, "request_finished", request_finished):
            sim.add("p", tokens, max_tokens=max_tokens, kv_transfer_params=params)
            sim.run()
        self.assertEqual([free for free, _ in answers], [False])
        sim.check_rest()
        return answers[0][1]

    def wait(self, sim, steps, seconds):
        for _ in range(steps):
            sim.step()
            self.now += seconds

    def test_the_answer_names_the_tokens_that_are_stored(self):
        self.assertIsNone(self.answered(prompt(1, 61)))
        for settings, params, n in (({}, {}, 56), ({"save_unfull_chunk": True}, {}, 61),
                                    ({}, {"max_offload_tokens": 20}, 16),
                                    ({}, {"lmcache.skip_save": True}, 0)):
            fake.Config.extra.update(settings)
            answer = self.answered(prompt(1, 61), **PREFILL, **params)
            self.assertGreaterEqual(answer.items(), {
                "do_remote_prefill": True, "do_remote_decode": False,
                "remote_num_tokens": n}.items())
            fake.Config.extra.pop("save_unfull_chunk", None)
        self.assertEqual(self.answered(prompt(1, 7), **PREFILL)["remote_num_tokens"], 0)

    def test_the_decode_engine_computes_only_the_last_partial_chunk(self):
        answer = self.answered(prompt(1, 61), **PREFILL)
        sim = self.sim()
        sim.add("d", prompt(1, 61), kv_transfer_params=answer)
        sim.run()
        sim.check_rest()
        self.assertEqual(sim.hits["d"], 56)

    def test_the_decode_engine_waits_for_chunks_that_come_late(self):
        answer = self.answered(prompt(1, 61), **PREFILL)
        chunks = dict(self.store.chunks)
        self.store.chunks.clear()
        sim = self.sim()
        sim.add("d", prompt(1, 61), kv_transfer_params=answer)
        sim.add("other", prompt(2, 20))  # is not delayed
        self.wait(sim, 20, 0.01)
        self.assertIn("other", sim.finished)
        self.assertNotIn("d", sim.hits)
        for _ in range(5):  # one chunk after the other arrives
            key = next(iter(chunks))
            self.store.chunks[key] = chunks.pop(key)
            self.wait(sim, 4, 0.05)
            self.assertNotIn("d", sim.hits)
        self.assertLess(self.store.lookups, 25)
        self.store.chunks.update(chunks)
        self.wait(sim, 2, 0.5)
        sim.run()
        sim.check_rest()
        self.assertEqual(sim.hits["d"], 56)

    def test_the_wait_ends_with_the_chunks_that_are_there(self):
        answer = self.answered(prompt(1, 61), **PREFILL)
        for key in list(self.store.chunks)[3:]:
            del self.store.chunks[key]
        sim = self.sim()
        sim.add("d", prompt(1, 61), kv_transfer_params=answer)
        with self.assertLogs("vllm.kvtier") as logs:
            self.wait(sim, 20, 0.5)
            sim.run()
        sim.check_rest()
        self.assertEqual(sim.hits["d"], 24)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("for 56 tokens that the prefill engine stored, and found 24",
                      logs.output[0])

    def test_no_wait_without_stored_tokens_or_beyond_the_longest_hit(self):
        answer = self.answered(prompt(1, 64), **PREFILL)
        self.assertEqual(answer["remote_num_tokens"], 64)
        for more, hit in (({}, 56), ({"max_load_tokens": 9}, 8), ({"max_load_tokens": 0}, 0),
                          ({"remote_num_tokens": 0}, 56)):
            sim = self.sim()
            sim.add("d", prompt(1, 64), kv_transfer_params={**answer, **more})
            sim.run()
            self.assertEqual(sim.hits["d"], hit, more)
            sim.check_rest()
        self.store.chunks.clear()
        for seed, params in enumerate(({"do_remote_prefill": True}, PREFILL,
                                       {**answer, "remote_num_tokens": 7})):
            sim.add(str(seed), prompt(2 + seed, 64), kv_transfer_params=params)
            sim.run()
            self.assertEqual(sim.hits[str(seed)], 0, params)

    def test_a_bad_number_of_tokens_is_no_wait_and_no_lookup(self):
        for bad in (-1, "56", True, 5.0):
            sim = self.sim()
            with self.assertLogs("vllm.kvtier") as logs:
                sim.add("d", prompt(1, 61), kv_transfer_params={
                    "do_remote_prefill": True, "remote_num_tokens": bad})
                sim.run()
            self.assertIn("remote_num_tokens", logs.output[0])
            self.assertEqual(self.store.lookups, 0)

    def test_no_wait_is_in_vain_for_models_with_windows(self):
        for windows in groupings((10,), (13, 30), ALONE, PIECES):
            for n, limit, hit in ((61, None, 56), (64, None, 56), (61, 20, None), (61, 0, 0)):
                for longer in False, True:  # vLLM's own hit has no old blocks
                    self.store.chunks.clear()
                    sim = self.sim(windows=windows)
                    if longer:
                        sim.add("longer", prompt(1, 90))
                        sim.run()
                    answer = self.answered(prompt(1, 90)[:n], sim=sim, **PREFILL)
                    if limit is not None:
                        answer["max_load_tokens"] = limit
                    sim = self.sim(windows=windows)
                    sim.add("d", prompt(1, 90)[:n], kv_transfer_params=answer)
                    sim.run(200)
                    sim.check_rest()
                    if hit is not None and not longer:
                        self.assertEqual(sim.hits["d"], hit, (windows, n, limit))

    def test_an_aborted_wait_leaves_nothing(self):
        sim = self.sim()
        sim.add("d", prompt(1, 61), kv_transfer_params={
            "do_remote_prefill": True, "remote_num_tokens": 56})
        self.wait(sim, 3, 0.1)
        sim.abort("d")
        sim.run()
        sim.check_rest()
        self.assertEqual(self.store.leased, set())


@unittest.skipUnless(fake.HAVE_VLLM and fake.have_library(),
                     "vLLM or libkvtier.so is not there")
class TwoHosts(unittest.TestCase):
    """The real library: files arrive in the directory of an engine without an index of them."""

    def real(self, folder, prefix):
        """Return an engine on a host with this folder.  All engines have one model's name."""
        model = os.path.join(self.folder, "model")
        os.makedirs(model, exist_ok=True)
        names = types.SimpleNamespace(
            TemporaryDirectory=lambda: contextlib.nullcontext(model))
        with mock.patch.object(vllm_sim, "tempfile", names):
            return Sim(None, n_blocks=64, extra={
                "chunk_size": CHUNK, "local_cpu": False, "model_fingerprint": "f",
                "max_local_cpu_size": 0.0625, "lookup_timeout_ms": 60000,
                "remote_url": "%sfs://%s" % (prefix, folder)})

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def stored(self, folder):
        """Wait for the 7 chunks of a prompt, and return the names of their files."""
        files, end = [], time.monotonic() + 50
        while len(files) < 7 and time.monotonic() < end:
            files = [name for name in os.listdir(os.path.join(folder, "kvtier"))
                     if not name.startswith(".")]
            time.sleep(0.01)
        self.assertEqual(len(files), 7)
        return files

    def test_chunks_of_another_host_are_found_although_they_come_late(self):
        for prefix in "", "fault://shared=1/":
            with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
                first = self.real(one, "")
                first.add("p", prompt(1, 61), max_tokens=1)
                first.run()
                files = self.stored(one)
                first.close()
                sim = self.real(other, prefix)
                sim.add("d", prompt(1, 61), kv_transfer_params={
                    "do_remote_prefill": True, "remote_num_tokens": 56})
                end = time.monotonic() + 0.3  # several lookups
                while time.monotonic() < end:
                    sim.step()
                self.assertNotIn("d", sim.hits)
                for name in files:
                    shutil.copy2(os.path.join(one, "kvtier", name),
                                 os.path.join(other, "kvtier", name))
                while "d" not in sim.hits:
                    sim.step()
                    time.sleep(0.001)
                    self.assertLess(time.monotonic(), end + 50)
                sim.run(100000)
                self.assertEqual(sim.hits["d"], 56, (prefix, os.listdir(other)))
                sim.close()


class Beside(unittest.TestCase):
    def test_odd_parameters_get_no_answer(self):
        for odd in (None, {}, [], "x", 7, {"do_remote_decode": 1}):
            self.assertIsNone(vllm_handoff.answer(odd, 5))


if __name__ == "__main__":
    unittest.main()
