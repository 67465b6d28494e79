/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier-gds-probe KIND LIBRARY ORDINAL SCRATCH: test whether direct transfers work between a GPU
 * and a file.  The program writes the scratch file from device memory, reads the file into device
 * memory, and compares the bytes.  Standard output gets lines of JSON: a line at the beginning of
 * each step, and the result as the last line.
 *
 * The test is a separate program because the library may hang or end its process, and because this
 * program can change the environment, which turns compat mode off for every version of the library.
 * The parent process removes the scratch file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "gpu/gds/gds.h"
#include "gpu/gds/helper/device.h"
#include "gpu/gds/library.h"

#define PROBE_BYTES ((size_t)1 << 20)
#define AT ((size_t)64 << 10) /* offset in the buffer */
#define OFFSET 4096           /* offset in the file, as of a payload behind a header */

static FILE *output; /* the original standard output; libraries may print to stdout */

static struct {
    enum kvt__gds_kind kind;
    int ordinal;
    const char *library, *scratch;
    struct kvt__gds *gds;
    bool p2pdma;
    struct kvt__gds_buffer buffer;
    struct kvt__gds_file file;
    unsigned char *device;
    int fd;
} probe;

/* ------------------------------------------------------------------------- output */

/* Print a JSON string; characters outside of ASCII become '?'. */
static void
put_text(const char *text)
{
    putc('"', output);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            fprintf(output, "\\%c", c);
        else
            putc(c < 32 || c > 126 ? '?' : c, output);
    }
    putc('"', output);
}

/* Report the beginning of a step, so that the parent knows which step hangs. */
static void
report_step(enum kvt__gds_layer layer)
{
    fprintf(output, "{\"step\":\"%s\",\"gpus\":%d}\n", kvt__gds_layer_word(layer),
            device_count());
    fflush(output);
}

/* Report the result. */
static void
report_result(enum kvt__gds_layer layer, int code, const char *text)
{
    struct kvt__gds_library loaded = { .path = "" };
    const char *name = probe.gds ? kvt__gds_describe(probe.gds) : "";

    if (probe.gds)
        snprintf(loaded.path, sizeof loaded.path, "%s", kvt__gds_path(probe.gds));
    fprintf(output, "{\"layer\":\"%s\",\"code\":%d,\"gpus\":%d,\"p2pdma\":%s,"
            "\"library\":", kvt__gds_layer_word(layer), code, device_count(),
            probe.p2pdma ? "true" : "false");
    put_text(name);
    fprintf(output, ",\"file\":");
    put_text(loaded.path);
    fprintf(output, ",\"text\":");
    put_text(text);
    fprintf(output, "}\n");
    fflush(output);
}

/* -------------------------------------------------------------------------- steps */

/* Load the library by its path: kvt__gds_driver_open() then uses the loaded library. */
static int
load(void)
{
    struct kvt__gds_library library;

    return kvt__gds_load(probe.kind, probe.library, &library);
}

static int
open_device(void)
{
    return device_open(probe.kind, probe.ordinal, AT + PROBE_BYTES, &probe.device);
}

/* Open the driver; if nvidia-fs is missing, retry with P2PDMA, which cufile.json need not allow. */
static int
open_driver(void)
{
    int err = kvt__gds_driver_open(probe.kind, false, &probe.gds);

    if (!err || probe.kind != KVT__GDS_CUFILE ||
        kvt__gds_failure().code != KVT__GDS_NOT_OPEN)
        return err;
    err = kvt__gds_driver_open(probe.kind, true, &probe.gds);
    probe.p2pdma = !err;
    return err;
}

static int
make_scratch(void)
{
    probe.fd = open(probe.scratch, O_RDWR | O_CREAT | O_EXCL | O_DIRECT | O_CLOEXEC, 0600);
    if (probe.fd >= 0)
        return 0;
    if (errno == EINVAL)
        return kvt__gds_fail(KVT__GDS_FILE_SYSTEM, EINVAL, EINVAL, "the file system does not "
                             "support O_DIRECT.");
    /* Name the directory, not the file with its random name: kvtier doctor merges equal messages of
     * several GPUs. */
    return kvt__gds_fail(KVT__GDS_FILE_SYSTEM, errno, errno, "make a file in %.*s",
                         (int)(strrchr(probe.scratch, '/') - probe.scratch), probe.scratch);
}

static int
register_file(void)
{
    return kvt__gds_file_open(probe.gds, probe.fd, &probe.file);
}

