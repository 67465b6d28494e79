# SPDX-License-Identifier: Apache-2.0
"""A connector for a KV cache that kvtier does not support: the connector says so once, and
does nothing through an engine's life, in vLLM's scheduler.  Needs vLLM, no model and no GPU."""

import copy
import dataclasses
import inspect
import unittest
from types import SimpleNamespace as Object
from unittest import mock

import fake
from test_vllm_multi import together
from vllm_case import prompt

if fake.HAVE_VLLM:
    import torch
    import vllm_sim
    from test_vllm_stages import with_parallelism
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorRole,
    )
    from vllm.v1 import kv_cache_interface as specs
    from vllm_sim import BLOCK, Sim

    from kvtier.connector import KVTierConnector
    from kvtier.vllm_log import log
    from kvtier.vllm_meta import DESCRIBE, NOTHING, UnusableWorker

ABOUT = dict(block_size=4, num_kv_heads=1, head_size=1)
HAVE_REPORTS = fake.HAVE_VLLM and hasattr(KVConnectorBase_V1, "build_connector_worker_meta")


class Model:
    """A KV cache that kvtier does not support.  caching: vLLM has a prefix cache."""

    def __init__(self, reason, *groups, caching=True, **sizes):
        self.reason, self.groups, self.caching, self.sizes = reason, groups, caching, sizes

    def cache(self, n_blocks):
        """Return the KVCacheConfig; None if this vLLM lacks a class or a field."""
        try:
            made = [getattr(specs, name)(**about) for name, about in self.groups]
        except (AttributeError, TypeError):
            return None
        cache = vllm_sim.kv_cache_config(n_blocks, (8,) * (len(made) - 1))
        for group, spec in zip(cache.kv_cache_groups, made):
            group.kv_cache_spec = spec
        return cache if made else dataclasses.replace(cache, kv_cache_groups=[])


def models():
    about = dict(ABOUT, dtype=torch.float32)
    full = "FullAttentionSpec", about
    mamba = dict(block_size=BLOCK, shapes=((2,), (4,)), dtypes=(torch.float32,) * 2)
    return {
        "Mamba hybrid without a prefix cache": Model(
            "MambaSpec", ("MambaSpec", mamba), full, caching=False),
        "encoder and decoder": Model(
            "CrossAttentionSpec", ("CrossAttentionSpec", about), full, caching=False),
        "no attention": Model("a model without KV cache", caching=False),
        "R-SWA": Model("RSWASpec", ("RSWASpec", dict(about, rswa_window=8))),
        "attention that is not causal": Model(
            "not causal", ("FullAttentionSpec", dict(about, non_causal=True))),
        "DeepSeek V4": Model(
            "deepseek_v4", ("MLAAttentionSpec", dict(about, model_version="deepseek_v4"))),
        "compressed tokens": Model(
            "compressed tokens", ("MLAAttentionSpec", dict(about, tokens_per_state=4))),
        "hidden states": Model("HiddenStateCacheSpec", ("HiddenStateCacheSpec", about)),
    }


class Engine(Sim if fake.HAVE_VLLM else object):
    """Sim without KV in memory: the connector has nothing to move."""

    def __init__(self, model, n_blocks=40, **kwargs):
        self.model = model
        super().__init__(None, n_blocks=n_blocks, **kwargs)

    def _cache(self, n_blocks, windows):
        self.config.cache_config.enable_prefix_caching = self.model.caching
        return self.model.cache(n_blocks)

    def _start_workers(self, device):
        self.worker_top = type(self.top)(self.config, KVConnectorRole.WORKER, self.cache)
        self.worker_top.register_kv_caches({
            name: torch.zeros(self.cache.num_blocks, 1, BLOCK, 2)
            for group in self.cache.kv_cache_groups for name in group.layer_names})
        self.worker = vllm_sim.kvtiers(self.worker_top)
        self.engine = None

    def _compute(self, name, start, n, weights, stale):
        return self._sample(self.tokens[name], start + n, stale)


