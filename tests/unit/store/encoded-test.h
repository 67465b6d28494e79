/* SPDX-License-Identifier: Apache-2.0
 *
 * A store with encodings: chunks that a codec makes smaller, and chunks that no codec makes
 * smaller. */
#ifndef KVT_ENCODED_TEST_H
#define KVT_ENCODED_TEST_H

#include "store-test.h"

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

static inline void
reopen(struct env *e, const char *const *settings)
{
    reopen_over(e, "", settings);
}

static inline void
put16(unsigned char *at, uint16_t v)
{
    at[0] = (unsigned char)v;
    at[1] = (unsigned char)(v >> 8);
}

/* Fill a payload with bfloat16 numbers between 0.5 and 8. */
static inline void
fill_kv(unsigned char *bytes, unsigned seed)
{
    for (size_t i = 0; i < BYTES / 2; i++) {
        uint32_t random = (uint32_t)(i + 1) * 2654435761u * (seed * 2 + 1);

        put16(bytes + 2 * i, (uint16_t)(0x3f00 + (random >> 30 << 7) + (random >> 20 & 0x7f)));
    }
}

static inline void
fill_noise(unsigned char *bytes, unsigned seed)
{
    uint64_t x = seed;

    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (unsigned char)((x = x * UINT64_C(6364136223846793005) + 1442695) >> 56);
}

/* The identity of a chunk in the environment's store. */
static inline struct kvt__id
id_in(const struct env *e, unsigned i)
{
    struct kvt__id id = id_of(i);

    if (kvt__store_traits(e->store)->is_lossy)
        kvt__id_toggle_lossy(&id);
    return id;
}

static inline void
init_kv(struct request *r, const struct env *e, enum kvt__tier_op_kind op, unsigned i)
{
    request_init(r, e, op, i);
    r->req.id = id_in(e, i);
    r->req.layout = layout;
}

static inline int
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

static inline int
put_kv(const struct env *e, unsigned i)
{
    return put_bytes(e, i, fill_kv);
}

static char last_why[KVT__WHY_BYTES]; /* sentence of the last get_bytes() */

/* GET a chunk into `out`.  Return 0 only if the chunk was verified. */
static inline int
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
static inline int
get_kv(const struct env *e, unsigned i)
{
    unsigned char expected[BYTES], actual[BYTES];
    int err = get_bytes(e, i, actual);

    fill_kv(expected, i);
    if (!err)
        assert_memory_equal(actual, expected, BYTES);
    return err;
}

static inline int
probe_kv(const struct env *e, unsigned i)
{
    struct request r;

    init_kv(&r, e, KVT__TIER_PROBE, i);
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

static inline bool
find_kv(const struct env *e, unsigned i)
{
    struct kvt__chunk_key key = key_of(e, i);

    key.id = id_in(e, i);
    return kvt__store_find(e->store, &key, KVT__ANYWHERE);
}

static inline void
encoded_path(const struct env *e, unsigned i, const char *serde, char path[600])
{
    snprintf(path, 600, "%s/kvtier/test-SEP-model@1@0@%x@bfloat16@kvt%%%s.data", e->dir.path, i,
             serde);
}

static inline bool
is_encoded(const struct env *e, unsigned i, const char *serde)
{
    char path[600];

    encoded_path(e, i, serde, path);
    return !access(path, F_OK);
}

static inline off_t
size_of(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

#endif
