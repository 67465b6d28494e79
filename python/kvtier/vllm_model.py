# SPDX-License-Identifier: Apache-2.0
"""Describe vLLM's KV cache for kvtier: model, groups of layers, packing, views.

The description is part of the identity of chunks.  The processes of the scheduler and of
the workers must compute equal descriptions, so no function here depends on the process.
"""

import collections
import hashlib
import math
import re

from . import _lib

# vLLM's null block: named by block tables where a block is not there.
NULL_BLOCK = 0

_MAX_GROUPS = 64  # of struct kvt_engine_params

# Kinds of KV cache, by the exact name of their class: others derive from these.
_MLA = "MLAAttentionSpec"
# A token of chunked local attention reads the tokens before it in its piece of
# attention_chunk_size tokens: never more than with a window of this size.
_WINDOWS = {"SlidingWindowSpec": "sliding_window",
            "ChunkedLocalAttentionSpec": "attention_chunk_size"}
# A layer of Mamba or linear attention has a state: a block holds the state after the block's
# last token.  A hit needs only the state after the last token of the hit.
_STATE = "MambaSpec"
_KINDS = ("FullAttentionSpec", _MLA, _STATE, *_WINDOWS)
# Models with layers of other kinds, for a message.
_MODELS = {"CrossAttentionSpec": "an encoder beside the decoder (cross attention)"}

# LMCache's names of KV cache types.
_KV_DTYPES = {
    "torch.bfloat16": "bfloat16",
    "torch.float16": "half",
    "torch.float32": "float",
    "torch.float64": "double",
    "torch.int8": "int8",
    "torch.uint8": "uint8",
    "torch.float8_e4m3fn": "uint8",
    "torch.float8_e5m2": "uint8",
}


# Addresses and strides of the blocks of a group's layers, as in struct kvt_kv_view.
View = collections.namedtuple("View", (
    "bases", "n_kv", "block_stride", "head_stride", "token_stride", "memory",
    "device"))


class Unsupported(Exception):
    """kvtier neither looks up nor stores this model's KV cache; the text says why."""


class GroupInfo:
    """A group of kvtier: layers with a common block table and blocks of one shape."""

    __slots__ = ("table", "kind", "window", "in_pieces", "is_state", "block_tokens",
                 "blocks_per_chunk", "format", "n_heads", "head_bytes", "block_bytes", "layout",
                 "layers", "replicated", "packing", "dtype")

    def __init__(self, table=0):
        self.table = table  # number of vLLM's KV cache group, which has the block table
        self.packing = _lib.PACKING_UNKNOWN
        self.in_pieces = False  # chunked local attention; `window` is the size of a piece
        self.is_state = False  # Mamba, linear attention: a block is a state
        self.replicated = 0

    def first_kept(self, start):
        """Return the first token whose block vLLM keeps for a step that begins at token
        `start`."""
        if self.in_pieces:
            return start // self.window * self.window
        return max(0, start - self.window + 1) if self.window else 0

    def to_c(self):
        return _lib.Group(
            kind=self.kind,
            window_tokens=self.window,
            block_tokens=self.block_tokens,
            format=self.format,
            n_layers=len(self.layers),
            n_heads=self.n_heads,
            head_bytes=self.head_bytes,
            block_bytes=self.block_bytes,
            layout=self.layout.encode(),
            layers=",".join(self.layers).encode(),
            replicated=self.replicated,
            packing=self.packing,
        )


def device_type(vllm_config):
    return getattr(vllm_config.device_config, "device_type", "cpu")


def is_staged(device):
    """Return True if KV on devices of the type passes through vllm_staging: the library
    reaches host memory, and by CUDA and HIP the devices that PyTorch calls "cuda"."""
    return device not in ("cpu", "cuda")


