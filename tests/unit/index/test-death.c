/* SPDX-License-Identifier: Apache-2.0
 *
 * Owners that stop or die: in each state, and at random instants. */
#include "index-test.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define N_IDS 24
#define N_DEATHS 60
#define LIMIT 4000
#define LOCKED "lock" /* the file whose bytes owners lock */

/* ------------------------------------------------------- one owner, one state */

struct child {
    pid_t pid;
    int ready; /* a byte comes when the child has done its deed */
    int go;    /* a byte makes it end its claim and close */
};

typedef void deed(struct kvt__index *ix, const struct kvt__id *id,
                  struct kvt__index_claim *c);

static void
claim_it(struct kvt__index *ix, const struct kvt__id *id,
         struct kvt__index_claim *c)
{
    claim(ix, id, c);
}

static void
evict_it(struct kvt__index *ix, const struct kvt__id *id,
         struct kvt__index_claim *c)
{
    put(ix, id);
    kvt__index_evict(ix, id, false, NULL, c);
}

static void
start(struct child *child, const struct dir *d, deed *fn,
      const struct kvt__id *id)
{
    int ready[2], go[2];
    char b = 'x';

    assert_int_equal(pipe2(ready, O_CLOEXEC) | pipe2(go, O_CLOEXEC), 0);
    child->pid = fork();
    if (!child->pid) {
        struct kvt__index *ix = open_writer(d);
        struct kvt__index_claim c;
        fn(ix, id, &c);
        kvt__index_reserve(ix, 100);
        close(go[1]);
        if (write(ready[1], &b, 1) == 1 && read(go[0], &b, 1) == 1)
            kvt__index_publish(ix, &c);
        kvt__index_close(ix);
        _exit(0);
    }
    close(ready[1]);
    close(go[0]);
    child->ready = ready[0];
    child->go = go[1];
    assert_int_equal(read(child->ready, &b, 1), 1);
}

static void
stop(struct child *child)
{
    int status;

    kill(child->pid, SIGSTOP);
    assert_int_equal(waitpid(child->pid, &status, WUNTRACED), child->pid);
    assert_true(WIFSTOPPED(status));
}

static void
end(struct child *child, int signal)
{
    kill(child->pid, signal);
    waitpid(child->pid, NULL, 0);
    close(child->ready);
    close(child->go);
}

