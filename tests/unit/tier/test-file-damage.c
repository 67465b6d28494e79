/* SPDX-License-Identifier: Apache-2.0
 *
 * Damaged and truncated files. */
#include "fs-test.h"
#include "tier/layout/layout.h"

static void
damaged_frames_are_ebadmsg(void **state)
{
    struct fixture *f = *state;
    bool header = f->tier->phase == 28;
    off_t first = header ? 28 : 0;
    struct kvt__found found;
    bool same;

    for (off_t at = first + 1000; at < first + 1064; at++) {
        assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
        flip_byte(f->path, at);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 1000, 1, &found, &same),
                         -EBADMSG);
    }
    for (off_t at = 0; header && at < 4; at++) { /* the length in the header */
        assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
        flip_byte(f->path, at);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 1000, 1, &found, &same),
                         -EBADMSG);
    }
}

static void
a_damaged_payload_differs_from_its_checksum(void **state)
{
    struct fixture *f = *state;
    size_t phase = f->tier->phase;
    struct kvt__slot slot = slot_new(1000, phase);
    struct kvt__found found;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 1000, 1), 0);
    flip_byte(f->path, 500);
    assert_int_equal(kvt__tier_get(f->tier, &f->c.object, &slot, &found), 0);
    assert_int_not_equal(kvt__crc32c(0, slot.payload, 1000), found.crc);
    slot_free(&slot, phase);
}

static void
truncated_files_are_ebadmsg(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    assert_int_equal(put_bytes(f->tier, &f->c.object, 5000, 1), 0);
    for (off_t size = size_of(f->path) - 1; size > 5028; size -= 7) {
        assert_int_equal(truncate(f->path, size), 0);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same),
                         -EBADMSG);
    }
    assert_int_equal(truncate(f->path, 0), 0);
    assert_int_equal(get_bytes(f->tier, &f->c.object, 5000, 1, &found, &same),
                     -EBADMSG);
    assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found),
                     temp_dir_has_attributes(&f->dir) ? -ENOENT : 0);
}

/* The trailer of a file contains wrong lengths, whose sum may overflow. */
static void
a_trailer_with_lengths_of_another_file_is_none(void **state)
{
    static const struct kvt__trailer wrong[] = {
        { .payload_bytes = 1001 }, { .payload_bytes = UINT64_MAX },
        { .payload_bytes = UINT64_C(1000) - UINT32_MAX, .payload_at = UINT32_MAX },
    };
    struct fixture *f = *state;
    unsigned char bytes[1064] = { 0 };
    struct kvt__found found;
    bool same;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        kvt__trailer_put(&wrong[i], bytes + 1000);
        write_file(f->path, bytes, sizeof bytes);
        assert_int_equal(kvt__tier_probe(f->tier, &f->c.object, &found), 0);
        assert_false(found.has_id);
        assert_int_equal(found.payload_bytes, sizeof bytes);
        assert_int_equal(get_bytes(f->tier, &f->c.object, 1000, 1, &found, &same),
                         -EBADMSG);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        HEADER(damaged_frames_are_ebadmsg),
        BARE(damaged_frames_are_ebadmsg),
        HEADER(a_damaged_payload_differs_from_its_checksum),
        BARE(a_damaged_payload_differs_from_its_checksum),
        HEADER(truncated_files_are_ebadmsg),
        HEADER(a_trailer_with_lengths_of_another_file_is_none),
    };

    return cmocka_run_group_tests_name("tier file damage", tests, NULL, NULL);
}
