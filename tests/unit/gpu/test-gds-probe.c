/* SPDX-License-Identifier: Apache-2.0
 *
 * Probes of direct transfers: the helper program names the layer that fails, a hanging helper is
 * killed at the deadline, and results that hold until a reboot are cached. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fakes/cufile/gds.h"
#include "files.h"
#include "kvt-test.h"
#include "temp-dir.h"

#include "base/error.h"
#include "gpu/gds/probe.h"

static const char *helper, *fakes;
static struct temp_dir dir, keep;
static struct kvt__gds_finding found;

/* Let the helper find the fake libraries of a vendor, with two GPUs. */
static void
use(const char *vendor, const char *switches)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", fakes, vendor);
    setenv("LD_LIBRARY_PATH", path, 1);
    setenv("GDS_FAKE", switches, 1);
    unsetenv("GPU_FAKE");
    unsetenv("GPU_LOST");
    unsetenv("NO_MODULES");
}

static int
probe_within(enum kvt__gds_kind kind, int64_t ms)
{
    const struct kvt__gds_probe_params how = { helper, keep.path, ms, false };

    return kvt__gds_probe(&how, kind, 0, dir.path, &found);
}

static int
probe(enum kvt__gds_kind kind)
{
    return probe_within(kind, 60000); /* enough for a sanitizer on a busy machine */
}

static void
expect(int err, enum kvt__gds_layer layer, int code, const char *text)
{
    assert_true(err < 0);
    if (!strstr(found.text, text))
        fail_msg("no '%s' in '%s'", text, found.text);
    assert_string_equal(found.text, kvt__why());
    assert_int_equal(found.layer, layer);
    assert_int_equal(found.code, code);
    assert_int_equal(kvt__gds_failure().layer, layer);
}

static int
count_files(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *entry;
    int n = 0;

    while (d && (entry = readdir(d)))
        n += entry->d_name[0] != '.' || strstr(entry->d_name, "probe");
    if (d)
        closedir(d);
    return n;
}

static char *
cached_file(char *out, size_t size)
{
    char path[320];
    struct dirent *entry;

    snprintf(path, sizeof path, "%s/kvtier-%u", keep.path, (unsigned)geteuid());
    DIR *d = opendir(path);
    assert_non_null(d);
    *out = '\0';
    while ((entry = readdir(d)))
        if (!strncmp(entry->d_name, "gds-", 4))
            snprintf(out, size, "%s/%s", path, entry->d_name);
    closedir(d);
    return out;
}

static int
clean(void **state)
{
    (void)state;
    temp_dir_remove(&keep);
    temp_dir_make(&keep);
    return 0;
}

/* ----------------------------------------------------------------------- results */

static void
a_complete_installation_succeeds(void **state)
{
    (void)state;
    use("cufile", "");
    assert_int_equal(probe(KVT__GDS_CUFILE), 0);
    assert_int_equal(found.layer, KVT__GDS_NO_LAYER);
    assert_string_equal(found.library, "libcufile 1.20");
    assert_non_null(strstr(found.file, "libcufile.so.0"));
    assert_false(found.p2pdma);
    assert_false(found.cached);
    use("hipfile", "piece=0,setter=0");
    assert_int_equal(probe(KVT__GDS_HIPFILE), 0);
    assert_string_equal(found.library, "libhipfile 0.2.0");
    assert_int_equal(count_files(dir.path), 0); /* the scratch files are deleted */
}

static void
without_nvidia_fs_p2pdma_does(void **state)
{
    (void)state;
    use("cufile", "nvfs=0,p2pdma=1");
    assert_int_equal(probe(KVT__GDS_CUFILE), 0);
    assert_true(found.p2pdma);
}

