/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared parts of the cleaner's tests.  Objects are put into the server through its control port,
 * with the required ages. */
#ifndef KVT_S3_CLEAN_TEST_H
#define KVT_S3_CLEAN_TEST_H

#include <jansson.h>

#include "s3-test.h"

#include "base/log.h"
#include "tier/s3/clean.h"

#define EACH 1000 /* bytes of an object */
#define LEASE ".kvtier/cleaner/"

static const char *bucket;

/* Log lines at level WARN or more severe. */
static struct {
    unsigned n;
    char last[1024];
} warned;

static inline void
note_warning(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    if (level > KVT_LOG_WARN)
        return;
    warned.n++;
    snprintf(warned.last, sizeof warned.last, "%s", line);
}

/* The server's clock stands still, so that the ages of objects do not change. */
static inline int
setup(void **state)
{
    s3_setup(state);
    s3_config(&server, "{\"clock_stands\": true}");
    bucket = S3_BUCKET;
    warned.n = 0;
    kvt_set_log(note_warning, NULL, KVT_LOG_DEBUG);
    return 0;
}

static inline int
teardown(void **state)
{
    (void)state;
    kvt_set_log(NULL, NULL, KVT_LOG_INFO);
    return 0;
}

/* No object is stored through this tier, so the cleaner's thread starts no round. */
static inline struct s3_tier *
open_cleaner(void)
{
    const char *const settings[] = { "max_remote_size=0.00001", /* ten objects */
                                     strcmp(bucket, S3_BUCKET) ? "s3_enable_s3express=true"
                                                               : NULL, NULL };
    struct kvt__tier *one;
    char url[256];

    snprintf(url, sizeof url, "s3://127.0.0.1:%u/%s/%s", server.port, bucket,
             server.prefix);
    if (s3_try_open(url, settings, &counters, &one))
        fail_msg("%s: %s", url, kvt__why());
    struct s3_tier *t = s3_of(one);
    pthread_mutex_lock(&t->cleaner.lock);
    t->cleaner.short_interval_ns = t->cleaner.long_interval_ns = 0;
    t->cleaner.due_ns[0] = t->cleaner.due_ns[1] = 0;
    pthread_mutex_unlock(&t->cleaner.lock);
    return t;
}

static inline void
close_cleaner(struct s3_tier *t)
{
    s3_close(&t->tier);
}

/* ------------------------------------------------------------------------- objects */

static json_t *seeds;

static inline void
seed_at(const char *prefix, const char *name, long bytes, long age_s)
{
    char key[1100];

    if (!seeds)
        seeds = json_array();
    snprintf(key, sizeof key, "%s%s", prefix, name);
    json_array_append_new(seeds, json_pack("{s:s, s:i, s:i}", "key", key, "size",
                                           (int)bytes, "age_s", (int)age_s));
}

static inline void
seed(const char *name, long bytes, long age_s)
{
    char prefix[80];

    snprintf(prefix, sizeof prefix, "%s/", server.prefix);
    seed_at(prefix, name, bytes, age_s);
}

/* Chunk i is i minutes old. */
static inline void
seed_chunks(unsigned first, unsigned n)
{
    char name[64];

    for (unsigned i = first; i < first + n; i++) {
        snprintf(name, sizeof name, "org_m@1@0@%x@half", i + 1);
        seed(name, EACH, 60L * i);
    }
}

static inline void
create_seeds(void)
{
    json_t *words = json_pack("{s:s, s:o}", "bucket", bucket, "objects", seeds);
    char *text = json_dumps(words, 0);

    s3_request(&server, "POST", "/objects", text);
    free(text);
    json_decref(words);
    seeds = NULL;
}

static inline bool
is_there_at(const char *prefix, const char *name)
{
    json_t *all = s3_request_json(&server, "GET", "/objects", "");
    json_t *objects = json_object_get(json_object_get(all, bucket), "objects");
    char key[1100];

    snprintf(key, sizeof key, "%s%s", prefix, name);
    bool there = json_object_get(objects, key) != NULL;
    json_decref(all);
    return there;
}

static inline bool
is_there(const char *name)
{
    char prefix[80];

    snprintf(prefix, sizeof prefix, "%s/", server.prefix);
    return is_there_at(prefix, name);
}

static inline bool
has_chunk(unsigned i)
{
    char name[64];

    snprintf(name, sizeof name, "org_m@1@0@%x@half", i + 1);
    return is_there(name);
}

/* Return the number of chunks, after a check that they are the youngest chunks. */
static inline unsigned
n_youngest(void)
{
    json_t *all = s3_request_json(&server, "GET", "/objects", ""), *value;
    json_t *objects = json_object_get(json_object_get(all, bucket), "objects");
    unsigned n = 0, highest = 0, i;
    char form[128], whole[128];
    const char *key;

    snprintf(form, sizeof form, "%s/org_m@1@0@%%x@half", server.prefix);
    json_object_foreach(objects, key, value) {
        if (sscanf(key, form, &i) != 1)
            continue;
        snprintf(whole, sizeof whole, "%s/org_m@1@0@%x@half", server.prefix, i);
        if (strcmp(key, whole))
            continue;
        n++;
        highest = i > highest ? i : highest;
    }
    json_decref(all);
    assert_int_equal(highest, n);
    return n;
}

static inline unsigned
n_done(const char *operation)
{
    return s3_count(&server, "operations", operation);
}

static inline void
expect_clean(struct s3_tier *t, int rc)
{
    int got = kvt__s3_enforce_limit(t);

    if (got != rc)
        fail_msg("%d: %s", got, got < 0 ? kvt__why() : "");
}

static inline void
expect_warning(const char *text)
{
    assert_int_equal(warned.n, 1);
    if (!strstr(warned.last, text))
        fail_msg("\"%s\" is not in: %s", text, warned.last);
}

static inline void
put_some(struct s3_tier *t, int64_t number)
{
    struct chunk c;

    chunk_init(&c, "m", number);
    if (put_bytes(&t->tier, &c.object, EACH, 1))
        fail_msg("%s", kvt__why());
}

#define CLEAN(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

/* The server has a normal bucket and a directory bucket. */
#define clean_test_main(name, tests) \
    s3_test_main(name, tests, "--bucket", S3_BUCKET, "--bucket", S3_EXPRESS_BUCKET)

#endif
