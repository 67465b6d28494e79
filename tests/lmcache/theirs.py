# SPDX-License-Identifier: Apache-2.0
"""Wrappers of the real LMCache: the remote back end over fs and S3, the local disk back end,
the GDS back end, and the hashing of tokens."""
import asyncio
import os
import threading

os.environ["LMCACHE_TRACK_USAGE"] = "false"
os.environ["LMCACHE_DISABLE_BANNER"] = "1"
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")

import torch  # noqa: E402
from lmcache.v1 import token_database  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402
from lmcache.v1.storage_backend.gds_backend import GdsBackend  # noqa: E402
from lmcache.v1.storage_backend.local_cpu_backend import (  # noqa: E402
    LocalCPUBackend)
from lmcache.v1.storage_backend.local_disk_backend import (  # noqa: E402
    LocalDiskBackend)
from lmcache.v1.storage_backend.remote_backend import (  # noqa: E402
    RemoteBackend)

import nogpu  # noqa: E402
from geometry import DTYPES  # noqa: E402

TIMEOUT_S = 60


def have_vllm():
    """Return true if vLLM is installed, from which LMCache takes hash functions and their root."""
    try:
        from vllm.utils import hashing  # noqa: F401
        from vllm.v1.core import kv_cache_utils  # noqa: F401
    except ImportError:
        return False
    return True


def metadata(geometry):
    return LMCacheMetadata(
        model_name=geometry.model, world_size=geometry.world_size,
        local_world_size=geometry.world_size, worker_id=geometry.rank,
        local_worker_id=geometry.rank, kv_dtype=DTYPES[geometry.dtype],
        kv_shape=(geometry.layers, geometry.n_kv, geometry.chunk_tokens,
                  geometry.n_heads, geometry.head_size),
        use_mla=geometry.mla, chunk_size=geometry.chunk_tokens)


def keys(geometry, tokens, algorithm="builtin", request_configs=None,
         partial=False):
    """Return LMCache's keys of the chunks of `tokens`; with `partial` also of a partial chunk."""
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=geometry.chunk_tokens, save_unfull_chunk=partial,
        pre_caching_hash_algorithm=algorithm)
    database = token_database.ChunkedTokenDatabase(config, metadata(geometry))
    if not have_vllm() and "PYTHONHASHSEED" in os.environ:
        # LMCache without vLLM uses the root 0; LMCache with vLLM uses this root.
        token_database.NONE_HASH = hash(os.environ["PYTHONHASHSEED"])
    return [key for _, _, key in database.process_tokens(
        tokens=list(tokens), request_configs=request_configs)]


class Backend:
    """The base of the back ends: an event loop in a thread, LMCache's configuration, metadata and
    memory.  A subclass implements open(), which returns LMCache's back end.
    """

    def __init__(self, geometry, **settings):
        self.geometry = geometry
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.config = LMCacheEngineConfig.from_defaults(
            chunk_size=geometry.chunk_tokens, local_cpu=False,
            max_local_cpu_size=0.03125, blocking_timeout_secs=TIMEOUT_S, **settings)
        self.about = metadata(geometry)
        self.memory = LocalCPUBackend(self.config, self.about, dst_device="cpu")
        self.format = (MemoryFormat.KV_MLA_FMT if geometry.mla
                       else MemoryFormat.KV_2LTD)
        self.backend = self.open()

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(
            coroutine, self.loop).result(TIMEOUT_S)

    def shape(self, n_bytes):
        """Return the shape of a chunk of `n_bytes`: a partial chunk has fewer tokens."""
        g = self.geometry
        tokens = n_bytes * g.chunk_tokens // g.chunk_bytes
        return torch.Size([*g.shape[:2], tokens, g.shape[3]])

    def put(self, keys, chunks):
        """Store chunks, each as bytes, and wait until LMCache has called back for each chunk.

        Raises TimeoutError after TIMEOUT_S seconds without a callback.
        """
        objects = []
        for chunk in chunks:
            one = self.memory.allocate(self.shape(len(chunk)),
                                       DTYPES[self.geometry.dtype], self.format)
            memoryview(one.byte_array).cast("B")[:] = chunk
            objects.append(one)
        left = threading.Semaphore(0)
        self.backend.batched_submit_put_task(
            keys, objects, on_complete_callback=lambda key: left.release())
        for _ in keys:
            if not left.acquire(timeout=TIMEOUT_S):
                raise TimeoutError("LMCache does not finish a put")
        for one in objects:
            one.ref_count_down()

    def _take(self, found):
        if found is None:
            return None
        data = bytes(memoryview(found.byte_array).cast("B"))
        if found.get_shape() != self.shape(len(data)):
            raise ValueError("LMCache returned a chunk of shape %s" %
                             (tuple(found.get_shape()),))
        found.ref_count_down()
        return data

    def get(self, keys):
        """Return the chunks as bytes, None for each miss."""
        return [self._take(one) for one in self.backend.batched_get_blocking(keys)]

    def get_each(self, keys):
        return [self._take(self.backend.get_blocking(key)) for key in keys]

    def contains(self, keys):
        return [self.backend.contains(key) for key in keys]


