# SPDX-License-Identifier: Apache-2.0
"""The layouts of vLLM's KV cache, on a CPU and on a GPU.

The tests' tensors have an address, a shape and strides, but no memory.
"""

import math
import os
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake  # noqa: E402

fake.stub_vllm()
from kvtier import _lib, vllm_model  # noqa: E402

Object = types.SimpleNamespace
BLOCKS, HEADS, TOKENS, HEAD_SIZE, ITEM = 8, 4, 16, 128, 2


class Tensor:
    """A tensor without memory.  order: the axes' order in memory, the slowest axis first."""

    def __init__(self, at, shape, order=None, device="cuda", index=0, pitch=None):
        self.shape = list(shape)
        self.device = Object(type=device, index=index)
        self._at = at
        self._strides = [0] * len(shape)
        step = 1
        for axis in reversed(order or range(len(shape))):
            self._strides[axis] = step
            step *= shape[axis]
        if pitch:
            self._strides[0] = pitch

    def data_ptr(self):
        return self._at

    def dim(self):
        return len(self.shape)

    def stride(self, axis=None):
        return tuple(self._strides) if axis is None else self._strides[axis]

    def element_size(self):
        return ITEM

    def numel(self):
        return math.prod(self.shape)

    def __getitem__(self, some):
        part = Tensor(self._at, [some.stop] + self.shape[1:])
        part._strides = self._strides
        return part


class Spec:
    block_size = TOKENS
    num_kv_heads = HEADS
    head_size = HEAD_SIZE
    dtype = type("dtype", (), {"itemsize": ITEM, "__str__":
                               lambda self: "torch.bfloat16"})()
    page_size_bytes = 2 * HEADS * TOKENS * HEAD_SIZE * ITEM
    sliding_window = 512


class Latent(Spec):
    num_kv_heads = 1
    head_size = 576
    page_size_bytes = TOKENS * 576 * ITEM


FullAttentionSpec = type("FullAttentionSpec", (Spec,), {})
SlidingWindowSpec = type("SlidingWindowSpec", (Spec,), {})
MLAAttentionSpec = type("MLAAttentionSpec", (Latent,), {})
NHD, HND = (0, 2, 1, 3), (0, 1, 2, 3)


def groups(*specs, device="cuda"):
    cache = Object(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=[
        Object(kv_cache_spec=spec, layer_names=["%d.0" % i, "%d.1" % i])
        for i, spec in enumerate(specs)])
    config = Object(parallel_config=Object(tensor_parallel_size=1),
                    device_config=Object(device_type=device),
                    cache_config=Object(cache_dtype="auto"))
    return vllm_model.groups(config, cache, 256)


def layers(*tensors, group=0):
    return {"%d.%d" % (group, i): tensor for i, tensor in enumerate(tensors)}


