/* SPDX-License-Identifier: Apache-2.0
 *
 * Listing all directories of a file store.  Of several as many parts are read at a time,
 * each by a thread, as each may be a disk of its own; a part is a directory, or where files
 * are spread a directory of the first level in all of them.  Who lists is called by its own
 * thread alone; the others hand over what they found in batches. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/thread.h"
#include "tier/files/files.h"

#define MAX_READERS 8
#define BATCH_FILES 256
#define BATCH_TEXT ((size_t)64 << 10)

struct found_file {
    size_t key; /* where it begins in the text */
    bool opaque;
    uint32_t path;
    uint64_t stored_bytes;
    int64_t mtime_ns;
};

struct listing;

/* One thread that reads parts, and its batch. */
struct reader {
    struct listing *l;
    pthread_t thread;
    size_t n, n_text;
    bool full; /* the batch is the other side's */
    struct found_file files[BATCH_FILES];
    char text[BATCH_TEXT];
};

struct listing {
    const struct kvt__files *t;
    const char *prefix;        /* of the keys to list */
    struct kvt__parts *spread; /* NULL: each directory is a part */
    size_t n_parts;
    pthread_mutex_t lock; /* guards all below, and who has a batch */
    pthread_cond_t change;
    size_t next;          /* part to be read */
    size_t n_done;        /* threads */
    int err;              /* the first */
    char why[1024];
    size_t n_readers;     /* this and what follows is the calling thread's */
    struct reader *readers[MAX_READERS];
};

/* ------------------------------------------------------------------- reading */

/* Hand the batch over and wait until it was taken. */
static void
hand_over(struct reader *r)
{
    struct listing *l = r->l;

    if (!r->n)
        return;
    pthread_mutex_lock(&l->lock);
    r->full = true;
    pthread_cond_broadcast(&l->change);
    while (r->full)
        pthread_cond_wait(&l->change, &l->lock);
    pthread_mutex_unlock(&l->lock);
    r->n = r->n_text = 0;
}

static void
add(void *ctx, const char *key, bool opaque, uint32_t path, uint64_t stored_bytes,
    int64_t mtime_ns)
{
    struct reader *r = ctx;
    size_t len = strlen(key) + 1;

    if (r->n == BATCH_FILES || r->n_text + len > BATCH_TEXT)
        hand_over(r);
    memcpy(r->text + r->n_text, key, len);
    r->files[r->n++] = (struct found_file){ r->n_text, opaque, path, stored_bytes,
                                            mtime_ns };
    r->n_text += len;
}

static int
list_part(const struct listing *l, size_t i, kvt__tier_list_fn fn, void *ctx)
{
    return l->spread ? kvt__list_spread(l->t, &l->spread->at[i], l->prefix, fn, ctx)
                     : kvt__list_dir(l->t, (uint32_t)i, l->prefix, fn, ctx);
}

/* The number of a part that nobody reads, or of none. */
static size_t
next_of(struct listing *l)
{
    pthread_mutex_lock(&l->lock);
    size_t i = l->next++;
    pthread_mutex_unlock(&l->lock);
    return i;
}

static void
failed(struct listing *l, int err)
{
    pthread_mutex_lock(&l->lock);
    if (!l->err) {
        l->err = err;
        strncpy(l->why, kvt__why(), sizeof l->why - 1);
    }
    pthread_mutex_unlock(&l->lock);
}

/* A part that fails does not end the listing of the others. */
static void
list_parts(struct listing *l, kvt__tier_list_fn fn, void *ctx)
{
    size_t i;

    while ((i = next_of(l)) < l->n_parts) {
        int err = list_part(l, i, fn, ctx);

        if (err)
            failed(l, err);
    }
}

static void *
reader_main(void *arg)
{
    struct reader *r = arg;
    struct listing *l = r->l;

    list_parts(l, add, r);
    hand_over(r);
    pthread_mutex_lock(&l->lock);
    l->n_done++;
    pthread_cond_broadcast(&l->change);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* -------------------------------------------------------------------- telling */

/* A batch that waits; NULL: there are none and will be none. */
static struct reader *
next_batch(struct listing *l)
{
    struct reader *found = NULL;

    pthread_mutex_lock(&l->lock);
    for (;;) {
        for (size_t i = 0; i < l->n_readers && !found; i++)
            if (l->readers[i]->full)
                found = l->readers[i];
        if (found || l->n_done == l->n_readers)
            break;
        pthread_cond_wait(&l->change, &l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return found;
}

static void
take_batches(struct listing *l, kvt__tier_list_fn fn, void *ctx)
{
    struct reader *r;

    while ((r = next_batch(l))) {
        for (size_t i = 0; i < r->n; i++) {
            const struct found_file *f = &r->files[i];

            fn(ctx, r->text + f->key, f->opaque, f->path, f->stored_bytes, f->mtime_ns);
        }
        pthread_mutex_lock(&l->lock);
        r->full = false;
        pthread_cond_broadcast(&l->change);
        pthread_mutex_unlock(&l->lock);
    }
}

/* As many as there are directories, or as can be had. */
static int
start_readers(struct listing *l)
{
    int err = 0;

    while (!err && l->n_readers < l->t->n_dirs && l->n_readers < MAX_READERS) {
        struct reader *r = malloc(sizeof *r);

        if (r) {
            r->l = l;
            r->n = r->n_text = 0;
            r->full = false;
            err = kvt__thread_start(&r->thread, "kvt-list", reader_main, r);
        } else {
            err = kvt__fail(ENOMEM, "list %s", l->t->dirs[0].path);
        }
        if (err)
            free(r);
        else
            l->readers[l->n_readers++] = r;
    }
    return l->n_readers ? 0 : err;
}

static int
list_by_threads(struct listing *l, kvt__tier_list_fn fn, void *ctx)
{
    pthread_cond_init(&l->change, NULL);
    int err = start_readers(l);
    take_batches(l, fn, ctx);
    for (size_t i = 0; i < l->n_readers; i++) {
        pthread_join(l->readers[i]->thread, NULL);
        free(l->readers[i]);
    }
    pthread_cond_destroy(&l->change);
    return err;
}

int
kvt__file_list(struct kvt__tier *tier, const char *prefix, kvt__tier_list_fn fn, void *ctx)
{
    const struct kvt__files *t = (const struct kvt__files *)tier;
    struct listing l = { .t = t, .prefix = prefix, .n_parts = t->n_dirs,
                         .lock = PTHREAD_MUTEX_INITIALIZER };
    struct kvt__parts spread;
    int err = t->layout->spread ? kvt__spread_parts(t, &spread) : 0;

    if (err)
        return err;
    if (t->layout->spread) {
        l.spread = &spread;
        l.n_parts = spread.n;
    }
    if (t->n_dirs > 1)
        err = list_by_threads(&l, fn, ctx);
    else
        list_parts(&l, fn, ctx);
    if (!err && l.err) {
        kvt__set_why(l.why);
        err = l.err;
    }
    return err;
}
