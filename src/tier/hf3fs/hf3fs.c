/* SPDX-License-Identifier: Apache-2.0
 *
 * The tier hf3fs://DIRECTORY, DIRECTORY...: files on a mount of 3FS.  The tier names, creates and
 * publishes files through the mount, and moves their bytes through the rings of the mount's
 * daemon.
 *
 * Each operation blocks in lookups of the mount and waits for its pieces, so the tier has its own
 * threads: enough to keep the rings full while some threads copy. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "conf/conf.h"
#include "mem/numa.h"
#include "tier/hf3fs/hf3fs.h"
#include "usrbio/client.h"

#define N_THREADS 32
/* Time that an operation waits for a restarted daemon. */
int64_t kvt__hf3fs_max_wait_ns = 4 * KVT__NS_PER_S;

extern const struct kvt__tier_ops kvt__tier_hf3fs;

#define RETRY_NS (KVT__NS_PER_S / 5)

struct hf3fs_tier {
    struct kvt__files files; /* first member */
    struct kvt__job rings_job; /* makes the rings in the background */
    struct kvt__usrbio_params params;
    char mount_point[KVT__HF3FS_MAX_MOUNT];

    _Atomic(struct kvt__usrbio_client *) client; /* NULL: no rings yet */

    pthread_mutex_t lock; /* guards the fields below and the making of the client; held while
                           * directories are opened again */
    pthread_cond_t stop;
    bool stopping;
    uint64_t n_opened; /* number of times that the directories were opened again */
};

/* ------------------------------------------------------------------ moving bytes */

static void
on_piece(void *sum, const unsigned char *piece, size_t n)
{
    kvt__sum_add(sum, piece, n);
}

static int
move_by_rings(const struct kvt__files *files, const struct kvt__file_extent *e, bool reads,
              struct kvt__sum *sum)
{
    const struct hf3fs_tier *h = (const struct hf3fs_tier *)files;

    assert(h->client); /* run_once() made the rings */
    return kvt__usrbio_move(h->client, &(struct kvt__usrbio_extent){
        .fd = e->fd, .reads = reads, .at = e->at, .bytes = e->bytes,
        .counters = files->counters, .on_piece = on_piece, .ctx = sum });
}

static int
hf3fs_read(const struct kvt__files *files, const struct kvt__file_extent *e,
           struct kvt__sum *sum)
{
    if (sum)
        sum->crc = 0;
    return move_by_rings(files, e, true, sum);
}

static int
hf3fs_write(const struct kvt__files *files, const struct kvt__file_extent *e)
{
    return move_by_rings(files, e, false, NULL);
}

static int
hf3fs_check_path(const struct kvt__files *files, const char *name, const char *path)
{
    return kvt__hf3fs_check_in_mount(((const struct hf3fs_tier *)files)->mount_point, name, path);
}

static const struct kvt__files_kind hf3fs_kind = {
    .layout = &kvt__layout_fs,
    .check_path = hf3fs_check_path,
    .write = hf3fs_write,
    .read = hf3fs_read,
};

/* ----------------------------------------------------------------------- opening */

static int
set_params(struct hf3fs_tier *h, const struct kvt_config *config)
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
    h->params.node = node >= 0 ? node : kvt__numa_current_node();
    h->params.n_pairs = (uint32_t)config->hf3fs_io_thread_num;
    return err;
}

/* Make the rings if they do not exist.  A process that does not transfer chunks needs no rings.
 * Return 0 or -errno with a sentence. */
static int
ensure_rings(struct hf3fs_tier *h)
{
    struct kvt__usrbio_client *client;
    int err = 0;

    pthread_mutex_lock(&h->lock);
    if (h->stopping)
        err = kvt__fail(ECANCELED, "3FS: make rings");
    else if (!h->client && !(err = kvt__usrbio_client_open(&h->params, &client)))
        h->client = client;
    pthread_mutex_unlock(&h->lock);
    return err;
}

static void
on_rings_job(struct kvt__job *job)
{
    struct hf3fs_tier *h = (struct hf3fs_tier *)
        ((char *)job - offsetof(struct hf3fs_tier, rings_job));

    ensure_rings(h); /* after an error the first transfer tries again, and reports the error */
}

static int
open_client(struct hf3fs_tier *h, const struct kvt__tier_params *params)
{
    int err = kvt__hf3fs_mount(params->config, params->name, params->rest, h->mount_point);

    if (!err)
        err = set_params(h, params->config);
    if (!err && !params->caller_reports) /* a command that only checks reports the failure */
        err = kvt__usrbio_check_space(h->params.iov_bytes);
    if (!err)
        err = kvt__exec_open(N_THREADS, &h->files.tier.exec);
    if (!err)
        kvt__log(KVT_LOG_INFO, "%s: 3FS at %s by %s", params->name, h->mount_point,
                 h->params.api == &kvt__usrbio_own ? "kvtier's own client"
                                                   : "the site's library");
    /* Populating the region takes longer than a lookup waits on a busy machine. */
    if (!err && params->transfers)
        kvt__exec_submit(h->files.tier.exec, KVT__PRIO_LOAD, &h->rings_job);
    return err;
}

static int
hf3fs_check_url(const struct kvt__tier_params *params)
{
    return kvt__files_check_list(&hf3fs_kind, params->name, params->rest);
}

static int
hf3fs_open(const struct kvt__tier_params *params, struct kvt__tier **out)
{
    struct hf3fs_tier *h = kvt__files_new(sizeof *h, &kvt__tier_hf3fs, &hf3fs_kind, params);

    if (!h)
        return -ENOMEM;
    h->rings_job.run = on_rings_job;
    pthread_mutex_init(&h->lock, NULL);
    kvt__cond_init(&h->stop);
    int err = open_client(h, params);
    if (!err)
        err = kvt__files_open(&h->files, params, params->rest);
    return kvt__files_opened(&h->files, err, out);
}

