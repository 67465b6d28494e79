/* SPDX-License-Identifier: Apache-2.0
 *
 * What every tier promises, tried on each kind. */
#include <pthread.h>
#include <stdatomic.h>

#include "hf3fs-client.h"
#include "s3-test.h"
#include "tier/cpu/cpu.h"
#include "servers/usrbiod-server.h"

/* Where it is: on this file system, on a mount of 3FS, in a bucket that is reached so. */
enum place { HERE, ON_3FS, BY_PATH, BY_HOST, BY_TLS, BY_SESSION };

/* A kind under test; %1$s in the URL is a fresh directory.  Without URL: cpu. */
struct kind {
    const char *name;
    const char *url;
    bool header;
    const char *setting;
    uint32_t local_ranks;
    enum place place;
};

#define BY_RANK "local_disk_path_sharding=by_local_rank"
#define GDS_BY_RANK "gds_path_sharding=by_local_rank"

/* Where directory buckets are: the certificate must be for their host. */
#define EXPRESS_DOMAIN "s3express-use1-az4.us-east-1.amazonaws.com"

static struct s3_server server, express;
static struct usrbiod usrbiod;

/* With it no long name fits into the 1024 bytes of a key. */
#define LONG_PREFIX "a prefix/" S50 S50 S50 S50 S50 S50
#define S50 "01234567890123456789012345678901234567890123456789"

