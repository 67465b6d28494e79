/* SPDX-License-Identifier: Apache-2.0
 *
 * Closing a store during a hang: of a server, of a program for credentials, of a file system. */
#include <signal.h>

#include "files.h"
#include "servers/s3-server.h"
#include "system/held.h"
#include "system/system-test.h"

#include "base/clock.h"
#include "store/store.h"

#define N_OPS 6
#define BYTES 5000

static struct s3_server server;

struct transfers {
    struct temp_dir dir;
    struct kvt_op ops[N_OPS];
    char keys[N_OPS][64];
    unsigned char bytes[BYTES];
};

static int
setup(void **state)
{
    static struct transfers t;

    s3_server_reset(&server);
    t = (struct transfers){ 0 };
    temp_dir_make(&t.dir);
    *state = &t;
    return 0;
}

static int
teardown(void **state)
{
    struct transfers *t = *state;

    temp_dir_remove(&t->dir);
    s3_remove_index_of(&server, "127.0.0.1", server.port, S3_BUCKET);
    return 0;
}

static const char *const no_environment[] = { NULL };

static struct kvt_store *
open_with(const char *const *environment, const char *const *settings)
{
    struct kvt_config *config = config_from(environment, settings);
    struct kvt_store *store = NULL;

    if (kvt_store_open(config, &store))
        fail_msg("%s", kvt_last_error());
    kvt_config_free(config);
    return store;
}

/* patience: blocking_timeout_secs. */
static struct kvt_store *
open_s3(const char *patience)
{
    char url[256];
    const char *settings[] = { url, patience, "disable_tls=true", "s3_num_io_threads=2",
                               "aws_access_key_id=" S3_ACCESS,
                               "aws_secret_access_key=" S3_SECRET, NULL };

    snprintf(url, sizeof url, "remote_url=s3://127.0.0.1:%u/" S3_BUCKET "/%s", server.port,
             server.prefix);
    return open_with(no_environment, settings);
}

/* Submit an operation of each kind, and a second PUT, each with a different key. */
static void
submit_all(struct transfers *t, struct kvt_store *store)
{
    static const uint32_t kinds[N_OPS] = { KVT_OP_PUT, KVT_OP_GET, KVT_OP_VERIFY,
                                           KVT_OP_DELETE, KVT_OP_PUT, KVT_OP_STAT };
    struct kvt_op *ops[N_OPS];

    for (unsigned i = 0; i < N_OPS; i++) {
        snprintf(t->keys[i], sizeof t->keys[i], "m@1@0@%x@bfloat16", i + 1);
        t->ops[i] = (struct kvt_op)KVT_INIT(struct kvt_op);
        t->ops[i].kind = kinds[i];
        t->ops[i].key = t->keys[i];
        t->ops[i].buf = t->bytes;
        t->ops[i].bytes = sizeof t->bytes;
        t->ops[i].status = 1;
        ops[i] = &t->ops[i];
    }
    assert_int_equal(kvt_store_submit(store, ops, N_OPS), 0);
}

static unsigned
n_ended(const struct transfers *t, int status)
{
    unsigned n = 0;

    for (unsigned i = 0; i < N_OPS; i++) {
        if (t->ops[i].status && !t->ops[i].why[0])
            fail_msg("no sentence for %d", t->ops[i].status);
        n += t->ops[i].status == status;
    }
    return n;
}

static void
requests_without_a_response_in_time_are_canceled(void **state)
{
    struct transfers *t = *state;
    struct kvt_store *store = open_s3("blocking_timeout_secs=1");

    s3_fault(&server, "{\"count\": null, \"do\": {\"delay_ms\": 600000}}");
    submit_all(t, store);
    kvt_store_close(store);
    assert_true(n_ended(t, -ECANCELED) > 0);
    /* During a close a read has this short timeout, a write a timeout ten times longer. */
    assert_int_equal(n_ended(t, -ECANCELED) + n_ended(t, -ETIMEDOUT), N_OPS);
}

