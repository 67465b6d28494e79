# SPDX-License-Identifier: Apache-2.0
"""All end-to-end tests, in the order in which they run."""
import cases_restart  # noqa: F401
import cases_sharing  # noqa: F401
import cases_stores  # noqa: F401
import cases_disaggregated  # noqa: F401
import cases_requests  # noqa: F401
import cases_damage  # noqa: F401
import cases_hybrid  # noqa: F401
import cases_states  # noqa: F401
import cases_vllm  # noqa: F401
import cases_events  # noqa: F401
import cases_parallel  # noqa: F401
import cases_inert  # noqa: F401
from case import TESTS  # noqa: F401
