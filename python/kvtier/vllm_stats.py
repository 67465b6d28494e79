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
    """data: {counter or gauge: change}.  Changes of several ranks add up, and so do
    changes over time."""

    def reset(self):
        self.data = {}

    def aggregate(self, other):
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self):
        return {name: self.data[name] for name, _, _, kind in _lib.counters()
                if kind == _lib.COUNTER_SUM and self.data.get(name)}

    def is_empty(self):
        return not self.data


class Collector:
    """Turns an engine's counters into statistics while the counters may change."""

    def __init__(self, engine):
        self._engine = engine
        self._names = [name for name, _, _, _ in _lib.counters()]
        self._pending = [i for i, name in enumerate(self._names)
                         if name.endswith("_pending")]
        self._last = [0] * len(self._names)
        self._added = {}  # changes of counters that the connector counts
        self._active = False
        self._next = 0.0

    def touch(self, ended=False):
        """Note that an operation has started and counters may change.  ended: the operation
        has ended; collect() reports at once, before vLLM falls idle."""
        self._active = True
        if ended:
            self._next = 0.0

    def add(self, name, n):
        """Count n for a counter of the connector."""
        self._added[name] = self._added.get(name, 0) + n
        self.touch()

    def collect(self):
        """Return the changes since the last call, or None."""
        if not self._active:
            return None
        now = time.monotonic()
        if now < self._next:
            return None
        self._next = now + _PERIOD_S
        values = self._engine.counters()
        changed = {name: now - last for name, now, last
                   in zip(self._names, values, self._last) if now != last}
        changed.update(self._added)
        self._added = {}
        self._last = values
        self._active = bool(changed) or any(values[i] for i in self._pending)
        return KVTierStats(data=changed) if changed else None


_SKIPPED = "skipped_tokens_"  # before the reason, in names of counters


class KVTierPromMetrics(KVConnectorPromMetrics):
    # vLLM removes the metrics of an earlier engine in the process by "vllm" in
    # their names.
    def __init__(self, vllm_config, metric_types, labelnames,
                 per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames,
                         per_engine_labelvalues)
        self._metrics = {}
        self._skipped = self._counter_cls(
            name="vllm:kvtier_skipped_tokens",
            documentation="Stored tokens that hits leave out, by the reason. In tokens.",
            labelnames=[*labelnames, "reason"])
        for name, unit, text, kind in _lib.counters():
            if name.startswith(_SKIPPED):
                self._metrics[name] = {
                    engine: [self._skipped.labels(*values, name[len(_SKIPPED):]), True, 0]
                    for engine, values in per_engine_labelvalues.items()}
                continue
            about = dict(
                name="vllm:kvtier_" + name,
                documentation="%s In %s." % (text, unit) if unit else text,
                labelnames=labelnames)
            if kind == _lib.COUNTER_SUM:
                metric = self._counter_cls(**about)
            else:
                # vLLM passes each change to only one of the API servers' processes.
                metric = self._gauge_cls(multiprocess_mode="sum", **about)
            self._metrics[name] = {
                engine: [metric.labels(*values), kind == _lib.COUNTER_SUM, 0]
                for engine, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data, engine_idx=0):
        for name, change in transfer_stats_data.items():
            entry = self._metrics.get(name, {}).get(engine_idx)
            if entry is None or not change:
                continue
            metric, grows, _ = entry
            if grows:
                metric.inc(change)
            else:
                entry[2] += change
                metric.set(entry[2])  # Ray's gauges have no inc()
