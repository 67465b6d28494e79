# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a model: everything besides tokens that decides K and V.

Engines with equal fingerprints share chunks, so an unknown part must never be left out: if
any part is unknown, there is no fingerprint, and the engine shares no chunks.
Unequal fingerprints of equal models only cost misses.
"""

import hashlib
import json
import os
import re

from . import vllm_files
from .vllm_log import log

# Load formats with files in the model's directory.
_FROM_FILES = ("auto", "hf", "safetensors", "fastsafetensors", "instanttensor",
               "mistral", "npcache", "pt", "bitsandbytes", "gguf", "sharded_state",
               "runai_streamer", "runai_streamer_sharded")

# Entries of the model's configuration with places or versions, and entries added by vLLM
# during the load.
_NOT_KV = ("_name_or_path", "name_or_path", "_commit_hash", "transformers_version",
           "max_model_len")

_MODEL_FIELDS = ("quantization", "quantization_config", "dtype", "code_revision",
                 "model_impl", "config_format", "disable_sliding_window",
                 "model_class_overrides", "rope_scaling", "rope_theta",
                 "override_attention_dtype", "override_generation_config")
_MM_FIELDS = ("language_model_only", "mm_processor_kwargs", "media_io_kwargs",
              "video_pruning_rate", "video_pruning_method", "mm_encoder_attn_dtype",
              "mm_encoder_fp8_scale_path", "mm_device_do_normalize")
_CACHE_FIELDS = ("cache_dtype", "calculate_kv_scales", "kv_cache_dtype_skip_layers",
                 "quantization_param_path")
# Speculation methods without a draft model.
_NO_DRAFT = ("ngram", "[ngram]", "ngram_gpu", "suffix")


def fingerprint(vllm_config, settings):
    """Return a text for the weights and all settings with an effect on KV; None, with a
    warning, if any part is unknown."""
    configured = settings.get("model_fingerprint")
    if configured:
        return str(configured)
    try:
        parts = [_text(vllm_config.cache_config, _CACHE_FIELDS),
                 _model(vllm_config.model_config, vllm_config.load_config)]
        draft = _draft(vllm_config)
        if draft is not None:
            parts.append(draft)
    except Exception as e:  # an unexpected configuration included
        log.warning("kvtier: the weights cannot be identified: %s. Chunks are found "
                    "again by this engine only, until it ends; model_fingerprint: TEXT "
                    "names the weights for engines that may share chunks.", e)
        return None
    text = json.dumps(parts, sort_keys=True)
    return "digest:" + hashlib.sha256(text.encode()).hexdigest()


def _model(config, load):
    """Return every setting with an effect on a model's KV, as JSON values."""
    return {
        "weights": _weights(config, load),
        "config": _plain(_effective(config)),
        "overrides": _plain(_overrides(config)),
        "context": _context(config),
        "fields": _text(config, _MODEL_FIELDS),
        "multimodal": _text(getattr(config, "multimodal_config", None), _MM_FIELDS),
    }


def _draft(vllm_config):
    """The draft model of speculative decoding: vLLM caches the draft model's KV too."""
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    method = getattr(speculative, "method", None)
    if draft is None or draft is vllm_config.model_config or method in _NO_DRAFT:
        return None
    load = getattr(speculative, "draft_load_config", None) or vllm_config.load_config
    return [str(method), _model(draft, load)]


# ------------------------------------------------------------------ weights


def _weights(config, load):
    load_format = str(getattr(load, "load_format", "auto")).lower().split(".")[-1]
    extra = _extra(load)
    if load_format == "dummy":
        # Random values, or weights sent later by a trainer.
        raise vllm_files.Unknown("load_format is dummy")
    if load_format == "tensorizer":
        return [load_format, _tensorized(extra, load), _plain(extra)]
    if load_format not in _FROM_FILES:
        raise vllm_files.Unknown("load_format %s takes them from elsewhere"
                                 % load_format)
    uri = getattr(config, "model_weights", "")
    if uri:
        raise vllm_files.Unknown("%s is not a file of this host" % uri)
    found = _files(config.model, getattr(config, "revision", None), load)
    return [load_format, found, _plain(extra), _named(extra, load)] + [
        _files(other, None, load) for other in _other_models(config)]