static const struct kind kinds[] = {
    { "fs", "fs://%1$s", true, NULL, 1, HERE },
    { "fs, no header", "fs://%1$s", false, NULL, 1, HERE },
    { "fs, three directories", "fs://%1$s/a, %1$s/b,%1$s/c", true, NULL, 1, HERE },
    { "cpu", NULL, false, NULL, 1, HERE },
    { "fault over fs", "fault://seed=1/fs://%1$s", true, NULL, 1, HERE },
    { "local_disk", "local_disk://%1$s", true, NULL, 1, HERE },
    { "local_disk, one of three directories", "local_disk://%1$s/a,%1$s/b, %1$s/c",
      true, NULL, 3, HERE },
    { "local_disk, all of three directories", "local_disk://%1$s/a,%1$s/b, %1$s/c",
      true, BY_RANK, 1, HERE },
    { "fault over local_disk", "fault://seed=1/local_disk://%1$s", true, NULL, 1, HERE },
    { "gds", "gds://%1$s", true, NULL, 1, HERE },
    { "gds, one of three directories", "gds://%1$s/a,%1$s/b, %1$s/c", true, NULL, 3, HERE },
    { "gds, all of three directories", "gds://%1$s/a,%1$s/b, %1$s/c", true, GDS_BY_RANK, 1,
      HERE },
    { "hf3fs", "hf3fs://%1$s", true, NULL, 1, ON_3FS },
    { "hf3fs, two directories", "hf3fs://%1$s/a, %1$s/b", true, NULL, 1, ON_3FS },
    { "hf3fs, full groups", "hf3fs://%1$s", true, "hf3fs_io_depth=3", 1, ON_3FS },
    { "s3, bucket in the path", "s3", true, NULL, 1, BY_PATH },
    { "s3, bucket in the host", "s3", true, NULL, 1, BY_HOST },
    { "s3, TLS", "s3", true, NULL, 1, BY_TLS },
    { "s3, sessions of S3 Express", "s3", true, NULL, 1, BY_SESSION },
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

struct fixture {
    const struct kind *kind;
    struct temp_dir dir;
    struct kvt__tier *tier;
    const struct kvt__tier_ops *ops;
};

static bool
is_bucket(const struct kind *kind)
{
    return kind->place >= BY_PATH;
}

static const char *
new_dir_on_3fs(void)
{
    static char path[400];
    static unsigned n;

    snprintf(path, sizeof path, "%s/%u", usrbiod.mount, n++);
    return path;
}

static void
open_bucket(struct fixture *f)
{
    struct s3_server *s = f->kind->place == BY_SESSION ? &express : &server;
    char url[512], resolve[256] = "s3_resolve=", ca[PATH_MAX + 16], prefix[512];
    const char *settings[] = { "disable_tls=false", ca, prefix, resolve, NULL };

    s3_server_reset(s);
    snprintf(ca, sizeof ca, "s3_ca_file=%s", s->ca);
    snprintf(prefix, sizeof prefix, "s3_file_prefix=%s/" LONG_PREFIX, s->prefix);
    switch (f->kind->place) {
    case BY_PATH:
        settings[0] = "disable_tls=true";
        snprintf(url, sizeof url, "s3://127.0.0.1:%u/" S3_BUCKET, s->port);
        break;
    case BY_HOST:
        settings[0] = "disable_tls=true";
        snprintf(url, sizeof url, "s3://" S3_BUCKET ".s3.localhost:%u", s->port);
        snprintf(resolve, sizeof resolve, "s3_resolve=" S3_BUCKET
                 ".s3.localhost:%u:127.0.0.1", s->port);
        break;
    case BY_TLS:
        snprintf(url, sizeof url, "s3://127.0.0.1:%u/" S3_BUCKET, s->tls_port);
        break;
    default:
        s3_config(s, "{\"session_seconds\": 3}");
        snprintf(url, sizeof url, "s3://" S3_EXPRESS_BUCKET "." EXPRESS_DOMAIN ":%u",
                 s->tls_port);
        snprintf(resolve, sizeof resolve, "s3_resolve=" S3_EXPRESS_BUCKET "."
                 EXPRESS_DOMAIN ":%u:127.0.0.1", s->tls_port);
    }
    if (s3_try_open(url, settings, NULL, &f->tier))
        fail_msg("%s: %s", url, kvt__why());
}

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    char url[1024];

    assert_non_null(f);
    f->kind = *state;
    temp_dir_make(&f->dir);
    if (is_bucket(f->kind)) {
        open_bucket(f);
    } else if (f->kind->url) {
        snprintf(url, sizeof url, f->kind->url,
                 f->kind->place == ON_3FS ? new_dir_on_3fs() : f->dir.path);
        if (try_open_for(url, f->kind->header, f->kind->setting, f->kind->local_ranks,
                         &f->tier))
            fail_msg("%s: %s", url, kvt__why());
    } else {
        open_slot_pool();
        struct kvt__cpu_params params = { .pool = slot_pool, .n_chunks = 100,
                                          .limit_bytes = 64 << 20, .dirfd = -1 };
        assert_int_equal(kvt__cpu_open(&params, &f->tier), 0);
    }
    f->ops = f->tier->ops;
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    if (f->kind->place != HERE)
        index_dir_remove(f->ops->private_dir(f->tier));
    f->ops->close(f->tier);
    if (slot_pool)
        close_slot_pool(); /* all of it is free */
    temp_dir_remove(&f->dir);
    free(f);
    return 0;
}

/* ------------------------------------------------------------ put and get */

static void
get_of_an_absent_chunk_is_enoent(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    struct chunk c;
    bool same;

    chunk_init(&c, "model", 1);
    assert_int_equal(get_bytes(f->tier, &c.object, 100, 0, &found, &same), -ENOENT);
    assert_int_equal(f->ops->probe(f->tier, &c.object, &found), -ENOENT);
    assert_int_equal(f->ops->remove(f->tier, &c.object), -ENOENT);
}

static void
check_found(const struct chunk *c, size_t bytes, uint64_t seed,
            const struct kvt__found *found)
{
    assert_true(found->has_id);
    assert_true(kvt__id_equal(&found->id, &c->object.id));
    assert_int_equal(found->crc, crc_of(bytes, seed));
    assert_int_equal(found->tokens, c->object.tokens);
    assert_int_equal(found->payload_bytes, bytes);
}

