/* SPDX-License-Identifier: Apache-2.0
 *
 * Chunks in memory: files of each layout are parsed, and frames are decoded. */
#include "copy-test.h"

static void
a_file_of_each_form_is_parsed(void **state)
{
    static const struct {
        const struct kvt__layout *layout;
        struct kvt__form form;
        bool has_id, has_shape;
    } files[] = {
        { &kvt__layout_fs, { KVT__FS_HEADER_BYTES, KVT__TRAILER_BYTES, true }, true, true },
        { &kvt__layout_fs, { KVT__FS_HEADER_BYTES, 0, false }, false, true },
        { &kvt__layout_local_disk, { 0, KVT__TRAILER_BYTES, true }, true, false },
        { &kvt__layout_local_disk, { 0, 0, false }, false, false },
        { &kvt__layout_gds, { KVT__GDS_HEADER_BYTES, 0, true }, true, true },
    };
    unsigned char *chunk = malloc(BYTES);

    (void)state;
    fill(&layout, chunk);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct kvt_op op = file_of(files[i].layout, &files[i].form, "copy");

        assert_int_equal(kvt_file_parse(&op), 0);
        assert_int_equal(op.found_bytes, BYTES);
        assert_memory_equal(op.buf, chunk, BYTES);
        assert_int_equal(op.found, (files[i].has_id ? KVT_FOUND_ID | KVT_FOUND_CHECKED : 0) |
                                   (files[i].has_shape ? KVT_FOUND_SHAPE : 0));
        assert_int_equal(op.tokens, files[i].has_id ? object.tokens : 0);
        if (files[i].has_id)
            assert_memory_equal(op.id, object.id.b, sizeof op.id);
        if (files[i].has_shape)
            assert_memory_equal(op.dims, header.dims, sizeof op.dims);
        free(op.buf);
    }
    free(chunk);
}

static void
a_corrupt_file_is_no_chunk(void **state)
{
    const struct kvt__form form = { KVT__FS_HEADER_BYTES, KVT__TRAILER_BYTES, true };
    const size_t lengths[] = { 0, 1, 27, 28, 29, BYTES, BYTES + 28 + 63 };

    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct kvt_op whole = file_of(&kvt__layout_fs, &form, "copy");
        struct kvt_op op = op_of("copy", whole.buf, lengths[i]);

        /* Less than a header is a payload of unknown type. */
        int err = kvt_file_parse(&op);
        assert_int_equal(err ? err : kvt_codec_measure(&op, on_codec, NULL),
                         lengths[i] && lengths[i] < 28 ? -ENOTSUP : -EBADMSG);
        free(op.buf);
        free(whole.buf);
    }
    for (size_t at = 0; at < BYTES + 28 + 64; at += at < 28 || at >= BYTES + 28 ? 1 : 1009) {
        struct kvt_op op = file_of(&kvt__layout_fs, &form, "copy");

        if (at >= 4 && at < 28)
            at = 28; /* no checksum guards the shape */
        ((unsigned char *)op.buf)[at] ^= 4;
        assert_int_equal(kvt_file_parse(&op), -EBADMSG);
        free(op.buf);
    }
}

static void
a_file_without_a_middle_part_is_no_chunk(void **state)
{
    const struct kvt__form form = { KVT__FS_HEADER_BYTES, KVT__TRAILER_BYTES, true };
    struct kvt_op whole = file_of(&kvt__layout_fs, &form, "copy");

    (void)state;
    memmove((unsigned char *)whole.buf + 100, (unsigned char *)whole.buf + 101,
            whole.bytes - 101);
    struct kvt_op op = op_of("copy", whole.buf, whole.bytes - 1);
    assert_int_equal(kvt_file_parse(&op), -EBADMSG);
    assert_non_null(strstr(kvt__why(), "truncated"));
    free(op.buf);
    free(whole.buf);
}

static void
a_chunk_of_no_bytes_has_its_identity(void **state)
{
    static const struct kvt__form forms[] = {
        { KVT__FS_HEADER_BYTES, KVT__TRAILER_BYTES, true }, { 0, KVT__TRAILER_BYTES, true } };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        unsigned char memory[2 * MARGIN];
        struct kvt__slot slot = { .payload = memory + MARGIN };

        assert_int_equal(kvt__layout_fs.frame(&forms[i], &object, &slot, 0), 0);
        struct kvt_op op = op_of("copy", slot.payload - forms[i].header_bytes,
                                 forms[i].header_bytes + forms[i].trailer_bytes);
        assert_int_equal(kvt_file_parse(&op), 0);
        assert_int_equal(op.found_bytes, 0);
        assert_true(op.found & KVT_FOUND_ID);
        free(op.buf);
    }
}

static void
a_file_of_a_frame_header_alone_is_a_frame(void **state)
{
    unsigned char header_alone[KVT__FRAME_HEADER_BYTES] = KVT__FRAME_MAGIC;
    struct kvt_op op = op_of(KEY, header_alone, sizeof header_alone);

    (void)state;
    assert_int_equal(kvt_file_parse(&op), 0);
    assert_int_equal(op.found_bytes, sizeof header_alone);
    assert_int_equal(measured_error(&op), -EBADMSG);
}

