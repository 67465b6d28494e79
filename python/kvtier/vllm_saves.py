# SPDX-License-Identifier: Apache-2.0
"""The plan of the saves: which chunks of which requests a step of vLLM completes, and which
blocks contain the chunks."""

from array import array

from . import _lib
from .vllm_log import log
from .vllm_model import NULL_BLOCK
from .vllm_uses import Uses


class Saves:
    def __init__(self, requests, infos, chunk_tokens, settings, ranks, events, most_steps):
        """requests: the scheduler's, by id.  infos: the groups of a stage.  ranks: the
        vllm_adapters.Ranks of the engine.  events: vllm_events.Events, or None.  vLLM schedules
        at most most_steps steps before it learns the result of the first."""
        self._requests = requests
        self._infos = infos
        self._chunk = chunk_tokens
        self._ranks = ranks
        self._events = events
        self._save_decode = bool(settings.get("save_decode_cache"))
        self._partial = bool(settings.get("save_unfull_chunk"))
        self._uses = Uses() if settings.get("store_policy") == "second_use" else None
        self._most_steps = most_steps
        self._distrusted_steps = 0
        self._open = {}  # the part of `requests` with chunks left to save

    def begin(self, state):
        """Save the chunks of a request from now on."""
        state.limit = self._limit(state)
        if self._partial and state.tokens % self._chunk:
            tail = state.seq.chunks(state.tokens // self._chunk, 1)
            used = self._uses is None or self._uses.note(tail, state.tags.tags)
            if used and state.limit == state.tokens:
                state.tail = tail
        self._open[state.request.request_id] = state

    def end(self, request_id):
        """Save no further chunk of the request."""
        self._open.pop(request_id, None)

    def end_all(self):
        self._open.clear()

    def plan(self, output):
        """Return the saves of the step that vLLM's scheduler planned: (ios of the base model,
        [(adapter, ios of the adapter)])."""
        # For vLLM's second model runner, resumed requests are among the new ones.
        started = [new.req_id for new in output.scheduled_new_reqs]
        started += getattr(output.scheduled_cached_reqs, "resumed_req_ids", ())
        self._resume(started)
        self._distrust(output, started)
        # Without get_block_ids, output names only requests that got blocks in this step.
        block_state = getattr(output, "kv_connector_block_state", None)
        get_block_ids = getattr(block_state, "get_block_ids", None)
        if get_block_ids is None:
            self._track_blocks(output)
        return self._plan(output.num_scheduled_tokens, get_block_ids,
                          getattr(block_state, "boundary_state_offloads", {}))

    def findable_end(self, state, n_chunks):
        """Return the tokens of the longest hit in n_chunks chunks of the request."""
        end = n_chunks * self._chunk
        if end == state.request.num_prompt_tokens:
            # The longest hit of a prompt lacks the last token.
            end -= 1 if self._partial else self._chunk
        return end

    # --------------------------------------------------------------- requests

    def _limit(self, state):
        """Return the number of leading tokens that may be saved."""
        limit = min(state.tokens, state.tags.most_saved)
        if self._uses is None:
            return limit
        n_chunks = state.tokens // self._chunk
        n_used = self._uses.note(state.chunks(state.noted, n_chunks), state.tags.tags)
        if state.used == state.noted:
            state.used += n_used
        state.noted = n_chunks
        return limit if state.used == n_chunks else min(limit, state.used * self._chunk)

    def _resume(self, request_ids):
        """Save all chunks of preempted requests again: the requests are computed again, and
        the store may have dropped some chunks."""
        for request_id in request_ids:
            state = self._requests.get(request_id)
            if state is not None and state.limit and state.saved:
                state.saved = 0
                state.tail_saved = False
                self._open[request_id] = state

    def _distrust(self, output, started):
        """Do not save requests that start in a step with another connector's synchronous
        loads, or in one of the next steps: vLLM learns of a failed load only after KV of
        this step, and of the steps that overlap, is saved."""
        if getattr(output, "has_sync_kv_loads", False):
            self._distrusted_steps = self._most_steps
        if not self._distrusted_steps:
            return
        self._distrusted_steps -= 1
        for request_id in started:
            self._open.pop(request_id, None)

    def _append_decoded(self, state):
        """Append final generated tokens to the sequence when they complete a chunk."""
        request = state.request
        if (request.num_tokens // self._chunk <= state.tokens // self._chunk
                or state.limit == state.tags.most_saved):
            return
        tokens = array("i", request.all_token_ids[state.tokens:request.num_tokens])
        try:
            state.seq.append(tokens)
        except (OSError, ValueError) as e:
            log.warning("kvtier: generated tokens are not stored: %s", e)
            self._open.pop(request.request_id, None)
            return
        state.tokens = request.num_tokens
        state.limit = self._limit(state)

    def _track_blocks(self, output):
        """Record block lists, for versions of vLLM that do not pass block lists."""
        for new in output.scheduled_new_reqs:
            state = self._requests.get(new.req_id)
            if state is not None:
                state.blocks = [list(ids) for ids in new.block_ids]
        cached = output.scheduled_cached_reqs
        for request_id, ids in zip(cached.req_ids, cached.new_block_ids):
            state = self._requests.get(request_id)
            if state is None or ids is None:
                continue
            if request_id in cached.resumed_req_ids:
                state.blocks = [list(group) for group in ids]
            elif state.blocks is not None:
                for mine, more in zip(state.blocks, ids):
                    mine.extend(more)

    # ------------------------------------------------------------------- saves

    def _plan(self, scheduled, get_block_ids, final_states):
        """Return the result of plan().  final_states: {request id: [(table, block, tokens)]}, the
        blocks that hold the final state after so many tokens when this step ends."""
        plain, by_adapter = [], {}
        for request_id in self._open.keys() & scheduled.keys():
            state = self._open[request_id]
            ios = plain
            if state.tags.adapter:
                n_loads = self._ranks.n_loads(*state.tags.adapter)
                if n_loads is None:
                    continue  # planned in a later step
                ios = by_adapter.setdefault((*state.tags.adapter, n_loads), [])
            start = state.request.num_computed_tokens
            end = start + scheduled[request_id]
            if self._save_decode:
                self._append_decoded(state)
            last = min(end, state.limit) // self._chunk
            tail = (state.tail and not state.tail_saved
                    and end >= state.request.num_prompt_tokens)
            if last > state.saved or tail:
                ids = (state.blocks if get_block_ids is None
                       else get_block_ids(request_id))
                if ids is not None:
                    if last > state.saved and self._save(ios, state, ids, start, last,
                                                         final_states.get(request_id, ())):
                        state.findable = last * self._chunk
                    if tail and self._save_tail(ios, state, ids, start):
                        state.findable = state.request.num_prompt_tokens
                state.saved = max(state.saved, last)
                state.tail_saved |= bool(tail)
            if (state.limit // self._chunk <= state.saved
                    and bool(state.tail) == state.tail_saved
                    and not self._save_decode):
                del self._open[request_id]
        return plain, [pair for pair in by_adapter.items() if pair[1]]

    def _save(self, ios, state, ids, start, last, final_states):
        """Plan the save of the chunks below `last`, which this step completes.  Return True if
        every window and every state of the hit is saved."""
        end, is_findable = self.findable_end(state, last), True
        for group, info in enumerate(self._infos):
            if info.is_state:
                is_findable &= self._save_states(ios, state, group, ids[info.table], start, last,
                                                 final_states)
                continue
            begin, known = state.saved, state.stored
            if info.kind == _lib.GROUP_SLIDING:
                # Save the chunks that a hit of `end` tokens needs.
                first = max(0, end - info.window + 1) // self._chunk
                begin = max(first, self._first_alive(info, start))
                is_findable = is_findable and begin == first
                known = range(max(known.start, (state.hit - info.window + 1) // self._chunk),
                              known.stop)
            spans = ((begin, min(last, known.start)),
                     (max(begin, known.stop), last)) if known else ((begin, last),)
            for span in spans:
                self._save_span(ios, state, group, ids[info.table], *span)
        return is_findable

    def _save_states(self, ios, state, group, ids, start, last, final_states):
        """Plan the save of the final states for the chunks below `last`.  Return True if the
        state after chunk last - 1 is among them.

        A block table does not tell which blocks hold a final state: vLLM moves a request's
        state from block to block, and a block between two states is the null block."""
        table, ends = self._infos[group].table, set()
        loaded = state.hit if state.stored else 0
        if start and not state.saved:
            # The step begins with the state in the block of the token before: after a hit of
            # vLLM's own cache, this state is final and not reported.
            final_states = [*final_states, (table, ids[(start - 1) // self._chunk], start)]
        for found_in, block, tokens in final_states:
            chunk, rest = divmod(tokens, self._chunk)
            if found_in == table and not rest and chunk <= last and block != NULL_BLOCK:
                ends.add(chunk)
                if tokens != loaded:
                    self._save_blocks(ios, state, group, array("i", (block,)), chunk - 1,
                                      chunk)
        return last in ends

    def _first_alive(self, info, start):
        """Return the first chunk whose blocks all belong to the request.  vLLM has freed
        the blocks that left the window before this step."""
        alive = info.first_kept(start) // info.block_tokens
        return -(-alive // info.blocks_per_chunk)

    def _save_tail(self, ios, state, ids, start):
        """Plan the save of the prompt's partial chunk, which this step completes.  Return True
        if the chunk of every group is saved."""
        tokens = state.request.num_prompt_tokens
        chunk, is_whole = tokens // self._chunk, True
        for group, info in enumerate(self._infos):
            end, mine = -(-tokens // info.block_tokens), ids[info.table]
            if end > len(mine) or (
                    info.kind == _lib.GROUP_SLIDING
                    and chunk < self._first_alive(info, start)):
                is_whole = False
                continue
            blocks = array("i", mine[chunk * info.blocks_per_chunk:end])
            ios.append((group, state.tail, blocks.tobytes(), state.tags.tags, state.tags.ttl))
        return is_whole

    def _save_span(self, ios, state, group, ids, first, last):
        per_chunk = self._infos[group].blocks_per_chunk
        last = min(last, len(ids) // per_chunk)
        if first < last:
            self._save_blocks(ios, state, group,
                              array("i", ids[first * per_chunk:last * per_chunk]), first, last)

    def _save_blocks(self, ios, state, group, blocks, first, last):
        """Plan the save of the chunks first .. last - 1 of a group, in `blocks`."""
        chunks = state.chunks(first, last)
        ios.append((group, chunks, blocks.tobytes(), state.tags.tags, state.tags.ttl))
        if self._events:
            self._events.note(state.request, state.tags, group, first, chunks)
