/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of tiers, tested with each kind: the bytes of chunks. */
#include "contract-test.h"

static void
get_of_an_absent_chunk_is_enoent(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    struct chunk c;
    bool same;

    chunk_init(&c, "model", 1);
    assert_int_equal(get_bytes(f->tier, &c.object, 100, 0, &found, &same), -ENOENT);
    assert_int_equal(kvt__tier_probe(f->tier, &c.object, &found), -ENOENT);
    assert_int_equal(kvt__tier_remove(f->tier, &c.object), -ENOENT);
}

/* Chunks in shared memory have no checksum and no number of tokens. */
static void
check_found(const struct fixture *f, const struct chunk *c, size_t bytes, uint64_t seed,
            const struct kvt__found *found)
{
    bool in_memory = f->tier->in_memory;

    assert_true(found->has_id);
    assert_true(kvt__id_equal(&found->id, &c->object.id));
    assert_int_equal(found->crc, in_memory ? 0 : crc_of(bytes, seed));
    assert_int_equal(found->tokens, in_memory ? 0 : c->object.tokens);
    assert_int_equal(found->payload_bytes, bytes);
}

static void
get_returns_the_stored_bytes(void **state)
{
    static const size_t sizes[] = { 1, 4095, 4096, 300 << 10, (1 << 20) + 28 };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int part = 0; part < 3; part++) {
            struct kvt__found found;
            struct chunk c;
            bool same;

            if (part == 1 && !temp_dir_has_attributes(&f->dir))
                continue; /* the layout has no place for an identity */
            chunk_init(&c, "model", (int64_t)(i * 3) + part);
            c.object.is_full = part == 0;
            c.object.opaque = part == 2;
            c.object.tokens = part ? 17 : 256;
            assert_int_equal(put_bytes(f->tier, &c.object, sizes[i], i), 0);
            assert_int_equal(
                get_bytes(f->tier, &c.object, sizes[i], i, &found, &same), 0);
            assert_true(same);
            check_found(f, &c, sizes[i], i, &found);
        }
    }
}

/* The pool has one phase, and a second tier may have another phase. */
static void
any_phase_of_a_slot_will_do(void **state)
{
    static const size_t phases[] = { 0, 1, 28, 64, 4095 };
    const size_t bytes = (300 << 10) + 5;
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
        for (size_t j = 0; j < sizeof phases / sizeof *phases; j++) {
            struct kvt__slot put = slot_new(bytes, phases[i]);
            struct kvt__slot get = slot_new(bytes, phases[j]);
            struct kvt__found found;
            struct chunk c;

            chunk_init(&c, "model", (int64_t)(i * 8 + j));
            slot_fill(&put, i);
            assert_int_equal(kvt__tier_put(f->tier, &c.object, &put,
                                           crc_of(bytes, i)), 0);
            assert_int_equal(kvt__tier_get(f->tier, &c.object, &get, &found), 0);
            assert_true(slot_holds(&get, i));
            check_found(f, &c, bytes, i, &found);
            slot_free(&put, phases[i]);
            slot_free(&get, phases[j]);
        }
    }
}

static void
put_does_not_change_the_payload(void **state)
{
    struct fixture *f = *state;
    size_t phase = f->tier->phase;
    struct kvt__slot slot = slot_new(9000, phase);
    struct chunk c;

    assert_true(phase < 4096);
    chunk_init(&c, "model", 1);
    slot_fill(&slot, 4);
    assert_int_equal(kvt__tier_put(f->tier, &c.object, &slot, crc_of(9000, 4)), 0);
    assert_true(slot_holds(&slot, 4));
    slot_free(&slot, phase);
}

static void
put_overwrites_whole(void **state)
{
    static const size_t sizes[] = { 300 << 10, 5000, 400 << 10, 1 };
    struct fixture *f = *state;
    struct kvt__found found;
    struct chunk c;
    bool same;

    chunk_init(&c, "model", -7);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        c.object.tokens = (uint32_t)i + 1;
        c.object.id.b[0]++;
        assert_int_equal(put_bytes(f->tier, &c.object, sizes[i], i), 0);
        assert_int_equal(get_bytes(f->tier, &c.object, sizes[i], i, &found, &same),
                         0);
        assert_true(same);
        check_found(f, &c, sizes[i], i, &found);
    }
}

static void
get_of_another_length_is_ebadmsg(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    struct chunk c;
    bool same;

    chunk_init(&c, "model", 1);
    assert_int_equal(put_bytes(f->tier, &c.object, 5000, 1), 0);
    assert_int_equal(get_bytes(f->tier, &c.object, 4999, 1, &found, &same), -EBADMSG);
    assert_int_equal(get_bytes(f->tier, &c.object, 9000, 1, &found, &same), -EBADMSG);
    assert_int_equal(get_bytes(f->tier, &c.object, 5000, 1, &found, &same), 0);
}

