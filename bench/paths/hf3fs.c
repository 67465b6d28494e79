/* SPDX-License-Identifier: Apache-2.0
 *
 * The hf3fs family: the engine stores and loads chunks of 32 MiB with 3FS's rings.  The
 * baseline loop uses one ring and the same number of files of the same size.
 *
 * A write includes the copy from the paged KV.  Writes and reads include the checksum and, if a
 * chunk finds no room in the shared memory, a copy between the shared memory and the pool.  The
 * bytes of the baseline loop are always in shared memory. */
#include <stdio.h>
#include <string.h>

#include "hf3fs.h"
#include "storage.h"
#include "cli.h"

#define LEAST_IOV 104857600u /* minimum of hf3fs_iov_size */

struct rig {
    struct bench_hf3fs_mount mount;
    struct bench_storage t;
    struct bench_rings baseline;
    struct bench_index_dir index;
};

/* ----------------------------------------------------------------------- set-up */

/* Return a size of the shared memory with room for all chunks at once: stores may use at most half
 * of the memory.  Half of the chunks' bytes more is for headers and alignment. */
static uint64_t
iov_bytes(size_t chunks_bytes)
{
    uint64_t bytes = 2 * chunks_bytes + chunks_bytes / 2;

    return bytes > LEAST_IOV ? bytes : LEAST_IOV;
}

static int
rig_open(struct rig *r, const struct bench *bench)
{
    size_t n = bench->quick ? 2 : 8, bytes = n << (bench->quick ? 20 : 25);
    const struct bench_hf3fs_mount_params params = {
        .split = true, .shm_bytes = iov_bytes(bytes) + bytes };
    struct bench_hf3fs_settings settings;

    *r = (struct rig){ .baseline.dirfd = -1 };
    int code = bench_hf3fs_mount_open(bench, &params, &r->mount);
    if (code)
        return code;
    bench_hf3fs_settings(&r->mount, iov_bytes(bytes), &settings);
    code = bench_storage_open(&r->t, NULL, settings.list, bench->quick, n);
    bench_index_dir_find(&r->index);
    return code ? code : bench_rings_open(&r->baseline, &r->mount, r->t.b.n,
                                          r->t.b.chunk_bytes);
}

static void
rig_close(struct rig *r)
{
    bench_rings_close(&r->baseline);
    bench_storage_close(&r->t);
    bench_hf3fs_mount_close(&r->mount);
    bench_index_dir_remove(&r->index);
}

/* ------------------------------------------------------------------------ cases */

static int
tune(void *rings, bool write)
{
    return bench_rings_tune(rings, write);
}

static int
baseline_write(void *rings, struct bench_cost *out)
{
    return bench_rings_write(rings, out);
}

static int
baseline_read(void *rings, struct bench_cost *out)
{
    return bench_rings_read(rings, out);
}

static void
describe(const struct rig *r, uint64_t moved, uint64_t copied, struct bench_result *out)
{
    out->threads = 1;
    bench_add_figure(out, "baseline_piece_bytes", (double)r->baseline.piece);
    bench_add_figure(out, "baseline_job_ios", -r->baseline.depth);
    bench_add_figure(out, "split", r->mount.split);
    moved = cli_counter(r->t.engine, "hf3fs_bytes") - moved;
    copied = cli_counter(r->t.engine, "hf3fs_copied_bytes") - copied;
    if (moved)
        bench_add_figure(out, "copies_per_byte", (double)copied / (double)moved);
}

static int
run(const struct bench *bench, const char *name, bool write, bool cpu,
    struct bench_result *out)
{
    uint64_t moved = 0, copied = 0;
    struct rig r;
    int code = rig_open(&r, bench);

    r.t.baseline = (struct bench_loop){ &r.baseline, tune, baseline_write, baseline_read };
    if (!code)
        code = bench_storage_prepare(&r.t, write);
    if (!code) {
        moved = cli_counter(r.t.engine, "hf3fs_bytes");
        copied = cli_counter(r.t.engine, "hf3fs_copied_bytes");
        code = bench_storage_measure(&r.t, name, write, cpu, out);
    }
    if (!code)
        describe(&r, moved, copied, out);
    rig_close(&r);
    return code;
}

int
bench_hf3fs_write(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "hf3fs.write", true, false, out);
}

int
bench_hf3fs_read(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "hf3fs.read", false, false, out);
}

int
bench_hf3fs_cpu_write(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "hf3fs.cpu.write", true, true, out);
}

int
bench_hf3fs_cpu_read(const struct bench *bench, struct bench_result *out)
{
    return run(bench, "hf3fs.cpu.read", false, true, out);
}
