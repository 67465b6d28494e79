/* SPDX-License-Identifier: Apache-2.0
 *
 * The file tier: one file a chunk, as a layout names and frames them.  Runs on executor
 * threads, several at once, without a lock: the file system is the arbiter.
 *
 * A chunk is written to the directory that the layout says, and looked for there
 * first.  It is looked for in the others too, and removed from all: it may lie there
 * since the list of directories or the number of workers was another. */
#include "tier/file/file.h"
#include "tier/file/gds-choose.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conf/conf.h"

extern const struct kvt__tier_ops kvt__tier_file;
static const struct kvt__tier_ops local_disk_ops, gds_ops, hf3fs_ops;

static uint64_t
file_stored_bytes(const struct kvt__tier *tier, const struct kvt__object *o,
                  uint64_t payload)
{
    const struct file_tier *t = (const struct file_tier *)tier;
    const struct kvt__form form = kvt__form_of(t, o);
    uint64_t unit = kvt__nth_dir(t, o, 0)->unit;
    uint64_t bytes = form.header_bytes + payload + form.trailer_bytes;
    uint64_t units = (bytes + unit - 1) / unit;

    if (t->layout->beside)
        units += (form.header_bytes + unit - 1) / unit;
    /* The attribute may need a block of its own. */
    return (units + !form.has_id) * unit;
}

/* local_disk's names tell a key without its slashes. */
static void
local_disk_listed_key(const struct kvt__tier *tier, char *key)
{
    (void)tier;
    for (char *slash = key; (slash = strchr(slash, '/'));)
        *slash = '-';
}

int
kvt__file_failed(int err, const char *what, const char *name,
                 const struct kvt__dir *dir, const char *said)
{
    size_t n = strlen(said);

    return n ? kvt__fail(-err, "%s %s in %s: %s%s", what, name, dir->path, said,
                         said[n - 1] == '.' ? "" : ".")
             : kvt__fail(-err, "%s %s in %s", what, name, dir->path);
}

/* ----------------------------------------------------------------- opening */

static size_t
file_phase(const struct kvt__tier *tier)
{
    const struct kvt__object chunk = { .whole = true };

    return kvt__form_of((const struct file_tier *)tier, &chunk).header_bytes %
           KVT__DIRECT_ALIGN;
}

static int
file_private_dir(const struct kvt__tier *tier)
{
    const struct file_tier *t = (const struct file_tier *)tier;

    return t->tier.shared ? t->index_fd : t->dirs[0].private_fd;
}

static uint64_t
file_default_limit(const struct kvt__tier *tier)
{
    return kvt__dirs_default_limit((const struct file_tier *)tier);
}

static uint64_t
file_shortage(const struct kvt__tier *tier, const struct kvt__object *o, uint64_t bytes)
{
    const struct file_tier *t = (const struct file_tier *)tier;

    return kvt__dir_shortage(kvt__nth_dir(t, o, 0), bytes);
}

static void
file_close(struct kvt__tier *tier)
{
    struct file_tier *t = (struct file_tier *)tier;

    kvt__file_device_close(t);
    kvt__hf3fs_close(t);
    kvt__dirs_close(t);
    free(t);
}

/* fs://HOST:PORT/path, as released versions of LMCache want it, or fs:///path. */
static const char *
path_of(const char *url)
{
    return url + strcspn(url, "/");
}

/* What the schemes have of their own. */
static const struct scheme {
    const char *word;
    const struct kvt__tier_ops *ops;
    const struct kvt__layout *layout;
    bool relative; /* paths may be so */
} schemes[] = {
    { "fs", &kvt__tier_file, &kvt__layout_fs, false },
    { "hf3fs", &hf3fs_ops, &kvt__layout_fs, false },
    { "local_disk", &local_disk_ops, &kvt__layout_local_disk, true },
    { "gds", &gds_ops, &kvt__layout_gds, true },
};

static const struct scheme *
scheme_of(const char *url)
{
    size_t n = strcspn(url, ":");

    for (size_t i = 1; i < sizeof schemes / sizeof *schemes; i++)
        if (strlen(schemes[i].word) == n && !strncmp(url, schemes[i].word, n))
            return &schemes[i];
    return &schemes[0];
}

