/* SPDX-License-Identifier: Apache-2.0
 *
 * The gds layout: names and headers of files, files of LMCache, and corrupt files. */
#include "base/sha256.h"
#include "gds-test.h"

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

/* A name with ".metadata" must fit into 255 bytes. */
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

/* kvtier's fields are at the end of the header, and LMCache ignores them after its version. */
static void
a_file_has_header_and_payload_and_a_second_file_the_header(void **state)
{
    static const char start[] =
        "\xf8\x0f\0\0\0\0\0\0{\"kvcache\": {\"dtype\": \"BF16\", "
        "\"shape\": [2, 32, 256, 1024], \"data_offsets\": [0, 5000], \"fmt\": 1, "
        "\"__metadata__\": {\"lmcache_version\": \"1\", \"kvtier\": \"";
    unsigned char header[KVT__GDS_HEADER_BYTES], copy[KVT__GDS_HEADER_BYTES];
    struct fixture *f = *state;

    assert_int_equal(f->tier->phase, 0);
    assert_string_equal(f->tier->ops->name, "gds");
    for (int part = 0; part < 2; part++) {
        f->c.object.is_full = !part;
        assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
        assert_int_equal(size_of(f->path), KVT__GDS_HEADER_BYTES + 5000);
        assert_int_equal(size_of(metadata_path(f)), KVT__GDS_HEADER_BYTES);
        read_start(f->path, header);
        read_start(metadata_path(f), copy);
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
        assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), 0);
        assert_int_equal(found.payload_bytes, 5000);
        assert_int_equal(found.stored_bytes, (with_metadata ? 4 : 3) * 4096);
        assert_false(found.has_id);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 3, &found, &same), 0);
        assert_true(same && !found.has_id);
        names.n = 0;
        assert_int_equal(f->tier->ops->list(f->tier, "", take_name, &names), 0);
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

#define OFFSETS "\"data_offsets\": [0, 5000], "
#define KVCACHE "\"dtype\": \"U8\", \"shape\": [5000], " OFFSETS "\"fmt\": 4"
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
        { "{\"kvcache\": {\"dtype\": \"F4\", \"shape\": [10000], " OFFSETS
          VERSION("\"1\"") "}}", 4088, 0 },
        /* A version with unknown meaning. */
        { "{\"kvcache\": {" KVCACHE ", " VERSION("\"2\"") "}}", 4088, -ENOENT },
        { "{\"kvcache\": {" KVCACHE ", " VERSION("1") "}}", 4088, -EBADMSG },
        { "{\"kvcache\": {" KVCACHE "}}", 4088, -EBADMSG },
        { "{\"kvcache\": {" KVCACHE ", " VERSION("\"1\"") "}}", 4089, -EBADMSG },
        { "{\"kvcache\": {" KVCACHE ", " VERSION("\"1\"") "}}", UINT64_MAX, -EBADMSG },
        { "{\"kvcache\": {" KVCACHE ", " VERSION("\"1\"") "}", 4088, -EBADMSG },
        { "", 0, -EBADMSG },
        { "[]", 4088, -EBADMSG },
        { "{\"kvcache\": {\"dtype\": \"F16\", \"shape\": [5000], " OFFSETS
          VERSION("\"1\"") "}}", 4088, -EBADMSG },
        { "{\"kvcache\": {\"dtype\": \"U8\", \"shape\": [4999], "
          "\"data_offsets\": [0, 4999], " VERSION("\"1\"") "}}", 4088, -EBADMSG },
        { "{\"kvcache\": {\"dtype\": \"U8\", \"shape\": [-5000], "
          "\"data_offsets\": [-1, 5000], " VERSION("\"1\"") "}}", 4088, -EBADMSG },
        /* A header of kvtier with a changed bit. */
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
        int looked = kvt__tier_probe(f->tier, &f->c.object, &found);
        if (err != cases[i].err || looked != cases[i].err)
            fail_msg("case %zu: %d, %d", i, err, looked);
    }
}

