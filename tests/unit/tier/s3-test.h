/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiers over the S3 test server, each with a separate prefix. */
#ifndef KVT_S3_TEST_H
#define KVT_S3_TEST_H

#include <semaphore.h>

#include "servers/s3-server.h"
#include "tier-test.h"
#include "tier/s3/encode.h"
#include "tier/s3/s3.h"

#define S3_MAX_SETTINGS 24

static inline bool
s3_is_set(const char *const *settings, const char *setting)
{
    size_t n = strcspn(setting, "=") + 1;

    while (settings && *settings)
        if (!strncmp(*settings++, setting, n))
            return true;
    return false;
}

/* The environment variables of a test; NULL: the process's. */
static const char *const s3_no_environment[] = { NULL };
static const char *const *s3_environment = s3_no_environment;

/* Open a tier with plain HTTP, the server's keys, and timeouts that a busy machine does not reach.
 * `more` replaces these settings.  Messages name the setting remote_url. */
static inline int
s3_try_open(const char *url, const char *const *more, struct kvt__counters *counters,
            struct kvt__tier **out)
{
    static const char *const ours[] = {
        "disable_tls=true", "s3_region=us-east-1", "aws_access_key_id=" S3_ACCESS,
        "aws_secret_access_key=" S3_SECRET, S3_PATIENT };
    const char *settings[S3_MAX_SETTINGS + 8] = { NULL };
    size_t n = 0;

    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!s3_is_set(more, ours[i]))
            settings[n++] = ours[i];
    for (; more && *more; more++)
        if (!strchr(*more, '=') || strchr(*more, '=')[1]) /* "NAME=": leave out the setting */
            settings[n++] = *more;
    struct kvt_config *config = config_from(s3_environment, settings);
    struct kvt__tier_params params = { .config = config, .url = url, .name = "remote_url",
                                       .local_ranks = 1, .counters = counters };
    int err = kvt__tier_open(&params, out);
    kvt_config_free(config);
    return err;
}

/* Write the URL of the test's prefix, in path style. */
static inline void
s3_url(const struct s3_server *s, char *url, size_t room)
{
    snprintf(url, room, "s3://127.0.0.1:%u/" S3_BUCKET "/%s", s->port, s->prefix);
}

static inline struct kvt__tier *
s3_open_with(const struct s3_server *s, const char *const *more,
             struct kvt__counters *counters)
{
    struct kvt__tier *tier = NULL;
    char url[256];

    s3_url(s, url, sizeof url);
    if (s3_try_open(url, more, counters, &tier))
        fail_msg("%s: %s", url, kvt__why());
    return tier;
}

/* Close the tier and remove the directory of the index, which the tier alone would leave behind. */
static inline void
s3_close(struct kvt__tier *tier)
{
    index_dir_remove(tier->ops->private_dir(tier));
    tier->ops->close(tier);
}

/* ------------------------------------------------------------- a tier for each test */

static struct s3_server server;
static struct kvt__counters counters;
static struct kvt__tier *tier;

/* settings: ended by NULL */
#define open_s3(...) \
    (tier = s3_open_with(&server, (const char *const[]){ __VA_ARGS__, NULL }, &counters))

static inline struct s3_tier *
s3_of(struct kvt__tier *t)
{
    return (struct s3_tier *)t;
}

/* For tests that count requests: a slow machine must not send a read twice. */
static inline void
never_hedge(void)
{
    s3_of(tier)->pace.hedge_tokens = INT_MIN;
}

static inline int
s3_setup(void **state)
{
    (void)state;
    s3_server_reset(&server);
    memset(&counters, 0, sizeof counters);
    s3_environment = s3_no_environment;
    tier = NULL;
    return 0;
}

static inline int
s3_teardown(void **state)
{
    (void)state;
    if (tier)
        s3_close(tier);
    return 0;
}

#define S3_TEST(fn) cmocka_unit_test_setup_teardown(fn, s3_setup, s3_teardown)

/* Run a program's tests with a server, after setup (NULL: none).  The other arguments are the
 * server's.  Return 77 if python3 is missing. */
#define s3_test_main_with(setup, name, tests, ...) \
    s3_run_tests(setup, name, tests, sizeof (tests) / sizeof *(tests), \
                 (const char *const[]){ __VA_ARGS__, NULL })
#define s3_test_main(name, tests, ...) s3_test_main_with(NULL, name, tests, __VA_ARGS__)

static inline int
s3_run_tests(CMFixtureFunction setup, const char *name, const struct CMUnitTest *tests,
             size_t n, const char *const *arguments)
{
    if (!s3_server_start(&server, arguments)) {
        printf("skipped: needs python3\n");
        return 77;
    }
    int failed = _cmocka_run_group_tests(name, tests, n, setup, NULL);
    s3_server_stop(&server);
    return failed;
}

