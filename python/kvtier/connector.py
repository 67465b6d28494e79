# SPDX-License-Identifier: Apache-2.0
"""KVTierConnector: vLLM's KV cache kept outside vLLM by kvtier.

    --kv-transfer-config '{"kv_connector": "KVTierConnector", "kv_role": "kv_both"}'

An installed kvtier registers the name (plugin.py).  With a kvtier that is only on PYTHONPATH,
"kv_connector_module_path": "kvtier.connector" is needed beside the name.

vLLM creates one object in the scheduler's process and one object in each worker's process;
the class forwards each call to its half (vllm_scheduler, vllm_worker).  Supports vLLM 0.28
to 0.33: the code probes for each difference between these versions.
"""

import contextlib
import json
import sys

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
)

from . import (
    _lib,
    plugin,
    vllm_adapters,
    vllm_digest,
    vllm_hosts,
    vllm_model,
    vllm_policy,
    vllm_stages,
    vllm_staging,
)
from .vllm_log import log
from .vllm_meta import DESCRIBE, NOTHING, KVConnectorWorkerMetadata, UnusableWorker
from .vllm_scheduler import Scheduler
from .vllm_stats import KVTierPromMetrics, KVTierStats
from .vllm_worker import Worker

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA
except ImportError:
    class SupportsHMA:
        pass

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorTransferResults,
    )
except ImportError:
    KVConnectorTransferResults = None

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:
    CacheHitSource = None


class KVTierConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self._scheduler = None
        self._worker = None
        self._stages = None  # of a scheduler that waits for the reports of the workers
        transfer = vllm_config.kv_transfer_config
        self._parent = _parent(self, sys._getframe(1))
        config = _lib.Config(
            connector_json=json.dumps(transfer.kv_connector_extra_config or {}),
            settings=vllm_model.forced_settings(kv_cache_config))
        try:
            self._open(vllm_config, role, kv_cache_config, config)
        except vllm_model.Unsupported as e:
            # One line for an engine: the scheduler logs the reasons that it sees.
            if (role == KVConnectorRole.SCHEDULER
                    or vllm_model.is_worker_ahead(vllm_config, kv_cache_config)):
                log.warning("kvtier: nothing is stored or loaded: this version "
                            "does not support %s", e)
        finally:
            if not self._stages:
                config.close()
        if self._scheduler or self._stages:
            vllm_policy.apply(transfer, self._parent)

    def _open(self, vllm_config, role, kv_cache_config, config):
        vllm_model.check_supported(vllm_config, kv_cache_config)
        settings = config.values()
        if CacheHitSource is not None:
            self._storage = _storage_source(settings)
        chunk_tokens = int(settings["chunk_size"])
        infos = vllm_model.groups(vllm_config, kv_cache_config, chunk_tokens)
        if KVConnectorTransferResults is None and (
                len(infos) > 1 or infos[0].kind == _lib.GROUP_SLIDING):
            raise vllm_model.Unsupported(
                "several KV cache groups, or one of sliding windows, in this vLLM, "
                "which has no way to report a failed load of them")
        if KVConnectorWorkerMetadata is object and vllm_model.needs_reports(
                vllm_config, kv_cache_config):
            raise vllm_model.Unsupported(
                "several stages or hosts, or layers with different KV in a KV cache group, in "
                "this vLLM, in which workers cannot report to the scheduler")
        if role == KVConnectorRole.SCHEDULER:
            if any(info.is_state for info in infos):
                log.info("kvtier: chunk_size is %d, the block size of vLLM, because vLLM keeps "
                         "states of Mamba or linear attention only after whole blocks",
                         chunk_tokens)
            self._open_scheduler(vllm_config, kv_cache_config, config, settings, infos)
            return
        model = vllm_model.model(vllm_config, infos, vllm_config.parallel_config.rank, "")
        staging_bytes = _staging_bytes(vllm_config, settings, infos)
        engine = _engine(vllm_config, config, _lib.ROLE_WORKER, [infos], model,
                         staging_bytes)
        adapters = None
        if getattr(vllm_config, "lora_config", None):
            adapters = vllm_adapters.watch(sys._getframe(1))
        self._worker = Worker(
            engine, infos, kv_cache_config.num_blocks, adapters,
            (staging_bytes, int(settings.get("blocking_timeout_secs") or 0)), model.rank)

    def _open_scheduler(self, vllm_config, kv_cache_config, config, settings, infos):
        """Open the scheduler's half.  If the scheduler needs reports of the workers,
        self._stages opens the half later, and config stays open until then."""
        # Workers need no fingerprint: the scheduler's chunks carry the weights id.
        fingerprint = vllm_digest.fingerprint(vllm_config, settings)
        model = vllm_model.model(vllm_config, infos, 0, fingerprint or "")
        transfer = vllm_config.kv_transfer_config
        n_stages = vllm_model.n_stages(vllm_config)
        this_host = vllm_hosts.this_host()

        def open_scheduler(stages, hosts, reset):
            model.kv_dtype = vllm_model.kv_dtype(stages[0]).encode()
            with contextlib.closing(config):
                engine = _engine(vllm_config, config, _lib.ROLE_SCHEDULER, stages, model,
                                 max(_staging_bytes(vllm_config, settings, stage)
                                     for stage in stages))
            if reset or fingerprint is None:
                engine.reset()  # to random weights of this engine alone
            lookups = None
            if hosts - {this_host}:
                lookups = self._look_up_by_workers(engine, settings, stages[0], model, hosts)
            return Scheduler(
                engine, stages, settings, can_load=transfer.is_kv_consumer,
                can_save=transfer.is_kv_producer,
                n_ranks=vllm_config.parallel_config.world_size,
                # MultiConnector passes the answer of one connector only.
                hands_off=self._parent is None,
                events=_events(engine, stages[0], settings, vllm_config, kv_cache_config),
                hosts=lookups, cache_config=vllm_config.cache_config)
        if vllm_model.needs_reports(vllm_config, kv_cache_config):
            self._stages = vllm_stages.Stages(n_stages, model.world_size,
                                              int(settings["chunk_size"]), open_scheduler)
        else:
            self._scheduler = open_scheduler([infos], set(), False)

    def _look_up_by_workers(self, engine, settings, infos, model, hosts):
        if CacheHitSource is not None:  # the workers do not report where they found the chunks
            self._storage = CacheHitSource.EXTERNAL_UNSPECIFIED
        log.info("kvtier: the workers look up chunks, because they run on %d hosts or on another "
                 "host than the scheduler", len(hosts))
        if settings.get("max_pinned_size"):
            log.warning("kvtier: max_pinned_size has no effect: chunks are not pinned in an "
                        "engine over several hosts")
        return vllm_hosts.Lookups(engine, settings, model.world_size,
                                  any(info.kind == _lib.GROUP_SLIDING for info in infos))

    @property
    def requires_kv_delivery(self):
        # A lost save is a later miss, nothing more.
        return False

    # ---------------------------------------------------------------- worker

    def register_kv_caches(self, kv_caches):
        if self._worker:
            self._worker.register(kv_caches)

    def start_load_kv(self, forward_context, **kwargs):
        if self._worker:
            self._worker.start_loads(self._connector_metadata)

    def wait_for_layer_load(self, layer_name):
        pass

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        pass

    def wait_for_save(self):
        if self._worker and self._connector_metadata is not None:
            self._worker.save(self._connector_metadata)

    def get_finished(self, finished_req_ids):
        if not self._worker:
            return None, None
        done, failed = self._worker.finished(finished_req_ids)
        self._failed_recving = failed or set()
        return None, done

    def get_transfer_results(self, finished_req_ids):
        _, done = self.get_finished(finished_req_ids)
        results = KVConnectorTransferResults()
        if done:
            results.finished_recving = done
            results.failed_recving = self._failed_recving
        return results

    def build_connector_worker_meta(self):
        describe = self._connector_metadata is DESCRIBE
        if self._worker:
            return self._worker.report(describe)
        return UnusableWorker() if describe else None

    def get_block_ids_with_load_errors(self):
        return self._worker.take_bad_blocks() if self._worker else set()

    # ------------------------------------------------------------- scheduler

    def on_new_request(self, request):
        if self._scheduler:
            self._scheduler.new_request(request)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        if self._scheduler:
            return self._scheduler.matched_tokens(request, num_computed_tokens)
        return self._stages.matched_tokens() if self._stages else (0, False)

    def get_external_cache_hit_sources(self, request, num_external_tokens):
        """{CacheHitSource: tokens}; vLLM asks after update_state_after_alloc()."""
        if not self._scheduler or not num_external_tokens:
            return {}
        memory = self._scheduler.memory_tokens(request, num_external_tokens)
        counts = {CacheHitSource.HOST: memory,
                  self._storage: num_external_tokens - memory}
        return {source: n for source, n in counts.items() if n}

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        if self._scheduler:
            self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        if self._scheduler:
            return self._scheduler.build_meta(scheduler_output)
        return DESCRIBE if self._stages and self._stages.waiting else NOTHING

    def update_connector_output(self, connector_output):
        if self._scheduler:
            self._scheduler.received(connector_output)
        elif self._stages:
            self._scheduler = self._stages.received(
                connector_output.kv_connector_worker_meta)

    def request_finished(self, request, block_ids):
        return False, self._scheduler.finished(request) if self._scheduler else None

    def request_finished_all_groups(self, request, block_ids):
        return self.request_finished(request, block_ids)

    def take_events(self):
        return self._scheduler.take_events() if self._scheduler else ()

    def has_pending_push_work(self):
        return bool(self._scheduler) and self._scheduler.has_work()

    def reset_cache(self):
        half = self._scheduler or self._stages
        return half.reset() if half else True

    # ------------------------------------------------------------------ both

    def get_kv_connector_stats(self):
        half = self._scheduler or self._worker
        return half.stats() if half else None

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return KVTierStats(data=data) if data is not None else KVTierStats()

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames,
                           per_engine_labelvalues):
        return KVTierPromMetrics(vllm_config, metric_types, labelnames,
                                 per_engine_labelvalues)

    def shutdown(self):
        half = self._scheduler or self._worker
        self._scheduler = self._worker = self._stages = None
        if half:
            half.shutdown()


