/* SPDX-License-Identifier: Apache-2.0
 *
 * Choice of the client, and protection against the library's aborts on wrong arguments.  Each
 * test runs in its own process, because a loaded library stays.
 *
 * Linked with --wrap=getrlimit64: a hard limit cannot be raised. */
#include "kvt-test.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "usrbio/usrbio.h"

static const char *fake_path, *incomplete_path;
static rlim_t hard_limit = 1024;

int __wrap_getrlimit64(int what, struct rlimit *limit);

int
__wrap_getrlimit64(int what, struct rlimit *limit)
{
    (void)what;
    *limit = (struct rlimit){ 1024, hard_limit };
    return 0;
}

/* Load the library from its path, so that the loader finds the library by its name from now on. */
static void
load_by_path(const char *path)
{
    if (!dlopen(path, RTLD_NOW | RTLD_LOCAL))
        abort();
}

/* Run a function in a child process, which succeeds or ends by abort(). */
static void
run(void (*child)(void), bool aborts)
{
    int status;

    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        if (aborts && !freopen("/dev/null", "w", stderr))
            _exit(1);
        child();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (aborts)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    else
        assert_int_equal(status, 0);
}

#define CHECK(x)                                                                       \
    do {                                                                               \
        if (!(x)) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #x, kvt__why());    \
            _exit(1);                                                                  \
        }                                                                              \
    } while (0)

static void
absent(void)
{
    const struct kvt__usrbio_api *api = NULL;

    CHECK(kvt__usrbio_choose("library", &api) == -ELIBACC);
    CHECK(strstr(kvt__why(), "libhf3fs_api_shared.so cannot be loaded ("));
    CHECK(strstr(kvt__why(), "): name the library's directory in LD_LIBRARY_PATH, or "));
    CHECK(!api);
    kvt__set_why("");
    CHECK(!kvt__usrbio_choose(NULL, &api) && api == &kvt__usrbio_own);
    CHECK(strstr(kvt__why(), "libhf3fs_api_shared.so cannot be loaded ("));
    CHECK(!kvt__usrbio_choose("", &api) && api == &kvt__usrbio_own);
}

static void
without_the_library_the_own_client_is_chosen(void **state)
{
    (void)state;
    run(absent, false);
}

static void
words_choose_the_client(void **state)
{
    const struct kvt__usrbio_api *api = NULL;

    (void)state;
    assert_int_equal(kvt__usrbio_choose("own", &api), 0);
    assert_ptr_equal(api, &kvt__usrbio_own);
    assert_string_equal(api->name, "own");
    api = NULL;
    assert_int_equal(kvt__usrbio_choose("Own", &api), -EINVAL);
    assert_string_equal(kvt__why(), "HF3FS_CLIENT is 'Own': use library or own, or leave "
                        "it out.");
    assert_null(api);
}

static void
present(void)
{
    const struct kvt__usrbio_api *api, *again;

    CHECK(!kvt__usrbio_choose("own", &api) && api == &kvt__usrbio_own);
    load_by_path(fake_path);
    CHECK(!kvt__usrbio_choose(NULL, &api) && !strcmp(api->name, "library"));
    CHECK(!kvt__usrbio_choose("library", &again) && again == api);
    CHECK(api->ior_size(256) == 28816);
    CHECK(api->reg_fd(0, 0) == EBADF);
    CHECK(!kvt__usrbio_choose("own", &api) && api == &kvt__usrbio_own);
    CHECK(!dlsym(RTLD_DEFAULT, "hf3fs_ior_size"));
}

static void
the_library_is_chosen_if_present(void **state)
{
    (void)state;
    run(present, false);
}

static void
of_another_version(void)
{
    const struct kvt__usrbio_api *api;

    load_by_path(incomplete_path);
    CHECK(kvt__usrbio_choose("library", &api) == -ENOSYS);
    CHECK(strstr(kvt__why(), "has no function hf3fs_extract_mount_point"));
    CHECK(!kvt__usrbio_choose(NULL, &api) && api == &kvt__usrbio_own);
    CHECK(strstr(kvt__why(), "has no function hf3fs_extract_mount_point"));
}