static void
stopped_claimer_blocks_its_entry_only(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_in(1, 3, 5);
    struct child child;

    start(&child, *state, claim_it, &id);
    stop(&child);
    for (unsigned i = 2; i < 17; i++) {
        struct kvt__id other = id_in(i, 3, 5);
        assert_int_equal(put(ix, &other), 0);
    }
    assert_int_equal(put(ix, &id), -EEXIST);
    assert_int_equal(drop(ix, &id), -EBUSY);
    assert_int_equal(kvt__index_recover(ix), 0);
    assert_true(adds_up(ix, entry_of(&id).bytes + 100));
    kill(child.pid, SIGCONT);
    assert_int_equal(write(child.go, "x", 1), 1);
    end(&child, 0);
    assert_true(kvt__index_find(ix, &id, NULL));
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
stopped_evicter_blocks_its_entry_only(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_in(1, 3, 5), other = id_in(2, 3, 5);
    struct child child;

    start(&child, *state, evict_it, &id);
    stop(&child);
    assert_int_equal(put(ix, &other), 0);
    assert_int_equal(put(ix, &id), -EEXIST);
    assert_int_equal(drop(ix, &id), -EBUSY);
    assert_false(kvt__index_find(ix, &id, NULL));
    kvt__index_set_scanned(ix, true);
    end(&child, SIGKILL);
    assert_int_equal(put(ix, &id), 0);
    assert_false(kvt__index_scanned(ix));
    kvt__index_recover(ix);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
entry_of_a_dead_owner_is_claimed_on_the_spot(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_in(1, 3, 5);
    deed *deeds[] = { claim_it, evict_it };
    struct child child;

    for (unsigned i = 0; i < 2; i++) {
        start(&child, *state, deeds[i], &id);
        kvt__index_set_scanned(ix, true);
        end(&child, SIGKILL);
        assert_int_equal(put(ix, &id), 0);
        assert_false(kvt__index_scanned(ix)); /* the dead owner's file may exist */
        kvt__index_recover(ix);
        assert_true(adds_up(ix, 0));
        assert_int_equal(drop(ix, &id), 0);
    }
    kvt__index_close(ix);
}

/* Garbage in the file: no record has that number. */
static void
entry_of_an_owner_out_of_range_is_claimed_on_the_spot(void **state)
{
    static const unsigned owners[] = { IX_N_OWNERS, IX_N_OWNERS + 1, 0xfff };
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1);
    struct kvt__index_claim c;

    for (size_t i = 0; i < sizeof owners / sizeof *owners; i++) {
        assert_int_equal(claim(ix, &id, &c), 0);
        for (size_t n = 0; n < ix->n_entries; n++) {
            struct ix_entry *e = &ix->map->entries[n];
            uint64_t word = IX_LOAD(&e->word);

            if (ix_word_state(word) == IX_CLAIMED)
                IX_STORE(&e->word, ix_word_next(word, IX_CLAIMED, owners[i]));
        }
        assert_int_equal(put(ix, &id), 0);
        kvt__index_abort(ix, &c);
        assert_int_equal(drop(ix, &id), 0);
        kvt__index_recover(ix);
        assert_true(adds_up(ix, 0));
    }
    kvt__index_close(ix);
}

static void
recover_frees_what_a_dead_owner_left(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1), ready = id_of(2);
    deed *deeds[] = { claim_it, evict_it };
    struct child child;

    assert_int_equal(put(ix, &ready), 0);
    for (unsigned i = 0; i < 2; i++) {
        start(&child, *state, deeds[i], &id);
        kvt__index_set_scanned(ix, true);
        assert_int_equal(kvt__index_recover(ix), 0);
        assert_true(kvt__index_scanned(ix));
        end(&child, SIGKILL);
        assert_int_equal(kvt__index_recover(ix), 1);
        assert_int_equal(kvt__index_recover(ix), 0);
        assert_false(kvt__index_scanned(ix));
        assert_true(adds_up(ix, 0));
        assert_true(kvt__index_find(ix, &ready, NULL));
    }
    kvt__index_close(ix);
}

/* The scan may have passed the file of the dead owner's claimed entry. */
static void
a_scan_amid_which_an_owner_died_is_not_whole(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1);
    struct child child;

    start(&child, *state, claim_it, &id);
    uint32_t began = kvt__index_begin_scan(ix);
    end(&child, SIGKILL);
    assert_int_equal(kvt__index_recover(ix), 1);
    kvt__index_end_scan(ix, began);
    assert_false(kvt__index_scanned(ix));
    began = kvt__index_begin_scan(ix);
    kvt__index_end_scan(ix, began);
    assert_true(kvt__index_scanned(ix));
    began = kvt__index_begin_scan(ix); /* a second process starts a scan */
    kvt__index_set_scanned(ix, false);
    kvt__index_end_scan(ix, began);
    assert_false(kvt__index_scanned(ix));
    kvt__index_close(ix);
}

