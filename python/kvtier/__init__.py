# SPDX-License-Identifier: Apache-2.0
"""kvtier keeps the KV cache of language models outside the GPU.

Importing this package starts no thread, opens no file and loads no library.  The connector
for vLLM is kvtier.connector.KVTierConnector.  The names below are the names of a porting
guide for LMCache; docs/python.md shows them.
"""

import importlib

__version__ = "0.1.0"

_HOMES = {
    "S3Adapter": ".s3",
    "S3Connector": ".s3",
    "LMCacheEngineBuilder": ".builder",
}
__all__ = sorted(_HOMES)


def __getattr__(name):
    if name not in _HOMES:
        raise AttributeError("module 'kvtier' has no attribute %r" % name)
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
