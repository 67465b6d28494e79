/* SPDX-License-Identifier: Apache-2.0
 *
 * The open and the close of a backend, and the operations without access to a chunk's file. */
#include "tier/files/files.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conf/conf.h"

uint64_t
kvt__files_stored_bytes(const struct kvt__tier *tier, const struct kvt__object *o,
                        uint64_t payload)
{
    const struct kvt__files *t = (const struct kvt__files *)tier;
    const struct kvt__form form = kvt__form_of(t, o);
    uint64_t unit = kvt__nth_dir(t, o, 0)->unit;
    uint64_t bytes = form.header_bytes + payload + form.trailer_bytes;
    uint64_t units = (bytes + unit - 1) / unit;

    if (t->layout->sidecar_suffix)
        units += (form.header_bytes + unit - 1) / unit;
    /* The attribute of a file without trailer may need another block. */
    return (units + !form.has_id) * unit;
}

int
kvt__file_failed(int err, const char *what, const char *name,
                 const struct kvt__dir *dir, const char *detail)
{
    size_t n = strlen(detail);

    return n ? kvt__fail(-err, "%s %s in %s: %s%s", what, name, dir->path, detail,
                         detail[n - 1] == '.' ? "" : ".")
             : kvt__fail(-err, "%s %s in %s", what, name, dir->path);
}

int
kvt__files_private_dir(const struct kvt__tier *tier)
{
    const struct kvt__files *t = (const struct kvt__files *)tier;

    for (size_t i = 0; i < t->n_dirs; i++)
        (void)kvt__dir_renew(t, &t->dirs[i]);
    if (!t->tier.multi_host)
        return t->dirs[0].private_fd;
    kvt__shared_index_renew(t->index_fd, t->dirs[0].fd, t->dirs[0].path);
    return t->index_fd;
}

/* ----------------------------------------------------------------- opening */

static mode_t
mode_of(const char *store_mode)
{
    return !strcmp(store_mode, "all") ? 0777 : !strcmp(store_mode, "group") ? 0770 : 0700;
}

void *
kvt__files_new(size_t size, const struct kvt__tier_ops *ops,
               const struct kvt__files_kind *kind, const struct kvt__tier_params *params)
{
    struct kvt__files *t = calloc(1, size);

    assert(size >= sizeof *t && !kind->write == !kind->read);
    assert(!kind->move_device == !kind->sum_device);
    if (!t) {
        kvt__fail(ENOMEM, "%s: open", params->name);
        return NULL;
    }
    t->tier.ops = ops;
    t->kind = kind;
    t->layout = kind->layout;
    t->index_fd = -1;
    t->fsync = params->config->fsync;
    t->header = params->config->save_chunk_meta;
    t->mode = mode_of(params->config->store_mode);
    t->counters = params->counters;
    return t;
}

void
kvt__files_set_sharding(struct kvt__files *t, const char *setting, const char *sharding)
{
    assert(!t->n_dirs);
    t->sharding.setting = setting;
    t->sharding.by_local_rank = !strcmp(sharding, "by_local_rank");
}

int
kvt__files_open(struct kvt__files *t, const struct kvt__tier_params *params,
                const char *list)
{
    const struct kvt__object chunk = { .is_full = true };
    struct kvt__path_range range;
    int err = kvt__temp_init(t);

    t->tier.phase = kvt__form_of(t, &chunk).header_bytes % KVT__DIRECT_ALIGN;
    if (!err)
        err = kvt__dirs_open(t, params->name, list);
    t->sharding.local_ranks = params->local_ranks;
    return err ? err : kvt__paths_of_rank(&t->sharding, 0, &range);
}

int
kvt__files_opened(struct kvt__files *t, int err, struct kvt__tier **out)
{
    if (err)
        t->tier.ops->close(&t->tier);
    else
        *out = &t->tier;
    return err;
}

void
kvt__files_stop(struct kvt__tier *tier)
{
    atomic_store(&((struct kvt__files *)tier)->stopped, true);
}

void
kvt__files_close(struct kvt__tier *tier)
{
    kvt__dirs_close((struct kvt__files *)tier);
    free(tier);
}
