# SPDX-License-Identifier: Apache-2.0
"""The order of events in staging memory, with a fake engine and torch_device's device.

Needs PyTorch with headers and a C++ compiler."""

import errno
import logging
import time
import unittest
from array import array
from unittest import mock

import fake

fake.stub_vllm()
import torch_device  # noqa: E402
from kvtier import _lib, vllm_model, vllm_staging  # noqa: E402
from kvtier.vllm_log import log  # noqa: E402
from torch_device import check_units, held, late  # noqa: E402

MISSING = torch_device.why_not()
DEVICE = torch_device.NAME
if not MISSING:
    import torch


def setUpModule():
    if MISSING:
        raise unittest.SkipTest(MISSING)
    torch_device.start()


class Pieces(unittest.TestCase):
    """The order of events in loads, with a fake engine."""

    def setUp(self):
        late(1000)
        self.addCleanup(late, 0)
        self.store = fake.Store(8)
        self.info = vllm_model.GroupInfo()
        self.info.kind, self.info.window = _lib.GROUP_FULL, 0
        self.info.block_tokens, self.info.blocks_per_chunk = 4, 2
        self.info.n_heads, self.info.head_bytes, self.info.block_bytes = 1, 4, 32
        self.info.layout, self.info.layers, self.info.replicated = "l", ["x", "y"], 0
        self.info.format = _lib.FORMAT_OPAQUE
        self.engine = fake.Engine(self.store.config(), _lib.ROLE_WORKER, [self.info.to_c()],
                                  None)
        self.kv = {name: torch.zeros(64, 1, 4, 2, device=DEVICE) for name in "xy"}
        unit = sum(vllm_staging._unit_bytes([self.info]))
        self.mover = self.make(5 * unit)
        self.seq = fake.Seq(self.store, range(80), "")
        host = torch.arange(512.).view(64, 1, 4, 2)
        for i, tensor in enumerate(self.kv.values()):
            tensor.copy_(host + 1000 * i)
        self.host = host

    def make(self, n_bytes, timeout_s=60):
        mover = vllm_staging.Staging(self.engine, [self.info], self.kv, 64, n_bytes, timeout_s)
        self.addCleanup(mover.close)
        return mover

    def io(self, n, blocks):
        return 0, self.seq.chunks(0, n), array("i", blocks).tobytes(), None

    def save(self, n):
        self.mover.store([self.io(n, range(1, 2 * n + 1))])
        for tensor in self.kv.values():
            tensor.zero_()
        check_units(self, self.mover)

    def loaded(self):
        """Return the blocks on the device that are not 0, in the first layer."""
        found = self.kv["x"].cpu().flatten(1)
        return {int(i): found[i].tolist() for i in found.sum(1).nonzero().flatten()}

    def expected(self, pairs):
        return {new: self.host[old].flatten().tolist() for old, new in pairs}

    def test_a_save_with_few_units_waits_for_the_device_only(self):
        self.save(10)  # through 2 units
        self.assertEqual(len(self.store.chunks), 10)

    def test_a_save_keeps_tags_and_time_to_live(self):
        with mock.patch.object(self.engine, "store") as store:
            self.mover.store([(*self.io(3, range(1, 7))[:3], "user%a", 60)])
            check_units(self, self.mover)
        self.assertEqual([call.args[0][0][3:] for call in store.call_args_list],
                         [("user%a", 60)] * 3)

    def test_an_engine_that_fails_in_any_way_keeps_no_unit(self):
        for error in OSError, MemoryError, AttributeError:
            with mock.patch.object(self.engine, "store", side_effect=error("no")):
                self.save(10)  # through 2 units; a lost unit would stop the save
        self.assertEqual(len(self.store.chunks), 0)

    def test_a_chunk_with_a_missing_block_is_not_stored(self):
        self.mover.store([self.io(3, [1, 2, 0, 3, -1, 4])])
        check_units(self, self.mover)
        self.assertEqual(len(self.store.chunks), 1)

    def test_a_load_with_few_units_goes_on_when_units_are_free(self):
        self.save(10)
        load = self.mover.load([self.io(10, range(30, 50))])
        n_waits, done = 0, []
        while not done:
            self.assertLessEqual(len(self.engine.loading), 3)
            if self.engine.loading:
                self.engine.complete(self.engine.loading[-1])
            n_waits += 1
            done = self.mover.poll()
            time.sleep(0.001)
        self.assertEqual(done, [load])
        self.assertGreaterEqual(n_waits, 10)
        self.assertEqual([load.status(0, i) for i in range(10)], [0] * 10)
        self.assertEqual(self.loaded(), self.expected(zip(range(1, 21), range(30, 50))))
        check_units(self, self.mover)

    def test_blocks_that_are_not_wanted_are_not_written(self):
        self.save(2)
        self.mover.load([self.io(2, [-1, 40, 41, 0])])
        while self.engine.loading:
            self.engine.complete(self.engine.loading[0])
        self.assertEqual(len(self.mover.poll()), 1)
        self.assertEqual(self.loaded(), self.expected([(2, 40), (3, 41)]))
        check_units(self, self.mover)

    def test_a_cancelled_load_writes_nothing_more(self):
        self.save(10)
        load = self.mover.load([self.io(10, range(30, 50))])
        first = self.engine.loading[0]
        self.engine.complete(first)
        self.assertEqual(self.mover.poll(), [])
        before = self.loaded()
        self.assertEqual(set(before), {30, 31})
        for one in list(self.engine.loading):  # read, but not polled
            self.engine.complete(one)
        load.cancel()
        self.assertEqual(self.mover.poll(), [load])
        self.assertEqual(self.loaded(), before)
        self.assertEqual(load.status(0, 0), 0)
        self.assertEqual({load.status(0, i) for i in range(1, 10)}, {-errno.ECANCELED})
        self.assertEqual(self.engine.loading, [])
        check_units(self, self.mover)

    def test_a_cancelled_load_keeps_its_units_until_the_engine_has_ended(self):
        self.save(3)
        load = self.mover.load([self.io(3, range(30, 36))])
        load.cancel()
        self.assertEqual((self.mover.poll(), self.mover._load_units), ([], []))
        for one in list(self.engine.loading):
            self.assertTrue(one.cancelled)
            self.engine.complete(one)
        self.assertEqual(self.mover.poll(), [load])
        self.assertEqual(self.loaded(), {})
        check_units(self, self.mover)

    def test_no_chunk_after_a_failed_chunk_is_read(self):
        self.save(10)
        load = self.mover.load([self.io(10, range(30, 50))])
        self.assertEqual(len(self.engine.loading), 3)
        self.engine.complete(self.engine.loading[1], lambda io, chunk: True)
        self.assertEqual(self.mover.poll(), [])
        self.assertEqual(len(self.engine.loading), 2)
        for one in list(self.engine.loading):
            self.engine.complete(one)
        self.assertEqual(self.mover.poll(), [load])
        self.assertEqual([load.status(0, i) for i in range(4)],
                         [0, -errno.EIO, 0, -errno.ECANCELED])
        self.assertEqual(set(self.loaded()), {30, 31, 34, 35})
        check_units(self, self.mover)

    def test_a_load_ends_after_the_time_limit(self):
        self.save(10)
        load = self.mover.load([self.io(10, range(30, 50))])
        load.until = time.monotonic() - 1
        self.assertEqual(self.mover.poll(), [])
        self.assertTrue(all(one.cancelled for one in self.engine.loading))
        for one in list(self.engine.loading):
            self.engine.complete(one)
        self.assertEqual(self.mover.poll(), [load])
        self.assertEqual(self.loaded(), {})

    def test_a_load_that_the_engine_refuses_fails_alone(self):
        self.save(3)
        with mock.patch.object(self.engine, "load", side_effect=OSError(12, "no memory")):
            with self.assertLogs(log, logging.WARNING):
                load = self.mover.load([self.io(3, range(30, 36))])
        self.assertEqual(self.mover.poll(), [load])
        self.assertEqual(load.status(0, 0), -errno.EIO)
        check_units(self, self.mover)

    def test_a_unit_is_not_read_into_before_the_device_has_read_the_unit(self):
        self.save(4)
        with held():
            self.mover.load([self.io(4, range(30, 38))])
            for one in list(self.engine.loading):
                self.engine.complete(one)
            self.mover.poll()
            self.assertEqual(self.engine.loading, [])  # the fourth chunk waits
        self.mover.poll()
        self.assertEqual(len(self.engine.loading), 1)
        self.engine.complete(self.engine.loading[0])
        self.assertEqual(len(self.mover.poll()), 1)
        self.assertEqual(set(self.loaded()), set(range(30, 38)))

    def test_without_events_a_unit_is_free_after_the_call(self):
        with mock.patch.object(getattr(torch, DEVICE), "Event", None):
            self.mover = self.make(5 * sum(vllm_staging._unit_bytes([self.info])))
        self.save(10)
        self.mover.load([self.io(10, range(30, 50))])
        done = []
        while not done:
            for one in list(self.engine.loading):
                self.engine.complete(one)
            done = self.mover.poll()
        self.assertEqual(self.loaded(), self.expected(zip(range(1, 21), range(30, 50))))

    def test_a_device_that_hangs_does_not_hang_the_close(self):
        mover = self.make(5 * sum(vllm_staging._unit_bytes([self.info])), timeout_s=0.05)
        with held(), self.assertLogs(log, logging.WARNING) as logged:
            mover.store([self.io(1, [1, 2])])
            self.assertFalse(mover.close())
        self.assertRegex(logged.output[0], "has not ended its copies")


if __name__ == "__main__":
    unittest.main()
