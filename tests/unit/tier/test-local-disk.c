/* SPDX-License-Identifier: Apache-2.0
 *
 * The local_disk layout: names of files, payloads without header, and the directory of a worker's
 * chunks among several directories. */
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include "file-test.h"
#include "tier/layout/layout.h"

#define BY_RANK "local_disk_path_sharding=by_local_rank"

static int
setup(void **state)
{
    static struct fixture f;

    open_fixture(&f, "local_disk", true, "org-model@1@0@-1234@bfloat16.pt");
    *state = &f;
    return 0;
}

/* ------------------------------------------------------------------- files */

static void
names_equal_lmcaches_and_decode_to_a_key_with_the_name(void **state)
{
    static const char key[] =
        "meta-llama/Llama-3.1-8B@1@0@1a540024b49d3bfe@bfloat16@lora%sql-v2";
    static const char name[] =
        "meta-llama-Llama-3.1-8B@1@0@1a540024b49d3bfe@bfloat16@lora%sql-v2.pt";
    const struct kvt__layout *layout = &kvt__layout_local_disk;
    char out[256], back[KVT__KEY_TEXT_MAX + 1];
    struct kvt__key_parts parts;

    (void)state;
    assert_int_equal(kvt__layout_name(layout, key, NULL, out, sizeof out), 0);
    assert_string_equal(out, name);
    assert_int_equal(kvt__layout_key(layout, name, back, sizeof back, &parts), 0);
    assert_true(parts.hash.bits[0] == 1897141500678847486);
    assert_int_equal(kvt__layout_name(layout, back, NULL, out, sizeof out), 0);
    assert_string_equal(out, name);
    assert_int_equal(kvt__layout_name(layout, key, NULL, out, sizeof name - 1),
                     -ENAMETOOLONG);
}

static void
a_file_is_payload_and_trailer_with_any_save_chunk_meta(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    assert_int_equal(f->tier->phase, 0);
    assert_string_equal(f->tier->ops->name, "local_disk");
    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_int_equal(size_of(f->path), 5000 + 64);
    f->c.object.is_full = false;
    f->c.object.tokens = 17;
    assert_int_equal(put_bytes(f->tier, &f->c.object, 4000, 1), 0);
    assert_int_equal(size_of(f->path), 4000);
    if (!temp_dir_has_attributes(&f->dir))
        skip();
    assert_int_equal(get_bytes(f->tier, &f->c.object, 4000, 1, &found, &same), 0);
    assert_true(same && found.has_id);
    assert_int_equal(found.tokens, 17);
}

/* No payload looks like a header. */
static void
any_bytes_of_lmcache_are_a_payload(void **state)
{
    struct fixture *f = *state;
    unsigned char bytes[5000];
    struct kvt__slot slot = slot_new(sizeof bytes, 0);
    struct kvt__found found;

    for (uint32_t says = 5000 - 28; says <= 5000; says += 28) {
        memset(bytes, 7, sizeof bytes);
        kvt__put_le32(bytes, says);
        write_file(f->path, bytes, sizeof bytes);
        assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), 0);
        assert_int_equal(found.payload_bytes, 5000);
        assert_int_equal(kvt__tier_get(f->tier, &f->c.object, &slot, &found), 0);
        assert_memory_equal(slot.payload, bytes, sizeof bytes);
        assert_false(found.has_id);
    }
    slot_free(&slot, 0);
}

/* A truncated file, or a file with a header, is no chunk of 5000 bytes. */
static void
a_file_of_any_other_length_is_ebadmsg(void **state)
{
    static const size_t sizes[] = { 0, 1, 2500, 4999, 5001, 5028, 5063, 5065, 5092 };
    unsigned char bytes[6000] = { 0 };
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    kvt__put_le32(bytes, 5000);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        write_file(f->path, bytes, sizes[i]);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same),
                         -EBADMSG);
    }
}

/* The suffix is PyTorch's. */
static void
list_skips_files_that_are_no_chunks(void **state)
{
    static const char *const others[] = {
        "model.pt", ".pt", "a@b.pt", "m@1@0@1@half.data", "m@1@0@12@nodtype.pt",
        "m@1@0@0012@half.pt", "m@1@0@1@half.pt.bak" };
    struct fixture *f = *state;

    write_others(f, others, sizeof others / sizeof *others);
    expect_only_listed(f, "org-model@1@0@-1234@bfloat16");
}

/* ----------------------------------------------------------------- sharing */

struct share_case {
    bool by_local_rank;
    uint32_t local_ranks, rank;
    size_t n_paths, first, n;
};

