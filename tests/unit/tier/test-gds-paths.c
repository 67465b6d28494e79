/* SPDX-License-Identifier: Apache-2.0
 *
 * The directories of gds_path: second files beside chunks, leftovers of crashes, several
 * directories, and the open. */
#include <sys/sysmacros.h>

#include "gds-test.h"

/* ------------------------------------------------------------ second files */

/* The data file alone is the chunk. */
static void
a_chunk_whose_metadata_a_crash_prevented_is_a_chunk(void **state)
{
    struct fixture *f = *state;
    struct names names = { 0 };
    struct kvt__found found;
    bool same;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_int_equal(unlink(metadata_path(f)), 0);
    assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), 0);
    assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same), 0);
    assert_true(same && found.has_id);
    assert_int_equal(found.stored_bytes, 3 * 4096);
    assert_int_equal(f->tier->ops->list(f->tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 1);
    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_true(exists(metadata_path(f)));
    assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same), 0);
    assert_int_equal(found.stored_bytes, 4 * 4096);
    assert_int_equal(unlink(metadata_path(f)), 0);
    assert_int_equal(kvt__tier_remove(f->tier, &f->c.object), 0);
    assert_false(exists(f->path));
}

/* If the second file cannot be removed, the chunk's file stays: LMCache must not find a second file
 * without a chunk. */
static void
the_metadata_file_is_removed_first(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_int_equal(unlink(metadata_path(f)), 0);
    assert_int_equal(mkdir(metadata_path(f), 0755), 0);
    assert_int_not_equal(kvt__tier_remove(f->tier, &f->c.object), 0);
    assert_true(exists(f->path));
    assert_int_equal(rmdir(metadata_path(f)), 0);
    assert_int_equal(kvt__tier_remove(f->tier, &f->c.object), 0);
    assert_false(exists(f->path));
}

static void
without_its_second_file_nothing_is_stored(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    char path[1200];

    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_int_equal(kvt__tier_remove(f->tier, &f->c.object), 0);
    assert_int_equal(mkdir(metadata_path(f), 0755), 0);
    snprintf(path, sizeof path, "%s/x", metadata_path(f));
    write_file(path, "", 0);
    assert_int_not_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_non_null(strstr(kvt__why(), ".metadata"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(metadata_path(f)), 0);
    (void)kvt__tier_remove(f->tier, &f->c.object);
    assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), -ENOENT);
}

/* A listing deletes leftovers of a crash or of LMCache that belong to no chunk, as soon as they are
 * so old that no process can still be writing the chunk. */
static void
a_listing_removes_files_of_no_chunk(void **state)
{
    static const char *const odd[] = { ".metadata", ".tmp0a1b2c3d",
                                       ".metadata.tmp0a1b2c3d" };
    static const char *const kept[] = { ".metadata.bak", ".tmp0a1b2c3", ".tmp0a1b2c3g",
                                        ".x" };
    struct fixture *f = *state;
    struct names names = { 0 };
    char path[1200], other[600];

    write_lmcaches(f, &bytes_5000, 5000, 1, false);
    assert_int_equal(unlink(f->path), 0);
    snprintf(other, sizeof other, "%s/-4/66/model.metadata", f->dir.path);
    write_file(other, "", 0);
    make_old(other, 4000);
    for (int old = 0; old < 2; old++) {
        for (size_t i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "%s%s", f->path, odd[i]);
            write_file(path, "", 0);
            if (old)
                make_old(path, i ? 4000 : 100);
        }
        for (size_t i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s%s", f->path, kept[i]);
            write_file(path, "", 0);
            make_old(path, 4000);
        }
        assert_int_equal(f->tier->ops->list(f->tier, "", take_name, &names), 0);
        assert_int_equal(names.n, 0);
        for (size_t i = 0; i < 3; i++) {
            snprintf(path, sizeof path, "%s%s", f->path, odd[i]);
            assert_int_equal(exists(path), !old);
        }
        for (size_t i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s%s", f->path, kept[i]);
            assert_true(exists(path));
        }
    }
    assert_true(exists(other));
    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    make_old(metadata_path(f), 4000);
    assert_int_equal(f->tier->ops->list(f->tier, "", take_name, &names), 0);
    assert_true(exists(metadata_path(f)));
}

