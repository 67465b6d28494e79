# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: digest the files of an adapter, and decide which KV matches the digest.

vLLM reads an adapter's files at every load of the adapter: when a client loads or reloads
the adapter, at the first request, and again after an eviction of the adapter.  The files
may change between two loads, and vLLM's prefix cache does not notice.  So:

- The scheduler identifies a request by the digest of the adapter's files at the arrival of
  the request.  A background thread computes the digest; until then lookups return "ask
  again" and nothing is stored.
- Each worker digests the files before and after a load of an adapter, and remembers the
  digest for the name and the number of the adapter (Contents).  A worker stores and loads
  KV of a request only if, since the worker's start, the request's digest is the only digest
  under the adapter's name and number.
- KV is handed to vLLM only while vLLM has the adapter.  If vLLM does not have the adapter
  yet, because vLLM loads an adapter at the first step of a request, the worker loads the
  adapter when the KV has arrived, and vLLM gets this model at its next load (ensure).
- vLLM may keep an adapter in host memory as a mapping of the files and copy the adapter to
  the GPU again later: the worker replaces such tensors with copies.
- The KV of a rank depends on the adapters of all ranks, and each rank reads the files
  itself.  With several ranks, each worker reports its loads, and a worker stores only what
  was planned after every rank had reported the worker's last load (Ranks).
- vLLM reads the files of a request with load_inplace in every step: KV of such a request
  is never used.

