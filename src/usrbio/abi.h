/* SPDX-License-Identifier: Apache-2.0
 *
 * The C ABI of libhf3fs_api_shared.so, as far as it is used here: 3FS's rings in shared
 * memory.  Whoever implements it - the site's library or own.c - is a table of functions
 * with exactly these signatures, rules and errors.
 *
 * Errors are negative errno, but for reg_fd(): there success is the negative of a
 * descriptor and an error is positive.  A ring has one direction.  prep_io() is for one
 * thread at a time on a ring, and what it took may run at once and cannot be taken back;
 * one thread may prepare and submit while any number wait; rings do not know of each
 * other. */
#ifndef KVT_USRBIO_ABI_H
#define KVT_USRBIO_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define KVT__HF3FS_SUPER_MAGIC UINT32_C(0x8f3f5fff)
#define KVT__HF3FS_GET_MAGIC 0x80046802UL /* ioctl, uint32_t out */

/* Flags of a ring. */
#define KVT__HF3FS_ALLOW_READ_UNCOMMITTED UINT64_C(1)
#define KVT__HF3FS_FORBID_READ_HOLES UINT64_C(2)

#define KVT__HF3FS_MAX_MOUNT 256 /* bytes of a mount point's path, with the NUL */

/* Shared memory that data is read into and written from.  The struct belongs to the
 * caller, who zeroes it first. */
struct kvt__hf3fs_iov {
    uint8_t *base;
    void *iovh; /* the implementation's own */
    char id[16];
    char mount_point[KVT__HF3FS_MAX_MOUNT];
    size_t size;
    size_t block_size; /* no I/O may cross one; 0: the whole is one */
    int numa;
};

/* A ring.  Likewise. */
struct kvt__hf3fs_ior {
    struct kvt__hf3fs_iov iov; /* the ring's own memory */
    void *iorh;
    char mount_point[KVT__HF3FS_MAX_MOUNT];
    bool for_read;
    int io_depth;
    int priority;
    int timeout;
    uint64_t flags;
};

/* One I/O that is over. */
struct kvt__hf3fs_cqe {
    int32_t index;
    int32_t reserved; /* never written */
    int64_t result;   /* bytes, fewer than asked for too, or -errno */
    const void *userdata;
};

#define KVT__AT(type, field, offset)                                                   \
    _Static_assert(offsetof(struct kvt__hf3fs_##type, field) == (offset), #field)
#define KVT__SIZE(type, size)                                                          \
    _Static_assert(sizeof(struct kvt__hf3fs_##type) == (size), #type)

KVT__AT(iov, base, 0);
KVT__AT(iov, iovh, 8);
KVT__AT(iov, id, 16);
KVT__AT(iov, mount_point, 32);
KVT__AT(iov, size, 288);
KVT__AT(iov, block_size, 296);
KVT__AT(iov, numa, 304);
KVT__SIZE(iov, 312);
KVT__AT(ior, iov, 0);
KVT__AT(ior, iorh, 312);
KVT__AT(ior, mount_point, 320);
KVT__AT(ior, for_read, 576);
KVT__AT(ior, io_depth, 580);
KVT__AT(ior, priority, 584);
KVT__AT(ior, timeout, 588);
KVT__AT(ior, flags, 592);
KVT__SIZE(ior, 600);
KVT__AT(cqe, index, 0);
KVT__AT(cqe, reserved, 4);
KVT__AT(cqe, result, 8);
KVT__AT(cqe, userdata, 16);
KVT__SIZE(cqe, 24);

#undef KVT__AT
#undef KVT__SIZE

struct kvt__usrbio_api {
    const char *name; /* "library" or "own" */

    bool (*is_hf3fs)(int fd);

    /* The length of the mount point that path lies in, with the NUL, or -1.  Copied only
     * if it fits.  The library ends the process if there is no such path. */
    int (*extract_mount_point)(char *mount, int size, const char *path);

    /* Make shared memory and tell the daemon of it.  Costly: few, large, once.  unlink
     * takes the name from /dev/shm: what has none is gone when the last process is. */
    int (*iovcreate)(struct kvt__hf3fs_iov *iov, const char *mount, size_t size,
                     size_t block_size, int numa);
    void (*iovunlink)(struct kvt__hf3fs_iov *iov);
    void (*iovdestroy)(struct kvt__hf3fs_iov *iov);

    size_t (*ior_size)(int entries);
    int (*iorcreate4)(struct kvt__hf3fs_ior *ior, const char *mount, int entries,
                      bool for_read, int io_depth, int timeout, int numa,
                      uint64_t flags);
    void (*iordestroy)(struct kvt__hf3fs_ior *ior);

    /* dereg_fd() with the original number, before it is closed. */
    int (*reg_fd)(int fd, uint64_t flags);
    void (*dereg_fd)(int fd);

    /* fd: the original or what reg_fd() returned.  The slot (>= 0), or -EAGAIN: full. */
    int (*prep_io)(const struct kvt__hf3fs_ior *ior, const struct kvt__hf3fs_iov *iov,
                   bool read, void *ptr, int fd, size_t off, uint64_t len,
                   const void *userdata);
    int (*submit_ios)(const struct kvt__hf3fs_ior *ior);

    /* Until min_results are there or abs_timeout (CLOCK_REALTIME, NULL: for ever) has
     * come.  The number of entries filled, 0 too. */
    int (*wait_for_ios)(const struct kvt__hf3fs_ior *ior, struct kvt__hf3fs_cqe *cqes,
                        int cqec, int min_results, const struct timespec *abs_timeout);
};

#endif
