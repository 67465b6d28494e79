# SPDX-License-Identifier: Apache-2.0
"""The base class and the prompts of the tests of vLLM's scheduler."""

import random
import unittest

import fake
from kvtier import _lib

ALONE = (10,)  # becomes an Only: a single sliding-window group
PIECES = (32,)  # becomes Pieces: a group of chunked local attention
SEVERAL_GROUPS = False
if fake.HAVE_VLLM:
    import vllm_sim
    from vllm_sim import Only, Sim
    SEVERAL_GROUPS = vllm_sim.KVConnectorTransferResults is not None
    ALONE = Only(ALONE)
    PIECES = tuple(map(vllm_sim.Pieces, PIECES))


def groupings(*windows):
    """Return the lists of sliding windows supported with this vLLM."""
    return [one for one in windows if not one or SEVERAL_GROUPS]


def prompt(seed, n, shared=0):
    """Return n tokens; the first `shared` tokens are equal for all seeds."""
    common = random.Random(1)
    own = random.Random(seed + 100)
    return [common.randrange(3, 1000) for _ in range(shared)] + [
        own.randrange(3, 1000) for _ in range(n - shared)]


@unittest.skipUnless(fake.HAVE_VLLM, "vLLM is not installed")
class Case(unittest.TestCase):
    def setUp(self):
        self.store = fake.Store(8)
        self.addCleanup(fake.install(_lib, self.store))

    def sim(self, windows=(), **kwargs):
        if windows and not SEVERAL_GROUPS:
            self.skipTest("no hybrid attention with this vLLM")
        return Sim(self.store, windows=windows, **kwargs)

    def abort_while_loading(self, sim):
        """Abort request "a" during its load, and finish the other requests."""
        while not sim.engine.loading:
            sim._execute(sim.scheduler.schedule())
        sim.abort("a")
        sim.run()
        sim.check_rest()
