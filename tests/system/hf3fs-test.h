/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines with chunks in 3FS.  Each test has a new directory of one common mount. */
#ifndef KVT_SYSTEM_HF3FS_TEST_H
#define KVT_SYSTEM_HF3FS_TEST_H

#include "hf3fs-client.h"
#include "index-dir.h"
#include "servers/usrbiod-server.h"
#include "system/system-test.h"
#include "tier/hf3fs/hf3fs.h"

static struct usrbiod usrbiod;
static unsigned n_dirs;

struct world {
    struct fixture f;
    char dir[400], base_path[450], backing[400];
};

static inline int
setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);

    assert_non_null(w);
    *state = w;
    fixture_init(&w->f);
    /* Longer than any test, so that a slow start of the daemon does not time out. */
    kvt__hf3fs_max_wait_ns = 600 * KVT__NS_PER_S;
    if (!usrbiod.pid)
        assert_true(usrbiod_run(&usrbiod, NULL));
    snprintf(w->dir, sizeof w->dir, "%s/%u", usrbiod.mount, n_dirs);
    snprintf(w->backing, sizeof w->backing, "%s/%u", usrbiod.backing, n_dirs++);
    snprintf(w->base_path, sizeof w->base_path, "hf3fs_base_path=%s", w->dir);
    return 0;
}

static inline void
open_3fs(struct world *w, const char *more)
{
    const char *settings[] = { "remote_url=", "remote_storage_plugins=hf3fs.primary",
                               w->base_path, "hf3fs_iov_size=104857600", more, NULL };

    fixture_open(&w->f, settings);
}

static inline void
close_3fs(struct world *w)
{
    kvt_engine_close(w->f.engine);
    w->f.engine = NULL;
}

/* Delete this host's index of the directory. */
static inline void
forget(struct world *w)
{
    int fd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int index = fd < 0 ? -1 : kvt__shared_index_dir(fd, w->dir);

    if (index >= 0) {
        index_dir_remove(index);
        close(index);
    }
    if (fd >= 0)
        close(fd);
}

static inline int
teardown(void **state)
{
    struct world *w = *state;

    close_3fs(w);
    if (usrbiod.pid)
        usrbiod_command(&usrbiod, "clear");
    forget(w);
    fixture_fini(&w->f);
    free(w);
    return 0;
}

/* Return a fixture for the directory behind the mount, for functions that list files. */
static inline struct fixture
backing_fixture(const struct world *w)
{
    struct fixture f = { 0 };

    snprintf(f.dir.path, sizeof f.dir.path, "%.255s", w->backing);
    return f;
}

/* Wait until the daemon counts n; the daemon learns late of ended clients. */
static inline void
daemon_comes_to(const char *name, unsigned n)
{
    for (int i = 0; i < 60000 && (unsigned)usrbiod_count(&usrbiod, name) != n; i++)
        usleep(1000);
    assert_int_equal((unsigned)usrbiod_count(&usrbiod, name), n);
}

/* Nothing of any process. */
static inline void
daemon_forgets_all(void)
{
    daemon_comes_to("iovs", 0);
    daemon_comes_to("rings", 0);
    daemon_comes_to("live_inodes", 0);
    daemon_comes_to("in_flight", 0);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

#endif
