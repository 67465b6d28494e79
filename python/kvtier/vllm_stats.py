# SPDX-License-Identifier: Apache-2.0
"""kvtier's counters in vLLM's statistics and metrics (vllm:kvtier_*)."""

import time

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from . import _lib

_PERIOD_S = 0.5


class KVTierStats(KVConnectorStats):
    """data: {counter: how much it grew}."""

    def reset(self):
        self.data = {}

    def aggregate(self, other):
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self):
        return dict(self.data)

    def is_empty(self):
        return not self.data


class Collector:
    """Turns an engine's counters into statistics, only while they may move."""

    def __init__(self, engine):
        self._engine = engine
        table = list(enumerate(_lib.counters()))
        self._sums = [(i, name) for i, (name, _, _, kind) in table
                      if kind == _lib.COUNTER_SUM]
        self._pending = [i for i, (name, _, _, _) in table
                         if name.endswith("_pending")]
        self._last = engine.counters()
        self._active = False
        self._next = 0.0

    def touch(self, ended=False):
        """Something was started that will be counted; or it ended, and is to be
        seen before vLLM falls idle."""
        self._active = True
        if ended:
            self._next = 0.0

    def collect(self):
        """What was counted since the last time, or None."""
        if not self._active:
            return None
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + _PERIOD_S
        values = self._engine.counters()
        grown = {name: values[i] - self._last[i] for i, name in self._sums
                 if values[i] != self._last[i]}
        self._last = values
        self._active = bool(grown) or any(values[i] for i in self._pending)
        return KVTierStats(data=grown) if grown else None


class KVTierPromMetrics(KVConnectorPromMetrics):
    # vLLM removes the metrics of an earlier engine in the process by "vllm" in
    # their names.
    def __init__(self, vllm_config, metric_types, labelnames,
                 per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames,
                         per_engine_labelvalues)
        self._counters = {}
        for name, unit, text, kind in _lib.counters():
            if kind != _lib.COUNTER_SUM:
                continue
            metric = self._counter_cls(
                name="vllm:kvtier_" + name,
                documentation="%s In %s." % (text, unit) if unit else text,
                labelnames=labelnames)
            self._counters[name] = {
                engine: metric.labels(*values)
                for engine, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data, engine_idx=0):
        for name, value in transfer_stats_data.items():
            metric = self._counters.get(name)
            if metric is not None and value:
                metric[engine_idx].inc(value)