def _files(name, revision, load):
    """Return the digests of a model's files, or the commit if only the commit is known."""
    where, commit = vllm_files.locate(name, revision,
                                      getattr(load, "download_dir", None))
    if where is None:
        return [commit]
    return [commit] + vllm_files.digest(where)


def _other_models(config):
    """Return further models named by the model's configuration, as in Ultravox
    (text_model_id, audio_model_id)."""
    about = _effective(config)
    return [about[name] for name in sorted(about)
            if name.endswith("_model_id") and isinstance(about[name], str)
            and about[name]]


def _extra(load):
    """Return model_loader_extra_config, a dict or an object of tensorizer, as a dict."""
    extra = getattr(load, "model_loader_extra_config", None) or {}
    if not isinstance(extra, dict):
        extra = {name: value for name, value in vars(extra).items()
                 if not name.startswith("_")}
    return extra


def _tensorized(extra, load):
    place = extra.get("tensorizer_uri") or extra.get("tensorizer_dir")
    if not isinstance(place, str):
        raise vllm_files.Unknown("tensorizer has no tensorizer_uri")
    place = re.sub("^file://", "", place)
    # File names of a sharded model have a placeholder for the rank.
    folder = os.path.dirname(place) if "%" in place else place
    return _files(folder, None, load)


def _named(extra, load):
    """Return the digests of files in the loader's settings, for example a QLoRA adapter."""
    return [_files(value, None, load) for name, value in sorted(extra.items())
            if isinstance(value, str)
            and re.search("path|uri|dir|file", name.lower())]


# ------------------------------------------------------------ configuration


def _effective(config):
    """Return vLLM's effective configuration of the model as a dict."""
    about = getattr(config, "hf_config", None)
    if about is None:
        return {}
    to_dict = getattr(about, "to_dict", None)
    return to_dict() if to_dict else dict(vars(about))


def _overrides(config):
    overrides = getattr(config, "hf_overrides", None) or {}
    if callable(overrides):  # the effective configuration contains the overrides
        return "%s.%s" % (getattr(overrides, "__module__", ""),
                          getattr(overrides, "__qualname__", ""))
    return overrides


def _context(config):
    """Return the choices of vLLM's models that depend on max_model_len."""
    about = _effective(config)
    length = getattr(config, "max_model_len", None)
    if getattr(config, "original_max_model_len", None) == -1:
        # vLLM built the model with the default maximum and lowered the maximum later.
        length = None
    choices = {}
    if _has_longrope(about):
        choices["longrope"] = [
            [limit, length is None or length > limit]
            for limit in _values(about, "original_max_position_embeddings")
        ] or [str(length)]
    if any("Llama4" in str(name) for name in about.get("architectures") or ()):
        choices["llama4"] = length is None or length > 32768
    return choices


def _has_longrope(about):
    return any(value in ("longrope", "su") for key in ("rope_type", "type")
               for value in _values(about, key))


def _values(about, key):
    """All values of a key at any depth, sorted, each once."""
    found = set()

    def walk(value):
        if isinstance(value, dict):
            for name, inner in value.items():
                if name == key and isinstance(inner, (int, str)):
                    found.add(inner)
                walk(inner)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                walk(inner)
    walk(about)
    return sorted(found, key=str)


def _text(about, names):
    return {name: _plain(getattr(about, name, None)) for name in names}


def _plain(value):
    """Return a value as JSON, equal in every process."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()
                if key not in _NOT_KV}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(inner) for inner in value), key=repr)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "to_dict"):
        return _plain(value.to_dict())
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return [type(value).__qualname__, _plain(vars(value))]
    return re.sub(" at 0x[0-9a-f]+", "", str(value))
