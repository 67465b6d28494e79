/* SPDX-License-Identifier: Apache-2.0
 *
 * What the hf3fs family of `kvtier-bench` is made of: a mount of 3FS, the library that its
 * users link with, and bare loops over that.
 *
 * The library may be the site's or the tests'; its ABI is that of usrbio/abi.h, which has
 * no code. */
#ifndef KVT_BENCH_HF3FS_H
#define KVT_BENCH_HF3FS_H

#include "bench.h"
#include "usrbio/abi.h"

/* ----------------------------------------------------------------- mount.c */

/* A directory on a mount of 3FS. */
struct bench_mount {
    const struct kvt__usrbio_api *api; /* of the library */
    struct bench_program daemon; /* pid 0: the mount was there already */
    char point[KVT__HF3FS_MAX_MOUNT];
    char dir[4096];
    bool split;                /* so it is: there are two cores or more */
    struct bench_cores *cores; /* what the process was allowed before */
};

struct bench_mount_params {
    bool split;         /* the daemon has half of the cores, this process the other */
    uint64_t shm_bytes; /* what the case is going to take of /dev/shm */
    uint64_t rate;     /* bytes a second of each I/O; 0: as fast as it goes */
    unsigned delay_us; /* of each look-up */
};

/* Start the daemon, or take the mount that the case's directory lies on.  What is split
 * holds for the calling thread, and those that it starts from now on.  0, BENCH_LEFT_OUT
 * or an exit code, after saying why; to be closed also then. */
int bench_mount_open(const struct bench *bench, const struct bench_mount_params *params,
                     struct bench_mount *out);
void bench_mount_close(struct bench_mount *mount);

/* The settings of a store there. */
struct bench_mount_settings {
    char path[4200], iov[64];
    const char *list[4];
};
void bench_mount_settings(const struct bench_mount *mount, uint64_t iov_bytes,
                          struct bench_mount_settings *out);

/* What a daemon that was started counts, from the last reset on.  0 or an exit code. */
int bench_mount_reset(const struct bench_mount *mount);
int bench_mount_counts(const struct bench_mount *mount, double *mean_in_flight,
                       double *mean_bytes_in_flight);

/* --------------------------------------------------------------- library.c */

/* libhf3fs_api_shared.so, as far as it is used here.  0 or BENCH_LEFT_OUT, after saying
 * why; what was loaded stays. */
int bench_library_open(const struct kvt__usrbio_api **out);

/* Memory of the daemon's and this process's, its pages there; of what the case said it
 * would take.  0 or an exit code, after saying why. */
int bench_library_memory(const struct bench_mount *mount, size_t bytes,
                         struct kvt__hf3fs_iov *out);

/* One answer or more, at most n; -ETIMEDOUT after ten seconds without. */
int bench_library_wait(const struct kvt__usrbio_api *api, const struct kvt__hf3fs_ior *ring,
                       struct kvt__hf3fs_cqe *answers, int n);

/* ----------------------------------------------------------------- rings.c */

/* Files written and read by one thread through one ring, with all I/Os of all files under
 * way: each file made under another name, closed and then renamed, or opened and closed. */
struct bench_rings {
    const struct bench_mount *mount;
    int dirfd;
    size_t n_files, file_bytes;
    size_t piece; /* bytes of an I/O */
    int depth;    /* the ring's: below 0, so many I/Os of a job at most */
    struct kvt__hf3fs_iov iov;  /* n_files * file_bytes */
    struct kvt__hf3fs_ior ring; /* of this depth and direction, if it has memory */
    struct bench_rings_file *files;
};

/* 0 or an exit code, after saying why; to be closed also then. */
int bench_rings_open(struct bench_rings *r, const struct bench_mount *mount,
                     size_t n_files, size_t file_bytes);
void bench_rings_close(struct bench_rings *r);

/* Find the fastest piece and depth. */
int bench_rings_tune(struct bench_rings *r, bool write);

int bench_rings_write(struct bench_rings *r, struct bench_cost *out);
int bench_rings_read(struct bench_rings *r, struct bench_cost *out);

#endif
