/* SPDX-License-Identifier: Apache-2.0
 *
 * Handles: open and close. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "table/private.h"

struct kvt__table *
kvt__tb_new(const struct kvt__table_params *params)
{
    struct kvt__table *t = calloc(1, sizeof *t);

    if (!t)
        return NULL;
    pthread_mutex_init(&t->mutex, NULL);
    t->generation = kvt__fork_watch();
    t->owner = TB_N_OWNERS;
    t->map_fd = t->lock_fd = -1;
    t->of_memory = params->of_memory;
    t->order = params->order;
    return t;
}

uint64_t
kvt__tb_max_entries(const struct kvt__table_params *params)
{
    uint64_t n = params->max_entries ? params->max_entries : TB_MAX_ENTRIES;

    n = n > TB_MIN_HEADS ? n : TB_MIN_HEADS;
    return n < TB_MAX_ENTRIES ? n : TB_MAX_ENTRIES;
}

static void
free_handle(struct kvt__table *t)
{
    pthread_mutex_destroy(&t->mutex);
    free(t);
}

void
kvt__tb_init_heads(struct kvt__table *t)
{
    for (uint32_t i = 0; i < TB_MIN_HEADS; i++)
        t->heads[i] = TB_END | i;
}

int
kvt__table_open_private(const struct kvt__table_params *params, struct kvt__table **out)
{
    uint64_t max = kvt__tb_max_entries(params);
    size_t bytes = tb_parts(max, params->wide_hashes).end;
    struct kvt__table *t = kvt__tb_new(params);

    *out = NULL;
    if (!t)
        return kvt__fail(ENOMEM, "index: open");
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        free_handle(t);
        return kvt__fail(ENOMEM, "index: map %zu bytes", bytes);
    }
    madvise(p, bytes, MADV_DONTFORK);
    kvt__tb_set_parts(t, p, max, params->wide_hashes);
    kvt__tb_fill_header(t->header, params, max, NULL);
    kvt__tb_init_heads(t);
    if (params->writer)
        (void)kvt__tb_take_owner(t, params->limit_bytes); /* the first is free */
    *out = t;
    return 0;
}

void
kvt__table_close(struct kvt__table *t)
{
    if (!t)
        return;
    /* A forked child has neither the mapping nor the descriptors. */
    if (t->generation == kvt__fork_generation_now()) {
        if (tb_is_writer(t))
            kvt__tb_leave_owner(t);
        munmap(t->header, t->map_bytes);
        if (t->map_fd >= 0)
            close(t->map_fd);
        kvt__lock_file_close(t->lock_fd);
    }
    free_handle(t);
}

bool
kvt__table_is_shared(const struct kvt__table *t)
{
    return t->lock_fd >= 0;
}
