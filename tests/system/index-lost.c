/* SPDX-License-Identifier: Apache-2.0
 *
 * The index of an engine with lookups only, such as vLLM's scheduler, is deleted. */
#include "system/system-test.h"

static void
remove_files(const struct fixture *f, const char *below)
{
    char path[300];
    struct dirent *e;

    snprintf(path, sizeof path, "%s/%s", f->dir.path, below);
    DIR *d = opendir(path);
    assert_non_null(d);
    while ((e = readdir(d)))
        if (e->d_name[0] != '.')
            assert_true(!unlinkat(dirfd(d), e->d_name, 0) || errno == EISDIR);
    closedir(d);
}

/* No process marks the mapped table as replaced: the engine must detect the deletion. */
static void
a_deleted_index_gives_no_hit(void **state)
{
    struct fixture *f = *state, scheduler = *f;
    struct kvt_group group = opaque_group();

    write_chunks(f, 0, N_CHUNKS);
    scheduler.engine = open_engine(f, KVT_ROLE_SCHEDULER, &group, 1, NULL);
    struct kvt_seq *seq = new_seq(&scheduler, N_TOKENS);
    assert_int_equal(lookup(&scheduler, seq, 0, N_TOKENS), N_CHUNKS * CHUNK);
    kvt_engine_release(scheduler.engine, seq);
    kvt_seq_free(seq);
    kvt_engine_close(f->engine);
    f->engine = NULL;
    remove_files(f, ".kvtier");
    remove_files(f, "kvtier");
    seq = new_seq(&scheduler, N_TOKENS);
    assert_int_equal(lookup(&scheduler, seq, 0, N_TOKENS), 0);
    kvt_seq_free(seq);
    kvt_engine_close(scheduler.engine);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_deleted_index_gives_no_hit, fixture_setup_open,
                                        fixture_teardown),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
