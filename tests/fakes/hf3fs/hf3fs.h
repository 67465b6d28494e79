/* SPDX-License-Identifier: Apache-2.0
 *
 * Control of the fake libhf3fs_api_shared.so by a test that has loaded the library.  When the
 * library is loaded, the library reads switches from the environment variable HF3FS_FAKE. */
#ifndef KVT_FAKE_HF3FS_H
#define KVT_FAKE_HF3FS_H

#include "usrbio/abi.h"

#pragma GCC visibility push(default)

/* Set the switches: "word=number,word=number".  Switches that are not named are off.
 *   any_fs=1        files of every file system count as files of 3FS
 *   prep_posts=1    hf3fs_prep_io() wakes the daemon before the return
 *   eagain_every=N  each N-th hf3fs_prep_io() reports a full ring
 *   short_every=N   each N-th completion reports half of the bytes
 *   reverse=1       a wait returns the completions in reverse order
 * An unknown word ends the process. */
void hf3fs_fake_set(const char *switches);

/* The vendor's functions. */
typedef struct kvt__hf3fs_iov iov_t;
typedef struct kvt__hf3fs_ior ior_t;
typedef struct kvt__hf3fs_cqe cqe_t;

bool hf3fs_is_hf3fs(int fd);
int hf3fs_extract_mount_point(char *mount, int size, const char *path);
int hf3fs_reg_fd(int fd, uint64_t flags);
void hf3fs_dereg_fd(int fd);
int hf3fs_iovcreate(iov_t *iov, const char *mount, size_t size, size_t block_size,
                    int numa);
void hf3fs_iovunlink(iov_t *iov);
void hf3fs_iovdestroy(iov_t *iov);
size_t hf3fs_ior_size(int entries);
int hf3fs_iorcreate4(ior_t *ior, const char *mount, int entries, bool for_read,
                     int io_depth, int timeout, int numa, uint64_t flags);
int hf3fs_iorcreate3(ior_t *ior, const char *mount, int entries, bool for_read,
                     int io_depth, int priority, int timeout, int numa);
int hf3fs_iorcreate2(ior_t *ior, const char *mount, int entries, bool for_read,
                     int io_depth, int priority, int numa);
int hf3fs_iorcreate(ior_t *ior, const char *mount, int entries, bool for_read, int io_depth,
                    int numa);
void hf3fs_iordestroy(ior_t *ior);
int hf3fs_io_entries(const ior_t *ior);
int hf3fs_prep_io(const ior_t *ior, const iov_t *iov, bool read, void *ptr, int fd,
                  size_t off, uint64_t len, const void *userdata);
int hf3fs_submit_ios(const ior_t *ior);
int hf3fs_wait_for_ios(const ior_t *ior, cqe_t *cqes, int cqec, int min_results,
                       const struct timespec *abs_timeout);
int hf3fs_iovopen(iov_t *iov, const uint8_t id[16], const char *mount, size_t size,
                  size_t block_size, int numa);
int hf3fs_iovwrap(iov_t *iov, void *base, const uint8_t id[16], const char *mount,
                  size_t size, size_t block_size, int numa);
int hf3fs_hardlink(const char *target, const char *link_name);
int hf3fs_punchhole(int fd, int n, const size_t *start, const size_t *end, size_t flags);

#pragma GCC visibility pop

#endif
