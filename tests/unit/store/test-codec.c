/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoded chunks: stored smaller under names of their own, read back whole or not at all, beside
 * chunks in other encodings. */
#include "memory-test.h"
#include "wrapped-frame.h"

#include <math.h>
#include <sched.h>

static const struct kvt__chunk_shape layout = { KVT__ELEMENT_BF16, KVT__PACKING_2LTD, 1, 1, 25,
                                                1250, 2 };
#define ROOMY "max_remote_size=0.03"

static const char *const naive[] = { ROOMY, NULL };
static const char *const lossless[] = { ROOMY, "remote_serde=lossless", NULL };
static const char *const kv8[] = { ROOMY, "remote_serde=kv8", NULL };
static const char *const accepts_lossless[] = { ROOMY, "accept_serde=lossless", NULL };
static const char *const accepts_kv8[] = { ROOMY, "accept_serde=kv8", NULL };
static const char *const lossless_accepts_kv8[] = { ROOMY, "remote_serde=lossless",
                                                    "accept_serde=kv8", NULL };

static atomic_uint n_inside, max_inside; /* threads in a codec */
static atomic_uint n_waits;              /* calls of pthread_cond_wait() */
static atomic_bool holds_first; /* the first encoder posts first_inside and waits for go_on */
static sem_t first_inside, go_on;
static struct kvt__table *pauses_writes; /* index whose writes the next encoder pauses */
static char order[8]; /* a letter for each run of a codec: e, d */
static atomic_uint n_order;

int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock);

int
__wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock)
{
    atomic_fetch_add(&n_waits, 1);
    return __real_pthread_cond_wait(cond, lock);
}

static void
enter_codec(char letter)
{
    unsigned n = atomic_fetch_add(&n_inside, 1) + 1;

    if (n > atomic_load(&max_inside))
        atomic_store(&max_inside, n);
    n = atomic_fetch_add(&n_order, 1);
    if (n < sizeof order)
        order[n] = letter;
    for (int i = 0; i < 20; i++) /* let other threads come in */
        sched_yield();
}

size_t
__wrap_kvt__frame_encode(enum kvt__serde serde, const struct kvt__chunk_shape *shape,
                         const struct kvt__id *id, const unsigned char *chunk, uint32_t crc,
                         unsigned char *out)
{
    enter_codec('e');
    if (pauses_writes)
        assert_true(kvt__table_pause(pauses_writes, KVT__PAUSE_WRITES, 60 * KVT__NS_PER_S));
    pauses_writes = NULL;
    if (atomic_exchange(&holds_first, false)) {
        sem_post(&first_inside);
        sem_wait(&go_on);
    }
    size_t n = __real_kvt__frame_encode(serde, shape, id, chunk, crc, out);
    atomic_fetch_sub(&n_inside, 1);
    return n;
}

bool
__wrap_kvt__frame_decode(const struct kvt__frame *frame, unsigned char *chunk)
{
    enter_codec('d');
    bool is_decoded = __real_kvt__frame_decode(frame, chunk);
    atomic_fetch_sub(&n_inside, 1);
    return is_decoded;
}

static void
reopen(struct env *e, const char *const *settings)
{
    reopen_over(e, "", settings);
}

static void
put16(unsigned char *at, uint16_t v)
{
    at[0] = (unsigned char)v;
    at[1] = (unsigned char)(v >> 8);
}

static uint16_t
get16(const unsigned char *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

/* Fill a payload with bfloat16 numbers between 0.5 and 8. */
static void
fill_kv(unsigned char *bytes, unsigned seed)
{
    for (size_t i = 0; i < BYTES / 2; i++) {
        uint32_t random = (uint32_t)(i + 1) * 2654435761u * (seed * 2 + 1);

        put16(bytes + 2 * i,
                      (uint16_t)(0x3f00 + (random >> 30 << 7) + (random >> 20 & 0x7f)));
    }
}

static void
fill_noise(unsigned char *bytes, unsigned seed)
{
    uint64_t x = seed;

    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)((x = x * UINT64_C(6364136223846793005) + 1442695) >> 56);
}

/* The identity of a chunk in the environment's store. */
static struct kvt__id
id_in(const struct env *e, unsigned i)
{
    struct kvt__id id = id_of(i);

    if (kvt__store_traits(e->store)->is_lossy)
        kvt__id_toggle_lossy(&id);
    return id;
}

static void
init_kv(struct request *r, const struct env *e, enum kvt__tier_op_kind op, unsigned i)
{
    request_init(r, e, op, i);
    r->req.id = id_in(e, i);
    r->req.layout = layout;
}

static int
put_bytes(const struct env *e, unsigned i, void (*fill_bytes)(unsigned char *, unsigned))
{
    struct request r;

    init_kv(&r, e, KVT__TIER_PUT, i);
    fill_bytes(r.req.slot.payload, i);
    r.req.crc = kvt__crc32c(0, r.req.slot.payload, BYTES);
    kvt__store_run(e->store, &r.req);
    assert_null(r.req.scratch);
    free(r.memory);
    return r.req.error.code;
}

