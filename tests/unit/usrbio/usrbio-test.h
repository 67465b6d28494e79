/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of either kind, and a counterpart for the client.  The first argument of the program
 * names the fake library. */
#ifndef KVT_TEST_USRBIO_H
#define KVT_TEST_USRBIO_H

#include "kvt-test.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../fakes/hf3fs/any-fs.h"
#include "base/error.h"
#include "counterpart.h"
#include "usrbio/usrbio.h"

#define ENTRIES 8
#define MEMORY ((size_t)1 << 20)

struct fixture {
    const struct kvt__usrbio_api *api;
    struct counterpart c;
    struct kvt__hf3fs_iov iov;
    struct kvt__hf3fs_ior r, w;
    int fd; /* a registered file */
    void (*set_traps)(const char *switches); /* NULL: the client has no traps */
};

static const char *fake_path;

static inline void
open_client(struct fixture *f, const char *kind)
{
    if (strcmp(kind, "library")) {
        assert_int_equal(kvt__usrbio_choose("own", &f->api), 0);
        return;
    }
    /* From now on the loader knows a library of this name. */
    void *handle = dlopen(fake_path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(handle);
    void *set = dlsym(handle, "hf3fs_fake_set");
    assert_non_null(set);
    memcpy(&f->set_traps, &set, sizeof set);
    f->set_traps("any_fs=1");
    assert_int_equal(kvt__usrbio_choose("library", &f->api), 0);
    assert_string_equal(f->api->name, "library");
}

/* Open a new file without a name. */
static inline int
open_file(int flags)
{
    char path[] = "/tmp/kvtier-usrbio-file-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    close(fd); /* the next open() uses the lowest descriptor again */
    fd = open(path, flags | O_CLOEXEC);
    assert_true(fd >= 0);
    unlink(path);
    return fd;
}

static inline void
serve_file(struct fixture *f, int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    pthread_mutex_lock(&f->c.lock);
    f->c.fd = fd;
    f->c.inode = st.st_ino;
    pthread_mutex_unlock(&f->c.lock);
}

static inline void
open_ring(struct fixture *f, struct kvt__hf3fs_ior *ior, int entries, bool for_read)
{
    memset(ior, 0, sizeof *ior);
    assert_int_equal(f->api->iorcreate4(ior, f->c.path, entries, for_read, 0, 0, -1, 0),
                     0);
    counterpart_serve(&f->c, ior);
}

static inline void
close_ring(struct fixture *f, struct kvt__hf3fs_ior *ior)
{
    if (!ior->iorh)
        return;
    counterpart_forget(&f->c, ior);
    f->api->iordestroy(ior);
    assert_null(ior->iorh);
}

static inline int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    const char *kind = *state;

    any_fs = true;
    *state = f;
    open_client(f, kind);
    counterpart_start(&f->c);
    assert_int_equal(kvt__usrbio_alloc_memory(f->api, &f->iov, f->c.path, MEMORY, 0, -1), 0);
    f->c.memory = &f->iov;
    open_ring(f, &f->r, ENTRIES, true);
    open_ring(f, &f->w, ENTRIES, false);
    f->fd = open_file(O_RDWR);
    serve_file(f, f->fd);
    assert_true(f->api->reg_fd(f->fd, 0) < 0);
    return 0;
}

static inline int
teardown(void **state)
{
    struct fixture *f = *state;

    if (f->c.submit) {
        f->api->dereg_fd(f->fd);
        close(f->fd);
        close_ring(f, &f->r);
        close_ring(f, &f->w);
        f->api->iovdestroy(&f->iov);
        counterpart_stop(&f->c);
    }
    if (f->set_traps)
        f->set_traps("any_fs=1");
    free(f);
    return 0;
}

/* Return a deadline for wait_for_ios(), ms milliseconds from now. */
static inline struct timespec
in_ms(int64_t ms)
{
    int64_t at = kvt__clock_ns(CLOCK_REALTIME) + ms * KVT__NS_PER_MS;

    return (struct timespec){ at / KVT__NS_PER_S, at % KVT__NS_PER_S };
}

/* Return a deadline that passes only after a failure. */
static inline struct timespec
far(void)
{
    return in_ms(60000);
}

static inline int
prep(const struct fixture *f, const struct kvt__hf3fs_ior *ior, size_t at, size_t len,
     size_t off, uintptr_t userdata)
{
    return f->api->prep_io(ior, &f->iov, ior->for_read, f->iov.base + at, f->fd, off, len,
                           (const void *)userdata);
}

/* Run the tests of a program whose first argument is the fake library. */
#define RUN(name)                                                                      \
    (argc < 2 ? fprintf(stderr, "usage: %s LIBHF3FS_API_SHARED_SO\n", argv[0]), 77       \
              : (fake_path = argv[1],                                                    \
                 cmocka_run_group_tests_name(name, tests, NULL, NULL)))

#define OWN(fn) { #fn " (own)", fn, setup, teardown, (void *)"own" }
#define LIBRARY(fn) { #fn " (library)", fn, setup, teardown, (void *)"library" }
#define BOTH(fn) OWN(fn), LIBRARY(fn)

#endif
