# SPDX-License-Identifier: Apache-2.0
"""The blocks of vLLM's KV cache as PyTorch's tensors, read and written by torch operations.

Each platform of vLLM has shapes and orders of its own; a block that is read has the axes
[head, token, content], or [token, content] if the layer has no heads.
"""

import struct

from . import _lib
from .vllm_model import Unsupported, View

_N_TOKENS_AT = _lib.Chunk.n_tokens.offset


class _Part:
    """A tensor [block, ...] of a layer.  The operations on blocks see the axes in the order
    of the memory, so no device copies a whole tensor to make the tensor contiguous."""

    def __init__(self, tensor):
        axes = sorted(range(1, tensor.dim()), key=lambda axis: -tensor.stride(axis))
        self._order = [0] + axes
        self._inverse = [self._order.index(axis) for axis in range(tensor.dim())]
        self._memory = tensor.permute(self._order)
        self.shape = tuple(tensor.shape[1:])

    def read(self, ids):
        return self._memory.index_select(0, ids).permute(self._inverse)

    def write(self, ids, blocks):
        self._memory.index_copy_(0, ids, blocks.permute(self._order))


class _Layer:
    """The blocks of a layer.  A block is [head, token, content], or [token, content]; the
    content is the parts' contents, one after the other."""

    def __init__(self, name, kv, info, n_blocks):
        import torch

        tensors = ([_fused(kv, info, n_blocks)] if hasattr(kv, "data_ptr")
                   else [_separate(one, info, n_blocks) for one in kv or () if one is not None])
        if not tensors or any(one is None for one in tensors) or not _fit(tensors, info):
            shapes = [getattr(one, "shape", one) for one in
                      ([kv] if hasattr(kv, "shape") else kv or ())]
            raise Unsupported("the KV cache of layer %s has the shape %s"
                              % (name, ", ".join(str(list(shape)) for shape in shapes)))
        self.device, self.dtype = tensors[0].device, tensors[0].dtype
        if self.dtype.itemsize == 1:  # devices lack operations on FP8
            self.dtype = torch.uint8
        self._parts = [_Part(one.view(self.dtype)) for one in tensors]
        self._sizes = [part.shape[-1] for part in self._parts]
        self.shape = self._parts[0].shape[:-1] + (sum(self._sizes),)

    def read(self, ids):
        import torch

        blocks = [part.read(ids) for part in self._parts]
        return torch.cat(blocks, -1) if len(blocks) > 1 else blocks[0]

    def write(self, ids, blocks):
        for part, content in zip(self._parts, blocks.split(self._sizes, -1)):
            part.write(ids, content)


def _fused(tensor, info, n_blocks):
    """Return vLLM's tensor [block, head, token, content] or [block, token, content] with
    n_blocks blocks; None if the tensor has another shape."""
    ratio, rest = divmod(tensor.shape[0], n_blocks)
    if (rest or not ratio or tensor.dim() not in (3, 4)
            or tensor.shape[-2] * ratio != info.block_tokens
            or (tensor.shape[1] if tensor.dim() == 4 else 1) != info.n_heads):
        return None
    if ratio == 1:
        return tensor
    # An attention backend may divide a block into smaller blocks.
    return tensor.unflatten(0, (n_blocks, ratio)).movedim(1, -3)


def _separate(tensor, info, n_blocks):
    """Return a tensor [block, token, head, content] of a plug-in, one of several tensors of a
    layer, as [block, head, token, content]; None if the tensor has another shape.  The first
    two axes may be a single axis."""
    if not hasattr(tensor, "dim"):
        return None
    if tensor.dim() == 3 and tensor.shape[0] % info.block_tokens == 0:
        tensor = tensor.unflatten(0, (-1, info.block_tokens))
    if (tensor.dim() != 4 or tensor.shape[0] < n_blocks
            or list(tensor.shape[1:3]) != [info.block_tokens, info.n_heads]):
        return None
    return tensor.transpose(1, 2)


def _fit(tensors, info):
    """Return True if the tensors' contents are K and V, or a latent vector."""
    sizes = [one.shape[-1] * one.element_size() for one in tensors]
    content, rest = divmod(info.block_bytes, info.block_tokens * info.n_heads)
    if info.format == _lib.FORMAT_2LTD and len(sizes) > 1 and sizes != [info.head_bytes] * 2:
        return False
    return (not rest and sum(sizes) == content
            and len({(one.device, one.dtype) for one in tensors}) == 1)


class Group:
    """The layers of a group, and the group's part of a unit: [layer, block] of a chunk."""

    def __init__(self, kv_caches, info, n_blocks):
        self.info = info
        self.layers = [_Layer(name, kv_caches.get(name), info, n_blocks)
                       for name in info.layers]
        about = {(layer.device, layer.dtype, layer.shape) for layer in self.layers}
        if len(about) != 1:
            raise Unsupported("layers of one group differ in their shapes or devices")
        self.device, self.dtype, shape = about.pop()
        self.shape = (len(self.layers), info.blocks_per_chunk) + shape
        self.bytes = len(self.layers) * info.blocks_per_chunk * info.block_bytes

    def view(self, base):
        """Return the View of units that begin at base."""
        info = self.info
        planes = 2 if info.format == _lib.FORMAT_2LTD else 1
        token = info.block_bytes // (info.block_tokens * info.n_heads)
        layer = info.blocks_per_chunk * info.block_bytes
        return View([base + i * layer + plane * info.head_bytes
                     for plane in range(planes) for i in range(len(self.layers))],
                    planes, info.block_bytes, info.block_tokens * token, token,
                    _lib.MEMORY_HOST, 0)

    def blocks_of(self, chunks, blocks):
        """Return [(kvt_chunk, its block ids)]."""
        found, at = [], 0
        for i in range(0, len(chunks), _lib.CHUNK_BYTES):
            tokens, = struct.unpack_from("<I", chunks, i + _N_TOKENS_AT)
            n = -(-tokens // self.info.block_tokens)
            found.append((chunks[i:i + _lib.CHUNK_BYTES], blocks[at:at + n]))
            at += n
        return found
