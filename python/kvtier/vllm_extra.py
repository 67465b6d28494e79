# SPDX-License-Identifier: Apache-2.0
"""Inputs of a request besides the tokens: what decides the KV (LoRA adapter, salt,
multimodal items), and the controls of kv_transfer_params: docs/vllm.md."""

import math

from . import vllm_adapters, vllm_handoff
from .vllm_log import log
from .vllm_pins import MAX_SECONDS

_TAG = "lmcache.tag."
MAX_TTL = 15552000  # KVT_TTL_MAX_S


class Extra:
    __slots__ = ("lora", "adapter", "cache_salt", "mm", "tags", "most_loaded", "most_saved",
                 "remote_tokens", "pin_seconds", "ttl")

    def __init__(self):
        self.lora = None  # the adapter's name and digest, as text
        self.adapter = None  # (keys, digest) of the adapter, for workers
        self.cache_salt = None
        self.mm = ()
        self.tags = None
        self.most_loaded = math.inf  # tokens to load at most
        self.most_saved = math.inf  # leading tokens to save at most
        self.remote_tokens = None  # stored by a prefill engine
        self.pin_seconds = 0
        self.ttl = 0  # seconds that saved chunks live at most; 0: without end


def describe(request, settings, digest=None):
    """Return the request's Extra; None if tokens and Extra do not determine the KV.
    settings: the server's limits of a request.  digest: the digest of the request's LoRA
    adapter.  ValueError: a control has no valid value."""
    if (not request.prompt_token_ids
            or getattr(request, "prompt_embeds", None) is not None
            or getattr(request, "prompt_is_token_ids", None) is not None
            or getattr(request, "resumable", False)):
        return None
    extra = Extra()
    lora = getattr(request, "lora_request", None)
    if lora is not None:
        if digest is None:
            return None
        extra.lora = "%s:%s" % (lora.lora_name, digest)
        extra.adapter = vllm_adapters.keys(lora), digest
    extra.cache_salt = getattr(request, "cache_salt", None)
    items = []
    for feature in getattr(request, "mm_features", None) or ():
        position = feature.mm_position
        if not feature.identifier:
            return None
        items.append((feature.identifier, position.offset, position.length))
    extra.mm = sorted(items, key=lambda item: item[1])
    params = getattr(request, "kv_transfer_params", None) or {}
    tags = [(name[len(_TAG):], str(value)) for name, value in params.items()
            if name.startswith(_TAG)]
    # LMCache names an adapter's chunks by this tag, and by nothing else: a client must not
    # take the base model's KV for the adapter's.
    adapter = ("lora", lora.lora_name) if lora is not None else None
    if any(tag[0] == "lora" and tag != adapter for tag in tags):
        log.warning("kvtier: a request is neither looked up nor stored: its tag \"lora\" "
                    "is not the name of its adapter")
        return None
    if adapter is not None and adapter not in tags:
        tags.append(adapter)
    if any(not name or "%" in name or "@" in name + value for name, value in tags):
        log.warning("kvtier: a request is neither looked up nor stored: a tag's "
                    "name must not be empty or have %% or @ in it, nor its value @")
        return None
    extra.tags = "@".join("%s%%%s" % tag for tag in tags) or None
    extra.most_loaded = _tokens(params, settings, "max_load_tokens")
    extra.most_saved = _tokens(params, settings, "max_offload_tokens")
    greatest = settings.get("priority_limit")
    if _true(params.get("lmcache.skip_save")) or (
            greatest is not None and getattr(request, "priority", 0) > greatest):
        extra.most_saved = 0
    extra.remote_tokens = vllm_handoff.expected(params)
    extra.pin_seconds = _seconds(params, "pin_seconds", 0, MAX_SECONDS)
    extra.ttl = _seconds(params, "lmcache.ttl", 1, MAX_TTL)
    return extra


def _tokens(params, settings, name):
    """Return the lower of the server's and the client's number of tokens; infinity if neither
    names a number."""
    limit = settings.get(name)
    limit = math.inf if limit is None else limit
    value = params.get(name)
    if value is None:
        return limit
    if type(value) is not int or value < 0:
        raise ValueError("%s in kv_transfer_params is %.80r and must be a whole number of "
                         "tokens, at least 0" % (name, value))
    return min(value, limit)


def _seconds(params, name, least, most):
    value = params.get(name)
    if value is None:
        return 0
    if type(value) is not int or not least <= value <= most:
        raise ValueError("%s in kv_transfer_params is %.80r and must be a whole number of "
                         "seconds, %d to %d" % (name, value, least, most))
    return value


def _true(value):
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "yes", "on")
    return bool(value)