/* What nothing but a death between two instructions leaves. */
static void
claiming_entry_of_a_dead_owner_is_freed(void **state)
{
    struct dir *d = *state;
    struct kvt__index *ix = open_writer(d);
    struct kvt__id id = id_in(1, 0, 1);
    struct child child;
    uint64_t word;

    start(&child, d, claim_it, &id);
    int fd = openat(d->fd, "index", O_RDWR);
    off_t at = sizeof(struct ix_map); /* both groups empty: the first place */
    assert_int_equal(pread(fd, &word, 8, at), 8);
    assert_int_equal(ix_word_state(word), IX_CLAIMED);
    word = (word & ~UINT64_C(15)) | IX_CLAIMING;
    assert_int_equal(pwrite(fd, &word, 8, at), 8);
    close(fd);
    assert_int_equal(put(ix, &id), -EEXIST);
    end(&child, SIGKILL);
    assert_int_equal(put(ix, &id), 0);
    kvt__index_recover(ix);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
full_groups_of_a_dead_owner_make_room(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_in(99, 3, 5);
    struct child children[4];

    for (unsigned i = 0; i < 16; i++) {
        struct kvt__id other = id_in(i, 3, 5);
        if (i < 4)
            start(&children[i], *state, claim_it, &other);
        else
            assert_int_equal(put(ix, &other), 0);
    }
    assert_int_equal(put(ix, &id), -ENOSPC);
    kvt__index_set_scanned(ix, true);
    for (unsigned i = 0; i < 4; i++)
        end(&children[i], SIGKILL);
    assert_int_equal(put(ix, &id), 0);
    assert_false(kvt__index_scanned(ix));
    assert_int_equal(kvt__index_recover(ix), 0); /* the claim has freed all four */
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

static void
recount_holds_beside_live_reservations(void **state)
{
    struct kvt__index *ix = open_writer(*state);
    struct kvt__id id = id_of(1), mine = id_of(2);
    struct kvt__index_claim c;
    struct child child;

    assert_int_equal(kvt__index_reserve(ix, 55), 0);
    assert_int_equal(claim(ix, &mine, &c), 0);
    start(&child, *state, claim_it, &id);
    end(&child, SIGKILL);
    assert_int_equal(kvt__index_recover(ix), 1);
    assert_true(adds_up(ix, 55 + c.bytes));
    kvt__index_publish(ix, &c);
    kvt__index_unreserve(ix, 55);
    assert_true(adds_up(ix, 0));
    kvt__index_close(ix);
}

/* ---------------------------------------------------------------- forks amid an open */

/* Count this process's descriptors of a file; -1 if the file does not exist. */
static int
count_open(const struct dir *d, const char *name)
{
    struct stat file, st;
    int n = 0;

    if (fstatat(d->fd, name, &file, 0))
        return -1;
    for (int fd = 0; fd < 256; fd++)
        n += !fstat(fd, &st) && st.st_ino == file.st_ino && st.st_dev == file.st_dev;
    return n;
}

static void *
open_main(void *arg)
{
    return open_writer(arg);
}

/* Return true if an unrelated process sees a lock on any byte of the file. */
static bool
is_locked(const struct dir *d, const char *name)
{
    struct flock all = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    int fd = openat(d->fd, name, O_RDWR | O_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_OFD_GETLK, &all), 0);
    close(fd);
    return all.l_type != F_UNLCK;
}

/* A child forked during another thread's open of the index must not keep that thread's
 * handle alive. */
static void
child_of_a_fork_amid_an_open_is_no_owner(void **state)
{
    struct flock byte = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 4096,
                          .l_len = 1 };
    const struct dir *d = *state;
    int ready[2];
    pthread_t thread;
    void *ix;
    char b;

    kvt__index_close(open_writer(d)); /* makes the file */
    int fd = openat(d->fd, LOCKED, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fcntl(fd, F_OFD_SETLK, &byte), 0);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pthread_create(&thread, NULL, open_main, *state), 0);
    while (count_open(d, LOCKED) < 2) /* until the opening thread waits for the byte */
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
    pthread_join(thread, &ix);
    assert_non_null(ix);
    assert_true(kvt__index_is_shared(ix));
    assert_true(is_locked(d, LOCKED));
    kvt__index_close(ix);
    assert_false(is_locked(d, LOCKED));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(ready[0]);
    close(ready[1]);
}

/* ------------------------------------------------------------ random instants */

struct progress {
    uint64_t n_ops;
    uint64_t n_bad;
};