static void
get_returns_what_put_stored(void **state)
{
    static const size_t sizes[] = { 1, 4095, 4096, 300 << 10, (1 << 20) + 28 };
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int part = 0; part < 3; part++) {
            struct kvt__found found;
            struct chunk c;
            bool same;

            if (part == 1 && !temp_dir_has_attributes(&f->dir))
                continue; /* nowhere to put an identity */
            chunk_init(&c, "model", (int64_t)(i * 3) + part);
            c.object.whole = part == 0;
            c.object.opaque = part == 2;
            c.object.tokens = part ? 17 : 256;
            assert_int_equal(put_bytes(f->tier, &c.object, sizes[i], i), 0);
            assert_int_equal(
                get_bytes(f->tier, &c.object, sizes[i], i, &found, &same), 0);
            assert_true(same);
            check_found(&c, sizes[i], i, &found);
        }
    }
}

/* A second tier may want another phase than the pool has. */
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
            assert_int_equal(f->ops->put(f->tier, &c.object, &put,
                                         crc_of(bytes, i)), 0);
            assert_int_equal(f->ops->get(f->tier, &c.object, &get, &found), 0);
            assert_true(slot_holds(&get, i));
            check_found(&c, bytes, i, &found);
            slot_free(&put, phases[i]);
            slot_free(&get, phases[j]);
        }
    }
}

static void
put_leaves_the_payload_as_it_was(void **state)
{
    struct fixture *f = *state;
    size_t phase = f->ops->phase(f->tier);
    struct kvt__slot slot = slot_new(9000, phase);
    struct chunk c;

    assert_true(phase < 4096);
    chunk_init(&c, "model", 1);
    slot_fill(&slot, 4);
    assert_int_equal(f->ops->put(f->tier, &c.object, &slot, crc_of(9000, 4)), 0);
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
        check_found(&c, sizes[i], i, &found);
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

static void
probe_tells_size_and_identity(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;

    for (int part = 0; part < 3; part++) {
        struct chunk c;

        if (part == 1 && !temp_dir_has_attributes(&f->dir))
            continue;
        chunk_init(&c, "model", part);
        c.object.whole = part == 0;
        c.object.opaque = part == 2;
        assert_int_equal(put_bytes(f->tier, &c.object, 70000, 3), 0);
        memset(&found, 0xff, sizeof found);
        assert_int_equal(f->ops->probe(f->tier, &c.object, &found), 0);
        check_found(&c, 70000, 3, &found);
        assert_true(found.stored_bytes >= 70000);
    }
}

/* Room is reserved before the first byte: what is foretold must suffice. */
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
            c.object.whole = part == 0;
            c.object.opaque = part == 2;
            assert_int_equal(put_bytes(f->tier, &c.object, sizes[i], i), 0);
            assert_int_equal(f->ops->probe(f->tier, &c.object, &found), 0);
            assert_in_range(found.stored_bytes, 1,
                            f->ops->stored_bytes(f->tier, &c.object, sizes[i]));
        }
    }
}

static void
what_is_removed_is_absent(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    struct chunk c, other;
    bool same;

    chunk_init(&c, "model", 1);
    chunk_init(&other, "model", 2);
    assert_int_equal(put_bytes(f->tier, &c.object, 100, 1), 0);
    assert_int_equal(put_bytes(f->tier, &other.object, 100, 2), 0);
    assert_int_equal(f->ops->remove(f->tier, &c.object), 0);
    assert_int_equal(f->ops->remove(f->tier, &c.object), -ENOENT);
    assert_int_equal(get_bytes(f->tier, &c.object, 100, 1, &found, &same), -ENOENT);
    assert_int_equal(f->ops->probe(f->tier, &c.object, &found), -ENOENT);
    assert_int_equal(get_bytes(f->tier, &other.object, 100, 2, &found, &same), 0);
    assert_true(same);
}

