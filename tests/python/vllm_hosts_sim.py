# SPDX-License-Identifier: Apache-2.0
"""vllm_sim's model on several hosts: the ranks of a host have directories, indexes and names in
/dev/shm of their own."""

import copy
import itertools
import os
from array import array
from unittest import mock

from kvtier import vllm_hosts
from test_vllm_stages import Staged
from vllm_sim import CHUNK


class Hosts(Staged):
    """Staged with len(layers) * tp ranks on n_hosts hosts; the scheduler is on the first host.
    "HOST" in a setting becomes the folder of a host.  of_host: {host: settings}."""

    _numbers = itertools.count()

    def __init__(self, folder, n_hosts=2, layers=(2,), tp=2, depth=1, extra=(), of_host=(),
                 **kwargs):
        self.n_hosts, self.folder, self.of_host = n_hosts, folder, dict(of_host)
        self.engine_id = "hosts-%d-%d" % (os.getpid(), next(self._numbers))
        for host in range(n_hosts):
            os.makedirs(self.path(host), exist_ok=True)
        with mock.patch.object(vllm_hosts, "this_host", lambda: "host 0"):
            super().__init__(folder, layers=layers, tp=tp, depth=depth, extra=dict(
                {"remote_url": "fs://localhost:0/HOST", "lookup_timeout_ms": 2000},
                **dict(extra)), **kwargs)

    def path(self, host):
        return os.path.join(self.folder, "host%d" % host)

    def host_of(self, rank):
        return rank * self.n_hosts // (len(self.layers) * self.tp)

    def _configure(self, depth, **config):
        made = super()._configure(depth, **config)
        made.parallel_config.nnodes = self.n_hosts
        return self._on_host(made, 0)

    def _on_host(self, config, host):
        config = copy.copy(config)
        transfer = config.kv_transfer_config = copy.copy(config.kv_transfer_config)
        transfer.engine_id = "%s-%d" % (self.engine_id, host)
        settings = dict(self.extra, **self.of_host.get(host, {}))
        transfer.kv_connector_extra_config = {
            name: value.replace("HOST", self.path(host)) if isinstance(value, str) else value
            for name, value in settings.items()}
        return config

    def _start_worker(self, config, cache, device=None):
        host = self.host_of(config.parallel_config.rank)
        with mock.patch.object(vllm_hosts, "this_host", lambda: "host %d" % host):
            return super()._start_worker(self._on_host(config, host), cache, device)

    # ------------------------------------------------------------- for tests

    def lookups(self):
        return self.connector._scheduler._hosts

    def answers(self, rank):
        """Return a rank's Answers, also before the first question."""
        half = self.ranks[rank].half
        if half._answers is None:
            half._answers = vllm_hosts.Answers(half._engine, rank)
        return half._answers

    def n_sought(self):
        """Return the number of sequences that each rank knows."""
        return [len(self.answers(rank)._sought) for rank in range(len(self.ranks))]

    def chunks(self, tokens):
        """Return the chunks of a prompt, as bytes."""
        seq = self.connector._scheduler._engine.seq(array("i", tokens))
        chunks = seq.chunks(0, -(-len(tokens) // CHUNK))
        seq.free()
        return chunks

    def found(self, rank, tokens, most=None):
        """Return how many of the first `most` tokens of a prompt a rank finds on its host."""
        engine = self.ranks[rank].half._engine
        seq = engine.seq_from_chunks(self.chunks(tokens))
        hit = None
        while hit is None:
            hit = engine.lookup(seq, 0, len(tokens) - 1 if most is None else most)
        engine.release(seq)
        seq.free()
        return hit

    def flush(self):
        for rank in self.ranks:
            rank.half._engine.flush(60000)

    def check_rest(self):
        super().check_rest()
        lookups = self.lookups()
        if lookups:
            assert not (lookups._by_seq or lookups._by_key or lookups._asks)
            if not lookups._releases:
                assert not any(self.n_sought())