After a change of an adapter's files, KV of the adapter is therefore used neither under the
old nor under the new digest until the engine ends or the adapter is loaded under another
name (or path, if vLLM's prefix cache distinguishes paths).  The order of file replacement,
reload, eviction and request does not matter.
"""

import collections
import hashlib
import json
import os
import threading
import time

from . import vllm_files
from .vllm_log import log

# Digests kept by the scheduler; the least recently used digest is dropped.
_MAX_KNOWN = 256
# Names and numbers of adapters remembered by a process; KV of further adapters is not
# used.
_MAX_CONTENTS = 65536

# Maximum number of adapters that a worker keeps in memory for vLLM to take; KV of further
# adapters is not loaded.
_MAX_HELD = 16

# Maximum wait of a request for the digest of its adapter: a file system may hang.
_WAIT_S = 2.0

_MIXED = "mixed"
ANY = -1  # a number of loads that needs no comparison: there is one rank


def digest(lora):
    """Return the digest of the current files of a LoRARequest."""
    where, commit = _locate(lora)
    parts = [commit, str(getattr(lora, "base_model_name", None)),
             bool(getattr(lora, "is_3d_lora_weight", False)),
             vllm_files.digest(where)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _locate(lora):
    if getattr(lora, "tensorizer_config_dict", None):
        raise vllm_files.Unknown("it is loaded by tensorizer")
    path = os.path.expanduser(lora.lora_path)
    if os.path.isabs(path) and not os.path.exists(path):
        raise vllm_files.Unknown("%s does not exist" % path)
    where, commit = vllm_files.locate(path)
    if where is None:
        raise vllm_files.Unknown("%s is not in the hub's cache" % path)
    return where, commit


def keys(lora):
    """Return vLLM's two keys of an adapter: name (and path) for the prefix cache, number
    for the workers.  A reload in place from a new path keeps the number, and queued
    requests of the old path are then computed with the new files."""
    return ((lora.lora_name, lora.lora_path if _paths_count() else None),
            lora.lora_int_id)


def _place(lora):
    """Return which files vLLM reads, and how."""
    return (lora.lora_path, getattr(lora, "base_model_name", None),
            getattr(lora, "is_3d_lora_weight", False))


def is_reloaded(lora):
    """Return True if vLLM reads the adapter's files in each step of a request."""
    return getattr(lora, "load_inplace", False)


def _paths_count():
    try:
        from types import SimpleNamespace

        from vllm.v1.core.kv_cache_utils import _gen_lora_extra_hash_keys
        probe = SimpleNamespace(lora_name="n", lora_path="p", lora_int_id=1)
        return "'p'" in repr(_gen_lora_extra_hash_keys(
            SimpleNamespace(lora_request=probe)))
    except Exception:
        return False  # names alone: fewer hits, never others' KV


class Contents:
    """The digest of each key of the adapters of this process."""

    def __init__(self):
        self._digests = {}

    def note(self, adapter, found):
        """Remember the digest `found` for an adapter's keys(); None is an unknown
        digest."""
        mixed = [self._is_mixed_now(key, found) for key in adapter]
        if any(mixed):
            log.warning("kvtier: adapter %s: its files changed or are unknown: its KV is "
                        "neither stored nor loaded until the engine ends or the adapter "
                        "is loaded under another name", adapter[0][0])

    def _is_mixed_now(self, key, found):
        """Note one key; return True if this digest is the first different digest."""
        had = self._digests.get(key)
        if had == _MIXED:
            return False
        if had is None and len(self._digests) >= _MAX_CONTENTS:
            return False  # not remembered: KV of this key is not used
        is_same = bool(found) and had in (None, found)
        self._digests[key] = found if is_same else _MIXED
        return not is_same

    def is_only(self, adapter, found):
        return found is not None and all(
            self._digests.get(key) == found for key in adapter)

    def may_become(self, adapter, found):
        """Return True if no key of the adapter has had a digest other than found."""
        return found is not None and all(
            self._digests.get(key, found) == found for key in adapter)


class Ranks:
    """The adapters that the workers of all ranks have reported."""

    def __init__(self, n_ranks):
        self._n_ranks = n_ranks
        self._loads = {}  # adapter's keys -> [number of loads, digest or _MIXED]

    def note(self, loads):
        for adapter, found in loads:
            if adapter not in self._loads and len(self._loads) >= _MAX_CONTENTS:
                continue
            had = self._loads.setdefault(adapter, [0, found])
            had[0] += 1
            if had[1] != found:
                had[1] = _MIXED

    def n_loads(self, adapter, found):
        """Return how often each rank has loaded the adapter if all loads had the digest
        found; None if not, or if ranks have not reported yet."""
        if self._n_ranks == 1:
            return ANY
        n, digest = self._loads.get(adapter, (0, None))
        return None if digest != found or n % self._n_ranks else n // self._n_ranks


class Digests:
    """Digests in the background, for the scheduler's thread.  At most _MAX_KNOWN
    requests wait; further adapters are not identified."""

    def __init__(self):
        self._lock = threading.Lock()  # held for a few instructions
        self._known = collections.OrderedDict()  # place -> (signature, digest)
        self._queue = collections.deque()
        self._pending = {}  # place -> DigestRequest
        self._thread = None
        self._has_warned = False

    def request(self, lora):
        """Return a DigestRequest.  A background thread computes the digest; the thread ends when no
        request is left."""
        place = _place(lora)
        with self._lock:
            digest_request = self._pending.get(place)
            if digest_request is None:
                digest_request = DigestRequest(lora)
                # If a file system hangs, so does the thread.
                if len(self._pending) < _MAX_KNOWN and self._have_thread():
                    self._pending[place] = digest_request
                    self._queue.append((place, digest_request))
                else:
                    digest_request.done = True
        return digest_request

    def _have_thread(self):
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="kvtier-adapters",
                                      daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process has too many
                return False
            self._thread = thread
        return True

    def _run(self):
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                place, digest_request = self._queue.popleft()
            try:
                found = self._look(place, digest_request.lora)
            except Exception as e:
                found = None
                if not self._has_warned:
                    self._has_warned = True
                    log.warning("kvtier: adapter %s cannot be identified: %s. Requests "
                                "with such adapters are neither looked up nor stored.",
                                digest_request.lora.lora_name, e)
            with self._lock:
                del self._pending[place]
            digest_request.digest = found
            digest_request.done = True

    def _look(self, place, lora):
        signature = _signature(lora)
        had = self._known.get(place)
        if had is None or had[0] != signature:
            had = signature, digest(lora)
            if _signature(lora) != signature:
                raise vllm_files.Unknown("its files change")
            self._known[place] = had
        self._known.move_to_end(place)
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return had[1]


class DigestRequest:
    __slots__ = ("lora", "until", "done", "digest")

    def __init__(self, lora):
        self.lora = lora
        self.until = time.monotonic() + _WAIT_S
        self.done = False
        self.digest = None  # None when done: the adapter cannot be identified


def _signature(lora):
    """Changes with the files, without reading them."""
    where, commit = _locate(lora)
    if os.path.isfile(where):
        where = os.path.dirname(where)
    found = []
    for folder, _, names in os.walk(where):
        for name in names:
            about = os.stat(os.path.join(folder, name))
            found.append((folder, name, about.st_dev, about.st_ino, about.st_size,
                          about.st_mtime_ns, about.st_ctime_ns))
    return commit, sorted(found)


# ----------------------------------------------------------------- workers

# Adapters loaded by the workers of this process.
_loaded = Contents()
# Adapters that were loaded for KV and not yet taken by vLLM:
# (manager, number) -> (place, model).
# An adapter stays until vLLM takes it, as its KV may be in vLLM's prefix cache.
_held = {}
_counts = collections.Counter()  # adapter's keys -> number of loads
_unreported = []  # (adapter's keys, digest or None) of loads
_original = None  # vLLM's WorkerLoRAManager._load_adapter


def watch(frame):
    """Note all later loads by vLLM's workers in this process.

    Return vLLM's WorkerLoRAManager of the worker that makes a connector in frame.  If this
    vLLM has no suitable hook, return None: no KV of adapters is used."""
    global _original
    manager = _find_manager(frame)
    try:
        from vllm.lora.worker_manager import WorkerLoRAManager
        load = WorkerLoRAManager._load_adapter
    except (ImportError, AttributeError):
        manager = None
    if manager is None:
        log.warning("kvtier: KV of LoRA adapters is neither stored nor loaded: this vLLM "
                    "does not show which adapters it loads")
    elif load is not _load_adapter:
        _original = load
        WorkerLoRAManager._load_adapter = _load_adapter
    return manager


def _find_manager(frame):
    """Return the WorkerLoRAManager of the worker on the stack above frame, else None.
    vLLM passes a connector no reference to its worker."""
    while frame is not None:
        runner = getattr(frame.f_locals.get("self"), "model_runner", None)
        if getattr(runner, "lora_manager", None) is not None:
            return runner.lora_manager
        frame = frame.f_back
    return None


def may_load(manager, lora, found):
    """Return False if KV of the adapter's digest found cannot be used."""
    return manager is not None and _loaded.may_become(keys(lora), found)


def ensure(manager, lora, found):
    """Return True if found is the only digest under the adapter's name and number, and
    vLLM has the adapter.  If vLLM does not have the adapter, load the adapter for vLLM."""
    if not may_load(manager, lora, found):
        return False
    held = manager, lora.lora_int_id
    if lora.lora_int_id not in manager.list_adapters() and held not in _held:
        if len(_held) >= _MAX_HELD:
            return False
        try:
            _held[held] = _place(lora), _load(manager, lora)
        except Exception as e:
            log.warning("kvtier: adapter %s cannot be loaded before its first step, so its "
                        "KV is not loaded: %s", lora.lora_name, e)
            return False
    return _loaded.is_only(keys(lora), found)


def may_store(manager, adapter, found, n_loads):
    """Return True if a worker may store KV just computed with adapter, which has the digest
    found on all ranks after n_loads loads."""
    return (manager is not None and _loaded.is_only(adapter, found)
            and n_loads in (ANY, _counts[adapter]))


def take_unreported():
    """Return the loads since the last call."""
    loads = _unreported[:]
    _unreported.clear()
    return loads


def _load_adapter(manager, lora_request):
    """Replaces WorkerLoRAManager._load_adapter."""
    place, model = _held.pop((manager, lora_request.lora_int_id), (None, None))
    if place == _place(lora_request) and not is_reloaded(lora_request):
        return model
    return _load(manager, lora_request)


def _load(manager, lora):
    """Load an adapter from its files and note the digest."""
    if is_reloaded(lora):
        model = _original(manager, lora)
        _note(lora, None)
        return model
    before = _try_digest(lora)
    model = _original(manager, lora)
    is_copied = _copy_tensors(model)
    after = _try_digest(lora)
    _note(lora, after if is_copied and before == after else None)
    return model


def _note(lora, found):
    adapter = keys(lora)
    _loaded.note(adapter, found)
    if adapter in _counts or len(_counts) < _MAX_CONTENTS:
        _counts[adapter] += 1
        _unreported.append((adapter, found))


def _copy_tensors(model):
    """Replace tensors that may lie in a mapping of a file with copies: a mapped tensor
    changes when the file is overwritten.  A pinned tensor is a copy already.

    Return False if the model has an unknown type."""
    import torch
    try:
        for layer in [*model.loras.values(),
                      *getattr(model, "modules_to_save", {}).values()]:
            for name, value in list(vars(layer).items()):
                if isinstance(value, torch.Tensor) and not value.is_pinned():
                    setattr(layer, name, value.clone())
    except (AttributeError, TypeError):
        return False
    return True


def _try_digest(lora):
    try:
        return digest(lora)
    except Exception:  # vLLM reports the adapter's defect
        return None
