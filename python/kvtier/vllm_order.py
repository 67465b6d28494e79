# SPDX-License-Identifier: Apache-2.0
"""The order in which vLLM starts waiting requests, as far as an answer to a lookup changes it.

vLLM starts no request behind the first request without room.  Loaded requests may be behind: all
in vLLM 0.28, and in vLLM 0.32 behind a request whose load failed.  If the blocks of the loaded
requests are the room, the engine hangs.  vLLM puts a request behind if the answer is undecided.

While a request whose whole load failed waits, vLLM reserves blocks for the request, although the
request has none.  Only loads must leave reserved blocks free, the request's own load as well.  If
such a load waits ahead of the request and has too little room, the engine hangs.

With MultiConnector, the loads of other connectors count as well.
"""


class Order:
    """Requests by id, between the first answer and the allocation of blocks."""

    def __init__(self):
        self._decided = set()  # have an answer; vLLM has not allocated blocks since
        self._loaded = set()  # have all blocks of a load; vLLM has not started them
        self._failed = set()  # have lost all blocks of a load; vLLM has not allocated blocks since
        self._yields = False  # in this step, a request lets loaded or failed requests pass

    def decide(self, request_id, external):
        """Return the answer for a request with `external` tokens to load: `external`, 0 if the
        request has no room for the load beside its own reserved blocks, or None if the request
        must let other requests pass, or must not pass such a request."""
        if request_id in self._loaded:  # vLLM asks, so the request has no blocks
            self._loaded.remove(request_id)
            self._failed.add(request_id)
        has_no_room = request_id in self._decided
        is_failed = request_id in self._failed
        if self._loaded or not is_failed:
            if has_no_room and (self._loaded or self._failed):
                self._yields = True
            if self._yields:
                return None
        if is_failed and has_no_room:
            external = 0
        if external is not None:
            self._decided.add(request_id)
        return external

    def end_step(self):
        """Note that vLLM has asked for all requests that can start in this step."""
        self._yields = False

    def loaded(self, request_id):
        """Note that the request's load has ended, of any connector."""
        self._loaded.add(request_id)

    def forget(self, request_id):
        """Note that vLLM has allocated blocks for the request, or that the request has ended."""
        self._decided.discard(request_id)
        self._loaded.discard(request_id)
        self._failed.discard(request_id)
