/* SPDX-License-Identifier: Apache-2.0
 *
 * The process opens the library's driver once and closes the driver once.  The libraries count
 * references; a call without a reference opens the driver again, with the library's defaults and
 * with compat mode.
 *
 * Compat mode is a copy through host memory, slower than kvtier's own copy.  The library's setter
 * turns compat mode off; the setter only works while the driver is closed, and changes no other
 * setting.  kvtier does not change the environment variable of old versions or cufile.json:
 * setenv() races with getenv() in other threads, and other users of the library rely on their
 * configuration.  If another user has opened the driver before, or if the library has no setter
 * (cuFile before 1.15, hipFile), the driver's properties show whether only compat mode would work.
 * The probe, a process of its own, has tested this path with compat mode off. */
#include "gpu/gds/gds.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "gpu/gds/library.h"

#define MODULES "/proc/modules"
#define DEFAULT_REQUEST ((size_t)16 << 20) /* default, if the library reports no limit */
#define MIN_REQUEST ((size_t)64 << 10)     /* a smaller limit is implausible, and ignored */

struct kvt__gds {
    struct kvt__gds_library library;
    char name[48];
    size_t max_request; /* bytes of the largest request */
    unsigned n_users; /* guarded by drivers.lock */
};

static struct {
    pthread_mutex_t lock;
    struct kvt__gds gds[2];
} drivers = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* ------------------------------------------------------------------- the driver */

/* Turn compat mode off, and P2PDMA on if requested.  Return true if compat mode is now off. */
static bool
forbid_compat(const struct kvt__gds_library *l, bool p2pdma)
{
    if (!l->set_bool || l->set_bool(KVT__GDS_SET_COMPAT, false).code)
        return false;
    if (p2pdma)
        l->set_bool(KVT__GDS_SET_P2PDMA, true); /* an error shows up at driver_open() */
    return true;
}

/* Check that cuFileDriverOpen() can read the list of kernel modules, without which the call never
 * returns. */
static int
check_modules(const struct kvt__gds_library *l)
{
    if (l->kind != KVT__GDS_CUFILE || !access(MODULES, R_OK))
        return 0;
    return kvt__gds_fail(KVT__GDS_MODULE, errno, ENODEV, "libcufile: " MODULES " cannot be read, "
                         "and without this file cuFileDriverOpen never returns: use a kernel with "
                         "modules, and mount /proc.");
}

static int
refuse_compat(const struct kvt__gds_library *l)
{
    l->driver_close();
    return kvt__gds_fail(KVT__GDS_MODULE, KVT__GDS_NOT_OPEN, ENODEV, "libcufile: only compat "
                         "mode would work, a copy through host memory that is slower than "
                         "kvtier's: load nvidia-fs, or for P2PDMA set allow_compat_mode to false "
                         "in cufile.json.");
}

/* Read the properties of the open driver: set g->max_request, and refuse a driver that has neither
 * nvidia-fs nor P2PDMA and would use compat mode. */
static int
read_properties(struct kvt__gds *g, bool compat_is_off)
{
    const struct kvt__gds_library *l = &g->library;
    union {
        struct kvt__cufile_props cufile;
        struct kvt__hipfile_props hipfile;
    } props = { { 0 } };
    size_t piece = 0;

    if (l->properties && !l->properties(&props).code) {
        const struct kvt__cufile_props *p = &props.cufile; /* both begin with these fields */

        if (l->kind == KVT__GDS_CUFILE && !compat_is_off && !p->nvfs_major &&
            !p->nvfs_minor && p->control_flags & KVT__GDS_COMPAT_ALLOWED &&
            !(p->feature_flags & KVT__GDS_P2PDMA_WORKS))
            return refuse_compat(l);
        if (p->max_direct_io_size <= DEFAULT_REQUEST >> 10)
            piece = p->max_direct_io_size << 10 & ~(KVT__GDS_ALIGN - 1);
    }
    g->max_request = piece < MIN_REQUEST ? DEFAULT_REQUEST : piece;
    return 0;
}

static int
open_locked(struct kvt__gds *g, enum kvt__gds_kind kind, bool p2pdma)
{
    struct kvt__gds_library *l = &g->library;
    char version[24], file[256];

    kvt__gds_file_name(kind, file, sizeof file);
    int err = kvt__gds_load(kind, file, l);
    if (!err)
        err = check_modules(l);
    if (err)
        return err;
    bool off = forbid_compat(l, p2pdma);
    struct kvt__gds_status status = l->driver_open();
    /* After a failure call no other function: the call would open the driver with defaults. */
    if (status.code)
        return kvt__gds_fail_call(kind, KVT__GDS_OPEN, status);
    kvt__gds_version(l, version, sizeof version);
    snprintf(g->name, sizeof g->name, "%s%s%s", kvt__gds_names[kind].library,
             *version ? " " : "", version);
    return read_properties(g, off);
}

