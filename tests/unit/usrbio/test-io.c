/* SPDX-License-Identifier: Apache-2.0
 *
 * I/O through rings: accepted and refused I/Os, results, and the reuse of slots. */
#include "usrbio-test.h"

#define N_STEPS 4000

static int
wait_one(const struct fixture *f, const struct kvt__hf3fs_ior *ior,
         struct kvt__hf3fs_cqe *cqe)
{
    struct timespec until = far();

    return f->api->wait_for_ios(ior, cqe, 1, 1, &until);
}

static int64_t
do_one(const struct fixture *f, const struct kvt__hf3fs_ior *ior, size_t at, size_t len,
       size_t off)
{
    struct kvt__hf3fs_cqe cqe;
    int slot = prep(f, ior, at, len, off, 77);

    assert_true(slot >= 0);
    assert_int_equal(f->api->submit_ios(ior), 0);
    assert_int_equal(wait_one(f, ior, &cqe), 1);
    assert_int_equal(cqe.index, slot);
    assert_ptr_equal(cqe.userdata, (void *)77);
    return cqe.result;
}

static void
written_bytes_are_read(void **state)
{
    struct fixture *f = *state;

    for (size_t i = 0; i < MEMORY / 2; i++)
        f->iov.base[i] = (uint8_t)(i * 7 + i / 251);
    assert_int_equal(do_one(f, &f->w, 0, MEMORY / 2, 4096), MEMORY / 2);
    assert_int_equal(do_one(f, &f->r, MEMORY / 2, MEMORY / 2, 4096), MEMORY / 2);
    assert_memory_equal(f->iov.base, f->iov.base + MEMORY / 2, MEMORY / 2);
    /* Read across the end of the file, and behind the end. */
    assert_int_equal(do_one(f, &f->r, 0, 1000, 4096 + MEMORY / 2 - 10), 10);
    assert_int_equal(do_one(f, &f->r, 0, 1000, 4096 + MEMORY), 0);
}

static void
errors_and_short_results_are_results(void **state)
{
    struct fixture *f = *state;

    f->c.result = -EREMOTEIO;
    assert_int_equal(do_one(f, &f->w, 0, 1000, 0), -EREMOTEIO);
    f->c.result = 0;
    f->c.short_by = 1;
    assert_int_equal(do_one(f, &f->w, 0, 1000, 0), 999);
    f->c.inode++;
    assert_int_equal(do_one(f, &f->w, 0, 1000, 0), -EBADF);
    f->c.inode--;
}

static void
prep_io_refuses_invalid_arguments(void **state)
{
    struct fixture *f = *state;
    const struct kvt__usrbio_api *api = f->api;
    struct kvt__hf3fs_ior no_ring = { 0 };
    struct kvt__hf3fs_iov no_memory = { 0 };
    uint8_t *base = f->iov.base;
    int reader = open_file(O_RDONLY), writer = open_file(O_WRONLY);

    assert_int_equal(api->prep_io(NULL, &f->iov, true, base, f->fd, 0, 1, 0), -EINVAL);
    assert_int_equal(api->prep_io(&no_ring, &f->iov, true, base, f->fd, 0, 1, 0), -EINVAL);
    assert_int_equal(api->prep_io(&f->r, NULL, true, base, f->fd, 0, 1, 0), -EINVAL);
    assert_int_equal(api->prep_io(&f->r, &no_memory, true, base, f->fd, 0, 1, 0), -EINVAL);
    assert_int_equal(api->prep_io(&f->r, &f->iov, false, base, f->fd, 0, 1, 0), -EINVAL);
    assert_int_equal(api->prep_io(&f->w, &f->iov, true, base, f->fd, 0, 1, 0), -EINVAL);

    assert_int_equal(prep(f, &f->r, 0, 0, 0, 0), -EINVAL);
    assert_int_equal(prep(f, &f->r, MEMORY, 1, 0, 0), -EINVAL);
    assert_int_equal(prep(f, &f->r, 1, MEMORY, 0, 0), -EINVAL);
    assert_int_equal(prep(f, &f->r, 1, SIZE_MAX, 0, 0), -EINVAL);
    assert_int_equal(prep(f, &f->r, (size_t)-1, 1, 0, 0), -EINVAL);

    assert_int_equal(api->prep_io(&f->r, &f->iov, true, base, reader, 0, 1, 0), -EBADF);
    assert_true(api->reg_fd(reader, 0) < 0 && api->reg_fd(writer, 0) < 0);
    assert_int_equal(api->prep_io(&f->r, &f->iov, true, base, writer, 0, 1, 0), -EACCES);
    assert_int_equal(api->prep_io(&f->w, &f->iov, false, base, reader, 0, 1, 0), -EACCES);
    api->dereg_fd(reader);
    api->dereg_fd(writer);
    close(reader);
    close(writer);

    struct kvt__hf3fs_cqe cqe;
    assert_int_equal(api->wait_for_ios(&f->r, &cqe, 0, 0, NULL), -EINVAL);
    assert_int_equal(api->wait_for_ios(&f->r, &cqe, -1, 0, NULL), -EINVAL);
    assert_int_equal(api->wait_for_ios(&no_ring, &cqe, 1, 0, NULL), -EINVAL);
    assert_int_equal(api->wait_for_ios(NULL, &cqe, 1, 0, NULL), -EINVAL);
    assert_int_equal(api->submit_ios(NULL), -EINVAL);
    assert_int_equal(api->submit_ios(&f->r), 0); /* nothing prepared */
}

