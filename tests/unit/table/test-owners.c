/* SPDX-License-Identifier: Apache-2.0
 *
 * Owners: deaths, reuse of numbers, limits, forks. */
#include "place-test.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

static bool
is_unread(struct kvt__table *t, uint64_t n)
{
    struct kvt__name name = name_of(n);
    struct kvt__record r;

    return kvt__table_find(t, &name, NULL, &r) && r.flags & KVT__TABLE_UNREAD;
}

static void
die_with_claims(const struct dir *d)
{
    struct kvt__table *t = open_writer(d);
    struct kvt__record seen;
    struct kvt__claim claim;

    store(t, 1, 10);
    find(t, 1, &seen);
    kvt__table_evict(t, &seen, false, &claim);
    claim_n(t, 2, 2, 10, &claim);
}

static void
claims_of_a_dead_owner_end_at_an_open(void **state)
{
    in_child(*state, die_with_claims);
    struct kvt__table *t = open_writer(*state);
    assert_true(is_unread(t, 1) && is_unread(t, 2));
    recount(t);
    kvt__table_close(t);
}

static void
claims_of_a_dead_owner_end_on_conflict(void **state)
{
    struct kvt__table *t = open_writer(*state);
    struct kvt__claim claim;

    in_child(*state, die_with_claims);
    assert_false(is_unread(t, 2));
    assert_int_equal(claim_n(t, 2, 2, 10, &claim), 0); /* identifies the object */
    assert_true(is_unread(t, 1));
    assert_true(kvt__table_publish(t, &claim));
    assert_true(find(t, 2, NULL));
    recount(t);
    kvt__table_close(t);
}

static void
die_amid_a_read(const struct dir *d)
{
    kvt__table_set_reading(open_writer(d), kvt__now_ns());
}

/* Otherwise the storage would look stalled until the next read begins. */
static void
reads_of_a_dead_owner_end(void **state)
{
    struct kvt__table *t, *other;

    in_child(*state, die_amid_a_read);
    t = open_writer(*state); /* takes the number of the dead owner */
    assert_int_equal(kvt__table_get_speed(t).reading_since_ns, 0);
    in_child(*state, die_amid_a_read);
    assert_true(kvt__table_get_speed(t).reading_since_ns > 0);
    (void)kvt__table_recover(t);
    assert_int_equal(kvt__table_get_speed(t).reading_since_ns, 0);
    kvt__table_set_reading(t, 1000);
    other = open_writer(*state); /* ends no reads of this process */
    kvt__table_close(other);
    assert_int_equal(kvt__table_get_speed(t).reading_since_ns, 1000);
    kvt__table_close(t);
}

/* A stopped process holds the lock: the claims stay, and end later. */
static void
claims_of_a_dead_owner_wait_for_the_lock(void **state)
{
    struct kvt__table *t = open_writer(*state), *other = open_writer(*state);
    unsigned dead = 2;

    in_child(*state, die_with_claims);
    uint64_t incarnation = t->owners[dead].incarnation;
    assert_int_equal(kvt__tb_lock(other, TB_LOCK_WAIT_NS), 0);
    assert_int_equal(kvt__table_recover(t), 0);
    assert_int_equal(t->owners[dead].incarnation, incarnation);
    assert_false(is_unread(t, 2));
    kvt__tb_unlock(other);
    assert_int_equal(kvt__table_recover(t), 2);
    assert_true(is_unread(t, 1) && is_unread(t, 2));
    assert_int_equal(t->owners[dead].incarnation, 0);
    recount(t);
    kvt__table_close(t);
    kvt__table_close(other);
}

static struct kvt__table *successor; /* a handle that takes the number of a dead owner */
static const struct dir *succeeds_in;

bool __real_kvt__tb_owner_lives(const struct kvt__table *t, unsigned owner);
bool __wrap_kvt__tb_owner_lives(const struct kvt__table *t, unsigned owner);

