/* SPDX-License-Identifier: Apache-2.0
 *
 * Test NVIDIA's real libcufile, which scripts/cufile-env fetches: ABI and status codes as kvtier
 * declares them, as far as a machine without a GPU allows.  The library reads /proc/modules, in an
 * endless loop if the file is missing, and udev's record of the file system's device.  This test
 * provides both: the record is in a mount namespace of this process. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "kvt-test.h"
#include "temp-dir.h"

#include "base/error.h"
#include "gpu/gds/gds.h"
#include "gpu/gds/library.h"
#include "gpu/gds/probe.h"

#define MIB ((size_t)1 << 20)

static const char *helper, *fakes;
static char libraries[512];
static struct temp_dir dir, keep;
static struct kvt__gds_library library;
static long (*use_count)(void);
static bool has_udev;

/* Ignore memory that the library does not free. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);

const char *
__lsan_default_suppressions(void)
{
    return "leak:libcufile.so.0\n";
}

/* Replace the C library's fopen(), also for libcufile. */
__attribute__((visibility("default"))) FILE *fopen(const char *path, const char *mode);

FILE *
fopen(const char *path, const char *mode)
{
    static FILE *(*real)(const char *, const char *);

    if (!real)
        real = (FILE * (*)(const char *, const char *))(uintptr_t)dlsym(RTLD_NEXT, "fopen");
    return real(strcmp(path, "/proc/modules") ? path : "/dev/null", mode);
}

/* ----------------------------------------------------------------------- the place */

static bool
find_libraries(const char *script)
{
    char command[512];

    snprintf(command, sizeof command, "'%s' --check 2>/dev/null", script);
    FILE *from = popen(command, "r");
    if (!from || !fgets(libraries, sizeof libraries, from))
        libraries[0] = '\0';
    libraries[strcspn(libraries, "\n")] = '\0';
    return from && !pclose(from) && libraries[0];
}

/* Make a record of udev for the device of the test's directory, in a new mount namespace. */
static bool
make_udev(void)
{
    char path[64];
    struct stat st;

    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("run", "/run", "tmpfs", 0, NULL) || mkdir("/run/udev", 0755) ||
        mkdir("/run/udev/data", 0755) || stat(dir.path, &st))
        return false;
    snprintf(path, sizeof path, "/run/udev/data/b%u:%u", major(st.st_dev),
             minor(st.st_dev));
    FILE *to = fopen(path, "w");
    return to && fputs("E:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n", to) >= 0 &&
           !fclose(to);
}

static int
load(void **state)
{
    char path[600];

    (void)state;
    snprintf(path, sizeof path, "%s/libcufile.so.0", libraries);
    if (kvt__gds_load(KVT__GDS_CUFILE, path, &library))
        fail_msg("%s", kvt__why());
    void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void *function = dlsym(handle, "cuFileUseCount");
    memcpy(&use_count, &function, sizeof use_count);
    return 0;
}

/* ----------------------------------------------------------------------- the tests */

static void
functions_and_version_are_found(void **state)
{
    char version[24];

    (void)state;
    kvt__gds_version(&library, version, sizeof version);
    assert_string_equal(version, "1.20");
    assert_non_null(library.set_bool);
    assert_non_null(library.properties);
}

static void
compat_mode_is_refused(void **state)
{
    struct kvt__gds *gds;

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kvt__gds_driver_open(KVT__GDS_CUFILE, i, &gds), -ENODEV);
        assert_int_equal(kvt__gds_failure().layer, KVT__GDS_MODULE);
        assert_int_equal(kvt__gds_failure().code, 5001);
        assert_int_equal(use_count(), 0);
    }
    assert_int_equal(library.driver_open().code, 0); /* as another user of the library */
    assert_int_equal(use_count(), 1);
    assert_int_equal(kvt__gds_driver_open(KVT__GDS_CUFILE, false, &gds), -ENODEV);
    assert_non_null(strstr(kvt__why(), "compat mode"));
    assert_int_equal(use_count(), 1);
    assert_int_equal(library.driver_close().code, 0);
    assert_int_equal(use_count(), 0);
}

static void
properties_have_our_layout(void **state)
{
    struct kvt__cufile_props props;

    (void)state;
    assert_int_equal(library.driver_open().code, 0);
    memset(&props, 0xff, sizeof props);
    assert_int_equal(library.properties(&props).code, 0);
    assert_int_equal(props.nvfs_major, 0);
    assert_int_equal(props.max_direct_io_size, 16384);
    assert_int_equal(props.control_flags, KVT__GDS_COMPAT_ALLOWED);
    assert_int_equal(props.batch_size, 128);
    assert_int_equal(props.batch_timeout_ms, 5);
    library.driver_close();
}

static ssize_t
move(void *handle, unsigned char *base, size_t bytes, off_t offset, off_t at, bool to_file)
{
    errno = 0;
    ssize_t got = to_file ? library.write(handle, base, bytes, offset, at)
                          : library.read(handle, base, bytes, offset, at);
    return kvt__gds_check_result(KVT__GDS_CUFILE, to_file ? KVT__GDS_WRITE : KVT__GDS_READ, got,
                                 errno);
}

