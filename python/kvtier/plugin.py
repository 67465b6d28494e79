# SPDX-License-Identifier: Apache-2.0
"""Entry point of vllm.general_plugins: register kvtier's connector by name.

vLLM runs the entry point in each process.  If LMCache is not installed, the connector
name LMCacheConnectorV1 means kvtier too.  With KVTIER_REPLACE_LMCACHE=1 kvtier takes the
name even if LMCache is installed, with KVTIER_REPLACE_LMCACHE=0 never.
"""

import importlib.metadata
import os

CLASS = "KVTierConnector"
LMCACHE = "LMCacheConnectorV1"


def wanted():
    value = os.environ.get("KVTIER_REPLACE_LMCACHE", "")
    if value in ("0", "1"):
        return value == "1"
    try:
        importlib.metadata.distribution("lmcache")
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


def register(names=None):
    """Register kvtier's connector under names; by default the names by wanted()."""
    if names is None:
        names = (CLASS, LMCACHE) if wanted() else (CLASS,)
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import (
            KVConnectorFactory,
        )
        for name in names:
            KVConnectorFactory._registry.pop(name, None)
            KVConnectorFactory.register_connector(name, "kvtier.connector", CLASS)
    except (ImportError, AttributeError) as e:
        from .vllm_log import log
        log.warning("kvtier: cannot register %s in this vLLM (%s); use "
                    "kv_connector_module_path", ", ".join(names), e)