static int
register_memory(void)
{
    return kvt__gds_buffer_open(probe.gds, probe.device, AT + PROBE_BYTES, &probe.buffer);
}

static int
compare(const unsigned char *sent, const unsigned char *got, const char *where)
{
    if (!memcmp(sent, got, PROBE_BYTES))
        return 0;
    return kvt__gds_fail(KVT__GDS_IO, EBADMSG, EBADMSG, "the bytes %s differ from the written "
                         "bytes.", where);
}

/* Test both directions.  sent, got: buffers of PROBE_BYTES with the alignment of O_DIRECT. */
static int
write_and_read(unsigned char *sent, unsigned char *got)
{
    for (size_t i = 0; i < PROBE_BYTES; i++)
        sent[i] = (unsigned char)(i * 31 + i / 997);
    int err = device_copy(probe.device + AT, sent, PROBE_BYTES);
    if (!err)
        err = kvt__gds_move(&probe.file, &probe.buffer, AT, PROBE_BYTES, OFFSET, true);
    if (!err && pread(probe.fd, got, PROBE_BYTES, OFFSET) != (ssize_t)PROBE_BYTES)
        err = kvt__gds_fail(KVT__GDS_IO, EIO, EIO, "the written bytes cannot be read from the "
                            "file.");
    if (!err)
        err = compare(sent, got, "in the file");
    memset(got, 0, PROBE_BYTES);
    if (!err)
        err = device_copy(probe.device + AT, got, PROBE_BYTES);
    if (!err)
        err = kvt__gds_move(&probe.file, &probe.buffer, AT, PROBE_BYTES, OFFSET, false);
    if (!err)
        err = device_copy(got, probe.device + AT, PROBE_BYTES);
    return err ? err : compare(sent, got, "of a direct read");
}

static int
transfer(void)
{
    unsigned char *sent = aligned_alloc(KVT__GDS_ALIGN, PROBE_BYTES);
    unsigned char *got = aligned_alloc(KVT__GDS_ALIGN, PROBE_BYTES);
    int err = sent && got ? write_and_read(sent, got)
                          : kvt__gds_fail(KVT__GDS_HELPER, ENOMEM, ENOMEM, "the probe");

    free(sent);
    free(got);
    kvt__gds_file_close(&probe.file);
    kvt__gds_buffer_close(&probe.buffer);
    return err;
}

static const struct {
    enum kvt__gds_layer layer; /* the layer to report if the step hangs */
    int (*run)(void);
} steps[] = {
    { KVT__GDS_LIBRARY, load },
    { KVT__GDS_GPU, open_device },
    { KVT__GDS_DRIVER, open_driver },
    { KVT__GDS_FILE_SYSTEM, make_scratch },
    { KVT__GDS_UDEV, register_file },
    { KVT__GDS_MEMORY, register_memory },
    { KVT__GDS_IO, transfer },
};

/* Keep standard output for `output`, and redirect prints of libraries to standard error. */
static bool
redirect_output(void)
{
    int fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);

    output = fd < 0 ? NULL : fdopen(fd, "w");
    return output && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0;
}

/* Forbid compat mode for versions without a setter, and keep cuFile from writing a log file into
 * the current directory. */
static void
set_environment(void)
{
    setenv("CUFILE_ALLOW_COMPAT_MODE", "false", 1);
    setenv("HIPFILE_ALLOW_COMPAT_MODE", "false", 1);
    unsetenv("CUFILE_FORCE_COMPAT_MODE");
    unsetenv("HIPFILE_FORCE_COMPAT_MODE");
    setenv("CUFILE_LOGFILE_PATH", "/dev/null", 1);
}

int
main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: kvtier-gds-probe cufile|hipfile LIBRARY ORDINAL SCRATCH\n"
                        "Started by kvtier, which removes SCRATCH.\n");
        return 2;
    }
    probe.kind = strcmp(argv[1], "hipfile") ? KVT__GDS_CUFILE : KVT__GDS_HIPFILE;
    probe.library = argv[2];
    probe.ordinal = atoi(argv[3]);
    probe.scratch = argv[4];
    if (!strchr(probe.scratch, '/'))
        return 2;
    set_environment();
    if (!redirect_output())
        return 1;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        report_step(steps[i].layer);
        if (steps[i].run()) {
            struct kvt__gds_failure trouble = kvt__gds_failure();

            report_result(trouble.layer, trouble.code, kvt__why());
            _exit(0); /* skip the library's exit handlers, which may hang or crash */
        }
    }
    report_result(KVT__GDS_NO_LAYER, 0, "");
    _exit(0);
}