@unittest.skipUnless(fake.HAVE_VLLM, "vLLM is not installed")
class Inert(unittest.TestCase):
    def test_an_engine_lives_with_each_unsupported_kv_cache(self):
        tested = 0
        for name, model in models().items():
            if model.cache(40) is None:
                continue
            tested += 1
            for depth in (1, 2):
                for settings in ({"kv_load_failure_policy": "fail"},
                                 together("KVTierConnector", "Other"),
                                 together("Other", "KVTierConnector")):
                    with self.subTest(model=name, depth=depth, settings=settings), \
                            self.assertLogs("vllm.kvtier") as said:
                        self.live(model, depth, settings)
                        self.assertEqual(len(said.output), 1, said.output)
                        self.assertIn("nothing is stored or loaded", said.output[0])
                        self.assertIn(model.reason, said.output[0])
        self.assertGreater(tested, 2)

    def test_vllm_refuses_each_connector_for_a_model_with_an_encoder(self):
        with mock.patch.object(vllm_sim.ModelConfig, "is_encoder_decoder", True), \
                self.assertRaisesRegex(AssertionError, "not currently supported with KV conn"):
            Engine(models()["encoder and decoder"])

    def live(self, model, depth, settings):
        sim = Engine(model, depth=depth, **settings)
        self.assertIsNone(sim.connector._scheduler or sim.connector._stages)
        self.assertIsNone(sim.worker._worker)
        preempted = []
        preempt = sim.scheduler._preempt_request
        sim.scheduler._preempt_request = lambda request, *args, **kwargs: (
            preempted.append(request.request_id), preempt(request, *args, **kwargs))
        for i in range(8):
            sim.add("r%d" % i, prompt(i % 3, 30 + i), max_tokens=20)
            sim.step()
        sim.abort("r1")
        sim.step()
        self.assertTrue(sim.reset())
        sim.add("last", prompt(1, 61))
        sim.run(at_most=20000)
        self.assertTrue(preempted or not model.groups)
        self.assertEqual(sorted(sim.finished), ["last", *("r%d" % i for i in (0, *range(2, 8)))])
        self.assertFalse(sim.scheduler.requests)
        self.assertEqual(sim.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                         sim.cache.num_blocks - 1)
        self.assertFalse(sim.stats)
        sim.close()

    def test_every_method_of_vllms_interface_does_nothing(self):
        for settings in ({}, together("KVTierConnector", "Other")):
            for size in ("decode_context_parallel_size", "prefill_context_parallel_size"):
                for role in KVConnectorRole:
                    with self.subTest(size=size, role=role, settings=settings):
                        config = with_parallelism(
                            vllm_sim.vllm_config(**copy.deepcopy(settings)), **{size: 2})
                        self.drive(config, role, size)

    def drive(self, config, role, size):
        with self.assertLogs("vllm.kvtier") as said:
            log.info("start")
            top = create(config, role, vllm_sim.kv_cache_config(16, ()))
        expected = ["%s > 1" % size] if role == KVConnectorRole.SCHEDULER else []
        self.assertEqual(len(said.output) - 1, len(expected))
        for text in expected:
            self.assertIn(text, said.output[1])
        one = vllm_sim.kvtiers(top)
        calls = expected_calls(config)
        self.assertEqual(interface() - calls.keys() - NOT_CALLED, set(),
                         "methods without a test")
        with self.assertNoLogs("vllm.kvtier"):
            for name, (arguments, answer) in calls.items():
                if name not in interface() | {"request_finished_all_groups"}:
                    continue  # of another vLLM
                method = getattr(one, name)
                one.bind_connector_metadata(NOTHING)
                found = method(*arguments) if callable(method) else method
                if answer is not ANY:
                    self.assertEqual(found, answer, name)
            if HAVE_REPORTS:
                one.bind_connector_metadata(DESCRIBE)
                self.assertIsInstance(one.build_connector_worker_meta(), UnusableWorker)
            top.shutdown()
            top.shutdown()


# Of vLLM's front end; called only if prefer_cross_layer_blocks is true.
NOT_CALLED = {"build_prom_metrics", "register_cross_layers_kv_cache"}
ANY = object()  # an answer of the base class, or no answer


def create(config, role, cache):
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if config.kv_transfer_config.kv_connector == "KVTierConnector":
        return KVTierConnector(config, role, cache)
    return KVConnectorFactory.create_connector(config, role, cache)


def interface():
    """Return the names of the public methods and properties of vLLM's interface."""
    return {name for name, member in inspect.getmembers_static(KVConnectorBase_V1)
            if not name.startswith("_")
            and (callable(member) or isinstance(member, (property, classmethod)))}


def expected_calls(config):
    """Return {method: (arguments, answer)}, in the order of an engine's life."""
    request = Object(request_id="a", num_prompt_tokens=61, num_tokens=61)
    output = Object(kv_connector_worker_meta=None, finished_recving=None)
    return {
        "role": ((), ANY),
        "requires_kv_delivery": ((), False),
        "supports_divergent_local_hybrid_hits": ((), False),
        "get_required_kvcache_layout": ((config,), None),
        "requires_piecewise_for_cudagraph": (({},), False),
        "get_finished_count": ((), None),
        "prefer_cross_layer_blocks": ((), False),
        "get_mem_pool_context": ((), None),
        "register_kv_caches": (({"l": torch.zeros(16, 1, BLOCK, 2)},), None),
        "set_host_xfer_buffer_ops": ((None,), None),
        "get_handshake_metadata": ((), None),
        "set_xfer_handshake_metadata": (({},), None),
        "set_xfer_handshake_metadata_pp_aware": (({},), None),
        "bind_kv_cache_manager": ((Object(block_pool=None),), None),
        "bind_gpu_block_pool": ((None,), None),
        "reset_capture_state": ((), None),
        "on_new_request": ((request,), None),
        "get_num_new_matched_tokens": ((request, 0), (0, False)),
        "get_loaded_kv_cache_group_ids": ((request,), ANY),
        "update_state_after_alloc": ((request, None, 0), None),
        "get_external_cache_hit_sources": ((request, 0), {}),
        "build_connector_meta": ((None,), NOTHING),
        "bind_connector_metadata": ((NOTHING,), None),
        "has_connector_metadata": ((), True),
        "handle_preemptions": ((NOTHING,), None),
        "start_load_kv": ((None,), None),
        "wait_for_layer_load": (("l",), None),
        "save_kv_layer": (("l", None, None), None),
        "finish_forward": ((), None),
        "wait_for_save": ((), None),
        "get_finished": (({"a"},), (None, None)),
        "get_transfer_results": (({"a"},), ANY),
        "get_block_ids_with_load_errors": ((), set()),
        "build_connector_worker_meta": ((), None),
        "get_kv_connector_stats": ((), None),
        "get_kv_connector_kv_cache_events": ((), None),
        "clear_connector_metadata": ((), None),
        "update_connector_output": ((output,), None),
        "take_events": ((), ()),
        "has_pending_block_frees": ((), False),
        "has_pending_push_work": ((), False),
        "register_finished_partial_tail": ((request, ([],), []), False),
        "request_finished": ((request, []), (False, None)),
        "request_finished_all_groups": ((request, ([],)), (False, None)),
        "build_kv_connector_stats": ((), ANY),
        "reset_cache": ((), True),
        "shutdown": ((), None),
    }


if __name__ == "__main__":
    unittest.main()
