# SPDX-License-Identifier: Apache-2.0
"""vLLM's real scheduler with the connector, over a model made of arithmetic.

The KV of a token is a hash of the weights and all tokens up to the token, 8 bytes in
each of two layers: the tests can check every block at each read, save and load.  Batches
overlap as in vLLM: up to `depth` steps are scheduled before the oldest step is executed.
"""

import collections
import dataclasses
import functools
import json
import logging
import os
import pickle
import random
import struct
import tempfile
import time
from array import array

import fake
import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVEventsConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorTransferResults,
    )
except ImportError:
    KVConnectorTransferResults = None

logging.getLogger("vllm").setLevel(logging.ERROR)

BLOCK = 4
CHUNK = 8
LAYERS = 2

_MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 1024, "max_position_embeddings": 4096, "bos_token_id": 1,
    "eos_token_id": 2, "torch_dtype": "bfloat16",
}


def vllm_config(depth=1, extra=None, max_batched=32, events=False, **transfer):
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(_MODEL, file)
        model = ModelConfig(model=folder, skip_tokenizer_init=True,
                            dtype="bfloat16", seed=0, max_model_len=1024)
    return VllmConfig(
        model_config=model,
        cache_config=CacheConfig(block_size=BLOCK, gpu_memory_utilization=0.9,
                                 enable_prefix_caching=True),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8, max_num_batched_tokens=max_batched,
            max_model_len=1024, enable_chunked_prefill=True,
            is_encoder_decoder=False, async_scheduling=depth > 1),
        device_config=DeviceConfig("cpu"),
        kv_events_config=KVEventsConfig(enable_kv_cache_events=events, publisher="null"),
        kv_transfer_config=KVTransferConfig(**dict(dict(
            kv_connector="KVTierConnector",
            kv_connector_module_path="kvtier.connector",
            kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config=extra or {}), **transfer)))


class Only(tuple):
    """Windows of a model without a full-attention group."""


class Pieces(int):
    """A window of chunked local attention: tokens of a piece."""


def kv_cache_config(n_blocks, windows):
    """Return a group for each window, then a full-attention group, unless windows is an
    Only."""
    about = dict(block_size=BLOCK, num_kv_heads=1, head_size=1,
                 dtype=torch.float32)
    specs = [ChunkedLocalAttentionSpec(attention_chunk_size=w, **about)
             if isinstance(w, Pieces) else SlidingWindowSpec(sliding_window=w, **about)
             for w in windows]
    if not isinstance(windows, Only):
        specs.append(FullAttentionSpec(**about))
    fields = {field.name for field in dataclasses.fields(KVCacheConfig)}
    more = {"hash_block_size": BLOCK} if "hash_block_size" in fields else {}
    return KVCacheConfig(
        num_blocks=n_blocks, kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec(["g%d.l%d" % (g, layer) for layer in range(LAYERS)],
                             spec) for g, spec in enumerate(specs)], **more)


@functools.lru_cache(1 << 16)
def kv_behind(state, tokens):
    """Return the KV of `tokens` after a token with the KV `state`."""
    out = []
    for token in tokens:
        state = ((state ^ token) * 1099511628211 + 7) & ((1 << 62) - 1)
        out.append(state)
    return tuple(out)


def kv_of(tokens, group, layer, weights=0):
    """Return the KV of each token, a number of 8 bytes."""
    out, state = [], 1469598103934665603 + 31 * group + layer + 1009 * weights
    for at in range(0, len(tokens), CHUNK):
        out += kv_behind(state, tuple(tokens[at:at + CHUNK]))
        state = out[-1]
    return out


def kvtiers(connector):
    """Return the KVTierConnector: the connector or a child of the connector."""
    from kvtier.connector import KVTierConnector

    for one in getattr(connector, "_connectors", [connector]):
        if isinstance(one, KVTierConnector):
            return one


