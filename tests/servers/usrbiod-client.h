/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of USRBIO for the tests of the daemon, with the memory layout written down a second
 * time: the tests share no code with the daemon nor with kvtier's client.  One thread. */
#ifndef KVT_USRBIOD_CLIENT_H
#define KVT_USRBIOD_CLIENT_H

#include <dirent.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "usrbiod-server.h"

#define SHARED_PREFIX "hf3fs-iov-test-%ld-"

struct shared {
    uint8_t id[16], *base;
    size_t bytes;
    char target[128], link[700];
};

/* Create a file in /dev/shm and map the file; do not register the memory.  words: the parts of
 * the key after the UUID. */
static inline void
shared_make(struct usrbiod *u, struct shared *s, size_t bytes, const char *words)
{
    char uuid[40];
    int n = 0;

    assert_int_equal(getrandom(s->id, sizeof s->id, 0), sizeof s->id);
    for (int i = 0; i < 16; i++)
        n += snprintf(uuid + n, sizeof uuid - (size_t)n, "%s%02x",
                      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", s->id[i]);
    snprintf(s->target, sizeof s->target, "/dev/shm/" SHARED_PREFIX "%s", (long)getpid(),
             uuid);
    snprintf(s->link, sizeof s->link, "%s/3fs-virt/iovs/%s%s", u->mount, uuid, words);
    int fd = open(s->target, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    s->bytes = bytes;
    s->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(s->base, MAP_FAILED);
    close(fd);
}

/* Register the memory and unlink the file's name in /dev/shm.  Return 0, or the errno of
 * symlink(). */
static inline int
shared_register(struct shared *s)
{
    int err = symlink(s->target, s->link) < 0 ? errno : 0;

    unlink(s->target);
    return err;
}

static inline void
shared_open(struct usrbiod *u, struct shared *s, size_t bytes, const char *words)
{
    shared_make(u, s, bytes, words);
    assert_int_equal(shared_register(s), 0);
}

static inline void
shared_close(struct shared *s)
{
    unlink(s->link);
    unlink(s->target);
    munmap(s->base, s->bytes);
}

/* Remove the files of failed tests. */
static inline void
shared_clean(void)
{
    DIR *d = opendir("/dev/shm");
    struct dirent *e;
    char prefix[64];

    snprintf(prefix, sizeof prefix, SHARED_PREFIX, (long)getpid());
    while (d && (e = readdir(d)))
        if (!strncmp(e->d_name, prefix, strlen(prefix)))
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
}

/* ------------------------------------------------------------------------- a ring */

struct ring {
    struct shared memory;
    size_t n; /* slots, one more than entries */
    size_t slot;
    sem_t *submit, *done;
};

/* Open a ring.  words: parts of the key, such as ".r-4.t0". */
static inline void
ring_open(struct usrbiod *u, struct ring *r, size_t entries, const char *words)
{
    r->n = entries + 1;
    r->slot = 0;
    shared_open(u, &r->memory, 16 + 32 + 96 * r->n + 4096, words);
    r->done = (sem_t *)(void *)(r->memory.base + 16 + 96 * r->n);
    r->submit = sem_open(u->submit, 0);
    assert_ptr_not_equal(r->submit, SEM_FAILED);
}

static inline void
ring_close(struct ring *r)
{
    sem_close(r->submit);
    shared_close(&r->memory);
}

/* Return a counter of the ring.  which: 0 sqe head, 1 sqe tail, 2 cqe head, 3 cqe tail. */
static inline _Atomic int32_t *
ring_counter(struct ring *r, int which)
{
    return (_Atomic int32_t *)(void *)r->memory.base + which;
}

static inline void
put64(uint8_t *at, uint64_t value)
{
    memcpy(at, &value, 8);
}

/* Prepare an I/O.  Slots are used in order: at most as many I/Os as the ring has entries may be
 * in flight. */
static inline void
ring_prepare(struct ring *r, const struct shared *iov, uint64_t buffer_at, uint64_t file,
             uint64_t file_at, uint64_t bytes, uint64_t userdata)
{
    int32_t head = atomic_load(ring_counter(r, 0)), slot = (int32_t)r->slot;
    uint8_t *args = r->memory.base + 16 + 56 * r->slot;
    uint8_t *sqe = r->memory.base + 16 + 80 * r->n + 16 * (size_t)head;

    r->slot = (r->slot + 1) % r->n;
    memcpy(args, iov->id, 16);
    put64(args + 16, buffer_at);
    put64(args + 24, file);
    put64(args + 32, file_at);
    put64(args + 40, bytes);
    put64(args + 48, userdata);
    memcpy(sqe, &slot, 4);
    put64(sqe + 8, userdata);
    atomic_store(ring_counter(r, 0), (head + 1) % (int32_t)r->n);
}

static inline void
ring_submit(struct ring *r)
{
    sem_post(r->submit);
}

struct done {
    int64_t result;
    uint64_t userdata;
};

/* Take a completion.  Return false if none has arrived. */
static inline bool
ring_poll(struct ring *r, struct done *out)
{
    int32_t tail = atomic_load(ring_counter(r, 3));
    uint8_t *cqe = r->memory.base + 16 + 56 * r->n + 24 * (size_t)tail;

    if (tail == atomic_load(ring_counter(r, 2)))
        return false;
    memcpy(&out->result, cqe + 8, 8);
    memcpy(&out->userdata, cqe + 16, 8);
    atomic_store(ring_counter(r, 3), (tail + 1) % (int32_t)r->n);
    return true;
}

/* Wait for the next completion. */
static inline struct done
ring_wait(struct ring *r)
{
    struct done done;

    while (!ring_poll(r, &done))
        while (sem_wait(r->done) < 0)
            continue;
    return done;
}

/* Run a single I/O and return its result. */
static inline int64_t
ring_do(struct ring *r, const struct shared *iov, uint64_t buffer_at, uint64_t file,
        uint64_t file_at, uint64_t bytes)
{
    ring_prepare(r, iov, buffer_at, file, file_at, bytes, 7);
    ring_submit(r);
    return ring_wait(r).result;
}

/* ------------------------------------------------------------------------- a file */

struct open_file {
    char path[600], backing[600];
    int fd;
    uint64_t ino;
};

static inline void
file_open(struct usrbiod *u, struct open_file *f, const char *name)
{
    struct stat st;

    snprintf(f->path, sizeof f->path, "%s/%s", u->mount, name);
    snprintf(f->backing, sizeof f->backing, "%s/%s", u->backing, name);
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    assert_true(f->fd >= 0);
    assert_int_equal(fstat(f->fd, &st), 0);
    f->ino = st.st_ino;
}

static inline void
file_close(struct open_file *f)
{
    assert_int_equal(close(f->fd), 0);
    unlink(f->path);
}

#endif
