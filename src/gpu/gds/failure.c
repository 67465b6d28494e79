/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages for the libraries' status codes.  The meaning of a code depends on the call: 5030 is
 * "internal error", but at the registration of a file 5030 means that udev has no record of the
 * file's device. */
#include "gpu/gds/failure.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

static _Thread_local struct kvt__gds_failure last;

static const struct {
    const char *name, *word;
} layers[] = {
    [KVT__GDS_NO_LAYER] = { "nothing", "none" },
    [KVT__GDS_HELPER] = { "the helper program", "helper" },
    [KVT__GDS_LIBRARY] = { "the library", "library" },
    [KVT__GDS_GPU] = { "the GPU", "gpu" },
    [KVT__GDS_DRIVER] = { "the library's driver", "driver" },
    [KVT__GDS_MODULE] = { "nvidia-fs or P2PDMA", "module" },
    [KVT__GDS_FILE_SYSTEM] = { "the file system", "file-system" },
    [KVT__GDS_UDEV] = { "udev", "udev" },
    [KVT__GDS_MEMORY] = { "device memory", "memory" },
    [KVT__GDS_IO] = { "reading and writing", "io" },
};
_Static_assert(sizeof layers / sizeof *layers == KVT__GDS_N_LAYERS, "a name for each");

const struct kvt__gds_names kvt__gds_names[] = {
    [KVT__GDS_CUFILE] = { "libcufile", "cuFile" },
    [KVT__GDS_HIPFILE] = { "libhipfile", "hipFile" },
};

static const char *const calls[] = { "DriverOpen", "HandleRegister", "BufRegister", "Read",
                                     "Write" };

#define UDEV \
    "udev has no record of the device under this file system: in a container mount the " \
    "host's /run/udev there (read-only), and use a file system on a block device, not "  \
    "overlayfs or tmpfs"
#define NOT_DIRECT \
    "this file system's device cannot be reached directly: with nvidia-fs use ext4 "     \
    "(data=ordered) or xfs on NVMe or a parallel file system that it knows; with "       \
    "P2PDMA a local NVMe drive outside of RAID and \"block\": {\"nvme\": "               \
    "{\"use_pci_p2pdma\": true}} at the top level of cufile.json"
#define AIS_NOT_DIRECT \
    "this file cannot be reached directly: use xfs or ext4 (data=ordered) on a local "   \
    "NVMe drive without multipath, ROCm 7.2, amdgpu-dkms 30.20.1 and a kernel with "     \
    "CONFIG_PCI_P2PDMA"
#define NO_MODULE \
    "the kernel module nvidia-fs is not loaded and P2PDMA cannot be used: modprobe "     \
    "nvidia-fs, or for P2PDMA take CUDA 12.8 or later, the open GPU driver 570 or "      \
    "later, Linux 6.2 or later"

/* A status code; remedy: the cause and a remedy, as the end of a sentence. */
static const struct meaning {
    int code;
    enum kvt__gds_layer layer;
    int err;
    const char *remedy;
    const char *hip_remedy; /* NULL: `remedy` also holds for hipFile */
} meanings[] = {
    { 5001, KVT__GDS_MODULE, ENODEV, NO_MODULE, "the library's driver is not open" },
    { 5002, KVT__GDS_DRIVER, EINVAL, "a property in the library's configuration is invalid", NULL },
    { 5003, KVT__GDS_DRIVER, ERANGE, "a limit in the library's configuration is out of "
      "range", NULL },
    { 5004, KVT__GDS_MODULE, ENODEV, "nvidia-fs has another version than the library: "
      "install both from one CUDA release", NULL },
    { 5005, KVT__GDS_MODULE, ENODEV, "the version of nvidia-fs cannot be read: load the "
      "module of the library's CUDA release", NULL },
    { 5006, KVT__GDS_DRIVER, ESHUTDOWN, "the library's driver is being closed", NULL },
    { 5007, KVT__GDS_MODULE, ENODEV, "the library does not support this platform", NULL },
    { 5008, KVT__GDS_MODULE, ENOTSUP, NOT_DIRECT, AIS_NOT_DIRECT },
    { 5009, KVT__GDS_GPU, ENODEV, "the library does not support this GPU", NULL },
    { 5010, KVT__GDS_MODULE, EIO, "nvidia-fs refused: see the kernel's log", NULL },
    { 5011, KVT__GDS_GPU, ENODEV, "the GPU's driver refused", NULL },
    { 5012, KVT__GDS_MEMORY, EFAULT, "the address is not in device memory", NULL },
    { 5013, KVT__GDS_MEMORY, EFAULT, "the memory is not device memory", NULL },
    { 5014, KVT__GDS_MEMORY, EFAULT, "the range exceeds the allocated memory", NULL },
    { 5015, KVT__GDS_MEMORY, EINVAL, "the thread's context is of another device",
      NULL },
    { 5016, KVT__GDS_MEMORY, ENOMEM, "the buffer exceeds the limit for pinned memory: lower "
      "gds_buffer_size, or raise max_device_pinned_mem_size_kb in cufile.json", NULL },
    { 5017, KVT__GDS_MEMORY, EFAULT, "the range exceeds the registered memory", NULL },
    { 5018, KVT__GDS_FILE_SYSTEM, ENOTSUP, "the library supports regular files only", NULL },
    { 5019, KVT__GDS_FILE_SYSTEM, EINVAL, "the library does not support the flags with which "
      "the file was opened", NULL },
    { 5020, KVT__GDS_FILE_SYSTEM, EINVAL, "the file is not open with O_DIRECT", NULL },
    { 5022, KVT__GDS_IO, EINVAL, "an argument is invalid", NULL },
    { 5023, KVT__GDS_MEMORY, EEXIST, "the memory is registered already", NULL },
    { 5024, KVT__GDS_MEMORY, EFAULT, "the memory is not registered", NULL },
    { 5025, KVT__GDS_MODULE, EACCES, "this user may not use /dev/nvidia-fs*: change the "
      "permissions, or add the devices to the container", "this user may not use /dev/kfd: "
      "add the user to the groups render and video" },
    { 5026, KVT__GDS_DRIVER, EBUSY, "the library's driver is open already", NULL },
    { 5027, KVT__GDS_IO, EBADF, "the file is not registered", NULL },
    { 5028, KVT__GDS_IO, EEXIST, "the file is registered already", NULL },
    { 5029, KVT__GDS_GPU, ENODEV, "there is no GPU", NULL },
    { 5030, KVT__GDS_IO, EIO, "internal error of the library: see cufile.log", "internal "
      "error of the library" },
    { 5031, KVT__GDS_FILE_SYSTEM, EMFILE, "the library cannot open the file again: raise the "
      "limit of open files (ulimit -n)", NULL },
    { 5033, KVT__GDS_MODULE, ENODEV, "nvidia-fs cannot be set up: install the GPU's driver "
      "(libcuda.so.1) of the same release", NULL },
    { 5034, KVT__GDS_FILE_SYSTEM, ENOTSUP, "the library's configuration forbids this file "
      "system or device: see denylist in cufile.json", NULL },
    { 5036, KVT__GDS_MEMORY, ENOMEM, "the device's memory cannot be pinned: lower "
      "gds_buffer_size (the GPU's BAR1 may be small)", NULL },
    { 5043, KVT__GDS_MEMORY, ENOMEM, "the library has no memory left", NULL },
    { 5044, KVT__GDS_IO, EIO, "the storage failed", NULL },
};
static const struct meaning unknown = { 0, KVT__GDS_IO, EIO, "kvtier does not know this code",
                                        NULL };