int
kvt__gds_driver_open(enum kvt__gds_kind kind, bool p2pdma, struct kvt__gds **out)
{
    struct kvt__gds *g = &drivers.gds[kind];
    int err = 0;

    pthread_mutex_lock(&drivers.lock);
    if (!g->n_users)
        err = open_locked(g, kind, p2pdma);
    if (!err) {
        g->n_users++;
        *out = g;
    }
    pthread_mutex_unlock(&drivers.lock);
    return err;
}

void
kvt__gds_driver_close(struct kvt__gds *gds)
{
    pthread_mutex_lock(&drivers.lock);
    assert(gds->n_users);
    if (!--gds->n_users)
        gds->library.driver_close();
    pthread_mutex_unlock(&drivers.lock);
}

const char *
kvt__gds_describe(const struct kvt__gds *gds)
{
    return gds->name;
}

const char *
kvt__gds_path(const struct kvt__gds *gds)
{
    return gds->library.path;
}

size_t
kvt__gds_max_request(const struct kvt__gds *gds)
{
    return gds->max_request;
}

/* ------------------------------------------------------------- buffers and files */

int
kvt__gds_buffer_open(struct kvt__gds *gds, unsigned char *base, size_t bytes,
                     struct kvt__gds_buffer *out)
{
    struct kvt__gds_status status = gds->library.add_buffer(base, bytes, 0);

    *out = (struct kvt__gds_buffer){ .base = base, .bytes = bytes };
    if (status.code)
        return kvt__gds_fail_call(gds->library.kind, KVT__GDS_ADD_BUFFER, status);
    out->gds = gds;
    return 0;
}

void
kvt__gds_buffer_close(struct kvt__gds_buffer *buffer)
{
    if (buffer->gds)
        buffer->gds->library.remove_buffer(buffer->base);
    buffer->gds = NULL;
}

int
kvt__gds_file_open(struct kvt__gds *gds, int fd, struct kvt__gds_file *out)
{
    struct kvt__gds_descr descr = { .type = KVT__GDS_FD, .fd = fd };
    void *handle = NULL;
    struct kvt__gds_status status = gds->library.add_file(&handle, &descr);

    *out = (struct kvt__gds_file){ .gds = gds };
    if (status.code)
        return kvt__gds_fail_call(gds->library.kind, KVT__GDS_ADD_FILE, status);
    out->handle = handle;
    return 0;
}

void
kvt__gds_file_close(struct kvt__gds_file *file)
{
    assert(!file->n_moves);
    if (file->handle)
        file->gds->library.remove_file(file->handle);
    file->handle = NULL;
}

/* ------------------------------------------------------------------------ moving */

/* Make one request.  Return the number of bytes moved, or -errno with a sentence. */
static ssize_t
make_request(const struct kvt__gds_file *file, void *base, size_t at, size_t n,
             off_t offset, bool to_file)
{
    const struct kvt__gds_library *l = &file->gds->library;
    ssize_t got;

    do {
        errno = 0;
        got = to_file ? l->write(file->handle, base, n, offset, (off_t)at)
                      : l->read(file->handle, base, n, offset, (off_t)at);
    } while (got == -EINTR || (got == -1 && errno == EINTR));
    return kvt__gds_check_result(l->kind, to_file ? KVT__GDS_WRITE : KVT__GDS_READ, got,
                                 errno);
}

static int
move_all(const struct kvt__gds_file *file, const struct kvt__gds_buffer *buffer, size_t at,
         size_t bytes, off_t offset, bool to_file)
{
    for (size_t n; bytes; bytes -= n, at += n, offset += (off_t)n) {
        n = bytes < file->gds->max_request ? bytes : file->gds->max_request;
        ssize_t got = make_request(file, buffer->base, at, n, offset, to_file);

        if (got < 0)
            return (int)got;
        if ((size_t)got != n) /* the library repeats short requests: no more bytes follow */
            return kvt__gds_fail(KVT__GDS_IO, EIO, EIO, "%s: %zd of %zu bytes were %s.",
                                 file->gds->name, got, n, to_file ? "written" : "read");
    }
    return 0;
}

int
kvt__gds_move(struct kvt__gds_file *file, const struct kvt__gds_buffer *buffer, size_t at,
              size_t bytes, off_t offset, bool to_file)
{
    size_t end;
    off_t file_end;

    assert(!((at | bytes | (uint64_t)offset) & (KVT__GDS_ALIGN - 1)));
    if (!file->handle || !buffer->gds)
        return kvt__gds_fail(KVT__GDS_IO, EBADF, EBADF, "the file or the memory of the transfer "
                             "is not registered.");
    if (__builtin_add_overflow(at, bytes, &end) || end > buffer->bytes ||
        __builtin_add_overflow(offset, bytes, &file_end))
        return kvt__gds_fail(KVT__GDS_MEMORY, EFAULT, EFAULT, "%zu bytes at %zu exceed the "
                             "registered memory of %zu bytes.", bytes, at, buffer->bytes);
    file->n_moves++;
    int err = move_all(file, buffer, at, bytes, offset, to_file);
    file->n_moves--;
    return err;
}
