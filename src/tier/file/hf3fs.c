/* SPDX-License-Identifier: Apache-2.0
 *
 * hf3fs://DIRECTORY, DIRECTORY...: the file tier on a mount of 3FS.  Files are named,
 * made and published through the mount, their bytes go through its daemon's rings.
 *
 * Each operation blocks in look-ups of the mount and waits for its pieces, so the tier
 * has threads of its own: enough that the rings are full while some of them copy. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "conf/conf.h"
#include "mem/numa.h"
#include "tier/file/file.h"
#include "usrbio/client.h"

#define N_THREADS 32
/* A daemon that is restarted is waited for so long. */
int64_t kvt__hf3fs_patience_ns = 4 * KVT__NS_PER_S;

#define LOOK_NS (KVT__NS_PER_S / 5)

struct kvt__hf3fs {
    struct kvt__exec *exec;
    struct kvt__job first; /* makes the rings */
    struct file_tier *tier;
    struct kvt__usrbio_params params;
    char mount_point[KVT__HF3FS_MAX_MOUNT];

    _Atomic(struct kvt__usrbio_client *) client; /* NULL: there are no rings yet */

    pthread_mutex_t lock; /* guards what follows and who makes the client, and is held
                           * while directories are opened again */
    pthread_cond_t stop;
    bool stopping;
    uint64_t n_opened; /* how often the directories were */
};

/* ----------------------------------------------------------------------- opening */

static int
set_params(struct kvt__hf3fs *h, const struct kvt_config *config)
{
    int node = (int)config->hf3fs_numa_id;
    int err = kvt__usrbio_choose(kvt__variable(config->environment, "HF3FS_CLIENT"),
                                 &h->params.api);

    if (!err && node >= 0)
        err = kvt__numa_check(node, "hf3fs_numa_id");
    h->params.mount_point = h->mount_point;
    h->params.iov_bytes = (uint64_t)config->hf3fs_iov_size;
    h->params.entries = (uint32_t)config->hf3fs_ior_entries;
    h->params.io_depth = (int)config->hf3fs_io_depth;
    h->params.node = node >= 0 ? node : kvt__numa_here();
    h->params.n_pairs = (uint32_t)config->hf3fs_io_thread_num;
    return err;
}

int
kvt__hf3fs_check_path(const struct file_tier *t, const char *name, const char *path)
{
    return kvt__hf3fs_lies_in(t->hf3fs->mount_point, name, path);
}

/* Make the rings, unless they are there.  A process that only looks needs none. */
static int
need_rings(struct file_tier *t)
{
    struct kvt__hf3fs *h = t->hf3fs;
    int err = 0;

    pthread_mutex_lock(&h->lock);
    if (h->stopping)
        err = kvt__fail(ECANCELED, "3FS");
    else if (!h->client && !(err = kvt__usrbio_client_open(&h->params, &t->rings)))
        h->client = t->rings;
    pthread_mutex_unlock(&h->lock);
    return err;
}

static void
make_rings(struct kvt__job *job)
{
    struct kvt__hf3fs *h = (struct kvt__hf3fs *)
        ((char *)job - offsetof(struct kvt__hf3fs, first));

    need_rings(h->tier); /* after an error the first transfer tries again, and reports it */
}

int
kvt__hf3fs_open(struct file_tier *t, const struct kvt__tier_params *params)
{
    struct kvt__hf3fs *h = calloc(1, sizeof *h);

    if (!h)
        return kvt__fail(ENOMEM, "%s: open", params->name);
    t->hf3fs = h;
    h->tier = t;
    h->first.run = make_rings;
    pthread_mutex_init(&h->lock, NULL);
    kvt__cond_init(&h->stop);
    int err = kvt__hf3fs_mount(params->config, params->name, params->rest, h->mount_point);
    if (!err)
        err = set_params(h, params->config);
    if (!err && !params->tells) /* a command may only look, and else it tells it then */
        err = kvt__usrbio_room(h->params.iov_bytes);
    if (!err)
        err = kvt__exec_open(N_THREADS, &h->exec);
    if (!err)
        kvt__log(KVT_LOG_INFO, "%s: 3FS at %s by %s", params->name, h->mount_point,
                 h->params.api == &kvt__usrbio_own ? "kvtier's own client"
                                                   : "the site's library");
    /* Populating the region takes longer than a lookup waits on a busy machine. */
    if (!err && params->transfers)
        kvt__exec_submit(h->exec, KVT__PRIO_LOAD, &h->first);
    return err;
}

void
kvt__hf3fs_stop(struct kvt__tier *tier)
{
    struct kvt__hf3fs *h = ((struct file_tier *)tier)->hf3fs;

    pthread_mutex_lock(&h->lock);
    struct kvt__usrbio_client *client = h->stopping ? NULL : h->client;
    h->stopping = true;
    pthread_cond_broadcast(&h->stop);
    pthread_mutex_unlock(&h->lock);
    if (client)
        kvt__usrbio_client_stop(client);
}

