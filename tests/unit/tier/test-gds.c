/* SPDX-License-Identifier: Apache-2.0
 *
 * What is the gds layout's own: its names, headers and second files, files of LMCache,
 * damage, and what crashes leave. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/sha256.h"
#include "file-test.h"
#include "tier/file/file.h"

#define FILE_OF_C "-4/66/org%2Fmodel%401%400%40-1234%40bfloat16.kvcache.safetensors"

static int
setup(void **state)
{
    static struct fixture f;

    open_fixture(&f, "gds", true, FILE_OF_C);
    *state = &f;
    return 0;
}

static const char *
beside(const struct fixture *f)
{
    static char path[1100];

    snprintf(path, sizeof path, "%s.metadata", f->path);
    return path;
}

static bool
exists(const char *path)
{
    return !access(path, F_OK);
}

static void
read_start(const char *path, unsigned char out[KVT__GDS_HEADER_BYTES])
{
    int fd = open(path, O_RDONLY);

    assert_true(fd >= 0);
    assert_int_equal(read(fd, out, KVT__GDS_HEADER_BYTES), KVT__GDS_HEADER_BYTES);
    close(fd);
}

/* As if it was written so long ago. */
static void
make_old(const char *path, time_t seconds)
{
    struct timespec times[2] = { { time(NULL) - seconds, 0 }, { time(NULL) - seconds, 0 } };

    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* A chunk as LMCache stores it, at the fixture's place; its bytes are those of seed. */
static void
write_lmcaches(const struct fixture *f, const struct kvt__shape *shape, size_t bytes,
               uint64_t seed, bool with_metadata)
{
    struct kvt__slot slot = slot_new(bytes, 0);
    unsigned char *start = slot.payload - KVT__GDS_HEADER_BYTES;
    char dir[600];

    slot_fill(&slot, seed);
    kvt__gds_header_put(shape, bytes, NULL, start);
    snprintf(dir, sizeof dir, "%s/-4", f->dir.path);
    mkdir(dir, 0755);
    snprintf(dir, sizeof dir, "%s/-4/66", f->dir.path);
    mkdir(dir, 0755);
    write_file(f->path, start, KVT__GDS_HEADER_BYTES + bytes);
    if (with_metadata)
        write_file(beside(f), start, KVT__GDS_HEADER_BYTES);
    slot_free(&slot, 0);
}

static const struct kvt__shape bytes_5000 = { 4, 6, { 5000 } };

/* ------------------------------------------------------------------- names */

static const struct {
    const char *key, *name;
} names_of_keys[] = {
    { "meta-llama/Llama-3.1-8B@1@0@1a540024b49d3bfe@bfloat16@lora%sql-v2",
      "18/97/meta-llama%2FLlama-3.1-8B%401%400%401a540024b49d3bfe%40bfloat16%40lora%25"
      "sql-v2.kvcache.safetensors" },
    { "m@1@0@-13ca95e4793f0be@half", "-8/91/m%401%400%40-13ca95e4793f0be%40half"
      ".kvcache.safetensors" },
    /* Short hashes have fewer directories. */
    { "m@1@0@0@half", "0/m%401%400%400%40half.kvcache.safetensors" },
    { "m@1@0@-5@half", "-5/m%401%400%40-5%40half.kvcache.safetensors" },
    { "m@1@0@-64@half", "-1/00/m%401%400%40-64%40half.kvcache.safetensors" },
    { "m@1@0@64@half", "10/0/m%401%400%4064%40half.kvcache.safetensors" },
    /* 2^64 - 1, 2^128. */
    { "m@1@0@ffffffffffffffff@half", "18/44/m%401%400%40ffffffffffffffff%40half"
      ".kvcache.safetensors" },
    { "m@1@0@0000000000000000000000000000000100000000000000000000000000000000@half",
      "34/02/m%401%400%40000000000000000000000000000000010000000000000000000000000000000"
      "0%40half.kvcache.safetensors" },
};

static void
names_and_directories_are_lmcaches(void **state)
{
    char name[KVT__FILE_NAME_BYTES], back[KVT__KEY_TEXT_MAX + 1];
    struct kvt__key_parts parts;

    (void)state;
    for (size_t i = 0; i < sizeof names_of_keys / sizeof *names_of_keys; i++) {
        const char *key = names_of_keys[i].key;

        assert_int_equal(kvt__key_parse(key, &parts), 0);
        assert_int_equal(kvt__layout_name(&kvt__layout_gds, key, &parts.hash, name,
                                          sizeof name), 0);
        assert_string_equal(name, names_of_keys[i].name);
        assert_int_equal(kvt__layout_key(&kvt__layout_gds, name, back, sizeof back, &parts),
                         0);
        assert_string_equal(back, key);
    }
    assert_int_equal(kvt__layout_key(&kvt__layout_gds, "19/97/m%401%400%401a540024b49d3bfe"
                                     "%40half.kvcache.safetensors", back, sizeof back,
                                     &parts), -EINVAL);
}

/* With ".metadata" it must fit into 255 bytes. */
static void
a_name_that_leaves_no_room_for_the_second_file_is_too_long(void **state)
{
    char key[300], name[KVT__FILE_NAME_BYTES];
    const struct kvt__hash hash = { .bits = { 1 } };
    size_t longest = 0;
    int err = 0;

    (void)state;
    for (size_t n = 1; !err && n < 250; n++) {
        memset(key, 'm', n);
        strcpy(key + n, "@1@0@1@half");
        err = kvt__layout_name(&kvt__layout_gds, key, &hash, name, sizeof name);
        if (!err)
            longest = strlen(strchr(name, '/') + 1);
    }
    assert_int_equal(err, -ENAMETOOLONG);
    assert_int_equal(longest, 255 - strlen(".metadata"));
    assert_non_null(strstr(kvt__why(), "shorter model name or tag"));
}

/* ----------------------------------------------------------------- headers */

static void
headers_without_identity_are_lmcaches_byte_for_byte(void **state)
{
    static const struct {
        struct kvt__shape shape;
        uint64_t bytes;
        const char *sha256;
    } golden[] = {
        { { 1, 3, { 2, 32, 256, 1024 } }, 33554432,
          "659c112fcb4f679453f5d2fc605fbdc8585e8c63d0b1aeff7b0c9a6f010445f8" },
        { { 4, 6, { 5000 } }, 5000,
          "1b4ec4025cff1de2bd8199f5ea7e3ed3341a17de009a305c845c84c82c0da411" },
        { { 6, 2, { 1, 61, 256, 576 } }, 17989632,
          "98ef5c50fc7eb124f500c567c7157737a07d1def0eb58e48d044c1749fec63fb" },
    };
    unsigned char header[KVT__GDS_HEADER_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        uint8_t digest[KVT__SHA256_BYTES];
        char text[2 * KVT__SHA256_BYTES + 1];
        struct kvt__found found = { 0 };
        struct kvt__sha256 sha;

        kvt__gds_header_put(&golden[i].shape, golden[i].bytes, NULL, header);
        kvt__sha256_init(&sha);
        kvt__sha256_add(&sha, header, sizeof header);
        kvt__sha256_end(&sha, digest);
        for (size_t j = 0; j < sizeof digest; j++)
            snprintf(text + 2 * j, 3, "%02x", digest[j]);
        assert_string_equal(text, golden[i].sha256);
        assert_int_equal(kvt__gds_header_get(header, &found), 0);
        assert_int_equal(found.payload_bytes, golden[i].bytes);
        assert_false(found.has_id);
    }
}

/* What kvtier adds stands last, where LMCache reads no further than its version. */
static void
a_file_is_header_and_payload_and_the_header_lies_beside_it(void **state)
{
    static const char start[] =
        "\xf8\x0f\0\0\0\0\0\0{\"kvcache\": {\"dtype\": \"BF16\", \"shape\": [2, 32, 256, 1024], "
        "\"data_offsets\": [0, 5000], \"fmt\": 1, \"__metadata__\": {\"lmcache_version\": \"1\", "
        "\"kvtier\": \"";
    unsigned char header[KVT__GDS_HEADER_BYTES], copy[KVT__GDS_HEADER_BYTES];
    struct fixture *f = *state;

    assert_int_equal(f->tier->ops->phase(f->tier), 0);
    assert_string_equal(f->tier->ops->name, "gds");
    for (int part = 0; part < 2; part++) {
        f->c.object.whole = !part;
        assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
        assert_int_equal(size_of(f->path), KVT__GDS_HEADER_BYTES + 5000);
        assert_int_equal(size_of(beside(f)), KVT__GDS_HEADER_BYTES);
        read_start(f->path, header);
        read_start(beside(f), copy);
        assert_memory_equal(header, copy, sizeof header);
        assert_memory_equal(header, start, sizeof start - 1);
        const char *end = (const char *)header + sizeof start - 1 + 128;
        assert_memory_equal(end, "\"}}}", 4);
        for (end += 4; end < (const char *)header + sizeof header; end++)
            assert_int_equal(*end, ' ');
    }
}

/* ------------------------------------------------------- files of LMCache */

static void
lmcaches_files_are_served_without_identity(void **state)
{
    struct fixture *f = *state;
    struct names names = { 0 };
    struct kvt__found found;
    bool same;

    for (int with_metadata = 0; with_metadata < 2; with_metadata++) {
        write_lmcaches(f, &bytes_5000, 5000, 3, with_metadata);
        assert_int_equal(f->tier->ops->probe(f->tier, &f->c.object, &found), 0);
        assert_int_equal(found.payload_bytes, 5000);
        assert_int_equal(found.stored_bytes, (with_metadata ? 4 : 3) * 4096);
        assert_false(found.has_id);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 3, &found, &same), 0);
        assert_true(same && !found.has_id);
        names.n = 0;
        assert_int_equal(f->tier->ops->list(f->tier, take_name, &names), 0);
        assert_int_equal(names.n, 1);
        assert_int_equal(names.bytes, (with_metadata ? 4 : 3) * 4096);
        assert_string_equal(names.last, f->c.key);
    }
    assert_int_equal(get_bytes(f->tier, &f->c.object, 4999, 3, &found, &same), -EBADMSG);
    f->c.object.opaque = true; /* LMCache writes none */
    assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 3, &found, &same), -ENOENT);
}