static void
hf3fs_stop(struct kvt__tier *tier)
{
    struct hf3fs_tier *h = (struct hf3fs_tier *)tier;

    kvt__files_stop(tier);
    pthread_mutex_lock(&h->lock);
    struct kvt__usrbio_client *client = h->stopping ? NULL : h->client;
    h->stopping = true;
    pthread_cond_broadcast(&h->stop);
    pthread_mutex_unlock(&h->lock);
    if (client)
        kvt__usrbio_client_stop(client);
}

static void
hf3fs_close(struct kvt__tier *tier)
{
    struct hf3fs_tier *h = (struct hf3fs_tier *)tier;

    if (h->files.tier.exec) {
        kvt__exec_close(h->files.tier.exec);
        hf3fs_stop(tier);
    }
    if (h->client)
        kvt__usrbio_client_close(h->client);
    pthread_cond_destroy(&h->stop);
    pthread_mutex_destroy(&h->lock);
    kvt__files_close(tier);
}

/* ------------------------------------------------------------- a daemon's restart */

/* After a restart of the daemon, open the directories again under the same descriptors: the new
 * daemon does not know the open files and directories.  Do nothing if another thread has done so
 * since n_opened.  Return 0, or -errno with a sentence. */
static int
reopen(struct hf3fs_tier *h, uint64_t n_opened)
{
    struct kvt__files *t = &h->files;
    int err = 0;

    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; !err && h->n_opened == n_opened && i < t->n_dirs; i++)
        err = kvt__dir_reopen(t, &t->dirs[i], "3FS");
    if (!err && h->n_opened == n_opened)
        h->n_opened++;
    pthread_mutex_unlock(&h->lock);
    return err;
}

/* Wait for RETRY_NS.  Return false if the tier is being stopped. */
static bool
wait_for_retry(struct hf3fs_tier *h)
{
    struct timespec until = kvt__timespec(kvt__now_ns() + RETRY_NS);

    pthread_mutex_lock(&h->lock);
    if (!h->stopping)
        pthread_cond_timedwait(&h->stop, &h->lock, &until);
    bool stopping = h->stopping;
    pthread_mutex_unlock(&h->lock);
    return !stopping;
}

/* Wait until a daemon responds and the directories are open again.  Return false at the deadline
 * or if the tier is being stopped. */
static bool
wait_for_daemon(struct hf3fs_tier *h, uint64_t n_opened, int64_t until_ns)
{
    while (reopen(h, n_opened))
        if (!wait_for_retry(h) || kvt__now_ns() > until_ns)
            return false;
    return true;
}

/* -------------------------------------------------------------------- operations */

/* Acquire a slot of the region.  Before the rings exist, the store uses other memory. */
static bool
hf3fs_acquire_slot(struct kvt__tier *tier, enum kvt__prio prio, size_t bytes, struct kvt__slot *out)
{
    struct kvt__usrbio_client *client = ((struct hf3fs_tier *)tier)->client;

    return client && kvt__usrbio_client_acquire(client, prio, tier->phase, bytes,
                                                out);
}

static int
run_once(struct hf3fs_tier *h, struct kvt__tier_op *op)
{
    bool moves = op->kind == KVT__TIER_PUT || op->kind == KVT__TIER_GET;
    int err = moves ? ensure_rings(h) : 0;

    return err ? err : kvt__files_run(&h->files.tier, op);
}

static uint64_t
n_opened(struct hf3fs_tier *h)
{
    pthread_mutex_lock(&h->lock);
    uint64_t n = h->n_opened;
    pthread_mutex_unlock(&h->lock);
    return n;
}

/* Return true if the operation may succeed with the next daemon.  The former daemon may still
 * write to the memory of a read, so a chunk is not read again into the same slot of the region.
 * The next daemon returns EBADF for a file that was opened before the restart. */
static bool
can_retry(const struct kvt__tier_op *op, int err)
{
    if (err == -ESTALE)
        return op->kind != KVT__TIER_GET || !op->slot.source;
    return err == -ENOTCONN || err == -ECONNABORTED || err == -EBADF;
}

static int
hf3fs_run(struct kvt__tier *tier, struct kvt__tier_op *op)
{
    struct hf3fs_tier *h = (struct hf3fs_tier *)tier;
    int64_t until_ns = 0;
    int err;

    for (int tries = 0;; tries++) {
        uint64_t n = n_opened(h);

        err = run_once(h, op);
        if (!tries) /* the time of the first attempt does not count against the next daemon */
            until_ns = kvt__now_ns() + kvt__hf3fs_max_wait_ns;
        if (!can_retry(op, err) || !wait_for_retry(h) ||
            kvt__now_ns() > until_ns || !wait_for_daemon(h, n, until_ns))
            break;
    }
    return err == -ESTALE ? -ECONNABORTED : err; /* the daemon was replaced, not the chunk */
}

const struct kvt__tier_ops kvt__tier_hf3fs = {
    .name = "hf3fs",
    .open = hf3fs_open,
    .check_url = hf3fs_check_url,
    .check = kvt__hf3fs_check,
    .shm_bytes = kvt__hf3fs_shm_bytes,
    .stop = hf3fs_stop,
    .close = hf3fs_close,
    KVT__FILES_OPS,
    .acquire_slot = hf3fs_acquire_slot,
    .run = hf3fs_run,
};
