/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that allocates the shared host memory in pieces: stop, continuation by another
 * handle, a full tmpfs. */
#include "shared-cpu-test.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>

#include "base/log.h"

enum { N = 2048 /* units: four pieces; a new memory has two pieces */ };

static const struct kvt__mem_claim no_claim = { .fd = -1 };

static _Atomic uint64_t claimed_bytes; /* claimed by the last claim */
static atomic_uint n_claims;
static int claim_error;        /* result of claims */

int __wrap_kvt__mem_claim(const char *parent, const char *key, uint64_t bytes,
                          struct kvt__mem_claim *out);

int
__wrap_kvt__mem_claim(const char *parent, const char *key, uint64_t bytes,
                      struct kvt__mem_claim *out)
{
    assert_string_equal(parent, "/dev/shm");
    assert_string_equal(key, "max_shared_cpu_size");
    claimed_bytes = bytes;
    n_claims++;
    *out = no_claim;
    return claim_error ? kvt__fail(-claim_error, "too little memory") : 0;
}

static uint64_t
n_populated(const struct handle *h)
{
    return __atomic_load_n(&h->m.header->populated_bytes, __ATOMIC_SEQ_CST) / SC_UNIT;
}

struct growing {
    struct sc_growth growth; /* first */
    atomic_bool ended;
};

static void
on_end(struct sc_growth *growth)
{
    atomic_store(&((struct growing *)growth)->ended, true);
}

static void
grow(struct handle *h, struct growing *g)
{
    *g = (struct growing){ .growth.stop = true };
    assert_int_equal(kvt__sc_grow(&g->growth, &h->m, &no_claim, on_end), 0);
}

static void
end(struct growing *g)
{
    while (!atomic_load(&g->ended))
        usleep(1000);
    kvt__sc_stop_growing(&g->growth);
}

static void
grow_to_the_end(struct handle *h)
{
    struct growing g;

    grow(h, &g);
    end(&g);
}

static void
all_memory_is_allocated_in_the_end(void **state)
{
    struct handle h = open_populated(*state, N, 0);

    assert_int_equal(put(&h, 1, 1), -ENOSPC);
    grow_to_the_end(&h);
    assert_int_equal(n_populated(&h), N);
    fill_completely(&h, 1 << 20);
    kvt__table_close(h.table);
}

/* Return the number of pages that this process has mapped, or -1.  The kernel may migrate any page
 * at any time: a page is then not present (bit 63), and is reported like a swapped page (bit 62). */
static int64_t
n_mapped(const void *at, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), n = bytes / page;
    uint64_t *pages = calloc(n, sizeof *pages);
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    int64_t mapped = 0;

    assert_non_null(pages);
    if (pread(fd, pages, n * sizeof *pages, (off_t)((uintptr_t)at / page * sizeof *pages)) !=
        (ssize_t)(n * sizeof *pages))
        mapped = -1;
    for (size_t i = 0; mapped >= 0 && i < n; i++)
        mapped += pages[i] >> 62 != 0;
    close(fd);
    free(pages);
    return mapped;
}

/* Linux 5.14 and later map memory on request. */
static bool
can_map(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(at, MAP_FAILED);
    bool can = !madvise(at, page, 23 /* MADV_POPULATE_WRITE */) && n_mapped(at, page) == 1;
    munmap(at, page);
    return can;
}

/* The handle that allocates, and a later handle, map the memory. */
static void
all_memory_is_mapped_in_the_end(void **state)
{
    int64_t n_pages = (int64_t)(N * SC_UNIT) / sysconf(_SC_PAGESIZE);
    struct handle h[2];

    if (!can_map())
        skip();
    for (uint32_t i = 0; i < 2; i++) {
        h[i] = open_populated(*state, N, i * N);
        assert_true(n_mapped(h[i].m.payload, N * SC_UNIT) < n_pages);
        grow_to_the_end(&h[i]);
        assert_int_equal(n_mapped(h[i].m.payload, N * SC_UNIT), n_pages);
    }
    for (uint32_t i = 0; i < 2; i++)
        kvt__table_close(h[i].table);
}

