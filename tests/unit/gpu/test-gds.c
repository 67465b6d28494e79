/* SPDX-License-Identifier: Apache-2.0
 *
 * cuFile and hipFile behind one interface: every open has a close, a failure has the library's code
 * and a remedy, and a transfer is complete. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fakes/cufile/gds.h"
#include "kvt-test.h"
#include "temp-dir.h"

#include "base/error.h"
#include "gpu/gds/gds.h"
#include "gpu/gds/library.h"

#define MIB ((size_t)1 << 20)

static char **paths; /* the fake libraries: cuFile, hipFile, incomplete */
static struct temp_dir dir;
static gds_fake_set_fn *sets[2];
static struct gds_fake *fakes[2];

static int
load(enum kvt__gds_kind kind)
{
    void *handle = dlopen(paths[kind], RTLD_NOW | RTLD_LOCAL);

    if (!handle)
        fail_msg("%s", dlerror());
    sets[kind] = (gds_fake_set_fn *)(uintptr_t)dlsym(handle, GDS_FAKE_SET);
    gds_fake_fn *find = (gds_fake_fn *)(uintptr_t)dlsym(handle, GDS_FAKE);
    fakes[kind] = find();
    return 0;
}

/* An open fake library with a registered buffer and file. */
struct rig {
    enum kvt__gds_kind kind;
    struct kvt__gds *gds;
    struct kvt__gds_buffer buffer;
    struct kvt__gds_file file;
    unsigned char *memory;
    size_t bytes;
    int fd;
};

