/* SPDX-License-Identifier: Apache-2.0
 *
 * Thousands of transfers through kvt_store with a bucket that makes every kind of mistake.  Each
 * transfer ends, with the right bytes or with an error; every successful PUT is stored. */
#include <poll.h>

#include "servers/s3-server.h"
#include "system/system-test.h"

#define N_OBJECTS 1000u
#define N_AT_A_TIME 48u
#define N_FAULTS 700u
#define MOST_BYTES ((size_t)64 << 10)

static struct s3_server server;

/* One object and the result of the last operation. */
struct transfer {
    struct kvt_op op;
    char key[64];
    uint64_t seed;
    size_t bytes;
    unsigned char *memory;
    bool stored;
};

static struct transfer all[N_OBJECTS];

static void
fill(struct transfer *t)
{
    uint64_t state = t->seed;

    for (size_t i = 0; i < t->bytes; i++)
        t->memory[i] = (unsigned char)next_random(&state);
}

static bool
is_right(const struct transfer *t)
{
    uint64_t state = t->seed;

    for (size_t i = 0; i < t->bytes; i++)
        if (t->memory[i] != (unsigned char)next_random(&state))
            return false;
    return true;
}

/* ----------------------------------------------------------------------- mistakes */

/* An object of another program, without kvtier's metadata. */
#define SOMETHING_ELSE "something else"

/* %u: a number below the size of an object.  GET: a mistake of loads only. */
static const char *const mistakes[] = {
    "{\"status\": 500}",
    "{\"status\": 502, \"body\": \"<html>\"}",
    "{\"status\": 503, \"code\": \"SlowDown\"}",
    "{\"status\": 503, \"code\": \"SlowDown\", \"early\": true}",
    "{\"status\": 504, \"chunked\": true}",
    "{\"status\": 429, \"code\": \"TooManyRequests\", \"close\": true}",
    "{\"status\": 408, \"code\": \"RequestTimeout\"}",
    "{\"status\": 400, \"code\": \"BadDigest\"}",
    "{\"status\": 403}",
    "{\"status\": 404, \"code\": \"NoSuchKey\"}",
    "{\"status\": 400, \"code\": \"ExpiredToken\"}",
    "{\"status\": 409, \"code\": \"ConditionalRequestConflict\"}",
    "{\"status\": 301, \"code\": \"PermanentRedirect\", \"endpoint\": \"evil.test\"}",
    "{\"reset\": true}",
    "{\"reset_at\": %u}",
    "{\"close_at\": %u}",
    "{\"stall_at\": %u, \"stall_s\": 0.1}",
    "{\"corrupt_at\": %u}",
    "{\"content_length\": %u, \"close\": true}",
    "{\"extra\": %u}",
    "{\"chunked\": %u}",
    "{\"drip\": 2000000}",
    "{\"delay_ms\": 30}",
    "{\"close\": true}",
    "{\"continue\": 3}",
    "GET {\"status\": 200, \"body\": \"" SOMETHING_ELSE "\"}",
    "{\"headers\": {\"x-amz-checksum-crc32c\": \"AAAAAA==\"}}",
    "{\"headers\": {\"x-amz-meta-kvtier\": \"AAAA\"}}",
    "{\"headers\": {\"Content-Length\": null}, \"close\": true}",
};
#define N_MISTAKES (sizeof mistakes / sizeof *mistakes)

/* Schedule each mistake once, after a random number of requests. */
static void
make_mistakes(uint64_t *state, unsigned n_requests)
{
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    assert_non_null(out);
    for (unsigned i = 0; i < N_FAULTS; i++) {
        const char *mistake = mistakes[next_random(state) % N_MISTAKES];
        bool loads = *mistake == 'G';
        const char *number = strstr(mistake, "%u");
        unsigned at = (unsigned)(next_random(state) % MOST_BYTES);

        fprintf(out, "%s{\"match\": {\"method\": \"%s\"}, \"skip\": %u, \"do\": ",
                i ? "," : "[", loads ? "GET" : "",
                (unsigned)(next_random(state) % n_requests));
        mistake += loads ? 3 : 0;
        if (number)
            fprintf(out, "%.*s%u%s", (int)(number - mistake), mistake, at, number + 2);
        else
            fputs(mistake, out);
        fputs("}", out);
    }
    fputs("]", out);
    assert_int_equal(fclose(out), 0);
    s3_fault(&server, text);
    free(text);
}

static unsigned
n_made(void)
{
    json_t *faults = s3_request_json(&server, "GET", "/faults", ""), *fault;
    unsigned n = 0;
    size_t i;

    json_array_foreach(faults, i, fault)
        n += (unsigned)json_integer_value(json_object_get(fault, "done"));
    json_decref(faults);
    return n;
}

/* ---------------------------------------------------------------------- transfers */

static void
submit(struct kvt_store *store, struct transfer *t, uint32_t kind)
{
    struct kvt_op *op = &t->op;

    *op = (struct kvt_op)KVT_INIT(struct kvt_op);
    op->kind = kind;
    op->key = t->key;
    op->buf = t->memory;
    op->bytes = t->bytes;
    op->user = t;
    if (kind == KVT_OP_PUT)
        fill(t);
    else
        memset(t->memory, 0xee, t->bytes);
    assert_int_equal(kvt_store_submit(store, &op, 1), 0);
}

