/* SPDX-License-Identifier: Apache-2.0
 *
 * One launch of the copy kernel: build the table of bases, offsets, jobs and units, and evaluate
 * the sums that the kernel returns. */
#include <errno.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/bytes.h"
#include "gpu/private.h"
#include "gpu/plan.h"

/* Bytes of a table for bases and offsets. */
#define TABLE_ROOM (KVT__TABLE_BYTES / 2)

_Static_assert(KVT__STEP_PIECES * sizeof(struct kvt__copy_job) +
               KVT__STEP_UNITS * sizeof(struct kvt__unit) < KVT__TABLE_BYTES - TABLE_ROOM,
               "the rest of a table is for jobs and units");

void
kvt__step_begin(struct kvt__step *step, enum kvt__copy_path path, bool gather)
{
    step->view = NULL;
    step->path = path;
    step->gather = gather;
    step->no_event = false;
    step->err = 0;
    step->log = KVT__WIDTHS - 1;
    step->bytes = 0;
    step->table_used = 0;
    step->n_units = 0;
    step->n_pieces = 0;
}

static size_t
bases_bytes(const struct kvt__view *view)
{
    return (size_t)view->n_kv * view->n_layers * sizeof(uint64_t);
}

static size_t
n_blocks(const struct kvt__gpu_copy *copy)
{
    return ((size_t)copy->n_tokens + copy->view->block_tokens - 1) / copy->view->block_tokens;
}

/* Bytes that the copy needs for bases and offsets in the table of a step of kernels. */
static size_t
table_bytes(const struct kvt__gpu_copy *copy)
{
    return copy->view ? bases_bytes(copy->view) + n_blocks(copy) * sizeof(uint64_t) : 0;
}

bool
kvt__step_table_fits(const struct kvt__gpu_copy *copy)
{
    return table_bytes(copy) <= TABLE_ROOM;
}

bool
kvt__step_has_room(const struct kvt__step *step, const struct kvt__gpu_copy *copy)
{
    return step->n_pieces < KVT__STEP_PIECES &&
           (step->path == KVT__PATH_BATCH || step->table_used + table_bytes(copy) <= TABLE_ROOM);
}

static void
add_tables(struct kvt__step *step, const struct kvt__gpu_copy *copy,
           struct kvt__step_piece *piece)
{
    const struct kvt__view *view = copy->view;

    if (step->view != view) {
        step->view = view;
        step->bases = step->table_used;
        memcpy(step->table + step->table_used, view->base, bases_bytes(view));
        step->table_used += bases_bytes(view);
    }
    piece->bases = step->bases;
    piece->offsets = step->table_used;
    kvt__plan_offsets((void *)(step->table + step->table_used), view, copy->blocks,
                      n_blocks(copy));
    step->table_used += n_blocks(copy) * sizeof(uint64_t);
}

void
kvt__step_add(struct kvt__step *step, struct kvt__gpu_copy *copy, uint64_t from,
              uint64_t to, uint64_t at)
{
    struct kvt__step_piece *piece = &step->pieces[step->n_pieces++];

    *piece = (struct kvt__step_piece){ .copy = copy, .from = from, .to = to, .at = at };
    step->bytes += to - from;
    if (step->path == KVT__PATH_BATCH || from == to)
        return;
    uint32_t log = kvt__plan_width(copy->view, copy->view ? at : at | to);
    if (log < step->log)
        step->log = log;
    if (copy->view)
        add_tables(step, copy, piece);
}

