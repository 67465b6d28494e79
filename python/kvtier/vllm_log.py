# SPDX-License-Identifier: Apache-2.0
"""The connector's log: below vLLM's own logger, so that its lines are shown."""

import logging

log = logging.getLogger("vllm.kvtier")