static int
open_file(void)
{
    char path[300];

    snprintf(path, sizeof path, "%s/file", dir.path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    return fd;
}

static void
set_up(struct rig *rig, enum kvt__gds_kind kind, size_t bytes, const char *switches)
{
    *rig = (struct rig){ .kind = kind, .bytes = bytes, .fd = open_file() };
    rig->memory = aligned_alloc(65536, bytes);
    assert_non_null(rig->memory);
    for (size_t i = 0; i < bytes; i++)
        rig->memory[i] = (unsigned char)(i * 7 + i / 4096);
    sets[kind](switches);
    assert_int_equal(kvt__gds_driver_open(kind, false, &rig->gds), 0);
    assert_int_equal(kvt__gds_buffer_open(rig->gds, rig->memory, bytes, &rig->buffer), 0);
    assert_int_equal(kvt__gds_file_open(rig->gds, rig->fd, &rig->file), 0);
}

static void
tear_down(struct rig *rig)
{
    kvt__gds_file_close(&rig->file);
    kvt__gds_buffer_close(&rig->buffer);
    kvt__gds_driver_close(rig->gds);
    close(rig->fd);
    free(rig->memory);
    assert_int_equal(fakes[rig->kind]->count, 0);
    assert_int_equal(fakes[rig->kind]->n_files, 0);
    assert_int_equal(fakes[rig->kind]->n_buffers, 0);
    assert_int_equal(fakes[rig->kind]->n_dead, 0);
    sets[rig->kind]("");
}

static int
open_cufile(struct kvt__gds **gds)
{
    return kvt__gds_driver_open(KVT__GDS_CUFILE, false, gds);
}

static void
expect_failure(int err, int want, enum kvt__gds_layer layer, int code, const char *text)
{
    assert_int_equal(err, want);
    assert_int_equal(kvt__gds_failure().layer, layer);
    assert_int_equal(kvt__gds_failure().code, code);
    if (!strstr(kvt__why(), text))
        fail_msg("no '%s' in '%s'", text, kvt__why());
}

/* ------------------------------------------------------------------- the driver */

static void
a_missing_library_is_named(void **state)
{
    struct kvt__gds *gds;

    (void)state;
    expect_failure(kvt__gds_driver_open(KVT__GDS_HIPFILE, false, &gds), -ENODEV,
                   KVT__GDS_LIBRARY, ENODEV, "libhipfile.so.0 cannot be loaded");
}

static void
a_missing_function_is_named(void **state)
{
    struct kvt__gds_library library;

    (void)state;
    expect_failure(kvt__gds_load(KVT__GDS_CUFILE, paths[2], &library), -ENOSYS,
                   KVT__GDS_LIBRARY, ENOSYS, "has no function cuFileDriverClose");
}

static void
the_driver_is_opened_once_and_closed_once(void **state)
{
    struct kvt__gds *a, *b;

    (void)state;
    for (enum kvt__gds_kind kind = 0; kind < 2; kind++) {
        sets[kind]("");
        int n = fakes[kind]->n_opens;
        assert_int_equal(kvt__gds_driver_open(kind, false, &a), 0);
        assert_int_equal(kvt__gds_driver_open(kind, false, &b), 0);
        assert_ptr_equal(a, b);
        assert_int_equal(fakes[kind]->count, 1);
        assert_string_equal(kvt__gds_describe(a), kind ? "libhipfile 0.2.0"
                                                       : "libcufile 1.20");
        assert_non_null(strstr(paths[kind], kvt__gds_path(a)));
        kvt__gds_driver_close(a);
        assert_int_equal(fakes[kind]->count, 1);
        kvt__gds_driver_close(b);
        assert_int_equal(fakes[kind]->count, 0);
        assert_int_equal(fakes[kind]->n_opens, n + 1);
    }
}

static void
compat_mode_is_never_used(void **state)
{
    struct kvt__gds *gds;

    (void)state;
    sets[0]("nvfs=0");
    expect_failure(open_cufile(&gds), -ENODEV, KVT__GDS_MODULE, 5001, "modprobe nvidia-fs");
    sets[0]("nvfs=0,setter=0"); /* a version without a setter stays in compat mode */
    expect_failure(open_cufile(&gds), -ENODEV, KVT__GDS_MODULE, 5001, "compat mode");
    assert_int_equal(fakes[0]->compat, 1);
    assert_int_equal(fakes[0]->count, 0); /* kvtier has closed the driver again */
    sets[0]("nvfs=0,compat=0,p2pdma=1");
    expect_failure(open_cufile(&gds), -ENODEV, KVT__GDS_MODULE, 5001, "nvidia-fs");
}

static void
p2pdma_is_requested_if_needed(void **state)
{
    struct kvt__gds *gds;

    (void)state;
    sets[0]("nvfs=0,p2pdma=1");
    assert_int_equal(kvt__gds_driver_open(KVT__GDS_CUFILE, true, &gds), 0);
    assert_int_equal(fakes[0]->compat, 0);
    kvt__gds_driver_close(gds);
}

static void
others_in_the_process_keep_the_driver(void **state)
{
    struct kvt__gds_library library;
    struct kvt__gds *gds;

    (void)state;
    sets[0]("");
    assert_int_equal(kvt__gds_load(KVT__GDS_CUFILE, paths[0], &library), 0);
    assert_int_equal(library.driver_open().code, 0);
    assert_int_equal(open_cufile(&gds), 0);
    assert_int_equal(fakes[0]->count, 2);
    kvt__gds_driver_close(gds);
    assert_int_equal(fakes[0]->count, 1);
    sets[0]("nvfs=0"); /* kvtier refuses a driver that another user opened in compat mode */
    expect_failure(open_cufile(&gds), -ENODEV, KVT__GDS_MODULE, 5001, "compat mode");
    assert_int_equal(fakes[0]->count, 1);
    library.driver_close();
}

static void
where_modules_cannot_be_read_nothing_is_called(void **state)
{
    struct kvt__gds *gds;
    int n = fakes[0]->n_opens;

    (void)state;
    setenv("NO_MODULES", "1", 1);
    sets[0]("");
    expect_failure(open_cufile(&gds), -ENODEV, KVT__GDS_MODULE, ENOENT,
                   "/proc/modules cannot be read");
    assert_int_equal(fakes[0]->n_opens, n);
    /* hipFile does not read /proc/modules. */
    assert_int_equal(kvt__gds_driver_open(KVT__GDS_HIPFILE, false, &gds), 0);
    kvt__gds_driver_close(gds);
    unsetenv("NO_MODULES");
}

/* ------------------------------------------------------------------------ codes */

static const struct {
    enum kvt__gds_kind kind;
    const char *switches;
    enum kvt__gds_layer layer;
    int code;
    const char *text;
} refusals[] = {
    { KVT__GDS_CUFILE, "open=5011,driver=100", KVT__GDS_GPU, 5011, "5011 and CUDA 100" },
    { KVT__GDS_HIPFILE, "open=5011,driver=100", KVT__GDS_GPU, 5011, "5011 and HIP 100" },
    { KVT__GDS_CUFILE, "open=5033", KVT__GDS_MODULE, 5033, "libcuda.so.1" },
    { KVT__GDS_CUFILE, "open=5004", KVT__GDS_MODULE, 5004, "another version" },
    { KVT__GDS_CUFILE, "open=5025", KVT__GDS_MODULE, 5025, "/dev/nvidia-fs" },
    { KVT__GDS_HIPFILE, "open=5025", KVT__GDS_MODULE, 5025, "/dev/kfd" },
    { KVT__GDS_CUFILE, "open=5077", KVT__GDS_DRIVER, 5077, "does not know" },
    { KVT__GDS_CUFILE, "file=5030", KVT__GDS_UDEV, 5030, "/run/udev" },
    { KVT__GDS_CUFILE, "file=5027", KVT__GDS_UDEV, 5027, "overlayfs" },
    { KVT__GDS_CUFILE, "file=5008", KVT__GDS_MODULE, 5008, "use_pci_p2pdma" },
    { KVT__GDS_HIPFILE, "file=5008", KVT__GDS_MODULE, 5008, "CONFIG_PCI_P2PDMA" },
    { KVT__GDS_CUFILE, "file=5018", KVT__GDS_FILE_SYSTEM, 5018, "regular files" },
    { KVT__GDS_CUFILE, "file=5019", KVT__GDS_FILE_SYSTEM, 5019, "flags" },
    { KVT__GDS_CUFILE, "file=5034", KVT__GDS_FILE_SYSTEM, 5034, "denylist" },
    { KVT__GDS_CUFILE, "buffer=5036", KVT__GDS_MEMORY, 5036, "BAR1" },
    { KVT__GDS_HIPFILE, "buffer=5013", KVT__GDS_MEMORY, 5013, "not device memory" },
    { KVT__GDS_CUFILE, "buffer=5077", KVT__GDS_MEMORY, 5077, "does not know" },
};

static void
each_code_has_a_layer_and_a_remedy(void **state)
{
    _Alignas(4096) static unsigned char memory[65536];
    struct kvt__gds_buffer buffer;
    struct kvt__gds_file file;
    struct kvt__gds *gds;
    int fd = open_file();

    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        enum kvt__gds_kind kind = refusals[i].kind;

        sets[kind](refusals[i].switches);
        int err = kvt__gds_driver_open(kind, false, &gds);
        bool opened = !err;
        if (opened)
            err = kvt__gds_file_open(gds, fd, &file);
        if (!err)
            err = kvt__gds_buffer_open(gds, memory, sizeof memory, &buffer);
        assert_true(err < 0);
        expect_failure(err, err, refusals[i].layer, refusals[i].code, refusals[i].text);
        if (opened) {
            kvt__gds_file_close(&file); /* does nothing if the file is not registered */
            kvt__gds_driver_close(gds);
        }
        assert_int_equal(fakes[kind]->count, 0);
        sets[kind]("");
    }
    close(fd);
}