static void
a_directory_with_a_chunks_name_is_no_chunk(void **state)
{
    struct fixture *f = *state;
    struct names names = { 0 };

    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_int_equal(unlink(f->path), 0);
    assert_int_equal(mkdir(f->path, 0755), 0);
    assert_int_equal(f->tier->ops->list(f->tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 0);
    assert_int_equal(rmdir(f->path), 0);
}

static void
a_model_name_may_begin_with_a_dot(void **state)
{
    struct fixture *f = *state;
    struct names names = { 0 };
    struct chunk c;

    chunk_init(&c, ".m", 5);
    assert_int_equal(put_bytes(f->tier, &c.object, 10, 1), 0);
    assert_int_equal(f->tier->ops->list(f->tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 1);
    assert_string_equal(names.last, c.key);
    assert_int_equal(kvt__tier_remove(f->tier, &c.object), 0);
}

/* -------------------------------------------------------- several directories */

struct several {
    struct temp_dir dir;
    struct kvt__tier *tier;
};

static void
open_several(struct several *s, size_t n, const char *setting, uint32_t workers)
{
    char url[4096] = "gds://";

    temp_dir_make(&s->dir);
    for (size_t i = 0; i < n; i++)
        snprintf(url + strlen(url), sizeof url - strlen(url), "%s/%zu,", s->dir.path, i);
    if (try_open_for(url, true, setting, workers, &s->tier))
        fail_msg("%s", kvt__why());
}

static void
close_several(struct several *s)
{
    s->tier->ops->close(s->tier);
    temp_dir_remove(&s->dir);
}

static bool
is_in(const struct several *s, size_t dir, const char *name)
{
    char path[1024];

    snprintf(path, sizeof path, "%s/%zu/%s", s->dir.path, dir, name);
    return exists(path);
}

#define NAME_OF_5 "5/m%401%400%405%40bfloat16.kvcache.safetensors"

static void
by_gpu_the_fifth_of_four_directories_is_the_first_again(void **state)
{
    struct several s;
    struct chunk c;

    (void)state;
    open_several(&s, 4, NULL, 8);
    chunk_init(&c, "m", 5);
    for (uint32_t rank = 0; rank < 8; rank++) {
        c.object.rank = rank;
        assert_int_equal(put_bytes(s.tier, &c.object, 10, rank), 0);
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(is_in(&s, i, NAME_OF_5), i == rank % 4);
            assert_int_equal(is_in(&s, i, NAME_OF_5 ".metadata"), i == rank % 4);
        }
    }
    close_several(&s);
}

/* LMCache's mix of these hashes, modulo 4. */
static void
by_local_rank_one_worker_spreads_keys_by_lmcaches_mix(void **state)
{
    static const int64_t hashes[] = { 0, 1, 1897141500678847486, -89132315033465022,
                                      5625442194607170974 };
    static const size_t dirs[] = { 0, 1, 0, 2, 1 };
    char name[KVT__FILE_NAME_BYTES];
    struct several s;

    (void)state;
    open_several(&s, 4, "gds_path_sharding=by_local_rank", 1);
    for (size_t i = 0; i < sizeof hashes / sizeof *hashes; i++) {
        struct chunk c;

        chunk_init(&c, "m", hashes[i]);
        assert_int_equal(put_bytes(s.tier, &c.object, 10, i), 0);
        assert_int_equal(kvt__layout_name(&kvt__layout_gds, c.key, &c.object.hash, name,
                                          sizeof name), 0);
        assert_true(is_in(&s, dirs[i], name));
    }
    close_several(&s);
}

static void
directories_that_cannot_be_shared_evenly_are_refused(void **state)
{
    struct kvt__tier *tier = NULL;
    struct temp_dir dir;
    char url[1024];

    (void)state;
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "gds://%1$s/a,%1$s/b", dir.path);
    assert_int_equal(try_open_for(url, true, "gds_path_sharding=by_local_rank", 3, &tier),
                     -EINVAL);
    assert_non_null(strstr(kvt__why(), "gds_path_sharding: by_local_rank cannot share 2 "
                           "directories among 3 workers"));
    temp_dir_remove(&dir);
}

/* Listed chunks. */
struct told {
    size_t n;
    uint64_t hashes;
};

static void
count(void *ctx, const char *key, bool opaque, uint64_t stored_bytes, int64_t mtime_ns,
      bool expires)
{
    struct told *told = ctx;
    struct kvt__key_parts parts;

    (void)opaque;
    (void)mtime_ns;
    (void)expires;
    assert_int_equal(kvt__key_parse(key, &parts), 0);
    assert_int_equal(stored_bytes, 3 * 4096);
    told->n++;
    told->hashes += parts.hash.bits[0];
}

static void
chunks_of_four_directories_are_listed_once_each(void **state)
{
    struct told told = { 0 };
    uint64_t hashes = 0;
    struct several s;

    (void)state;
    open_several(&s, 4, NULL, 4);
    for (uint64_t i = 0; i < 1200; i++) {
        struct chunk c;

        chunk_init(&c, "m", (int64_t)(i * UINT64_C(0x9e3779b97f4a7c15)));
        c.object.rank = (uint32_t)i % 4;
        assert_int_equal(put_bytes(s.tier, &c.object, 100, i), 0);
        hashes += c.object.hash.bits[0];
    }
    assert_int_equal(s.tier->ops->list(s.tier, "", count, &told), 0);
    assert_int_equal(told.n, 1200);
    assert_true(told.hashes == hashes);
    close_several(&s);
}