class Sequences:
    """The live sequences of a real engine, and the sequences among them with possible
    leases."""

    def __init__(self, engine):
        self.live, self.leased = set(), set()
        self.n = 0  # made so far
        make, lookup, release = engine.seq, engine.lookup, engine.release

        def seq(*args):
            made = make(*args)
            free = made.free
            self.n += 1
            self.live.add(made)

            def free_once():
                assert made not in self.leased, "a sequence with leases is freed"
                self.live.remove(made)
                free()
            made.free = free_once
            return made

        def lookup_leases(found, *args):
            self.leased.add(found)
            return lookup(found, *args)

        def release_leases(found):
            self.leased.discard(found)
            release(found)
        engine.seq, engine.lookup, engine.release = seq, lookup_leases, release_leases


class Sim:
    def __init__(self, store, n_blocks=64, windows=(), depth=1, seed=0,
                 fail_rate=0.0, tell_blocks=True, second_runner=False, device=None,
                 **config):
        self.random = random.Random(seed)
        self.depth = depth
        self.fail_rate = fail_rate
        self.store = store
        self.config = self._configure(depth, **config)
        self.config.cache_config.num_gpu_blocks = n_blocks
        if device:
            self.config.device_config.device_type = device
        self.cache = self._cache(n_blocks, windows)
        self.windows = list(windows) + [0] * (not isinstance(windows, Only))
        init_none_hash(sha256)
        kind = AsyncScheduler if depth > 1 else Scheduler
        self.scheduler = kind(
            vllm_config=self.config, kv_cache_config=self.cache, log_stats=True,
            block_size=BLOCK, hash_block_size=BLOCK,
            structured_output_manager=StructuredOutputManager(self.config))
        self.scheduler.use_v2_model_runner |= second_runner
        # vLLM's connector, and kvtier's connector: equal, or a child of MultiConnector.
        self.top = self.scheduler.connector
        self.connector = kvtiers(self.top)
        if not tell_blocks:
            self._hide_block_state()
        self.tables = {}
        self.memory, self.on_device = [], []
        self._start_workers(device)
        self.fake = isinstance(self.engine, fake.Engine)
        if self.fake:
            self.engine.before_scatter = self._check_owner
            self.engine.before_store = self._check_saved
        elif self.connector._scheduler:
            self.sequences = Sequences(self.connector._scheduler._engine)
        self.expected = {}  # chunk prefix -> (tokens up to the chunk's end, weights)
        self.weights = 0  # of steps scheduled from now on
        self.era = 0  # samples of steps from an earlier era are dropped
        self.prompts = {}
        self.tokens = {}
        self.flying = []
        self.finished = {}
        self.hits = {}  # of vLLM's own prefix cache and of loads
        self.loaded = set()  # requests that loaded chunks
        self.saved = 0
        self.stats = []  # the connectors' statistics for vLLM's front end
        self.sources = collections.Counter()  # tokens of hits by vLLM's name of a medium

    def _configure(self, depth, **config):
        return vllm_config(depth, **config)

    def _cache(self, n_blocks, windows):
        """Return the scheduler's KVCacheConfig."""
        return kv_cache_config(n_blocks, windows)

    def _start_workers(self, device):
        self.worker_top, self.memory, self.on_device, self.cells = self._start_worker(
            self.config, self.cache, device)
        self.worker = kvtiers(self.worker_top)
        self.engine = self.worker._worker._engine
        self.first_layer = 0  # number of the model's layer in cells[0]

    def _start_worker(self, config, cache, device=None):
        """Return (the worker's connector, the memory of each layer in the host, the same on
        the device or [], the memory in the host as numbers)."""
        n = max(len(group.layer_names) for group in cache.kv_cache_groups)
        top = type(self.top)(config, KVConnectorRole.WORKER, cache)
        # All groups share one memory, as in vLLM.
        memory = [torch.zeros(cache.num_blocks, 1, BLOCK, 2, pin_memory=bool(device))
                  for _ in range(n)]
        # The model computes in host memory, and the KV is on the device between the steps.
        on_device = [m.to(device) for m in memory] if device else []
        top.register_kv_caches({
            name: (on_device or memory)[layer] for group in cache.kv_cache_groups
            for layer, name in enumerate(group.layer_names)})
        # numpy reads a single number faster than torch
        return top, memory, on_device, [
            m.view(torch.int64).view(cache.num_blocks, BLOCK).numpy() for m in memory]

    def _hide_block_state(self):
        """Hide the block ids, like vLLM versions that send only new block ids."""
        build = self.connector.build_connector_meta

        def build_without(output):
            output.kv_connector_block_state = object()
            return build(output)
        self.connector.build_connector_meta = build_without

    # ------------------------------------------------------------- requests

    def add(self, name, prompt, max_tokens=4, lora_request=None, cache_salt=None,
            **extra_args):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True,
                                extra_args=extra_args or None)
        params.update_from_generation_config({}, 2)
        request = Request(
            request_id=name, prompt_token_ids=list(prompt),
            sampling_params=params, pooling_params=None, lora_request=lora_request,
            cache_salt=cache_salt, block_hasher=get_request_block_hasher(BLOCK, sha256))
        self.tokens[name] = list(prompt)
        self.prompts[name] = prompt
        self._expect(prompt, partial=True)
        self.scheduler.add_request(request)
        return request

    def abort(self, name):
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    def _expect(self, tokens, partial=False):
        if not self.fake:
            return
        tokens = list(tokens)
        weights = self.connector._scheduler._engine.weights
        seq = fake.Seq(self.store, tokens, fake.root(weights))
        n = -(-len(tokens) // CHUNK) if partial else len(tokens) // CHUNK
        heads = seq.chunks(0, n)
        seq.free()
        for i in range(n):
            self.expected[heads[i * fake.CHUNK_BYTES:][:16]] = (
                tokens[:(i + 1) * CHUNK], self.weights)

    def reset(self):
        """Replace the weights as vLLM does: steps scheduled earlier still compute with
        the old weights.  Return False if a load is under way."""
        self.era += 1
        try:
            self.scheduler.reset_prefix_cache(reset_running_requests=True,
                                              reset_connector=True)
        except RuntimeError:
            return False
        self.weights += 1
        for name, tokens in self.tokens.items():
            self._expect(self.prompts[name], partial=True)
            self._expect(tokens)
        return True

    # ---------------------------------------------------------------- steps

    def step(self):
        """Schedule a batch.  If `depth` batches are scheduled, execute the oldest batch."""
        if self.scheduler.has_requests() or not self.flying:
            self.flying.append(self._schedule())
        if len(self.flying) >= self.depth or not self.scheduler.has_requests():
            self._execute(self.flying.pop(0))
        if self.fake:
            self._end_loads()
        elif self.worker._worker and self.worker._worker._loads:
            time.sleep(0.001)

    def _schedule(self):
        output = self.scheduler.schedule()
        resumed = set(output.scheduled_cached_reqs.resumed_req_ids)
        # For vLLM's second model runner, resumed requests are among the new requests.
        resumed.update(new.req_id for new in output.scheduled_new_reqs)
        for name in resumed:
            self._resumed(name)
        output.sim_era = self.era, self.weights
        return output

    def _resumed(self, name):
        """Start a request or resume a preempted request, which computes tokens again.

        Check that the connector will save the chunks with these tokens again.
        """
        request = self.scheduler.requests[name]
        self.tokens[name] = list(request.all_token_ids)
        self._expect(self.tokens[name])
        half = self.connector._scheduler
        state = half and half._requests.get(name)
        assert (not state or not state.limit
                or state.saved * half._chunk <= request.num_computed_tokens)

    def _end_loads(self):
        for load in list(self.engine.loading):
            if load.cancelled or self.random.random() < 0.3:
                self.engine.complete(load, self._fails)

    def _fails(self, io, chunk):
        return self.random.random() < self.fail_rate

    def run(self, at_most=3000):
        while self.scheduler.has_requests() or self.flying:
            self.step()
            at_most -= 1
            assert at_most, "the engine does not come to rest"

    def _execute(self, output):
        self._update(output, *self._run_worker(self.worker_top, output))

    def _run_worker(self, worker, output):
        """Execute a step as vLLM's worker.  Return (the connector's output, samples)."""
        meta = pickle.loads(pickle.dumps(output.kv_connector_metadata))
        worker.handle_preemptions(meta)
        worker.bind_connector_metadata(meta)
        load_first = getattr(output, "has_sync_kv_loads", True)
        if load_first:
            worker.start_load_kv(None)
        sampled = self._forward(output)
        if not load_first:
            worker.start_load_kv(None)
        worker.wait_for_save()
        if KVConnectorTransferResults is None:
            results = {"finished_recving":
                       worker.get_finished(output.finished_req_ids)[1]}
        else:
            results = vars(worker.get_transfer_results(output.finished_req_ids))
        bad = worker.get_block_ids_with_load_errors()
        assert 0 not in bad, "the null block is named as failed"
        more = {}
        if hasattr(KVConnectorOutput(), "kv_connector_worker_meta"):
            more["kv_connector_worker_meta"] = worker.build_connector_worker_meta()
        kv = KVConnectorOutput(
            **results, **more, invalid_block_ids=bad,
            kv_connector_stats=worker.get_kv_connector_stats())
        worker.clear_connector_metadata()
        return kv, sampled

    def _update(self, output, kv, sampled):
        """Give the result of a step to vLLM's scheduler."""
        names = list(output.num_scheduled_tokens)
        self.loaded.update((kv.finished_recving or set()) - getattr(kv, "failed_recving", set()))
        done = self.scheduler.update_from_output(output, ModelRunnerOutput(
            req_ids=names, req_id_to_index={n: i for i, n in enumerate(names)},
            sampled_token_ids=[sampled[n] for n in names],
            kv_connector_output=kv))
        for outputs in done.values():
            for one in outputs.outputs:
                if one.finish_reason is not None:
                    self.finished[one.request_id] = one.finish_reason
            stats = outputs.scheduler_stats
            if stats is not None and stats.kv_connector_stats:
                self.stats.append(dict(stats.kv_connector_stats))
            hits = getattr(stats, "connector_prefix_cache_stats", None)
            for source, n in getattr(hits, "hits_by_source", {}).items():
                self.sources[source.value] += n

    # ---------------------------------------------------------------- model

    def _forward(self, output):
        start = {}
        for new in output.scheduled_new_reqs:
            self.tables[new.req_id] = [list(ids) for ids in new.block_ids]
            start[new.req_id] = new.num_computed_tokens
            self.hits.setdefault(new.req_id, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for name, ids, computed in zip(cached.req_ids, cached.new_block_ids,
                                       cached.num_computed_tokens):
            start[name] = computed
            if name in cached.resumed_req_ids:
                self.tables[name] = [list(group) for group in ids or ()]
            elif ids is not None:
                for mine, more in zip(self.tables[name], ids):
                    mine.extend(more)
        sampled = {}
        era, weights = getattr(output, "sim_era", (self.era, self.weights))
        for host, device in zip(self.memory, self.on_device):
            host.copy_(device)
        for name, n in output.num_scheduled_tokens.items():
            sampled[name] = self._compute(name, start[name], n, weights,
                                          era != self.era)
        for host, device in zip(self.memory, self.on_device):
            device.copy_(host, non_blocking=True)
        return sampled

    def _compute(self, name, start, n, weights, stale):
        tokens = self.tokens[name]
        if stale:
            tokens = list(tokens)  # vLLM drops the step's samples
        assert len(tokens) >= start + n, (name, len(tokens), start, n)
        for group, table in enumerate(self.tables[name]):
            for layer, cells in enumerate(self.cells):
                kv = kv_of(tokens[:start + n], group, self.first_layer + layer, weights)
                self._compute_layer(name, group, table, cells, kv, start)
        return self._sample(tokens, start + n, stale)

    def _compute_layer(self, name, group, table, cells, kv, start):
        """Check the KV of a layer before token `start`, and write kv[start:]."""
        window = self.windows[group]
        oldest = max(0, start - window + 1) if window else 0
        if isinstance(window, Pieces):
            oldest = start // window * window
        for at in range(oldest, start):
            got = int(cells[table[at // BLOCK], at % BLOCK])
            assert got == kv[at], (
                "%s reads wrong KV: group %d token %d" % (name, group, at))
        for at in range(start, len(kv)):
            block = table[at // BLOCK]
            assert block > 0
            cells[block, at % BLOCK] = kv[at]

    def _sample(self, tokens, computed, stale):
        if computed < len(tokens):
            return []
        token = 3 + kv_of(tokens, 0, 0)[-1] % 1000
        tokens.append(token)
        if not stale:
            self._expect(tokens)
        return [token]

    # --------------------------------------------------------------- checks

    def _check_saved(self, ios):
        """Check that the blocks of a store hold the KV of the stored chunks."""
        for group, chunks, blocks, *_ in ios:
            ids = array("i")
            ids.frombytes(blocks)
            for i in range(len(chunks) // fake.CHUNK_BYTES):
                mine = ids[i * CHUNK // BLOCK:(i + 1) * CHUNK // BLOCK]
                if min(mine) <= 0:
                    continue
                tokens, weights = self.expected[chunks[i * fake.CHUNK_BYTES:][:16]]
                n = fake.chunk_tokens(chunks[i * fake.CHUNK_BYTES:])
                for layer, cells in enumerate(self.cells):
                    kv = kv_of(tokens, group, layer, weights)[-n:]
                    got = [int(cells[mine[at // BLOCK], at % BLOCK])
                           for at in range(n)]
                    assert got == kv, "a save gathers blocks of another"
                self.saved += 1

    def _check_owner(self, load):
        """Check that the request of a load still owns the blocks that the load writes."""
        name = next(name for name, (mine, _) in self.worker._worker._loads.items()
                    if mine is load)
        owned = self.scheduler.kv_cache_manager.get_block_ids(name)
        assert name in self.scheduler.requests
        for group, _, blocks, _ in load.ios:
            ids = array("i")
            ids.frombytes(blocks)
            for block in ids:
                assert block <= 0 or block in owned[group], (
                    "a load scatters into a block that is not its request's")

    def close(self):
        self.top.shutdown()
        self.worker_top.shutdown()

    def check_rest(self):
        """Check that ended requests left no block, sequence, lease or state behind."""
        manager = self.scheduler.kv_cache_manager
        assert not self.scheduler.requests
        free = manager.block_pool.get_num_free_blocks()
        assert free == self.cache.num_blocks - 1, (free, self.cache.num_blocks)
        if self.fake:
            assert self.store.seqs == 0 and not self.store.leased
        else:
            held = self.sequences
            assert held.n and not held.live and not held.leased
        half = self.connector._scheduler
        assert not half._requests and not half._saves._open and not half._loads
        half = self.worker._worker
        assert not half._loads and not half._refused and not half._bad_blocks


def is_stored_right(found, tokens, weights, group):
    """Return True if `found` is the KV of the last chunk of `tokens`.

    Bytes of a block after the last token are not compared.
    """
    n = (len(tokens) - 1) % CHUNK + 1
    kv = [kv_of(tokens, group, layer, weights)[-n:] for layer in range(LAYERS)]
    offset = 0
    for at in range(0, n, BLOCK):
        for layer in range(LAYERS):
            want = kv[layer][at:at + BLOCK]
            if struct.unpack_from("<%dq" % len(want), found, offset) != tuple(want):
                return False
            offset += BLOCK * 8
    return len(found) == offset