static void
another_handle_continues(void **state)
{
    struct handle h[3];
    struct growing g[3];

    for (unsigned i = 0; i < 3; i++)
        h[i] = open_populated(*state, N, 0);
    for (unsigned i = 0; i < 3; i++)
        grow(&h[i], &g[i]);
    kvt__sc_stop_growing(&g[0].growth);
    kvt__sc_stop_growing(&g[1].growth);
    end(&g[2]);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(n_populated(&h[i]), N);
        kvt__table_close(h[i].table);
    }
}

/* The maker of the memory may be a scheduler, which allocates nothing and ends the claim, or may be
 * dead. */
static void
the_allocating_process_claims_the_rest(void **state)
{
    struct handle h = open_populated(*state, N, N / 4);

    n_claims = 0;
    claim_error = -ENOMEM;
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    grow_to_the_end(&h);
    assert_int_equal(n_populated(&h), N / 4);
    assert_int_equal(n_claims, 1);
    assert_int_equal(claimed_bytes, N / 4 * 3 * SC_UNIT);
    assert_int_equal(put(&h, 1, N / 4), 0); /* the smaller memory is usable */
    claim_error = 0;
    grow_to_the_end(&h);
    assert_int_equal(n_populated(&h), N);
    assert_int_equal(n_claims, 2);
    grow_to_the_end(&h);
    assert_int_equal(n_claims, 2);
    kvt__table_close(h.table);
}

/* Return the bytes of a mapping in huge pages. */
static uint64_t
huge_bytes(const void *at)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    unsigned long long first, end, kib, all = 0;
    bool is_it = false;
    char line[512];

    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%llx-%llx ", &first, &end) == 2)
            is_it = (uintptr_t)at >= first && (uintptr_t)at < end;
        else if (is_it && sscanf(line, "ShmemPmdMapped: %llu kB", &kib) == 1)
            all += kib << 10;
    }
    fclose(f);
    return all;
}

static void
mount_tmpfs(const struct temp_dir *dir, const char *options)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("kvtier-test", dir->path, "tmpfs", 0, options))
        skip();
}

static void
memory_has_huge_pages_where_the_tmpfs_advises(void **state)
{
    const struct temp_dir *dir = *state;

    if (!can_map() || access("/sys/kernel/mm/transparent_hugepage/shmem_enabled", F_OK))
        skip();
    mount_tmpfs(dir, "size=192m,huge=advise");
    struct handle h = open_populated(dir, N, 0);
    grow_to_the_end(&h);
    assert_int_equal(n_populated(&h), N);
    if (madvise(h.m.payload, SC_UNIT, MADV_POPULATE_WRITE)) /* an old kernel */
        print_message("huge pages: only with huge=always\n");
    else
        assert_true(huge_bytes(h.m.payload) >= N * SC_UNIT / 2);
    kvt__table_close(h.table);
    assert_int_equal(umount2(dir->path, MNT_DETACH), 0);
}

static void
full_tmpfs_leaves_a_smaller_memory(void **state)
{
    const struct temp_dir *dir = *state;

    mount_tmpfs(dir, "size=112m");
    struct handle h = open_populated(dir, N, 0);
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    grow_to_the_end(&h);
    assert_int_equal(n_populated(&h), N / 4 * 3);
    for (uint64_t i = 0; i < 2 * N; i++) {
        assert_int_equal(put(&h, i, 4), 0);
        assert_int_equal(read_and_check(&h, i, 4), 1);
    }
    assert_int_equal(recount(&h), N / 4 * 3 / 4);
    assert_int_equal(put(&h, 3 * N, N / 4 * 3 + 1), -ENOSPC);
    assert_int_equal(put(&h, 3 * N, N / 4 * 3), 0);
    kvt__table_close(h.table);
    assert_int_equal(umount2(dir->path, MNT_DETACH), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        SHM_TEST(all_memory_is_allocated_in_the_end),
        SHM_TEST(all_memory_is_mapped_in_the_end),
        SHM_TEST(another_handle_continues),
        SHM_TEST(the_allocating_process_claims_the_rest),
        SHM_TEST(memory_has_huge_pages_where_the_tmpfs_advises),
        SHM_TEST(full_tmpfs_leaves_a_smaller_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
