# SPDX-License-Identifier: Apache-2.0
"""Pins of requests: repeated until the chunks are stored, and at most max_pinned_size bytes."""

import unittest
from unittest import mock

import fake

fake.stub_vllm()
from kvtier import _lib, vllm_pins  # noqa: E402

SIZE = 100  # bytes of a chunk of each of two groups
N = _lib.CHUNK_BYTES


def chunk(i):
    return i.to_bytes(2, "little") * (N // 2)


def chunks(*numbers):
    return b"".join(map(chunk, numbers))


class Engine:
    """Pins the chunks of self.stored."""

    def __init__(self):
        self.stored = set()
        self.pinned = {}  # (group, tags, chunk) -> seconds of the last pin
        self.calls = self.ends = 0
        self.error = None

    def end_pins(self):
        self.ends += 1

    def pin(self, group, some, tags, seconds):
        self.calls += 1
        if self.error:
            raise self.error
        out = []
        for at in range(0, len(some), N):
            one = some[at:at + N]
            if one in self.stored:
                self.pinned[group, tags, one] = seconds
            out.append(_lib.MEDIUM_STORAGE if one in self.stored else 0)
        return bytes(out)


class Pins(unittest.TestCase):
    def setUp(self):
        self.now = 1000.0
        self.engine = Engine()
        clock = mock.patch.object(vllm_pins, "time", mock.Mock(monotonic=lambda: self.now))
        clock.start()
        self.addCleanup(clock.stop)
        self.pins = self.open(10 * SIZE)

    def open(self, most):
        return vllm_pins.Pins(self.engine, [SIZE, SIZE], most)

    def step(self, seconds=1.0):
        self.now += seconds
        self.pins.work()

    def numbers(self, group=0):
        return sorted(int.from_bytes(one[:2], "little")
                      for g, _, one in self.engine.pinned if g == group)

    def test_a_pin_waits_for_the_store(self):
        self.pins.ask([(0, chunks(1, 2, 3))], None, 60)
        self.step()
        self.assertEqual(self.numbers(), [])
        self.engine.stored.update({chunk(1), chunk(3)})
        self.step()
        self.assertEqual(self.numbers(), [1, 3])
        self.engine.pinned.clear()
        self.engine.stored.add(chunk(2))
        self.step()
        self.assertEqual(self.numbers(), [2])
        self.assertEqual(set(self.engine.pinned.values()), {64})  # of 67.5 s
        calls = self.engine.calls
        self.step()
        self.assertEqual(self.engine.calls, calls)

    def test_steps_in_quick_succession_make_one_try(self):
        self.pins.ask([(0, chunks(1))], None, 60)
        self.step()
        calls = self.engine.calls
        for _ in range(10):
            self.step(0.001)
        self.assertEqual(self.engine.calls, calls)
        self.step(0.02)
        self.assertEqual(self.engine.calls, calls + 1)

    def test_a_chunk_that_is_never_stored_gives_its_bytes_back(self):
        self.pins.ask([(0, chunks(*range(10)))], None, 60)
        self.step(11)  # the last try, because no step came earlier
        self.step(1)
        self.engine.stored.update(map(chunk, range(20)))
        self.pins.ask([(0, chunks(*range(10, 20)))], None, 60)
        self.step()
        self.assertEqual(self.numbers(), list(range(10, 20)))

    def test_the_limit_counts_each_chunk_once(self):
        self.engine.stored.update(map(chunk, range(20)))
        for _ in range(3):
            self.pins.ask([(0, chunks(*range(5))), (1, chunks(*range(4)))], "a%b", 60)
            self.step()
        with self.assertLogs("vllm.kvtier") as logs:
            self.pins.ask([(0, chunks(5, 6))], None, 60)
            self.pins.ask([(0, chunks(6, 7))], None, 60)
        self.pins.ask([(0, chunks(5))], None, 60)
        self.step()
        self.assertEqual((self.numbers(), self.numbers(1)), ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3]))
        self.assertEqual(len(logs.output), 1)
        self.assertIn("1.86e-07 GiB of a request are not pinned: pins already take 8.38e-07",
                      logs.output[0])
        self.assertIn("max_pinned_size", logs.output[0])

    def test_a_pin_that_ends_gives_its_bytes_back(self):
        self.engine.stored.update(map(chunk, range(30)))
        self.pins.ask([(0, chunks(*range(9)))], None, 60)
        self.pins.ask([(0, chunks(0))], None, 600)  # longer
        self.pins.ask([(0, chunks(0))], None, 5)  # no effect
        self.step()
        self.assertEqual(self.engine.ends, 0)
        self.now += 67
        with self.assertLogs("vllm.kvtier"):
            self.pins.ask([(0, chunks(*range(10, 20)))], None, 60)
        self.pins.ask([(0, chunks(*range(10, 19)))], None, 60)
        self.step()
        self.assertEqual(self.numbers(), list(range(9)) + list(range(10, 19)))
        self.assertEqual(self.engine.ends, 1)
        self.assertEqual(self.engine.pinned[0, None, chunk(0)], 674)

    def test_pins_with_and_without_tags_end_at_one_time(self):
        for tags in (None, "a%b"):
            self.pins.ask([(0, chunks(1))], tags, 60)
        self.step(68)
        self.assertEqual((self.engine.ends, self.pins._ends), (1, []))

    def test_without_a_size_nothing_is_pinned(self):
        self.engine.stored.add(chunk(0))
        self.pins = self.open(0)
        with self.assertLogs("vllm.kvtier"):
            self.pins.ask([(0, chunks(0))], None, 60)
        self.step()
        self.assertEqual((self.engine.calls, self.pins.has_pending()), (0, False))

    def test_many_chunks_take_several_calls(self):
        self.pins = self.open(3000 * SIZE)
        self.engine.stored.update(map(chunk, range(2500)))
        self.pins.ask([(0, chunks(*range(2500)))], None, 60)
        self.step()
        self.assertEqual((self.engine.calls, len(self.engine.pinned)), (3, 2500))

    def test_requests_with_common_chunks_pin_them_seldom(self):
        self.engine.stored.update(map(chunk, range(4)))
        for _ in range(1000):
            self.pins.ask([(0, chunks(*range(4)))], None, 60)
            self.step(0.1)
        self.assertLess(self.engine.calls, 20)
        self.assertLess(len(self.pins._ends), 50)

    def test_a_chunk_that_is_not_stored_is_wished_once(self):
        for _ in range(100):
            self.pins.ask([(0, chunks(*range(4)))], None, 60)
        self.step()
        self.assertEqual(self.engine.calls, 1)

    def test_an_error_is_a_warning(self):
        self.engine.error = ValueError("no such group")
        self.pins.ask([(0, chunks(0))], None, 60)
        with self.assertLogs("vllm.kvtier") as logs:
            self.step()
        self.assertIn("no such group", logs.output[0])
        self.assertFalse(self.pins.has_pending())

    def test_an_idle_engine_steps_for_a_short_time(self):
        self.pins.ask([(0, chunks(0))], None, 60)
        self.assertTrue(self.pins.has_pending())
        self.step(2)
        self.assertFalse(self.pins.has_pending())
        self.engine.stored.add(chunk(0))
        self.step()
        self.assertEqual(self.numbers(), [0])

    def test_a_wish_as_long_as_allowed_stays_in_the_range_of_the_call(self):
        self.engine.stored.add(chunk(0))
        self.pins.ask([(0, chunks(0))], None, vllm_pins.MAX_SECONDS)
        self.pins.work()
        self.assertEqual(set(self.engine.pinned.values()), {81000})


if __name__ == "__main__":
    unittest.main()