class Views(unittest.TestCase):
    def setUp(self):
        patch = mock.patch.dict(sys.modules, torch=Object(version=Object(hip=None)))
        patch.start()
        self.addCleanup(patch.stop)

    def pair(self, order, **more):
        shape = (BLOCKS, HEADS, TOKENS, 2 * HEAD_SIZE)
        return layers(Tensor(4096, shape, order, **more),
                      Tensor(1 << 20, shape, order, **more))

    def test_on_a_gpu_chunks_are_ordered_as_lmcaches(self):
        infos = groups(FullAttentionSpec())
        self.assertEqual(infos[0].format, _lib.FORMAT_2LTD)
        token, head = 2 * HEAD_SIZE * ITEM, HEAD_SIZE * ITEM
        for order, head_stride, token_stride in (
                (NHD, token, HEADS * token), (HND, TOKENS * token, token)):
            view, = vllm_model.views(self.pair(order, index=3), infos, BLOCKS)
            # K of both layers, then V.
            self.assertEqual(view.bases, [4096, 1 << 20, 4096 + head,
                                          (1 << 20) + head])
            self.assertEqual(view.n_kv, 2)
            self.assertEqual(view.block_stride, HEADS * TOKENS * token)
            self.assertEqual((view.head_stride, view.token_stride),
                             (head_stride, token_stride))
            self.assertEqual((view.memory, view.device), (_lib.MEMORY_CUDA, 3))

    def test_hip_is_distinguished_from_cuda(self):
        sys.modules["torch"].version.hip = "7.2"
        view, = vllm_model.views(self.pair(HND), groups(FullAttentionSpec()), BLOCKS)
        self.assertEqual(view.memory, _lib.MEMORY_HIP)

    def test_latent_vectors_have_no_heads(self):
        infos = groups(MLAAttentionSpec())
        self.assertEqual(infos[0].format, _lib.FORMAT_MLA)
        for shape in ((BLOCKS, TOKENS, 576), (BLOCKS, 1, TOKENS, 576)):
            view, = vllm_model.views(layers(Tensor(4096, shape), Tensor(8192, shape)),
                                     infos, BLOCKS)
            self.assertEqual((view.bases, view.n_kv), ([4096, 8192], 1))
            self.assertEqual((view.block_stride, view.token_stride),
                             (TOKENS * 576 * ITEM, 576 * ITEM))

    def test_layers_of_a_block_may_be_adjacent(self):
        pitch = 2 * HEADS * TOKENS * 2 * HEAD_SIZE
        view, = vllm_model.views(self.pair(NHD, pitch=pitch),
                                 groups(FullAttentionSpec()), BLOCKS)
        self.assertEqual(view.block_stride, pitch * ITEM)

    def test_several_groups_and_packed_blocks_are_described(self):
        packed = FullAttentionSpec()
        packed.page_size_bytes += 64
        for infos in (groups(FullAttentionSpec(), SlidingWindowSpec()),
                      groups(packed), groups(FullAttentionSpec(), device="cpu")):
            self.assertEqual({info.format for info in infos}, {_lib.FORMAT_OPAQUE})
        infos = groups(FullAttentionSpec(), SlidingWindowSpec())
        tensors = dict(self.pair(NHD), **{"1.%d" % i: tensor for i, tensor in enumerate(
            self.pair(NHD).values())})
        for view in vllm_model.views(tensors, infos, BLOCKS):
            self.assertEqual((view.bases, view.n_kv), ([4096, 1 << 20], 1))
            self.assertEqual(view.block_stride, Spec.page_size_bytes)

    def test_blocks_that_a_backend_has_cut(self):
        infos = groups(FullAttentionSpec())
        half = (2 * BLOCKS, HEADS, TOKENS // 2, 2 * HEAD_SIZE)
        view, = vllm_model.views(layers(Tensor(0, half, NHD), Tensor(64, half, NHD)),
                                 infos, BLOCKS)
        self.assertEqual(view.block_stride, Spec.page_size_bytes)
        with self.assertRaisesRegex(vllm_model.Unsupported, "lie apart"):
            vllm_model.views(layers(Tensor(0, half), Tensor(64, half)), infos, BLOCKS)

    def test_unsupported_layouts_are_errors(self):
        infos = groups(FullAttentionSpec())
        shape = (BLOCKS, HEADS, TOKENS, 2 * HEAD_SIZE)
        one = Tensor(0, shape)
        for other, said in (
                (Tensor(0, shape, NHD), "differ in their strides"),
                (Tensor(0, shape, index=1), "devices"),
                (Tensor(0, shape, device="xpu"), "xpu memory"),
                (Tensor(0, (BLOCKS, 2, TOKENS, 2 * HEAD_SIZE)), "the shape"),
                (Tensor(0, (BLOCKS + 1,) + shape[1:]), "not a multiple"),
                (None, "no KV cache of its own")):
            with self.assertRaisesRegex(vllm_model.Unsupported, said):
                vllm_model.views(layers(one, other), infos, BLOCKS)


if __name__ == "__main__":
    unittest.main()