static int
put_kv(const struct env *e, unsigned i)
{
    return put_bytes(e, i, fill_kv);
}

static char last_why[KVT__WHY_BYTES]; /* sentence of the last get_bytes() */

/* GET a chunk into `out`.  Return 0 only if the chunk was verified. */
static int
get_bytes(const struct env *e, unsigned i, unsigned char *out)
{
    struct request r;

    init_kv(&r, e, KVT__TIER_GET, i);
    kvt__store_run(e->store, &r.req);
    if (!r.req.error.code)
        assert_true(r.req.verified);
    memcpy(out, r.req.slot.payload, BYTES);
    memcpy(last_why, r.req.error.why, sizeof last_why);
    free(r.memory);
    return r.req.error.code;
}

/* GET a chunk of fill_kv().  Return 0 only if the bytes are equal. */
static int
get_kv(const struct env *e, unsigned i)
{
    unsigned char expected[BYTES], actual[BYTES];
    int err = get_bytes(e, i, actual);

    fill_kv(expected, i);
    if (!err)
        assert_memory_equal(actual, expected, BYTES);
    return err;
}

static int
probe_kv(const struct env *e, unsigned i)
{
    struct request r;

    init_kv(&r, e, KVT__TIER_PROBE, i);
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

static bool
find_kv(const struct env *e, unsigned i)
{
    struct kvt__chunk_key key = key_of(e, i);

    key.id = id_in(e, i);
    return kvt__store_find(e->store, &key, KVT__ANYWHERE);
}

static void
encoded_path(const struct env *e, unsigned i, const char *serde, char path[600])
{
    snprintf(path, 600, "%s/kvtier/test-SEP-model@1@0@%x@bfloat16@kvt%%%s.data", e->dir.path, i,
             serde);
}

static bool
is_encoded(const struct env *e, unsigned i, const char *serde)
{
    char path[600];

    encoded_path(e, i, serde, path);
    return !access(path, F_OK);
}

static off_t
size_of(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

/* ----------------------------------------------------------------------- lossless */

static void
an_encoded_chunk_is_smaller_and_comes_back(void **state)
{
    struct env *e = *state;
    char path[600];

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    encoded_path(e, 1, "lossless", path);
    assert_true(size_of(path) < (off_t)BYTES * 9 / 10);
    assert_false(file_there(e, 1));
    assert_true(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), 0);
    assert_int_equal(put_kv(e, 1), -EEXIST);
    check_counted(e, 1, 0);
}

static void
an_opaque_chunk_has_the_encoding_in_its_tag(void **state)
{
    struct env *e = *state;
    char path[600];

    strcpy(e->space.text, "m@1@0@@uint8@kvt%0123456789abcdef");
    e->space.opaque = true;
    reopen(e, lossless);
    assert_int_equal(put_kv(e, 0xab), 0);
    snprintf(path, sizeof path, "%s/kvtier/m@1@0@ab@uint8@kvt%%0123456789abcdef-lossless.data",
             e->dir.path);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(get_kv(e, 0xab), 0);
}

static void
a_restart_finds_encoded_chunks_with_an_index_and_by_a_probe(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    reopen(e, lossless);
    assert_int_equal(get_kv(e, 1), 0);
    close_and_lose_index(e);
    e->store = open_over(e, "", lossless);
    assert_int_equal(get_kv(e, 1), -ENOENT);
    assert_int_equal(probe_kv(e, 1), 0);
    assert_true(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), 0);
    check_counted(e, 1, 0);
}

static void
a_listing_counts_encoded_chunks(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(put_kv(e, i), 0);
    close_and_lose_index(e);
    e->store = open_over(e, "", lossless);
    for (size_t i = 0; i < e->store->n_storages; i++)
        kvt__level_list(&e->store->levels[i]);
    check_counted(e, 5, 5);
    assert_int_equal(probe_kv(e, 3), 0);
    assert_int_equal(get_kv(e, 3), 0);
    check_counted(e, 5, 4);
}

static void
a_chunk_that_does_not_shrink_is_stored_naive(void **state)
{
    unsigned char expected[BYTES], actual[BYTES];
    struct env *e = *state;

    reopen(e, lossless);
    assert_int_equal(put_bytes(e, 1, fill_noise), 0);
    assert_true(file_there(e, 1));
    assert_false(is_encoded(e, 1, "lossless"));
    fill_noise(expected, 1);
    assert_int_equal(get_bytes(e, 1, actual), 0);
    assert_memory_equal(actual, expected, BYTES);
    assert_int_equal(put_bytes(e, 1, fill_noise), -EEXIST);
    check_counted(e, 1, 0);
}

static void
a_chunk_of_unknown_layout_is_stored_naive(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    assert_int_equal(put(e, 1), 0);
    assert_true(file_there(e, 1));
    assert_int_equal(get(e, 1), 0);
}