static void
write_text(const struct fixture *f, const char *json, uint64_t length)
{
    unsigned char bytes[KVT__GDS_HEADER_BYTES + 5000];

    memset(bytes, ' ', sizeof bytes);
    kvt__put_le64(bytes, length);
    memcpy(bytes + 8, json, strlen(json));
    write_file(f->path, bytes, sizeof bytes);
}

#define KVCACHE "\"dtype\": \"U8\", \"shape\": [5000], \"data_offsets\": [0, 5000], \"fmt\": 4"
#define VERSION(v) "\"__metadata__\": {\"lmcache_version\": " v "}"
#define D32 "00000000000000000000000000000000"

static void
headers_are_read_as_lmcache_reads_them(void **state)
{
    static const struct {
        const char *json;
        uint64_t length;
        int err;
    } cases[] = {
        { "{\"kvcache\": {" KVCACHE ", " VERSION("\"1\"") "}}", 4088, 0 },
        { "{\"kvcache\":{" KVCACHE "," VERSION("\"1\"") "}}", 200, 0 },
        { "{\"kvcache\": {\"new\": [1], " KVCACHE ", \"__metadata__\": {\"shard\": 3, "
          "\"lmcache_version\": \"1\"}}, \"more\": {}}", 4088, 0 },
        { "{\"kvcache\": {\"dtype\": \"F4\", \"shape\": [10000], \"data_offsets\": [0, 5000], "
          VERSION("\"1\"") "}}", 4088, 0 },
        /* Of a version that may mean something else. */
        { "{\"kvcache\": {" KVCACHE ", " VERSION("\"2\"") "}}", 4088, -ENOENT },
        { "{\"kvcache\": {" KVCACHE ", " VERSION("1") "}}", 4088, -EBADMSG },
        { "{\"kvcache\": {" KVCACHE "}}", 4088, -EBADMSG },
        { "{\"kvcache\": {" KVCACHE ", " VERSION("\"1\"") "}}", 4089, -EBADMSG },
        { "{\"kvcache\": {" KVCACHE ", " VERSION("\"1\"") "}}", UINT64_MAX, -EBADMSG },
        { "{\"kvcache\": {" KVCACHE ", " VERSION("\"1\"") "}", 4088, -EBADMSG },
        { "", 0, -EBADMSG },
        { "[]", 4088, -EBADMSG },
        { "{\"kvcache\": {\"dtype\": \"F16\", \"shape\": [5000], \"data_offsets\": [0, 5000], "
          VERSION("\"1\"") "}}", 4088, -EBADMSG },
        { "{\"kvcache\": {\"dtype\": \"U8\", \"shape\": [4999], \"data_offsets\": [0, 4999], "
          VERSION("\"1\"") "}}", 4088, -EBADMSG },
        { "{\"kvcache\": {\"dtype\": \"U8\", \"shape\": [-5000], \"data_offsets\": [-1, 5000], "
          VERSION("\"1\"") "}}", 4088, -EBADMSG },
        /* One of kvtier's with a bit changed. */
        { "{\"kvcache\": {" KVCACHE ", \"__metadata__\": {\"lmcache_version\": \"1\", "
          "\"kvtieR\": \"" D32 D32 D32 D32 "\"}}}", 4088, -EBADMSG },
        { "{\"kvcache\": {" KVCACHE ", \"__metadata__\": {\"lmcache_version\": \"1\", "
          "\"kvtier\": \"" D32 D32 D32 D32 "\"}}}", 4088, -EBADMSG },
        { "{\"kvcache\": {" KVCACHE ", \"__metadata__\": {\"lmcache_version\": \"1\", "
          "\"kvtier\": \"00\"}}}", 4088, -EBADMSG },
    };
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    write_lmcaches(f, &bytes_5000, 5000, 1, false); /* its directory */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(f, cases[i].json, cases[i].length);
        int err = get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same);
        int looked = f->tier->ops->probe(f->tier, &f->c.object, &found);
        if (err != cases[i].err || looked != cases[i].err)
            fail_msg("case %zu: %d, %d", i, err, looked);
    }
}

