# SPDX-License-Identifier: Apache-2.0
"""Lookups of an engine whose ranks run on several hosts.

The scheduler sees neither the host memory nor the directories of another host.  So each worker
looks up the chunks of its own rank: the connector's message of a step contains the questions, the
reports of the workers contain the answers, and the hit is the longest that all ranks can load.
The worker's engine leases the chunks of its answer and reads chunks into host memory as a
scheduler's engine does.  No process keeps a list of the chunks of another host.
"""

import math
import os
import time

from .vllm_log import log

_MARGIN_S = 5.0  # steps that deliver a question and the answers
# A worker leaves out chunks whose life ends within 16 s.  The scheduler asks again after this time,
# so that a load still ends before the life of each chunk.  An unchanged answer comes at once.  A
# result without chunks stays: a worker that does not answer would delay the request again.
_FRESH_S = 5.0


def this_host():
    """Return a text that is equal in two processes only if both see the same /dev/shm."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        device = os.stat("/dev/shm").st_dev
    except OSError:
        boot, device = "", 0
    return "%s %s %d %d" % (os.uname().nodename, boot, device, os.getuid())


class _Question:
    """What the workers are asked about a sequence."""

    __slots__ = ("key", "n_tokens", "turn", "have", "most", "sent", "first", "answers", "hit")

    def __init__(self, key, n_tokens):
        self.key = key
        self.n_tokens = n_tokens  # of the sequence
        self.turn = 0  # number of the last message; each message has other arguments
        self.have = self.most = None  # arguments of the lookup
        self.sent = math.inf  # time of the last message
        self.first = math.inf  # time of the first answer to the last message
        self.answers = {}  # rank -> tokens, of the last message
        self.hit = None  # the result in tokens


class Lookups:
    """A scheduler's lookups by questions to the workers: replaces the methods lookup(), wanted()
    and release() of _lib.Engine."""

    def __init__(self, engine, settings, n_ranks, has_windows):
        self._chunk = engine.chunk_tokens
        self._n_ranks = n_ranks
        self._has_windows = has_windows
        # A worker leases the chunks of its answer for pin_timeout_sec.
        self._valid_s = float(settings.get("pin_timeout_sec") or 0) / 2
        self._wait_s = min(self._valid_s, _MARGIN_S
                           + (settings.get("lookup_timeout_ms") or 0) / 1000
                           + float(settings.get("blocking_timeout_secs") or 0))
        self._by_seq = {}  # sequence -> _Question
        self._by_key = {}
        self._next_key = 0
        self._asks = {}  # key -> (turn, have, most, chunks or None, tags), not sent yet
        self._releases = []  # keys
        self._warned = False

    def lookup(self, seq, have_tokens, max_tokens):
        """Return the number of tokens that all ranks can load, or None: not known yet, repeat
        the lookup later."""
        n_tokens = seq.n_tokens()
        most = min(max_tokens, n_tokens)
        if most <= have_tokens:
            return 0
        question = self._question(seq, n_tokens)
        now = time.monotonic()
        has_result = question.hit is not None or self._is_answered(question)
        end = question.sent + self._valid_s
        if question.hit != 0:
            end = min(end, question.first + _FRESH_S)
        if (question.most != most or have_tokens < question.have
                or (has_result and now >= end)):
            question.have, question.most = have_tokens, most
            self._ask(question, seq, most)
        if question.hit is None:
            self._conclude(question, seq, now)
        if question.hit is None:
            return None
        return question.hit if question.hit > have_tokens else 0

    def _question(self, seq, n_tokens):
        question = self._by_seq.get(seq)
        if question is not None and question.n_tokens != n_tokens:
            self.release(seq)  # the workers know the sequence without the appended tokens
            question = None
        if question is None:
            question = _Question(self._next_key, n_tokens)
            self._next_key += 1
            self._by_seq[seq] = self._by_key[question.key] = question
        return question

    def _ask(self, question, seq, most):
        """Put a question about the longest hit of at most `most` tokens into the next message."""
        unsent = self._asks.get(question.key)
        chunks = None
        if unsent is not None:
            chunks = unsent[3]
        elif question.turn == 0:
            chunks = seq.chunks(0, -(-question.n_tokens // self._chunk))
        question.turn += 1
        question.sent = question.first = math.inf
        question.answers = {}
        question.hit = None
        self._asks[question.key] = question.turn, question.have, most, chunks, seq.tags

    def _is_answered(self, question):
        return len(question.answers) == self._n_ranks

    def _conclude(self, question, seq, now):
        """Set the result if all ranks have answered, or if the time is over."""
        if self._is_answered(question):
            shortest, longest = min(question.answers.values()), max(question.answers.values())
            if shortest == longest or not shortest or not self._has_windows:
                question.hit = shortest
            else:
                # A rank with a longer hit may lack the windows of the shorter hit.
                self._ask(question, seq, shortest)
        elif now >= question.sent + self._wait_s:
            question.hit = 0
            if not self._warned:
                self._warned = True
                log.warning("kvtier: a prompt is computed: only %d of %d workers answered a "
                            "lookup within %.0f s; later prompts are looked up",
                            len(question.answers), self._n_ranks, self._wait_s)

    def answered(self, answers):
        """Note the workers' answers {(key, turn): {rank: tokens}}.  The leases of earlier
        answers may end before a late answer."""
        now = time.monotonic()
        for (key, turn), tokens in answers.items():
            question = self._by_key.get(key)
            if (question is not None and question.turn == turn
                    and now < question.sent + self._valid_s):
                question.answers.update(tokens)
                question.first = min(question.first, now)

    def take_messages(self):
        """Return (questions, keys of released sequences) for the workers, or None."""
        if not self._asks and not self._releases:
            return None
        now = time.monotonic()
        for key in self._asks:
            self._by_key[key].sent = now
        messages = self._asks, self._releases
        self._asks, self._releases = {}, []
        return messages

    def wanted(self, seq):
        return ()  # the workers read ahead without a request

    def release(self, seq):
        """End the leases of the workers."""
        question = self._by_seq.pop(seq, None)
        if question is None:
            return
        del self._by_key[question.key]
        unsent = self._asks.pop(question.key, None)
        if unsent is None or unsent[3] is None:
            self._releases.append(question.key)


class _Sought:
    """A sequence in a worker: the arguments of the scheduler's last question."""

    __slots__ = ("seq", "turn", "have", "most")

    def __init__(self, seq):
        self.seq = seq  # None: the sequence could not be made