/* Shorter chunks are encoded: not in shared memory and not in a GPU's memory. */
static void
get_returns_a_shorter_chunk_if_the_caller_accepts_it(void **state)
{
    static const size_t sizes[] = { 1, 5000, 300 << 10, (600 << 10) - 1 };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && !f->gpu && !f->tier->in_memory; i++)
        for (int opaque = 0; opaque < 2; opaque++) {
            struct kvt__slot slot = slot_new(600 << 10, f->tier->phase);
            struct chunk c;

            chunk_init(&c, "model", (int64_t)i);
            c.object.opaque = opaque;
            assert_int_equal(put_bytes(f->tier, &c.object, sizes[i], i), 0);
            struct kvt__tier_op op = { .kind = KVT__TIER_GET, .object = &c.object, .slot = slot,
                                       .may_be_shorter = true };
            assert_int_equal(kvt__tier_wait(f->tier, &op), 0);
            check_found(f, &c, sizes[i], i, &op.found);
            struct kvt__slot part = { .payload = slot.payload, .bytes = sizes[i] };
            assert_true(slot_holds(&part, i));
            op.slot.bytes = sizes[i] - 1;
            assert_int_equal(kvt__tier_wait(f->tier, &op), -EMSGSIZE);
            slot_free(&slot, f->tier->phase);
        }
}

static void
probe_returns_size_and_identity(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;

    for (int part = 0; part < 3; part++) {
        struct chunk c;

        if (part == 1 && !temp_dir_has_attributes(&f->dir))
            continue;
        chunk_init(&c, "model", part);
        c.object.is_full = part == 0;
        c.object.opaque = part == 2;
        assert_int_equal(put_bytes(f->tier, &c.object, 70000, 3), 0);
        memset(&found, 0xff, sizeof found);
        assert_int_equal(kvt__tier_probe(f->tier, &c.object, &found), 0);
        check_found(f, &c, 70000, 3, &found);
        assert_true(found.stored_bytes >= 70000);
    }
}

/* The store reserves stored_bytes() before the first byte: a chunk must not take more bytes. */
static void
no_chunk_takes_more_than_stored_bytes_foretold(void **state)
{
    static const size_t sizes[] = { 1, 4000, 4096, 8160, 300 << 10, (1 << 20) - 92 };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int part = 0; part < 3; part++) {
            struct kvt__found found;
            struct chunk c;

            chunk_init(&c, "model", (int64_t)(i * 3) + part);
            c.object.is_full = part == 0;
            c.object.opaque = part == 2;
            assert_int_equal(put_bytes(f->tier, &c.object, sizes[i], i), 0);
            assert_int_equal(kvt__tier_probe(f->tier, &c.object, &found), 0);
            assert_in_range(found.stored_bytes, 1,
                            f->ops->stored_bytes(f->tier, &c.object, sizes[i]));
        }
    }
}

static void
a_removed_chunk_is_absent(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    struct chunk c, other;
    bool same;

    chunk_init(&c, "model", 1);
    chunk_init(&other, "model", 2);
    assert_int_equal(put_bytes(f->tier, &c.object, 100, 1), 0);
    assert_int_equal(put_bytes(f->tier, &other.object, 100, 2), 0);
    assert_int_equal(kvt__tier_remove(f->tier, &c.object), 0);
    assert_int_equal(kvt__tier_remove(f->tier, &c.object), -ENOENT);
    assert_int_equal(get_bytes(f->tier, &c.object, 100, 1, &found, &same), -ENOENT);
    assert_int_equal(kvt__tier_probe(f->tier, &c.object, &found), -ENOENT);
    assert_int_equal(get_bytes(f->tier, &other.object, 100, 2, &found, &same), 0);
    assert_true(same);
}

static void
opaque_chunks_are_apart_from_plain_chunks_of_the_key(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    struct chunk c;
    bool same;

    chunk_init(&c, "model", 1);
    c.object.opaque = true;
    assert_int_equal(put_bytes(f->tier, &c.object, 100, 1), 0);
    c.object.opaque = false;
    assert_int_equal(kvt__tier_probe(f->tier, &c.object, &found), -ENOENT);
    assert_int_equal(put_bytes(f->tier, &c.object, 100, 2), 0);
    c.object.opaque = true;
    assert_int_equal(get_bytes(f->tier, &c.object, 100, 1, &found, &same), 0);
    assert_true(same);
}

/* The tests above have moved chunks of the GPUs, and no byte through host memory. */
static void
slots_in_a_gpu_moved_directly(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        use_fakes(vendors[2 * i], vendors[2 * i + 1]);
        assert_true(gds->n_moves > 0);
    }
}

int
main(int argc, char **argv)
{
    static const struct promise promises[] = {
        CONTRACT(get_of_an_absent_chunk_is_enoent),
        CONTRACT(get_returns_the_stored_bytes),
        CONTRACT(any_phase_of_a_slot_will_do),
        CONTRACT(put_does_not_change_the_payload),
        CONTRACT(put_overwrites_whole),
        CONTRACT(get_of_another_length_is_ebadmsg),
        CONTRACT(get_returns_a_shorter_chunk_if_the_caller_accepts_it),
        CONTRACT(probe_returns_size_and_identity),
        CONTRACT(no_chunk_takes_more_than_stored_bytes_foretold),
        CONTRACT(a_removed_chunk_is_absent),
        FILE_CONTRACT(opaque_chunks_are_apart_from_plain_chunks_of_the_key),
    };

    if (!contract_begin(argc, argv))
        return 77;
    add_promises(promises, sizeof promises / sizeof *promises);
    if (vendors)
        add_test((struct CMUnitTest)cmocka_unit_test(slots_in_a_gpu_moved_directly));
    return contract_run("tier contract");
}