/* A second file belongs only to a chunk in the second file's directory. */
static void
a_second_file_in_another_directory_belongs_to_no_chunk(void **state)
{
    struct names names = { 0 };
    struct several s;
    struct chunk c;
    char path[1024];

    (void)state;
    open_several(&s, 3, NULL, 3);
    chunk_init(&c, "m", 5);
    for (uint32_t rank = 0; rank < 3; rank++) {
        c.object.rank = rank;
        snprintf(path, sizeof path, "%s/%u/5", s.dir.path, rank);
        assert_int_equal(mkdir(path, 0755), 0);
        snprintf(path, sizeof path, "%s/%u/%s", s.dir.path, rank,
                 NAME_OF_5 ".metadata");
        write_file(path, "", 0);
        make_old(path, 100);
    }
    c.object.rank = 1;
    assert_int_equal(put_bytes(s.tier, &c.object, 10, 1), 0);
    snprintf(path, sizeof path, "%s/2/%s", s.dir.path, NAME_OF_5);
    assert_int_equal(mkdir(path, 0755), 0); /* no chunk either */
    snprintf(path, sizeof path, "%s/2/%s", s.dir.path, NAME_OF_5 ".metadata");
    write_file(path, "", 0);
    make_old(path, 100);
    assert_int_equal(s.tier->ops->list(s.tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 1);
    assert_false(is_in(&s, 0, NAME_OF_5 ".metadata"));
    assert_true(is_in(&s, 1, NAME_OF_5 ".metadata"));
    close_several(&s);
}

/* ----------------------------------------------------------------- opening */

/* Write a mount table in which the file system of a directory has the type wekafs. */
static void
write_mounts(const char *path, const char *dir)
{
    struct stat st;
    char line[200];

    assert_int_equal(stat(dir, &st), 0);
    int n = snprintf(line, sizeof line, "1 0 %u:%u / / rw - wekafs default/kv rw\n",
                     major(st.st_dev), minor(st.st_dev));
    write_file(path, line, (size_t)n);
}

static void
on_wekafs_files_end_with_weka1(void **state)
{
    const char *usual = kvt__mounts;
    char mounts[400], url[400], path[700];
    struct names names = { 0 };
    struct kvt__found found;
    struct temp_dir dir;
    struct chunk c;
    bool same;

    (void)state;
    temp_dir_make(&dir);
    snprintf(mounts, sizeof mounts, "%s/mounts", dir.path);
    write_mounts(mounts, dir.path);
    kvt__mounts = mounts;
    snprintf(url, sizeof url, "gds://%s/kv", dir.path);
    struct kvt__tier *tier = open_tier(url, true);
    assert_true(tier->multi_host);
    chunk_init(&c, "m", 1897141500678847486);
    assert_int_equal(put_bytes(tier, &c.object, 5000, 1), 0);
    snprintf(path, sizeof path, "%s/kv/18/97/m%%401%%400%%401a540024b49d3bfe%%40bfloat16"
             ".weka1", dir.path);
    assert_true(exists(path));
    strcat(path, ".metadata");
    assert_true(exists(path));
    assert_int_equal(get_bytes(tier, &c.object, 5000, 1, &found, &same), 0);
    assert_true(same);
    assert_int_equal(tier->ops->list(tier, "", take_name, &names), 0);
    assert_int_equal(names.n, 1);
    index_dir_is_made_again(tier);
    index_dir_remove(tier->ops->private_dir(tier));
    tier->ops->close(tier);
    kvt__mounts = usual;
    temp_dir_remove(&dir);
}

static void
use_direct_io_false_uses_the_page_cache(void **state)
{
    struct temp_dir dir;
    struct kvt__tier *tier;
    char url[400];

    (void)state;
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "gds://%s", dir.path);
    assert_int_equal(try_open_for(url, true, "use_direct_io=false", 1, &tier), 0);
    assert_false(((struct kvt__files *)tier)->dirs[0].direct);
    tier->ops->close(tier);
    temp_dir_remove(&dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_chunk_whose_metadata_a_crash_prevented_is_a_chunk),
        TEST(the_metadata_file_is_removed_first),
        TEST(without_its_second_file_nothing_is_stored),
        TEST(a_listing_removes_files_of_no_chunk),
        TEST(a_directory_with_a_chunks_name_is_no_chunk),
        TEST(a_model_name_may_begin_with_a_dot),
        cmocka_unit_test(by_gpu_the_fifth_of_four_directories_is_the_first_again),
        cmocka_unit_test(by_local_rank_one_worker_spreads_keys_by_lmcaches_mix),
        cmocka_unit_test(directories_that_cannot_be_shared_evenly_are_refused),
        cmocka_unit_test(chunks_of_four_directories_are_listed_once_each),
        cmocka_unit_test(a_second_file_in_another_directory_belongs_to_no_chunk),
        cmocka_unit_test(on_wekafs_files_end_with_weka1),
        cmocka_unit_test(use_direct_io_false_uses_the_page_cache),
    };

    return cmocka_run_group_tests_name("tier gds paths", tests, NULL, NULL);
}
