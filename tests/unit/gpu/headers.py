#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the functions, constants and layouts of the vendors' libraries that kvtier declares
with the vendors' headers.  A C++ compiler compares each installed release: the releases of CUDA
that scripts/cuda-env fetches, and the releases of HIP in Triton (which scripts/vllm-env
installs) and in ROCm."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
GPU = ROOT / "src" / "gpu"
SKIP = 77

# Names of a constant in kvtier, in cuda.h, and in HIP's headers.
NUMBERS = [
    ("KVT__HOST_PORTABLE", "CU_MEMHOSTREGISTER_PORTABLE", "hipHostRegisterPortable"),
    ("KVT__HOST_PORTABLE", "CU_MEMHOSTALLOC_PORTABLE", "hipHostMallocPortable"),
    ("KVT__HOST_MAPPED", "CU_MEMHOSTREGISTER_DEVICEMAP", "hipHostRegisterMapped"),
    ("KVT__HOST_MAPPED", "CU_MEMHOSTALLOC_DEVICEMAP", "hipHostMallocMapped"),
    ("KVT__STREAM_ALONE", "CU_STREAM_NON_BLOCKING", "hipStreamNonBlocking"),
    ("KVT__EVENT_BLOCKS", "CU_EVENT_BLOCKING_SYNC", "hipEventBlockingSync"),
    ("KVT__EVENT_NO_TIME", "CU_EVENT_DISABLE_TIMING", "hipEventDisableTiming"),
    ("KVT__CU_MAJOR", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", None),
    ("KVT__CU_MINOR", "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR", None),
    ("KVT__CU_PROCESSORS", "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT", None),
    ("KVT__HIP_MAJOR", None, "hipDeviceAttributeComputeCapabilityMajor"),
    ("KVT__HIP_MINOR", None, "hipDeviceAttributeComputeCapabilityMinor"),
    ("KVT__HIP_PROCESSORS", None, "hipDeviceAttributeMultiprocessorCount"),
    ("KVT__CU_UNIFIED", "CU_MEMORYTYPE_UNIFIED", None),
    ("KVT__HIP_ANY", None, "hipMemcpyDefault"),
    ("0", "CUDA_SUCCESS", "hipSuccess"),
    ("KVT__OUT_OF_MEMORY", "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"),
    # Constants of the fake drivers (tests/fakes/gpu/core.h).
    ("UNAVAILABLE", "CUDA_ERROR_DEVICE_UNAVAILABLE", None),
    ("INVALID_VALUE", "CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue"),
    ("OUT_OF_MEMORY", "CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"),
    ("NO_DEVICE", "CUDA_ERROR_NO_DEVICE", "hipErrorNoDevice"),
    ("INVALID_DEVICE", "CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice"),
    ("INVALID_IMAGE", "CUDA_ERROR_INVALID_IMAGE", "hipErrorInvalidImage"),
    ("INVALID_CONTEXT", "CUDA_ERROR_INVALID_CONTEXT", "hipErrorInvalidContext"),
    ("INVALID_HANDLE", "CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle"),
    ("NOT_FOUND", "CUDA_ERROR_NOT_FOUND", "hipErrorNotFound"),
    ("ILLEGAL_ADDRESS", "CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress"),
    ("ALREADY_REGISTERED", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "hipErrorHostMemoryAlreadyRegistered"),
    ("NOT_REGISTERED", "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "hipErrorHostMemoryNotRegistered"),
]
SIDE = {"x": "XInBytes", "y": "Y", "type": "MemoryType", "host": "Host", "device": "Device",
        "array": "Array", "pitch": "Pitch"}
RECT = {**{f"from.{ours}": f"src{theirs}" for ours, theirs in SIDE.items()},
        **{f"to.{ours}": f"dst{theirs}" for ours, theirs in SIDE.items()},
        "width": "WidthInBytes", "height": "Height"}
ATTRIBUTES = {"order": "srcAccessOrder", "from_hint": "srcLocHint", "to_hint": "dstLocHint",
              "flags": "flags"}

# Names in cuFile's and hipFile's headers of the codes in src/gpu/gds/failure.c.
CODES = {
    5001: ("DRIVER_NOT_INITIALIZED", "DriverNotInitialized"),
    5002: ("DRIVER_INVALID_PROPS", "DriverInvalidProps"),
    5003: ("DRIVER_UNSUPPORTED_LIMIT", "DriverUnsupportedLimit"),
    5004: ("DRIVER_VERSION_MISMATCH", "DriverVersionMismatch"),
    5005: ("DRIVER_VERSION_READ_ERROR", "DriverVersionReadError"),
    5006: ("DRIVER_CLOSING", "DriverClosing"),
    5007: ("PLATFORM_NOT_SUPPORTED", "PlatformNotSupported"),
    5008: ("IO_NOT_SUPPORTED", "IONotSupported"),
    5009: ("DEVICE_NOT_SUPPORTED", "DeviceNotSupported"),
    5010: ("NVFS_DRIVER_ERROR", "DriverError"),
    5011: ("CUDA_DRIVER_ERROR", "HipDriverError"),
    5012: ("CUDA_POINTER_INVALID", "HipPointerInvalid"),
    5013: ("CUDA_MEMORY_TYPE_INVALID", "HipMemoryTypeInvalid"),
    5014: ("CUDA_POINTER_RANGE_ERROR", "HipPointerRangeError"),
    5015: ("CUDA_CONTEXT_MISMATCH", "HipContextMismatch"),
    5016: ("INVALID_MAPPING_SIZE", "InvalidMappingSize"),
    5017: ("INVALID_MAPPING_RANGE", "InvalidMappingRange"),
    5018: ("INVALID_FILE_TYPE", "InvalidFileType"),
    5019: ("INVALID_FILE_OPEN_FLAG", "InvalidFileOpenFlag"),
    5020: ("DIO_NOT_SET", "DIONotSet"),
    5022: ("INVALID_VALUE", "InvalidValue"),
    5023: ("MEMORY_ALREADY_REGISTERED", "MemoryAlreadyRegistered"),
    5024: ("MEMORY_NOT_REGISTERED", "MemoryNotRegistered"),
    5025: ("PERMISSION_DENIED", "PermissionDenied"),
    5026: ("DRIVER_ALREADY_OPEN", "DriverAlreadyOpen"),
    5027: ("HANDLE_NOT_REGISTERED", "HandleNotRegistered"),
    5028: ("HANDLE_ALREADY_REGISTERED", "HandleAlreadyRegistered"),
    5029: ("DEVICE_NOT_FOUND", "DeviceNotFound"),
    5030: ("INTERNAL_ERROR", "InternalError"),
    5031: ("GETNEWFD_FAILED", "GetNewFDFailed"),
    5033: ("NVFS_SETUP_ERROR", "DriverSetupError"),
    5034: ("IO_DISABLED", "IODisabled"),
    5036: ("GPU_MEMORY_PINNING_FAILED", "GPUMemoryPinningFailed"),
    5043: ("NOMEM_ERROR", None),
    5044: ("IO_ERROR", None),
}
PROPS = {"nvfs_major": "nvfs.major_version", "nvfs_minor": "nvfs.minor_version",
         "poll_size": "nvfs.poll_thresh_size",
         "max_direct_io_size": "nvfs.max_direct_io_size",
         "device_cache": "max_device_cache_size", "buffer_cache": "per_buffer_cache_size",
         "pinned_memory": "max_device_pinned_mem_size",
         "batch_timeout_ms": "max_batch_io_timeout_msecs"}
CUFILE_PROPS = {**PROPS, "status_flags": "nvfs.dstatusflags",
                "control_flags": "nvfs.dcontrolflags", "feature_flags": "fflags",
                "batch_size": "max_batch_io_size"}
HIPFILE_PROPS = {**PROPS, "status_flags": "nvfs.driver_status_flags",
                 "control_flags": "nvfs.driver_control_flags",
                 "feature_flags": "feature_flags", "batch_size": "max_batch_io_count"}

PRELUDE = """
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>
#include <arpa/inet.h>
#define _Static_assert static_assert
#include "same-abi.h"
#include "gpu/driver.h"
#include "gpu/gds/library.h"
#include "core.h"
#undef __cplusplus /* HIP has templates beside the functions for those who have that */
"""


def lines_of(macro):
    """Return the arguments of each row of functions.def with this macro."""
    text = (GPU / "functions.def").read_text()
    return [[word.strip() for word in line.split(",")]
            for line in re.findall(rf"^{macro}\((.*)\)$", text, re.M)]


def gds_functions():
    """Return (name without prefix, member, "true" if optional) for each function."""
    text = (GPU / "gds" / "library.c").read_text()
    return re.findall(r'\{ "(\w+)", &l->(\w+), (true|false) \}', text)


def call(name, kind):
    return f"#undef {name}\nSAME_CALL({name}, {kind});"


def member(struct, name):
    return f"decltype({struct}::{name})"


def layout(ours, theirs, members):
    yield f"SAME_SIZE({ours}, {theirs});"
    for mine, other in members.items():
        yield f"SAME_PLACE({ours}, {mine}, {theirs}, {other});"


def numbers(column):
    for row in NUMBERS:
        if row[column]:
            yield f"SAME_NUMBER({row[0]}, {row[column]});"


def cuda(declared):
    for _, name, function, _ in lines_of("BOTH"):
        yield call(function, member("kvt__driver", name))
    for part, _, function, kind in lines_of("CUDA"):
        if part != "MAY" or function in declared:
            yield call(function, f"{kind} *")
    yield from numbers(1)
    yield from layout("kvt__cu_rect", "CUDA_MEMCPY2D", RECT)
    if {"cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"} & declared:
        yield from layout("kvt__cu_attributes", "CUmemcpyAttributes", ATTRIBUTES)
        yield "SAME_NUMBER(KVT__CU_STREAM_ORDER, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);"
        yield ("SAME_NUMBER(KVT__CU_OVERLAP,"
               " CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);")


def hip(_):
    for _, name, _, function in lines_of("BOTH"):
        yield call(function, member("kvt__driver", name))
    for _, _, function, kind in lines_of("HIP"):
        yield call(function, f"{kind} *")
    yield from numbers(2)


def nvrtc(_):
    for name, function, _ in lines_of("COMPILER"):
        yield call(function, member("kvt__compiler", name))
    yield "SAME_NUMBER(0, NVRTC_SUCCESS);"


def hiprtc(_):
    for name, _, function in lines_of("COMPILER"):
        yield call(function, member("kvt__compiler", name))
    yield "SAME_NUMBER(0, HIPRTC_SUCCESS);"


def gds(declared, prefix, props, layout_of_props, version):
    functions = gds_functions()
    assert len(functions) >= 12, functions
    for name, where, optional in functions:
        full = prefix + name
        if optional == "true" and full not in declared:
            continue
        kind = {"version": version,
                "properties": f"kvt__gds_status (*)({props} *)"}.get(where)
        yield call(full, kind or member("kvt__gds_library", where))
    theirs = {"cuFile": "CUfileDescr_t", "hipFile": "hipFileDescr_t"}[prefix]
    yield from layout("kvt__gds_descr", theirs,
                      {"type": "type", "handle": "handle", "operations": "fs_ops"})
    error, driver, drv_props = {
        "cuFile": ("CUfileError_t", "cu_err", "CUfileDrvProps_t"),
        "hipFile": ("hipFileError_t", "hip_drv_err", "hipFileDriverProps_t")}[prefix]
    yield from layout("kvt__gds_status", error, {"code": "err", "driver": driver})
    yield from layout(props, drv_props, layout_of_props)


def codes(column, prefix, declared):
    used = set(map(int, re.findall(r"^ *\{ (5\d\d\d),",
                                   (GPU / "gds" / "failure.c").read_text(), re.M)))
    assert used and used <= set(CODES), used - set(CODES)
    for code in sorted(used):
        word = CODES[code][column]
        if word and prefix + word in declared:
            yield f"SAME_NUMBER({code}, {prefix}{word});"


def cufile(declared):
    yield from gds(declared, "cuFile", "kvt__cufile_props", CUFILE_PROPS,
                   "kvt__gds_status (*)(int *)")
    yield from codes(0, "CU_FILE_", declared)
    yield "SAME_NUMBER(KVT__GDS_FD, CU_FILE_HANDLE_TYPE_OPAQUE_FD);"
    yield "SAME_NUMBER(KVT__GDS_COMPAT_ALLOWED, 1u << CU_FILE_ALLOW_COMPAT_MODE);"
    if "cuFileSetParameterBool" in declared:
        yield "SAME_NUMBER(KVT__GDS_SET_COMPAT, CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE);"
        yield "SAME_NUMBER(KVT__GDS_SET_P2PDMA, CUFILE_PARAM_USE_PCIP2PDMA);"
    if "CU_FILE_P2P_SUPPORTED" in declared:
        yield "SAME_NUMBER(KVT__GDS_P2PDMA_WORKS, 1u << CU_FILE_P2P_SUPPORTED);"


def hipfile(declared):
    yield from gds(declared, "hipFile", "kvt__hipfile_props", HIPFILE_PROPS,
                   "kvt__gds_status (*)(unsigned *, unsigned *, unsigned *)")
    yield from codes(1, "hipFile", declared)
    yield "SAME_NUMBER(KVT__GDS_FD, hipFileHandleTypeOpaqueFD);"
    yield "SAME_NUMBER(KVT__GDS_COMPAT_ALLOWED, 1u << hipFileAllowCompatMode);"
    yield "SAME_NUMBER(KVT__GDS_SET_COMPAT, hipFileParamPropertiesAllowCompatMode);"


HEADERS = {"cuda.h": cuda, "nvrtc.h": nvrtc, "cufile.h": cufile,
           "hip/hip_runtime_api.h": hip, "hip/hiprtc.h": hiprtc, "hipfile.h": hipfile}


def environment(script):
    """Return the directory in which a script has installed headers, or /nowhere."""
    done = subprocess.run([str(ROOT / "scripts" / script), "--check"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return pathlib.Path("/nowhere" if done.returncode else done.stdout.split()[-1])


def releases():
    """Return [(name, directories)], with the directories of the headers of each release."""
    cuda_env, vllm_env = environment("cuda-env"), environment("vllm-env")
    found = [(f"CUDA {release}", sorted(cuda_env.glob(f"{release}/nvidia/*/include")))
             for release in (12, 13)]
    triton = "lib/python*/site-packages/triton/backends/amd/include"
    for directory in [*vllm_env.glob(triton), pathlib.Path("/opt/rocm/include"),
                      pathlib.Path("/usr/include")]:
        if (directory / "hip" / "hip_runtime_api.h").exists():
            found.append((f"HIP in {directory}", [directory]))
    return found


def compare(compiler, name, header, directories, work):
    """Return True if the declarations of kvtier agree with a header."""
    options = [compiler, "-std=c++17", "-D__HIP_PLATFORM_AMD__", "-D_GNU_SOURCE", "-w",
               f"-I{ROOT}/src", f"-I{ROOT}/include", f"-I{ROOT}/tests/unit/gpu",
               f"-I{ROOT}/tests/fakes/gpu", *(f"-isystem{d}" for d in directories)]
    source = work / "compare.cc"
    begin = f"{PRELUDE}#include <{header}>\n"
    source.write_text(begin)
    done = subprocess.run([*options, "-E", str(source)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if not done.returncode:
        declared = set(re.findall(r"\b[A-Za-z_]\w+", done.stdout))
        checks = list(HEADERS[header](declared))
        source.write_text(begin + "\n".join(checks) + "\n")
        done = subprocess.run([*options, "-fsyntax-only", str(source)],
                              stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"{name}: {header} is not what kvtier has written down:\n{done.stderr}")
        return False
    print(f"{name}: {header}: {len(checks)} comparisons")
    return True


def main():
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("clang++")
    if not compiler:
        print("skipped: there is no C++ compiler")
        return SKIP
    answers = []
    with tempfile.TemporaryDirectory() as work:
        for name, directories in releases():
            answers += [compare(compiler, name, header, directories, pathlib.Path(work))
                        for header in HEADERS
                        if any((d / header).exists() for d in directories)]
    if not answers:
        print("skipped: no headers are there: scripts/cuda-env fetches those of CUDA")
        return SKIP
    return 0 if all(answers) else 1


if __name__ == "__main__":
    sys.exit(main())