def check_supported(vllm_config, kv_cache_config):
    """Raise Unsupported if tokens alone do not identify the content of a block."""
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if (getattr(parallel, name, 1) or 1) > 1:
            raise Unsupported("%s > 1" % name)
    if (getattr(parallel, "distributed_executor_backend", None) == "external_launcher"
            and parallel.world_size > 1):
        raise Unsupported("external_launcher with several ranks, whose schedulers must decide "
                          "alike: loads end at another time in each rank")
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        raise Unsupported("calculate_kv_scales makes scales that a restart "
                          "does not repeat")
    if not kv_cache_config.kv_cache_groups:
        raise Unsupported("a model without KV cache")
    if len(kv_cache_config.kv_cache_groups) > _MAX_GROUPS:
        raise Unsupported("%d KV cache groups" % len(kv_cache_config.kv_cache_groups))
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        if n_stages(vllm_config) > 1 and not group.layer_names:
            raise Unsupported("pipeline parallelism that gives a stage no layer of KV cache "
                              "group %d" % number)
        if not getattr(group, "enable_kv_transfer", True) or getattr(
                group, "host_resident", False):
            raise Unsupported("KV cache groups that cannot be transferred")
        shapes = _shapes(group)
        for spec, _ in shapes:
            _check_spec(vllm_config, spec)
        # The scheduler must ask the workers, and sees only the tensors.
        if len(shapes) > 1 and not _has_several_shapes(kv_cache_config, group):
            raise Unsupported("layers with different KV in a KV cache group of this vLLM, whose "
                              "scheduler does not see the difference")


def _check_spec(vllm_config, spec):
    # Compare the class: a FullAttentionSpec may have a sliding_window and still keep all
    # blocks.
    name = type(spec).__name__
    if name == _STATE:
        _check_state(vllm_config, spec)
        return
    if name not in _KINDS:
        raise Unsupported("%s: KV cache of kind %s"
                          % (_MODELS.get(name, "the model's attention"), name))
    if name in _WINDOWS and _window(spec) < 2:
        raise Unsupported("a sliding window of %d" % _window(spec))
    if getattr(spec, "non_causal", False):
        raise Unsupported("attention that is not causal")
    if getattr(spec, "tokens_per_state", 1) != 1:
        raise Unsupported("a KV cache with compressed tokens")
    if getattr(spec, "model_version", None):
        raise Unsupported("the KV cache of %s" % spec.model_version)
    # vLLM's reference kernels for a CPU compute a prompt only from the start; vLLM then turns
    # prefix caching off.
    if name == _MLA and not getattr(vllm_config.cache_config, "enable_prefix_caching", True):
        raise Unsupported("MLA without prefix caching")


def _check_state(vllm_config, spec):
    name = "the states of Mamba or linear attention (MambaSpec)"
    mode = getattr(spec, "mamba_cache_mode", "none")
    if mode != "align":
        raise Unsupported("%s with mamba_cache_mode %s; use --enable-prefix-caching, with which "
                          "vLLM keeps states for later prompts" % (name, mode))
    if not reports_states():
        raise Unsupported("%s in this vLLM, which does not report the blocks of all final states "
                          "to connectors; vLLM 0.32 does" % name)
    if spec.num_speculative_blocks:
        raise Unsupported("%s with speculative decoding, which changes a state after the step's "
                          "blocks are saved" % name)
    cache = vllm_config.cache_config
    # A step of a prompt may then begin within a block and end behind the block: vLLM takes the
    # state of the step's begin for the state after the block.
    if (getattr(spec, "num_prefill_checkpoint_blocks", 0)
            and (getattr(cache, "prefix_match_unit", None) or spec.block_size) < spec.block_size
            and getattr(cache, "prefix_cache_retention_interval", 0) != 0):
        raise Unsupported("%s of this kind with both --prefix-match-unit and "
                          "--prefix-cache-retention-interval, with which vLLM's own prefix cache "
                          "has wrong states; use one of the two" % name)
    if getattr(cache, "use_replayssm", False):
        raise Unsupported("%s with use_replayssm, which keeps a part of a state outside the "
                          "state's block" % name)
    if is_staged(device_type(vllm_config)):
        raise Unsupported("%s on a device of type %s" % (name, device_type(vllm_config)))


def reports_states():
    """Return True if vLLM's scheduler reports the blocks that hold a final state, in the way of
    vLLM 0.32: earlier versions keep other states."""
    try:
        from vllm import __version__ as version
        from vllm.v1.core.sched.output import KVConnectorBlockState
    except ImportError:
        return False
    release = re.match(r"(\d+)\.(\d+)", version)
    if release and (0, 0) < tuple(map(int, release.groups())) < (0, 32):
        return False
    return "boundary_state_offloads" in getattr(KVConnectorBlockState, "__dataclass_fields__", ())


