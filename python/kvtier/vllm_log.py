# SPDX-License-Identifier: Apache-2.0
"""The connector's log: below vLLM's own logger, so that its lines are shown, up to the
level that the library takes too.  What vLLM's VLLM_LOGGING_LEVEL hides stays hidden."""

import logging
import os

log = logging.getLogger("vllm.kvtier")


def level():
    """Of KVTIER_LOG_LEVEL or LMCACHE_LOG_LEVEL; 0, vLLM's own, where neither names
    one: the library says so."""
    name = os.environ.get("KVTIER_LOG_LEVEL", os.environ.get("LMCACHE_LOG_LEVEL", ""))
    number = logging.getLevelName(name.upper())
    return number if isinstance(number, int) else logging.NOTSET


log.setLevel(level())