static void
a_file_or_memory_can_be_registered_once(void **state)
{
    struct kvt__gds_buffer buffer;
    struct kvt__gds_file file;
    struct rig rig;

    (void)state;
    set_up(&rig, KVT__GDS_CUFILE, MIB, "");
    expect_failure(kvt__gds_file_open(rig.gds, rig.fd, &file), -EEXIST, KVT__GDS_IO, 5028,
                   "registered already");
    expect_failure(kvt__gds_buffer_open(rig.gds, rig.memory, MIB, &buffer), -EEXIST,
                   KVT__GDS_MEMORY, 5023, "registered already");
    tear_down(&rig);
}

/* ----------------------------------------------------------------------- moving */

static void
a_transfer_is_complete_and_in_pieces(void **state)
{
    struct rig rig;

    (void)state;
    for (enum kvt__gds_kind kind = 0; kind < 2; kind++) {
        size_t bytes = 5 * MIB, from = 64 << 10, n = bytes - from;
        unsigned char *keep = malloc(bytes);

        set_up(&rig, kind, bytes, "piece=2048");
        fakes[kind]->n_moves = 0;
        fakes[kind]->largest = 0;
        memcpy(keep, rig.memory, bytes);
        assert_int_equal(kvt__gds_max_request(rig.gds), 2 * MIB);
        assert_int_equal(kvt__gds_move(&rig.file, &rig.buffer, from, n, 4096, true), 0);
        memset(rig.memory + from, 0, n);
        assert_int_equal(kvt__gds_move(&rig.file, &rig.buffer, from, n, 4096, false), 0);
        assert_memory_equal(keep, rig.memory, bytes);
        assert_int_equal(fakes[kind]->n_moves, 6);
        assert_int_equal(fakes[kind]->largest, 2 * MIB);
        free(keep);
        tear_down(&rig);
    }
}

