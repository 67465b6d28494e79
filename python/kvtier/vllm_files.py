# SPDX-License-Identifier: Apache-2.0
"""Where the files of a model or of an adapter lie on this host, and their digest.

A name from a hub is looked up in the hub's local cache; nothing here uses the network.
"""

import os
import re

from . import vllm_samples

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".ckpt", ".npz",
            ".tensors", ".msgpack", ".h5")
_SETTINGS = (".json", ".py", ".yaml", ".yml")
# Settings of tokens and texts, without effect on the KV of given tokens.
_NOT_KV = re.compile(r"tokenizer|vocab|merges|special_tokens|added_tokens|"
                     r"chat_template|trainer_state|training_args")
_COMMIT = re.compile("[0-9a-f]{40}")


class Unknown(Exception):
    """The bytes cannot be known on this host; why."""


def locate(name, revision=None, cache=None):
    """Return (directory or file or None, commit or None) of a path or a hub's name.

    cache is the hub's cache directory; None: the default directory.  The directory is None
    if only the commit is known."""
    if os.path.exists(name):
        return os.path.abspath(name), None
    if "://" in name:
        raise Unknown("%s is not a file of this host" % name)
    if os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        raise Unknown("%s comes from ModelScope" % name)
    repo = os.path.join(cache or _hub_cache(), "models--" + name.replace("/", "--"))
    commit = _commit(repo, revision or "main")
    if commit is None:
        raise Unknown("%s is neither a local path nor in the hub's cache %s"
                      % (name, os.path.dirname(repo)))
    snapshot = os.path.join(repo, "snapshots", commit)
    return (snapshot if os.path.isdir(snapshot) else None), commit


def _hub_cache():
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
        return HF_HUB_CACHE
    except ImportError:
        return os.path.expanduser("~/.cache/huggingface/hub")


def _commit(repo, revision):
    if _COMMIT.fullmatch(revision):
        return revision
    try:
        with open(os.path.join(repo, "refs", revision)) as file:
            commit = file.read().strip()
    except OSError:
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def digest(where):
    """Return the digests of a directory's weight files and settings, or of a file and
    the neighbouring files with an equal suffix.

    Files ignored by vLLM count too: a change of these files only costs a miss.
    Raises Unknown if there are no weight files."""
    weights, small = found = [], []
    if os.path.isfile(where):
        # The parts of a split file lie beside the first part.
        folder, suffix = os.path.dirname(where), os.path.splitext(where)[1]
        weights += (os.path.join(folder, name) for name in os.listdir(folder)
                    if name.endswith(suffix)
                    and os.path.isfile(os.path.join(folder, name)))
        parts = [os.path.basename(where)]
    else:
        parts = []
        for folder, folders, names in os.walk(where, onerror=_raise,
                                              followlinks=True):
            folders[:] = [name for name in folders
                          if name != "original" and not name.startswith(".")]
            if folder.count(os.sep) - where.count(os.sep) >= 2:
                folders[:] = []
            for name in names:
                kind = _kind(name)
                if kind is not None:
                    found[kind].append(os.path.join(folder, name))
    if not weights:
        raise Unknown("no weight files in %s" % where)
    parts.append(vllm_samples.digest(weights))
    parts.append(vllm_samples.whole_digest(small))
    return parts


def _kind(name):
    if name.endswith(_WEIGHTS):
        return 0
    if name.endswith(_SETTINGS) and not _NOT_KV.search(name):
        return 1
    return None


def _raise(error):
    raise error
