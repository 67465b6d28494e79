/* SPDX-License-Identifier: Apache-2.0
 *
 * Open engines and stores with the settings of a case, delete their chunks, and find their
 * files. */
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "cli.h"

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

void
bench_remove_tree(const char *path)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS))
        fprintf(stderr, "kvtier-bench: remove %s: %s\n", path, strerror(errno));
}

/* Open a configuration with the settings, without the user's configuration file and environment.
 * The exception is HF3FS_CLIENT, which selects the client of 3FS and defaults to "own": kvtier's
 * own client.  The baseline's library is often the tests' replacement, which is built from the
 * own client. */
static int
open_config(const char *dir, const char *const *settings, struct kvt_config **out)
{
    const char *client = getenv("HF3FS_CLIENT");
    char variable[64];
    const char *environment[] = { variable, NULL };
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    const char *all[16];
    char url[4096];
    size_t n = 0;

    if (dir) {
        snprintf(url, sizeof url, "remote_url=fs://%s", dir);
        all[n++] = url;
    }
    while (*settings && n + 1 < sizeof all / sizeof *all)
        all[n++] = *settings++;
    all[n] = NULL;
    snprintf(variable, sizeof variable, "HF3FS_CLIENT=%s",
             client && *client ? client : "own");
    sources.environment = environment;
    sources.settings = all;
    return kvt_config_open(&sources, out);
}

size_t
bench_chunk_bytes(const struct cli_shape *shape)
{
    return (size_t)2 * shape->n_layers * BENCH_CHUNK_TOKENS * shape->n_heads *
           shape->head_bytes;
}

int
bench_engine_open(const char *dir, const char *const *settings, uint32_t role,
                  const struct cli_shape *shape, struct kvt_engine **out)
{
    struct kvt_config *config;
    int err = open_config(dir, settings, &config);

    if (err)
        return cli_fail(err);
    err = cli_engine_open(config, "bench", role, shape, out);
    kvt_config_free(config);
    return err ? cli_fail(err) : 0;
}

int
bench_engine_view(struct kvt_engine *engine, const struct cli_shape *shape,
                  unsigned char *memory, uint32_t n_blocks)
{
    int err = cli_engine_view(engine, shape, memory, n_blocks, -1);

    return err ? cli_fail(err) : 0;
}

/* ----------------------------------------------------------------- stores by key */

static int
open_store(const char *dir, const char *const *settings, struct kvt_store **out)
{
    struct kvt_config *config;
    int err = open_config(dir, settings, &config);

    if (err)
        return cli_fail(err);
    err = kvt_store_open(config, out);
    kvt_config_free(config);
    return err ? cli_fail(err) : 0;
}

int
bench_store_open(const char *dir, struct kvt_store **out)
{
    static const char *const no_settings[] = { NULL };

    return open_store(dir, no_settings, out);
}

int
bench_store_open_settings(const char *const *settings, struct kvt_store **out)
{
    return open_store(NULL, settings, out);
}

struct keys {
    char **keys;
    size_t n;
    bool no_memory;
};

static int
note_key(void *ctx, const struct kvt_listed *listed)
{
    struct keys *k = ctx;
    char **grown = realloc(k->keys, (k->n + 1) * sizeof *grown);

    if (grown)
        k->keys = grown;
    if (grown && (grown[k->n] = strdup(listed->key))) {
        k->n++;
        return 0;
    }
    k->no_memory = true;
    return 1;
}

int
bench_store_clear(struct kvt_store *store)
{
    struct keys k = { 0 };
    int err = kvt_store_list(store, "", note_key, &k);

    for (size_t i = 0; i < k.n; i++) {
        struct kvt_op op = KVT_INIT(struct kvt_op);

        op.kind = KVT_OP_DELETE;
        op.key = k.keys[i];
        if (!err)
            err = kvt_store_run(store, &op);
        free(k.keys[i]);
    }
    free(k.keys);
    if (k.no_memory) {
        fprintf(stderr, "kvtier-bench: not enough memory\n");
        return CLI_ENVIRONMENT;
    }
    return err ? cli_fail(err) : 0;
}

struct sum {
    size_t n_files;
    uint64_t bytes;
};

static int
add_file(void *ctx, const struct kvt_listed *listed)
{
    struct sum *sum = ctx;

    sum->n_files++;
    sum->bytes += listed->stored_bytes;
    return 0;
}

int
bench_store_count(struct kvt_store *store, size_t *n_files, uint64_t *bytes)
{
    struct sum sum = { 0 };
    int err = kvt_store_list(store, "", add_file, &sum);

    *n_files = sum.n_files;
    *bytes = sum.bytes;
    return err ? cli_fail(err) : 0;
}

/* Search the open descriptors: the index keeps a descriptor of the directory. */
void
bench_index_dir_find(struct bench_index_dir *out)
{
    DIR *fds = opendir("/proc/self/fd");
    struct dirent *entry;
    char link[64], target[sizeof out->path];

    while (fds && (entry = readdir(fds))) {
        snprintf(link, sizeof link, "/proc/self/fd/%.16s", entry->d_name);
        ssize_t n = readlink(link, target, sizeof target - 1);
        target[n > 0 ? n : 0] = '\0';
        if (n > 0 && fnmatch("/var/tmp/kvtier-*/*", target, FNM_PATHNAME) == 0)
            memcpy(out->path, target, sizeof target);
    }
    if (fds)
        closedir(fds);
}

void
bench_index_dir_remove(struct bench_index_dir *dir)
{
    if (*dir->path)
        bench_remove_tree(dir->path);
    *dir->path = '\0';
}

void
bench_tokens(int32_t *tokens, size_t n, uint64_t number)
{
    uint64_t x = number * UINT64_C(0x9e3779b97f4a7c15) + 1;

    for (size_t i = 0; i < n; i++) { /* xorshift; ids below a vocabulary of 128,000 */
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        tokens[i] = (int32_t)(x % 128000);
    }
}