void
kvt__hf3fs_close(struct file_tier *t)
{
    struct kvt__hf3fs *h = t->hf3fs;

    if (!h)
        return;
    if (h->exec) {
        kvt__exec_close(h->exec);
        kvt__hf3fs_stop(&t->tier);
    }
    if (h->client)
        kvt__usrbio_client_close(h->client);
    pthread_cond_destroy(&h->stop);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* ------------------------------------------------------------- a daemon's restart */

/* Its files and directories are unknown to the next one: open the directories again, in
 * place of those that are open.  0, or -errno with a sentence. */
static int
reopen(struct file_tier *t, uint64_t n_opened)
{
    struct kvt__hf3fs *h = t->hf3fs;
    int err = 0;

    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; !err && h->n_opened == n_opened && i < t->n_dirs; i++) {
        err = kvt__hf3fs_check_path(t, "3FS", t->dirs[i].path);
        if (!err)
            err = kvt__dir_reopen(&t->dirs[i]);
    }
    if (!err && h->n_opened == n_opened)
        h->n_opened++;
    pthread_mutex_unlock(&h->lock);
    return err;
}

/* For a moment.  False: the tier is to stop. */
static bool
rest(struct kvt__hf3fs *h)
{
    struct timespec until = kvt__timespec(kvt__now_ns() + LOOK_NS);

    pthread_mutex_lock(&h->lock);
    if (!h->stopping)
        pthread_cond_timedwait(&h->stop, &h->lock, &until);
    bool stopping = h->stopping;
    pthread_mutex_unlock(&h->lock);
    return !stopping;
}

/* Wait for a daemon that answers.  False: there is none, or the tier is to stop. */
static bool
is_back(struct file_tier *t, uint64_t n_opened, int64_t until_ns)
{
    while (reopen(t, n_opened))
        if (!rest(t->hf3fs) || kvt__now_ns() > until_ns)
            return false;
    return true;
}

/* -------------------------------------------------------------------- operations */

/* Memory of rings that are there; chunks before that come from elsewhere. */
bool
kvt__hf3fs_lend(struct kvt__tier *tier, enum kvt__prio prio, size_t bytes,
                struct kvt__slot *out)
{
    struct kvt__usrbio_client *client = ((struct file_tier *)tier)->hf3fs->client;

    return client && kvt__usrbio_client_lend(client, prio, tier->ops->phase(tier), bytes,
                                             out);
}

static int
put(struct file_tier *t, struct kvt__tier_op *op, const struct kvt__object *o)
{
    int err = need_rings(t);

    if (!err && kvt__file_probe(&t->tier, o, &op->found)) /* what it takes the place of */
        op->found = (struct kvt__found){ 0 };
    return err ? err : kvt__file_put(&t->tier, o, &op->slot, op->crc);
}

static int
run_once(struct file_tier *t, struct kvt__tier_op *op, const struct kvt__object *o)
{
    int err;

    switch (op->what) {
    case KVT__TIER_PUT:
        return put(t, op, o);
    case KVT__TIER_GET:
        err = need_rings(t);
        return err ? err : kvt__file_get(&t->tier, o, &op->slot, &op->found);
    case KVT__TIER_PROBE:
        return kvt__file_probe(&t->tier, o, &op->found);
    default:
        return kvt__file_remove(&t->tier, o);
    }
}

struct operation {
    struct kvt__job job;
    struct file_tier *t;
    struct kvt__tier_op *op;
    struct kvt__object object;
    char key[KVT__KEY_TEXT_MAX + 1];
};

static uint64_t
n_opened(struct kvt__hf3fs *h)
{
    pthread_mutex_lock(&h->lock);
    uint64_t n = h->n_opened;
    pthread_mutex_unlock(&h->lock);
    return n;
}

/* Whether it may succeed with the next daemon.  The last one may still write into memory
 * that it was told to read to: no chunk is read again into the same.  To the next one a
 * file that was opened before is none (EBADF). */
static bool
is_worth_another(const struct kvt__tier_op *op, int err)
{
    if (err == -ESTALE)
        return op->what != KVT__TIER_GET || !op->slot.lender;
    return err == -ENOTCONN || err == -ECONNABORTED || err == -EBADF;
}

static void
run(struct kvt__job *job)
{
    struct operation *x = (struct operation *)job;
    struct kvt__tier_op *op = x->op;
    int64_t until_ns = 0;
    int err;

    for (int tries = 0;; tries++) {
        uint64_t n = n_opened(x->t->hf3fs);

        err = run_once(x->t, op, &x->object);
        if (!tries) /* what it lost by then is not the next daemon's time */
            until_ns = kvt__now_ns() + kvt__hf3fs_patience_ns;
        if (!is_worth_another(op, err) || !rest(x->t->hf3fs) ||
            kvt__now_ns() > until_ns || !is_back(x->t, n, until_ns))
            break;
    }
    if (err == -ESTALE) /* the daemon was, and not the chunk */
        err = -ECONNABORTED;
    op->done(op, err);
    free(x);
}

void
kvt__hf3fs_start(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    struct file_tier *t = (struct file_tier *)tier;
    struct operation *x = malloc(sizeof *x);

    if (!x) {
        op->done(op, kvt__fail(ENOMEM, "%s", op->object->key));
        return;
    }
    x->job.run = run;
    x->t = t;
    x->op = op;
    x->object = *op->object;
    snprintf(x->key, sizeof x->key, "%s", op->object->key);
    x->object.key = x->key;
    kvt__exec_submit(t->hf3fs->exec, op->prio, &x->job);
}
