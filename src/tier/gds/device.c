/* SPDX-License-Identifier: Apache-2.0
 *
 * Slots in GPU memory for direct transfers between files and the GPU: a part of the device memory
 * is registered with cuFile or hipFile, and the tier provides slots of this memory.
 *
 * The tier allocates the memory only if direct transfers work in all directories, because a lookup
 * searches all directories.  The lock guards the free extents and is held for a few
 * instructions. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "conf/conf.h"
#include "gpu/device.h"
#include "gpu/gds/gds.h"
#include "gpu/gds/probe.h"
#include "io/exec.h"
#include "mem/extents.h"
#include "tier/gds/gds.h"

#define UNIT KVT__GDS_ALIGN
#define MIB ((size_t)1 << 20)
#define GPU_PAGE ((size_t)64 << 10)

struct kvt__gds_probe_params kvt__gds_tier_probe = KVT__GDS_PROBE_DEFAULTS;

struct kvt__gds_device {
    struct kvt__slot_source source; /* first: slot->source is converted to this struct */
    struct kvt__gpu *gpu;
    struct kvt__gds *gds;
    unsigned char *memory;
    struct kvt__gds_buffer buffer;
    struct kvt__counters *counters; /* NULL: nothing is counted */

    pthread_mutex_t lock;
    struct kvt__extents free; /* in units of UNIT bytes */
    size_t n_units, n_acquired; /* likewise */
};

/* ------------------------------------------------------------------------ lending */

static size_t
units_of(size_t bytes)
{
    return (bytes + UNIT - 1) / UNIT;
}

static void
release_slot(struct kvt__slot_source *source, struct kvt__slot *slot)
{
    struct kvt__gds_device *d = (struct kvt__gds_device *)source;
    size_t n = units_of(slot->bytes);

    pthread_mutex_lock(&d->lock);
    assert(d->n_acquired >= n);
    kvt__extents_free(&d->free, (size_t)(slot->payload - d->memory) / UNIT, n);
    d->n_acquired -= n;
    pthread_mutex_unlock(&d->lock);
}

bool
kvt__gds_acquire_slot(struct kvt__tier *tier, enum kvt__prio prio, size_t bytes,
                      struct kvt__slot *out)
{
    struct kvt__gds_device *d = ((struct gds_tier *)tier)->device;
    size_t n = units_of(bytes), at;

    /* A partial unit at the end would need a read, a change and a write of the whole unit. */
    if (!d || !bytes || bytes % UNIT)
        return false;
    if (n > d->n_units) {
        KVT__LOG_ONCE(KVT_LOG_WARN, "gds_buffer_size: a chunk of %zu MiB does not fit into "
                      "%zu MiB and moves through host memory; raise gds_buffer_size.",
                      bytes / MIB, d->n_units * UNIT / MIB);
        return false;
    }
    /* Stores leave half of the memory to loads; a single store may take more if no slot is used. */
    size_t most = prio == KVT__PRIO_STORE ? d->n_units / 2 : d->n_units;
    pthread_mutex_lock(&d->lock);
    bool is_acquired = (d->n_acquired + n <= most || !d->n_acquired) &&
                       kvt__extents_alloc(&d->free, n, &at);
    if (is_acquired)
        d->n_acquired += n;
    assert(d->n_acquired <= d->n_units);
    pthread_mutex_unlock(&d->lock);
    if (is_acquired)
        *out = (struct kvt__slot){ d->memory + at * UNIT, bytes, &d->source };
    return is_acquired;
}

/* ------------------------------------------------------------------------- moving */

/* The transfer of one slot, by one or more threads. */
struct transfer {
    struct kvt__split split; /* first: move_part() converts the split to this struct */
    struct kvt__gds_device *device;
    struct kvt__gds_file file;
    size_t at, bytes, piece;
    off_t offset;
    bool to_file;
};

/* Transfer piece number i.  The library needs the device's context in each thread. */
static int
move_part(struct kvt__split *split, size_t i)
{
    struct transfer *x = (struct transfer *)split;
    size_t from = i * x->piece;
    assert(from < x->bytes);
    size_t n = x->bytes - from < x->piece ? x->bytes - from : x->piece;
    struct kvt__gpu_entered entered;
    int err = kvt__gpu_enter(x->device->gpu, &entered);

    if (err)
        return err;
    err = kvt__gds_move(&x->file, &x->device->buffer, x->at + from, n,
                        x->offset + (off_t)from, x->to_file);
    kvt__gpu_leave(x->device->gpu, &entered);
    return err;
}