def _events(engine, infos, settings, vllm_config, kv_cache_config):
    """Return the source of vLLM's KV cache events, or None if vLLM publishes no events."""
    config = getattr(vllm_config, "kv_events_config", None)
    if not getattr(config, "enable_kv_cache_events", False):
        return None
    from .vllm_events import open_events
    return open_events(engine, infos, settings, vllm_config, kv_cache_config)


def _staging_bytes(vllm_config, settings, infos):
    if not vllm_model.is_staged(vllm_model.device_type(vllm_config)):
        return 0
    return vllm_staging.staging_bytes(
        infos, float(settings.get("max_local_cpu_size") or 0) * (1 << 30))


def _engine(vllm_config, config, role, stages, model, staging_bytes):
    """stages: the groups of each stage that this process describes, as GroupInfo."""
    return _lib.Engine(config, role, [info.to_c() for infos in stages for info in infos],
                       model, vllm_config.kv_transfer_config.engine_id,
                       vllm_model.local_ranks(vllm_config), staging_bytes,
                       vllm_model.n_stages(vllm_config))


def _storage_source(settings):
    """Return vLLM's name of the medium behind host memory.  vLLM has no name for
    object stores; with files beside an object store, a hit does not name the medium."""
    plugins = settings.get("remote_storage_plugins") or ()
    if "s3:" in str(settings.get("remote_url")) or any(
            name.split(".")[0] == "s3" for name in plugins):
        return CacheHitSource.EXTERNAL_UNSPECIFIED
    return CacheHitSource.DISK


def _parent(connector, frame):
    """Return the parent connector (MultiConnector), or None.  vLLM passes neither the
    parent nor the parent's configuration to a child."""
    caller = frame.f_locals.get("self")
    if isinstance(caller, KVConnectorBase_V1) and caller is not connector:
        return caller
    return None


# MultiConnector's statistics look up classes by name, even classes given by module path.
plugin.register(names=(plugin.CLASS,))
