# SPDX-License-Identifier: Apache-2.0
"""KV on a device that the library does not reach: torch_device's, which is not the CPU.

The host cannot access the device's memory, and every operation is late.  Needs PyTorch with
headers, a C++ compiler and libkvtier.so."""

import errno
import glob
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import fake

fake.stub_vllm()
import test_tensors  # noqa: E402
import torch_device  # noqa: E402
from kvtier import vllm_staging  # noqa: E402
from kvtier.vllm_log import log  # noqa: E402
from test_logic import output, request  # noqa: E402
from test_tensors import BLOCKS, CHUNK, LAYERS, TOKENS, Side  # noqa: E402
from torch_device import check_units, held, late  # noqa: E402
from test_views import (  # noqa: E402
    FullAttentionSpec, MLAAttentionSpec, Object, SlidingWindowSpec)

MISSING = torch_device.why_not() or (None if fake.have_library() else "no libkvtier.so")
DEVICE = torch_device.NAME
HEADS = 4
if not MISSING:
    import torch


def setUpModule():
    if MISSING:
        raise unittest.SkipTest(MISSING)
    torch_device.start()


def noise(tensor, seed):
    """Fill a tensor in host memory with bits that depend on the seed."""
    bits = torch.Generator().manual_seed(seed)
    tensor.copy_(torch.randint(-1 << 15, 1 << 15, tensor.shape, generator=bits)
                 .to(torch.int16).view(torch.bfloat16))


def fused(order, content=256, heads=HEADS, groups=1):
    """Return a function that makes vLLM's tensors [block, head, token, content] on a
    device; heads 0: [block, token, content]."""
    def make(device):
        kv = test_tensors.tensors(order, groups, heads or 1, content, device)
        return kv if heads else {name: one[:, 0] for name, one in kv.items()}
    return make


def parts_of(content, rows=False, heads=HEADS):
    """Return a function that makes several tensors [block, token, head, content] for each
    layer, as plug-ins do.  rows: the first two axes are one axis, with a block more."""
    def make(device):
        n = BLOCKS + rows
        shape = (n * TOKENS,) if rows else (n, TOKENS)
        return {"0.%d" % layer: tuple(
            torch.zeros(*shape, heads, size, dtype=torch.bfloat16, device=device)
            for size in content) + (None,) * rows for layer in range(LAYERS)}
    return make


def each(one):
    """Return the tensors of a layer."""
    return [t for t in one if t is not None] if isinstance(one, tuple) else [one]


def logical(one):
    """Return a layer's KV as [block, head, token, content] in host memory."""
    if not isinstance(one, tuple):
        one = one.cpu()
        return one if one.dim() == 4 else one[:, None]
    tensors = [t.cpu() for t in each(one)]
    if tensors[0].dim() == 3:
        tensors = [t.unflatten(0, (-1, TOKENS)) for t in tensors]
    return torch.cat(tensors, -1).transpose(1, 2)


