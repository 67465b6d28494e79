# SPDX-License-Identifier: Apache-2.0
"""The scheduler's half of the connector: decides which chunks to load into which blocks.
vllm_saves decides which blocks contain chunks to save.

Runs on the single thread of vLLM's EngineCore and never waits for storage.
"""

import time
from array import array

from . import _lib, vllm_adapters, vllm_handoff
from .vllm_extra import describe
from .vllm_log import log
from .vllm_meta import NOTHING, KVTierMetadata, Report, UnusableWorker
from .vllm_order import Order
from .vllm_pins import Pins
from .vllm_prefill import Prefill
from .vllm_request import Request
from .vllm_saves import Saves
from .vllm_stats import Collector


class Scheduler:
    def __init__(self, engine, stages, settings, can_load, can_save, n_ranks=1,
                 hands_off=True, events=None, hosts=None, cache_config=None):
        """stages: the groups of each stage of pipeline parallelism.  cache_config: vLLM's, with
        which vLLM splits prompts."""
        self._engine = engine
        self._hosts = hosts  # vllm_hosts.Lookups if the ranks run on several hosts, or None
        self._lookups = hosts or engine
        self._events = events  # vllm_events.Events, or None
        self._infos = stages[0]
        self._has_windows = any(info.kind == _lib.GROUP_SLIDING for info in stages[0])
        self._has_states = any(info.is_state for info in stages[0])
        self._cache_config = cache_config
        self._chunk = engine.chunk_tokens
        self._can_load = can_load
        self._can_save = can_save
        self._hands_off = hands_off
        self._wait_s = (settings.get("lookup_timeout_ms") or 0) / 1000
        self._min_retrieve = int(settings.get("min_retrieve_tokens") or 0)
        self._save_decode = bool(settings.get("save_decode_cache"))
        self._partial = bool(settings.get("save_unfull_chunk"))
        self._settings = settings
        self._pins = self._open_pins(settings, stages, n_ranks)
        self._early = bool(settings.get("enable_async_loading")
                           and settings.get("local_cpu"))
        self._requests = {}
        self._loads = []
        self._order = Order()
        self._load_adapters = {}
        self._prefetches = []
        self._cancel = False
        self._digests = vllm_adapters.Digests()
        self._adapters = vllm_adapters.Contents()
        self._ranks = vllm_adapters.Ranks(n_ranks)
        self._saves = Saves(self._requests, stages[0], engine.chunk_tokens, settings, self._ranks,
                            events, len(stages) + 1)
        self._digest_requests = {}  # request id -> request for the adapter's digest
        self._stats = Collector(engine)
        self._prefill = None
        if settings.get("load_policy") == "faster" and not hosts:
            self._prefill = Prefill(engine)

    def _open_pins(self, settings, stages, n_ranks):
        most = (settings.get("max_pinned_size") or 0) * (1 << 30)
        return Pins(self._engine, [
            sum(info.blocks_per_chunk * info.block_bytes * len(info.layers) for info in group)
            * n_ranks // len(stages) for group in zip(*stages)], 0 if self._hosts else most)

    # ---------------------------------------------------------------- lookup

    def new_request(self, request):
        """Begin the lookup of a request that enters vLLM's queue, so that chunks are read
        ahead, and the digest of the request's adapter."""
        if self._early:
            self._external_tokens(request, 0)
        else:
            self._knows_adapter(request)

    def matched_tokens(self, request, computed):
        """Return (number of tokens beyond `computed` that can be loaded, True if the load
        is asynchronous).  The number is None if vLLM should ask again later."""
        external = self._order.decide(request.request_id,
                                      self._external_tokens(request, computed))
        return external, bool(external)

    def _external_tokens(self, request, computed):
        state = self._requests.get(request.request_id)
        if state is None:
            if not self._knows_adapter(request):
                return None
            state = self._admit(request)
        if not state.may_load:
            return 0
        if state.wait is not None and state.wait.is_pausing():
            return None
        most = self._longest_hit(state, computed)
        hit = self._lookup(state, computed, most)
        if hit is None:
            self._read_ahead(state)
            return None
        skipped = self._skipped(state)
        if state.wait is not None:
            unit = 1 if self._partial else self._chunk
            if not skipped and state.wait.goes_on(max(hit, computed), most, unit):
                self._lookups.release(state.seq)  # a lookup of a leased hit finds no more chunks
                return None
            state.wait = None
        state.computed, state.hit = computed, hit
        state.stored = range(computed // self._chunk, hit // self._chunk)
        external = hit - computed
        if hit == most < state.request.num_tokens - 1:
            self._count_skipped(state, "limit", state.request.num_tokens - 1 - most)
        if 0 < external < self._min_retrieve:
            self._count_skipped(state, "short", external)
        return 0 if external < self._min_retrieve else max(external, 0)

    def _skipped(self, state):
        """Return the number of stored tokens that the hit leaves out by load_policy, and let
        the workers measure the tier from time to time."""
        skipped = state.seq.skipped_tokens() if self._prefill else 0
        if skipped:
            self._read_ahead(state)
        return skipped

    def _count_skipped(self, state, reason, n):
        if not state.skip_counted:
            state.skip_counted = True
            self._stats.add("skipped_tokens_" + reason, n)

    def _read_ahead(self, state):
        """Ask the workers to read into host memory the chunks that the lookup waits for, or
        that measure a tier."""
        for group, first, n in self._lookups.wanted(state.seq):
            state.read.update(range(first, first + n))
            self._prefetches.append((group, state.chunks(first, first + n), b"",
                                     state.tags.tags))

    def memory_tokens(self, request, external):
        """Return how many of the promised tokens were in host memory when the lookup
        found them."""
        state = self._requests[request.request_id]
        first, end = state.computed, state.computed + external
        at = first // self._chunk
        there = state.seq.in_memory(at, -(-end // self._chunk) - at)
        return sum(min(end, (i + 1) * self._chunk) - max(first, i * self._chunk)
                   for i, yes in enumerate(there, at) if yes and i not in state.read)

    def _knows_adapter(self, request):
        """Return True if the digest of the request's adapter is known or takes too long;
        request the digest at the first call."""
        lora = getattr(request, "lora_request", None)
        if lora is None or vllm_adapters.is_reloaded(lora):
            return True
        digest_request = self._digest_requests.get(request.request_id)
        if digest_request is None:
            digest_request = self._digest_requests[request.request_id] = self._digests.request(lora)
        return digest_request.done or time.monotonic() > digest_request.until

    def _adapter_digest(self, request):
        """Return the digest; None if the adapter cannot be identified or has changed."""
        digest_request = self._digest_requests.get(request.request_id)
        if digest_request is None or digest_request.digest is None:
            return None
        adapter = vllm_adapters.keys(request.lora_request)
        self._adapters.note(adapter, digest_request.digest)
        return digest_request.digest if self._adapters.is_only(
            adapter, digest_request.digest) else None

    def _admit(self, request):
        if self._has_states:
            self._check_split()
        state = self._requests[request.request_id] = self._describe(request)
        save = self._can_save and state.seq is not None
        if save:
            self._saves.begin(state)
        state.may_load = (
            self._can_load and state.seq is not None and state.tags.most_loaded > 0
            and not getattr(request, "skip_reading_prefix_cache", False))
        if state.may_load and self._hands_off:
            self._expect_chunks(state)
        return state

    def _check_split(self):
        """End all lookups and saves if vLLM ends steps within blocks of states: a later step can
        then leave the state of the step's begin in a block, and vLLM takes this state for the
        state after the block.  vLLM may change the size after this object is made."""
        split = self._cache_config.block_size
        if split % self._chunk:
            self._stop("vLLM splits prompts at multiples of %d tokens, but has states of Mamba or "
                       "linear attention for each %d tokens, so vLLM's own prefix cache can have "
                       "wrong states; start vLLM with --block-size %d"
                       % (split, self._chunk, self._chunk))

    def _expect_chunks(self, state):
        """Let the request wait for the chunks of its prefill engine.  A shorter hit than the
        prefill engine's may lack the chunks of a window."""
        n = state.tags.remote_tokens
        if n and (state.tags.most_loaded >= n or not self._has_windows):
            state.wait = vllm_handoff.Wait(n, self._wait_s)

    def _describe(self, request):
        seq = extra = None
        try:
            if (request.num_prompt_tokens >= self._chunk or self._save_decode
                    or self._partial):
                extra = describe(request, self._settings, self._adapter_digest(request))
            if extra is not None:
                # "I" takes a fifth of the time of "i", which parses each item.
                seq = self._engine.seq(array("I", request.prompt_token_ids),
                                       extra.lora, extra.cache_salt, extra.mm,
                                       extra.tags)
        except Exception as e:  # clients control parts of a request
            log.warning("kvtier: a request is neither looked up nor stored: %s", e)
        return Request(request, seq, extra, self._chunk)

    def _longest_hit(self, state, computed):
        most = state.request.num_tokens - 1
        if computed + state.tags.most_loaded < most:
            most = (computed + state.tags.most_loaded) // self._chunk * self._chunk
        return most

    def _lookup(self, state, computed, most):
        if most <= computed:
            return 0
        self._stats.touch(ended=True)
        try:
            hit = self._lookups.lookup(state.seq, computed, most)
            if self._hosts and hit is not None:
                self._count_lookup(state, most - computed, max(0, hit - computed))
            return hit
        except (OSError, ValueError) as e:
            log.warning("kvtier: lookup failed, the prompt is computed: %s", e)
            state.may_load = False
            return 0

    def _count_lookup(self, state, n, hit):
        """Count the tokens of a lookup by the workers, as the engine does for other lookups."""
        if not state.lookup_counted:
            state.lookup_counted = True
            self._stats.add("lookup_tokens", n)
            self._stats.add("hit_tokens", hit)

    # ----------------------------------------------------------------- loads

    def allocated(self, request, blocks, external):
        """Plan the load of [computed, hit): vLLM has allocated blocks for the hit."""
        self._order.forget(request.request_id)
        if external <= 0:
            return
        state = self._requests[request.request_id]
        have, hit = state.computed, state.computed + external
        ids = blocks.get_block_ids()
        ios = []
        for group, info in enumerate(self._infos):
            needed_from = have
            if info.kind == _lib.GROUP_SLIDING:
                needed_from = max(have, hit - info.window + 1)
            first, end = needed_from // self._chunk, -(-hit // self._chunk)
            size = info.block_tokens
            # A load does not write blocks that the engine has, or blocks beyond the hit.
            # The last block may lie partly beyond the hit: vLLM computes these tokens and
            # overwrites the loaded bytes.
            wanted = array("i", (
                ids[info.table][i] if have <= i * size < hit and i < len(ids[info.table])
                else -1
                for i in range(first * info.blocks_per_chunk,
                               -(-min(end * self._chunk, state.tokens) // size))))
            chunks = state.chunks(first, end)
            ios.append((group, chunks, wanted.tobytes(), state.tags.tags))
            if self._events:
                self._events.note(request, state.tags, group, first, chunks)
        self._loads.append((request.request_id, ios))
        if self._prefill:
            self._engine.begin_load(state.seq)
        if state.tags.adapter:
            _, digest = state.tags.adapter
            self._load_adapters[request.request_id] = request.lora_request, digest
        state.loading = ids

    def received(self, output):
        """Process the workers' reports about loads."""
        report = getattr(output, "kv_connector_worker_meta", None)
        if isinstance(report, UnusableWorker):
            self._stop("a worker cannot use its KV cache's memory, its log says why")
        elif isinstance(report, Report):
            self._ranks.note(report.adapter_loads)
            if self._hosts:
                self._hosts.answered(report.answers)
        failed = getattr(output, "failed_recving", None) or ()
        bad = getattr(output, "invalid_block_ids", None) or ()
        if bad:
            failed = set(failed)
            failed.update(
                request_id for request_id, state in self._requests.items()
                if state.loading and not bad.isdisjoint(state.loading[0]))
        for request_id in failed:
            state = self._loading(request_id)
            if state is not None:
                # vLLM computes the prompt.  A new lookup would promise the same
                # unreadable chunks again, for ever.
                state.may_load = False
                state.stored = range(0)
        for request_id in output.finished_recving or ():
            if request_id in self._requests:
                self._order.loaded(request_id)
            state = self._loading(request_id)
            if state is not None:
                state.loading = None
                self._lookups.release(state.seq)

    def _stop(self, why):
        """End all lookups and saves."""
        if self._can_load or self._can_save:
            log.warning("kvtier: nothing is looked up or stored any more: %s", why)
        self._can_load = self._can_save = False
        self._saves.end_all()
        for state in self._requests.values():
            state.may_load = False
            state.limit = 0

    def _loading(self, request_id):
        """Return the request's state if kvtier loads KV, else None.  MultiConnector
        reports the loads of every connector to each connector."""
        state = self._requests.get(request_id)
        return state if state is not None and state.loading is not None else None

    # ------------------------------------------------------------------ step

    def build_meta(self, output):
        self._order.end_step()
        self._pins.work()
        if self._prefill:
            self._prefill.scheduled(output.num_scheduled_tokens, self._request)
        saves, adapter_saves = self._saves.plan(output)
        lookups = self._hosts.take_messages() if self._hosts else None
        if not (saves or adapter_saves or self._loads or self._prefetches
                or self._cancel or lookups):
            return NOTHING
        meta = KVTierMetadata(self._loads, saves, self._prefetches, self._cancel,
                              self._load_adapters, adapter_saves, lookups)
        self._loads, self._prefetches, self._cancel = [], [], False
        self._load_adapters = {}
        return meta

    def _request(self, request_id):
        """Return vLLM's request, or None if kvtier does not know the request."""
        state = self._requests.get(request_id)
        return state and state.request

    # ------------------------------------------------------------------- end

    def finished(self, request):
        """Forget the request.  Return the kv_transfer_params of vLLM's answer, or None."""
        state = self._requests.pop(request.request_id, None)
        self._order.forget(request.request_id)
        self._digest_requests.pop(request.request_id, None)
        self._saves.end(request.request_id)
        if state is not None:
            if state.seq is not None and state.tags.pin_seconds:
                self._pin(state)
            self._free(state)
        if not self._hands_off:
            return None
        return vllm_handoff.answer(getattr(request, "kv_transfer_params", None),
                                   state.findable if state and state.limit else 0)

    def _pin(self, state):
        """Pin the chunks of a hit of all tokens."""
        n_chunks, pieces = state.tokens // self._chunk, []
        for group, info in enumerate(self._infos):
            first = 0
            if info.kind == _lib.GROUP_SLIDING:
                end = self._saves.findable_end(state, n_chunks)
                first = max(0, end - info.window + 1) // self._chunk
            pieces.append((group, state.chunks(first, n_chunks) + state.tail))
        self._pins.ask(pieces, state.tags.tags, state.tags.pin_seconds)

    def _free(self, state):
        if state.seq is not None:
            # Release the lease also during a load: chunks being read need no lease.
            self._lookups.release(state.seq)
            state.seq.free()

    def reset(self):
        """Give the requests new random weights.  Steps already sent to the workers
        keep the weights of the plan: each chunk carries the weights id."""
        self._engine.reset()
        if self._events:
            self._events.reset()
        self._cancel = True
        self._prefetches = []
        for request_id, state in list(self._requests.items()):
            if state.seq is None:
                continue
            if state.loading or state.request.num_computed_tokens > 0:
                self._retire(request_id, state)
            else:
                self._renew(request_id, state)
        return True

    def _retire(self, request_id, state):
        """Stop stores and lookups of a request: part of the KV belongs to the old
        weights, the rest to the new weights."""
        state.may_load = False
        state.limit = 0
        self._saves.end(request_id)
        if not state.loading:
            self._lookups.release(state.seq)

    def _renew(self, request_id, state):
        """Describe a request without computed tokens anew.  Chunks of the new weights
        may be looked up even if chunks of the old weights could not be loaded."""
        self._saves.end(request_id)
        self._free(state)
        self._admit(state.request)

    def stats(self):
        if self._events and self._events.forgotten:
            self._stats.add("events_forgotten", self._events.forgotten)
            self._events.forgotten = 0
        return self._stats.collect()

    def take_events(self):
        """Return KV cache events.  vLLM calls the function at the result of each step."""
        if self._prefill:
            self._prefill.computed()
        return self._events.take() if self._events else ()

    def has_work(self):
        """Return True if vLLM should step for events or pins, even without requests."""
        return self._pins.has_pending() or (
            self._events is not None and self._events.has_pending())

    def shutdown(self):
        for state in self._requests.values():
            self._free(state)
        self._requests.clear()
        self._saves.end_all()
        self._engine.close()
