/* SPDX-License-Identifier: Apache-2.0
 *
 * The kinds of tiers, and the programs that test the contract of tier.h with each kind. */
#ifndef KVT_CONTRACT_TEST_H
#define KVT_CONTRACT_TEST_H

#include <dirent.h>

#include "gds-device-test.h"
#include "hf3fs-client.h"
#include "memory-level.h"
#include "s3-test.h"
#include "servers/usrbiod-server.h"

/* The place of the chunks: a directory of this file system, shared host memory, a directory
 * with slots in the memory of a GPU, a mount of 3FS, or a bucket by four ways to reach a
 * bucket. */
enum place { HERE, IN_MEMORY, BY_CUDA, BY_HIP, ON_3FS, BY_PATH, BY_HOST, BY_TLS, BY_SESSION };

/* A kind under test; %1$s in the URL is a fresh directory. */
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

/* The host of directory buckets, for which the server's certificate must be valid. */
#define EXPRESS_DOMAIN "s3express-use1-az4.us-east-1.amazonaws.com"

#define GPU_BYTES (8 * MIB) /* bytes of the GPU's memory for transfers */

static struct s3_server server, express;
static struct usrbiod usrbiod;
static char **vendors; /* paths of fakes: CUDA, cuFile, HIP, hipFile; NULL: no fakes */

/* With this prefix no long name fits into the 1024 bytes of a key of S3. */
#define LONG_PREFIX "a prefix/" S50 S50 S50 S50 S50 S50
#define S50 "01234567890123456789012345678901234567890123456789"

static const struct kind kinds[] = {
    { "fs", "fs://%1$s", true, NULL, 1, HERE },
    { "fs, no header", "fs://%1$s", false, NULL, 1, HERE },
    { "fs, three directories", "fs://%1$s/a, %1$s/b,%1$s/c", true, NULL, 1, HERE },
    { "fault over fs", "fault://seed=1/fs://%1$s", true, NULL, 1, HERE },
    { "local_disk", "local_disk://%1$s", true, NULL, 1, HERE },
    { "local_disk, one of three directories", "local_disk://%1$s/a,%1$s/b, %1$s/c",
      true, NULL, 3, HERE },
    { "local_disk, all of three directories", "local_disk://%1$s/a,%1$s/b, %1$s/c",
      true, BY_RANK, 1, HERE },
    { "shared_cpu", "shared_cpu://%1$s", true, "max_shared_cpu_size=0.0625", 1, IN_MEMORY },
    { "fault over local_disk", "fault://seed=1/local_disk://%1$s", true, NULL, 1, HERE },
    { "gds", "gds://%1$s", true, NULL, 1, HERE },
    { "gds, one of three directories", "gds://%1$s/a,%1$s/b, %1$s/c", true, NULL, 3, HERE },
    { "gds, all of three directories", "gds://%1$s/a,%1$s/b, %1$s/c", true, GDS_BY_RANK, 1,
      HERE },
    { "gds, CUDA", "gds://%1$s", true, NULL, 1, BY_CUDA },
    { "gds, HIP", "gds://%1$s", true, NULL, 1, BY_HIP },
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
    struct kvt__gpu *gpu; /* NULL: the slots are in host memory */
    unsigned n_fds;       /* open descriptors before the open of the tier */
};

/* Count the descriptors, without io_uring, because a thread that reads files keeps a ring. */
static unsigned
count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *entry;
    char target[64];
    unsigned n = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        ssize_t length = readlinkat(dirfd(dir), entry->d_name, target, sizeof target);

        n += length < 0 || !memmem(target, (size_t)length, "io_uring", 8);
    }
    closedir(dir);
    return n;
}

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
        snprintf(url, sizeof url, "s3://" S3_EXPRESS_BUCKET "." EXPRESS_DOMAIN ":%u",
                 s->tls_port);
        snprintf(resolve, sizeof resolve, "s3_resolve=" S3_EXPRESS_BUCKET "."
                 EXPRESS_DOMAIN ":%u:127.0.0.1", s->tls_port);
    }
    if (s3_try_open(url, settings, NULL, &f->tier))
        fail_msg("%s: %s", url, kvt__why());
}

static bool
has_gpu(const struct kind *kind)
{
    return kind->place == BY_CUDA || kind->place == BY_HIP;
}