static void
a_full_ring_is_eagain_and_a_slot_is_free_when_waited_for(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqes[ENTRIES];
    struct timespec until = far();

    counterpart_idle(&f->c, true);
    for (int i = 0; i < ENTRIES; i++)
        assert_int_equal(prep(f, &f->w, 0, 1, (size_t)i, (uintptr_t)i), i);
    assert_int_equal(prep(f, &f->w, 0, 1, 0, 0), -EAGAIN);
    counterpart_idle(&f->c, false);
    assert_int_equal(f->api->submit_ios(&f->w), 0);
    while (f->c.rings[1].done < ENTRIES)
        sched_yield(); /* completed, but not yet taken */
    assert_int_equal(prep(f, &f->w, 0, 1, 0, 0), -EAGAIN);
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 3, 3, &until), 3);
    int freed[ENTRIES] = { 0 };
    for (int i = 0; i < 3; i++)
        freed[cqes[i].index]++;
    for (int i = 0; i < 3; i++) {
        int slot = prep(f, &f->w, 0, 1, 0, 0);
        assert_in_range(slot, 0, ENTRIES - 1);
        assert_int_equal(freed[slot]--, 1);
    }
    assert_int_equal(prep(f, &f->w, 0, 1, 0, 0), -EAGAIN);
    assert_int_equal(f->api->submit_ios(&f->w), 0);
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, ENTRIES, ENTRIES, &until), ENTRIES);
}

/* The daemon frees the queue in order, so a single slow job can fill the queue. */
static void
a_full_queue_is_eagain_though_slots_are_free(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_ior ior = { 0 };
    struct kvt__hf3fs_cqe cqes[4];

    assert_int_equal(f->api->iorcreate4(&ior, f->c.path, 4, false, 0, 0, -1, 0), 0);
    _Atomic int32_t *heads = (_Atomic int32_t *)ior.iov.base;
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(prep(f, &ior, 0, 1, 0, 0), i);
        memcpy(ior.iov.base + 16 + 56 * 5 + 24 * i, &i, 4); /* done */
    }
    atomic_store(&heads[2], 4);
    assert_int_equal(f->api->wait_for_ios(&ior, cqes, 4, 4, NULL), 4);
    assert_int_equal(heads[3], 4);
    assert_int_equal(prep(f, &ior, 0, 1, 0, 0), -EAGAIN);
    atomic_store(&heads[1], 1);
    assert_int_equal(prep(f, &ior, 0, 1, 0, 0), 0);
    assert_int_equal(prep(f, &ior, 0, 1, 0, 0), -EAGAIN);
    f->api->iordestroy(&ior);
}

static void
a_ring_of_one_entry_works(void **state)
{
    struct fixture *f = *state;

    close_ring(f, &f->w);
    open_ring(f, &f->w, 1, false);
    for (int i = 0; i < 100; i++)
        assert_int_equal(do_one(f, &f->w, 0, 10, 0), 10);
}

static void
the_copy_of_a_descriptor_names_the_same_file(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqe;
    int fd = open_file(O_RDWR), copy = f->api->reg_fd(fd, 0);

    assert_true(copy < 0);
    assert_true(fcntl(-copy, F_GETFD) & FD_CLOEXEC);
    serve_file(f, fd);
    assert_int_equal(f->api->prep_io(&f->w, &f->iov, false, f->iov.base, copy, 0, 5, 0), 0);
    assert_int_equal(f->api->prep_io(&f->w, &f->iov, false, f->iov.base, -copy, 5, 5, 0),
                     1);
    f->api->submit_ios(&f->w);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(wait_one(f, &f->w, &cqe), 1);
        assert_int_equal(cqe.result, 5);
    }
    f->api->dereg_fd(fd);
    serve_file(f, f->fd);
    close(fd);
}

/* ------------------------------------------------------------------ traps */

static void
an_io_may_run_before_prep_returns(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqe;

    f->set_traps("any_fs=1,prep_posts=1");
    assert_true(prep(f, &f->w, 0, 10, 0, 0) >= 0);
    assert_int_equal(wait_one(f, &f->w, &cqe), 1); /* without submit */
}