static void
a_chunk_with_a_layout_of_another_size_is_stored_naive(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    for (unsigned i = 0; i < 3; i++) {
        struct request r;

        init_kv(&r, e, KVT__TIER_PUT, i);
        fill_kv(r.req.slot.payload, i);
        r.req.crc = kvt__crc32c(0, r.req.slot.payload, BYTES);
        if (i == 0) /* twice the bytes */
            r.req.layout.row *= 2, r.req.layout.n *= 2;
        if (i == 1) /* half the bytes */
            r.req.layout.packing = KVT__PACKING_NONE, r.req.layout.n_planes = 1;
        if (i == 2) /* the right bytes, but rows of no elements */
            r.req.layout.row = 0;
        kvt__store_run(e->store, &r.req);
        assert_int_equal(r.req.error.code, 0);
        free(r.memory);
        assert_true(file_there(e, i));
        assert_int_equal(get_kv(e, i), 0);
    }
}

static void
an_overwritten_chunk_stays_in_one_encoding(void **state)
{
    struct env *e = *state;
    struct request r;

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    init_kv(&r, e, KVT__TIER_PUT, 1);
    fill_kv(r.req.slot.payload, 1);
    r.req.crc = kvt__crc32c(0, r.req.slot.payload, BYTES);
    r.req.overwrite = true;
    kvt__store_run(e->store, &r.req);
    assert_int_equal(r.req.error.code, 0);
    free(r.memory);
    assert_true(is_encoded(e, 1, "lossless"));
    assert_false(file_there(e, 1));
    check_counted(e, 1, 0);
}

static void
a_chunk_in_the_memory_of_a_gpu_is_neither_encoded_nor_decoded(void **state)
{
    struct kvt__slot_source device = { .on_device = true };
    struct env *e = *state;

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    for (unsigned i = 1; i < 3; i++) {
        struct request r;

        init_kv(&r, e, i == 1 ? KVT__TIER_GET : KVT__TIER_PUT, i);
        r.req.slot.source = &device;
        kvt__store_run(e->store, &r.req);
        assert_int_equal(r.req.error.code, i == 1 ? -ENOENT : -EEXIST);
        free(r.memory);
    }
    assert_int_equal(get_kv(e, 1), 0);
    check_counted(e, 1, 0);
}

static void
a_pause_that_begins_during_the_encoding_ends_the_put(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    pauses_writes = e->store->levels[0].index;
    assert_int_equal(put_kv(e, 1), -EIO); /* and no memory remains */
    check_counted(e, 0, 0);
    assert_true(kvt__table_resume(e->store->levels[0].index, KVT__PAUSE_WRITES));
    assert_int_equal(put_kv(e, 1), 0);
}

/* ------------------------------------------------------------------ other encodings */

static void
naive_chunks_stay_readable_and_are_not_stored_again(void **state)
{
    struct env *e = *state;

    assert_int_equal(put_kv(e, 1), 0);
    reopen(e, lossless);
    assert_true(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), 0);
    struct kvt__chunk_key key = key_of(e, 1);
    assert_true(kvt__store_touch(e->store, &key));
    assert_int_equal(put_kv(e, 1), -EEXIST);
    assert_false(is_encoded(e, 1, "lossless"));
    assert_int_equal(put_kv(e, 2), 0);
    check_counted(e, 2, 0);
}

static void
encoded_chunks_are_read_only_if_accepted(void **state)
{
    struct env *e = *state;

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    reopen(e, naive);
    assert_false(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), -ENOENT);
    assert_int_equal(probe_kv(e, 1), -ENOENT);
    reopen(e, accepts_lossless);
    assert_true(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), 0);
    assert_int_equal(put_kv(e, 1), -EEXIST);
    assert_int_equal(put_kv(e, 2), 0);
    assert_true(file_there(e, 2));
}

/* ------------------------------------------------------------------------- lossy */

static void
a_lossy_chunk_is_near_the_original(void **state)
{
    unsigned char expected[BYTES], actual[BYTES];
    struct env *e = *state;

    reopen(e, kv8);
    assert_int_equal(put_kv(e, 1), 0);
    assert_true(is_encoded(e, 1, "kv8"));
    assert_int_equal(get_bytes(e, 1, actual), 0);
    fill_kv(expected, 1);
    assert_memory_not_equal(actual, expected, BYTES);
    for (size_t i = 0; i < BYTES / 2; i++) {
        uint32_t a = (uint32_t)get16(actual + 2 * i) << 16;
        uint32_t b = (uint32_t)get16(expected + 2 * i) << 16;
        float x, y;

        memcpy(&x, &a, sizeof x);
        memcpy(&y, &b, sizeof y);
        assert_true(fabsf(x - y) < 0.05f);
    }
}