size_t
kvt__step_seal(struct kvt__step *step, const struct kvt__gpu *gpu, uint64_t table)
{
    uint64_t unit_bytes = kvt__plan_unit_bytes(step->bytes, (uint32_t)gpu->n_processors);

    step->jobs_at = step->table_used;
    step->units_at = step->jobs_at + step->n_pieces * sizeof(struct kvt__copy_job);
    struct kvt__copy_job *jobs = (void *)(step->table + step->jobs_at);
    struct kvt__unit *units = (void *)(step->table + step->units_at);

    for (uint32_t i = 0; i < step->n_pieces; i++) {
        struct kvt__step_piece *p = &step->pieces[i];
        const struct kvt__gpu_copy *copy = p->copy;
        enum kvt__copy_job_kind kind = !copy->view ? KVT__JOB_SUM
                                       : step->gather ? KVT__JOB_GATHER : KVT__JOB_SCATTER;

        p->first_unit = step->n_units;
        p->n_units = 0;
        if (p->from == p->to)
            continue;
        kvt__plan_job(&jobs[i], kind, copy->view, copy->n_tokens, step->log,
                      p->at - p->from, table + p->bases, table + p->offsets);
        jobs[i].sums = copy->sums;
        p->n_units = kvt__plan_units(units + step->n_units, i, step->log, p->from, p->to,
                                     unit_bytes);
        step->n_units += p->n_units;
    }
    return step->units_at + step->n_units * sizeof(struct kvt__unit);
}

int
kvt__step_launch(struct kvt__step *step, const struct kvt__gpu *gpu, void *table,
                 void *stream)
{
    size_t bytes = step->units_at + step->n_units * sizeof(struct kvt__unit);
    uint32_t n_words = (uint32_t)(bytes / sizeof(uint64_t)), n_units = step->n_units;
    /* As many thread blocks as fit on the device at once: more blocks copy 6 % slower (H200). */
    uint32_t resident = 2 * (uint32_t)gpu->n_processors;
    const void *from = step->table;
    void *jobs = (char *)table + step->jobs_at, *units = (char *)table + step->units_at;
    void *sums = gpu->sums;
    uint32_t *results = step->results;
    void *fetch[] = { &table, &from, &n_words };
    void *copy[] = { &jobs, &units, &sums, &results, &n_units };

    if (n_units == 0)
        return 0;
    int error = gpu->driver.launch(gpu->fetch, (n_words + KVT__THREADS - 1) / KVT__THREADS,
                                   1, 1, KVT__THREADS, 1, 1, 0, stream, fetch, NULL);
    if (!error)
        error = gpu->driver.launch(gpu->copy[step->log],
                                   n_units < resident ? n_units : resident, 1, 1,
                                   KVT__THREADS, 1, 1, 0, stream, copy, NULL);
    return error;
}

/* ---------------------------------------------------------------------- end */

/* Compute the CRC32C of a chunk on the CPU, after a copy without kernels. */
static int
sum_on_cpu(struct kvt__gpu *gpu, const struct kvt__gpu_copy *copy, uint32_t *crc)
{
    if (copy->on_device)
        return kvt__bounce_sum(gpu, copy->chunk, copy->own.bytes, crc);
    *crc = kvt__crc32c(0, copy->chunk, copy->own.bytes);
    return 0;
}

void
kvt__step_end(struct kvt__step *step, struct kvt__gpu *gpu, int err)
{
    const struct kvt__unit *units = (const void *)(step->table + step->units_at);

    for (uint32_t i = 0; i < step->n_pieces; i++) {
        const struct kvt__step_piece *p = &step->pieces[i];
        struct kvt__gpu_copy *copy = p->copy;
        uint32_t crc = 0;

        if (err)
            copy->own.err = err;
        if (!err && copy->sums && step->path != KVT__PATH_BATCH)
            copy->own.sum = kvt__plan_join(copy->own.sum, step->results + p->first_unit,
                                           units + p->first_unit, p->n_units, step->log);
        if (p->to < copy->own.bytes)
            continue;
        if (copy->sums && !copy->own.err) {
            if (step->path == KVT__PATH_BATCH)
                copy->own.err = sum_on_cpu(gpu, copy, &crc);
            else
                crc = kvt__plan_crc(copy->own.sum, copy->own.bytes);
        }
        copy->on_done(copy, copy->own.err, crc);
    }
}