/* Cut a transfer into pieces of equal size, one for each thread of the executor.  Threads are
 * needed because a request of the libraries blocks, and the batch interfaces do not help: cuFile's
 * batches block in compat mode and refuse large entries, and hipFile's batches do not report
 * results.  Smaller pieces than 1 MiB would not keep the drive busy, because of the cost of each
 * request.  A piece is at most the library's limit for a request, and a multiple of a GPU page. */
static void
cut_transfer(struct transfer *x)
{
    size_t limit = kvt__gds_max_request(x->device->gds) / GPU_PAGE * GPU_PAGE;
    size_t width = kvt__exec_n_workers();
    size_t n = x->bytes / MIB < width ? x->bytes / MIB : width;
    size_t piece = n > 1 ? kvt__round_up((x->bytes + n - 1) / n, GPU_PAGE) : x->bytes;

    assert(x->bytes && limit);
    x->piece = piece < limit ? piece : limit;
    x->split.n = (x->bytes + x->piece - 1) / x->piece;
}

/* Allocate the file's blocks before parallel writes: the file system serializes writes that extend
 * a file, and runs writes into allocated blocks in parallel.  0; -errno with a sentence: the file
 * system is full.  Other errors are ignored: the file system may lack fallocate(), and the writes
 * then report errors. */
static int
reserve(int fd, const struct transfer *x)
{
    if (x->split.n == 1 || !fallocate(fd, 0, 0, x->offset + (off_t)x->bytes) ||
        (errno != ENOSPC && errno != EDQUOT))
        return 0;
    return kvt__fail(errno, "reserve %zu bytes", x->bytes);
}

/* Register the file, transfer all pieces, and deregister the file.  Handles are not kept: a handle
 * belongs to an open file description, and a rename can replace the file of a chunk at any time, so
 * kept handles would need open files.  The cost is small: with libcufile 1.20 both calls together
 * take 7 us, 0.15 % of the time for 32 MiB at 7 GB/s (bench/RESULTS.md, GPUs). */
static int
move_registered(struct transfer *x, int fd)
{
    struct kvt__gpu_entered entered;
    int err = kvt__gpu_enter(x->device->gpu, &entered);

    if (err)
        return err;
    err = kvt__gds_file_open(x->device->gds, fd, &x->file);
    if (!err) {
        err = kvt__exec_run_split(&x->split);
        assert(!x->split.n_running);
        kvt__gds_file_close(&x->file);
    }
    kvt__gpu_leave(x->device->gpu, &entered);
    return err;
}

int
kvt__gds_move_device(const struct kvt__files *files, int fd, const struct kvt__slot *slot,
                     off_t offset, bool to_file)
{
    struct kvt__gds_device *d = ((const struct gds_tier *)files)->device;
    struct transfer x = { .split.run = move_part, .device = d,
                          .at = (size_t)(slot->payload - d->memory),
                          .bytes = slot->bytes, .offset = offset, .to_file = to_file };

    assert(slot->source == &d->source && slot->payload >= d->memory &&
           x.at + x.bytes <= d->n_units * UNIT);
    cut_transfer(&x);
    int err = to_file ? reserve(fd, &x) : 0;
    if (!err)
        err = move_registered(&x, fd);
    if (!err && d->counters)
        kvt__count(d->counters, KVT__N_gds_direct_bytes, slot->bytes);
    return err;
}

int
kvt__gds_sum_device(const struct kvt__files *files, const struct kvt__slot *slot,
                    uint32_t *crc)
{
    return kvt__gpu_sum(((const struct gds_tier *)files)->device->gpu, slot->payload,
                        slot->bytes, crc);
}

/* ----------------------------------------------------------------------- opening */