bool
__wrap_kvt__tb_owner_lives(const struct kvt__table *t, unsigned owner)
{
    bool lives = __real_kvt__tb_owner_lives(t, owner);
    const struct dir *d = succeeds_in;
    struct kvt__claim claim;

    if (!lives && d) {
        succeeds_in = NULL;
        successor = open_writer(d);
        assert_int_equal(successor->owner, owner);
        assert_int_equal(claim_n(successor, 3, 3, 10, &claim), 0);
    }
    return lives;
}

/* The number of a dead owner gets a new owner while another process ends the claims. */
static void
claims_of_the_next_owner_of_a_number_stay(void **state)
{
    struct kvt__table *t = open_writer(*state);
    struct kvt__claim claim;

    in_child(*state, die_with_claims);
    succeeds_in = *state;
    assert_int_equal(kvt__table_recover(t), 0);
    assert_non_null(successor);
    assert_true(is_unread(t, 1) && is_unread(t, 2));
    assert_int_equal(claim_n(t, 3, 3, 10, &claim), -EBUSY);
    assert_true(successor->owners[successor->owner].incarnation);
    kvt__table_close(successor);
    recount(t);
    kvt__table_close(t);
}

static void
claims_of_a_living_owner_stay(void **state)
{
    struct kvt__table *a = open_writer(*state), *b = open_writer(*state);
    struct kvt__claim claim, other;

    assert_int_equal(claim_n(a, 2, 2, 10, &claim), 0);
    assert_int_equal(claim_n(b, 2, 2, 10, &other), -EBUSY);
    assert_int_equal(kvt__table_recover(b), 0);
    assert_int_equal(store(b, 3, 10), 0); /* only the claimed name is blocked */
    assert_true(kvt__table_publish(a, &claim));
    assert_true(find(b, 2, NULL));
    recount(b);
    kvt__table_close(a);
    kvt__table_close(b);
}

/* The limit of the dead owner ends with the owner. */
static void
die_with_a_small_limit(const struct dir *d)
{
    struct kvt__table_params params = params_of(d);

    params.limit_bytes = 15;
    struct kvt__table *t = open_with(d, &params);
    store(t, 1, 10);
}

static void
dead_owners_are_looked_for_in_a_full_budget(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);
    struct kvt__table_totals totals;

    params.limit_bytes = 100;
    struct kvt__table *t = open_with(d, &params);
    in_child(d, die_with_a_small_limit);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.limit_bytes, 15);
    t->recovered_ns = 0;
    assert_int_equal(store(t, 2, 10), 0);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.limit_bytes, 100);
    kvt__table_close(t);
}

static void
owners_have_their_own_numbers(void **state)
{
    struct kvt__table *a = open_writer(*state), *b = open_writer(*state);
    unsigned owner = kvt__table_owner(b);

    assert_true(owner < KVT__TABLE_OWNERS && owner != kvt__table_owner(a));
    assert_true(kvt__table_owner_lives(a, owner) &&
                kvt__table_owner_lives(a, kvt__table_owner(a)));
    kvt__table_close(b);
    assert_false(kvt__table_owner_lives(a, owner));
    assert_false(kvt__table_owner_lives(a, KVT__TABLE_OWNERS));
    kvt__table_close(a);
}

static void
die_in_a_transaction(const struct dir *d)
{
    struct kvt__table *t = open_writer(d);
    struct tb_change c;

    store(t, 1, 10);
    if (kvt__tb_begin(t, &c))
        _exit(1);
    tb_set64(&c, &t->header->n_unread, 7);
    TB_STORE(&t->header->n_redo, c.n);
}

/* A number gets a new owner only after the dead owner's lock, redo record and claims have ended. */
static void
the_next_owner_of_a_number_settles_its_transaction(void **state)
{
    const struct dir *d = *state;
    struct kvt__table *r;

    in_child(d, die_in_a_transaction);
    r = open_reader(d);
    uint64_t dead = r->owners[0].incarnation;
    assert_true(r->header->n_redo && r->header->lock & 0x1ff);
    struct kvt__table *t = open_writer(d);
    assert_int_equal(t->owner, 0);
    assert_int_equal(t->header->n_redo, 0);
    assert_int_equal(t->header->n_unread, 7);
    assert_int_equal(t->header->lock & 0x1ff, 0);
    assert_true(t->owners[0].incarnation && t->owners[0].incarnation != dead);
    t->header->n_unread = 0;
    assert_int_equal(store(t, 2, 10), 0);
    recount(t);
    kvt__table_close(t);
    kvt__table_close(r);
}

