/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of our own implementation of the ring protocol. */
#ifndef KVT_USRBIO_OWN_H
#define KVT_USRBIO_OWN_H

#include <semaphore.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "usrbio/abi.h"

/* ------------------------------------------------------------- own-mount.c */

/* What a thread needs of a mount to announce memory there: the directory for it, open, and
 * the daemon's semaphore.  The daemon forgets all that a thread announced when the
 * directory that this very thread opened is closed, by the end of the process if need be.
 * So each thread has its own, and it outlives what was announced. */
struct kvt__own_mount {
    struct kvt__own_mount *next;
    size_t refs;
    pid_t thread;
    int dir;        /* 3fs-virt/iovs */
    sem_t *submit;
    dev_t dev;      /* with target: which daemon's */
    bool stale;     /* another daemon has taken its place */
    char target[256]; /* of the link submit-ios */
    char path[KVT__HF3FS_MAX_MOUNT];
};

int kvt__own_mount_acquire(const char *path, struct kvt__own_mount **out);
void kvt__own_mount_release(struct kvt__own_mount *mount);

void kvt__own_mounts_lock(void);
void kvt__own_mounts_unlock(void);
void kvt__own_mounts_forget(void); /* locked, in a forked child */

/* --------------------------------------------------------------- own-shm.c */

/* The name under which memory is announced. */
struct kvt__own_key {
    const char *id; /* 16 bytes */
    size_t block_size;
    char direction; /* 'r', 'w', '\0': no ring */
    int io_depth;
    int priority;
    int timeout;
    uint64_t flags;
};

#define KVT__OWN_KEY_BYTES 192

void kvt__own_key_text(const struct kvt__own_key *key, char out[KVT__OWN_KEY_BYTES]);

/* Counts the forks that lie between this process and the one that loaded the library. */
extern _Atomic unsigned kvt__own_generation;

/* Announced shared memory. */
struct kvt__own_shm {
    struct kvt__own_mount *mount;
    unsigned generation;
    unsigned char *base;
    size_t size;
    char id[16];
    char name[64]; /* in /dev/shm; "": unlinked */
    char key[KVT__OWN_KEY_BYTES];
};

/* key->id is set by it. */
int kvt__own_shm_make(struct kvt__own_shm *shm, const char *mount, size_t size, int numa,
                      struct kvt__own_key *key);
void kvt__own_shm_unlink(struct kvt__own_shm *shm);
void kvt__own_shm_end(struct kvt__own_shm *shm);

int kvt__own_iovcreate(struct kvt__hf3fs_iov *iov, const char *mount, size_t size,
                       size_t block_size, int numa);
void kvt__own_iovunlink(struct kvt__hf3fs_iov *iov);
void kvt__own_iovdestroy(struct kvt__hf3fs_iov *iov);

/* ---------------------------------------------------------------- own-fd.c */

struct kvt__own_file {
    uint64_t inode;
    int access; /* O_RDONLY, O_WRONLY, O_RDWR */
};

bool kvt__own_is_hf3fs(int fd);
int kvt__own_reg_fd(int fd, uint64_t flags);
void kvt__own_dereg_fd(int fd);

/* False: not registered. */
bool kvt__own_file_of(int fd, struct kvt__own_file *out);

void kvt__own_files_lock(void);
void kvt__own_files_unlock(void);
void kvt__own_files_forget(void); /* locked, in a forked child */

/* -------------------------------------------------------------- own-ring.c */

/* The ring's memory: little-endian, offsets from its start, n slots of which one stays
 * empty in each of the two queues. */
struct kvt__ring_heads {
    _Atomic int32_t sqe_head, sqe_tail, cqe_head, cqe_tail; /* modulo n */
};

struct kvt__ring_args {
    char buf[16];
    uint64_t buf_off, inode, file_off, bytes, userdata;
};

struct kvt__ring_cqe {
    int32_t index, pad;
    int64_t result;
    uint64_t userdata;
};

struct kvt__ring_sqe {
    int32_t index, pad;
    uint64_t userdata;
};

_Static_assert(sizeof(struct kvt__ring_heads) == 16, "heads");
_Static_assert(sizeof(struct kvt__ring_args) == 56, "args");
_Static_assert(sizeof(struct kvt__ring_cqe) == 24, "cqe");
_Static_assert(sizeof(struct kvt__ring_sqe) == 16, "sqe");
_Static_assert(sizeof(sem_t) == 32, "sem_t of 64-bit glibc");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "byte order");

#define KVT__RING_ARGS_AT sizeof(struct kvt__ring_heads)
#define KVT__RING_SLACK 4096 /* behind the semaphore */

static inline size_t
kvt__ring_cqe_at(size_t n)
{
    return KVT__RING_ARGS_AT + n * sizeof(struct kvt__ring_args);
}

static inline size_t
kvt__ring_sqe_at(size_t n)
{
    return kvt__ring_cqe_at(n) + n * sizeof(struct kvt__ring_cqe);
}

static inline size_t
kvt__ring_sem_at(size_t n)
{
    return kvt__ring_sqe_at(n) + n * sizeof(struct kvt__ring_sqe);
}

size_t kvt__own_ior_size(int entries);
int kvt__own_iorcreate4(struct kvt__hf3fs_ior *ior, const char *mount, int entries,
                        bool for_read, int io_depth, int timeout, int numa,
                        uint64_t flags);
void kvt__own_iordestroy(struct kvt__hf3fs_ior *ior);
int kvt__own_prep_io(const struct kvt__hf3fs_ior *ior, const struct kvt__hf3fs_iov *iov,
                     bool read, void *ptr, int fd, size_t off, uint64_t len,
                     const void *userdata);
int kvt__own_submit_ios(const struct kvt__hf3fs_ior *ior);
int kvt__own_wait_for_ios(const struct kvt__hf3fs_ior *ior, struct kvt__hf3fs_cqe *cqes,
                          int cqec, int min_results, const struct timespec *abs_timeout);

/* ----------------------------------------------------------------- mount.c */

/* What a table of mounts (/proc/self/mountinfo) says of a path without links. */
struct kvt__mount_place {
    char type[64];   /* of the file system it lies on; "": not found */
    char over[4096]; /* where that is mounted */
    char rings[4096]; /* the mount point of a 3FS with rings around it; "": none */
};

/* any_type: mounts of other types than fuse.hf3fs count too. */
void kvt__mount_find(const char *mountinfo, const char *path, bool any_type,
                     struct kvt__mount_place *out);

int kvt__own_extract_mount_point(char *mount, int size, const char *path);

#endif