static void
without_properties_pieces_have_a_usual_size(void **state)
{
    struct rig rig;

    (void)state;
    set_up(&rig, KVT__GDS_HIPFILE, MIB, "piece=0");
    assert_int_equal(kvt__gds_max_request(rig.gds), 16 * MIB);
    tear_down(&rig);
    set_up(&rig, KVT__GDS_CUFILE, MIB, "piece=4"); /* 4 KiB is implausibly small */
    assert_int_equal(kvt__gds_max_request(rig.gds), 16 * MIB);
    tear_down(&rig);
}

static void
all_forms_of_failure_are_recognized(void **state)
{
    static const struct {
        enum kvt__gds_kind kind;
        const char *switches;
        int err, code;
        enum kvt__gds_layer layer;
        const char *text;
    } forms[] = {
        { 0, "read=5", -EIO, EIO, KVT__GDS_IO, "cuFileRead: Input/output error" },
        { 0, "read=5017", -EFAULT, 5017, KVT__GDS_MEMORY, "cuFileRead returns 5017" },
        { 0, "read=5,form=1", -EIO, EIO, KVT__GDS_IO, "cuFileRead: Input/output error" },
        { 0, "read=22,form=1", -EINVAL, EINVAL, KVT__GDS_IO, "cuFileRead: Invalid" },
        { 0, "read=5030,form=1", -EIO, 5030, KVT__GDS_IO, "cuFileRead returns 5030" },
        { 0, "read=0", -EIO, EIO, KVT__GDS_IO, "0 of 1048576" },
        { 1, "read=28", -ENOSPC, ENOSPC, KVT__GDS_IO, "hipFileRead: No space" },
        { 1, "read=5013,form=1", -EFAULT, 5013, KVT__GDS_MEMORY, "returns 5013" },
        { 1, "read=719,form=1", -EIO, 719, KVT__GDS_GPU, "HIP's error 719" },
        { 0, "short=1", -EIO, EIO, KVT__GDS_IO, "524288 of 1048576 bytes" },
    };
    struct rig rig;

    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        enum kvt__gds_kind kind = forms[i].kind;

        set_up(&rig, kind, MIB, "");
        if (strcmp(forms[i].switches, "read=0")) /* "read=0" reads an empty file */
            assert_int_equal(kvt__gds_move(&rig.file, &rig.buffer, 0, MIB, 0, true), 0);
        sets[kind](forms[i].switches);
        expect_failure(kvt__gds_move(&rig.file, &rig.buffer, 0, MIB, 0, false),
                       forms[i].err, forms[i].layer, forms[i].code, forms[i].text);
        tear_down(&rig);
    }
    set_up(&rig, KVT__GDS_CUFILE, MIB, "write=28");
    expect_failure(kvt__gds_move(&rig.file, &rig.buffer, 0, MIB, 0, true), -ENOSPC,
                   KVT__GDS_IO, ENOSPC, "cuFileWrite: No space");
    tear_down(&rig);
}

