/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the hf3fs family of kvtier-bench: a mount of 3FS, the client library of 3FS
 * (libhf3fs_api_shared.so), and the baseline loop over the library's rings.
 *
 * The library is the site's, or the replacement that the tests build.  usrbio/abi.h declares the
 * library's ABI.  Functions that return int return 0 or an exit code after a message, unless
 * their comment says otherwise. */
#ifndef KVT_BENCH_HF3FS_H
#define KVT_BENCH_HF3FS_H

#include "bench.h"
#include "usrbio/abi.h"

/* ------------------------------------------------------------ hf3fs-mount.c */

/* A directory on a mount of 3FS. */
struct bench_hf3fs_mount {
    const struct kvt__usrbio_api *api; /* functions of the library */
    struct bench_program daemon; /* pid 0: the mount existed before the case */
    char point[KVT__HF3FS_MAX_MOUNT]; /* the mount point */
    char dir[4096];            /* the directory for chunks, on the mount */
    bool split;                /* the daemon and this process run on different cores */
    struct bench_cores *cores; /* CPU affinity of the thread before the split */
};

struct bench_hf3fs_mount_params {
    bool split;         /* run the daemon on half of the cores, this process on the other half */
    uint64_t shm_bytes; /* bytes of /dev/shm that the case allocates */
    uint64_t rate;      /* bytes a second of each I/O; 0: no limit */
    unsigned delay_us;  /* delay of each metadata lookup */
};

/* Start the daemon, or use the mount that contains the case's directory.  The split restricts
 * the calling thread, and the threads that the calling thread starts later.  Without two cores
 * nothing is split.  Return 0, BENCH_SKIPPED or an exit code, after a message.  Call
 * bench_hf3fs_mount_close() even after an error. */
int bench_hf3fs_mount_open(const struct bench *bench, const struct bench_hf3fs_mount_params *params,
                     struct bench_hf3fs_mount *out);

/* End the daemon, unmount, and restore the thread's CPU affinity.  Close engines and stores over
 * the mount first. */
void bench_hf3fs_mount_close(struct bench_hf3fs_mount *mount);

/* Settings of a store or engine over the mount; `list` points into the struct. */
struct bench_hf3fs_settings {
    char path[4200], iov[64];
    const char *list[4]; /* for bench_engine_open(); ends with NULL */
};

/* Fill in the settings; iov_bytes is the value of hf3fs_iov_size. */
void bench_hf3fs_settings(const struct bench_hf3fs_mount *mount, uint64_t iov_bytes,
                          struct bench_hf3fs_settings *out);

/* Reset the counters of the daemon.  Only for a mount with a daemon that the case started. */
int bench_hf3fs_reset_stats(const struct bench_hf3fs_mount *mount);

/* Read the daemon's means over time since the last reset: I/Os in flight and their bytes. */
int bench_hf3fs_read_stats(const struct bench_hf3fs_mount *mount, double *mean_in_flight,
                       double *mean_bytes_in_flight);

/* ---------------------------------------------------------- hf3fs-library.c */

/* Load libhf3fs_api_shared.so once and look up the functions.  *out is static.  The library is
 * never unloaded.  Return 0, or BENCH_SKIPPED after a message. */
int bench_hf3fs_library(const struct kvt__usrbio_api **out);

/* Allocate memory that the daemon and this process share, and populate the pages.  The case
 * must have counted the bytes in bench_hf3fs_mount_params.shm_bytes.  The
 * caller frees the memory with api->iovdestroy(). */
int bench_hf3fs_memory(const struct bench_hf3fs_mount *mount, size_t bytes,
                         struct kvt__hf3fs_iov *out);

/* Wait for completions of a ring.  Return their number, 1 to n, or a negative errno; -ETIMEDOUT:
 * no completion in ten seconds. */
int bench_hf3fs_wait(const struct kvt__usrbio_api *api, const struct kvt__hf3fs_ior *ring,
                       struct kvt__hf3fs_cqe *cqes, int n);

/* --------------------------------------------------------- baseline-hf3fs.c */

/* The baseline loop over 3FS: one thread writes and reads files through one ring, and keeps all
 * I/Os of all files in flight.  A write creates a file with a temporary name, closes the file and
 * renames the file. */
struct bench_rings {
    const struct bench_hf3fs_mount *mount;
    int dirfd; /* directory of the files; -1: closed */
    size_t n_files, file_bytes;
    size_t piece; /* bytes of an I/O */
    int depth;    /* io_depth of the ring: -n means at most n I/Os in a job */
    struct kvt__hf3fs_iov iov;  /* shared memory of n_files * file_bytes */
    struct kvt__hf3fs_ior ring; /* the current ring; iov.base NULL: none */
    struct bench_rings_file *files;
};

/* Create the directory, and allocate the shared memory.  Call bench_rings_close() even after an
 * error. */
int bench_rings_open(struct bench_rings *r, const struct bench_hf3fs_mount *mount,
                     size_t n_files, size_t file_bytes);

/* Close and delete the files, and free the ring and the shared memory. */
void bench_rings_close(struct bench_rings *r);

/* Try several values of piece and depth, and set the fastest.  Before a tuning of reads,
 * bench_rings_write() must have written the files. */
int bench_rings_tune(struct bench_rings *r, bool write);

/* Delete the files, then write all files and measure the writes. */
int bench_rings_write(struct bench_rings *r, struct bench_cost *out);

/* Read all files and measure the reads. */
int bench_rings_read(struct bench_rings *r, struct bench_cost *out);

#endif