static void
workers_share_directories_as_in_lmcache(void **state)
{
    static const struct share_case cases[] = {
        { false, 1, 0, 3, 0, 1 }, { false, 4, 0, 3, 0, 1 }, { false, 4, 2, 3, 2, 1 },
        { false, 4, 3, 3, 0, 1 }, { false, 4, 7, 3, 0, 1 }, /* of a second host */
        { false, 2, 1, 4, 1, 1 }, { false, 0, 5, 4, 1, 1 },
        { true, 4, 0, 4, 0, 1 }, { true, 4, 3, 4, 3, 1 }, { true, 4, 6, 4, 2, 1 },
        { true, 8, 3, 4, 3, 1 }, { true, 8, 5, 4, 1, 1 }, /* two for each directory */
        { true, 2, 0, 4, 0, 2 }, { true, 2, 1, 4, 2, 2 }, { true, 1, 0, 3, 0, 3 },
        { true, 2, 0, 5, 0, 2 }, { true, 2, 1, 5, 2, 3 }, { true, 0, 5, 4, 1, 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct share_case *c = &cases[i];
        struct kvt__sharding sharding = { .n_paths = c->n_paths, .local_ranks = c->local_ranks,
                                           .by_local_rank = c->by_local_rank };
        struct kvt__path_range range;

        assert_int_equal(kvt__paths_of_rank(&sharding, c->rank, &range), 0);
        assert_int_equal(range.first, c->first);
        assert_int_equal(range.n, c->n);
    }
}

static void
directories_that_cannot_be_shared_evenly_are_refused(void **state)
{
    struct kvt__tier *tier = NULL;
    struct temp_dir dir;
    char url[1024];

    (void)state;
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "local_disk://%1$s/a,%1$s/b", dir.path);
    assert_int_equal(try_open_for(url, true, BY_RANK, 3, &tier), -EINVAL);
    assert_non_null(strstr(kvt__why(), "2 directories among 3 workers"));
    assert_int_equal(try_open_for(url, true, NULL, 3, &tier), 0);
    tier->ops->close(tier);
    temp_dir_remove(&dir);
}

/* The results of LMCache's mix of these hashes, modulo 4. */
static void
a_worker_with_several_directories_spreads_keys_by_lmcaches_mix(void **state)
{
    static const int64_t hashes[] = { 0, 1, 1897141500678847486, -89132315033465022,
                                      5625442194607170974 };
    static const char dirs[] = { 'a', 'b', 'a', 'c', 'b' };
    char url[2048], path[1024], digits[KVT__HASH_DIGITS + 1];
    struct kvt__tier *tier = NULL;
    struct temp_dir dir;

    (void)state;
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "local_disk://%1$s/a,%1$s/b,%1$s/c,%1$s/d", dir.path);
    if (try_open_for(url, true, BY_RANK, 1, &tier))
        fail_msg("%s", kvt__why());
    for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++) {
        struct chunk c;

        chunk_init(&c, "m", hashes[i]);
        assert_int_equal(put_bytes(tier, &c.object, 10, i), 0);
        kvt__hash_text(&c.object.hash, digits);
        snprintf(path, sizeof path, "%s/%c/m@1@0@%s@bfloat16.pt", dir.path, dirs[i],
                 digits);
        assert_int_equal(access(path, R_OK), 0);
    }
    tier->ops->close(tier);
    temp_dir_remove(&dir);
}

/* ---------------------------------------------------------- other directories */

/* Two tiers over two directories; "other" distributes workers differently. */
struct pair {
    struct temp_dir dir;
    struct kvt__tier *tier, *other;
    struct chunk c;
};

static void
open_pair(struct pair *p)
{
    char url[1024];

    memset(p, 0, sizeof *p);
    temp_dir_make(&p->dir);
    snprintf(url, sizeof url, "local_disk://%1$s/a,%1$s/b", p->dir.path);
    p->tier = open_tier(url, true);
    snprintf(url, sizeof url, "local_disk://%1$s/b,%1$s/a", p->dir.path);
    p->other = open_tier(url, true);
    chunk_init(&p->c, "org/model", 5);
}

static void
close_pair(struct pair *p)
{
    p->tier->ops->close(p->tier);
    p->other->ops->close(p->other);
    temp_dir_remove(&p->dir);
}

static bool
is_in(const struct pair *p, char dir)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%c/org-model@1@0@5@bfloat16.pt", p->dir.path, dir);
    return !access(path, F_OK);
}

