# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode in two engines: what the prefill engine tells the decode engine about a
prompt, and how the decode engine waits for the prompt's chunks.

The members of kv_transfer_params are those of vLLM's NixlConnector, so the same proxies work:
docs/disaggregation.md.
"""

import time

from .vllm_log import log

_SHORTEST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25


def answer(params, n_tokens):
    """Return the kv_transfer_params of the answer to a request with `params`: n_tokens leading
    tokens of the prompt are stored or will be.  None if the client does not ask."""
    if not isinstance(params, dict) or params.get("do_remote_decode") is not True:
        return None
    return {"do_remote_prefill": True, "do_remote_decode": False,
            "remote_num_tokens": n_tokens}


def expected(params):
    """Return the number of leading tokens that a prefill engine has stored or will store; None:
    no prefill engine with kvtier had the request.  ValueError: the number is not valid."""
    n = params.get("remote_num_tokens")
    if params.get("do_remote_prefill") is not True or n is None:
        return None
    if type(n) is not int or n < 0:
        raise ValueError("remote_num_tokens in kv_transfer_params is %.80r and must be the "
                         "number in the prefill engine's answer" % (n,))
    return n


class Wait:
    """A request's wait for the chunks that the prefill engine is still writing."""

    __slots__ = ("_n_tokens", "_began", "_end", "_next", "_pause")

    def __init__(self, n_tokens, limit_s):
        self._n_tokens = n_tokens
        self._began = time.monotonic()
        self._end = self._began + limit_s
        self._next = 0
        self._pause = _SHORTEST_PAUSE_S

    def is_pausing(self):
        """Return True if the time of the next lookup has not come."""
        return time.monotonic() < self._next

    def goes_on(self, hit, limit, unit):
        """Return True if a lookup with the answer `hit` must be repeated.  limit: tokens of the
        longest allowed hit.  unit: every hit is a multiple of `unit` tokens."""
        wanted = min(self._n_tokens, limit) // unit * unit
        if hit >= wanted:
            return False
        now = time.monotonic()
        if now >= self._end:
            log.warning(
                "kvtier: a request waited %.1f s for %d tokens that the prefill engine stored, "
                "and found %d; the rest is computed.  Do both engines have the same storage, "
                "model and chunk_size?", now - self._began, wanted, hit)
            return False
        self._next = now + self._pause
        self._pause = min(1.5 * self._pause, _LONGEST_PAUSE_S)
        return True
