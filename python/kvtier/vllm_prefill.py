# SPDX-License-Identifier: Apache-2.0
"""The time in which the engine computes prompts, for load_policy: faster."""

import collections
import time

# vLLM schedules a few steps before the result of the first; more are steps without a result.
_MOST_STEPS = 64


class Prefill:
    """Measures the steps of a scheduler that consist mostly of prompts' tokens."""

    def __init__(self, engine, now=time.monotonic_ns):
        self._engine = engine
        self._now = now
        self._steps = collections.deque(maxlen=_MOST_STEPS)
        self._ended = 0  # time of the last result

    def scheduled(self, scheduled, requests):
        """Note a step.  scheduled: {request id: tokens of the step}; requests: {request id:
        request before the step}."""
        n_tokens = n_prompt = positions = 0
        for request_id, n in scheduled.items():
            n_tokens += n
            request = requests(request_id)
            if request is None:
                continue
            start = request.num_computed_tokens
            positions += n * start + n * (n - 1) // 2
            n_prompt += max(0, min(n, request.num_prompt_tokens - start))
        mostly = 2 * n_prompt > n_tokens
        self._steps.append((self._now(), n_tokens if mostly else 0, positions))

    def computed(self):
        """Note the result of the oldest step.  Steps run one after the other."""
        if not self._steps:
            return
        begun, n_tokens, positions = self._steps.popleft()
        begun, self._ended = max(begun, self._ended), self._now()
        if n_tokens:
            self._engine.note_prefill(n_tokens, positions, self._ended - begun)
