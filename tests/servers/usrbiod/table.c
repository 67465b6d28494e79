/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of iovs and rings.  Users of a registration hold a reference; the last reg_drop()
 * unmaps the memory. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "usrbiod.h"

enum { N_BUCKETS = 1024, JOBS_A_LOOK = 32 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct reg *buckets[N_BUCKETS];
static struct reg **slots;
static size_t n_slots;
static uint64_t generation;

static struct reg **
bucket(const uint8_t id[static 16])
{
    return &buckets[(id[0] | id[1] << 8) % N_BUCKETS];
}

/* ------------------------------------------------------------------------- memory */

static int
map(struct reg *reg)
{
    char path[4096];
    struct stat st;

    if (stat(reg->target, &st) < 0 || !S_ISREG(st.st_mode))
        return EINVAL;
    reg->bytes = (size_t)st.st_size;
    if (reg->key.block_bytes > reg->bytes)
        return EINVAL;
    if (!realpath(reg->target, path) || strncmp(path, "/dev/shm/", 9))
        return EACCES;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return EACCES;
    void *base = mmap(NULL, reg->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED)
        return EACCES;
    reg->base = base;
    return 0;
}

void
reg_hold(struct reg *reg)
{
    atomic_fetch_add(&reg->refs, 1);
}

void
reg_drop(struct reg *reg)
{
    if (atomic_fetch_sub(&reg->refs, 1) > 1)
        return;
    ring_free(reg->ring);
    if (reg->base)
        munmap(reg->base, reg->bytes);
    free(reg);
}

/* -------------------------------------------------------------------------- slots */

static int
take_slot_locked(struct reg *reg)
{
    size_t at = 0;

    while (at < n_slots && slots[at])
        at++;
    if (at >= opt.max_iovs)
        return EMFILE;
    if (at == n_slots) {
        size_t n = n_slots ? n_slots * 2 : 64;
        struct reg **more = reallocarray(slots, n, sizeof(struct reg *));

        if (!more)
            return ENOMEM;
        memset(more + n_slots, 0, (n - n_slots) * sizeof(struct reg *));
        slots = more;
        n_slots = n;
    }
    slots[at] = reg;
    reg->slot = at;
    reg->generation = ++generation;
    return 0;
}

static struct reg *
by_id_locked(const uint8_t id[static 16])
{
    struct reg *reg = *bucket(id);

    while (reg && memcmp(reg->key.id, id, 16))
        reg = reg->next;
    return reg;
}

static int
publish(struct reg *reg)
{
    int err = EEXIST;

    pthread_mutex_lock(&lock);
    if (!by_id_locked(reg->key.id))
        err = take_slot_locked(reg);
    if (!err) {
        reg->next = *bucket(reg->key.id);
        *bucket(reg->key.id) = reg;
        reg_hold(reg);
    }
    pthread_mutex_unlock(&lock);
    return err;
}

int
table_add(const char *name, const char *target, const struct fuse_ctx *who,
          struct reg **out)
{
    struct reg *reg = calloc(1, sizeof *reg);

    if (!reg)
        return ENOMEM;
    atomic_init(&reg->refs, 1);
    snprintf(reg->name, sizeof reg->name, "%s", name);
    reg->uid = who->uid;
    reg->gid = who->gid;
    reg->pid = who->pid;
    int err = key_parse(name, &reg->key);
    if (!err && (size_t)snprintf(reg->target, sizeof reg->target, "%s", target) >=
                    sizeof reg->target)
        err = ENAMETOOLONG;
    if (!err)
        err = map(reg);
    if (!err && reg->key.is_ring)
        err = ring_open(reg, &reg->ring);
    if (!err)
        err = publish(reg);
    if (err)
        reg_drop(reg);
    else
        *out = reg;
    return err;
}

static void
remove_locked(struct reg *reg)
{
    struct reg **at = bucket(reg->key.id);

    if (slots[reg->slot] != reg)
        return;
    while (*at != reg)
        at = &(*at)->next;
    *at = reg->next;
    slots[reg->slot] = NULL;
    if (reg->ring)
        ring_withdraw(reg->ring);
    reg_drop(reg);
}

void
table_remove(struct reg *reg)
{
    pthread_mutex_lock(&lock);
    remove_locked(reg);
    pthread_mutex_unlock(&lock);
}

void
table_reap(pid_t pid)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_slots; i++)
        if (slots[i] && slots[i]->pid == pid)
            remove_locked(slots[i]);
    pthread_mutex_unlock(&lock);
}

void
table_fini(void)
{
    for (size_t i = 0; i < n_slots; i++)
        if (slots[i])
            remove_locked(slots[i]);
    free(slots);
    slots = NULL;
    n_slots = 0;
}

/* ------------------------------------------------------------------------ finding */

static struct reg *
held(struct reg *reg)
{
    if (reg)
        reg_hold(reg);
    pthread_mutex_unlock(&lock);
    return reg;
}

struct reg *
table_find(const char *name)
{
    uint8_t id[16];

    if (!key_id(name, id))
        return NULL;
    pthread_mutex_lock(&lock);
    struct reg *reg = by_id_locked(id);
    return held(reg && !strcmp(reg->name, name) ? reg : NULL);
}

struct reg *
table_at(size_t slot)
{
    pthread_mutex_lock(&lock);
    return held(slot < n_slots ? slots[slot] : NULL);
}

struct reg *
table_next(size_t from)
{
    pthread_mutex_lock(&lock);
    while (from < n_slots && !slots[from])
        from++;
    return held(from < n_slots ? slots[from] : NULL);
}

struct reg *
table_iov(const uint8_t id[static 16])
{
    pthread_mutex_lock(&lock);
    struct reg *reg = by_id_locked(id);
    return held(reg && !reg->ring ? reg : NULL);
}

void
table_count(size_t *iovs, size_t *rings)
{
    *iovs = *rings = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_slots; i++)
        if (slots[i])
            ++*(slots[i]->ring ? rings : iovs);
    pthread_mutex_unlock(&lock);
}

static size_t
scan_ring(struct ring *ring)
{
    struct job *job;
    size_t n = 0;

    while (n < JOBS_A_LOOK && (job = ring_take(ring))) {
        work_push(job);
        n++;
    }
    return n;
}

size_t
table_scan(int priority)
{
    size_t n = 0;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_slots; i++)
        if (slots[i] && slots[i]->ring && ring_priority(slots[i]->ring) == priority)
            n += scan_ring(slots[i]->ring);
    pthread_mutex_unlock(&lock);
    return n;
}