/* Return true if a transfer may end with this status.  Wrong bytes are never allowed. */
static bool
is_allowed(int status)
{
    switch (-status) {
    case 0:
    case ENOENT:
    case EBADMSG:
    case EMSGSIZE:
    case EIO:
    case EACCES:
    case EBUSY:
    case ETIMEDOUT:
    case ECONNRESET:
    case EPROTO:
        return true;
    default:
        return false;
    }
}

static bool
take(struct kvt_op *op)
{
    struct transfer *t = op->user;

    if (!is_allowed(op->status))
        fail_msg("%s: %d: %s", op->key, op->status, op->why);
    assert_int_equal(!op->status, !*op->why);
    if (op->kind == KVT_OP_PUT)
        t->stored = !op->status;
    else if (!op->status && !is_right(t) && (op->found & KVT_FOUND_CHECKED ||
             op->found_bytes != strlen(SOMETHING_ELSE) ||
             memcmp(t->memory, SOMETHING_ELSE, op->found_bytes)))
        fail_msg("%s: wrong bytes", op->key);
    return !op->status;
}

/* Run one operation on all objects, some at a time.  Return the number of successes. */
static unsigned
run_all(struct kvt_store *store, uint32_t kind)
{
    struct pollfd fd = { .fd = kvt_store_eventfd(store), .events = POLLIN };
    unsigned n_begun = 0, n_ended = 0, n_good = 0;
    struct kvt_op *op;

    while (n_ended < N_OBJECTS) {
        while (n_begun < N_OBJECTS && n_begun - n_ended < N_AT_A_TIME)
            submit(store, &all[n_begun++], kind);
        while (kvt_store_poll(store, &op, 1)) {
            n_good += take(op);
            n_ended++;
        }
        if (n_ended < n_begun)
            poll(&fd, 1, 100);
    }
    return n_good;
}

static struct kvt_store *
open_store(bool tls)
{
    char url[256], ca[PATH_MAX + 16];
    const char *settings[] = {
        url, ca, tls ? "disable_tls=false" : "disable_tls=true",
        "aws_access_key_id=" S3_ACCESS, "aws_secret_access_key=" S3_SECRET,
        "blocking_timeout_secs=600", "s3_max_inflight_reqs=32", NULL };
    struct kvt_store *store = NULL;

    snprintf(url, sizeof url, "remote_url=s3://127.0.0.1:%u/" S3_BUCKET "/%s",
             tls ? server.tls_port : server.port, server.prefix);
    snprintf(ca, sizeof ca, "s3_ca_file=%s", server.ca);
    struct kvt_config *config = config_with(settings);
    if (kvt_store_open(config, &store))
        fail_msg("%s", kvt_last_error());
    kvt_config_free(config);
    return store;
}

static void
close_store(struct kvt_store *store, bool tls)
{
    kvt_store_close(store);
    s3_remove_index_of(&server, "127.0.0.1", tls ? server.tls_port : server.port, S3_BUCKET);
}

static void
make_objects(uint64_t *state)
{
    for (unsigned i = 0; i < N_OBJECTS; i++) {
        struct transfer *t = &all[i];

        t->seed = next_random(state);
        t->bytes = 1 + next_random(state) % (i % 4 ? 4096 : MOST_BYTES);
        snprintf(t->key, sizeof t->key, "m@1@0@%x@bfloat16", i + 1);
        t->memory = malloc(t->bytes);
        assert_non_null(t->memory);
    }
}

static void
check(bool tls, uint64_t seed)
{
    uint64_t state = seed;
    unsigned n_stored = 0;

    s3_server_reset(&server);
    make_objects(&state);
    struct kvt_store *store = open_store(tls);
    make_mistakes(&state, 3 * N_OBJECTS);
    unsigned n_put = run_all(store, KVT_OP_PUT);
    unsigned n_got = run_all(store, KVT_OP_GET);
    unsigned n_again = run_all(store, KVT_OP_GET);
    assert_true(n_put > N_OBJECTS / 2 && n_put < N_OBJECTS);
    assert_true(n_got > N_OBJECTS / 2 && n_got < N_OBJECTS);
    assert_true(n_again > N_OBJECTS / 2);
    assert_true(n_made() > N_FAULTS / 2);
    s3_no_faults(&server);
    (void)run_all(store, KVT_OP_GET);
    for (unsigned i = 0; i < N_OBJECTS; i++) {
        n_stored += all[i].stored;
        if (all[i].stored && (all[i].op.status || !(all[i].op.found & KVT_FOUND_CHECKED)))
            fail_msg("%s was stored: %s", all[i].key, all[i].op.why);
        free(all[i].memory);
    }
    assert_int_equal(n_stored, n_put);
    close_store(store, tls);
}

static void
every_transfer_ends_with_the_right_bytes_or_an_error(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= rounds(1); seed++)
        check(false, seed);
}

static void
every_transfer_over_tls_ends_with_the_right_bytes_or_an_error(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= rounds(1); seed++)
        check(true, 1000 + seed);
}

int
main(void)
{
    static const char *const arguments[] = { "--tls", NULL };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_transfer_ends_with_the_right_bytes_or_an_error),
        cmocka_unit_test(every_transfer_over_tls_ends_with_the_right_bytes_or_an_error),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    if (!s3_server_start(&server, arguments)) {
        printf("skipped: needs python3\n");
        return SKIPPED;
    }
    int failed = cmocka_run_group_tests_name("S3 faults", tests, NULL, NULL);
    s3_server_stop(&server);
    return failed;
}