static void
an_operation_without_key_or_bytes_is_refused(void **state)
{
    (void)state;
    for (int fault = 0; fault < 3; fault++) {
        struct kvt_op op = op_of("m@1@0@1@half", (const unsigned char *)"12345678", 8);
        unsigned char *bytes = op.buf;

        if (fault == 0)
            op.struct_size = offsetof(struct kvt_op, expires_ns) - 1;
        if (fault == 1)
            op.key = NULL;
        if (fault == 2)
            op.buf = NULL;
        assert_int_equal(kvt_file_parse(&op), -EINVAL);
        assert_int_equal(kvt_codec_measure(&op, on_codec, NULL), -EINVAL);
        free(bytes);
    }
}

/* ----------------------------------------------------------------------- frames */

static void
a_frame_is_described_and_decoded(void **state)
{
    struct kvt_frame info = KVT_INIT(struct kvt_frame);
    struct kvt_op op = frame_of(KVT__SERDE_LOSSLESS, &layout);
    unsigned char *chunk = malloc(BYTES), *decoded = malloc(BYTES);

    (void)state;
    fill(&layout, chunk);
    assert_int_equal(kvt_frame_decode(op.buf, op.bytes, &info, NULL), 0);
    assert_string_equal(info.codec, "lossless");
    assert_int_equal(info.bytes, BYTES);
    assert_false(info.is_lossy);
    assert_int_equal(kvt_frame_decode(op.buf, op.bytes, &info, decoded), 0);
    assert_memory_equal(chunk, decoded, BYTES);
    ((unsigned char *)op.buf)[op.bytes / 2] ^= 1;
    assert_int_equal(kvt_frame_decode(op.buf, op.bytes, &info, decoded), -EBADMSG);
    assert_int_equal(kvt_frame_decode(op.buf, op.bytes, &info, NULL), -EBADMSG);
    assert_int_equal(kvt_frame_decode(op.buf, 0, &info, decoded), -EBADMSG);
    free(op.buf);
    free(chunk);
    free(decoded);
}

static void
a_frame_of_another_chunk_than_its_checksum_is_not_decoded(void **state)
{
    struct kvt_frame info = KVT_INIT(struct kvt_frame);
    unsigned char *decoded = malloc(BYTES);

    (void)state;
    for (int fault = 0; fault < 2; fault++) {
        struct kvt_op op = frame_of(KVT__SERDE_LOSSLESS, &layout);
        unsigned char *frame = op.buf;

        if (fault == 0) /* CRC32C of the decoded chunk */
            frame[28] ^= 1;
        else /* bytes of the planes */
            memset(frame + KVT__FRAME_HEADER_BYTES + 4 * layout.n_planes, 0xff, 1000);
        kvt__put_le32(frame + 12, kvt__crc32c(0, frame + 16, op.bytes - 16));
        assert_int_equal(kvt_frame_decode(op.buf, op.bytes, &info, NULL), 0);
        assert_int_equal(kvt_frame_decode(op.buf, op.bytes, &info, decoded), -EBADMSG);
        assert_string_equal(kvt__why(), fault ? "the encoded chunk cannot be decoded."
                                              : "the checksum of the decoded chunk is wrong.");
        assert_int_equal(kvt_codec_measure(&op, on_codec, NULL), -EBADMSG);
        assert_memory_equal(kvt__why(), "copy: the ", 10);
        free(op.buf);
    }
    free(decoded);
}

static void
a_key_contains_the_encoding(void **state)
{
    (void)state;
    assert_string_equal(kvt_key_encoding(KEY), "naive");
    assert_string_equal(kvt_key_encoding(KEY "@kvt%lossless"), "lossless");
    assert_string_equal(kvt_key_encoding(KEY "@user%kv4@kvt%kv8"), "kv8");
    assert_string_equal(kvt_key_encoding(KEY "@kvt%0123456789abcdef"), "naive");
    assert_string_equal(kvt_key_encoding(KEY "@kvt%0123456789abcdef-kv4"), "kv4");
    assert_string_equal(kvt_key_encoding(KEY "@kvt%inexact-naive"), "naive");
    assert_string_equal(kvt_key_encoding(KEY "@kvt%inexact-lossless"), "lossless");
    assert_string_equal(kvt_key_encoding(KEY "@kvt%0123456789abcdef-inexact-lossless"),
                        "lossless");
    assert_string_equal(kvt_key_encoding(KEY "@kvt%other"), "naive");
    assert_string_equal(kvt_key_encoding(""), "naive");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_of_each_form_is_parsed),
        cmocka_unit_test(a_corrupt_file_is_no_chunk),
        cmocka_unit_test(a_file_without_a_middle_part_is_no_chunk),
        cmocka_unit_test(a_chunk_of_no_bytes_has_its_identity),
        cmocka_unit_test(a_file_of_a_frame_header_alone_is_a_frame),
        cmocka_unit_test(an_operation_without_key_or_bytes_is_refused),
        cmocka_unit_test(a_frame_is_described_and_decoded),
        cmocka_unit_test(a_frame_of_another_chunk_than_its_checksum_is_not_decoded),
        cmocka_unit_test(a_key_contains_the_encoding),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