static void
opaque_chunks_lie_apart_from_others_of_the_same_key(void **state)
{
    struct fixture *f = *state;
    struct kvt__found found;
    struct chunk c;
    bool same;

    chunk_init(&c, "model", 1);
    c.object.opaque = true;
    assert_int_equal(put_bytes(f->tier, &c.object, 100, 1), 0);
    c.object.opaque = false;
    assert_int_equal(f->ops->probe(f->tier, &c.object, &found), -ENOENT);
    assert_int_equal(put_bytes(f->tier, &c.object, 100, 2), 0);
    c.object.opaque = true;
    assert_int_equal(get_bytes(f->tier, &c.object, 100, 1, &found, &same), 0);
    assert_true(same);
}

/* ------------------------------------------------------------------- names */

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
    size_t n = strlen(c.key); /* with a tag the longest text that is a key's */
    memset(c.key + n, 't', sizeof c.key - n);
    memcpy(c.key + n, "@a%", 3);
    c.key[sizeof c.key - 1] = '\0';
    assert_int_equal(put_bytes(f->tier, &c.object, 100, 1), -ENAMETOOLONG);
    assert_int_equal(get_bytes(f->tier, &c.object, 100, 1, &found, &same),
                     -ENAMETOOLONG);
    assert_int_equal(f->ops->probe(f->tier, &c.object, &found), -ENAMETOOLONG);
    assert_int_equal(f->ops->remove(f->tier, &c.object), -ENAMETOOLONG);
}

/* ----------------------------------------------------------------- listing */

struct listing {
    size_t n;
    struct {
        char key[KVT__KEY_TEXT_MAX + 1];
        bool opaque;
        uint32_t path;
        uint64_t bytes;
        int64_t mtime_ns;
    } names[64];
};

static void
take_name(void *ctx, const char *key, bool opaque, uint32_t path,
          uint64_t stored_bytes, int64_t mtime_ns)
{
    struct listing *l = ctx;

    if (l->n < 64) {
        snprintf(l->names[l->n].key, sizeof l->names[0].key, "%s", key);
        l->names[l->n].opaque = opaque;
        l->names[l->n].path = path;
        l->names[l->n].bytes = stored_bytes;
        l->names[l->n].mtime_ns = mtime_ns;
    }
    l->n++;
}

static bool
listed(const struct fixture *f, const struct listing *l, const struct chunk *c,
       uint64_t bytes)
{
    char key[KVT__KEY_TEXT_MAX + 1];

    strcpy(key, c->key);
    if (f->ops->listed_key)
        f->ops->listed_key(f->tier, key);
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
    assert_int_equal(f->ops->list(f->tier, take_name, l), 0);
    assert_int_equal(l->n, 0);
    for (size_t i = 0; i < 12; i++) {
        chunk_init(&chunks[i], i % 2 ? "org/model-x" : "m", (int64_t)i - 6);
        chunks[i].object.opaque = i % 3 == 0;
        assert_int_equal(put_bytes(f->tier, &chunks[i].object, i * 5000 + 1, i), 0);
    }
    assert_int_equal(f->ops->remove(f->tier, &chunks[7].object), 0);
    l->n = 0;
    assert_int_equal(f->ops->list(f->tier, take_name, l), 0);
    assert_int_equal(l->n, 11);
    for (size_t i = 0; i < 12; i++) {
        struct kvt__found found = { 0 };

        (void)f->ops->probe(f->tier, &chunks[i].object, &found);
        assert_int_equal(listed(f, l, &chunks[i], found.stored_bytes), i != 7);
    }
    free(l);
}

/* An entry of an index that was made from a listing must lead to the file. */
static void
the_key_that_list_tells_means_the_same_chunk(void **state)
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
    assert_int_equal(f->ops->list(f->tier, take_name, l), 0);
    assert_int_equal(l->n, 1);
    assert_int_equal(kvt__key_parse(l->names[0].key, &parts), 0);
    assert_true(parts.hash.bits[0] == c.object.hash.bits[0]);
    c.object.key = l->names[0].key;
    assert_int_equal(get_bytes(f->tier, &c.object, 5000, 1, &found, &same), 0);
    assert_true(same);
    assert_int_equal(f->ops->remove(f->tier, &c.object), 0);
    assert_int_equal(f->ops->remove(f->tier, &c.object), -ENOENT);
    free(l);
}