/* ------------------------------------------------------------------ damage */

/* No bit of it can be another without that it shows: the chunk is served by its identity,
 * or not at all. */
static void
a_changed_bit_of_our_header_is_never_lmcaches(void **state)
{
    unsigned char header[KVT__GDS_HEADER_BYTES];
    struct fixture *f = *state;
    struct kvt__found found;
    size_t n_text;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    read_start(f->path, header);
    for (n_text = 8; header[n_text] != ' ' || header[n_text + 1] != ' '; n_text++)
        continue;
    for (size_t bit = 0; bit < 8 * n_text; bit++) {
        header[bit / 8] ^= (unsigned char)(1u << bit % 8);
        found = (struct kvt__found){ 0 };
        if (!kvt__gds_header_get(header, &found) &&
            (!found.has_id || !kvt__id_equal(&found.id, &f->c.object.id) ||
             found.crc != crc_of(5000, 1)))
            fail_msg("bit %zu", bit);
        header[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

static void
files_cut_off_are_damaged(void **state)
{
    static const off_t sizes[] = { 0, 1, 4095, 4096, 4097, 9095, 9097 };
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
        assert_int_equal(truncate(f->path, sizes[i]), 0);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same),
                         -EBADMSG);
        assert_int_equal(f->tier->ops->probe(f->tier, &f->c.object, &found), -EBADMSG);
    }
}

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
    assert_int_equal(unlink(beside(f)), 0);
    assert_int_equal(f->tier->ops->probe(f->tier, &f->c.object, &found), 0);
    assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same), 0);
    assert_true(same && found.has_id);
    assert_int_equal(f->tier->ops->list(f->tier, take_name, &names), 0);
    assert_int_equal(names.n, 1);
    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_true(exists(beside(f)));
    assert_int_equal(unlink(beside(f)), 0);
    assert_int_equal(f->tier->ops->remove(f->tier, &f->c.object), 0);
    assert_false(exists(f->path));
}

