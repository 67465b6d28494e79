# SPDX-License-Identifier: Apache-2.0
"""Entry point of vllm.general_plugins: where LMCache is not installed, the
connector name LMCacheConnectorV1 means kvtier.

vLLM runs it in each of its processes.  KVTIER_REPLACE_LMCACHE=1 takes the name
even when LMCache is there, KVTIER_REPLACE_LMCACHE=0 never does.
"""

import importlib.metadata
import os

NAME = "LMCacheConnectorV1"


def wanted():
    said = os.environ.get("KVTIER_REPLACE_LMCACHE", "")
    if said in ("0", "1"):
        return said == "1"
    try:
        importlib.metadata.distribution("lmcache")
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


def register():
    if not wanted():
        return
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import (
            KVConnectorFactory,
        )
        registry = KVConnectorFactory._registry
    except (ImportError, AttributeError) as e:
        from .vllm_log import log
        log.warning("kvtier: cannot stand in for %s in this vLLM (%s); use "
                    "kv_connector_module_path", NAME, e)
        return
    registry.pop(NAME, None)
    KVConnectorFactory.register_connector(NAME, "kvtier.connector",
                                          "KVTierConnector")
