# SPDX-License-Identifier: Apache-2.0
"""kvtier under import paths of LMCache: the wheel kvtier-lmcache-names.  The import fails
if LMCache is installed."""

import importlib.metadata


def _refuse_beside_lmcache():
    try:
        importlib.metadata.distribution("lmcache")
    except importlib.metadata.PackageNotFoundError:
        return
    raise ImportError(
        "lmcache: LMCache is installed, and kvtier-lmcache-names, whose file this is, "
        "stands in its way: run pip uninstall kvtier-lmcache-names, then pip install "
        "--force-reinstall --no-deps lmcache, whose files it may have replaced.")


_refuse_beside_lmcache()

from kvtier import LMCacheEngineBuilder  # noqa: E402

__all__ = ["LMCacheEngineBuilder"]
