/* SPDX-License-Identifier: Apache-2.0
 *
 * Internal parts of kvtier's own implementation of the ring protocol.  A function that has the name
 * of a member of struct kvt__usrbio_api, after kvt__own_, implements the member (abi.h). */
#ifndef KVT_USRBIO_OWN_H
#define KVT_USRBIO_OWN_H

#include <semaphore.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "usrbio/abi.h"

/* ------------------------------------------------------------- own-mount.c */

/* A mount in which a thread announces memory: the open directory of announcements and the daemon's
 * semaphore.  When a thread's descriptor of this directory is closed, the daemon forgets all memory
 * that the thread has announced.  So each thread has a kvt__own_mount, which outlives the announced
 * memory. */
struct kvt__own_mount {
    struct kvt__own_mount *next;
    size_t refs;
    pid_t thread;
    int dir;        /* 3fs-virt/iovs */
    sem_t *submit;
    dev_t dev;      /* with target: identifies the run of the daemon */
    bool stale;     /* another run of the daemon serves the mount now */
    char target[256]; /* target of the link submit-ios */
    char path[KVT__HF3FS_MAX_MOUNT];
};

/* Acquire the calling thread's mount for `path` (the mount point), and open the mount if
 * necessary.  Returns 0, or a negative errno with a sentence.  The caller releases the mount; any
 * thread may release. */
int kvt__own_mount_acquire(const char *path, struct kvt__own_mount **out);
void kvt__own_mount_release(struct kvt__own_mount *mount);

/* Lock the list of mounts before a fork; unlock after the fork; in the child, also forget the
 * parent's mounts. */
void kvt__own_mounts_lock(void);
void kvt__own_mounts_unlock(void);
void kvt__own_mounts_forget(void); /* in a forked child, with the lock held */

/* --------------------------------------------------------------- own-shm.c */

/* Parts of the name of a link that announces memory. */
struct kvt__own_key {
    const char *id; /* 16 bytes, an UUID */
    size_t block_size;
    char direction; /* 'r' or 'w': a ring; '\0': no ring */
    int io_depth;
    int priority;
    int timeout;
    uint64_t flags;
};

#define KVT__OWN_KEY_BYTES 192

/* Write the name of the link, terminated by NUL. */
void kvt__own_key_text(const struct kvt__own_key *key, char out[KVT__OWN_KEY_BYTES]);

/* Number of forks between the process that first used this implementation and this process. */
extern _Atomic unsigned kvt__own_generation;

/* Shared memory that is announced to the daemon. */
struct kvt__own_shm {
    struct kvt__own_mount *mount;
    unsigned generation;
    unsigned char *base;
    size_t size;
    char id[16];
    char name[64]; /* name in /dev/shm; "": unlinked */
    char key[KVT__OWN_KEY_BYTES];
};

/* Allocate `size` bytes of shared memory, reserve the pages, and announce the memory to the
 * daemon of the mount.  The function sets key->id.  Returns 0, or a negative errno with a
 * sentence. */
int kvt__own_shm_open(struct kvt__own_shm *shm, const char *mount, size_t size, int numa,
                      struct kvt__own_key *key);
/* Unlink the name in /dev/shm: the memory remains until kvt__own_shm_close() and the daemon's
 * unmapping. */
void kvt__own_shm_unlink(struct kvt__own_shm *shm);
/* Withdraw the announcement and unmap the memory.  In a forked child, only release the mount. */
void kvt__own_shm_close(struct kvt__own_shm *shm);

int kvt__own_iovcreate(struct kvt__hf3fs_iov *iov, const char *mount, size_t size,
                       size_t block_size, int numa);
void kvt__own_iovunlink(struct kvt__hf3fs_iov *iov);
void kvt__own_iovdestroy(struct kvt__hf3fs_iov *iov);

/* ---------------------------------------------------------------- own-fd.c */

/* An open file that is registered for I/Os. */
struct kvt__own_file {
    uint64_t inode;
    int access; /* O_RDONLY, O_WRONLY, O_RDWR */
};

/* Any thread. */
bool kvt__own_is_hf3fs(int fd);
int kvt__own_reg_fd(int fd, uint64_t flags);
void kvt__own_dereg_fd(int fd);

/* Look up a registered file by its descriptor, or by the result of kvt__own_reg_fd(), negative or
 * not.  False: the file is not registered. */
bool kvt__own_find_file(int fd, struct kvt__own_file *out);

/* As kvt__own_mounts_lock(), for the list of registered files. */
void kvt__own_files_lock(void);
void kvt__own_files_unlock(void);
void kvt__own_files_forget(void); /* in a forked child, with the lock held */

/* -------------------------------------------------------------- own-ring.c */

/* The memory of a ring with n slots, little-endian: struct kvt__ring_heads, then n arguments
 * (struct kvt__ring_args), n completions (cqe), n submissions (sqe) and a semaphore.  Submissions
 * and completions are queues, in which one slot stays empty; `index` is the slot of the arguments.
 * The functions below return offsets from the start. */
struct kvt__ring_heads {
    _Atomic int32_t sqe_head, sqe_tail, cqe_head, cqe_tail; /* modulo n */
};

struct kvt__ring_args {
    char buf[16]; /* id of the shared memory of the bytes */
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
#define KVT__RING_SLACK 4096 /* bytes behind the semaphore */

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

/* The mounts that contain a path. */
struct kvt__mount_location {
    char type[64];          /* type of the file system with the path; "": not found */
    char mount_point[4096]; /* mount point of this file system */
    /* Mount point of the 3FS with rings that contains the path; "": none. */
    char rings_mount_point[4096];
};

/* Find the mounts that contain a path, which has no symbolic links.  mountinfo: the text of
 * /proc/self/mountinfo.  any_type: mounts of types other than fuse.hf3fs count as 3FS too.  May
 * block in stat() of a mount. */
void kvt__mount_find(const char *mountinfo, const char *path, bool any_type,
                     struct kvt__mount_location *out);

int kvt__own_extract_mount_point(char *mount, int size, const char *path);

#endif
