/* SPDX-License-Identifier: Apache-2.0
 *
 * Store the KV of a prompt in a directory, then load the KV into other blocks.  Build:
 * cc store-and-load.c $(pkg-config --cflags --libs kvtier) -o store-and-load */
#include <errno.h>
#include <kvtier.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 1025, CHUNK = 256, BLOCK = 64, BLOCKS = 64, BLOCK_BYTES = 32768 };

static unsigned char kv[BLOCKS][BLOCK_BYTES]; /* the paged KV cache of one layer */

static void
check(int err)
{
    if (!err)
        return;
    fprintf(stderr, "%s\n", kvt_last_error()), exit(1);
}

static struct kvt_engine *
open_engine(const char *directory)
{
    char url[512];
    const char *settings[] = { url, "max_local_cpu_size=0.1", NULL };
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct kvt_model model = KVT_INIT(struct kvt_model);
    struct kvt_group group = KVT_INIT(struct kvt_group);
    struct kvt_engine_params params = KVT_INIT(struct kvt_engine_params);
    struct kvt_kv_view view = KVT_INIT(struct kvt_kv_view);
    void *base[1] = { kv };
    struct kvt_config *config;
    struct kvt_engine *engine;

    snprintf(url, sizeof url, "remote_url=fs://%s", directory);
    sources.settings = settings;
    check(kvt_config_open(&sources, &config));
    model = (struct kvt_model){ sizeof model, "example", NULL, "bfloat16", 1, 0 };
    group.kind = KVT_GROUP_FULL;
    group.format = KVT_FORMAT_OPAQUE; /* whole blocks, in the layout of the engine */
    group.block_tokens = BLOCK;
    group.block_bytes = BLOCK_BYTES;
    group.n_layers = 1;
    params.config = config;
    params.role = KVT_ROLE_BOTH;
    params.groups = &group;
    params.n_groups = 1, params.model = &model;
    check(kvt_engine_open(&params, &engine));
    kvt_config_free(config);
    view.base = base;
    view.n_kv = 1;
    view.n_blocks = BLOCKS;
    view.block_stride = BLOCK_BYTES;
    view.null_block = -1;
    check(kvt_engine_set_view(engine, 0, &view));
    return engine;
}

int
main(int argc, char **argv)
{
    struct kvt_engine *engine = open_engine(argc > 1 ? argv[1] : "/var/tmp/kv-example");
    int32_t tokens[TOKENS], blocks[TOKENS / BLOCK];
    struct kvt_chunk chunks[TOKENS / CHUNK];
    struct kvt_group_io io = { .n_chunks = TOKENS / CHUNK, .chunks = chunks, .blocks = blocks,
                               .n_blocks = TOKENS / BLOCK };
    struct kvt_seq *seq;
    struct kvt_load *load;
    uint64_t hit;
    int err;

    for (int i = 0; i < TOKENS; i++)
        tokens[i] = i * 7 % 32000;
    check(kvt_seq_new(engine, tokens, TOKENS, NULL, &seq));
    check(kvt_seq_chunks(seq, 0, TOKENS / CHUNK, chunks));
    while ((err = kvt_engine_lookup(engine, seq, 0, TOKENS - 1, &hit)) == -EAGAIN)
        poll(NULL, 0, 1);
    check(err);
    printf("%llu of %d tokens are stored\n", (unsigned long long)hit, TOKENS);
    for (int b = 0; b < TOKENS / BLOCK; b++) {
        memset(kv[b], b + 1, BLOCK_BYTES); /* stands for a prefill into blocks 0, 1, ... */
        blocks[b] = b;
    }
    check(kvt_engine_store(engine, &io, 1));
    check(kvt_engine_flush(engine, -1));
    for (int b = 0; b < TOKENS / BLOCK; b++)
        blocks[b] = 32 + b; /* load into blocks 32, 33, ... */
    check(kvt_engine_load(engine, &io, 1, 0, &load));
    while (!kvt_engine_poll(engine, &load, 1))
        poll(&(struct pollfd){ kvt_engine_eventfd(engine), POLLIN, 0 }, 1, -1);
    printf("loaded %llu bytes; block 32 %s block 0\n",
           (unsigned long long)kvt_load_bytes(load),
           memcmp(kv[0], kv[32], BLOCK_BYTES) ? "differs from" : "equals");
    kvt_load_free(load);
    kvt_seq_free(seq);
    kvt_engine_close(engine);
}