/* A format or dtype without a number in LMCache is 0. */
static void
headers_encode_shapes_as_lmcache(void **state)
{
    static const struct {
        const char *dtype, *dims, *format;
        uint64_t bytes;
        struct kvt__shape told;
    } cases[] = {
        { "BF16", "2, 3, 16, 16", "1", 3072, { 1, 3, { 2, 3, 16, 16 } } },
        { "F16", "1, 3, 16, 24", "6", 2304, { 6, 2, { 1, 3, 16, 24 } } },
        { "F32", "8", "1", 32, { 1, 4, { 8 } } },
        { "F64", "8, 1", "1", 64, { 1, 5, { 8, 1 } } },
        { "U8", "7", "4", 7, { 4, 6, { 7 } } },
        { "F8E4M3FN", "7", "1", 7, { 1, 7, { 7 } } },
        { "F8E5M2", "7", "1", 7, { 1, 8, { 7 } } },
        /* kvtier reads these dtypes as bytes. */
        { "I8", "2, 3, 4, 5", "1", 120, { 1, 6, { 2, 3, 4, 5 } } },
        { "U16", "2, 3, 4, 5", "1", 240, { 1, 6, { 2, 3, 4, 10 } } },
        { "I64", "2, 3, 4, 5", "1", 960, { 1, 6, { 2, 3, 4, 40 } } },
        { "F4", "2, 3, 4, 5", "1", 60, { 0 } },
        { "U8", "2, 3, 4, 5, 1", "1", 120, { 0 } },
        { "U8", "4294967296", "4", UINT64_C(1) << 32, { 0 } },
        { "U16", "4294967295", "4", UINT64_C(8589934590), { 0 } },
        { "U8", "4294967295", "4", UINT32_MAX, { 4, 6, { UINT32_MAX } } },
        { "U8", "7", "4294967297", 7, { 0, 6, { 7 } } },
        { "U8", "7", "-1", 7, { 0, 6, { 7 } } },
        { "U8", "7", "\"1\"", 7, { 0, 6, { 7 } } },
        { "U8", "7", "1.0", 7, { 0, 6, { 7 } } },
    };
    unsigned char header[KVT__GDS_HEADER_BYTES];
    char text[400];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kvt__found found = { 0 };

        snprintf(text, sizeof text, "{\"kvcache\": {\"dtype\": \"%s\", \"shape\": [%s], "
                 "\"data_offsets\": [0, %llu], \"fmt\": %s, " VERSION("\"1\"") "}}",
                 cases[i].dtype, cases[i].dims, (unsigned long long)cases[i].bytes,
                 cases[i].format);
        memset(header, ' ', sizeof header);
        kvt__put_le64(header, sizeof header - 8);
        memcpy(header + 8, text, strlen(text));
        if (kvt__gds_header_get(header, &found) || !found.has_shape ||
            memcmp(&found.shape, &cases[i].told, sizeof found.shape))
            fail_msg("case %zu", i);
    }
}

/* ------------------------------------------------------------------ damage */

/* If a bit of the header has changed, kvtier notices the change: the chunk is served with its
 * identity, or is a miss. */
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
        assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), -EBADMSG);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_directories_are_lmcaches),
        cmocka_unit_test(a_name_that_leaves_no_room_for_the_second_file_is_too_long),
        cmocka_unit_test(headers_without_identity_are_lmcaches_byte_for_byte),
        TEST(a_file_has_header_and_payload_and_a_second_file_the_header),
        TEST(lmcaches_files_are_served_without_identity),
        TEST(headers_are_read_as_lmcache_reads_them),
        cmocka_unit_test(headers_encode_shapes_as_lmcache),
        TEST(a_changed_bit_of_our_header_is_never_lmcaches),
        TEST(files_cut_off_are_damaged),
    };

    return cmocka_run_group_tests_name("tier gds", tests, NULL, NULL);
}
