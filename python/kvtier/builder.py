# SPDX-License-Identifier: Apache-2.0
"""LMCacheEngineBuilder of the porting guide: an engine that keeps the KV of tokens,
as plain bytes, in a bucket.  docs/python.md.

Chunks have names outside the name space of inference engines, so the two never meet:
kvtier/tokens/MODEL/HASH.  HASH is SHA-256 of the previous chunk's hash and the chunk's
tokens, as int32.
"""

import errno
import hashlib
import json
from array import array
from collections import namedtuple

from ._lib import FOUND_ID, OP_GET, OP_NAME, OP_PUT, OP_STAT, Config
from ._store import Owner, Request, Store
from .s3 import environment_without_settings, object_name

AT_A_TIME = 16  # chunks on their way
ABSENT = (errno.ENOENT, errno.EBADMSG, errno.EMSGSIZE)

Chunk = namedtuple("Chunk", "name first n_tokens")


class LMCacheEngineBuilder:
    """model: the name of the model.  A lookup finds only chunks stored under the same
    model.  Both methods return an Engine."""

    @staticmethod
    def from_yaml_file(path, model="kvtier"):
        """The YAML file counts as for an inference engine, and so do the variables
        of kvtier, LMCache and AWS."""
        return Engine(Config(file=path), model)

    @staticmethod
    def build(storage_backend_type="remote", connector_type="s3", connector_config=None,
              local_device="cpu", remote_serde="naive", model="kvtier", **settings):
        """connector_config: bucket, prefix and region; prefix and region are optional.
        settings: other settings of docs/configuration.md, chunk_size=512.  Of the
        environment only the variables of AWS and of proxies are read."""
        connector = {"type": connector_type, **(connector_config or {})}
        settings.update(
            storage_backend={"type": storage_backend_type, "connector": connector},
            local_device=local_device, remote_serde=remote_serde)
        return Engine(Config(connector_json=json.dumps(settings),
                             environment=environment_without_settings()), model)


class Engine(Owner):
    """tokens: numbers below 2**31, of a prompt from the prompt's beginning.  Any thread may
    call.  OSError: the storage failed, with the storage's errno."""

    def __init__(self, config, model):
        try:
            self._folder = b"kvtier/tokens/" + object_name(model) + b"/"
            settings = config.values()
            self.chunk_tokens = settings["chunk_size"]
            self._keeps_tail = settings["save_unfull_chunk"]
            self._store = Store(config)
        finally:
            config.close()

    def lookup(self, tokens):
        """How many leading tokens are stored."""
        chunks = self._chunks(array("i", tokens))
        n, _ = self._look(chunks)
        return sum(chunk.n_tokens for chunk in chunks[:n])

    def store(self, tokens, data):
        """data: bytes in the order of the tokens, as many for each.  Returns when
        they are stored: whole chunks, and the rest with save_unfull_chunk."""
        words = array("i", tokens)
        view = memoryview(data).cast("B")
        per_token, rest = divmod(len(view), len(words) or 1)
        if rest or not per_token:
            raise ValueError("kvtier: %d bytes for %d tokens: use as many bytes for each."
                             % (len(view), len(words)))
        chunks = self._chunks(words)
        n, _ = self._look(chunks, per_token)
        for some in _portions(chunks[n:]):
            requests = [Request(OP_PUT, chunk.name,
                                bytes(_span(view, chunk, per_token)), OP_NAME)
                        for chunk in some]
            self._store.run(requests)
            for request in requests:
                request.found(missing=())

    def retrieve(self, tokens):
        """Return the bytes of the leading tokens that are stored; verify each chunk."""
        chunks = self._chunks(array("i", tokens))
        n, per_token = self._look(chunks)
        del chunks[n:]
        out = memoryview(bytearray(sum(c.n_tokens for c in chunks) * per_token))
        for some in _portions(chunks):
            requests = [Request(OP_GET, chunk.name, _span(out, chunk, per_token),
                                OP_NAME) for chunk in some]
            self._store.run(requests)
            for chunk, request in zip(some, requests):
                op = request.op
                if (not request.found(ABSENT) or not op.found & FOUND_ID or
                        op.found_bytes != op.bytes):
                    return bytes(out[:chunk.first * per_token])
        return bytes(out)

    def _chunks(self, words):
        chunks, digest = [], b""
        for first in range(0, len(words), self.chunk_tokens):
            part = words[first:first + self.chunk_tokens]
            if len(part) < self.chunk_tokens and not self._keeps_tail:
                break
            digest = hashlib.sha256(digest + part.tobytes()).digest()
            name = self._folder + digest.hex().encode()
            chunks.append(Chunk(name, first, len(part)))
        return chunks

    def _look(self, chunks, per_token=0):
        """(how many of the first are there, bytes a token); all have as many."""
        n = 0
        for some in _portions(chunks):
            requests = [Request(OP_STAT, chunk.name, flags=OP_NAME) for chunk in some]
            self._store.run(requests)
            for chunk, request in zip(some, requests):
                if not request.found(ABSENT):
                    return n, per_token
                per_token = per_token or request.op.found_bytes // chunk.n_tokens
                if request.op.found_bytes != chunk.n_tokens * per_token:
                    return n, per_token
                n += 1
        return n, per_token


def _portions(chunks):
    return (chunks[at:at + AT_A_TIME] for at in range(0, len(chunks), AT_A_TIME))


def _span(view, chunk, per_token):
    return view[chunk.first * per_token:(chunk.first + chunk.n_tokens) * per_token]
