/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the C ABI of libhf3fs_api_shared.so that kvtier uses: 3FS's rings in shared memory.
 * struct kvt__usrbio_api is a table of functions with these signatures, rules and errors.  The
 * site's library (library.c) and kvtier's own implementation (own.c) each fill in such a table.
 *
 * Errors are negative errno.  Only reg_fd() differs: success is the negative of a descriptor, and
 * an error is a positive errno.
 *
 * A ring has one direction.  Only one thread at a time may prepare I/Os of a ring; meanwhile any
 * number of threads may submit, and wait for completions.  Rings are independent of each other.
 * The daemon may start an I/O as soon as prep_io() returns; a prepared I/O cannot be withdrawn. */
#ifndef KVT_USRBIO_ABI_H
#define KVT_USRBIO_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define KVT__HF3FS_SUPER_MAGIC UINT32_C(0x8f3f5fff)
#define KVT__HF3FS_GET_MAGIC 0x80046802UL /* ioctl; the argument is an uint32_t * */

/* Flags of a ring. */
#define KVT__HF3FS_ALLOW_READ_UNCOMMITTED UINT64_C(1)
#define KVT__HF3FS_FORBID_READ_HOLES UINT64_C(2)

#define KVT__HF3FS_MAX_MOUNT 256 /* bytes of a mount point's path, with the NUL */

/* Shared memory for data.  The caller owns the struct, and zeroes the struct before iovcreate(). */
struct kvt__hf3fs_iov {
    uint8_t *base;
    void *iovh; /* private data of the implementation */
    char id[16];
    char mount_point[KVT__HF3FS_MAX_MOUNT];
    size_t size;
    size_t block_size; /* an I/O must not cross a block boundary; 0: a single block */
    int numa;
};

/* A ring.  The caller owns the struct, and zeroes the struct before iorcreate4(). */
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

/* A completion. */
struct kvt__hf3fs_cqe {
    int32_t index;
    int32_t reserved; /* never written */
    int64_t result;   /* bytes, possibly fewer than requested, or -errno */
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

    /* Return true if fd is a file or directory of a 3FS mount. */
    bool (*is_hf3fs)(int fd);

    /* Write the mount point of the 3FS that contains `path`, if `size` suffices.  Returns the
     * length with the NUL, or -1.  The site's library ends the process if the path does not
     * exist. */
    int (*extract_mount_point)(char *mount, int size, const char *path);

    /* Allocate shared memory, and announce the memory to the daemon.  Expensive: allocate few,
     * large regions.  iovunlink() unlinks the name in /dev/shm; the kernel then frees the memory
     * when the last process unmaps the memory. */
    int (*iovcreate)(struct kvt__hf3fs_iov *iov, const char *mount, size_t size,
                     size_t block_size, int numa);
    void (*iovunlink)(struct kvt__hf3fs_iov *iov);
    void (*iovdestroy)(struct kvt__hf3fs_iov *iov);

    /* Return the bytes of memory of a ring with this number of entries. */
    size_t (*ior_size)(int entries);
    /* Create a ring.  entries: I/Os in the ring, at most.  io_depth: as in struct
     * kvt__usrbio_params.  timeout: a setting of the daemon; kvtier passes 0.  numa: the preferred
     * memory node; -1: any.  flags: KVT__HF3FS_*. */
    int (*iorcreate4)(struct kvt__hf3fs_ior *ior, const char *mount, int entries,
                      bool for_read, int io_depth, int timeout, int numa,
                      uint64_t flags);
    void (*iordestroy)(struct kvt__hf3fs_ior *ior);

    /* Register a file for I/Os.  The caller calls dereg_fd() with the original descriptor before
     * the descriptor is closed. */
    int (*reg_fd)(int fd, uint64_t flags);
    void (*dereg_fd)(int fd);

    /* Prepare an I/O. fd: the original descriptor or the result of reg_fd().  Returns the slot
     * (>= 0), or -EAGAIN: the ring is full. */
    int (*prep_io)(const struct kvt__hf3fs_ior *ior, const struct kvt__hf3fs_iov *iov,
                   bool read, void *ptr, int fd, size_t off, uint64_t len,
                   const void *userdata);
    /* Inform the daemon of the prepared I/Os.  Does not block. */
    int (*submit_ios)(const struct kvt__hf3fs_ior *ior);

    /* Wait until min_results completions have arrived or abs_timeout has passed (CLOCK_REALTIME;
     * NULL: no timeout).  Returns the number of entries filled in, possibly 0. */
    int (*wait_for_ios)(const struct kvt__hf3fs_ior *ior, struct kvt__hf3fs_cqe *cqes,
                        int cqec, int min_results, const struct timespec *abs_timeout);
};

#endif