static void
close_device(struct kvt__gds_device *d)
{
    struct kvt__gpu_entered entered;

    if (d->gds && !kvt__gpu_enter(d->gpu, &entered)) {
        kvt__gds_buffer_close(&d->buffer);
        kvt__gds_driver_close(d->gds);
        kvt__gpu_leave(d->gpu, &entered);
    }
    if (d->memory)
        kvt__gpu_free(d->gpu, d->memory);
    kvt__extents_fini(&d->free);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void
kvt__gds_device_close(struct gds_tier *t)
{
    if (t->device)
        close_device(t->device);
    t->device = NULL;
}

/* Choose the data path for each directory, and log each choice.  *direct: direct transfers work in
 * all directories; *p2pdma: a directory needs P2PDMA.  0; -ENODEV with a sentence: direct transfers
 * are required and do not work. */
static int
choose_all(const struct gds_tier *t, int ordinal, bool *direct, bool *p2pdma)
{
    struct kvt__gds_choice choice;

    *direct = t->preference.direct;
    *p2pdma = false;
    for (size_t i = 0; i < t->files.n_dirs; i++) {
        int err = kvt__gds_choose(&t->preference, &kvt__gds_tier_probe, ordinal,
                                  t->files.dirs[i].path, &choice);

        if (err)
            return err;
        kvt__log(KVT_LOG_INFO, "gds_path: %s", choice.text);
        *direct &= choice.direct;
        *p2pdma |= choice.p2pdma;
    }
    return 0;
}

static int
register_memory(struct kvt__gds_device *d, enum kvt__gds_kind kind, bool p2pdma,
                size_t bytes)
{
    struct kvt__gpu_entered entered;
    int err = kvt__gpu_enter(d->gpu, &entered);

    if (err)
        return err;
    err = kvt__gds_driver_open(kind, p2pdma, &d->gds);
    if (!err)
        err = kvt__gds_buffer_open(d->gds, d->memory, bytes, &d->buffer);
    kvt__gpu_leave(d->gpu, &entered);
    return err;
}

static int
open_device(struct gds_tier *t, struct kvt__gpu *gpu, bool p2pdma, size_t bytes)
{
    struct kvt__gds_device *d = calloc(1, sizeof *d);

    assert(!t->device && bytes);
    if (!d)
        return kvt__fail(ENOMEM, "gds_path");
    d->gpu = gpu;
    d->counters = t->files.counters;
    d->source = (struct kvt__slot_source){ .on_device = true, .release = release_slot };
    d->n_units = bytes / UNIT;
    pthread_mutex_init(&d->lock, NULL);
    int err = kvt__extents_init(&d->free, d->n_units);
    if (err)
        err = kvt__fail(-err, "gds_path");
    else
        kvt__extents_free(&d->free, 0, d->n_units);
    if (!err && kvt__gpu_alloc(gpu, bytes, &d->memory))
        err = kvt__fail(ENOMEM, "gds_buffer_size: the GPU has less than %zu MiB free for "
                        "transfers; lower it, or vLLM's --gpu-memory-utilization.",
                        bytes / MIB);
    if (!err)
        err = register_memory(d, t->preference.kind, p2pdma, bytes);
    if (err)
        close_device(d);
    else
        t->device = d;
    return err;
}

/* Select the library for the GPU's vendor.  -ENODEV with a sentence: the configuration requires the
 * library of the other vendor. */
static int
select_library(struct gds_tier *t, const struct kvt__gpu *gpu)
{
    bool hip = kvt__gpu_kind(gpu) == KVT__GPU_HIP;
    enum kvt__gds_kind kind = hip ? KVT__GDS_HIPFILE : KVT__GDS_CUFILE;
    struct kvt__gds_preference *want = &t->preference;

    if (want->kind != kind && *want->required_by)
        return kvt__fail(ENODEV, "%s, and the KV cache is in memory of %s, which %s "
                         "reaches.", want->required_by, hip ? "HIP" : "CUDA",
                         kvt__gds_names[kind].prefix);
    want->kind = kind;
    return 0;
}

/* Return the bytes of GPU memory for at most `most` bytes in flight, within the configured limit,
 * in whole MiB. */
static size_t
buffer_bytes(const struct gds_tier *t, size_t most)
{
    size_t limit = t->buffer_bytes;
    size_t bytes = limit && limit < most ? limit : most;

    return (bytes + MIB - 1) / MIB * MIB;
}

int
kvt__gds_use_gpu(struct kvt__tier *tier, struct kvt__gpu *gpu, size_t most)
{
    struct gds_tier *t = (struct gds_tier *)tier;
    size_t bytes = buffer_bytes(t, most);
    bool direct, p2pdma;
    int err = gpu ? select_library(t, gpu) : 0;

    if (gpu)
        atomic_store(&t->files.sharding.device, 1 + (unsigned)kvt__gpu_ordinal(gpu));
    if (!err)
        err = choose_all(t, gpu ? kvt__gpu_ordinal(gpu) : -1, &direct, &p2pdma);
    if (err || !direct)
        return err;
    if (!most) {
        kvt__log(KVT_LOG_INFO, "gds_path: bytes go through host memory nevertheless: host "
                 "memory keeps the chunks (local_cpu), or there is other storage.");
        return 0;
    }
    err = open_device(t, gpu, p2pdma, bytes);
    if (err && *t->preference.required_by)
        return err;
    if (err)
        kvt__log(KVT_LOG_WARN, "gds_path: bytes go through host memory: %s", kvt__why());
    else
        kvt__log(KVT_LOG_INFO, "gds_path: %s transfers chunks through %zu MiB of the "
                 "GPU's memory", kvt__gds_describe(t->device->gds), bytes / MIB);
    return 0;
}
