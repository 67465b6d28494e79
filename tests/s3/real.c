/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests of the S3 tier against a real server, whose port is the argument, beyond the tests by
 * commands: an object read in ranges, and several writers of one object at a time. */
#include "unit/tier/s3-test.h"

#define MIB ((size_t)1 << 20)
#define RANGED (66 * MIB + 5)
#define WRITERS 8

static int
real_setup(void **state)
{
    (void)state;
    tier = NULL;
    snprintf(server.prefix, sizeof server.prefix, "real-%ld-%u", (long)getpid(),
             ++server.n_prefixes);
    return 0;
}

static int
remove_chunk(int64_t hash)
{
    struct chunk c;

    chunk_init(&c, "model", hash);
    return kvt__tier_remove(tier, &c.object);
}

static void
a_large_object_comes_in_ranges(void **state)
{
    (void)state;
    open_s3("s3_part_size=16777216", "blocking_timeout_secs=60");
    assert_good(put(1, RANGED, 1));
    assert_good(get(1, RANGED, 1));
    assert_int_equal(get(1, RANGED - 1, 1), -EBADMSG);
    assert_good(remove_chunk(1));
}

/* -------------------------------------------------------------- concurrent writers */

struct writer {
    pthread_t thread;
    struct chunk chunk;
    int err;
};

static pthread_barrier_t together;

static void *
write_it(void *arg)
{
    struct writer *w = arg;

    pthread_barrier_wait(&together);
    w->err = put_bytes(tier, &w->chunk.object, MIB, w->chunk.object.id.b[0]);
    return NULL;
}

/* Store chunks with equal names concurrently: either equal chunks, or all different (of different
 * adapters). */
static void
write_at_once(bool same)
{
    struct writer writers[WRITERS];
    struct kvt__found found;

    pthread_barrier_init(&together, NULL, WRITERS);
    for (unsigned i = 0; i < WRITERS; i++) {
        chunk_init(&writers[i].chunk, "model", 7);
        writers[i].chunk.object.id.b[0] = (uint8_t)(same ? 1 : i);
        assert_int_equal(pthread_create(&writers[i].thread, NULL, write_it, &writers[i]),
                         0);
    }
    for (unsigned i = 0; i < WRITERS; i++) {
        pthread_join(writers[i].thread, NULL);
        if (writers[i].err && (same || writers[i].err != -EBUSY))
            fail_msg("writer %u: %s", i, strerror(-writers[i].err));
    }
    pthread_barrier_destroy(&together);
    assert_good(kvt__tier_probe(tier, &writers[0].chunk.object, &found));
    assert_true(found.has_id);
    assert_good(get(7, MIB, found.id.b[0]));
}

static void
all_writers_of_a_chunk_succeed(void **state)
{
    (void)state;
    open_s3(NULL);
    for (int i = 0; i < 5; i++) {
        write_at_once(true);
        assert_good(remove_chunk(7));
    }
}

static void
the_last_chunk_with_an_equal_name_remains(void **state)
{
    (void)state;
    open_s3(NULL);
    write_at_once(false);
}

#define REAL(fn) cmocka_unit_test_setup_teardown(fn, real_setup, s3_teardown)

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        REAL(a_large_object_comes_in_ranges),
        REAL(all_writers_of_a_chunk_succeed),
        REAL(the_last_chunk_with_an_equal_name_remains),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: s3-real PORT\n");
        return 2;
    }
    server.port = (uint16_t)strtoul(argv[1], NULL, 10);
    return cmocka_run_group_tests_name("s3 real", tests, NULL, NULL);
}
