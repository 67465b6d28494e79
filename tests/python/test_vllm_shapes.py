# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler with the connector and a model whose layers have KV of different sizes in
one KV cache group (UniformTypeKVCacheSpecs), over the real library and a directory.
Needs vLLM, no model and no GPU."""

import dataclasses
import unittest
from types import SimpleNamespace as Object
from unittest import mock

import fake
from vllm_case import ALONE, SEVERAL_GROUPS, prompt

if fake.HAVE_VLLM:
    import torch
    import vllm_sim
    from test_vllm_stages import Staged, StagedCase, failing
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheTensor, SlidingWindowSpec
    from vllm_sim import BLOCK

    from kvtier import vllm_model
    from kvtier.vllm_worker import Worker
SUPPORTED = SEVERAL_GROUPS and "layers" in KVCacheTensor.__dataclass_fields__


def head_size(layer):
    return (1, 3, 1, 2)[layer % 4]


class Shapes(Staged if fake.HAVE_VLLM else object):
    """Staged with layers whose KV has different sizes.  vLLM's own functions make the KV cache
    configurations of the scheduler and of the workers."""

    def _cache(self, n_blocks, windows):
        self.config.model_config.max_model_len = 128
        self.config.cache_config.num_gpu_blocks_override = n_blocks
        self.config.cache_config.kv_cache_layout = "LBNHC"
        specs = [{"l%d" % layer: self.spec(layer, windows)
                  for layer in range(sum(self.layers[:stage]), sum(self.layers[:stage + 1]))}
                 for stage in range(len(self.layers))]
        self.caches = kv_cache_utils.get_kv_cache_configs(
            self.config, specs, [1 << 30] * len(specs))
        return kv_cache_utils.generate_scheduler_kv_cache_config(self.caches)

    def spec(self, layer, windows):
        about = dict(block_size=BLOCK, num_kv_heads=1, head_size=head_size(layer),
                     dtype=torch.float32)
        if windows:
            return SlidingWindowSpec(sliding_window=windows[0], **about)
        return FullAttentionSpec(**about)

    def token_bytes(self, layer):
        return 8 * head_size(layer)

    def _stage_cache(self, stage):
        return self.caches[stage]

    def _start_worker(self, config, cache, device=None):
        names = cache.kv_cache_groups[0].layer_names
        memory = [torch.zeros(cache.num_blocks, 1, BLOCK, self.token_bytes(int(name[1:])),
                              dtype=torch.uint8) for name in names]
        top = type(self.top)(config, vllm_sim.KVConnectorRole.WORKER, cache)
        top.register_kv_caches(dict(zip(names, memory)))
        return top, memory, [], [
            m.view(torch.int64).view(cache.num_blocks, BLOCK, -1).numpy()[:, :, 0]
            for m in memory]


class Sparse(Shapes):
    """Layers of sparse attention (DeepSeek V3.2): latent vectors, and an indexer's keys in
    every second layer, with the specs of vLLM's own classes."""

    def spec(self, layer, windows):
        from vllm.model_executor.layers.attention.mla_attention import MLAAttention
        from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache

        if layer % 2:
            return DeepseekV32IndexerCache.get_kv_cache_spec(Object(
                cache_config=self.config.cache_config, head_dim=24, dtype=torch.uint8),
                self.config)
        return MLAAttention.get_kv_cache_spec(Object(
            kv_cache_dtype="auto", head_size=8, sliding_window=None, indexer=object(),
            non_causal_multi_token_decode=False, attn_backend=Object(get_name=str),
            _uses_flat_kv_cache=bool), self.config)  # the last two for vLLM 0.31

    def token_bytes(self, layer):
        return (16, 24)[layer % 2]

    def _start_workers(self, device):
        super()._start_workers(device)
        for rank in self.ranks:
            rank.first_layer %= 1000  # the ranks of a stage have equal latent vectors


class Types(Shapes):
    """Layers whose numbers are bytes, and layers of another type, as with
    kv_cache_dtype_skip_layers.  Each stage begins with another type."""

    floats = (0, 3)

    def spec(self, layer, windows):
        return FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8,
                                 dtype=torch.float32 if layer in self.floats else torch.uint8)

    def token_bytes(self, layer):
        return 64 if layer in self.floats else 16


class TypesFromBytes(Types):
    floats = (1, 2)


@unittest.skipUnless(SUPPORTED, "this vLLM has other tensors")
class DifferentTypes(StagedCase if fake.HAVE_VLLM else unittest.TestCase):
    def test_a_restarted_engine_loads_the_chunks_of_all_types(self):
        for self.kind in Types, TypesFromBytes:
            for layers in (4,), (2, 2):
                with self.subTest(kind=self.kind, layers=layers):
                    self.new_folder()
                    self.assertEqual(self.ask(layers=layers), {"a": 0})
                    self.assertEqual(self.ask(layers=layers), {"a": 56})