/* ----------------------------------------------------------------- threads */

#define N_THREADS 4
#define N_ROUNDS 40
#define RACE_BYTES ((size_t)300 << 10)

struct race {
    struct fixture *f;
    _Atomic int n_bad;
    _Atomic int n_good;
};

struct racer {
    struct race *race;
    unsigned number;
    struct kvt__slot slot;
};

/* The identity names the seed, so that bytes of another writer show. */
static void
race_put(struct racer *r, const struct chunk *c, unsigned round)
{
    struct fixture *f = r->race->f;
    struct kvt__object object = c->object;
    uint32_t seed = r->number * 1000 + round;

    memset(&object.id, 0, sizeof object.id);
    kvt__put_le32(object.id.b, seed);
    slot_fill(&r->slot, seed);
    if (f->ops->put(f->tier, &object, &r->slot,
                    kvt__crc32c(0, r->slot.payload, RACE_BYTES)))
        r->race->n_bad++;
}

static void
race_get(struct racer *r, const struct chunk *c)
{
    struct fixture *f = r->race->f;
    struct kvt__found found;
    int err = f->ops->get(f->tier, &c->object, &r->slot, &found);

    if (err == -ENOENT)
        return;
    if (err || !found.has_id || !slot_holds(&r->slot, kvt__get_le32(found.id.b)) ||
        kvt__crc32c(0, r->slot.payload, RACE_BYTES) != found.crc)
        r->race->n_bad++;
    else
        r->race->n_good++;
}

static void *
racer_main(void *arg)
{
    struct racer *r = arg;
    struct fixture *f = r->race->f;
    struct kvt__found found;
    struct chunk c;

    chunk_init(&c, "model", 1);
    for (unsigned round = 0; round < N_ROUNDS; round++) {
        if (r->number % 2) {
            race_get(r, &c);
            int err = f->ops->probe(f->tier, &c.object, &found);
            if (err ? err != -ENOENT : found.payload_bytes != RACE_BYTES)
                r->race->n_bad++;
        } else {
            race_put(r, &c, round);
            if (round % 8 == 7) {
                int err = f->ops->remove(f->tier, &c.object);
                if (err && err != -ENOENT)
                    r->race->n_bad++;
            }
        }
    }
    return NULL;
}

static void
racing_calls_for_one_key_never_yield_a_torn_chunk(void **state)
{
    struct fixture *f = *state;
    size_t phase = f->ops->phase(f->tier);
    struct race race = { .f = f };
    struct racer racers[N_THREADS];
    pthread_t threads[N_THREADS];

    for (unsigned i = 0; i < N_THREADS; i++) {
        racers[i] = (struct racer){ &race, i, slot_new(RACE_BYTES, phase) };
        assert_int_equal(pthread_create(&threads[i], NULL, racer_main, &racers[i]),
                         0);
    }
    for (unsigned i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        slot_free(&racers[i].slot, phase);
    }
    assert_int_equal(race.n_bad, 0);
}

/* -------------------------------------------------------------------- null */

static void
null_forgets_what_it_is_given(void **state)
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
    assert_int_equal(null->ops->probe(null, &c.object, &found), -ENOENT);
    assert_int_equal(null->ops->remove(null, &c.object), -ENOENT);
    assert_int_equal(null->ops->list(null, take_name, &l), 0);
    assert_int_equal(l.n, 0);
    assert_int_equal(null->ops->private_dir(null), -1);
    assert_int_equal(null->ops->phase(null), 0);
    assert_true(null->ops->default_limit(null) > UINT64_C(1) << 50);
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

