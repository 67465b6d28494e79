# SPDX-License-Identifier: Apache-2.0
"""The connector saves PyTorch tensors, and loads the bytes after a restart into other blocks.

The tensors have vLLM's layouts, and the tests call the connector in vLLM's order.
KVTIER_TENSORS selects the device: "cpu", or "cuda" for CUDA and ROCm.  With "cuda", the
tests write the tensors on a stream that is always late, to find missing synchronisation.
Needs PyTorch and libkvtier.so, not vLLM."""

import contextlib
import os
import tempfile
import time
import unittest

import fake

fake.stub_vllm()
from kvtier import _lib, connector  # noqa: E402
from test_logic import output, request  # noqa: E402
from test_views import (  # noqa: E402
    FullAttentionSpec, MLAAttentionSpec, Object, SlidingWindowSpec)

DEVICE = os.environ.get("KVTIER_TENSORS", "cpu")
LAYERS, BLOCKS, TOKENS, CHUNK = 4, 40, 16, 64
WAYS = [dict(gpu_copies=way) for way in ("kernel", "batch")] if DEVICE == "cuda" else [{}]
LATE = 50_000_000  # GPU cycles, tens of milliseconds


def why_not():
    """Return the reason to skip the tests, or None."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    if not fake.have_library():
        return "no libkvtier.so"
    if DEVICE == "cuda" and not torch.cuda.is_available():
        return "PyTorch %s finds no GPU" % torch.__version__
    return None


MISSING = why_not()
if not MISSING:
    import torch


class Stream:
    """The stream of the model's kernels; without a GPU, no stream."""

    def __init__(self):
        self._stream = torch.cuda.Stream() if DEVICE == "cuda" else None

    def use(self):
        if self._stream is None:
            return contextlib.nullcontext()
        return torch.cuda.stream(self._stream)

    @staticmethod
    def settle():
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    def be_late(self):
        if self._stream is not None:
            torch.cuda._sleep(LATE)


def tensors(order, groups, heads, content, device=DEVICE):
    """Return {layer's name: tensor[block, head, token, content]}; all tensors share a buffer.

    order: the buffer's axes (L layer, B block, H head, N token, C content), the slowest
    first.  Layer i of each group has the memory of layer i of the other groups.
    """
    sizes = dict(L=LAYERS, B=BLOCKS, H=heads, N=TOKENS, C=content)
    whole = torch.zeros([sizes[axis] for axis in order], dtype=torch.bfloat16,
                        device=device).permute([order.index(axis) for axis in "LBHNC"])
    return {"%d.%d" % (group, layer): whole[layer]
            for group in range(groups) for layer in range(LAYERS)}


