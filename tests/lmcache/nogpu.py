# SPDX-License-Identifier: Apache-2.0
"""Replacements, over host memory, for the GPU libraries of LMCache's GDS back end: the copy
between the device and a mapped file, and the Python module cufile.  LMCache's code that
names, frames, publishes and reads files is unchanged."""
import ctypes
import os
import sys
import types

from lmcache.v1.storage_backend import gds_backend


def copy(to, from_, n_bytes, kind):
    """Replace cudaMemcpy; return 0, success."""
    ctypes.memmove(to, from_, n_bytes)
    return 0


class CuFile:
    """cufile.CuFile: a context manager for a file that is opened for one transfer."""

    def __init__(self, path, mode, use_direct_io=False):
        self.path = path
        self.flags = {"r": os.O_RDONLY, "r+": os.O_RDWR}[mode]
        self.fd = -1

    def __enter__(self):
        self.fd = os.open(self.path, self.flags)
        return self

    def __exit__(self, *_exception):
        os.close(self.fd)

    @staticmethod
    def memory(pointer, n_bytes, offset):
        return memoryview((ctypes.c_char * n_bytes).from_address(
            pointer.value + offset)).cast("B")

    def write(self, pointer, n_bytes, file_offset=0, dev_offset=0):
        return os.pwrite(self.fd, self.memory(pointer, n_bytes, dev_offset), file_offset)

    def read(self, pointer, n_bytes, file_offset=0, dev_offset=0):
        return os.preadv(self.fd, [self.memory(pointer, n_bytes, dev_offset)],
                         file_offset)


def install():
    # GdsBackend starts the scan of the directories before GdsBackend sets _use_noatime, which the
    # scan reads.  Without this default value some scans fail and find no file.
    gds_backend.GdsBackend._use_noatime = True
    gds_backend._load_gpu_memcpy = lambda: copy
    module, bindings = types.ModuleType("cufile"), types.ModuleType("cufile.bindings")
    module.CuFileDriver, module.CuFile, module.bindings = object, CuFile, bindings
    bindings.cuFileBufRegister = lambda pointer, n_bytes, flags: None
    bindings.cuFileBufDeregister = lambda pointer: None
    sys.modules.update({"cufile": module, "cufile.bindings": bindings})