static void
requests_with_a_response_in_time_complete(void **state)
{
    struct transfers *t = *state;
    struct kvt_store *store = open_s3("blocking_timeout_secs=600");

    s3_fault(&server, "{\"count\": null, \"do\": {\"delay_ms\": 300}}");
    submit_all(t, store);
    kvt_store_close(store);
    assert_true(n_ended(t, 0) >= 2);
    assert_int_equal(n_ended(t, 0) + n_ended(t, -ENOENT), N_OPS);
}

void __real_kvt__store_stop(struct kvt__store *store);
void __wrap_kvt__store_stop(struct kvt__store *store);

/* The close has waited for the maximum time: let the file system continue. */
void
__wrap_kvt__store_stop(struct kvt__store *store)
{
    __real_kvt__store_stop(store);
    let_go();
}

/* One operation is in flight, and no timeout can end the operation. */
static void
close_waits_only_for_blocked_file_system_calls(void **state)
{
    struct transfers *t = *state;
    char url[600];
    const char *settings[] = { url, "disk_io_threads=1", "blocking_timeout_secs=1", NULL };

    snprintf(url, sizeof url, "remote_url=fault://hang=1/fs://%s", t->dir.path);
    struct kvt_store *store = open_with(no_environment, settings);
    hold();
    submit_all(t, store);
    wait_until_held();
    kvt_store_close(store);
    assert_int_equal(n_ended(t, -ECANCELED), N_OPS - 1);
    assert_int_equal(n_ended(t, 0) + n_ended(t, -ENOENT), 1);
}

/* ------------------------------------------------------------- credential_process */

static void
put_text(const struct transfers *t, const char *name, const char *text)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", t->dir.path, name);
    write_file(path, text, strlen(text));
    assert_int_equal(chmod(path, 0700), 0);
}

/* Wait until the program runs; return the program's process id. */
static pid_t
wait_for_pid(const struct transfers *t)
{
    char path[600];
    int pid = 0;

    snprintf(path, sizeof path, "%s/pid", t->dir.path);
    while (pid <= 0) {
        FILE *file = fopen(path, "r");

        if (!file || fscanf(file, "%d", &pid) != 1)
            usleep(1000);
        if (file)
            fclose(file);
    }
    return pid;
}

/* Without a close the program would have 30 seconds. */
static void
a_credential_process_without_output_is_killed(void **state)
{
    static const char script[] =
        "#!/bin/sh\n"
        "echo $$ >\"$HOME/pid.new\"; mv \"$HOME/pid.new\" \"$HOME/pid\"; exec sleep 60\n";
    struct transfers *t = *state;
    char url[256], config[600], home_is[600], config_is[600];
    const char *settings[] = { url, "disable_tls=true", "s3_profile=test", NULL };
    const char *environment[] = { "PATH=/usr/bin:/bin", home_is, config_is, NULL };

    snprintf(home_is, sizeof home_is, "HOME=%s", t->dir.path);
    snprintf(config_is, sizeof config_is, "AWS_CONFIG_FILE=%s/config", t->dir.path);
    snprintf(config, sizeof config, "[profile test]\ncredential_process = %s/keys\n",
             t->dir.path);
    put_text(t, "config", config);
    put_text(t, "keys", script);
    snprintf(url, sizeof url, "remote_url=s3://127.0.0.1:%u/" S3_BUCKET "/%s", server.port,
             server.prefix);
    struct kvt_store *store = open_with(environment, settings);
    pid_t pid = wait_for_pid(t);
    int64_t begin_ns = kvt__now_ns();
    kvt_store_close(store);
    assert_true(kvt__now_ns() - begin_ns < 20 * KVT__NS_PER_S);
    assert_int_equal(kill(pid, 0), -1);
    assert_int_equal(errno, ESRCH);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(requests_without_a_response_in_time_are_canceled),
        T(requests_with_a_response_in_time_complete),
        T(close_waits_only_for_blocked_file_system_calls),
        T(a_credential_process_without_output_is_killed),
    };

    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    if (!s3_server_start(&server, NULL)) {
        printf("skipped: needs python3\n");
        return SKIPPED;
    }
    int failed = cmocka_run_group_tests_name("S3, closing", tests, NULL, NULL);
    s3_server_stop(&server);
    return failed;
}
