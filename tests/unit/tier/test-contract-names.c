/* SPDX-License-Identifier: Apache-2.0
 *
 * The contract of tiers, tested with each kind: names and listings. */
#include "contract-test.h"

static void
a_model_name_with_slashes_leaves_no_directory(void **state)
{
    static const char *const models[] = { "org/model", "../../up", "a/../b", "/abs" };
    struct fixture *f = *state;
    struct kvt__found found;
    bool same;

    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct chunk c;

        chunk_init(&c, models[i], (int64_t)i);
        assert_int_equal(put_bytes(f->tier, &c.object, 5000, i), 0);
        assert_int_equal(get_bytes(f->tier, &c.object, 5000, i, &found, &same), 0);
        assert_true(same);
    }
}

static void
a_name_too_long_is_refused_by_every_call(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    char model[256];
    struct chunk c;
    bool same;

    memset(model, 'm', 255);
    model[255] = '\0';
    chunk_init(&c, model, 1);
    size_t n = strlen(c.key); /* the longest valid key text has a tag */
    memset(c.key + n, 't', sizeof c.key - n);
    memcpy(c.key + n, "@a%", 3);
    c.key[sizeof c.key - 1] = '\0';
    assert_int_equal(put_bytes(f->tier, &c.object, 100, 1), -ENAMETOOLONG);
    assert_int_equal(get_bytes(f->tier, &c.object, 100, 1, &found, &same),
                     -ENAMETOOLONG);
    assert_int_equal(kvt__tier_probe(f->tier, &c.object, &found), -ENAMETOOLONG);
    assert_int_equal(kvt__tier_remove(f->tier, &c.object), -ENAMETOOLONG);
}

/* ----------------------------------------------------------------- listing */

struct listing {
    size_t n;
    struct {
        char key[KVT__KEY_TEXT_MAX + 1];
        bool opaque;
        uint64_t bytes;
        int64_t mtime_ns;
        bool expires;
    } names[64];
};

static void
take_name(void *ctx, const char *key, bool opaque, uint64_t stored_bytes,
          int64_t mtime_ns, bool expires)
{
    struct listing *l = ctx;

    if (l->n < 64) {
        snprintf(l->names[l->n].key, sizeof l->names[0].key, "%s", key);
        l->names[l->n].opaque = opaque;
        l->names[l->n].bytes = stored_bytes;
        l->names[l->n].mtime_ns = mtime_ns;
        l->names[l->n].expires = expires;
    }
    l->n++;
}

static bool
listed(const struct fixture *f, const struct listing *l, const struct chunk *c,
       uint64_t bytes)
{
    char key[KVT__KEY_TEXT_MAX + 1];

    strcpy(key, c->key);
    for (char *at = key; (at = strchr(at, '/')); at++)
        *at = f->tier->slash ? f->tier->slash : '/';
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->names[i].key, key) &&
            l->names[i].opaque == c->object.opaque && l->names[i].bytes == bytes)
            return true;
    return false;
}

static void
list_names_everything_and_nothing_else(void **state)
{
    struct fixture *f = *state;
    struct listing *l = calloc(1, sizeof *l);
    struct chunk chunks[12];

    assert_non_null(l);
    assert_int_equal(f->ops->list(f->tier, "", take_name, l), 0);
    assert_int_equal(l->n, 0);
    for (size_t i = 0; i < 12; i++) {
        chunk_init(&chunks[i], i % 2 ? "org/model-x" : "m", (int64_t)i - 6);
        chunks[i].object.opaque = i % 3 == 0;
        assert_int_equal(put_bytes(f->tier, &chunks[i].object, i * 5000 + 1, i), 0);
    }
    assert_int_equal(kvt__tier_remove(f->tier, &chunks[7].object), 0);
    l->n = 0;
    assert_int_equal(f->ops->list(f->tier, "", take_name, l), 0);
    assert_int_equal(l->n, 11);
    for (size_t i = 0; i < 12; i++) {
        struct kvt__found found = { 0 };

        (void)kvt__tier_probe(f->tier, &chunks[i].object, &found);
        assert_int_equal(listed(f, l, &chunks[i], found.stored_bytes), i != 7);
    }
    free(l);
}

/* Return true if get, probe and list of the only chunk report a time to live. */
static bool
is_marked(const struct fixture *f, const struct chunk *c, size_t bytes, uint64_t seed)
{
    struct listing *l = calloc(1, sizeof *l);
    struct kvt__found got, probed;
    bool same;

    assert_non_null(l);
    assert_int_equal(get_bytes(f->tier, &c->object, bytes, seed, &got, &same), 0);
    assert_true(same);
    assert_int_equal(kvt__tier_probe(f->tier, &c->object, &probed), 0);
    assert_int_equal(f->ops->list(f->tier, "", take_name, l), 0);
    assert_int_equal(l->n, 1);
    bool marked = l->names[0].expires;
    free(l);
    assert_int_equal(got.expires, marked);
    assert_int_equal(probed.expires, marked);
    return marked;
}

static void
a_chunk_with_a_time_to_live_is_marked(void **state)
{
    struct fixture *f = *state;
    struct chunk c;

    if (f->tier->multi_host)
        return;
    chunk_init(&c, "model", 1);
    for (int i = 0; i < 6; i++) { /* whole and partial chunks, opaque chunks */
        c.object.is_full = i % 3 != 1;
        c.object.opaque = i % 3 == 2;
        c.object.expires = i < 3;
        assert_int_equal(put_bytes(f->tier, &c.object, 9000, 1), 0);
        assert_int_equal(is_marked(f, &c, 9000, 1), i < 3);
        c.object.expires = !c.object.expires;
        assert_int_equal(put_bytes(f->tier, &c.object, 9000, 2), 0);
        assert_int_equal(is_marked(f, &c, 9000, 2), i >= 3);
        assert_int_equal(kvt__tier_remove(f->tier, &c.object), 0);
    }
}

