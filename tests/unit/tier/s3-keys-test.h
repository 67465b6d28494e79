/* SPDX-License-Identifier: Apache-2.0
 *
 * A tier over the S3 test server.  A credential_process provides keys and counts the runs. */
#ifndef KVT_S3_KEYS_TEST_H
#define KVT_S3_KEYS_TEST_H

#include <sys/stat.h>

#include "files.h"
#include "s3-test.h"

#define BYTES ((size_t)5000)
#define N_READS 50u

static struct temp_dir home;

/* A program that prints the keys AK1, AK2 ... and counts the runs. */
static const char script[] =
    "#!/bin/sh\n"
    "n=$(($(cat \"$HOME/n\") + 1))\n"
    "echo $n >\"$HOME/n\"\n"
    "echo \"{\\\"Version\\\": 1, \\\"AccessKeyId\\\": \\\"AK$n\\\","
    " \\\"SecretAccessKey\\\": \\\"SKTEST$n\\\", \\\"SessionToken\\\": \\\"token/+$n==\\\","
    " \\\"Expiration\\\": \\\"2099-01-01T00:00:00Z\\\"}\"\n";

static inline void
put_text(const char *name, const char *text, mode_t mode)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", home.path, name);
    write_file(path, text, strlen(text));
    assert_int_equal(chmod(path, mode), 0);
}

static inline unsigned
n_runs(void)
{
    char path[512];
    unsigned n = 0;

    snprintf(path, sizeof path, "%s/n", home.path);
    FILE *in = fopen(path, "r");
    assert_int_equal(fscanf(in, "%u", &n), 1);
    fclose(in);
    return n;
}

/* Make key n valid at the server for expires_in seconds.  If expires_in is negative, the
 * key has expired. */
static inline void
add_key(unsigned n, int expires_in)
{
    char body[256];

    snprintf(body, sizeof body, "{\"access\": \"AK%u\", \"secret\": \"SKTEST%u\", "
             "\"token\": \"token/+%u==\", \"expires_in\": %d}", n, n, n, expires_in);
    s3_request(&server, "POST", "/credentials", body);
}

static inline int
setup(void **state)
{
    static char home_is[300], config_is[320];
    static const char *const environment[] = { home_is, config_is,
                                               "AWS_EC2_METADATA_DISABLED=true",
                                               "PATH=/usr/bin:/bin", NULL };
    char config[1024];

    s3_setup(state);
    temp_dir_make(&home);
    snprintf(home_is, sizeof home_is, "HOME=%s", home.path);
    snprintf(config_is, sizeof config_is, "AWS_CONFIG_FILE=%s/config", home.path);
    s3_environment = environment;
    snprintf(config, sizeof config, "[profile test]\ncredential_process = %s/keys\n",
             home.path);
    put_text("config", config, 0600);
    put_text("keys", script, 0700);
    put_text("n", "0", 0600);
    return 0;
}

static inline int
teardown(void **state)
{
    s3_teardown(state);
    temp_dir_remove(&home);
    return 0;
}

#define NO_KEYS "aws_access_key_id=", "aws_secret_access_key=", "s3_profile=test"

static inline void
be_silent(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    assert_null(strstr(line, S3_SECRET));
}

/* Start N_READS concurrent gets or probes of chunk 1, and return the number of successes. */
static inline unsigned
many_at_once(enum kvt__tier_op_kind kind)
{
    static struct async all[N_READS];
    sem_t over;

    sem_init(&over, 0, 0);
    for (unsigned i = 0; i < N_READS; i++)
        async_start(&all[i], kind, 1, kind == KVT__TIER_GET ? BYTES : 0, &over);
    unsigned n = async_wait(all, N_READS, &over, 0);
    sem_destroy(&over);
    return n;
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

/* Set variables of the process that would break a test if the tier read the variables: only
 * the environment of the configuration counts. */
static inline void
set_process_environment(void)
{
    setenv("AWS_ACCESS_KEY_ID", "AKPROCESS", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "SKTEST-process", 1);
    unsetenv("AWS_SESSION_TOKEN");
    setenv("no_proxy", "127.0.0.1", 1);
}

#endif