static void
a_closed_file_is_not_used(void **state)
{
    struct kvt__gds_file closed;
    struct rig rig;

    (void)state;
    set_up(&rig, KVT__GDS_CUFILE, MIB, "");
    closed = rig.file;
    closed.handle = NULL;
    expect_failure(kvt__gds_move(&closed, &rig.buffer, 0, MIB, 0, false), -EBADF,
                   KVT__GDS_IO, EBADF, "not registered");
    expect_failure(kvt__gds_move(&rig.file, &rig.buffer, 4096, MIB, 0, false), -EFAULT,
                   KVT__GDS_MEMORY, EFAULT, "memory of 1048576 bytes");
    tear_down(&rig); /* asserts that no dead handle was used */
}

/* ---------------------------------------------------------------------- threads */

struct mover {
    struct rig *rig;
    size_t at;
};

static void *
move_there_and_back(void *arg)
{
    struct mover *m = arg;
    struct rig *rig = m->rig;

    for (int i = 0; i < 4; i++) {
        unsigned char first = rig->memory[m->at], last = rig->memory[m->at + MIB - 1];

        if (kvt__gds_move(&rig->file, &rig->buffer, m->at, MIB, (off_t)m->at, true))
            return "write";
        memset(rig->memory + m->at, 0, MIB);
        if (kvt__gds_move(&rig->file, &rig->buffer, m->at, MIB, (off_t)m->at, false))
            return "read";
        if (rig->memory[m->at] != first || rig->memory[m->at + MIB - 1] != last)
            return "bytes";
    }
    return NULL;
}

static void
several_threads_keep_the_device_busy(void **state)
{
    struct mover movers[4];
    pthread_t threads[4];
    struct rig rig;
    void *wrong;

    (void)state;
    set_up(&rig, KVT__GDS_CUFILE, 4 * MIB, "meet=4");
    fakes[0]->max_in_flight = 0;
    for (size_t i = 0; i < 4; i++) {
        movers[i] = (struct mover){ &rig, i * MIB };
        assert_int_equal(pthread_create(&threads[i], NULL, move_there_and_back,
                                        &movers[i]), 0);
    }
    for (size_t i = 0; i < 4; i++) {
        pthread_join(threads[i], &wrong);
        if (wrong)
            fail_msg("%s", (char *)wrong);
    }
    assert_int_equal(fakes[0]->max_in_flight, 4);
    tear_down(&rig);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest before[] = {
        cmocka_unit_test(a_missing_library_is_named),
        cmocka_unit_test(a_missing_function_is_named),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_driver_is_opened_once_and_closed_once),
        cmocka_unit_test(compat_mode_is_never_used),
        cmocka_unit_test(p2pdma_is_requested_if_needed),
        cmocka_unit_test(others_in_the_process_keep_the_driver),
        cmocka_unit_test(where_modules_cannot_be_read_nothing_is_called),
        cmocka_unit_test(each_code_has_a_layer_and_a_remedy),
        cmocka_unit_test(a_file_or_memory_can_be_registered_once),
        cmocka_unit_test(a_transfer_is_complete_and_in_pieces),
        cmocka_unit_test(without_properties_pieces_have_a_usual_size),
        cmocka_unit_test(all_forms_of_failure_are_recognized),
        cmocka_unit_test(a_closed_file_is_not_used),
        cmocka_unit_test(several_threads_keep_the_device_busy),
    };

    if (argc < 4)
        return 1;
    paths = argv + 1;
    temp_dir_make(&dir);
    int failed = cmocka_run_group_tests_name("gds, no library", before, NULL, NULL);
    load(KVT__GDS_CUFILE);
    load(KVT__GDS_HIPFILE);
    failed += cmocka_run_group_tests_name("gds", tests, NULL, NULL);
    temp_dir_remove(&dir);
    return failed;
}
