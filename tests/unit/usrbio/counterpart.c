/* SPDX-License-Identifier: Apache-2.0
 *
 * The counterpart implements section "ring memory" of the protocol for the daemon. */
#include "counterpart.h"

#include "kvt-test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct job {
    int32_t first, n;
    bool done;
};

static _Atomic int32_t *
head(const struct served_ring *r, int which)
{
    return (_Atomic int32_t *)(r->base + 4 * which);
}

enum { SQE_HEAD, SQE_TAIL, CQE_HEAD, CQE_TAIL };

static int64_t
do_io(struct counterpart *c, const unsigned char *args)
{
    uint64_t buf_off, inode, file_off, len;

    memcpy(&buf_off, args + 16, 8);
    memcpy(&inode, args + 24, 8);
    memcpy(&file_off, args + 32, 8);
    memcpy(&len, args + 40, 8);
    if (c->result)
        return c->result;
    if (!c->memory || memcmp(args, c->memory->id, 16) || buf_off > c->memory->size ||
        len > c->memory->size - buf_off)
        return -EINVAL;
    if (inode != c->inode)
        return -EBADF;
    len -= (uint64_t)c->short_by < len ? (uint64_t)c->short_by : len;
    return (int64_t)len;
}

static int64_t
transfer(struct counterpart *c, const struct served_ring *r, int32_t slot, bool read)
{
    const unsigned char *args = r->base + 16 + 56 * slot;
    uint64_t buf_off, file_off;
    int64_t n = do_io(c, args);

    if (n <= 0)
        return n;
    memcpy(&buf_off, args + 16, 8);
    memcpy(&file_off, args + 32, 8);
    unsigned char *at = c->memory->base + buf_off;
    n = read ? pread(c->fd, at, (size_t)n, (off_t)file_off)
             : pwrite(c->fd, at, (size_t)n, (off_t)file_off);
    return n < 0 ? -errno : n;
}

static void
put_cqe(struct served_ring *r, int32_t slot, int64_t result,
        const unsigned char *userdata)
{
    int32_t at = atomic_load(head(r, CQE_HEAD));
    unsigned char *cqe = r->base + 16 + 56 * r->n + 24 * at;

    memcpy(cqe, &slot, 4);
    memcpy(cqe + 8, &result, 8);
    memcpy(cqe + 16, userdata, 8);
    atomic_store(head(r, CQE_HEAD), (at + 1) % r->n);
}

/* Result of an I/O. */
struct outcome {
    int32_t slot;
    int64_t result;
    unsigned char userdata[8];
};

static void
run_job(struct counterpart *c, struct served_ring *r, const struct job *job, bool read,
        struct outcome *outcomes)
{
    for (int32_t i = 0; i < job->n; i++) {
        const unsigned char *sqe = r->base + 16 + 80 * r->n +
                                   16 * ((job->first + i) % r->n);

        memcpy(&outcomes[i].slot, sqe, 4);
        memcpy(outcomes[i].userdata, sqe + 8, 8);
        if (outcomes[i].slot < 0 || outcomes[i].slot > r->n - 2)
            abort();
        outcomes[i].result = transfer(c, r, outcomes[i].slot, read);
    }
}

static void
complete(struct counterpart *c, struct served_ring *r, int32_t n,
         const struct outcome *outcomes)
{
    static const unsigned char nothing[8];

    for (; c->wrong > 0; c->wrong--)
        put_cqe(r, c->wrong % 2 ? -1 : r->n, 1, nothing);
    for (int32_t i = 0; i < n; i++)
        put_cqe(r, outcomes[i].slot, outcomes[i].result, outcomes[i].userdata);
    r->done += n;
    if (!c->silent)
        sem_post((sem_t *)(r->base + 16 + 96 * r->n));
}

/* Run jobs.  The queue's tail moves past a finished job only after all earlier jobs have
 * finished. */
static void
run_jobs(struct counterpart *c, struct served_ring *r, struct job *jobs, int32_t n,
         bool read, unsigned *seed)
{
    struct outcome outcomes[MAX_SLOTS];
    int32_t order[MAX_SLOTS], in_order = 0;

    for (int32_t i = 0; i < n; i++) {
        int32_t j = c->shuffled ? rand_r(seed) % (i + 1) : i;
        order[i] = order[j];
        order[j] = i;
    }
    for (int32_t i = 0; i < n; i++) {
        struct job *job = &jobs[order[i]];

        run_job(c, r, job, read, outcomes);
        job->done = true;
        while (in_order < n && jobs[in_order].done) {
            atomic_store(head(r, SQE_TAIL),
                         (jobs[in_order].first + jobs[in_order].n) % r->n);
            in_order++;
        }
        complete(c, r, job->n, outcomes);
    }
}

/* Take and run the I/Os of a ring.  Return true if there were I/Os. */
static bool
run_ring(struct counterpart *c, struct served_ring *r, bool read, unsigned *seed)
{
    struct job jobs[MAX_SLOTS];
    int32_t n_jobs = 0;
    int32_t there = (atomic_load(head(r, SQE_HEAD)) - r->proc_tail + r->n) % r->n;
    int32_t room = r->n - 1 - (atomic_load(head(r, CQE_HEAD)) -
                               atomic_load(head(r, CQE_TAIL)) + r->n) % r->n;

    if (there > room)
        there = room;
    if (c->wrong && there > room - c->wrong)
        c->wrong = 0;
    while (there) {
        int32_t n = c->job_size ? c->job_size : 1 + rand_r(seed) % 8;

        n = n < there ? n : there;
        jobs[n_jobs++] = (struct job){ r->proc_tail, n, false };
        r->proc_tail = (r->proc_tail + n) % r->n;
        there -= n;
    }
    run_jobs(c, r, jobs, n_jobs, read, seed);
    return n_jobs > 0;
}