static void
die_with_a_garbage_redo_record(const struct dir *d)
{
    struct kvt__table *t = open_writer(d);
    struct tb_change c;

    if (kvt__tb_begin(t, &c))
        _exit(1);
    t->header->redo[0].offset = 3;
    TB_STORE(&t->header->n_redo, 1);
}

static void
a_garbage_redo_record_replaces_the_table(void **state)
{
    in_child(*state, die_with_a_garbage_redo_record);
    expect_new(*state);
    assert_true(*shm_file(*state));
}

static void
limits_start_and_end_with_owners(void **state)
{
    const struct dir *d = *state;
    struct kvt__table_params params = params_of(d);
    struct kvt__table_totals totals;
    struct kvt__table *t = open_writer(d);

    params.limit_bytes = 1000;
    struct kvt__table *a = open_with(d, &params);
    params.limit_bytes = 500;
    struct kvt__table *b = open_with(d, &params);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.limit_bytes, 500);
    kvt__table_close(b);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.limit_bytes, 1000);
    kvt__table_close(a);
    kvt__table_get_totals(t, &totals);
    assert_int_equal(totals.limit_bytes, 0);
    kvt__table_close(t);
}

static void
writers_open_and_close(void **state)
{
    struct kvt__table *r = open_reader(*state);

    assert_false(kvt__table_has_writer(r));
    struct kvt__table *t = open_writer(*state);
    assert_true(kvt__table_has_writer(r) && kvt__table_has_writer(t));
    kvt__table_close(t);
    assert_false(kvt__table_has_writer(r));
    kvt__table_close(r);
}

static bool
has_byte(const struct kvt__table *t, unsigned owner)
{
    return kvt__tb_is_locked(t->lock_fd, TB_OWNER_BYTE + owner, 1);
}

/* The claims of a living owner must not end like the claims of a dead owner. */
static void
only_a_replaced_table_is_retired(void **state)
{
    struct kvt__table *t = open_writer(*state), *other = open_writer(*state);
    struct kvt__claim claim;

    assert_int_equal(claim_n(t, 1, 1, 10, &claim), 0);
    kvt__table_retire(t);
    assert_int_equal(kvt__table_recover(other), 0);
    assert_true(kvt__table_publish(t, &claim));
    assert_true(find(other, 1, NULL));
    kvt__tb_mark_corrupt(other, "a test");
    assert_true(has_byte(other, t->owner));
    kvt__table_retire(t);
    assert_false(has_byte(other, t->owner));
    kvt__table_close(other);
    kvt__table_close(t);
}

static int
use_in_child(struct kvt__table *t)
{
    struct kvt__name name = name_of(1);
    struct kvt__table_totals totals;
    struct kvt__record seen = { .entry = 0 };
    struct kvt__claim c;
    bool ok = claim_n(t, 3, 3, 10, &c) == -ESTALE && !find(t, 1, NULL) &&
              kvt__table_evict(t, &seen, true, &c) == -ESTALE &&
              !kvt__table_lease(t, &name, NULL, INT64_MAX, NULL) &&
              !kvt__table_is_current(t) && !kvt__table_has_writer(t) &&
              !kvt__table_recover(t);

    kvt__table_touch(t, &name, NULL);
    kvt__table_unlease(t, &(struct kvt__lease){ .life = 1 });
    kvt__table_retire(t);
    kvt__table_get_totals(t, &totals);
    kvt__table_close(t);
    return ok ? 0 : 1;
}

static void
a_handle_is_dead_in_a_forked_child(void **state)
{
    struct kvt__table *shared = open_writer(*state), *own = open_table(0, 0);
    int status;

    store(shared, 1, 10);
    store(own, 1, 10);
    pid_t pid = fork();
    if (!pid)
        _exit(use_in_child(shared) | use_in_child(own));
    waitpid(pid, &status, 0);
    assert_int_equal(status, 0);
    assert_true(find(shared, 1, NULL) && find(own, 1, NULL));
    assert_int_equal(store(shared, 2, 10), 0);
    kvt__table_close(shared);
    kvt__table_close(own);
}

