/* SPDX-License-Identifier: Apache-2.0
 *
 * One line of the log reports the data path of a directory and the reason.  If the configuration
 * requires the direct path, the error names the missing layer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "fakes/cufile/gds.h"
#include "kvt-test.h"
#include "temp-dir.h"

#include "conf/conf.h"
#include "tier/gds/choose.h"

static struct temp_dir dir, keep;
static struct kvt__gds_probe_params how;
static const char *fakes;
static struct kvt__gds_choice choice;
static struct kvt__gds_preference preference;

static void
use(const char *vendor, const char *switches)
{
    char path[512];

    snprintf(path, sizeof path, "%s/%s", fakes, vendor);
    setenv("LD_LIBRARY_PATH", path, 1);
    setenv("GDS_FAKE", switches, 1);
}

static int
choose(const char *const *settings)
{
    struct kvt_config *config = config_with(settings);

    kvt__gds_read_preference(config, &preference);
    int err = kvt__gds_choose(&preference, &how, 0, dir.path, &choice);

    kvt_config_free(config);
    return err;
}

static void
expect_text(const char *text, const char *want)
{
    if (!strstr(text, want))
        fail_msg("no '%s' in '%s'", want, text);
}

static void
the_working_library_is_chosen(void **state)
{
    (void)state;
    use("cufile", "");
    assert_int_equal(choose(NULL), 0);
    assert_true(choice.direct);
    assert_int_equal(preference.kind, KVT__GDS_CUFILE);
    expect_text(choice.text, "GPU 0 reaches it directly by libcufile 1.20 (1 MiB");
    assert_int_equal(choose((const char *const[]){ "use_gds=true", NULL }), 0);
    expect_text(choice.text, "(found earlier");
    use("hipfile", "");
    assert_int_equal(choose((const char *const[]){ "gds_backend=hipfile", NULL }), 0);
    assert_int_equal(preference.kind, KVT__GDS_HIPFILE);
    expect_text(choice.text, "libhipfile 0.2.0");
}

static void
without_direct_transfers_the_line_names_the_reason(void **state)
{
    (void)state;
    use("cufile", "file=5030");
    how.no_cache = true;
    assert_int_equal(choose(NULL), 0);
    assert_false(choice.direct);
    expect_text(choice.text, "through host memory; direct transfers lack udev: ");
    expect_text(choice.text, "/run/udev");
    assert_int_equal(choose((const char *const[]){ "use_gds=false", NULL }), 0);
    assert_false(choice.direct);
    expect_text(choice.text, "use_gds is false");
    assert_int_equal(choose((const char *const[]){ "gds_backend=mufile", NULL }), 0);
    expect_text(choice.text, "kvtier does not use muFile");
    how.no_cache = false;
}

static void
a_required_but_missing_library_is_an_error(void **state)
{
    (void)state;
    use("cufile", "nvfs=0");
    how.no_cache = true;
    assert_int_equal(choose((const char *const[]){ "use_gds=true", NULL }), -ENODEV);
    assert_string_equal(choice.text, kvt__why());
    expect_text(choice.text, "use_gds is true (");
    expect_text(choice.text, "and nvidia-fs or P2PDMA is missing for ");
    expect_text(choice.text, "modprobe nvidia-fs");
    use("none", "");
    assert_int_equal(choose((const char *const[]){ "gds_backend=hipfile", NULL }), -ENODEV);
    expect_text(choice.text, "gds_backend is hipfile (");
    expect_text(choice.text, "and the library is missing for ");
    how.no_cache = false;
}

static void
without_a_gpu_no_probe_runs(void **state)
{
    struct kvt_config *config = config_with(NULL);

    (void)state;
    use("cufile", "hang=1");
    kvt__gds_read_preference(config, &preference);
    assert_int_equal(kvt__gds_choose(&preference, &how, -1, dir.path, &choice), 0);
    expect_text(choice.text, "direct transfers lack the GPU");
    kvt_config_free(config);
}

/* ------------------------------------------------------------------------ doctor */

struct told {
    int n, n_bad;
    char text[3][1024];
};

static void
take(void *ctx, const char *about, int status, const char *text)
{
    struct told *told = ctx;

    assert_true(told->n < 3);
    told->n_bad += status != 0;
    snprintf(told->text[told->n++], sizeof told->text[0], "%s: %s", about, text);
}

static void
doctor_probes_each_gpu_and_directory_again(void **state)
{
    struct kvt_config *config = config_with((const char *const[]){ "use_gds=true", NULL });
    struct told told = { 0 };
    char list[600];

    (void)state;
    use("cufile", "");
    assert_int_equal(choose(NULL), 0); /* caches the result, which the doctor must not use */
    use("cufile", "file=5008");
    snprintf(list, sizeof list, " %s , %s/none", dir.path, dir.path);
    kvt__gds_check(config, &how, list, &(struct kvt__reporter){ .fn = take, .ctx = &told });
    assert_int_equal(told.n, 3);
    assert_int_equal(told.n_bad, 2);
    expect_text(told.text[0], "GPU 0: use_gds is true");
    expect_text(told.text[1], "GPU 1: use_gds is true");
    expect_text(told.text[1], "use_pci_p2pdma");
    expect_text(told.text[2], "gds: ");
    expect_text(told.text[2], "/none does not exist yet");
    kvt_config_free(config);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_working_library_is_chosen),
        cmocka_unit_test(without_direct_transfers_the_line_names_the_reason),
        cmocka_unit_test(a_required_but_missing_library_is_an_error),
        cmocka_unit_test(without_a_gpu_no_probe_runs),
        cmocka_unit_test(doctor_probes_each_gpu_and_directory_again),
    };

    if (argc < 3)
        return 1;
    if (!gds_probe_runs(argv[1])) {
        printf("skipped: %s cannot be started here\n", argv[1]);
        return 77;
    }
    temp_dir_make(&dir);
    temp_dir_make(&keep);
    how = (struct kvt__gds_probe_params){ argv[1], keep.path, 60000, false };
    fakes = argv[2];
    int failed = cmocka_run_group_tests_name("gds, choice", tests, NULL, NULL);
    temp_dir_remove(&keep);
    temp_dir_remove(&dir);
    return failed;
}