static void
set_places(struct file_tier *t, const struct kvt__tier_params *params)
{
    const struct kvt_config *config = params->config;
    bool gds = t->tier.ops == &gds_ops;
    const char *sharding = gds ? config->gds_path_sharding
                               : config->local_disk_path_sharding;
    struct kvt__places *places = &t->places;

    places->n = t->n_dirs;
    places->local_ranks = params->local_ranks;
    places->setting = gds ? "gds_path_sharding" : "local_disk_path_sharding";
    places->by_local_rank = t->layout->place == kvt__place_by_rank &&
                            !strcmp(sharding, "by_local_rank");
}

static int
open_layout(struct file_tier *t, const struct scheme *scheme,
            const struct kvt__tier_params *params)
{
    struct kvt__share share;

    t->layout = scheme->layout;
    t->header = params->config->save_chunk_meta;
    int err = kvt__dirs_open(t, params->name, scheme == &schemes[0]
                             ? path_of(params->rest) : params->rest, scheme->relative);
    set_places(t, params);
    if (!err && scheme->ops == &gds_ops)
        err = kvt__file_gds_open(t, params);
    return err ? err : kvt__share_of(&t->places, 0, &share);
}

static mode_t
mode_of(const char *store_mode)
{
    return !strcmp(store_mode, "all") ? 0777 : !strcmp(store_mode, "group") ? 0770 : 0700;
}

static int
file_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    const struct scheme *scheme = scheme_of(params->url);
    struct file_tier *t = calloc(1, sizeof *t);
    int err;

    if (!t)
        return kvt__fail(ENOMEM, "%s: open", params->name);
    t->index_fd = -1;
    t->fsync = params->config->fsync;
    t->mode = mode_of(params->config->store_mode);
    t->counters = params->counters;
    t->tier.ops = scheme->ops;
    err = kvt__temp_init(t);
    if (!err && t->tier.ops == &hf3fs_ops)
        err = kvt__hf3fs_open(t, params);
    if (!err)
        err = open_layout(t, scheme, params);
    if (err) {
        file_close(&t->tier);
        return err;
    }
    *out = &t->tier;
    return 0;
}

static void
file_look(const struct kvt__tier_params *params, kvt__tier_look_fn fn, void *ctx)
{
    const struct kvt__tier_ops *ops = scheme_of(params->url)->ops;

    if (ops == &hf3fs_ops)
        kvt__hf3fs_look(params, fn, ctx);
    else if (ops == &gds_ops)
        kvt__gds_look(params->config, &KVT__GDS_PROBE_USUAL, params->rest, fn, ctx);
}

/* What all kinds share. */
#define FILE_OPS                            \
    .open = file_open,                      \
    .close = file_close,                    \
    .phase = file_phase,                    \
    .private_dir = file_private_dir,        \
    .default_limit = file_default_limit,    \
    .shortage = file_shortage,              \
    .makes_room = kvt__file_makes_room,     \
    .stored_bytes = file_stored_bytes,      \
    .list = kvt__file_list
#define BLOCKING_OPS                        \
    .put = kvt__file_put,                   \
    .get = kvt__file_get,                   \
    .probe = kvt__file_probe,               \
    .remove = kvt__file_remove

const struct kvt__tier_ops kvt__tier_file = {
    .name = "fs",
    .schemes = "fs local_disk gds hf3fs",
    FILE_OPS,
    .look = file_look,
    BLOCKING_OPS,
};

static const struct kvt__tier_ops local_disk_ops = {
    .name = "local_disk",
    .schemes = "",
    FILE_OPS,
    BLOCKING_OPS,
    .listed_key = local_disk_listed_key,
};

static const struct kvt__tier_ops gds_ops = {
    .name = "gds",
    .schemes = "",
    FILE_OPS,
    .use_gpu = kvt__file_use_gpu,
    .lend = kvt__file_lend,
    BLOCKING_OPS,
};

static const struct kvt__tier_ops hf3fs_ops = {
    .name = "hf3fs",
    .schemes = "",
    FILE_OPS,
    .stop = kvt__hf3fs_stop,
    .lend = kvt__hf3fs_lend,
    .start = kvt__hf3fs_start,
    .put = kvt__tier_wait_put,
    .get = kvt__tier_wait_get,
    .probe = kvt__tier_wait_probe,
    .remove = kvt__tier_wait_remove,
};