class Side:
    """A start of vLLM: the connector's scheduler half and worker half."""

    def __init__(self, folder, specs, kv, device_type="cuda", **extra):
        self.kv = kv
        self.stream = Stream()
        self.stream.settle()
        self.names = ["%d.%d" % (0, layer) for layer in range(LAYERS)]
        transfer = Object(
            kv_connector_extra_config=dict(dict(
                chunk_size=CHUNK, local_cpu=False, max_local_cpu_size=0.0625,
                lookup_timeout_ms=600000, blocking_timeout_secs=600,
                model_fingerprint="f", remote_url="fs://localhost:0/" + folder), **extra),
            engine_id=None, is_kv_consumer=True, is_kv_producer=True,
            kv_load_failure_policy="recompute")
        self.config = Object(
            kv_transfer_config=transfer, load_config=Object(load_format="auto"),
            model_config=Object(model="m"), cache_config=Object(cache_dtype="auto"),
            parallel_config=Object(world_size=1, tensor_parallel_size=1,
                                   pipeline_parallel_size=1,
                                   rank=0),
            device_config=Object(device_type=device_type))
        self.cache = Object(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[
            Object(kv_cache_spec=spec, layer_names=[
                "%d.%d" % (group, layer) for layer in range(LAYERS)])
            for group, spec in enumerate(specs)])
        roles = connector.KVConnectorRole
        self.worker = self.half(roles.WORKER)
        self.worker.register_kv_caches(kv)
        assert self.worker._worker._ready
        self.scheduler = self.half(roles.SCHEDULER)

    def half(self, role):
        return connector.KVTierConnector(self.config, role, self.cache)

    def close(self):
        self.scheduler.shutdown()
        self.worker.shutdown()
        self.stream.settle()

    def look_up(self, req):
        """Look a request up, again in each step as vLLM does, until the connector answers.

        Return (tokens that can be loaded, whether the load is asynchronous).
        """
        self.scheduler.on_new_request(req)
        for _ in range(300000):
            hit, later = self.scheduler.get_num_new_matched_tokens(req, 0)
            if hit is not None:
                return hit, later
            self.step(output())
            time.sleep(0.002)
        raise AssertionError("no answer")

    def step(self, out, forward=lambda: None):
        """Run a step of scheduler and worker; return the ids of the requests with ended loads.
        self.failed: requests and blocks whose load failed in the step."""
        meta = self.scheduler.build_connector_meta(out)
        worker = self.worker
        with self.stream.use():
            worker.bind_connector_metadata(meta)
            forward()
            worker.start_load_kv(None)
            for name in self.names:
                worker.wait_for_layer_load(name)
                worker.save_kv_layer(name, self.kv[name], None)
            worker.wait_for_save()
        if connector.KVConnectorTransferResults:
            results = worker.get_transfer_results(out.finished_req_ids)
            done, failed = results.finished_recving, results.failed_recving
        else:
            done, failed = worker.get_finished(out.finished_req_ids)[1], set()
        bad = worker.get_block_ids_with_load_errors()
        self.failed = set(failed or ()), bad
        worker.get_kv_connector_stats()
        worker.clear_connector_metadata()
        self.scheduler.update_connector_output(Object(
            finished_recving=done, finished_sending=None, failed_recving=failed,
            invalid_block_ids=bad))
        return done or set()