static void
a_chunk_is_found_and_removed_in_any_directory(void **state)
{
    struct kvt__found found;
    struct names names = { 0 };
    struct pair p;
    bool same;

    (void)state;
    open_pair(&p);
    assert_int_equal(put_bytes(p.other, &p.c.object, 300 << 10, 1), 0);
    assert_true(!is_in(&p, 'a') && is_in(&p, 'b'));
    assert_int_equal(get_bytes(p.tier, &p.c.object, 300 << 10, 1, &found, &same), 0);
    assert_true(same && found.has_id);
    assert_int_equal(kvt__tier_probe(p.tier, &p.c.object, &found), 0);
    assert_int_equal(p.tier->ops->list(p.tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 1);
    assert_int_equal(kvt__tier_remove(p.tier, &p.c.object), 0);
    assert_false(is_in(&p, 'b'));
    close_pair(&p);
}

static void
a_put_replaces_a_chunk_in_another_directory(void **state)
{
    struct kvt__found found;
    struct pair p;
    bool same;

    (void)state;
    open_pair(&p);
    assert_int_equal(put_bytes(p.other, &p.c.object, 5000, 1), 0);
    assert_int_equal(put_bytes(p.tier, &p.c.object, 5000, 2), 0);
    assert_true(is_in(&p, 'a') && !is_in(&p, 'b'));
    assert_int_equal(get_bytes(p.other, &p.c.object, 5000, 2, &found, &same), 0);
    assert_true(same);
    close_pair(&p);
}

/* LMCache leaves chunks in the other directory if an engine moves to another GPU. */
static void
a_chunk_in_two_directories_counts_once_with_both_sizes(void **state)
{
    struct names names = { 0 };
    struct kvt__found found;
    char path[512];
    struct pair p;
    bool same;

    (void)state;
    open_pair(&p);
    for (char dir = 'a'; dir <= 'b'; dir++) {
        snprintf(path, sizeof path, "%s/%c/org-model@1@0@5@bfloat16.pt", p.dir.path, dir);
        write_file(path, "12345", 5);
    }
    assert_int_equal(p.tier->ops->list(p.tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 1);
    assert_int_equal(names.bytes, 8192);
    assert_int_equal(kvt__tier_probe(p.tier, &p.c.object, &found), 0);
    assert_int_equal(found.stored_bytes, 8192);
    assert_int_equal(get_bytes(p.tier, &p.c.object, 5, 1, &found, &same), 0);
    assert_int_equal(found.stored_bytes, 8192);
    assert_int_equal(kvt__tier_remove(p.tier, &p.c.object), 0);
    assert_true(!is_in(&p, 'a') && !is_in(&p, 'b'));
    close_pair(&p);
}

/* ----------------------------------------------------------------- opening */

static void
the_list_may_have_blanks_empty_parts_and_relative_paths(void **state)
{
    char url[1024], before[4096];
    struct temp_dir dir;

    (void)state;
    temp_dir_make(&dir);
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(dir.path), 0);
    snprintf(url, sizeof url, "local_disk:// relative/one ,, %s/two , ", dir.path);
    struct kvt__tier *tier = open_tier(url, true);
    assert_int_equal(access("relative/one/.kvtier/tmp", F_OK), 0);
    assert_int_equal(access("two/.kvtier/tmp", F_OK), 0);
    tier->ops->close(tier);
    assert_int_equal(chdir(before), 0);
    temp_dir_remove(&dir);
}

static void
a_failed_open_names_local_disk(void **state)
{
    struct kvt__tier *tier = NULL;
    struct temp_dir dir;
    char file[300], url[400];

    (void)state;
    temp_dir_make(&dir);
    snprintf(file, sizeof file, "%s/file", dir.path);
    write_file(file, "x", 1);
    snprintf(url, sizeof url, "local_disk://%s", file);
    assert_int_equal(try_open(url, true, &tier), -ENOTDIR);
    assert_non_null(strstr(kvt__why(), "local_disk: "));
    assert_non_null(strstr(kvt__why(), file));
    assert_int_equal(try_open("local_disk:// ,", true, &tier), -EINVAL);
    assert_non_null(strstr(kvt__why(), "local_disk: ' ,' is no directory"));
    /* LMCache removes file:// only from the first path of a list. */
    snprintf(url, sizeof url, "local_disk://%s/a,file:///b", dir.path);
    assert_int_equal(try_open(url, true, &tier), -EINVAL);
    assert_non_null(strstr(kvt__why(), "'file:///b' is no path; write /DIRECTORY"));
    temp_dir_remove(&dir);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_equal_lmcaches_and_decode_to_a_key_with_the_name),
        TEST(a_file_is_payload_and_trailer_with_any_save_chunk_meta),
        TEST(any_bytes_of_lmcache_are_a_payload),
        TEST(a_file_of_any_other_length_is_ebadmsg),
        TEST(list_skips_files_that_are_no_chunks),
        cmocka_unit_test(workers_share_directories_as_in_lmcache),
        cmocka_unit_test(directories_that_cannot_be_shared_evenly_are_refused),
        cmocka_unit_test(a_worker_with_several_directories_spreads_keys_by_lmcaches_mix),
        cmocka_unit_test(a_chunk_is_found_and_removed_in_any_directory),
        cmocka_unit_test(a_put_replaces_a_chunk_in_another_directory),
        cmocka_unit_test(a_chunk_in_two_directories_counts_once_with_both_sizes),
        cmocka_unit_test(the_list_may_have_blanks_empty_parts_and_relative_paths),
        cmocka_unit_test(a_failed_open_names_local_disk),
    };

    return cmocka_run_group_tests_name("tier local_disk", tests, NULL, NULL);
}