static void
move_all(void *handle, unsigned char *base)
{
    unsigned char *sent = malloc(4 * MIB);

    assert_non_null(sent);
    for (size_t i = 0; i < 4 * MIB; i++)
        base[i] = (unsigned char)(i * 7 + i / 251);
    memcpy(sent, base, 4 * MIB);
    assert_int_equal(library.add_buffer(base, 4 * MIB, 0).code, 0);
    assert_int_equal(library.add_buffer(base, 4 * MIB, 0).code, 5023);
    assert_int_equal(move(handle, base, 3 * MIB, 4096, 65536, true), 3 * MIB);
    memset(base, 0, 4 * MIB);
    assert_int_equal(move(handle, base, 3 * MIB, 4096, 65536, false), 3 * MIB);
    assert_memory_equal(base + 65536, sent + 65536, 3 * MIB);
    assert_int_equal(move(handle, base, MIB, 3 * MIB, 0, false), 4096); /* end of the file */
    assert_int_equal(move(handle, base, 4 * MIB, 0, 4096, false), -EFAULT);
    assert_int_equal(kvt__gds_failure().code, 5017);
    assert_int_equal(move(NULL, base, 4096, 0, 0, false), -EINVAL);
    assert_int_equal(library.remove_buffer(base).code, 0);
    assert_int_equal(library.remove_buffer(base).code, 5024);
    free(sent);
}

/* Without a GPU the library has only its compat mode. */
static void
transfers_are_exact(void **state)
{
    struct kvt__gds_descr descr = { .type = KVT__GDS_FD };
    void *handle = NULL, *again = NULL;
    char path[300];

    (void)state;
    if (!has_udev)
        skip();
    snprintf(path, sizeof path, "%s/file", dir.path);
    descr.fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    assert_true(descr.fd >= 0);
    unsigned char *base = aligned_alloc(65536, 4 * MIB);
    assert_non_null(base);
    assert_int_equal(library.driver_open().code, 0);
    assert_int_equal(library.add_file(&handle, &descr).code, 0);
    assert_int_equal(library.add_file(&again, &descr).code, 5028);
    move_all(handle, base);
    library.remove_file(handle);
    library.driver_close();
    assert_int_equal(use_count(), 0);
    free(base);
    close(descr.fd);
}

static void
a_file_without_udev_record_is_refused(void **state)
{
    struct kvt__gds_descr descr = { .type = KVT__GDS_FD };
    void *handle = NULL;
    char path[300];

    (void)state;
    if (!has_udev || umount("/run") || mount("run", "/run", "tmpfs", 0, NULL))
        skip();
    snprintf(path, sizeof path, "%s/other", dir.path);
    descr.fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    assert_true(descr.fd >= 0);
    assert_int_equal(library.driver_open().code, 0);
    struct kvt__gds_status status = library.add_file(&handle, &descr);
    assert_true(kvt__gds_fail_call(KVT__GDS_CUFILE, KVT__GDS_ADD_FILE, status) < 0);
    assert_int_equal(kvt__gds_failure().layer, KVT__GDS_UDEV);
    library.driver_close();
    close(descr.fd);
}

/* The helper uses a fake GPU driver, and a fake check of /proc/modules (any-modules.c).  If the
 * library were in compat mode, the library would hang without /proc/modules. */
static void
the_helper_reports_the_missing_module(void **state)
{
    const struct kvt__gds_probe_params how = { helper, keep.path, 60000, true };
    struct kvt__gds_finding found;
    char path[1200];

    (void)state;
    snprintf(path, sizeof path, "%s:%s/cufile", libraries, fakes);
    setenv("LD_LIBRARY_PATH", path, 1);
    assert_true(kvt__gds_probe(&how, KVT__GDS_CUFILE, 0, dir.path, &found) < 0);
    assert_int_equal(found.layer, KVT__GDS_MODULE);
    assert_int_equal(found.code, 5001);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_and_version_are_found),
        cmocka_unit_test(compat_mode_is_refused),
        cmocka_unit_test(properties_have_our_layout),
        cmocka_unit_test(transfers_are_exact),
        cmocka_unit_test(a_file_without_udev_record_is_refused),
        cmocka_unit_test(the_helper_reports_the_missing_module),
    };

    if (argc < 4)
        return 1;
    helper = argv[2];
    fakes = argv[3];
#ifndef __x86_64__
    printf("skipped: scripts/cufile-env fetches the library for x86-64\n");
    return 77;
#endif
    if (!find_libraries(argv[1])) {
        printf("skipped: libcufile is not here; scripts/cufile-env fetches it\n");
        return 77;
    }
    setenv("CUFILE_LOGFILE_PATH", "/dev/null", 1);
    temp_dir_make(&dir);
    temp_dir_make(&keep);
    has_udev = make_udev();
    int failed = cmocka_run_group_tests_name("libcufile", tests, load, NULL);
    temp_dir_remove(&keep);
    temp_dir_remove(&dir);
    return failed;
}