static void
hammer(const struct dir *d, uint64_t random, struct progress *p)
{
    struct kvt__index *ix = open_with(d, LIMIT, true);
    struct kvt__index_entry out;
    struct kvt__index_totals t;
    struct kvt__index_claim c;

    p->n_bad += !kvt__index_is_shared(ix);
    for (;;) {
        random = mix(random);
        struct kvt__id id = id_in(random % N_IDS, 3, 5);
        switch (random >> 32 & 7) {
        case 0:
        case 1:
        case 2:
            if (!claim(ix, &id, &c)) {
                if (random >> 40 & 3)
                    kvt__index_publish(ix, &c);
                else
                    kvt__index_abort(ix, &c);
            }
            break;
        case 3:
        case 4:
            if (!kvt__index_evict(ix, &id, true, &out, &c)) {
                if (random >> 40 & 3)
                    kvt__index_removed(ix, &c);
                else
                    kvt__index_restore(ix, &c);
            }
            break;
        case 5:
            if (!kvt__index_reserve(ix, 10))
                kvt__index_unreserve(ix, 10);
            break;
        case 6:
            if (kvt__index_lease(ix, &id, INT64_MAX, &out)
                && (!entry_is_whole(&out) || !kvt__id_equal(&out.id, &id)))
                p->n_bad++;
            kvt__index_unlease(ix, &id);
            break;
        default:
            if (!(random >> 40 & 63))
                kvt__index_recover(ix);
            kvt__index_get_totals(ix, &t);
            if (t.used_bytes > LIMIT)
                p->n_bad++;
        }
        __atomic_fetch_add(&p->n_ops, 1, __ATOMIC_RELAXED);
    }
}

static pid_t
start_hammer(const struct dir *d, uint64_t random, struct progress *p)
{
    p->n_ops = 0;
    pid_t pid = fork();
    if (!pid)
        hammer(d, random, p);
    return pid;
}

/* Kill it when it has done about n things. */
static void
kill_after(pid_t pid, const struct progress *p, uint64_t n)
{
    while (__atomic_load_n(&p->n_ops, __ATOMIC_RELAXED) < n)
        sched_yield();
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void
each_is_there_once_or_claimable(struct kvt__index *ix)
{
    struct kvt__index_claim c;

    for (unsigned i = 0; i < N_IDS; i++) {
        struct kvt__id id = id_in(i, 3, 5);
        size_t n = copies(ix, &id);
        assert_true(n <= 1);
        assert_int_equal(kvt__index_evict(ix, &id, true, NULL, &c),
                         n ? 0 : -ENOENT);
        kvt__index_removed(ix, &c);
    }
    for (unsigned i = 0; i < N_IDS; i++) {
        struct kvt__id id = id_in(i, 3, 5);
        assert_int_equal(claim(ix, &id, &c), 0);
        kvt__index_abort(ix, &c);
    }
    assert_true(adds_up(ix, 0));
}

static void
killed_at_random_instants_nothing_is_lost(void **state)
{
    struct progress *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct kvt__index *ix = open_with(*state, LIMIT, true);

    for (uint64_t i = 0; i < N_DEATHS; i++) {
        pid_t a = start_hammer(*state, mix(2 * i), &p[0]);
        pid_t b = start_hammer(*state, mix(2 * i + 1), &p[1]);
        kill_after(a, &p[0], 1 + mix(i) % 700);
        kvt__index_recover(ix);
        kill_after(b, &p[1], 1 + mix(~i) % 700);
        if (i & 1) { /* the next to open does it as well */
            kvt__index_close(ix);
            ix = open_with(*state, LIMIT, true);
        }
        kvt__index_recover(ix);
        assert_true(adds_up(ix, 0));
        if (i % 4 == 3)
            each_is_there_once_or_claimable(ix);
    }
    assert_int_equal(p[0].n_bad + p[1].n_bad, 0);
    kvt__index_close(ix);
    munmap(p, 4096);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        INDEX_TEST(stopped_claimer_blocks_its_entry_only),
        INDEX_TEST(stopped_evicter_blocks_its_entry_only),
        INDEX_TEST(entry_of_a_dead_owner_is_claimed_on_the_spot),
        INDEX_TEST(entry_of_an_owner_out_of_range_is_claimed_on_the_spot),
        INDEX_TEST(recover_frees_what_a_dead_owner_left),
        INDEX_TEST(a_scan_amid_which_an_owner_died_is_not_whole),
        INDEX_TEST(claiming_entry_of_a_dead_owner_is_freed),
        INDEX_TEST(full_groups_of_a_dead_owner_make_room),
        INDEX_TEST(child_of_a_fork_amid_an_open_is_no_owner),
        INDEX_TEST(recount_holds_beside_live_reservations),
        INDEX_TEST(killed_at_random_instants_nothing_is_lost),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