static void
an_exact_store_never_serves_a_lossy_chunk(void **state)
{
    struct env *e = *state;

    reopen(e, kv8);
    assert_int_equal(put_kv(e, 1), 0);
    assert_int_equal(put_bytes(e, 2, fill_noise), 0); /* naive, by a lossy store */
    reopen(e, lossless);
    assert_false(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), -ENOENT);
    assert_int_equal(probe_kv(e, 1), -ENOENT);
    assert_false(find_kv(e, 2));
    assert_int_equal(get_kv(e, 2), -ENOENT);
    assert_int_equal(put_kv(e, 1), 0);
    assert_true(is_encoded(e, 1, "kv8")); /* both chunks exist */
    assert_int_equal(get_kv(e, 1), 0);
}

static int
run_partial(const struct env *e, enum kvt__tier_op_kind op, unsigned i)
{
    struct request r;

    init_kv(&r, e, op, i);
    r.req.is_full = false;
    r.req.tokens = 25;
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

static void
a_lossy_store_prefers_an_exact_chunk_to_a_new_lossy_chunk(void **state)
{
    struct env *e = *state;

    assert_int_equal(put_kv(e, 1), 0);
    reopen(e, kv8);
    assert_true(find_kv(e, 1));
    assert_int_equal(get_kv(e, 1), 0);
    assert_int_equal(put_kv(e, 1), -EEXIST);
    assert_false(is_encoded(e, 1, "kv8"));
}

static void
a_store_that_accepts_a_lossy_encoding_reads_it(void **state)
{
    unsigned char actual[BYTES];
    struct env *e = *state;

    reopen(e, kv8);
    assert_int_equal(put_kv(e, 1), 0);
    reopen(e, accepts_kv8);
    assert_int_equal(get_bytes(e, 1, actual), 0);
    assert_int_equal(put_kv(e, 1), 0); /* the new chunk has more bits than the lossy chunk */
    assert_true(is_encoded(e, 1, "inexact-naive"));
}

/* ------------------------------------------------------------------- two storages */

/* Return the name of chunk i in a directory of a plug-in. */
static void
path_in(const struct env *e, const char *plugin, unsigned i, char path[600])
{
    snprintf(path, 600, "%s/%s/test-SEP-model@1@0@%x@bfloat16.data", e->dir.path, plugin, i);
}

static void
each_storage_gets_a_chunk_that_does_not_shrink(void **state)
{
    struct env *e = *state;
    char base[1024], path[600];

    kvt__store_close(e->store);
    snprintf(base, sizeof base, "extra_config={\"remote_storage_plugin.fs.a.base_path\": \"%s/a\", "
             "\"remote_storage_plugin.fs.b.base_path\": \"%s/b\"}", e->dir.path, e->dir.path);
    e->store = open_store(e, "remote_storage_plugins=[\"fs.a\", \"fs.b\"]", NULL,
                          (const char *const[]){ base, ROOMY, "remote_serde=lossless", NULL });
    assert_int_equal(e->store->n_storages, 2);
    assert_int_equal(put_bytes(e, 1, fill_noise), 0);
    path_in(e, "a", 1, path);
    assert_int_equal(access(path, F_OK), 0);
    path_in(e, "b", 1, path);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(put_bytes(e, 1, fill_noise), -EEXIST);
}

static void
the_most_storages_have_levels_for_all_encodings(void **state)
{
    static const char *const names = "abcdefgh";
    struct env *e = *state;
    char base[8 * 400] = "extra_config={";
    size_t n = strlen(base);

    kvt__store_close(e->store);
    for (size_t i = 0; i < strlen(names); i++)
        n += (size_t)snprintf(base + n, sizeof base - n, "%s\"remote_storage_plugin.fs.%c.base_path"
                              "\": \"%s/%c\"", i ? ", " : "", names[i], e->dir.path, names[i]);
    snprintf(base + n, sizeof base - n, "}");
    e->store = open_store(e, "remote_storage_plugins=[\"fs.a\", \"fs.b\", \"fs.c\", \"fs.d\", "
                          "\"fs.e\", \"fs.f\", \"fs.g\", \"fs.h\"]", NULL,
                          (const char *const[]){ base, ROOMY, "remote_serde=lossless",
                          "accept_serde=[\"lossless\", \"kv8\", \"kv4\", \"cachegen\"]", NULL });
    assert_int_equal(e->store->n_storages, strlen(names));
    assert_int_equal(e->store->n_levels, KVT__MAX_LEVELS);
    assert_int_equal(put_kv(e, 1), 0);
    assert_int_equal(get_kv(e, 1), 0);
}

/* ----------------------------------------------------------------------- corrupt */

static void
change_byte(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    unsigned char byte;

    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void
a_corrupt_encoded_chunk_is_removed_and_never_served(void **state)
{
    struct env *e = *state;
    char path[600];

    reopen(e, lossless);
    encoded_path(e, 1, "lossless", path);
    assert_int_equal(put_kv(e, 1), 0);
    off_t size = size_of(path);
    for (off_t at = 0; at < size; at += 61) {
        assert_true(put_kv(e, 1) == (at ? 0 : -EEXIST));
        change_byte(path, at);
        int err = get_kv(e, 1);
        assert_true(err == -EBADMSG || (!err && at < KVT__FS_HEADER_BYTES) || err == -ENOENT);
        if (!err)
            assert_int_equal(unlink(path), 0), assert_int_equal(get_kv(e, 1), -ENOENT);
        assert_false(is_encoded(e, 1, "lossless"));
        assert_false(find_kv(e, 1));
        assert_int_equal(used(e), 0);
    }
}

/* Store bytes under the name and the identity of chunk i, with a right checksum. */
static void
put_object(struct env *e, unsigned i, const unsigned char *bytes, size_t n)
{
    struct kvt__level *level = &e->store->levels[0];
    struct request r;

    init_kv(&r, e, KVT__TIER_PUT, i);
    r.req.store = e->store;
    r.req.object = (struct kvt__object){ .key = r.req.key, .hash = r.req.hash, .id = r.req.id,
                                         .tokens = 256, .is_full = true };
    assert_int_equal(kvt__level_describe(level, &r.req), 0);
    r.req.object.shape = (struct kvt__shape){ .format = 4, .dtype = 6, .dims = { (uint32_t)n } };
    r.req.slot.bytes = n;
    memcpy(r.req.slot.payload, bytes, n);
    assert_int_equal(kvt__tier_put(level->tier, &r.req.object, &r.req.slot,
                                   kvt__crc32c(0, bytes, n)), 0);
    free(r.memory);
}

static void
a_frame_with_a_right_checksum_is_served_only_if_it_is_the_chunk(void **state)
{
    static const char *const whys[9] = {
        [1] = "the chunk is encoded as kv8.", [2] = "the decoded chunk has another length.",
        [3] = "the encoded chunk is another chunk." };
    unsigned char chunk[BYTES], frame[4 * BYTES];
    struct env *e = *state;

    reopen(e, lossless);
    fill_kv(chunk, 1);
    struct kvt__id id = id_of(1), other = id_of(2);
    uint32_t crc = kvt__crc32c(0, chunk, BYTES);
    struct kvt__chunk_shape half = layout;
    half.row = half.n = layout.n / 2;
    for (int fault = 0; fault < 9; fault++) {
        enum kvt__serde serde = fault == 1 ? KVT__SERDE_KV8 : KVT__SERDE_LOSSLESS;
        size_t n = kvt__frame_encode(serde, fault == 2 ? &half : &layout, fault == 3 ? &other : &id,
                                     chunk, fault == 4 ? crc + 1 : crc, frame);

        assert_true(n > 100 && n < BYTES);
        if (fault == 5) /* bytes of the frame */
            kvt__put_le64(frame + 16, n - 1);
        if (fault == 6) /* bytes of a plane */
            kvt__put_le32(frame + 80, kvt__get_le32(frame + 80) + 1);
        if (fault == 7) /* another number of planes */
            kvt__put_le32(frame + 76, 4);
        for (size_t i = 100; fault == 8 && i < n; i++)
            frame[i] = (unsigned char)(i * 37);
        put_object(e, 1, frame, n);
        assert_int_equal(probe_kv(e, 1), 0);
        assert_int_equal(get_kv(e, 1), fault ? -EBADMSG : 0);
        if (whys[fault])
            assert_non_null(strstr(last_why, whys[fault]));
        assert_true(is_encoded(e, 1, "lossless") == !fault);
        assert_true(find_kv(e, 1) == !fault);
    }
}

static void
a_chunk_of_a_newer_version_is_a_miss_and_stays(void **state)
{
    unsigned char chunk[BYTES], frame[4 * BYTES];
    struct env *e = *state;

    reopen(e, lossless);
    fill_kv(chunk, 1);
    struct kvt__id id = id_of(1);
    for (int at = 8; at <= 24; at += 16) { /* version, then codec */
        size_t n = kvt__frame_encode(KVT__SERDE_LOSSLESS, &layout, &id, chunk,
                                     kvt__crc32c(0, chunk, BYTES), frame);

        frame[at] = 99;
        put_object(e, 1, frame, n);
        assert_int_equal(probe_kv(e, 1), 0);
        assert_int_equal(get_kv(e, 1), -ENOENT);
        assert_true(is_encoded(e, 1, "lossless"));
        assert_false(find_kv(e, 1));
        assert_int_equal(n_warnings, 0);
    }
    assert_int_equal(put_kv(e, 1), 0);
    assert_int_equal(get_kv(e, 1), 0);
}

static bool
is_never_wanted(const struct kvt__store_req *req)
{
    (void)req;
    return false;
}

static void
a_load_that_is_not_wanted_any_more_is_not_decoded(void **state)
{
    struct env *e = *state;
    struct request r;

    reopen(e, kv8);
    assert_int_equal(put_kv(e, 2), 0);
    reopen(e, naive);
    assert_int_equal(put_kv(e, 2), 0);
    reopen(e, (const char *const[]){ ROOMY, "remote_serde=kv8", "codec_threads=1", NULL });
    /* The storage has the chunk in two encodings. */
    init_kv(&r, e, KVT__TIER_GET, 2);
    r.req.is_wanted = is_never_wanted;
    kvt__store_run(e->store, &r.req);
    assert_int_equal(r.req.error.code, -ECANCELED);
    free(r.memory);
    assert_true(is_encoded(e, 2, "kv8") && file_there(e, 2));
    assert_true(find_kv(e, 2));
    assert_int_equal(put_kv(e, 3), 0); /* the gate is free */
}

static void
a_file_of_another_program_is_no_encoded_chunk(void **state)
{
    unsigned char bytes[BYTES];
    struct env *e = *state;
    char path[600];

    reopen(e, lossless);
    assert_int_equal(put_kv(e, 1), 0);
    encoded_path(e, 2, "lossless", path);
    fill_kv(bytes, 2);
    write_file(path, bytes, BYTES);
    assert_true(probe_kv(e, 2));
    assert_true(get_kv(e, 2));
    encoded_path(e, 1, "lossless", path);
    assert_int_equal(unlink(path), 0);
    write_file(path, bytes, 100);
    assert_int_equal(get_kv(e, 1), -EBADMSG);
    assert_false(find_kv(e, 1));
}

static void
an_object_as_large_as_the_chunk_is_no_encoded_chunk(void **state)
{
    unsigned char bytes[BYTES];
    struct env *e = *state;

    reopen(e, lossless);
    fill_noise(bytes, 1);
    put_object(e, 1, bytes, BYTES);
    assert_int_equal(probe_kv(e, 1), -ENOENT);
    assert_int_equal(get_kv(e, 1), -EBADMSG);
    assert_non_null(strstr(last_why, "the object is not smaller than the chunk"));
    assert_false(is_encoded(e, 1, "lossless"));
    check_counted(e, 0, 0);
}

/* ------------------------------------------------------------------------ threads */

static void
many_threads_encode_and_decode_through_a_narrow_gate(void **state)
{
    static const char *const settings[] = { ROOMY, "remote_serde=lossless", "codec_threads=1",
                                            NULL };
    struct env *e = *state;
    struct request r[64];

    reopen(e, settings);
    atomic_store(&max_inside, 0);
    for (unsigned i = 0; i < 32; i++) {
        init_kv(&r[i], e, KVT__TIER_PUT, i);
        fill_kv(r[i].req.slot.payload, i);
        r[i].req.crc = kvt__crc32c(0, r[i].req.slot.payload, BYTES);
    }
    run_at_once(e, settings, 8, r, 32);
    for (unsigned i = 0; i < 32; i++) {
        assert_int_equal(r[i].req.error.code, 0);
        free(r[i].memory);
        init_kv(&r[i], e, KVT__TIER_GET, i);
        init_kv(&r[i + 32], e, KVT__TIER_PUT, i + 32);
        fill_kv(r[i + 32].req.slot.payload, i + 32);
        r[i + 32].req.crc = kvt__crc32c(0, r[i + 32].req.slot.payload, BYTES);
    }
    run_at_once(e, settings, 8, r, 64);
    for (unsigned i = 0; i < 32; i++) {
        unsigned char expected[BYTES];

        fill_kv(expected, i);
        assert_int_equal(r[i].req.error.code, 0);
        assert_memory_equal(r[i].req.slot.payload, expected, BYTES);
        assert_int_equal(r[i + 32].req.error.code, 0);
    }
    for (unsigned i = 0; i < 64; i++)
        free(r[i].memory);
    assert_int_equal(max_inside, 1);
}

static void *
run_request(void *request)
{
    struct request *r = request;

    kvt__store_run((struct kvt__store *)r->req.store, &r->req);
    return NULL;
}

/* A PUT is in the codec, and other PUTs and then two GETs wait. */
static void
loads_pass_the_gate_before_stores_that_wait_longer(void **state)
{
    enum { N_PUTS = 8, N = N_PUTS + 2 };
    struct env *e = *state;
    struct request r[N];
    pthread_t threads[N];

    reopen(e, (const char *const[]){ ROOMY, "remote_serde=lossless", "codec_threads=1", NULL });
    for (unsigned i = N_PUTS; i < N; i++)
        assert_int_equal(put_kv(e, i), 0);
    sem_init(&first_inside, 0, 0);
    sem_init(&go_on, 0, 0);
    atomic_store(&n_order, 0);
    atomic_store(&n_waits, 0);
    atomic_store(&holds_first, true);
    for (unsigned i = 0; i < N; i++) {
        init_kv(&r[i], e, i < N_PUTS ? KVT__TIER_PUT : KVT__TIER_GET, i);
        if (i < N_PUTS)
            fill_kv(r[i].req.slot.payload, i);
        r[i].req.crc = kvt__crc32c(0, r[i].req.slot.payload, BYTES);
        r[i].req.store = e->store;
        assert_int_equal(pthread_create(&threads[i], NULL, run_request, &r[i]), 0);
        if (i == 0)
            sem_wait(&first_inside);
        while (atomic_load(&n_waits) < i)
            sched_yield();
    }
    sem_post(&go_on);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(r[i].req.error.code, 0);
        free(r[i].memory);
    }
    assert_memory_equal(order, "eddeeeee", sizeof order);
    sem_destroy(&first_inside);
    sem_destroy(&go_on);
}

static void
a_process_with_one_cpu_has_one_codec_thread(void **state)
{
    struct env *e = *state;
    cpu_set_t all, one;

    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    reopen(e, lossless);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(e->store->codec_threads, 1);
    reopen(e, (const char *const[]){ ROOMY, "remote_serde=lossless", "codec_threads=3", NULL });
    assert_int_equal(e->store->codec_threads, 3);
}

/* ------------------------------------------------------------------------- memory */

/* Encode a chunk for a tier that blocks, or for a tier with threads of its own, and release the
 * encoded chunk.  Return true if the chunk was encoded: for a tier that blocks outside the pool,
 * otherwise into a slot of the pool. */
static bool
is_encoded_for(const struct memory *m, bool blocks)
{
    struct kvt__tier *tier = m->e.store->levels[0].tier;
    struct kvt__exec *exec = tier->exec, *other = (struct kvt__exec *)tier;
    size_t used = kvt__pool_used(m->pool);
    struct kvt__frame frame;
    struct request r;

    init_kv(&r, &m->e, KVT__TIER_PUT, 1);
    fill_kv(r.req.slot.payload, 1);
    r.req.store = m->e.store;
    tier->exec = blocks ? exec : other;
    int err = kvt__level_encode(&m->e.store->levels[0], &r.req);
    tier->exec = exec;
    free(r.memory);
    if (err) {
        assert_int_equal(err, -ENOSPC);
        assert_null(r.req.staging.payload);
        assert_null(r.req.scratch);
        return false;
    }
    assert_true(blocks == (r.req.scratch != NULL));
    if (blocks)
        assert_int_equal((uintptr_t)r.req.staging.payload % 4096, tier->phase);
    else
        assert_true(kvt__pool_used(m->pool) > 0);
    assert_int_equal(kvt__frame_parse(r.req.staging.payload, r.req.staging.bytes, false, &frame),
                     0);
    kvt__encoded_release(&r.req);
    assert_null(r.req.staging.payload);
    assert_true(kvt__pool_used(m->pool) <= used);
    return true;
}

static void
an_encoded_chunk_waits_in_the_pool_if_there_is_room(void **state)
{
    struct memory *m = *state;

    kvt__store_use_pool(m->e.store, m->pool, 0); /* no effect: all levels are naive */
    reopen(&m->e, lossless);
    assert_false(is_encoded_for(m, false));
    assert_true(is_encoded_for(m, true));
    kvt__store_use_pool(m->e.store, m->pool, 0);
    assert_true(is_encoded_for(m, false));
    assert_true(is_encoded_for(m, true));
    kvt__store_use_pool(m->e.store, m->pool, 1 << 20);
    assert_false(is_encoded_for(m, false));
    assert_true(is_encoded_for(m, true));
}

static void
on_done(struct kvt__store_req *req)
{
    (void)req;
}

static void
an_encoded_chunk_evicts_a_chunk_from_host_memory(void **state)
{
    struct memory *m = *state;

    reopen(&m->e, lossless);
    add_memory(&m->e, worker_memory(m, NULL));
    m->e.space.puts = KVT__PUTS_MEMORY;
    for (unsigned i = 0; i < 2; i++) {
        struct request r;

        request_init(&r, &m->e, KVT__TIER_PUT, i);
        free(r.memory);
        assert_true(kvt__pool_acquire(m->pool, BYTES, 0, &r.req.slot));
        r.req.on_done = on_done;
        kvt__store_submit(m->e.store, &r.req);
        assert_int_equal(r.req.error.code, 0);
        kvt__pool_release(m->pool, &r.req.slot);
    }
    size_t used = kvt__pool_used(m->pool);
    assert_true(used > 0);
    kvt__store_use_pool(m->e.store, m->pool, (1 << 20) - used);
    assert_true(is_encoded_for(m, false));
    assert_true(kvt__pool_used(m->pool) < used);
}

static void
eviction_counts_encoded_bytes(void **state)
{
    static const char *const settings[] = { "max_remote_size=0.0001", "remote_serde=kv4", NULL };
    struct env *e = *state;

    reopen(e, settings);
    for (unsigned i = 0; i < 60; i++)
        assert_int_equal(put_kv(e, i), 0);
    assert_int_equal(used(e), disk_bytes(e));
    assert_true(totals_of(e).n_entries > 13); /* more than naive chunks */
    assert_true(totals_of(e).n_entries < 60);
}

/* LMCache reads no identities, and a file without header can lose its identity. */
static void
a_lossy_store_writes_no_object_under_lmcaches_names(void **state)
{
    static const char *const *const lossy[] = { kv8, accepts_kv8, lossless_accepts_kv8 };
    struct env *e = *state;

    for (unsigned i = 0; i < sizeof lossy / sizeof *lossy; i++) {
        reopen(e, lossy[i]);
        assert_int_equal(put_bytes(e, 3 * i, fill_noise), 0);
        assert_int_equal(put_kv(e, 3 * i + 1), 0);
        assert_int_equal(run_partial(e, KVT__TIER_PUT, 3 * i + 2), 0);
        assert_true(is_encoded(e, 3 * i, "inexact-naive"));
        for (unsigned k = 3 * i; k < 3 * i + 3; k++) {
            assert_false(file_there(e, k));
            assert_false(is_encoded(e, k, "lossless"));
        }
        assert_int_equal(run_partial(e, KVT__TIER_GET, 3 * i + 2), 0);
    }
    assert_true(is_encoded(e, 7, "inexact-lossless"));
    assert_int_equal(get_kv(e, 7), 0);
}

/* An overwriting PUT does not ask whether another level of the storage has the chunk. */
static void
a_lossy_store_overwrites_no_exact_object(void **state)
{
    struct env *e = *state;
    struct request r;

    reopen(e, kv8);
    init_kv(&r, e, KVT__TIER_PUT, 1);
    fill_noise(r.req.slot.payload, 1);
    r.req.crc = kvt__crc32c(0, r.req.slot.payload, BYTES);
    r.req.overwrite = true;
    kvt__store_run(e->store, &r.req);
    assert_int_equal(r.req.error.code, 0);
    free(r.memory);
    assert_true(is_encoded(e, 1, "inexact-naive"));
    assert_false(file_there(e, 1));
}

/* Another host, or a process with an older index, does not know the exact object. */
static void
a_lossy_store_without_an_index_leaves_exact_objects_alone(void **state)
{
    static const char *const *const exact[] = { naive, lossless };
    static const char *const *const lossy[] = { accepts_kv8, lossless_accepts_kv8 };
    struct env *e = *state;

    for (unsigned i = 0; i < 2; i++) {
        reopen(e, exact[i]);
        assert_int_equal(put_kv(e, i), 0);
        close_and_lose_index(e);
        e->store = open_over(e, "", lossy[i]);
        assert_int_equal(put_kv(e, i), 0);
        assert_true(is_encoded(e, i, i ? "inexact-lossless" : "inexact-naive"));
        reopen(e, exact[i]);
        assert_int_equal(probe_kv(e, i), 0);
        assert_int_equal(get_kv(e, i), 0);
    }
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, env_setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_encoded_chunk_is_smaller_and_comes_back),
        TEST(an_opaque_chunk_has_the_encoding_in_its_tag),
        TEST(a_restart_finds_encoded_chunks_with_an_index_and_by_a_probe),
        TEST(a_listing_counts_encoded_chunks),
        TEST(a_chunk_that_does_not_shrink_is_stored_naive),
        TEST(a_chunk_of_unknown_layout_is_stored_naive),
        TEST(a_chunk_with_a_layout_of_another_size_is_stored_naive),
        TEST(an_overwritten_chunk_stays_in_one_encoding),
        TEST(a_chunk_in_the_memory_of_a_gpu_is_neither_encoded_nor_decoded),
        TEST(a_pause_that_begins_during_the_encoding_ends_the_put),
        TEST(naive_chunks_stay_readable_and_are_not_stored_again),
        TEST(encoded_chunks_are_read_only_if_accepted),
        TEST(a_lossy_chunk_is_near_the_original),
        TEST(an_exact_store_never_serves_a_lossy_chunk),
        TEST(a_lossy_store_prefers_an_exact_chunk_to_a_new_lossy_chunk),
        TEST(a_store_that_accepts_a_lossy_encoding_reads_it),
        TEST(each_storage_gets_a_chunk_that_does_not_shrink),
        TEST(the_most_storages_have_levels_for_all_encodings),
        TEST(a_corrupt_encoded_chunk_is_removed_and_never_served),
        TEST(a_frame_with_a_right_checksum_is_served_only_if_it_is_the_chunk),
        TEST(a_chunk_of_a_newer_version_is_a_miss_and_stays),
        TEST(a_load_that_is_not_wanted_any_more_is_not_decoded),
        TEST(a_file_of_another_program_is_no_encoded_chunk),
        TEST(an_object_as_large_as_the_chunk_is_no_encoded_chunk),
        TEST(many_threads_encode_and_decode_through_a_narrow_gate),
        TEST(loads_pass_the_gate_before_stores_that_wait_longer),
        TEST(a_process_with_one_cpu_has_one_codec_thread),
        MEMORY_TEST(an_encoded_chunk_waits_in_the_pool_if_there_is_room),
        MEMORY_TEST(an_encoded_chunk_evicts_a_chunk_from_host_memory),
        TEST(eviction_counts_encoded_bytes),
        TEST(a_lossy_store_writes_no_object_under_lmcaches_names),
        TEST(a_lossy_store_overwrites_no_exact_object),
        TEST(a_lossy_store_without_an_index_leaves_exact_objects_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