@unittest.skipIf(MISSING, MISSING)
class Tensors(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def save(self, specs, kv, n, tables, **extra):
        """Compute and save a prompt of n tokens in the blocks `tables` (ids for each group).

        Return copies of the tensors at the time of the save.  Directly after the step, the
        stream overwrites the tensors: a copy outside the stream's order saves wrong bytes.
        """
        side = Side(self.folder, specs, kv, **extra)
        req = request("a", n)
        self.assertEqual(side.look_up(req), (0, False))
        side.scheduler.update_state_after_alloc(
            req, Object(get_block_ids=lambda: tables), 0)
        before = {name: tensor.clone() for name, tensor in kv.items()}
        side.stream.settle()

        def compute():
            side.stream.be_late()
            for tensor in kv.values():
                bits = torch.randint(-1 << 15, 1 << 15, tensor.shape, device=DEVICE)
                tensor.copy_(bits.to(torch.int16).view(torch.bfloat16))
            for name, tensor in kv.items():  # after all writes: groups share memory
                before[name].copy_(tensor)

        side.step(output({"a": n}, {"a": tables}), compute)
        with side.stream.use():
            for tensor in kv.values():
                tensor.zero_()
        side.close()
        return before

    def load(self, specs, kv, n, hit, tables, **extra):
        """Load `hit` of n tokens into the blocks `tables` in a new start of vLLM.

        The load begins while the stream still writes the blocks for an earlier request.
        Return copies of the tensors after the load.
        """
        side = Side(self.folder, specs, kv, **extra)
        req = request("b", n)
        self.assertEqual(side.look_up(req), (hit, True))
        side.scheduler.update_state_after_alloc(
            req, Object(get_block_ids=lambda: tables), hit)

        def last_use():
            side.stream.be_late()
            for tensor in kv.values():
                tensor.fill_(7)

        done = side.step(output(), last_use)
        for _ in range(300000):
            if done:
                break
            time.sleep(0.002)
            done = side.step(output())
        self.assertEqual((done, *side.failed), ({"b"}, set(), set()))
        after = {name: tensor.clone() for name, tensor in kv.items()}
        side.close()
        return after

    def check(self, before, after, group, pairs, last):
        """Check that the loaded blocks equal the saved blocks, and that the load wrote no other
        block (in group 0).

        pairs: (saved block, loaded block) in the order of the tokens.  The last pair has
        `last` tokens.
        """
        for layer in range(LAYERS):
            name = "%d.%d" % (group, layer)
            was, now = before[name].view(torch.int16), after[name].view(torch.int16)
            for i, (old, new) in enumerate(pairs):
                n = last if i + 1 == len(pairs) else TOKENS
                self.assertTrue(torch.equal(was[old, :, :n], now[new, :, :n]),
                                "layer %d, block %d" % (layer, new))
            if group:
                continue
            others = sorted(set(range(BLOCKS)) - {new for _, new in pairs})
            self.assertTrue(bool((after[name][others] == 7).all()),
                            "layer %d: other blocks were written" % layer)

    def round_trip(self, spec, orders, heads, content, n=200, hit=192, **extra):
        """Save tensors with the axis order orders[0], and load into tensors with orders[1].

        The axis order of a chunk is independent of the tensors' order.
        """
        kv = [tensors(order, 1, heads, content) for order in orders]
        if heads == 1:  # latent vectors have no heads
            kv = [{name: tensor[:, 0] for name, tensor in one.items()} for one in kv]
        size = -(-n // TOKENS)
        old = list(range(size, 0, -1))
        new = [20 + (7 * i) % size for i in range(size)]
        before = self.save([spec], kv[0], n, (old,), **extra)
        after = self.load([spec], kv[1], n, hit, (new,), **extra)
        if heads == 1:
            before, after = ({name: tensor[:, None] for name, tensor in half.items()}
                             for half in (before, after))
        used = -(-hit // TOKENS)
        self.check(before, after, 0, list(zip(old, new))[:used],
                   hit - (used - 1) * TOKENS)

    def test_heads_and_tokens_in_either_order(self):
        spec = FullAttentionSpec()
        spec.num_kv_heads = 8
        spec.page_size_bytes = 2 * 8 * TOKENS * 128 * 2
        for orders in (("LBHNC", "LBNHC"), ("LBNHC", "BLHNC"), ("BLHNC", "BLNHC"),
                       ("BLNHC", "LBHNC")):
            self.try_each_way(spec, orders, 8, 256)

    def test_latent_vectors(self):
        for orders in (("LBHNC", "BLHNC"), ("BLHNC", "LBHNC")):
            self.try_each_way(MLAAttentionSpec(), orders, 1, 576)

    def try_each_way(self, spec, orders, *about):
        for settings in WAYS:
            with self.subTest(orders=orders, **settings):
                with tempfile.TemporaryDirectory() as self.folder:
                    self.round_trip(spec, orders, *about, **settings)

    def test_a_partial_chunk(self):
        spec = FullAttentionSpec()
        self.round_trip(spec, ("LBNHC", "LBHNC"), 4, 256, hit=199,
                        save_unfull_chunk=True)

    def test_files_that_a_gpu_may_reach_directly(self):
        self.round_trip(FullAttentionSpec(), ("LBHNC", "LBNHC"), 4, 256, remote_url="",
                        gds_path=self.folder)

    def test_groups_that_share_their_memory(self):
        """Two groups use one memory, and different block ids because both groups allocate from
        one pool."""
        if connector.KVConnectorTransferResults is None:
            self.skipTest("no hybrid attention with this vLLM")
        specs = [FullAttentionSpec(), SlidingWindowSpec()]
        specs[1].sliding_window = 1000
        kv = tensors("LBHNC", 2, 4, 256)
        old = list(range(1, 14)), list(range(14, 27))
        new = list(range(39, 26, -1)), list(range(13, 0, -1))
        before = self.save(specs, kv, 200, old)
        after = self.load(specs, kv, 200, 192, new)
        for group in range(2):
            pairs = list(zip(old[group], new[group]))[:12]
            for layer in range(LAYERS):
                name = "%d.%d" % (group, layer)
                for was, now in pairs:
                    self.assertTrue(torch.equal(before[name][was].view(torch.int16),
                                                after[name][now].view(torch.int16)))


if __name__ == "__main__":
    unittest.main()