/* The meaning at the registration of a file: seen with cuFile up to 1.9 and with 1.20, if udev has
 * no record of the file's device. */
static const struct meaning no_udev = { 0, KVT__GDS_UDEV, ENODEV, UDEV, NULL };

const char *
kvt__gds_layer_name(enum kvt__gds_layer layer)
{
    return layers[layer].name;
}

const char *
kvt__gds_layer_word(enum kvt__gds_layer layer)
{
    return layers[layer].word;
}

bool
kvt__gds_layer_from_word(const char *word, enum kvt__gds_layer *out)
{
    for (enum kvt__gds_layer i = 0; i < KVT__GDS_N_LAYERS; i++)
        if (!strcmp(layers[i].word, word)) {
            *out = i;
            return true;
        }
    return false;
}

struct kvt__gds_failure
kvt__gds_failure(void)
{
    return last;
}

int
kvt__gds_add_layer(enum kvt__gds_layer layer, int code, int err)
{
    last = (struct kvt__gds_failure){ layer, code };
    return err;
}

int
kvt__gds_fail(enum kvt__gds_layer layer, int code, int err, const char *fmt, ...)
{
    char text[KVT__WHY_BYTES];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return kvt__gds_add_layer(layer, code, kvt__fail(err, "%s", text));
}

static const struct meaning *
find_meaning(enum kvt__gds_kind kind, enum kvt__gds_call call, int code)
{
    if (kind == KVT__GDS_CUFILE && call == KVT__GDS_ADD_FILE &&
        (code == KVT__GDS_INTERNAL || code == KVT__GDS_NOT_REGISTERED))
        return &no_udev;
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++)
        if (meanings[i].code == code)
            return &meanings[i];
    return &unknown;
}

int
kvt__gds_fail_call(enum kvt__gds_kind kind, enum kvt__gds_call call,
                   struct kvt__gds_status status)
{
    const struct meaning *m = find_meaning(kind, call, status.code);
    const char *remedy = kind == KVT__GDS_HIPFILE && m->hip_remedy ? m->hip_remedy
                                                                   : m->remedy;
    enum kvt__gds_layer layer = m->layer;
    char driver[32] = "";

    if (status.driver)
        snprintf(driver, sizeof driver, " and %s %d", kind == KVT__GDS_HIPFILE ? "HIP"
                                                                               : "CUDA",
                 status.driver);
    if (m == &unknown && call == KVT__GDS_OPEN)
        layer = KVT__GDS_DRIVER;
    if (m == &unknown && call == KVT__GDS_ADD_BUFFER)
        layer = KVT__GDS_MEMORY;
    return kvt__gds_fail(layer, status.code, m->err, "%s: %s%s returns %d%s: %s.",
                         kvt__gds_names[kind].library, kvt__gds_names[kind].prefix,
                         calls[call], status.code, driver, remedy);
}

ssize_t
kvt__gds_check_result(enum kvt__gds_kind kind, enum kvt__gds_call call, ssize_t result,
                      int saved_errno)
{
    const struct kvt__gds_names *names = &kvt__gds_names[kind];
    int code;

    if (result >= 0)
        return result;
    bool in_errno = result == -1 && saved_errno;
    if (in_errno)
        code = saved_errno;
    else
        code = result == -1 || result < -9999 ? EIO : (int)-result;
    if (code >= KVT__GDS_BASE)
        return kvt__gds_fail_call(kind, call, (struct kvt__gds_status){ code, 0 });
    /* hipFile may return a negative error of HIP's runtime, which is no errno. */
    if (kind == KVT__GDS_HIPFILE && !in_errno)
        return kvt__gds_fail(KVT__GDS_GPU, code, EIO, "%s: %s%s fails with HIP's error %d.",
                             names->library, names->prefix, calls[call], code);
    return kvt__gds_fail(KVT__GDS_IO, code, code, "%s: %s%s", names->library, names->prefix,
                         calls[call]);
}
