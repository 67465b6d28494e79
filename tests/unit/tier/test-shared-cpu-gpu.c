/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared memory is pinned for the engine's GPU as soon as all memory is allocated, and no
 * caller waits for another process that allocates the memory.  Argument: the fake driver. */
#include <dlfcn.h>
#include <unistd.h>

#include "fakes/gpu/gpu.h"
#include "tier-test.h"

#include "tier/shared_cpu/shared_cpu.h"

#define BYTES (UINT64_C(128) << 20)

static struct fake_gpu *fake;

struct memory {
    struct temp_dir dir;
    struct kvt__tier *tier;
    struct kvt__table *index;
    struct sc_memory m;
};

static void
open_tier_of_memory(struct memory *s, bool transfers)
{
    const char *const settings[] = { "max_shared_cpu_size=0.125", NULL };
    struct kvt_config *config = config_with(settings);
    char url[300];

    snprintf(url, sizeof url, "shared_cpu://%s", s->dir.path);
    struct kvt__tier_params params = { .config = config, .url = url, .transfers = transfers,
                                       .name = "shared_cpu_path" };
    assert_int_equal(kvt__tier_open(&params, &s->tier), 0);
    kvt_config_free(config);
}

/* The growth waits until the caller unlocks `growth`. */
static void
open_index(struct memory *s)
{
    struct kvt__table_params params = { .writer = true };
    const struct kvt__tier_ops *ops = s->tier->ops;

    ops->set_index(s->tier, &params);
    assert_int_equal(kvt__table_open(&params, ops->private_dir(s->tier), &s->index), 0);
    assert_int_equal(kvt__sc_view(s->index, &s->m), 0);
    assert_int_equal(kvt__table_lock_word(s->index, &s->m.header->growth, KVT__NS_PER_S,
                                          &(uint32_t){ 0 }), 0);
    assert_int_equal(ops->use_index(s->tier, s->index), 0);
}

static void
close_tier_of_memory(struct memory *s)
{
    s->tier->ops->leave_index(s->tier, s->index);
    kvt__table_close(s->index);
    s->tier->ops->close(s->tier);
}

static int
setup(void **state)
{
    static struct memory s;

    temp_dir_make_in_memory(&s.dir);
    *state = &s;
    return 0;
}

static int
teardown(void **state)
{
    struct memory *s = *state;

    temp_dir_remove(&s->dir);
    assert_int_equal(fake->n_registered, 0);
    assert_int_equal(fake->n_retained, 0);
    return 0;
}

/* The tier compares the pointer with NULL only. */
static void
use_gpu(struct memory *s)
{
    assert_int_equal(s->tier->ops->use_gpu(s->tier, (struct kvt__gpu *)s, 0), 0);
}

static void
wait_for_pin(const struct memory *s)
{
    while (__atomic_load_n(&fake->n_registered, __ATOMIC_ACQUIRE) != 1)
        usleep(1000);
    assert_ptr_equal(fake->at, s->m.payload);
    assert_int_equal(fake->bytes, BYTES);
}

static void
memory_is_pinned_when_the_growth_ends(void **state)
{
    struct memory *s = *state;

    open_tier_of_memory(s, true);
    open_index(s);
    use_gpu(s); /* does not wait */
    assert_int_equal(fake->n_registered, 0);
    kvt__table_unlock_word(&s->m.header->growth);
    wait_for_pin(s);
    close_tier_of_memory(s);
}

static void
allocated_memory_is_pinned_at_once(void **state)
{
    struct memory *s = *state;

    open_tier_of_memory(s, true);
    open_index(s);
    kvt__table_unlock_word(&s->m.header->growth);
    while (SC_LOAD(&s->m.header->populated_bytes) != BYTES)
        usleep(1000);
    assert_int_equal(fake->n_registered, 0);
    use_gpu(s);
    wait_for_pin(s);
    close_tier_of_memory(s);
}

/* A renewed index has another memory. */
static void
memory_of_a_new_index_is_pinned_too(void **state)
{
    struct memory *s = *state, old;

    open_tier_of_memory(s, true);
    open_index(s);
    use_gpu(s);
    kvt__table_unlock_word(&s->m.header->growth);
    wait_for_pin(s);
    old = *s;
    assert_int_equal(kvt__table_delete(s->index, s->tier->ops->private_dir(s->tier)), 0);
    open_index(s);
    assert_int_equal(fake->n_registered, 1);
    kvt__table_unlock_word(&s->m.header->growth);
    while (__atomic_load_n(&fake->n_registered, __ATOMIC_ACQUIRE) != 2)
        usleep(1000);
    assert_ptr_equal(fake->at, s->m.payload);
    s->tier->ops->leave_index(s->tier, old.index);
    kvt__table_close(old.index);
    close_tier_of_memory(s);
}

/* ------------------------------------------------------------------- no thread */

static int thread_error; /* result of each start of a thread; 0: threads start */

int __real_kvt__thread_start(pthread_t *thread, const char *name, void *(*main)(void *),
                             void *arg);
int __wrap_kvt__thread_start(pthread_t *thread, const char *name, void *(*main)(void *),
                             void *arg);

int
__wrap_kvt__thread_start(pthread_t *thread, const char *name, void *(*main)(void *),
                         void *arg)
{
    return thread_error ? kvt__fail(-thread_error, "no thread")
                        : __real_kvt__thread_start(thread, name, main, arg);
}

/* Return the number of claims on the host's memory. */
static unsigned
n_claims(void)
{
    char link[64], target[512];
    unsigned n = 0;

    for (int fd = 0; fd < 1024; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target - 1);

        target[length > 0 ? length : 0] = '\0';
        n += strstr(target, "/pools") != NULL;
    }
    return n;
}

/* The engine uses the memory that the maker has allocated, or that another process allocates. */
static void
memory_is_usable_without_a_thread_that_allocates(void **state)
{
    struct memory *s = *state;

    open_tier_of_memory(s, true);
    thread_error = -EAGAIN;
    kvt_set_log(NULL, NULL, KVT_LOG_ERROR);
    open_index(s);
    thread_error = 0;
    kvt__table_unlock_word(&s->m.header->growth);
    assert_int_equal(n_claims(), 0);
    assert_in_range(SC_LOAD(&s->m.header->populated_bytes), 1, BYTES - 1);
    assert_ptr_equal(kvt__sc_opened(s->tier, s->index)->memory.payload, s->m.payload);
    close_tier_of_memory(s);
}

static void
process_without_transfers_pins_nothing(void **state)
{
    struct memory *s = *state;

    open_tier_of_memory(s, false);
    open_index(s);
    kvt__table_unlock_word(&s->m.header->growth);
    use_gpu(s);
    assert_int_equal(fake->n_registered, 0);
    close_tier_of_memory(s);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(memory_is_pinned_when_the_growth_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(allocated_memory_is_pinned_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_of_a_new_index_is_pinned_too, setup, teardown),
        cmocka_unit_test_setup_teardown(memory_is_usable_without_a_thread_that_allocates, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(process_without_transfers_pins_nothing, setup,
                                        teardown),
    };
    void *driver = dlopen(argc > 1 ? argv[1] : "", RTLD_NOW | RTLD_LOCAL);
    fake_gpu_fn *find = driver ? (fake_gpu_fn *)(uintptr_t)dlsym(driver, "fake_gpu") : NULL;

    if (!find) {
        fprintf(stderr, "no fake driver: %s\n", dlerror());
        return 1;
    }
    fake = find();
    fake->active = 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