static void
each_failed_layer_is_reported(void **state)
{
    static const struct {
        const char *vendor, *switches;
        enum kvt__gds_layer layer;
        int code;
        const char *text;
    } cases[] = {
        { "none", "", KVT__GDS_LIBRARY, ENODEV, "libcufile.so.0 cannot be loaded" },
        { "cufile", "nvfs=0", KVT__GDS_MODULE, 5001, "modprobe nvidia-fs" },
        { "cufile", "nvfs=0,setter=0", KVT__GDS_MODULE, 5001, "compat mode" },
        { "cufile", "open=5033", KVT__GDS_MODULE, 5033, "5033" },
        { "cufile", "file=5030", KVT__GDS_UDEV, 5030, "/run/udev" },
        { "cufile", "file=5008", KVT__GDS_MODULE, 5008, "use_pci_p2pdma" },
        { "cufile", "buffer=5036", KVT__GDS_MEMORY, 5036, "BAR1" },
        { "cufile", "write=5010", KVT__GDS_MODULE, 5010, "cuFileWrite returns 5010" },
        { "cufile", "read=5,form=1", KVT__GDS_IO, EIO, "cuFileRead: Input/output" },
        { "cufile", "short=1", KVT__GDS_IO, EIO, "524288 of 1048576" },
        { "cufile", "damage=1", KVT__GDS_IO, EBADMSG, "differ from the written bytes" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        use(cases[i].vendor, cases[i].switches);
        expect(probe(KVT__GDS_CUFILE), cases[i].layer, cases[i].code, cases[i].text);
    }
    assert_int_equal(count_files(dir.path), 0);
}

static void
the_gpu_is_tested_first(void **state)
{
    (void)state;
    use("cufile", "hang=1");
    setenv("GPU_FAKE", "0", 1);
    expect(probe(KVT__GDS_CUFILE), KVT__GDS_GPU, 100,
           "cuInit returns 100 (CUDA_ERROR_NO_DEVICE)");
    use("hipfile", "hang=1");
    setenv("GPU_FAKE", "0", 1);
    expect(probe(KVT__GDS_HIPFILE), KVT__GDS_GPU, 101,
           "hipInit returns 101 (hipErrorInvalidDevice)");
}

static void
a_missing_gpu_is_reported(void **state)
{
    const struct kvt__gds_probe_params how = { helper, keep.path, 60000, false };

    (void)state;
    use("cufile", "");
    expect(kvt__gds_probe(&how, KVT__GDS_CUFILE, 3, dir.path, &found), KVT__GDS_GPU, ENODEV,
           "there is no GPU 3: the driver counts 2");
}

static void
without_proc_modules_the_driver_is_not_opened(void **state)
{
    (void)state;
    use("cufile", "hang=1");
    setenv("NO_MODULES", "1", 1);
    expect(probe(KVT__GDS_CUFILE), KVT__GDS_MODULE, ENOENT, "/proc/modules cannot be read");
}

static void
an_unwritable_directory_is_reported(void **state)
{
    const struct kvt__gds_probe_params how = { helper, keep.path, 60000, false };

    (void)state;
    use("cufile", "");
    expect(kvt__gds_probe(&how, KVT__GDS_CUFILE, 0, "/proc/self", &found),
           KVT__GDS_FILE_SYSTEM, found.code, "make a file in /proc/self: ");
}

static void
a_missing_helper_is_reported(void **state)
{
    const struct kvt__gds_probe_params none = { "/nowhere/kvtier-gds-probe", keep.path, 60000,
                                                false };
    const struct kvt__gds_probe_params silent = { "/bin/true", keep.path, 60000, false };

    (void)state;
    use("cufile", "");
    expect(kvt__gds_probe(&none, KVT__GDS_CUFILE, 0, dir.path, &found), KVT__GDS_HELPER,
           ENOENT, "start /nowhere");
    expect(kvt__gds_probe(&silent, KVT__GDS_CUFILE, 0, dir.path, &found), KVT__GDS_HELPER,
           EIO, "ended without a result");
}

/* -------------------------------------------------------------------- several GPUs */

static struct kvt__gds_finding results[KVT__GDS_MAX_GPUS];
static int n_results;

static void
on_probed(void *ctx, int ordinal, const struct kvt__gds_finding *f)
{
    (void)ctx;
    assert_int_equal(ordinal, n_results);
    results[n_results++] = *f;
}

static void
probe_all(void)
{
    const struct kvt__gds_probe_params how = { helper, keep.path, 60000, true };

    n_results = 0;
    kvt__gds_probe_all(&how, KVT__GDS_CUFILE, dir.path, on_probed, NULL);
}

static void
each_counted_gpu_is_probed(void **state)
{
    (void)state;
    use("cufile", "");
    setenv("GPU_FAKE", "4", 1);
    setenv("GPU_LOST", "2", 1);
    probe_all();
    assert_int_equal(n_results, 4);
    for (int i = 0; i < n_results; i++) {
        assert_int_equal(results[i].n_gpus, 4);
        assert_int_equal(results[i].layer, i == 2 ? KVT__GDS_GPU : KVT__GDS_NO_LAYER);
        assert_int_equal(results[i].code, i == 2 ? 46 : 0);
    }
    setenv("GPU_LOST", "0", 1); /* the driver counts a lost GPU, too */
    probe_all();
    assert_int_equal(n_results, 4);
    assert_int_equal(results[0].code, 46);
    assert_int_equal(results[3].layer, KVT__GDS_NO_LAYER);
    assert_int_equal(count_files(dir.path), 0);
}

static void
one_result_if_no_gpu_is_counted(void **state)
{
    (void)state;
    use("none", "");
    probe_all();
    assert_int_equal(n_results, 1);
    assert_int_equal(results[0].n_gpus, 0);
    assert_int_equal(results[0].layer, KVT__GDS_LIBRARY);
}

/* --------------------------------------------------------------------------- time */

/* Start a helper that hangs at this layer.  If the deadline ended the helper before this layer, the
 * helper got too little CPU time: retry with twice the time. */
static void
expect_hang(enum kvt__gds_layer layer, const char *text)
{
    char want[128];
    int64_t ms = 1500;
    int err;

    while ((err = probe_within(KVT__GDS_CUFILE, ms)) == -ETIMEDOUT && found.layer != layer &&
           ms < 60000) {
        clean(NULL);
        ms *= 2;
    }
    snprintf(want, sizeof want, "no answer for %g s, at %s", (double)ms / 1000, text);
    expect(err, layer, ETIMEDOUT, want);
}

static void
a_hang_ends_and_is_cached(void **state)
{
    (void)state;
    use("cufile", "hang=1");
    expect_hang(KVT__GDS_DRIVER, "the library's driver");
    assert_false(found.cached);
    use("cufile", "");
    expect(probe(KVT__GDS_CUFILE), KVT__GDS_DRIVER, ETIMEDOUT, "kvtier doctor probes again");
    assert_true(found.cached);
}

static void
a_hanging_read_is_reported(void **state)
{
    (void)state;
    use("cufile", "hang=2");
    expect_hang(KVT__GDS_IO, "reading and writing");
    assert_int_equal(count_files(dir.path), 0);
}

/* -------------------------------------------------------------------------- cache */

static void
a_success_is_cached(void **state)
{
    struct kvt__gds_probe_params how = { helper, keep.path, 60000, true };

    (void)state;
    use("cufile", "nvfs=0,p2pdma=1");
    assert_int_equal(probe(KVT__GDS_CUFILE), 0);
    assert_false(found.cached);
    use("cufile", "open=5033");
    assert_int_equal(probe(KVT__GDS_CUFILE), 0);
    assert_true(found.cached);
    assert_true(found.p2pdma);
    assert_string_equal(found.library, "libcufile 1.20");
    expect(kvt__gds_probe(&how, KVT__GDS_CUFILE, 0, dir.path, &found), KVT__GDS_MODULE,
           5033, "5033"); /* `again` ignores the cache */
    use("hipfile", ""); /* another library has another key */
    assert_int_equal(probe(KVT__GDS_HIPFILE), 0);
    assert_false(found.cached);
}

static void
a_failure_that_can_be_repaired_is_probed_again(void **state)
{
    (void)state;
    use("cufile", "file=5030");
    expect(probe(KVT__GDS_CUFILE), KVT__GDS_UDEV, 5030, "udev");
    use("cufile", "");
    assert_int_equal(probe(KVT__GDS_CUFILE), 0);
}

static void
a_corrupt_cached_result_is_probed_again(void **state)
{
    static const char *const damage[] = { "", "{", "{\"key\":\"1\"}", "null", "[[[[",
                                          "{\"key\":7,\"layer\":[]}" };
    char path[640], whole[4096];

    (void)state;
    use("cufile", "");
    assert_int_equal(probe(KVT__GDS_CUFILE), 0);
    FILE *file = fopen(cached_file(path, sizeof path), "r");
    assert_non_null(file);
    size_t n = fread(whole, 1, sizeof whole - 1, file);
    fclose(file);
    whole[n] = '\0';
    for (size_t i = 0; i < sizeof damage / sizeof *damage; i++) {
        write_file(path, damage[i], strlen(damage[i]));
        assert_int_equal(probe(KVT__GDS_CUFILE), 0);
        assert_false(found.cached);
    }
    char *word = strstr(whole, "\"none\""); /* replaced by an unknown layer */
    assert_non_null(word);
    memcpy(word, "\"nine\"", 6);
    write_file(path, whole, n);
    assert_int_equal(probe(KVT__GDS_CUFILE), 0);
    assert_false(found.cached);
    assert_int_equal(probe(KVT__GDS_CUFILE), 0);
    assert_true(found.cached);
}

/* This process has loaded the library from a directory that the dynamic loader does not search, as
 * torch does.  This test must be the last: the library stays loaded. */
static void
the_library_of_this_process_is_probed(void **state)
{
    char path[512];

    (void)state;
    snprintf(path, sizeof path, "%s/cufile/libcufile.so.0", fakes);
    use("none", "");
    expect(probe(KVT__GDS_CUFILE), KVT__GDS_LIBRARY, ENODEV, "cannot be loaded");
    assert_non_null(dlopen(path, RTLD_NOW | RTLD_LOCAL));
    probe(KVT__GDS_CUFILE); /* finds no GPU, or the GPU of this machine */
    assert_int_not_equal(found.layer, KVT__GDS_LIBRARY);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_complete_installation_succeeds, clean),
        cmocka_unit_test_setup(without_nvidia_fs_p2pdma_does, clean),
        cmocka_unit_test_setup(each_failed_layer_is_reported, clean),
        cmocka_unit_test_setup(the_gpu_is_tested_first, clean),
        cmocka_unit_test_setup(a_missing_gpu_is_reported, clean),
        cmocka_unit_test_setup(without_proc_modules_the_driver_is_not_opened, clean),
        cmocka_unit_test_setup(an_unwritable_directory_is_reported, clean),
        cmocka_unit_test_setup(a_missing_helper_is_reported, clean),
        cmocka_unit_test_setup(each_counted_gpu_is_probed, clean),
        cmocka_unit_test_setup(one_result_if_no_gpu_is_counted, clean),
        cmocka_unit_test_setup(a_hang_ends_and_is_cached, clean),
        cmocka_unit_test_setup(a_hanging_read_is_reported, clean),
        cmocka_unit_test_setup(a_success_is_cached, clean),
        cmocka_unit_test_setup(a_failure_that_can_be_repaired_is_probed_again, clean),
        cmocka_unit_test_setup(a_corrupt_cached_result_is_probed_again, clean),
        cmocka_unit_test_setup(the_library_of_this_process_is_probed, clean),
    };

    if (argc < 3)
        return 1;
    if (!gds_probe_runs(argv[1])) {
        printf("skipped: %s cannot be started here\n", argv[1]);
        return 77;
    }
    helper = argv[1];
    fakes = argv[2];
    temp_dir_make(&dir);
    temp_dir_make(&keep);
    int failed = cmocka_run_group_tests_name("gds, what works", tests, NULL, NULL);
    temp_dir_remove(&keep);
    temp_dir_remove(&dir);
    return failed;
}
