# SPDX-License-Identifier: Apache-2.0
"""The connector's logger, a child of vLLM's logger, so that vLLM shows the lines.  The level
is the level of the library.  Lines below VLLM_LOGGING_LEVEL stay hidden."""

import logging
import os

log = logging.getLogger("vllm.kvtier")


def level():
    """Return the level named by KVTIER_LOG_LEVEL or LMCACHE_LOG_LEVEL.  Without a valid
    name return 0, vLLM's own level: the library reports an unknown name."""
    name = os.environ.get("KVTIER_LOG_LEVEL", os.environ.get("LMCACHE_LOG_LEVEL", ""))
    number = logging.getLevelName(name.upper())
    return number if isinstance(number, int) else logging.NOTSET


log.setLevel(level())
