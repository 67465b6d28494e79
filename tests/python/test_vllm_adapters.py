# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters with vLLM's scheduler: a replacement of files at any moment never mixes the
KV of two adapters.  Needs vLLM, no model and no GPU."""

import os
import random
import unittest
from unittest import mock

import fake
import test_adapters
from kvtier import vllm_adapters

if fake.HAVE_VLLM:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
    from test_vllm_scheduling import groupings, prompt
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper
    from vllm.lora.request import LoRARequest
    from vllm_sim import Sim
else:
    Sim = object
copy_tensors = vllm_adapters._copy_tensors

class AdapterSim(Sim):
    """A simulated engine in a new process.

    The weights of a request are the content of the request's adapter file at the time when
    the worker loaded the file.
    """

    def __init__(self, store, manager, **kwargs):
        vllm_adapters._loaded = vllm_adapters.Contents()
        vllm_adapters._held = {}
        super().__init__(store, **kwargs)
        self.manager = self.worker._worker._adapters = manager
        manager.has.clear()
        self.loras = {}
        # _compute() checks KV at each read: a check of stores is not needed.
        self.engine.before_store = lambda ios: None

    def add(self, name, prompt, lora, **kwargs):
        self.loras[name] = lora
        return super().add(name, prompt, lora_request=lora, **kwargs)

    def identify(self):
        """Wait until the digests of the adapters of all added requests are known."""
        thread = self.connector._scheduler._digests._thread
        if thread is not None:
            thread.join()

    def step(self):
        self.identify()
        super().step()

    def _forward(self, output):
        self.manager.set_active_adapters(
            {self.loras[name] for name in output.num_scheduled_tokens})
        return super()._forward(output)

    def _compute(self, name, start, n, weights, stale):
        weights = int(self.manager.has[self.loras[name].lora_int_id])
        return super()._compute(name, start, n, weights, stale)

    def _expect(self, tokens, partial=False):
        pass


@unittest.skipUnless(fake.HAVE_VLLM, "vLLM is not installed")
class Replaced(test_adapters.Case):
    def setUp(self):
        super().setUp()
        self.watch()
        self.n = 0

    def make(self, number, content=1):
        path = os.path.join(self.folder, "l%d" % number)
        os.makedirs(path, exist_ok=True)
        self.put(path, content)
        return LoRARequest("l%d" % number, number, path)

    def put(self, path, content):
        self.n += 1
        new = os.path.join(self.folder, "new%d" % self.n)
        with open(new, "w") as file:
            file.write("%d" % content)
        os.replace(new, os.path.join(path, test_adapters.FILE))

    def test_between_each_two_steps_before_the_first_one_that_computes(self):
        for windows in groupings((), (10,)):
            for depth in (1, 2):
                lora = self.make(1)
                self.store.chunks.clear()
                first = AdapterSim(self.store, self.manager, windows=windows, depth=depth)
                first.add("a", prompt(1, 61), lora)
                first.run()
                hits = set()
                for when in range(12):
                    self.put(lora.lora_path, 1)
                    sim = AdapterSim(self.store, self.manager, windows=windows,
                                     depth=depth, seed=3)
                    sim.add("a", prompt(1, 61), lora)
                    sim.identify()
                    for _ in range(when):
                        sim.step()
                    self.put(lora.lora_path, 2)
                    sim.run()
                    sim.check_rest()
                    hits.add((sim.hits["a"], sim.manager.has[1]))
                    sim.close()
                # A request hits with the old files and misses with the new files.  The first
                # request of an adapter can hit.
                self.assertEqual(hits, {(56, b"1"), (0, b"2")})

    def test_a_file_that_is_overwritten_in_place_leaves_a_loaded_model(self):
        path = os.path.join(self.folder, test_adapters.FILE)
        names = ["base_model.model.l.q_proj.lora_%s.weight" % ab for ab in "AB"]

        def load(manager, lora):
            with safe_open(path, framework="pt") as file:
                return LoRAModel.from_lora_tensors(
                    1, {name: file.get_tensor(name) for name in names},
                    PEFTHelper(r=8, lora_alpha=8, target_modules=["q_proj"]), "cpu")
        save_file({name: torch.zeros(8, 8) for name in names}, path)
        with mock.patch.object(vllm_adapters, "_original", load), \
                mock.patch.object(vllm_adapters, "_copy_tensors", copy_tensors):
            model = vllm_adapters._load(None, self.lora)
        save_file({name: torch.ones(8, 8) for name in names}, path + ".new")
        with open(path + ".new", "rb") as new, open(path, "r+b") as file:
            file.write(new.read())
        (layer,) = model.loras.values()
        self.assertFalse(layer.lora_a.any() or layer.lora_b.any())

    def test_storm(self):
        hit = 0
        for seed in range(6):
            rand = random.Random(seed)
            loras = [self.make(number) for number in (1, 2, 3)]
            self.store.chunks.clear()
            for _ in range(4):
                sim = AdapterSim(self.store, self.manager, n_blocks=36, seed=seed,
                                 depth=1 + seed % 2, fail_rate=0.02 * (seed % 3))
                for i in range(12):
                    lora = rand.choice(loras)
                    sim.add("r%d" % i, prompt(i % 4, rand.randrange(5, 90)), lora,
                            max_tokens=rand.randrange(1, 12))
                    for _ in range(rand.randrange(6)):
                        sim.step()
                    if rand.random() < 0.3:
                        self.put(rand.choice(loras).lora_path, rand.randrange(3))
                    if rand.random() < 0.2:
                        sim.abort("r%d" % rand.randrange(i + 1))
                sim.run()
                sim.check_rest()
                hit += len(sim.loaded)
                sim.close()
        self.assertGreater(hit, 20)


if __name__ == "__main__":
    unittest.main()