static void
open_with_gpu(struct fixture *f)
{
    char *const *vendor = vendors + (f->kind->place == BY_HIP ? 2 : 0);

    use_fakes(vendor[0], vendor[1]);
    behave_well();
    f->gpu = open_gpu(0);
    if (f->tier->ops->use_gpu(f->tier, f->gpu, GPU_BYTES))
        fail_msg("%s", kvt__why());
    slot_tier = f->tier;
}

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    char url[1024];

    assert_non_null(f);
    f->kind = *state;
    if (f->kind->place == IN_MEMORY)
        temp_dir_make_in_memory(&f->dir);
    else
        temp_dir_make(&f->dir);
    f->n_fds = count_fds();
    if (is_bucket(f->kind)) {
        open_bucket(f);
    } else {
        snprintf(url, sizeof url, f->kind->url,
                 f->kind->place == ON_3FS ? new_dir_on_3fs() : f->dir.path);
        if (try_open_for(url, f->kind->header, f->kind->setting, f->kind->local_ranks,
                         &f->tier))
            fail_msg("%s: %s", url, kvt__why());
    }
    f->ops = f->tier->ops;
    if (has_gpu(f->kind))
        open_with_gpu(f);
    if (f->kind->place == IN_MEMORY)
        memory_level_open(f->tier);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    if (f->kind->place >= ON_3FS)
        index_dir_remove(f->ops->private_dir(f->tier));
    slot_tier = NULL;
    if (f->kind->place == IN_MEMORY)
        memory_level_close(f->tier);
    f->ops->close(f->tier);
    if (f->gpu)
        close_gpu(f->gpu);
    if (slot_pool)
        close_slot_pool(); /* all slots are free */
    if (f->kind->place == HERE || is_bucket(f->kind))
        assert_int_equal(count_fds(), f->n_fds);
    temp_dir_remove(&f->dir);
    free(f);
    return 0;
}

/* ------------------------------------------------------------------------ programs */

struct promise {
    const char *name;
    CMUnitTestFunction fn;
    bool of_files;
};

/* A test of all tiers; FILE_CONTRACT: a test of tiers that find chunks by name.  The tier of shared
 * memory needs the index to find a chunk. */
#define CONTRACT(fn) { #fn, fn, false }
#define FILE_CONTRACT(fn) { #fn, fn, true }

#define MAX_TESTS 512

static struct {
    struct CMUnitTest tests[MAX_TESTS];
    char names[MAX_TESTS][128];
    size_t n;
    bool only_3fs, has_3fs, has_servers;
} contract;

static bool
can_be_had(const struct kind *kind)
{
    if (contract.only_3fs && kind->place != ON_3FS)
        return false;
    return is_bucket(kind) ? contract.has_servers
         : kind->place == ON_3FS ? contract.has_3fs
         : has_gpu(kind) ? vendors != NULL : true;
}

static void
add_promises(const struct promise *promises, size_t n)
{
    for (size_t i = 0; i < n * N_KINDS; i++) {
        const struct kind *kind = &kinds[i / n];
        const struct promise *p = &promises[i % n];
        size_t at = contract.n;

        if ((p->of_files && kind->place == IN_MEMORY) || !can_be_had(kind))
            continue;
        if (at == MAX_TESTS)
            fail_msg("more than %d tests", MAX_TESTS);
        snprintf(contract.names[at], sizeof contract.names[at], "%s (%s)", p->name,
                 kind->name);
        contract.tests[contract.n++] = (struct CMUnitTest){ contract.names[at], p->fn,
                                                            setup, teardown,
                                                            (void *)kind };
    }
}

/* Add a test that uses no kind. */
static inline void
add_test(struct CMUnitTest test)
{
    contract.tests[contract.n++] = test;
}

/* Start the servers of the kinds.  If HF3FS_CLIENT is "library", test only kinds on 3FS, because
 * the other kinds do not use the library.  False: no kind can be tested. */
static bool
contract_begin(int argc, char **argv)
{
    static const char *const server_arguments[] = { "--tls", NULL };
    static const char *const express_arguments[] = {
        "--tls", "--bucket", S3_EXPRESS_BUCKET, "--domain", EXPRESS_DOMAIN, NULL };
    const char *missing = usrbiod_try(&usrbiod);

    contract.only_3fs = !strcmp(hf3fs_client(), "library");
    contract.has_3fs = !missing;
    if (missing)
        printf("skipped: hf3fs: %s\n", missing);
    if (!contract.only_3fs && argc == 7 && find_helper(argv[1], argv[2]))
        vendors = argv + 3;
    contract.has_servers = !contract.only_3fs &&
                           s3_server_start(&server, server_arguments) &&
                           s3_server_start(&express, express_arguments);
    if (!contract.has_servers && !contract.only_3fs)
        printf("no python3: s3 is left out\n");
    hf3fs_watch_log();
    return contract.has_3fs || !contract.only_3fs;
}

static int
contract_run(const char *name)
{
    if (contract.has_3fs)
        add_test((struct CMUnitTest)cmocka_unit_test(only_the_selected_client_was_used));
    int failed = _cmocka_run_group_tests(name, contract.tests, contract.n, NULL, NULL);
    s3_server_stop(&server);
    s3_server_stop(&express);
    if (vendors)
        forget_fakes();
    int status = contract.has_3fs ? usrbiod_end(&usrbiod) : 0;
    return failed || status;
}

#endif