/* FILE_CONTRACT: of tiers that copy, and find chunks by their names again. */
#define CONTRACT(fn) { #fn, fn, false }
#define FILE_CONTRACT(fn) { #fn, fn, true }
static const struct {
    const char *name;
    CMUnitTestFunction fn;
    bool of_files;
} contract[] = {
    CONTRACT(get_of_an_absent_chunk_is_enoent),
    CONTRACT(get_returns_what_put_stored),
    FILE_CONTRACT(any_phase_of_a_slot_will_do),
    CONTRACT(put_leaves_the_payload_as_it_was),
    CONTRACT(put_overwrites_whole),
    CONTRACT(get_of_another_length_is_ebadmsg),
    CONTRACT(probe_tells_size_and_identity),
    CONTRACT(no_chunk_takes_more_than_stored_bytes_foretold),
    CONTRACT(what_is_removed_is_absent),
    FILE_CONTRACT(opaque_chunks_lie_apart_from_others_of_the_same_key),
    FILE_CONTRACT(a_model_name_with_slashes_leaves_no_directory),
    FILE_CONTRACT(a_name_too_long_is_refused_by_every_call),
    FILE_CONTRACT(list_names_everything_and_nothing_else),
    FILE_CONTRACT(the_key_that_list_tells_means_the_same_chunk),
    FILE_CONTRACT(racing_calls_for_one_key_never_yield_a_torn_chunk),
};
#define N_CONTRACT (sizeof contract / sizeof *contract)

static bool
can_be_had(const struct kind *kind, bool has_servers, bool has_3fs)
{
    return is_bucket(kind) ? has_servers : kind->place != ON_3FS || has_3fs;
}

/* By the library: kinds on 3FS only, as the others have nothing to do with it. */
int
main(void)
{
    static const char *const server_arguments[] = { "--tls", NULL };
    static const char *const express_arguments[] = {
        "--tls", "--bucket", S3_EXPRESS_BUCKET, "--domain", EXPRESS_DOMAIN, NULL };
    static char names[N_CONTRACT * N_KINDS][128];
    static struct CMUnitTest tests[N_CONTRACT * N_KINDS + 3] = {
        cmocka_unit_test(null_forgets_what_it_is_given),
        cmocka_unit_test(a_url_of_no_kind_is_refused),
    };
    bool only_3fs = !strcmp(hf3fs_client(), "library");
    const char *missing = usrbiod_try(&usrbiod);

    if (missing)
        printf("skipped: hf3fs: %s\n", missing);
    if (missing && only_3fs)
        return 77;
    bool has_servers = !only_3fs && s3_server_start(&server, server_arguments) &&
                       s3_server_start(&express, express_arguments);
    if (!has_servers && !only_3fs)
        printf("no python3: s3 is left out\n");
    hf3fs_listen();
    size_t n = only_3fs ? 0 : 2;
    for (size_t i = 0; i < N_CONTRACT * N_KINDS; i++) {
        const struct kind *kind = &kinds[i / N_CONTRACT];

        if ((contract[i % N_CONTRACT].of_files && !kind->url) ||
            (only_3fs && kind->place != ON_3FS) ||
            !can_be_had(kind, has_servers, !missing))
            continue;
        snprintf(names[i], sizeof names[i], "%s (%s)", contract[i % N_CONTRACT].name,
                 kind->name);
        tests[n++] = (struct CMUnitTest){ names[i], contract[i % N_CONTRACT].fn,
                                          setup, teardown, (void *)kind };
    }
    if (!missing)
        tests[n++] = (struct CMUnitTest)cmocka_unit_test(
            all_was_done_by_the_client_asked_for);
    int failed = _cmocka_run_group_tests("tier contract", tests, n, NULL, NULL);
    s3_server_stop(&server);
    s3_server_stop(&express);
    int status = missing ? 0 : usrbiod_end(&usrbiod);
    return failed || status;
}