class LMCacheDisk(Backend):
    """LMCache's local disk back end.

    directory: one path, or several paths separated by commas; LMCache uses the path of the
    worker's GPU.
    """

    def __init__(self, directory, geometry, **extra_config):
        super().__init__(geometry, local_disk=directory, max_local_disk_size=1.0,
                         extra_config=extra_config)

    def open(self):
        return LocalDiskBackend(self.config, self.loop, self.memory,
                                dst_device="cuda:%d" % self.geometry.rank,
                                metadata=self.about)

    def close(self):
        self.backend.close()
        super().close()

    def path(self, key):
        return self.backend._key_to_path(key)

    def adopt(self, keys):
        """Register files that another program wrote: the back end never scans the directory."""
        for key in keys:
            self.backend.insert_key(key, self.geometry.chunk_bytes,
                                    self.geometry.shape,
                                    DTYPES[self.geometry.dtype], self.format)


class LMCacheGds(Backend):
    """LMCache's GDS back end, with host memory in place of GPU memory (nogpu.py).

    directory: one path, or several paths separated by commas.  mover: "posix", LMCache's
    transfer without GDS, or "cufile".  device: the GPU's number, defaults to the rank.
    """
    DATA, METADATA = ".kvcache.safetensors", ".metadata"

    def __init__(self, directory, geometry, mover="posix", device=None, **settings):
        nogpu.install()
        self.device = geometry.rank if device is None else device
        super().__init__(geometry, gds_path=directory, gds_buffer_size=32,
                         use_gds=mover != "posix", **settings)
        self.memory = self.backend  # a put needs memory that this back end allocated

    def open(self):
        return GdsBackend(self.config, self.about, self.loop,
                          dst_device="cuda:%d" % self.device)

    def close(self):
        self.backend.close()
        super().close()

    def put(self, keys, chunks):
        super().put(keys, chunks)
        self.run(self.published())

    async def published(self):
        """Wait for the metadata files, which LMCache may write after a put's callback."""
        await asyncio.gather(*self.backend.save_metadata_tasks)

    def scanned(self):
        """Wait for the end of the scan that open() started; return the known keys."""
        self.backend._scan_metadata_future.result(TIMEOUT_S)
        return set(self.backend.hot_cache)

    def path(self, key):
        return self.backend._key_to_path(key)[0]


class LMCache(Backend):
    """LMCache's remote back end over fs.

    directory: one path, or several paths separated by commas.
    """

    def __init__(self, directory, geometry, **extra_config):
        super().__init__(geometry, remote_url="fs://localhost:0" + directory,
                         remote_serde="naive", extra_config=extra_config)
        self.remote = self.backend

    def open(self):
        return RemoteBackend(self.config, self.about, self.loop, self.memory,
                             dst_device="cpu")

    def put(self, keys, chunks):
        super().put(keys, chunks)
        if self.remote.put_failed_count:
            raise OSError("LMCache failed to put a chunk")

    def connector(self):
        """Return the fs connector inside LMCache's wrappers, which check and measure calls."""
        inner = self.remote.connection
        while hasattr(inner, "_connector"):
            inner = inner._connector
        return inner

    def list(self):
        return self.run(self.remote.connection.list())


class LMCacheS3(LMCache):
    """LMCache's remote back end over S3.

    url: the host name contains the bucket; LMCache supports no other form.
    """

    def __init__(self, url, geometry, **extra_config):
        Backend.__init__(self, geometry, remote_url=url, remote_serde="naive",
                         extra_config=dict(disable_tls=True, s3_num_io_threads=2,
                                           s3_prefer_http2=False, save_chunk_meta=False,
                                           **extra_config))
        self.remote = self.backend
