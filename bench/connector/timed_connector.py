# SPDX-License-Identifier: Apache-2.0
"""KVTierConnector with a clock around every method that vLLM calls in a step.

KVTIER_BENCH_STEPS=FILE: each process writes FILE.<pid>, one line for each step: the
nanoseconds spent in the connector, and the number of calls.  In the scheduler's process a
step begins when the scheduler plans the step; in a worker's process, when the plan arrives.
"""
import os
import time

from kvtier.connector import KVTierConnector

METHODS = (
    "build_connector_meta", "bind_connector_metadata", "clear_connector_metadata",
    "start_load_kv", "wait_for_layer_load", "save_kv_layer", "wait_for_save",
    "get_finished", "get_transfer_results", "get_block_ids_with_load_errors",
    "handle_preemptions", "get_kv_connector_stats", "get_kv_connector_kv_cache_events",
    "get_finished_count", "build_connector_worker_meta", "on_new_request",
    "get_num_new_matched_tokens", "update_state_after_alloc",
    "update_connector_output", "request_finished", "request_finished_all_groups",
    "take_events", "has_pending_push_work",
)
BEGINS = ("build_connector_meta", "bind_connector_metadata")
_LINES_A_WRITE = 256


class _Steps:
    def __init__(self):
        self.lines = []
        self.spent = self.calls = self.depth = 0
        self.begins = None  # the first of BEGINS to be called in this process

    def end(self):
        self.lines.append("%d %d\n" % (self.spent, self.calls))
        self.spent = self.calls = 0
        if len(self.lines) == _LINES_A_WRITE:
            path = "%s.%d" % (os.environ["KVTIER_BENCH_STEPS"], os.getpid())
            with open(path, "a") as f:
                f.writelines(self.lines)
            self.lines.clear()


_steps = _Steps()


def _timed(name, method):
    def call(self, *args, **kwargs):
        if name in BEGINS:
            _steps.begins = _steps.begins or name
            if name == _steps.begins:
                _steps.end()
        if _steps.depth:  # the caller is a timed method
            return method(self, *args, **kwargs)
        _steps.depth = 1
        began = time.perf_counter_ns()
        try:
            return method(self, *args, **kwargs)
        finally:
            _steps.spent += time.perf_counter_ns() - began
            _steps.calls += 1
            _steps.depth = 0
    return call


class TimedConnector(KVTierConnector):
    pass


for _name in METHODS:
    if hasattr(KVTierConnector, _name):
        setattr(TimedConnector, _name,
                _timed(_name, getattr(KVTierConnector, _name)))