static size_t
n_with_prefix(const struct listing *l, const char *prefix)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n; i++)
        n += !strncmp(l->names[i].key, prefix, strlen(prefix));
    return n;
}

static void
list_names_every_key_with_a_prefix(void **state)
{
    static const char *const prefixes[] = { "", "m", "m@", "org", "kv", "kvtier/", "x", "org/",
                                            "mo\xc3\xa9", "mo\xc3", "m \n" };
    static const char *const models[] = { "m", "org/model-x", "kvtierx", "mo\xc3\xa9" };
    struct fixture *f = *state;
    struct listing *all = calloc(1, sizeof *all), *some = calloc(1, sizeof *some);
    struct chunk chunk;

    assert_non_null(all);
    assert_non_null(some);
    for (size_t i = 0; i < 12; i++) {
        chunk_init(&chunk, models[i % 4], (int64_t)i - 6);
        chunk.object.opaque = i % 3 == 0;
        assert_int_equal(put_bytes(f->tier, &chunk.object, 5000, i), 0);
    }
    assert_int_equal(f->ops->list(f->tier, "", take_name, all), 0);
    assert_int_equal(all->n, 12);
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        some->n = 0;
        assert_int_equal(f->ops->list(f->tier, prefixes[i], take_name, some), 0);
        assert_in_range(some->n, 0, all->n);
        assert_int_equal(n_with_prefix(some, prefixes[i]), n_with_prefix(all, prefixes[i]));
    }
    for (size_t i = 0; i < all->n; i++) {
        some->n = 0;
        assert_int_equal(f->ops->list(f->tier, all->names[i].key, take_name, some), 0);
        assert_int_equal(n_with_prefix(some, all->names[i].key), 1);
    }
    free(all);
    free(some);
}

/* An entry of an index that was made from a listing must lead to the file. */
static void
the_listed_key_names_the_stored_chunk(void **state)
{
    struct fixture *f = *state;
    struct listing *l = calloc(1, sizeof *l);
    struct kvt__key_parts parts;
    struct kvt__found found;
    struct chunk c;
    bool same;

    assert_non_null(l);
    chunk_init(&c, "org/some-SEP-model/x", -99);
    assert_int_equal(put_bytes(f->tier, &c.object, 5000, 1), 0);
    assert_int_equal(f->ops->list(f->tier, "", take_name, l), 0);
    assert_int_equal(l->n, 1);
    assert_int_equal(kvt__key_parse(l->names[0].key, &parts), 0);
    assert_true(parts.hash.bits[0] == c.object.hash.bits[0]);
    c.object.key = l->names[0].key;
    assert_int_equal(get_bytes(f->tier, &c.object, 5000, 1, &found, &same), 0);
    assert_true(same);
    assert_int_equal(kvt__tier_remove(f->tier, &c.object), 0);
    assert_int_equal(kvt__tier_remove(f->tier, &c.object), -ENOENT);
    free(l);
}

/* -------------------------------------------------------------------- null */

static void
the_null_tier_stores_nothing(void **state)
{
    struct kvt__tier *null = open_tier("null://", true);
    struct listing l = { 0 };
    struct kvt__found found;
    struct chunk c;
    bool same;

    (void)state;
    chunk_init(&c, "model", 1);
    assert_int_equal(put_bytes(null, &c.object, 5000, 1), 0);
    assert_int_equal(get_bytes(null, &c.object, 5000, 1, &found, &same), -ENOENT);
    assert_int_equal(kvt__tier_probe(null, &c.object, &found), -ENOENT);
    assert_int_equal(kvt__tier_remove(null, &c.object), -ENOENT);
    assert_int_equal(null->ops->list(null, "", take_name, &l), 0);
    assert_int_equal(l.n, 0);
    assert_int_equal(null->ops->private_dir(null), -1);
    assert_int_equal(null->phase, 0);
    assert_true(null->default_limit > UINT64_C(1) << 50);
    assert_int_equal(null->ops->stored_bytes(null, &c.object, 5000), 5000);
    null->ops->close(null);
}

static void
a_url_of_no_kind_is_refused(void **state)
{
    struct kvt__tier *null = NULL;

    (void)state;
    assert_int_equal(try_open("/var/cache", true, &null), -EINVAL);
    assert_non_null(strstr(kvt__why(), "remote_url: '/var/cache' is no URL"));
    assert_int_equal(try_open("gopher://x", true, &null), -ENODEV);
    assert_non_null(strstr(kvt__why(), "'gopher://'"));
    assert_int_equal(try_open("null://x", true, &null), -EINVAL);
    assert_null(null);
}

int
main(int argc, char **argv)
{
    static const struct promise promises[] = {
        FILE_CONTRACT(a_model_name_with_slashes_leaves_no_directory),
        FILE_CONTRACT(a_name_too_long_is_refused_by_every_call),
        FILE_CONTRACT(list_names_everything_and_nothing_else),
        FILE_CONTRACT(a_chunk_with_a_time_to_live_is_marked),
        FILE_CONTRACT(list_names_every_key_with_a_prefix),
        FILE_CONTRACT(the_listed_key_names_the_stored_chunk),
    };

    if (!contract_begin(argc, argv))
        return 77;
    add_promises(promises, sizeof promises / sizeof *promises);
    if (!contract.only_3fs) {
        add_test((struct CMUnitTest)cmocka_unit_test(the_null_tier_stores_nothing));
        add_test((struct CMUnitTest)cmocka_unit_test(a_url_of_no_kind_is_refused));
    }
    return contract_run("tier contract, names");
}
