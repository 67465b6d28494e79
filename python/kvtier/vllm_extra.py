# SPDX-License-Identifier: Apache-2.0
"""What besides its tokens decides a request's KV (LoRA adapter, salt, multimodal
items), and what its kv_transfer_params ask for (tags, no saving)."""

import functools
import os

from .vllm_log import log
from .vllm_model import sampled_digest

_TAG = "lmcache.tag."


class Extra:
    __slots__ = ("lora", "cache_salt", "mm", "tags", "skip_save")

    def __init__(self):
        self.lora = None
        self.cache_salt = None
        self.mm = ()
        self.tags = None
        self.skip_save = False


def describe(request):
    """Extra; None when the request's KV is not told by its tokens."""
    if (not request.prompt_token_ids
            or getattr(request, "prompt_embeds", None) is not None
            or getattr(request, "prompt_is_token_ids", None) is not None
            or getattr(request, "resumable", False)):
        return None
    extra = Extra()
    lora = getattr(request, "lora_request", None)
    if lora is not None:
        extra.lora = _adapter(lora.lora_name, getattr(lora, "lora_path", ""))
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
    if lora is not None and not any(name == "lora" for name, _ in tags):
        tags.append(("lora", lora.lora_name))  # as LMCache names such chunks
    if any(not name or "%" in name or "@" in name + value for name, value in tags):
        log.warning("kvtier: a request is neither looked up nor stored: a tag's "
                    "name must not be empty or have %% or @ in it, nor its value @")
        return None
    extra.tags = "@".join("%s%%%s" % tag for tag in tags) or None
    extra.skip_save = _true(params.get("lmcache.skip_save"))
    return extra


def _true(value):
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "yes", "on")
    return bool(value)


@functools.lru_cache(maxsize=256)
def _adapter(name, path):
    """An adapter's name and what it holds: names are reused."""
    try:
        files = [os.path.join(path, file) for file in os.listdir(path)
                 if file.endswith((".safetensors", ".bin", ".json"))]
        return "%s:%s" % (name, sampled_digest(files))
    except OSError:
        return "%s:%s" % (name, path)
