# SPDX-License-Identifier: Apache-2.0
"""A device for PyTorch, "kvdev", built from device/device.cpp: memory that the host cannot
access, and asynchronous streams.  Needs a C++ compiler."""

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import types

NAME = "kvdev"
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "device", "device.cpp")


def why_not():
    """Return the reason why the device cannot be built here, or None."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    if compiler() is None:
        return "no C++ compiler: install g++"
    include = os.path.join(os.path.dirname(torch.__file__), "include")
    if not os.path.exists(os.path.join(include, "torch", "library.h")):
        return "this PyTorch has no headers"
    return None


def compiler():
    return next(filter(None, map(shutil.which, (
        os.environ.get("CXX") or "c++", "g++", "clang++"))), None)


def _build():
    """Return the path of the extension, which stays in a directory of the user."""
    import torch

    root = os.path.dirname(torch.__file__)
    command = [compiler(), "-std=c++20", "-O0", "-fPIC", "-shared", "-w",
               "-DAT_PER_OPERATOR_HEADERS",
               "-D_GLIBCXX_USE_CXX11_ABI=%d" % torch.compiled_with_cxx11_abi(),
               "-I" + os.path.join(root, "include"),
               "-I" + os.path.join(root, "include", "torch", "csrc", "api", "include")]
    libraries = ["-L" + os.path.join(root, "lib"), "-ltorch_cpu", "-lc10",
                 "-Wl,-rpath," + os.path.join(root, "lib")]
    with open(SOURCE, "rb") as file:
        key = hashlib.sha256(repr((command, torch.__version__)).encode() + file.read())
    folder = os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "kvtier")
    path = os.path.join(folder, "test-device-%s.so" % key.hexdigest()[:16])
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            built = os.path.join(work, "device.so")
            subprocess.run([*command, SOURCE, "-o", built, *libraries], check=True)
            os.replace(built, path)
    return path


@functools.lru_cache(1)
def start():
    """Build and register the device; return the extension."""
    import torch

    path = _build()
    torch.utils.rename_privateuse1_backend(NAME)
    library = ctypes.CDLL(path)
    library.device_n_async.restype = ctypes.c_int64
    library.device_start()
    module = types.ModuleType("torch." + NAME)
    module.Event = lambda: torch.Event(NAME)
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module.set_device = lambda index: None
    module.synchronize = library.device_synchronize
    torch._register_device_module(NAME, module)
    return library


def late(us):
    """Set the delay of each operation."""
    start().device_set_delay(us)


@contextlib.contextmanager
def held():
    """Let the device begin no operation; at the end, wait for all operations."""
    start().device_hold(1)
    try:
        yield
    finally:
        start().device_hold(0)
        start().device_synchronize()


def check_units(case, mover):
    until = time.monotonic() + 60
    n_saves = max(1, mover._n_units // 2)
    while mover._save_units.qsize() < n_saves or mover._copying:
        case.assertLess(time.monotonic(), until)
        mover._reclaim()
        time.sleep(0.001)
    case.assertEqual(len(mover._load_units), mover._n_units - n_saves)


if __name__ == "__main__":
    sys.exit(why_not() or (start() and None))