static void
a_child_of_a_dead_owner_does_not_keep_it_alive(void **state)
{
    int ready[2], hold[2];
    char b;

    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (!pid) {
        struct kvt__table *t = open_writer(*state);
        struct kvt__claim c;

        close(hold[1]);
        claim_n(t, 1, 1, 10, &c);
        if (!fork()) {
            ssize_t n = write(ready[1], "x", 1) + read(hold[0], &b, 1);
            _exit((int)n);
        }
        pause();
    }
    close(hold[0]);
    assert_int_equal(read(ready[0], &b, 1), 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    struct kvt__table *t = open_writer(*state);
    assert_int_equal(store(t, 1, 10), 0);
    recount(t);
    kvt__table_close(t);
    close(hold[1]);
    close(ready[0]);
    close(ready[1]);
}

/* Count this process's descriptors of `lock`. */
static int
n_open_locks(const struct dir *d)
{
    struct stat lock, st;
    int n = 0;

    if (fstatat(d->fd, "lock", &lock, 0))
        return 0;
    for (int fd = 0; fd < 256; fd++)
        n += !fstat(fd, &st) && st.st_ino == lock.st_ino && st.st_dev == lock.st_dev;
    return n;
}

static bool
has_owner(const struct dir *d)
{
    int fd = openat(d->fd, "lock", O_RDWR | O_CLOEXEC);
    bool locked = kvt__tb_is_locked(fd, TB_OWNER_BYTE, TB_N_OWNERS);

    close(fd);
    return locked;
}

static void *
open_main(void *dir)
{
    return open_writer(dir);
}

/* A fork between the open of `lock` and the lock of the owner's byte. */
static void
a_child_of_a_fork_amid_an_open_is_no_owner(void **state)
{
    const struct dir *d = *state;
    int ready[2];
    pthread_t thread;
    void *t;
    char b;

    kvt__table_close(open_writer(d)); /* makes the file */
    int fd = openat(d->fd, "lock", O_RDWR | O_CLOEXEC);
    assert_int_equal(kvt__tb_lock_byte(fd, F_WRLCK, TB_OPEN_BYTE), 0);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pthread_create(&thread, NULL, open_main, *state), 0);
    while (n_open_locks(d) < 2) /* until the opening thread waits for the byte */
        sched_yield();
    pid_t child = fork();
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fd);
        if (write(ready[1], "x", 1) == 1)
            pause();
        _exit(0);
    }
    assert_int_equal(read(ready[0], &b, 1), 1);
    close(fd);
    pthread_join(thread, &t);
    assert_true(kvt__table_is_shared(t));
    assert_true(has_owner(d));
    kvt__table_close(t);
    assert_false(has_owner(d));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        PLACE_TEST(claims_of_a_dead_owner_end_at_an_open),
        PLACE_TEST(claims_of_a_dead_owner_end_on_conflict),
        PLACE_TEST(reads_of_a_dead_owner_end),
        PLACE_TEST(claims_of_a_dead_owner_wait_for_the_lock),
        PLACE_TEST(claims_of_the_next_owner_of_a_number_stay),
        PLACE_TEST(claims_of_a_living_owner_stay),
        PLACE_TEST(dead_owners_are_looked_for_in_a_full_budget),
        PLACE_TEST(owners_have_their_own_numbers),
        PLACE_TEST(the_next_owner_of_a_number_settles_its_transaction),
        PLACE_TEST(a_garbage_redo_record_replaces_the_table),
        PLACE_TEST(limits_start_and_end_with_owners),
        PLACE_TEST(writers_open_and_close),
        PLACE_TEST(only_a_replaced_table_is_retired),
        PLACE_TEST(a_handle_is_dead_in_a_forked_child),
        PLACE_TEST(a_child_of_a_dead_owner_does_not_keep_it_alive),
        PLACE_TEST(a_child_of_a_fork_amid_an_open_is_no_owner),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
