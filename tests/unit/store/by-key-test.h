/* SPDX-License-Identifier: Apache-2.0
 *
 * Operations by key on a store over local_disk, S3 or both, by kvt_store_run() and by
 * kvt_store_submit(). */
#ifndef KVT_BY_KEY_TEST_H
#define KVT_BY_KEY_TEST_H

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>

#include "config.h"
#include "kvt-test.h"
#include "servers/s3-server.h"
#include "temp-dir.h"

#define BYTES "some bytes"

static struct s3_server server;
static struct temp_dir dir;
static struct kvt_store *store;

static inline void
open_with(const char *const *settings)
{
    struct kvt_config *config = config_with(settings);

    if (kvt_store_open(config, &store))
        fail_msg("%s", kvt_last_error());
    kvt_config_free(config);
}

static inline void
open_s3(const char *bucket, const char *setting)
{
    char url[128];
    const char *settings[] = { url, "disable_tls=true", "s3_region=us-east-1",
                               "aws_access_key_id=" S3_ACCESS,
                               "aws_secret_access_key=" S3_SECRET, S3_PATIENT, setting, NULL };

    snprintf(url, sizeof url, "remote_url=s3://127.0.0.1:%u/%s/%s", server.port, bucket,
             server.prefix);
    open_with(settings);
}

static inline void
open_disk(const char *setting)
{
    char disk[300];
    const char *settings[] = { disk, "max_local_disk_size=1", setting, NULL };

    snprintf(disk, sizeof disk, "local_disk=%s", dir.path);
    open_with(settings);
}

static inline int
setup(void **state)
{
    (void)state;
    temp_dir_make(&dir);
    s3_server_reset(&server);
    return 0;
}

static inline int
teardown(void **state)
{
    static const char *const buckets[] = { S3_BUCKET, "nowhere" };

    (void)state;
    kvt_store_close(store);
    store = NULL;
    for (size_t i = 0; i < 2; i++)
        s3_remove_index_of(&server, "127.0.0.1", server.port, buckets[i]);
    temp_dir_remove(&dir);
    return 0;
}

/* ---------------------------------------------------------------------- requests */

static struct kvt_op op;
static char buf[64];

/* Prepare op: a PUT has all bytes, a GET has the whole buffer. */
static inline struct kvt_op *
about(uint32_t kind, uint32_t flags, const char *key)
{
    op = (struct kvt_op)KVT_INIT(struct kvt_op);
    op.kind = kind;
    op.flags = flags;
    op.key = key;
    op.buf = buf;
    op.bytes = kind == KVT_OP_PUT ? strlen(BYTES) : sizeof buf;
    memcpy(buf, kind == KVT_OP_PUT ? BYTES : "nothing at", strlen(BYTES));
    return &op;
}

static inline int
run(uint32_t kind, uint32_t flags, const char *key)
{
    (void)!kvt_store_run(store, about(kind, flags, key));
    return op.status;
}

static inline int
submit(uint32_t kind, uint32_t flags, const char *key)
{
    struct pollfd fd = { .fd = kvt_store_eventfd(store), .events = POLLIN };
    struct kvt_op *done, *it = about(kind, flags, key);

    assert_int_equal(kvt_store_submit(store, &it, 1), 0);
    while (!kvt_store_poll(store, &done, 1))
        poll(&fd, 1, 1000);
    return op.status;
}

static int (*const ways[])(uint32_t kind, uint32_t flags, const char *key) = {
    run, submit };

#define N_WAYS (sizeof ways / sizeof *ways)

static inline void
expect_bytes(int status)
{
    if (status)
        fail_msg("%s: %s", op.key, op.why);
    assert_int_equal(op.found_bytes, strlen(BYTES));
    assert_memory_equal(buf, BYTES, strlen(BYTES));
    assert_true(op.found & KVT_FOUND_CHECKED);
}

static inline void
expect_refused(int status, int error, const char *sentence)
{
    assert_int_equal(status, -error);
    if (!strstr(op.why, sentence))
        fail_msg("\"%s\" is not in: %s", sentence, op.why);
}

#endif
