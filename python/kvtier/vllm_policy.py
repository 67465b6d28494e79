# SPDX-License-Identifier: Apache-2.0
"""kv_load_failure_policy: vLLM's treatment of requests after a failed load.

vLLM's default, "fail", ends the request with an error; with "recompute" vLLM
computes the prompt.  A default and an explicit "fail" look alike in vLLM's
configuration, so kvtier changes the policy only if the command line proves that "fail"
is the default.
"""

import sys

from .vllm_log import log

_FIELD = "kv_load_failure_policy"


def _is_default(argv):
    """Return True if argv has all of vLLM's KVTransferConfig, without a policy: a
    configuration file or a Python program may name a policy outside argv."""
    given = [argument.replace("_", "-") for argument in argv]
    return (any(argument.startswith("--kv-transfer-config") for argument in given)
            and "--config" not in given  # vLLM merges a file's members with argv
            and not any(_FIELD.replace("_", "-") in argument for argument in given))


def apply(transfer, parent):
    """Make vLLM recompute failed loads unless the user chose a policy.

    transfer  the KVTransferConfig of this connector
    parent    the parent connector, or None

    vLLM reads the policy after creating the connectors.  Under MultiConnector vLLM
    reads only the parent's policy, which also decides for the other connectors: kvtier
    leaves the parent's policy unchanged.
    """
    if parent is not None:
        transfer = parent._kv_transfer_config
    if getattr(transfer, _FIELD, "recompute") != "fail":
        return
    if parent is None and _is_default(sys.argv):
        transfer.kv_load_failure_policy = "recompute"
        log.info("kvtier: kv_load_failure_policy is at its default: set to "
                 "\"recompute\", so that a failed load costs time, not the request")
        return
    log.warning("kvtier: kv_load_failure_policy is \"fail\": a request ends with an "
                "error if a chunk cannot be loaded; \"recompute\" beside "
                "\"kv_connector\": \"%s\" computes the prompt instead",
                transfer.kv_connector)
