/* SPDX-License-Identifier: Apache-2.0
 *
 * A tier on 3FS, with a separate directory of one mount for each test, and transfers of many chunks
 * at a time. */
#ifndef KVT_HF3FS_TEST_H
#define KVT_HF3FS_TEST_H

#include <fcntl.h>

#include "hf3fs-client.h"
#include "index-dir.h"
#include "servers/usrbiod-server.h"
#include "tier-test.h"

#include "base/clock.h"
#include "tier/hf3fs/hf3fs.h"

#define MIB ((size_t)1 << 20)
#define IOV "hf3fs_iov_size=104857600"

static struct usrbiod usrbiod;
static unsigned n_dirs;

struct fixture {
    char dir[400]; /* of the mount */
    struct kvt__tier *tier;
};

static const char *const *environment; /* NULL: hf3fs_client() */

static inline int
try_open_with(const char *url, const char *const *more, struct kvt__tier **out)
{
    const char *settings[8] = { "save_chunk_meta=false", IOV };

    for (size_t n = 2; more && *more; more++)
        settings[n++] = *more;
    struct kvt_config *config = environment ? config_from(environment, settings)
                                            : config_with(settings);
    struct kvt__tier_params params = { .config = config, .url = url,
                                       .name = "remote_url", .local_ranks = 1 };
    int err = kvt__tier_open(&params, out);
    kvt_config_free(config);
    return err;
}

static inline void
open_with(struct fixture *f, const char *const *more)
{
    char url[512];

    snprintf(url, sizeof url, "hf3fs://%s", f->dir);
    if (try_open_with(url, more, &f->tier))
        fail_msg("%s: %s", url, kvt__why());
}

static inline int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);

    assert_non_null(f);
    if (!usrbiod.pid)
        assert_true(usrbiod_run(&usrbiod, NULL));
    snprintf(f->dir, sizeof f->dir, "%s/%u", usrbiod.mount, n_dirs++);
    *state = f;
    return 0;
}

static inline void
close_tier(struct fixture *f)
{
    index_dir_remove(f->tier->ops->private_dir(f->tier));
    f->tier->ops->close(f->tier);
    f->tier = NULL;
}

static inline int
teardown(void **state)
{
    struct fixture *f = *state;

    if (usrbiod.pid) {
        usrbiod_command(&usrbiod, "clear");
        usrbiod_command(&usrbiod, "release");
    }
    if (f->tier)
        close_tier(f);
    free(f);
    return 0;
}

/* Wait for a restarted daemon so long that the tests pass on a busy machine. */
static inline void
be_patient(void)
{
    kvt__hf3fs_max_wait_ns = 60 * KVT__NS_PER_S;
}

/* ---------------------------------------------------------------------- many at once */

struct many {
    struct kvt__tier_op op;
    struct chunk chunk;
    struct kvt__slot slot;
    _Atomic int answered;
    int err;
};

static inline void
answered(struct kvt__tier_op *op)
{
    struct many *m = (struct many *)op;

    m->err = op->error.code;
    m->answered = 1;
}

/* Start an operation for each of n chunks; wait_all() waits for all operations. */
static inline void
start_all(struct kvt__tier *tier, struct many *m, size_t n, enum kvt__tier_op_kind kind,
          size_t bytes)
{
    for (size_t i = 0; i < n; i++) {
        chunk_init(&m[i].chunk, "model", i);
        m[i].slot = slot_new(bytes, 0);
        if (kind == KVT__TIER_PUT)
            slot_fill(&m[i].slot, i);
        m[i].op = (struct kvt__tier_op){
            .kind = kind, .prio = KVT__PRIO_LOAD, .object = &m[i].chunk.object,
            .slot = m[i].slot, .on_done = answered,
            .crc = kind == KVT__TIER_PUT
                ? kvt__crc32c(0, m[i].slot.payload, bytes) : 0 };
        m[i].answered = 0;
        tier->ops->submit(tier, &m[i].op);
    }
}

static inline void
wait_all(struct many *m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        while (!m[i].answered)
            usleep(500);
}

static inline void
free_all(struct many *m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        slot_free(&m[i].slot, 0);
}

static inline void
put_all(struct kvt__tier *tier, size_t n, size_t bytes)
{
    struct many *m = calloc(n, sizeof *m);

    start_all(tier, m, n, KVT__TIER_PUT, bytes);
    wait_all(m, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(m[i].err, 0);
    free_all(m, n);
    free(m);
}

/* Return the number of chunks that were read with the right bytes; other bytes fail the test. */
static inline size_t
get_all(struct kvt__tier *tier, size_t n, size_t bytes)
{
    struct many *m = calloc(n, sizeof *m);
    size_t n_good = 0;

    start_all(tier, m, n, KVT__TIER_GET, bytes);
    wait_all(m, n);
    for (size_t i = 0; i < n; i++) {
        if (m[i].err)
            continue;
        assert_true(slot_holds(&m[i].slot, i));
        assert_int_equal(m[i].op.found.read_crc, m[i].op.found.crc);
        n_good++;
    }
    free_all(m, n);
    free(m);
    return n_good;
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

#endif