/* Where the second file cannot be removed the first stays: nobody is told of a chunk that
 * is gone. */
static void
the_second_file_goes_first(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_int_equal(unlink(beside(f)), 0);
    assert_int_equal(mkdir(beside(f), 0755), 0);
    assert_int_not_equal(f->tier->ops->remove(f->tier, &f->c.object), 0);
    assert_true(exists(f->path));
    assert_int_equal(rmdir(beside(f)), 0);
    assert_int_equal(f->tier->ops->remove(f->tier, &f->c.object), 0);
    assert_false(exists(f->path));
}

static void
without_its_second_file_nothing_is_stored(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    char path[600];

    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_int_equal(f->tier->ops->remove(f->tier, &f->c.object), 0);
    assert_int_equal(mkdir(beside(f), 0755), 0);
    snprintf(path, sizeof path, "%s/x", beside(f));
    write_file(path, "", 0);
    assert_int_not_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    assert_non_null(strstr(kvt__why(), ".metadata"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(beside(f)), 0);
    (void)f->tier->ops->remove(f->tier, &f->c.object);
    assert_int_equal(f->tier->ops->probe(f->tier, &f->c.object, &found), -ENOENT);
}

/* What a crash, or an LMCache, left that belongs to no chunk goes when it is old enough
 * that nobody can be about to make the chunk. */
static void
a_listing_removes_what_belongs_to_no_chunk(void **state)
{
    static const char *const odd[] = { ".metadata", ".tmp0a1b2c3d", ".metadata.tmp0a1b2c3d" };
    static const char *const kept[] = { ".metadata.bak", ".tmp0a1b2c3", ".tmp0a1b2c3g", ".x" };
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
        assert_int_equal(f->tier->ops->list(f->tier, take_name, &names), 0);
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
    make_old(beside(f), 4000);
    assert_int_equal(f->tier->ops->list(f->tier, take_name, &names), 0);
    assert_true(exists(beside(f)));
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
lies_in(const struct several *s, size_t dir, const char *name)
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
            assert_int_equal(lies_in(&s, i, NAME_OF_5), i == rank % 4);
            assert_int_equal(lies_in(&s, i, NAME_OF_5 ".metadata"), i == rank % 4);
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
        assert_true(lies_in(&s, dirs[i], name));
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

/* Each of many is told once, on the thread that asks, from whichever directory. */
struct told {
    pthread_t thread;
    size_t n, n_of[4];
    uint64_t hashes;
};

static void
count(void *ctx, const char *key, bool opaque, uint32_t path, uint64_t stored_bytes,
      int64_t mtime_ns)
{
    struct told *told = ctx;
    struct kvt__key_parts parts;

    (void)opaque;
    (void)mtime_ns;
    assert_true(pthread_equal(told->thread, pthread_self()));
    assert_int_equal(kvt__key_parse(key, &parts), 0);
    assert_int_equal(stored_bytes, 3 * 4096);
    assert_true(path < 4);
    told->n++;
    told->n_of[path]++;
    told->hashes += parts.hash.bits[0];
}

static void
four_directories_are_listed_at_a_time(void **state)
{
    struct told told = { .thread = pthread_self() };
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
    assert_int_equal(s.tier->ops->list(s.tier, count, &told), 0);
    assert_int_equal(told.n, 1200);
    assert_true(told.hashes == hashes);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(told.n_of[i], 300);
    close_several(&s);
}

/* ----------------------------------------------------------------- opening */

/* A table of mounts that calls the file system of a directory wekafs. */
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
    assert_true(tier->shared);
    chunk_init(&c, "m", 1897141500678847486);
    assert_int_equal(put_bytes(tier, &c.object, 5000, 1), 0);
    snprintf(path, sizeof path, "%s/kv/18/97/m%%401%%400%%401a540024b49d3bfe%%40bfloat16"
             ".weka1", dir.path);
    assert_true(exists(path));
    strcat(path, ".metadata");
    assert_true(exists(path));
    assert_int_equal(get_bytes(tier, &c.object, 5000, 1, &found, &same), 0);
    assert_true(same);
    assert_int_equal(tier->ops->list(tier, take_name, &names), 0);
    assert_int_equal(names.n, 1);
    tier->ops->close(tier);
    kvt__mounts = usual;
    temp_dir_remove(&dir);
}

static void
use_gds_that_cannot_be_had_is_an_error_that_names_what_is_missing(void **state)
{
    struct kvt__tier *tier = NULL;
    struct temp_dir dir;
    char url[400];

    (void)state;
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "gds://%s", dir.path);
    assert_int_equal(try_open_for(url, true, "use_gds=true", 1, &tier), -ENODEV);
    assert_non_null(strstr(kvt__why(), "use_gds is true (argument)"));
    assert_non_null(strstr(kvt__why(), "host memory"));
    assert_int_equal(try_open_for(url, true, "use_gds=false", 1, &tier), 0);
    tier->ops->close(tier);
    temp_dir_remove(&dir);
}