def attention():
    return FullAttentionSpec()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        late(300)
        self.addCleanup(late, 0)

    as_seen = staticmethod(lambda one: one)  # the connector's form of a tensor

    def side(self, specs, kv, **extra):
        device = each(kv["0.0"])[0].device.type
        kv = {name: self.as_seen(one) for name, one in kv.items()}
        return Side(self.folder, specs, kv, **dict(
            dict(device_type="cuda" if device == "cpu" else device), **extra))

    def save(self, specs, make, device, n, tables, **extra):
        """Compute and save a prompt of n tokens in the blocks `tables`.  Return the KV in
        host memory.  The model overwrites the blocks directly after the step."""
        kv, source = make(device), make("cpu")
        for seed, one in enumerate(source.values()):
            for tensor in each(one):
                noise(tensor, seed)
        side = self.side(specs, kv, **extra)
        req = request("a", n)
        self.assertEqual(side.look_up(req), (0, False))
        side.scheduler.update_state_after_alloc(
            req, Object(get_block_ids=lambda: tables), 0)

        def compute():
            for name, one in kv.items():
                for tensor, value in zip(each(one), each(source[name])):
                    tensor.copy_(value, non_blocking=True)
        side.step(output({"a": n}, {"a": tables}), compute)
        for one in kv.values():
            for tensor in each(one):
                tensor.zero_()
        self.check_units(side)
        side.close()
        return {name: logical(one) for name, one in source.items()}

    def load(self, specs, make, device, n, hit, tables, **extra):
        """Load `hit` of n tokens into the blocks `tables` while the device still writes the
        blocks for an earlier request.  Return (KV in host memory, failures)."""
        kv = make(device)
        side = self.side(specs, kv, **extra)
        req = request("b", n)
        self.assertEqual(side.look_up(req), (hit, bool(hit)))
        failed = None
        if hit:
            side.scheduler.update_state_after_alloc(
                req, Object(get_block_ids=lambda: tables), hit)

            def last_use():
                for one in kv.values():
                    for tensor in each(one):
                        tensor.fill_(7)
            failed = self.finish(side, "b", side.step(output(), last_use))
        after = {name: logical(one) for name, one in kv.items()}
        self.check_units(side)
        side.close()
        return after, failed

    def finish(self, side, name, done=()):
        until = time.monotonic() + 60
        while name not in done:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.001)
            done = side.step(output())
        return side.failed

    def check_units(self, side):
        """Check that in the end no unit of the staging memory is in use."""
        mover = side.worker._worker._mover
        if isinstance(mover, vllm_staging.Staging):
            check_units(self, mover)

    def check(self, before, after, pairs, last, group=0, heads=HEADS):
        """Check the loaded blocks bit for bit, and that no other block was written."""
        for layer in range(LAYERS):
            name = "%d.%d" % (group, layer)
            was, now = (kv[name].contiguous().view(torch.int16) for kv in (before, after))
            for i, (old, new) in enumerate(pairs):
                n = last if i + 1 == len(pairs) else TOKENS
                self.assertTrue(torch.equal(was[old, :, :n], now[new, :, :n]),
                                "layer %d, block %d" % (layer, new))
            others = sorted(set(range(BLOCKS)) - {new for _, new in pairs})
            self.assertTrue(group or bool((after[name][others] == 7).all()))

    def round_trip(self, spec, makes, devices, n=200, hit=192, **extra):
        size = -(-n // TOKENS)
        old = list(range(size, 0, -1))
        new = [20 + (7 * i) % size for i in range(size)]
        with tempfile.TemporaryDirectory() as self.folder:
            before = self.save([spec], makes[0], devices[0], n, (old,), **extra)
            after, failed = self.load([spec], makes[1], devices[1], n, hit, (new,), **extra)
            self.assertEqual(failed, (set(), set()))
        used = -(-hit // TOKENS)
        self.check(before, after, list(zip(old, new))[:used], hit - (used - 1) * TOKENS)

    def both_ways(self, spec, make, other, **extra):
        """Exchange chunks between the device with `make` and an engine on the CPU with
        `other`, and between two devices."""
        for makes, devices in (((make, other), (DEVICE, "cpu")),
                               ((other, make), ("cpu", DEVICE)),
                               ((make, make), (DEVICE, DEVICE))):
            with self.subTest(devices=devices, **extra):
                self.round_trip(spec, makes, devices, **extra)


class TheDevice(unittest.TestCase):
    def test_the_host_cannot_access_its_memory(self):
        died = subprocess.run([sys.executable, "-B", "-c", """
import ctypes, torch, torch_device
torch_device.start()
tensor = torch.zeros(8, device=torch_device.NAME)
print(tensor.cpu().sum(), flush=True)
ctypes.string_at(tensor.data_ptr(), 4)
"""], cwd=os.path.dirname(os.path.abspath(__file__)), stdout=subprocess.PIPE)
        self.assertEqual((died.stdout, died.returncode),
                         (b"tensor(0.)\n", -signal.SIGSEGV))

    def test_operations_are_late(self):
        host = torch.zeros(4, pin_memory=True)
        with held():
            host.copy_(torch.ones(4, device=DEVICE), non_blocking=True)
            event = getattr(torch, DEVICE).Event()
            event.record()
            self.assertEqual((host.sum().item(), event.query()), (0, False))
        event.synchronize()
        self.assertEqual(host.sum().item(), 4)


class Chunks(Case):
    def test_vllms_tensors_in_each_order(self):
        for order, other in (("LBHNC", "LBNHC"), ("LBNHC", "BLHNC"), ("BLHNC", "BLNHC"),
                             ("BLNHC", "LBHNC")):
            with self.subTest(order=order):
                self.both_ways(attention(), fused(order), fused(other))

    def test_copies_do_not_wait_for_the_device(self):
        device = torch_device.start()
        begun = device.device_n_async()
        self.round_trip(attention(), [fused("LBHNC")] * 2, [DEVICE] * 2)
        # 3 chunks: one copy of each chunk and of the chunk's block ids in each direction.
        self.assertEqual(device.device_n_async() - begun, 12)

    def test_latent_vectors(self):
        make = fused("LBHNC", 576, heads=0)
        self.both_ways(MLAAttentionSpec(), make, make)

    def test_elements_of_fp8(self):
        self.as_seen = lambda one: (
            one.view(torch.float8_e4m3fn) if one.device.type == DEVICE else one)
        self.both_ways(attention(), fused("LBHNC"), fused("LBHNC"))

    def test_a_partial_chunk(self):
        self.both_ways(attention(), fused("LBNHC"), fused("LBHNC"), hit=199,
                       save_unfull_chunk=True)

    def test_separate_tensors_of_keys_and_values(self):
        for rows in (False, True):
            self.both_ways(attention(), parts_of((128, 128), rows), fused("LBHNC"))

    def test_separate_tensors_of_a_latent_vector(self):
        self.both_ways(MLAAttentionSpec(), parts_of((512, 64), heads=1),
                       fused("LBHNC", 576, heads=0))

    def test_blocks_that_a_backend_has_cut(self):
        def halves(order):
            def make(device):
                n, sizes = 2 * BLOCKS, (HEADS, TOKENS // 2)
                sizes = sizes if order == "HN" else sizes[::-1]
                whole = [torch.zeros(n, *sizes, 256, dtype=torch.bfloat16, device=device)
                         for _ in range(LAYERS)]
                return {"0.%d" % i: one if order == "HN" else one.transpose(1, 2)
                        for i, one in enumerate(whole)}
            return make
        plain = logical

        def joined(one):
            if one.shape[0] == BLOCKS:
                return plain(one)
            return one.cpu().unflatten(0, (BLOCKS, 2)).transpose(1, 2).flatten(2, 3)
        with mock.patch.dict(globals(), logical=joined):
            for order in ("HN", "NH"):
                self.both_ways(attention(), halves(order), fused("LBHNC"))

    def test_a_prompt_larger_than_the_staging_memory(self):
        """32 MiB hold two pieces at a time; the prompt has 8 chunks."""
        spec = attention()
        spec.head_size, spec.page_size_bytes = 4096, 2 * HEADS * TOKENS * 4096 * 2
        make = fused("LBHNC", 2 * 4096)
        self.round_trip(spec, (make, make), (DEVICE, DEVICE), n=288, hit=256,
                        max_local_cpu_size=0.1)

    def test_groups_that_share_their_memory(self):
        if test_tensors.connector.KVConnectorTransferResults is None:
            self.skipTest("no hybrid attention with this vLLM")
        specs = [attention(), SlidingWindowSpec()]
        specs[1].sliding_window = 1000
        make = fused("LBHNC", groups=2)
        old = list(range(1, 14)), list(range(14, 27))
        new = list(range(39, 26, -1)), list(range(13, 0, -1))
        before = self.save(specs, make, DEVICE, 200, old)
        after, failed = self.load(specs, fused("LBNHC", groups=2), DEVICE, 200, 192, new)
        self.assertEqual(failed, (set(), set()))
        for group in range(2):
            for layer in range(LAYERS):
                name = "%d.%d" % (group, layer)
                for was, now in list(zip(old[group], new[group]))[:12]:
                    self.assertTrue(torch.equal(before[name][was].view(torch.int16),
                                                after[name][now].view(torch.int16)))
        # Blocks in another order have another identity.
        self.load(specs, make, "cpu", 200, 0, new)

    def test_a_device_without_events(self):
        with mock.patch.object(getattr(torch, DEVICE), "Event", None):
            self.both_ways(attention(), fused("LBNHC"), fused("LBHNC"))

    def test_host_memory_that_cannot_be_pinned(self):
        with mock.patch.object(vllm_staging, "_allocate", lambda n: (
                torch.zeros(n, dtype=torch.uint8), False)):
            self.both_ways(attention(), fused("LBNHC"), fused("LBHNC"))


class Failures(Case):
    def saved(self):
        old = list(range(1, 14))
        return old, self.save([attention()], fused("LBHNC"), DEVICE, 200, (old,))

    def test_a_corrupt_chunk_is_not_copied_to_the_device(self):
        old, before = self.saved()
        files = glob.glob(self.folder + "/*.data")
        self.assertEqual(len(files), 3, files)
        for path in files:
            with open(path, "r+b") as file:
                file.seek(os.path.getsize(path) // 2)
                file.write(b"corrupt")
        new = list(range(20, 33))
        after, (requests, bad) = self.load([attention()], fused("LBHNC"), DEVICE, 200, 192,
                                           (new,))
        self.assertEqual((requests, bad), (set(), set(new[:12])))
        for layer in after.values():
            self.assertTrue(bool((layer == 7).all()))

    def test_a_device_that_fails_loses_chunks_and_no_unit(self):
        device = torch_device.start()
        make = fused("LBHNC")
        kv = make(DEVICE)
        side = self.side([attention()], kv)
        self.addCleanup(device.device_set_fails, 0)
        blocks = list(range(1, 14))
        req = request("a", 200)
        side.look_up(req)
        side.scheduler.update_state_after_alloc(
            req, Object(get_block_ids=lambda: (blocks,)), 0)
        with self.assertLogs(log, logging.WARNING) as logged:
            side.step(output({"a": 200}, {"a": (blocks,)}),
                      lambda: device.device_set_fails(1))
        device.device_set_fails(0)
        self.assertRegex(logged.output[0],
                         r"is not stored \(KV on %s:0\): the device fails" % DEVICE)
        self.assertEqual(len(logged.output), 1)
        self.check_units(side)
        side.close()
        self.load([attention()], make, DEVICE, 200, 0, (blocks,))

        old, _ = self.saved()
        side = self.side([attention()], kv)
        req = request("b", 200)
        self.assertEqual(side.look_up(req), (192, True))
        side.scheduler.update_state_after_alloc(
            req, Object(get_block_ids=lambda: (blocks,)), 192)
        device.device_set_fails(1)
        with self.assertLogs(log, logging.WARNING):
            requests, bad = self.finish(side, "b")
        device.device_set_fails(0)
        self.assertEqual((requests, bad), (set(), set(blocks[:12])))
        self.check_units(side)
        side.close()

    def test_a_worker_that_is_killed_leaves_whole_chunks(self):
        """A worker dies while the device copies chunks to staging memory."""
        died = subprocess.run([sys.executable, "-B", os.path.abspath(__file__), "--die",
                               self.folder], timeout=300)
        self.assertEqual(died.returncode, -signal.SIGKILL)
        make, blocks = fused("LBHNC"), list(range(1, 14))
        kv, source = make("cpu"), make("cpu")
        side = self.side([attention()], kv)
        req = request("b", 200)
        hit, _ = side.look_up(req)
        if hit:
            side.scheduler.update_state_after_alloc(
                req, Object(get_block_ids=lambda: (blocks,)), hit)
            self.assertEqual(self.finish(side, "b"), (set(), set()))
        side.close()
        for seed, (name, tensor) in enumerate(source.items()):
            noise(tensor, seed)
            mine = blocks[:hit // TOKENS]
            self.assertTrue(torch.equal(tensor[mine].view(torch.int16),
                                        kv[name][mine].view(torch.int16)))

    def test_unsupported_kv_is_a_warning(self):
        make = fused("LBHNC")
        shape = dict(dtype=torch.bfloat16, device=DEVICE)
        for wrong, said in (
                (torch.zeros(BLOCKS, HEADS, TOKENS, 128, **shape),
                 r"the shape \[40, 4, 16, 128"),
                (torch.zeros(BLOCKS, TOKENS, HEADS, 256, **shape), "the shape"),
                (torch.zeros(BLOCKS, HEADS, TOKENS, 256, dtype=torch.bfloat16),
                 "differ in their shapes or devices"),
                ((torch.zeros(BLOCKS, TOKENS, HEADS, 64, **shape),
                  torch.zeros(BLOCKS, TOKENS, HEADS, 192, **shape)), "the shape"),
                ((), "the shape"), (None, "the shape")):
            self.assertRegex(self.warning(dict(make(DEVICE), **{"0.1": wrong})),
                             "nothing is stored or loaded: .*" + said)
        self.assertRegex(self.warning(make(DEVICE), device_type="cpu"),
                         "a KV cache in %s:0 memory" % DEVICE)

    def warning(self, kv, **extra):
        """Return the warning of a worker that cannot use the KV."""
        halves, half = [], Side.half
        with mock.patch.object(Side, "half", lambda *args: (
                halves.append(half(*args)) or halves[-1])):
            with self.assertLogs(log, logging.WARNING) as logged, self.assertRaises(
                    AssertionError):
                self.side([attention()], kv, **extra)
        for one in halves:
            one.shutdown()
        return logged.output[0]


class Registration(Case):
    def test_staging_memory_is_pinned_and_follows_the_tensors(self):
        side = self.side([attention()], fused("LBHNC")(DEVICE))
        mover = side.worker._worker._mover
        self.assertEqual(mover._buffer.numel(), 8 << 20)  # an eighth of 64 MiB
        self.assertTrue(mover._buffer.is_pinned())
        self.assertEqual(side.worker._worker._staging, (8 << 20, 600))
        side.worker.register_kv_caches(fused("LBNHC")(DEVICE))
        self.assertIsNot(side.worker._worker._mover, mover)
        self.assertFalse(mover._thread.is_alive())
        side.close()


def die(folder):
    """Save chunks on the device, and die during the copies."""
    case = Case()
    case.folder = folder
    make, blocks = fused("LBHNC"), list(range(1, 14))
    kv, source = make(DEVICE), make("cpu")
    side = case.side([attention()], kv)
    req = request("a", 200)
    side.look_up(req)
    side.scheduler.update_state_after_alloc(req, Object(get_block_ids=lambda: (blocks,)), 0)
    for seed, (name, tensor) in enumerate(source.items()):
        noise(tensor, seed)
        kv[name].copy_(tensor)
    late(3000)
    side.step(output({"a": 200}, {"a": (blocks,)}))
    time.sleep(random.random() * 0.06)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--die"]:
        torch_device.start()
        die(sys.argv[2])
    unittest.main()