static void
a_library_without_a_function_is_refused_by_its_name(void **state)
{
    (void)state;
    run(of_another_version, false);
}

/* ------------------------------------------------------------------ guards */

static void
with_a_high_limit(void)
{
    const struct kvt__usrbio_api *api;

    CHECK(kvt__usrbio_choose("library", &api) == -EMFILE);
    CHECK(strstr(kvt__why(), "libhf3fs_api_shared.so"));
    CHECK(strstr(kvt__why(), "prlimit"));
    CHECK(strstr(kvt__why(), "HF3FS_CLIENT=own"));
    CHECK(hard_limit == RLIM_INFINITY ? !!strstr(kvt__why(), "is infinite")
                                      : !!strstr(kvt__why(), "8191 MiB"));
    CHECK(!kvt__usrbio_choose(NULL, &api) && api == &kvt__usrbio_own);
    CHECK(strstr(kvt__why(), "prlimit"));
    hard_limit = 1048576;
    CHECK(kvt__usrbio_choose("library", &api) == -ELIBACC); /* tries to load the library */
}

static void
a_limit_that_the_librarys_table_cannot_have_is_refused(void **state)
{
    (void)state;
    hard_limit = RLIM_INFINITY;
    run(with_a_high_limit, false);
    hard_limit = 1073741816;
    run(with_a_high_limit, false);
    hard_limit = 1024;
}

static void
calls_that_would_end_the_process(void)
{
    const struct kvt__usrbio_api *api;
    struct kvt__hf3fs_iov iov;
    char mount[64];

    load_by_path(fake_path);
    CHECK(!kvt__usrbio_choose("library", &api));
    CHECK(api->extract_mount_point(mount, sizeof mount, "/none/at/all") == -1);
    CHECK(api->extract_mount_point(mount, sizeof mount, NULL) == -1);
    CHECK(api->extract_mount_point(mount, sizeof mount, "/proc") == -1);
    CHECK(kvt__usrbio_alloc_memory(api, &iov, "/tmp", 4096, 8192, -1) == -EINVAL);
}

static void *
fake_function(const char *name)
{
    void *handle = dlopen(fake_path, RTLD_NOW | RTLD_LOCAL);
    void *function = handle ? dlsym(handle, name) : NULL;

    if (!function)
        _exit(1);
    return function;
}

static void
ask_for_a_missing_path(void)
{
    int (*extract)(char *, int, const char *);
    void *function = fake_function("hf3fs_extract_mount_point");
    char mount[64];

    memcpy(&extract, &function, sizeof function);
    extract(mount, sizeof mount, "/none/at/all");
}

static void
ask_for_blocks_larger_than_the_whole(void)
{
    int (*create)(struct kvt__hf3fs_iov *, const char *, size_t, size_t, int);
    void *function = fake_function("hf3fs_iovcreate");
    struct kvt__hf3fs_iov iov;

    memcpy(&create, &function, sizeof function);
    create(&iov, "/tmp", 4096, 8192, -1);
}

static void
calls_that_would_abort_are_refused(void **state)
{
    (void)state;
    run(calls_that_would_end_the_process, false);
    run(ask_for_a_missing_path, true);
    run(ask_for_blocks_larger_than_the_whole, true);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_the_library_the_own_client_is_chosen),
        cmocka_unit_test(words_choose_the_client),
        cmocka_unit_test(the_library_is_chosen_if_present),
        cmocka_unit_test(a_library_without_a_function_is_refused_by_its_name),
        cmocka_unit_test(a_limit_that_the_librarys_table_cannot_have_is_refused),
        cmocka_unit_test(calls_that_would_abort_are_refused),
    };

    if (argc < 3) {
        fprintf(stderr, "usage: %s LIBHF3FS_API_SHARED_SO INCOMPLETE\n", argv[0]);
        return 77;
    }
    fake_path = argv[1];
    incomplete_path = argv[2];
    return cmocka_run_group_tests_name("usrbio library", tests, NULL, NULL);
}