static void
use_direct_io_false_goes_through_the_page_cache(void **state)
{
    struct temp_dir dir;
    struct kvt__tier *tier;
    char url[400];

    (void)state;
    temp_dir_make(&dir);
    snprintf(url, sizeof url, "gds://%s", dir.path);
    assert_int_equal(try_open_for(url, true, "use_direct_io=false", 1, &tier), 0);
    assert_false(((struct file_tier *)tier)->dirs[0].direct);
    tier->ops->close(tier);
    temp_dir_remove(&dir);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_directories_are_lmcaches),
        cmocka_unit_test(a_name_that_leaves_no_room_for_the_second_file_is_too_long),
        cmocka_unit_test(headers_without_identity_are_lmcaches_byte_for_byte),
        TEST(a_file_is_header_and_payload_and_the_header_lies_beside_it),
        TEST(lmcaches_files_are_served_without_identity),
        TEST(headers_are_read_as_lmcache_reads_them),
        TEST(a_changed_bit_of_our_header_is_never_lmcaches),
        TEST(files_cut_off_are_damaged),
        TEST(a_chunk_whose_metadata_a_crash_prevented_is_a_chunk),
        TEST(the_second_file_goes_first),
        TEST(without_its_second_file_nothing_is_stored),
        TEST(a_listing_removes_what_belongs_to_no_chunk),
        cmocka_unit_test(by_gpu_the_fifth_of_four_directories_is_the_first_again),
        cmocka_unit_test(by_local_rank_one_worker_spreads_keys_by_lmcaches_mix),
        cmocka_unit_test(directories_that_cannot_be_shared_evenly_are_refused),
        cmocka_unit_test(four_directories_are_listed_at_a_time),
        cmocka_unit_test(on_wekafs_files_end_with_weka1),
        cmocka_unit_test(use_gds_that_cannot_be_had_is_an_error_that_names_what_is_missing),
        cmocka_unit_test(use_direct_io_false_goes_through_the_page_cache),
    };

    return cmocka_run_group_tests_name("tier gds", tests, NULL, NULL);
}
