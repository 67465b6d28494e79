# SPDX-License-Identifier: Apache-2.0
"""The groups of layers and the host of each rank, as the workers report them.

The identity of a chunk contains the layers of the chunk's rank, and the scheduler computes
the identities of all ranks.  vLLM gives the scheduler's connector only the layers of the
first stage of pipeline parallelism, only one of the shapes if layers of a KV cache group have
blocks of different shapes, and no hosts.  So the scheduler asks the workers in each step until
every rank has answered, and opens kvtier's engine then.
"""

import time

from .vllm_log import log
from .vllm_meta import Report, UnusableWorker

_PATIENCE_S = 10.0  # a step of idle workers takes milliseconds


class Stages:
    """Collects the reports.  open_scheduler(stages, hosts, reset) opens the scheduler's half;
    stages: the groups of each stage, as GroupInfo; hosts: the hosts of all ranks."""

    def __init__(self, n_stages, n_ranks, chunk_tokens, open_scheduler):
        self._n_stages = n_stages
        self._n_ranks = n_ranks
        self._chunk = chunk_tokens
        self._open = open_scheduler
        self._places = {}  # rank -> (GroupInfo of each group, host)
        self._until = None  # time at which requests wait no longer
        self._warned = False
        self._reset = False
        self.waiting = True

    def matched_tokens(self):
        """Return the answer to a lookup before all ranks have answered."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + _PATIENCE_S
        if not self.waiting:
            return 0, False
        if now < self._until:
            return None, False
        if not self._warned:
            self._warned = True
            log.warning("kvtier: nothing is looked up or stored: only %d of %d workers have "
                        "reported their layers and hosts within %d s; kvtier starts when all have. "
                        "With Ray, use --distributed-executor-backend mp",
                        len(self._places), self._n_ranks, _PATIENCE_S)
        return 0, False

    def reset(self):
        """Note that vLLM's weights are no longer the fingerprint's."""
        self._reset = True
        return True

    def received(self, report):
        """Return the scheduler's half when all ranks have answered, else None."""
        if not self.waiting:
            return None
        if isinstance(report, UnusableWorker):
            return self._stop("a worker cannot use its KV cache, its log says why")
        if isinstance(report, Report):
            self._places.update(report.places)
        if len(self._places) < self._n_ranks:
            return None
        per_stage = self._n_ranks // self._n_stages
        stages = [self._places[first][0] for first in range(0, self._n_ranks, per_stage)]
        for rank, (groups, _) in self._places.items():
            mine = stages[rank // per_stage]
            chunk = groups[0].blocks_per_chunk * groups[0].block_tokens
            if chunk != self._chunk:
                return self._stop("chunk_size is %d in the worker of rank %d, and %d in the "
                                  "scheduler; set the same chunk_size on all hosts"
                                  % (chunk, rank, self._chunk))
            if [info.layers for info in groups] != [info.layers for info in mine]:
                return self._stop("ranks of pipeline stage %d have different layers"
                                  % (rank // per_stage))
        if len({len(groups) for groups in stages}) > 1:
            return self._stop("the layers of a pipeline stage lack a shape of KV that the layers "
                              "of another stage have")
        self.waiting = False
        try:
            hosts = {host for _, host in self._places.values()}
            return self._open(stages, hosts, self._reset)
        except (OSError, ValueError) as e:  # a step of vLLM must not fail
            return self._stop(e)

    def _stop(self, why):
        self.waiting = False
        log.warning("kvtier: nothing is looked up or stored: %s", why)