/* ------------------------------------------------------------------------ objects */

static inline int
put(int64_t hash, size_t bytes, uint64_t seed)
{
    struct chunk c;

    chunk_init(&c, "model", hash);
    return put_bytes(tier, &c.object, bytes, seed);
}

/* Return true if no byte around the payload was written: the S3 tier needs no rooms. */
static inline bool
guards_are_whole(const struct kvt__slot *slot)
{
    for (size_t i = 1; i <= KVT__SLOT_MARGIN; i++)
        if (slot->payload[-(ptrdiff_t)i] != 0x5a)
            return false;
    for (size_t i = 0; i < KVT__SLOT_MARGIN; i++)
        if (slot->payload[slot->bytes + i] != 0x5a)
            return false;
    return true;
}

/* Return the result of get; wrong bytes after success fail the test. */
static inline int
get(int64_t hash, size_t bytes, uint64_t seed)
{
    struct kvt__slot slot = slot_new(bytes, 0);
    struct kvt__found found;
    struct chunk c;

    chunk_init(&c, "model", hash);
    int err = kvt__tier_get(tier, &c.object, &slot, &found);
    assert_true(guards_are_whole(&slot));
    if (!err) {
        assert_true(slot_holds(&slot, seed));
        assert_true(found.has_read_crc && found.read_crc == crc_of(bytes, seed));
        assert_int_equal(found.payload_bytes, bytes);
    }
    slot_free(&slot, 0);
    return err;
}

static inline int
probe(int64_t hash)
{
    struct kvt__found found;
    struct chunk c;

    chunk_init(&c, "model", hash);
    return kvt__tier_probe(tier, &c.object, &found);
}

static inline uint64_t
counted(enum kvt__counter which)
{
    return kvt__counter_value(&counters, which);
}

#define assert_good(call) \
    do { \
        if (call) \
            fail_msg("%s: %s", #call, kvt__why()); \
    } while (0)

/* Check that the call fails with this error, and that the sentence contains each text. */
#define assert_fails(call, error, ...) \
    do { \
        assert_int_equal(call, -(error)); \
        expect_why((const char *const[]){ __VA_ARGS__, NULL }); \
    } while (0)

static inline void
expect_why(const char *const *texts)
{
    for (; *texts; texts++)
        if (!strstr(kvt__why(), *texts))
            fail_msg("\"%s\" is not in: %s", *texts, kvt__why());
    if (strstr(kvt__why(), S3_SECRET))
        fail_msg("a secret is in: %s", kvt__why());
}

/* ------------------------------------------------------------ concurrent operations */

struct async {
    struct kvt__tier_op op;
    struct chunk chunk;
    uint64_t seed;
    int err;
    sem_t *over;
};

static inline void
async_done(struct kvt__tier_op *op)
{
    struct async *a = (struct async *)op;

    a->err = op->error.code;
    sem_post(a->over);
}

/* Start an operation on a separate chunk; hash is also the seed of the bytes. */
static inline void
async_start(struct async *a, enum kvt__tier_op_kind kind, int64_t hash, size_t bytes,
            sem_t *over)
{
    chunk_init(&a->chunk, "model", hash);
    a->seed = (uint64_t)hash;
    a->over = over;
    a->op = (struct kvt__tier_op){
        .kind = kind, .object = &a->chunk.object, .on_done = async_done,
        .prio = kind == KVT__TIER_PUT ? KVT__PRIO_STORE :
                kind == KVT__TIER_GET ? KVT__PRIO_LOAD : KVT__PRIO_LOOKUP };
    if (bytes)
        a->op.slot = slot_new(bytes, 0);
    if (kind == KVT__TIER_PUT) {
        slot_fill(&a->op.slot, a->seed);
        a->op.crc = kvt__crc32c(0, a->op.slot.payload, bytes);
    }
    tier->ops->submit(tier, &a->op);
}

/* Wait for n operations.  Return the number of operations that ended with err. */
static inline unsigned
async_wait(struct async *all, unsigned n, sem_t *over, int err)
{
    unsigned n_so = 0;

    for (unsigned i = 0; i < n; i++)
        while (sem_wait(over) < 0)
            continue;
    for (unsigned i = 0; i < n; i++) {
        struct async *a = &all[i];

        n_so += a->err == err;
        if (a->op.slot.bytes) {
            if (!a->err)
                assert_true(slot_holds(&a->op.slot, a->seed));
            slot_free(&a->op.slot, 0);
        }
    }
    return n_so;
}

#endif
