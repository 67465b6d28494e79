# SPDX-License-Identifier: Apache-2.0
"""A request between its first lookup and its end, as the scheduler's half knows the request."""

from . import _lib

_CHUNK = _lib.CHUNK_BYTES


class Request:
    __slots__ = ("request", "seq", "tokens", "tags", "may_load",
                 "computed", "hit", "loading", "limit", "saved", "stored", "tail",
                 "tail_saved", "blocks", "read", "noted", "used", "wait", "findable",
                 "skip_counted", "lookup_counted", "_chunks", "_chunk_tokens")

    def __init__(self, request, seq, tags, chunk_tokens):
        """seq: the prompt's sequence; None: the request is neither looked up nor stored."""
        self.request = request
        self.seq = seq
        self.tokens = request.num_prompt_tokens  # tokens of seq
        self.tags = tags
        self.may_load = True
        self.computed = 0  # vLLM's own hit at the last lookup
        self.hit = 0  # tokens of the last lookup's hit
        self.loading = None  # block ids of the load in flight
        self.limit = 0  # number of leading tokens that may be saved
        self.saved = 0  # whole chunks handed to the workers so far
        self.stored = range(0)  # chunks of the hit; of windows and states, only the last are stored
        self.tail = b""  # the prompt's partial chunk if the chunk is to be saved
        self.tail_saved = False
        self.read = set()  # chunks read into host memory for this request
        self.noted = 0  # whole chunks whose use is noted
        self.used = 0  # leading whole chunks that earlier requests used
        self.wait = None  # for the chunks of a prefill engine
        self.findable = 0  # leading tokens that a hit can have, once the planned saves end
        self.skip_counted = False  # statistics count the tokens that limits skip
        self.lookup_counted = False  # with several hosts: statistics count the lookup
        self.blocks = None  # block lists, only if vLLM does not pass block lists
        self._chunks = b""  # kvt_chunk structs of whole chunks, filled on first use
        self._chunk_tokens = chunk_tokens

    def chunks(self, first, end):
        """Return the kvt_chunk structs first .. end - 1 of the sequence."""
        whole = self.tokens // self._chunk_tokens
        if len(self._chunks) < min(end, whole) * _CHUNK:
            have = len(self._chunks) // _CHUNK
            self._chunks += self.seq.chunks(have, whole - have)
        found = self._chunks[first * _CHUNK:end * _CHUNK]
        if end > whole:
            found += self.seq.chunks(whole, 1)
        return found