def _shapes(group):
    """Return [(spec, names of layers)] of a KV cache group of vLLM.  A worker has a spec for
    each layer if layers have different specs (UniformTypeKVCacheSpecs); the scheduler has the
    spec of one layer."""
    specs = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    if specs is None:
        return [(group.kv_cache_spec, list(group.layer_names))]
    found = {}
    for name in group.layer_names:
        found.setdefault(specs[name], []).append(name)
    return list(found.items())


def _has_several_shapes(kv_cache_config, group):
    """Return True if the layers of a KV cache group have different specs, by the tensors that
    the scheduler sees too."""
    names, found = set(group.layer_names), set()
    for number, tensor in enumerate(kv_cache_config.kv_cache_tensors):
        if hasattr(tensor, "layers"):  # all layers of the group with one spec
            if not names.isdisjoint(tensor.layers):
                found.add(number)
        elif not names.isdisjoint(tensor.shared_by):
            found.add(tensor.size)
    return len(found) > 1


def is_worker_ahead(vllm_config, kv_cache_config):
    """Return True if this worker sees layers that the scheduler does not see."""
    return n_stages(vllm_config) > 1 or any(
        len(_shapes(group)) > 1 for group in kv_cache_config.kv_cache_groups)


def needs_reports(vllm_config, kv_cache_config):
    """Return True if the workers must report before the first lookup: the scheduler does not
    see the layers of all stages, or not the shapes of the layers' blocks, or a worker may be on
    another host than the scheduler.  With Ray, or with an executor that vLLM gets as a class or the
    path of a class, the configuration does not contain the hosts."""
    parallel = vllm_config.parallel_config
    return (n_stages(vllm_config) > 1 or _hosts(parallel) > 1
            or getattr(parallel, "distributed_executor_backend", None) not in (
                None, "mp", "uni", "external_launcher")
            or any(_has_several_shapes(kv_cache_config, group)
                   for group in kv_cache_config.kv_cache_groups))


def forced_settings(kv_cache_config):
    """Return the settings that a model forces, as ["NAME=value"].  vLLM keeps states only after
    whole blocks, so the chunk of a model with states is a block of vLLM."""
    groups_found = kv_cache_config.kv_cache_groups
    if not any(getattr(spec, "mamba_cache_mode", None) == "align"
               for group in groups_found for spec, _ in _shapes(group)):
        return []
    return ["save_unfull_chunk=false",
            "chunk_size=%d" % math.lcm(*(group.kv_cache_spec.block_size
                                         for group in groups_found))]