class Answers:
    """A worker's answers: looks up the chunks of the worker's own rank."""

    def __init__(self, engine, rank):
        self._engine = engine
        self._rank = rank
        self._sought = {}  # key -> _Sought
        self._open = set()  # keys of questions without an answer
        self._found = {}  # (key, turn) -> {rank: tokens}, not reported yet

    def receive(self, messages):
        """Process the scheduler's questions and releases of a step."""
        asks, releases = messages
        for key in releases:
            self._open.discard(key)
            self._free(self._sought.pop(key, None))
        for key, (turn, have, most, chunks, tags) in asks.items():
            if chunks is not None:
                self._sought[key] = _Sought(self._seq(chunks, tags))
            sought = self._sought[key]
            sought.turn, sought.have, sought.most = turn, have, most
            self._open.add(key)
        self._look()

    def take(self):
        """Return the answers since the last call: {(key, turn): {rank: tokens}}."""
        if self._open:
            self._look()
        found, self._found = self._found, {}
        return found

    def _look(self):
        for key in list(self._open):
            sought = self._sought[key]
            hit = self._lookup(sought)
            if hit is not None:
                self._open.remove(key)
                self._found[key, sought.turn] = {self._rank: hit}

    def _seq(self, chunks, tags):
        try:
            return self._engine.seq_from_chunks(chunks, tags)
        except (OSError, ValueError) as e:
            log.warning("kvtier: a lookup by this worker finds nothing: %s", e)
            return None

    def _lookup(self, sought):
        if sought.seq is None:
            return 0
        try:
            return self._engine.lookup(sought.seq, sought.have, sought.most)
        except (OSError, ValueError) as e:
            log.warning("kvtier: a lookup by this worker finds nothing: %s", e)
            return 0

    def _free(self, sought):
        if sought is not None and sought.seq is not None:
            self._engine.release(sought.seq)
            sought.seq.free()

    def close(self):
        while self._sought:
            self._free(self._sought.popitem()[1])
        self._open.clear()