static void *
counterpart_main(void *arg)
{
    struct counterpart *c = arg;
    unsigned seed = 1;

    while (!c->stop) {
        bool any;

        while (sem_wait(c->submit))
            continue;
        do {
            any = false;
            pthread_mutex_lock(&c->lock);
            for (size_t i = 0; i < MAX_RINGS && !c->idle; i++)
                if (c->rings[i].base)
                    any |= run_ring(c, &c->rings[i], i % 2 == 0, &seed);
            pthread_mutex_unlock(&c->lock);
        } while (any);
    }
    return NULL;
}

/* ----------------------------------------------------------------- the tree */

static void
make_semaphore(struct counterpart *c)
{
    static atomic_int count;
    char target[128], link[256];

    /* A process killed earlier, perhaps with this process id, may have left a semaphore: only the
     * directory's name is unique. */
    snprintf(c->sem_name, sizeof c->sem_name, "/kvtier-test-submit.%s.%d",
             strrchr(c->path, '-') + 1, count++);
    c->submit = sem_open(c->sem_name, O_CREAT | O_EXCL, 0600, 0);
    assert_true(c->submit != SEM_FAILED);
    snprintf(target, sizeof target, "/dev/shm/sem.%s", c->sem_name + 1);
    snprintf(link, sizeof link, "%s/3fs-virt/iovs/submit-ios", c->path);
    assert_int_equal(symlink(target, link), 0);
}

static void
end_semaphore(struct counterpart *c)
{
    char link[256];

    sem_close(c->submit);
    sem_unlink(c->sem_name);
    snprintf(link, sizeof link, "%s/3fs-virt/iovs/submit-ios", c->path);
    unlink(link);
}

static void
start_thread(struct counterpart *c)
{
    c->stop = false;
    assert_int_equal(pthread_create(&c->thread, NULL, counterpart_main, c), 0);
}

static void
stop_thread(struct counterpart *c)
{
    c->stop = true;
    sem_post(c->submit);
    pthread_join(c->thread, NULL);
}

void
counterpart_start(struct counterpart *c)
{
    char path[256];

    memset(c, 0, sizeof *c);
    pthread_mutex_init(&c->lock, NULL);
    strcpy(c->path, "/tmp/kvtier-usrbio-XXXXXX");
    assert_non_null(mkdtemp(c->path));
    snprintf(path, sizeof path, "%s/3fs-virt", c->path);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/3fs-virt/iovs", c->path);
    assert_int_equal(mkdir(path, 0700), 0);
    make_semaphore(c);
    c->fd = -1;
    start_thread(c);
}

void
counterpart_stop(struct counterpart *c)
{
    char path[512], name[256];

    stop_thread(c);
    end_semaphore(c);
    while (counterpart_links(c, name)) {
        snprintf(path, sizeof path, "%s/3fs-virt/iovs/%s", c->path, name);
        assert_int_equal(unlink(path), 0);
    }
    snprintf(path, sizeof path, "%s/3fs-virt/iovs", c->path);
    assert_int_equal(rmdir(path), 0);
    snprintf(path, sizeof path, "%s/3fs-virt", c->path);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(c->path), 0);
    pthread_mutex_destroy(&c->lock);
}

void
counterpart_restart(struct counterpart *c)
{
    stop_thread(c);
    end_semaphore(c);
    memset(c->rings, 0, sizeof c->rings);
    make_semaphore(c);
    start_thread(c);
}

/* The thread holds the lock while it takes I/Os, so no I/O is taken after the return. */
void
counterpart_idle(struct counterpart *c, bool idle)
{
    pthread_mutex_lock(&c->lock);
    c->idle = idle;
    pthread_mutex_unlock(&c->lock);
}

int
counterpart_links(const struct counterpart *c, char *name)
{
    char path[256];
    struct dirent *e;
    int n = 0;

    snprintf(path, sizeof path, "%s/3fs-virt/iovs", c->path);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    while ((e = readdir(dir))) {
        if (*e->d_name == '.' || !strcmp(e->d_name, "submit-ios"))
            continue;
        strcpy(name, e->d_name);
        n++;
    }
    closedir(dir);
    return n;
}

/* Rings for reads have even indexes. */
void
counterpart_serve(struct counterpart *c, const struct kvt__hf3fs_ior *ior)
{
    size_t i = ior->for_read ? 0 : 1;
    int32_t n = (int32_t)((ior->iov.size - 4096 - 16 - 32) / 96);

    assert_int_equal(sem_init((sem_t *)(ior->iov.base + 16 + 96 * n), 1, 0), 0);
    pthread_mutex_lock(&c->lock);
    while (i < MAX_RINGS && c->rings[i].base)
        i += 2;
    assert_true(i < MAX_RINGS && n <= MAX_SLOTS);
    c->rings[i] = (struct served_ring){ .base = ior->iov.base, .n = n };
    pthread_mutex_unlock(&c->lock);
}

void
counterpart_forget(struct counterpart *c, const struct kvt__hf3fs_ior *ior)
{
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < MAX_RINGS; i++)
        if (c->rings[i].base == ior->iov.base)
            c->rings[i].base = NULL;
    pthread_mutex_unlock(&c->lock);
}