@unittest.skipUnless(SUPPORTED, "this vLLM has other tensors")
class DifferentShapes(StagedCase if fake.HAVE_VLLM else unittest.TestCase):
    kind = Shapes

    def test_a_restarted_engine_loads_the_chunks_of_all_shapes(self):
        for windows in ((), ALONE):
            for layers, n in (((4,), 3), ((4, 4), 3), ((3, 4), 0)):
                with self.subTest(windows=windows, layers=layers):
                    self.new_folder()
                    self.assertEqual(self.ask(layers=layers, windows=windows), {"a": 0})
                    for rank in range(len(layers)):
                        # With a window, the chunks of the windows of two hits.
                        self.assertEqual(len(self.files(rank, len(layers))),
                                         n * (4 if windows else 7))
                    self.assertEqual(self.ask(layers=layers, windows=windows),
                                     {"a": 56 if n else 0})

    def test_the_scheduler_learns_the_shapes_from_the_workers(self):
        sim = self.sim(layers=(4,))
        group = sim.cache.kv_cache_groups[0]
        self.assertEqual(type(group.kv_cache_spec), FullAttentionSpec)
        self.assertIsNone(sim.connector._scheduler)
        sim.add("a", prompt(1, 61))
        sim.run()
        self.assertEqual([(info.table, info.layers, info.block_bytes)
                          for info in sim.connector._scheduler._infos],
                         [(0, ["l0", "l2"], 32), (0, ["l3"], 64), (0, ["l1"], 96)])

    def test_damaged_chunks_of_any_shape_end_in_a_computed_prompt(self):
        for windows in ((), ALONE):
            for number in range(3):
                with self.subTest(windows=windows, number=number):
                    self.new_folder()
                    self.ask(layers=(4,), windows=windows)
                    shapes = sorted({path.rsplit("@", 1)[1] for path in self.files(0, 1)})
                    self.assertEqual(len(shapes), 3)
                    for path in self.files(0, 1):
                        if path.endswith(shapes[number]):
                            with open(path, "r+b") as file:
                                file.write(b"damage")
                    self.assertEqual(self.ask(layers=(4,), windows=windows), {"a": 0})
                    self.assertTrue(self.failed)

    def test_disorder(self):
        for windows in ((), ALONE):
            for layers in ((4,), (4, 4)):
                with self.subTest(windows=windows, layers=layers):
                    self.new_folder()
                    self.storms(windows, 1, 2, layers=layers)

    def test_disorder_while_files_vanish(self):
        for windows in ((), ALONE):
            self.new_folder()
            self.storm(windows, 1, 2, layers=(4,))
            with mock.patch.object(Worker, "_fail", failing()) as fail:
                self.storm(windows, 1, 2, vanish=0.3, layers=(4,))
            self.assertTrue(fail.ranks)

    def test_a_stage_without_a_shape_ends_the_wait(self):
        sim = self.sim(layers=(4, 1))
        sim.add("a", prompt(1, 61))
        with self.assertLogs("vllm.kvtier") as said:
            sim.run()
        self.assertIn("lack a shape of KV", str(said.output))
        self.assertIsNone(sim.connector._scheduler)
        self.assertEqual(sim.hits, {"a": 0})

    def test_a_worker_without_the_tensors_of_vllm_does_nothing_and_says_so(self):
        sim = self.sim(layers=(4,))
        cache = dataclasses.replace(sim.caches[0], kv_cache_tensors=[])
        self.assertFalse(vllm_model.needs_reports(sim.config, cache))
        with self.assertLogs("vllm.kvtier", "WARNING") as said:
            type(sim.top)(sim.config, vllm_sim.KVConnectorRole.WORKER, cache)
        self.assertIn("scheduler does not see the difference", str(said.output))


@unittest.skipUnless(SUPPORTED, "this vLLM has other tensors")
class SparseAttention(StagedCase if fake.HAVE_VLLM else unittest.TestCase):
    kind = Sparse

    def test_a_restarted_engine_loads_latent_vectors_and_the_indexers_keys(self):
        for layers in ((4,), (2, 2)):
            for tp in (1, 2):
                with self.subTest(layers=layers, tp=tp):
                    self.new_folder()
                    self.assertEqual(self.ask(layers=layers, tp=tp), {"a": 0})
                    self.assertEqual(self.ask(layers=layers, tp=tp), {"a": 56})

    def test_each_of_two_hosts_stores_the_latent_vectors(self):
        from vllm_hosts_sim import Hosts

        self.kind = type("OnHosts", (Hosts, Sparse), {})
        for tp in (2, 4):
            with self.subTest(tp=tp):
                self.new_folder()
                self.assertEqual(self.ask(layers=(4,), tp=tp), {"a": 0})
                self.assertEqual(self.ask(layers=(4,), tp=tp), {"a": 56})

    def test_disorder(self):
        self.storms((), 1, 2, layers=(4,))

    def test_the_indexers_keys_have_a_group_of_their_own(self):
        sim = self.sim(layers=(4,))
        self.assertEqual(type(sim.caches[0].kv_cache_groups[0].kv_cache_spec).__name__,
                         "UniformTypeKVCacheSpecs")
        self.assertEqual([(info.layers, info.block_bytes) for info in sim.ranks[0].half._infos],
                         [(["l0", "l2"], 64), (["l1", "l3"], 96)])


if __name__ == "__main__":
    unittest.main()