static void
the_fake_librarys_traps_spring(void **state)
{
    struct fixture *f = *state;
    struct kvt__hf3fs_cqe cqes[4];
    struct timespec until = far();

    f->set_traps("any_fs=1,eagain_every=2,short_every=3,reverse=1");
    f->c.job_size = 4;
    for (uintptr_t i = 0; i < 4; i++) {
        assert_true(prep(f, &f->w, 0, 10, 0, i) >= 0);
        assert_int_equal(prep(f, &f->w, 0, 10, 0, 9), -EAGAIN);
    }
    f->api->submit_ios(&f->w);
    assert_int_equal(f->api->wait_for_ios(&f->w, cqes, 4, 4, &until), 4);
    for (uintptr_t i = 0; i < 4; i++) {
        assert_int_equal(cqes[3 - i].userdata, i);
        assert_int_equal(cqes[3 - i].result, i == 2 ? 5 : 10);
    }
}

/* ---------------------------------------------------------------- hostility */

static void
completions_of_nothing_in_flight_are_left_out(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < 50; i++) {
        f->c.wrong = 1 + i % 3;
        assert_int_equal(do_one(f, &f->w, 0, 10, 0), 10);
    }
}

static void
a_queue_out_of_order_is_eio(void **state)
{
    static const int32_t heads[] = { -1, ENTRIES + 1, INT32_MAX, INT32_MIN };
    struct fixture *f = *state;
    _Atomic int32_t *head = (_Atomic int32_t *)(f->r.iov.base + 8);
    struct kvt__hf3fs_cqe cqe;

    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        atomic_store(head, heads[i]);
        assert_int_equal(f->api->wait_for_ios(&f->r, &cqe, 1, 1, NULL), -EIO);
    }
    atomic_store(head, 0);
}

/* --------------------------------------------------------------- properties */

struct model {
    bool in_flight[ENTRIES * 2];
    uint32_t value[ENTRIES * 2]; /* the value that is written or expected */
    uint32_t file[ENTRIES * 2];
    size_t n;
};

static void
take_all(struct fixture *f, struct kvt__hf3fs_ior *ior, struct model *m, int min)
{
    struct kvt__hf3fs_cqe cqes[ENTRIES];
    struct timespec until = far();
    int n = f->api->wait_for_ios(ior, cqes, 1 + rand() % ENTRIES, min, &until);

    assert_true(n >= (min ? 1 : 0));
    for (int i = 0; i < n; i++) {
        size_t at = (uintptr_t)cqes[i].userdata;
        uint32_t got;

        assert_true(at < ENTRIES * 2 && m->in_flight[at]);
        assert_int_equal(cqes[i].result, 4);
        memcpy(&got, f->iov.base + at * 4096, 4);
        assert_int_equal(got, m->value[at]);
        m->file[at] = m->value[at];
        m->in_flight[at] = false;
        m->n--;
    }
}

/* Run thousands of I/Os through small rings, in jobs of random sizes and in random order.  Each
 * I/O completes once, with its own bytes. */
static void
no_io_is_lost_or_mixed_up(void **state)
{
    struct fixture *f = *state;
    struct model m = { 0 };

    srand(5);
    f->c.shuffled = true;
    for (uint32_t step = 0; step < N_STEPS;) {
        bool read = rand() % 2;
        struct kvt__hf3fs_ior *ior = read ? &f->r : &f->w;

        for (int burst = rand() % (ENTRIES * 2); burst; burst--) {
            size_t at = (size_t)rand() % (ENTRIES * 2);
            uint32_t garbage = ~m.file[at];

            if (m.in_flight[at] || m.n == ENTRIES)
                continue;
            m.value[at] = read ? m.file[at] : ++step;
            memcpy(f->iov.base + at * 4096, read ? &garbage : &m.value[at], 4);
            if (read && !m.file[at])
                continue; /* not written yet */
            m.in_flight[at] = true;
            m.n++;
            assert_true(prep(f, ior, at * 4096, 4, at * 4, at) >= 0);
        }
        assert_int_equal(f->api->submit_ios(ior), 0);
        while (m.n) /* the other direction begins with none in flight */
            take_all(f, ior, &m, rand() % 3 ? 1 : 0);
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        BOTH(written_bytes_are_read),
        BOTH(errors_and_short_results_are_results),
        BOTH(prep_io_refuses_invalid_arguments),
        BOTH(a_full_ring_is_eagain_and_a_slot_is_free_when_waited_for),
        BOTH(a_full_queue_is_eagain_though_slots_are_free),
        BOTH(a_ring_of_one_entry_works),
        BOTH(the_copy_of_a_descriptor_names_the_same_file),
        LIBRARY(an_io_may_run_before_prep_returns),
        LIBRARY(the_fake_librarys_traps_spring),
        OWN(completions_of_nothing_in_flight_are_left_out),
        OWN(a_queue_out_of_order_is_eio),
        BOTH(no_io_is_lost_or_mixed_up),
    };

    return RUN("usrbio I/O");
}