def check_chunk_size(chunk_tokens, block_sizes):
    """Raise ValueError unless a chunk is a whole number of blocks of every group."""
    wrong = [size for size in block_sizes if chunk_tokens % size]
    if not wrong:
        return
    unit = math.lcm(*block_sizes)
    legal = max(unit, (chunk_tokens + unit // 2) // unit * unit)
    raise ValueError(
        "kvtier: chunk_size %d is not a multiple of vLLM's block size %d; the "
        "nearest legal chunk_size is %d" % (chunk_tokens, wrong[0], legal))


def groups(vllm_config, kv_cache_config, chunk_tokens):
    """Return [GroupInfo]: for each of vLLM's groups a GroupInfo for each shape of blocks.  The
    order of the shapes does not depend on the order of the layers, which differs between the
    stages of pipeline parallelism."""
    check_chunk_size(chunk_tokens, sorted({
        group.kv_cache_spec.block_size
        for group in kv_cache_config.kv_cache_groups}))
    shapes = [_shapes(group) for group in kv_cache_config.kv_cache_groups]
    n_groups = sum(map(len, shapes))
    if n_groups > _MAX_GROUPS:
        raise Unsupported("%d shapes of KV" % n_groups)
    is_alone = n_groups == 1
    return sorted((_describe(vllm_config, kv_cache_config, chunk_tokens, table, spec, layers,
                             is_alone)
                   for table, found in enumerate(shapes) for spec, layers in found),
                  key=lambda info: (info.table, info.block_bytes, info.layout))


def _describe(vllm_config, kv_cache_config, chunk_tokens, table, spec, layers, is_alone):
    """Return the GroupInfo of layers with one spec.  is_alone: the model has no other layers."""
    is_mla = type(spec).__name__ == _MLA
    info = GroupInfo(table)
    info.layers = layers
    if type(spec).__name__ == _STATE:
        _describe_state(info, spec, vllm_config, chunk_tokens)
        return info
    info.window = _window(spec)
    info.in_pieces = type(spec).__name__ == "ChunkedLocalAttentionSpec"
    info.kind = _lib.GROUP_SLIDING if info.window else _lib.GROUP_FULL
    info.block_tokens = spec.block_size
    info.blocks_per_chunk = chunk_tokens // spec.block_size
    info.dtype = str(spec.dtype)
    info.n_heads = spec.num_kv_heads
    info.head_bytes = spec.head_size * spec.dtype.itemsize
    info.block_bytes = getattr(spec, "real_page_size_bytes", spec.page_size_bytes)
    info.format = _format(vllm_config, info, is_mla, is_alone)
    if info.format == _lib.FORMAT_OPAQUE:
        _describe_packing(info, spec, vllm_config, kv_cache_config)
    else:  # two kinds of FP8 are both bytes
        info.layout = getattr(vllm_config.cache_config, "cache_dtype", "auto")
    # Every rank of a stage computes the whole latent vector of MLA.
    info.replicated = int(
        is_mla and vllm_config.parallel_config.tensor_parallel_size > 1)
    return info


def _describe_state(info, spec, vllm_config, chunk_tokens):
    """Fill in a group of states.  A window of two tokens makes the library search only the
    last chunk of a hit."""
    if spec.block_size != chunk_tokens:
        raise Unsupported("states for each %d tokens beside blocks of another size"
                          % spec.block_size)
    info.is_state = True
    info.kind, info.window = _lib.GROUP_SLIDING, 2
    info.block_tokens, info.blocks_per_chunk = spec.block_size, 1
    info.dtype = str(spec.dtypes[0])
    info.n_heads = info.head_bytes = 0
    info.block_bytes = spec.real_page_size_bytes
    info.format = _lib.FORMAT_OPAQUE
    info.layout = _state_layout(spec, vllm_config)


def _state_layout(spec, vllm_config):
    """Return a text that is different for each order of the bytes in a state.  vLLM's kernels
    decide the order, so the text contains vLLM's version."""
    import torch
    from vllm import __version__ as version
    from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

    parts = ",".join("%s-%s" % ("x".join(map(str, shape)), dtype)
                     for shape, dtype in zip(spec.shapes, spec.dtypes))
    isa = "hip" if torch.version.hip else ""
    if device_type(vllm_config) == "cpu":
        isa = "%s-%s" % (torch.backends.cpu.get_cpu_capability(),
                         "amx" if torch.cpu._is_amx_tile_supported() else "")
    return "vllm-%s:state:%s:%s:%s:%s:%s" % (
        version, getattr(spec.mamba_type, "name", spec.mamba_type), parts,
        "DS" if is_conv_state_dim_first() else "SD", device_type(vllm_config), isa)


def _window(spec):
    """Return the number of tokens in a group's window; 0: the group keeps all tokens."""
    return getattr(spec, _WINDOWS.get(type(spec).__name__, ""), 0)


def _format(vllm_config, info, mla, is_alone):
    """Return the chunk format of a group.

    On a device a block is K and V of each token and head, and chunks of a model with one group
    have LMCache's order.  Packed blocks are stored unchanged, and so are blocks of models
    with several groups, because LMCache's names do not distinguish groups."""
    planes = 1 if mla else 2
    if (device_type(vllm_config) == "cpu" or not is_alone
            or info.block_bytes != (planes * info.block_tokens * info.n_heads
                                    * info.head_bytes)):
        return _lib.FORMAT_OPAQUE
    return _lib.FORMAT_MLA if mla else _lib.FORMAT_2LTD


def _describe_packing(info, spec, vllm_config, kv_cache_config):
    """Set info.layout, a text that is different for each packing of a block, and
    info.packing."""
    mla = type(spec).__name__ == _MLA
    head_size_v = 0 if mla else (
        getattr(spec, "head_size_v", None) or spec.head_size)
    shape = "vllm:%dx%dx%d+%d:%s:%s:%s" % (
        spec.num_kv_heads, spec.block_size, spec.head_size, head_size_v,
        spec.dtype, getattr(vllm_config.cache_config, "cache_dtype", "auto"),
        getattr(kv_cache_config, "kv_cache_layout", None) or "")
    packed = None if mla else _pack_pattern(spec, head_size_v)
    if packed:
        info.layout = "%s:%s" % (shape, _digest(packed[1]))
        info.packing = _packing(*packed)
    elif is_staged(device_type(vllm_config)):
        info.layout = "%s:heads-tokens" % shape  # the order of vllm_staging
    elif mla:
        info.layout = "%s:mla-%s-%s" % (
            shape, getattr(spec, "cache_dtype_str", None) or "", _isa(spec, vllm_config))
    else:
        info.layout = "%s:%s" % (shape, _isa(spec, vllm_config))


def _pack_pattern(spec, head_size_v):
    """Return (pattern, packed pattern), tensors of a block's layer, by the platform's own
    packing; None if the platform cannot pack."""
    try:
        import torch
        from vllm.platforms import current_platform

        if head_size_v != spec.head_size:
            return None
        shape = (1, spec.num_kv_heads, spec.block_size, 2 * spec.head_size)
        n = math.prod(shape)
        # Small whole numbers are exact in every dtype.  251 is prime, so no stride of the
        # layout repeats the sequence.
        pattern = (torch.arange(n, dtype=torch.int32) % 251).to(spec.dtype)
        cache = pattern.clone().view(shape).contiguous()
        current_platform.pack_kv_cache(
            cache, torch.zeros(1, dtype=torch.long))
        return pattern.view(shape), cache.contiguous()
    except (ImportError, AttributeError, NotImplementedError, RuntimeError,
            TypeError, ValueError):
        return None


def _digest(packed):
    """Return a digest of a packed pattern: builds with equal packing share chunks."""
    import torch

    data = packed.view(torch.uint8).numpy().tobytes()
    return "packed-" + hashlib.sha256(data).hexdigest()[:32]


def _packing(pattern, packed):
    """Return the order of the elements in a packed block, for codecs."""
    import torch

    heads = pattern[0]
    size = heads.shape[-1] // 2
    keys = heads[..., :size].transpose(1, 2).flatten(1)
    values = heads[..., size:].flatten(1)
    by_heads = torch.cat((keys, values), dim=1).flatten()
    if torch.equal(packed.flatten(), by_heads):
        return _lib.PACKING_HEADS
    return _lib.PACKING_UNKNOWN


def _isa(spec, vllm_config):
    """Return a name of the packing, for platforms that cannot pack a pattern.  Only blocks of
    a CPU depend on its instruction set.  With ROCm, which PyTorch calls "cuda" too, blocks of
    sparse attention have another order than with CUDA."""
    import platform

    import torch

    if device_type(vllm_config) != "cpu":
        return "device-%s%s" % (device_type(vllm_config), "-hip" if torch.version.hip else "")
    try:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
        isa = _get_attn_isa(spec.dtype, spec.block_size, spec.head_size)
    except (ImportError, AttributeError, NotImplementedError, TypeError):
        isa = "plain"
    return "isa-%s-%s" % (platform.machine(), isa)


def kv_dtype(infos):
    """Return LMCache's name of the type of the KV: of the largest blocks, which all stages have.
    The types of the other layers, and of states beside KV, are in the layouts."""
    attention = [info for info in infos if not info.is_state] or infos
    names = set({info.table: info.dtype for info in attention}.values())
    if len(names) > 1:
        raise Unsupported("KV cache groups of different types: %s"
                          % ", ".join(sorted(names)))
    name = names.pop()
    if name not in _KV_DTYPES:
        raise Unsupported("a KV cache of type %s" % name)
    return _KV_DTYPES[name]


def model(vllm_config, infos, rank, fingerprint):
    """Return the _lib.Model of this process's rank."""
    config = vllm_config.model_config
    world = n_ranks(vllm_config)
    return _lib.Model(
        name=config.model.encode(),
        fingerprint=fingerprint.encode(),
        kv_dtype=kv_dtype(infos).encode(),
        world_size=world,
        rank=rank % world,
    )


def n_stages(vllm_config):
    """Return the number of stages of pipeline parallelism."""
    return getattr(vllm_config.parallel_config, "pipeline_parallel_size", 1) or 1


def n_ranks(vllm_config):
    """Return the number of workers of one engine.  vLLM numbers the workers stage by stage."""
    return vllm_config.parallel_config.tensor_parallel_size * n_stages(vllm_config)


def _hosts(parallel):
    """Return the number of hosts of one engine.  vLLM's nnodes counts the hosts of all
    data-parallel engines."""
    return max(1, getattr(parallel, "nnodes_within_dp", 1) or 1)


def local_ranks(vllm_config):
    """Return the number of workers on each host."""
    return max(1, n_ranks(vllm_config) // _hosts(vllm_config.parallel_config))


def views(kv_caches, infos, n_blocks):
    """Return one View for each group."""
    return [_view(kv_caches, info, n_blocks) for info in infos]


def _view(kv_caches, info, n_blocks):
    tensors = []
    for name in info.layers:
        tensor = kv_caches.get(name)
        if tensor is None:
            raise Unsupported("layer %s has no KV cache of its own" % name)
        if not hasattr(tensor, "data_ptr"):
            raise Unsupported("layer %s has no single KV cache tensor" % name)
        tensors.append(tensor)
    strides = _blocks if info.format == _lib.FORMAT_OPAQUE else _tokens
    found = {strides(name, tensor, info, n_blocks) + _memory(tensor)
             for name, tensor in zip(info.layers, tensors)}
    if len(found) != 1:
        raise Unsupported("layers of one group differ in their strides or devices")
    block, head, token, memory, device = found.pop()
    planes = 2 if info.format == _lib.FORMAT_2LTD else 1
    return View([tensor.data_ptr() + plane * info.head_bytes
                 for plane in range(planes) for tensor in tensors],
                planes, block, head, token, memory, device)


def _memory(tensor):
    """Return (kind of memory, number of the device)."""
    if tensor.device.type == "cpu":
        return _lib.MEMORY_HOST, 0
    if tensor.device.type != "cuda":
        raise Unsupported("a KV cache in %s memory" % tensor.device.type)
    import torch

    return (_lib.MEMORY_HIP if torch.version.hip else _lib.MEMORY_CUDA,
            tensor.device.index or 0)


def _ratio(name, tensor, n_blocks):
    """Return how many blocks of the attention backend make one block of vLLM."""
    ratio, rest = divmod(tensor.shape[0], n_blocks)
    if rest or not ratio:
        raise Unsupported("layer %s has %d blocks, not a multiple of %d"
                          % (name, tensor.shape[0], n_blocks))
    return ratio


def _blocks(name, tensor, info, n_blocks):
    """Return the strides in bytes of contiguous blocks."""
    ratio = _ratio(name, tensor, n_blocks)
    if not _lies_together(tensor, ratio):
        raise Unsupported("the blocks of layer %s are not contiguous" % name)
    size = tensor[:ratio].numel() * tensor.element_size()
    if size != info.block_bytes:
        raise Unsupported("a block of layer %s has %d bytes, expected %d"
                          % (name, size, info.block_bytes))
    return tensor.stride(0) * tensor.element_size() * ratio, 0, 0


def _lies_together(tensor, n):
    """Return True if n blocks have no gap between elements, in any order of dimensions."""
    sizes = [n] + list(tensor.shape[1:])
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), sizes)):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def _tokens(name, tensor, info, n_blocks):
    """Return the strides in bytes of blocks, heads and tokens: [block, head, token, K and
    V], or without heads."""
    ratio = _ratio(name, tensor, n_blocks)
    heads = tensor.shape[1] if tensor.dim() == 4 else 1
    item, token = tensor.element_size(), tensor.stride(-2)
    content = info.block_bytes // (info.block_tokens * info.n_heads)
    if (tensor.dim() not in (3, 4) or heads != info.n_heads
            or tensor.shape[-2] * ratio != info.block_tokens
            or tensor.shape[-1] * item != content or tensor.stride(-1) != 1):
        raise Unsupported("the KV cache of layer %s has the shape %s"
                          % (name, list(tensor.shape)))
    if ratio > 1 and tensor.stride(0) != tensor.shape[-2] * token:
        raise Unsupported("the tokens of a block of layer %s lie apart" % name)
    head = tensor.stride(1) if tensor.dim() == 4 else 0
    return tensor.stride(0) * item * ratio, head * item, token * item
