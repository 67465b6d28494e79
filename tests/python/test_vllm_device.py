# SPDX-License-Identifier: Apache-2.0
"""vLLM's scheduler and the connector with KV on torch_device's device.

Needs vLLM, libkvtier.so and a C++ compiler, no model."""

import tempfile
import unittest
from unittest import mock

import fake
import test_vllm_disorder
import torch_device
from torch_device import late
from vllm_case import ALONE, groupings

DEVICE = torch_device.NAME
MISSING = torch_device.why_not()
if not fake.HAVE_VLLM or not fake.have_library():
    MISSING = "vLLM or libkvtier.so is not there"
else:
    from vllm_sim import Sim


def setUpModule():
    if MISSING:
        raise unittest.SkipTest(MISSING)
    torch_device.start()


class Scheduling(unittest.TestCase):
    """Requests in vLLM's real scheduler, in random order, alternately with KV on the device
    and with KV in host memory; both store in one directory."""

    def alternate(self, windows, resets=False, **extra):
        late(100)
        self.addCleanup(late, 0)
        loaded = []
        with tempfile.TemporaryDirectory() as folder:
            for seed, device in enumerate((DEVICE, None, DEVICE)):
                def start(*args, _device=device, **kwargs):
                    return Sim(*args, device=_device, **kwargs)
                with mock.patch.object(test_vllm_disorder, "Sim", start):
                    loaded.append(test_vllm_disorder.Real.storm(
                        self, folder, 1 + seed % 2, windows, seed, resets=resets, **extra))
        return loaded

    def test_chunks_are_exchanged_with_engines_on_the_cpu(self):
        for windows in groupings((), (13, 30), ALONE):
            with self.subTest(windows=windows):
                self.assertGreater(min(self.alternate(windows)[1:]), 0)

    def test_resets_and_partial_chunks(self):
        self.assertGreater(sum(self.alternate((), resets=True)), 0)
        self.assertGreater(min(self.alternate((), save_unfull_chunk=True,
                                              save_decode_cache=True)[1:]), 0)


if __name__ == "__main__":
    unittest.main()
