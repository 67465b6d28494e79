/* SPDX-License-Identifier: Apache-2.0
 *
 * The entries' state machine: a few processes store, evict and lease in all orders of their
 * steps with a bounded number of preemptions, and a process may die before any step.  Each
 * process is a coroutine running the real code (model.h).  Memory orders (each step is
 * visible to all processes at once) and the clock are left out. */
#include "index-test.h"

#include <sys/mman.h>
#include <ucontext.h>

#include "index/table.h"
#include "model.h"

enum { MAX_PROCS = 4, MAX_CHOICES = 4096, STACK_BYTES = 64 << 10 };

enum deed { NOTHING, STORE, EVICT, LEASE, STORE_TEXT };

struct scenario {
    struct {
        enum deed deed;
        unsigned id;
    } proc[MAX_PROCS];
    unsigned ready_id;        /* stored before; 0: none */
    unsigned max_preemptions;
    unsigned max_deaths;
    bool one_must_win;        /* a store must succeed if no process died */
    bool full_spaces;         /* a new text needs a search for an unused space */
};

static struct proc {
    struct kvt__index *ix;
    ucontext_t context;
    char stack[STACK_BYTES];
    bool begun, ended, dead;
    bool waits; /* for the lock */
    int result;
    uint64_t leased; /* the word of the leased entry; 0: no lease */
} procs[MAX_PROCS];

/* Where the identities can stand. */
static const unsigned groups[] = { 3, 5 };

static const struct scenario *scenario;
static ucontext_t explorer;
static int running = -1; /* process */
static int holder = -1; /* of the lock */

/* The key texts of identities 1 and 2, and the space of identity 1.  If a search finds
 * this space unused, the second text gets the space. */
static char texts[2][64];
static unsigned space;
static struct ix_map *pristine, *map;

/* The choices of this execution: which of how many was taken at each point. */
static struct {
    unsigned taken, n;
} choices[MAX_CHOICES];
static size_t n_choices, at_choice;
static unsigned n_preemptions, n_deaths;

static unsigned
choose(unsigned n)
{
    if (at_choice == n_choices) {
        assert_true(n_choices < MAX_CHOICES);
        choices[n_choices].taken = 0;
        choices[n_choices++].n = n;
    }
    assert_int_equal(choices[at_choice].n, n);
    return choices[at_choice++].taken;
}

/* The next execution in order; false: there is none. */
static bool
advance(void)
{
    while (n_choices && choices[n_choices - 1].taken + 1 == choices[n_choices - 1].n)
        n_choices--;
    if (!n_choices)
        return false;
    choices[n_choices - 1].taken++;
    return true;
}

void
model_step(void)
{
    if (running < 0)
        return;
    int me = running;
    swapcontext(&procs[me].context, &explorer);
}

/* Each process has a separate mapping. */
void
model_step_at(const void *at)
{
    if (running < 0)
        return;
    const struct ix_map *mine = procs[running].ix->map;
    const char *p = at;
    bool matters = p >= (const char *)&mine->spaces[space] &&
                   p < (const char *)&mine->spaces[space].text[1];

    for (unsigned g = 0; g < 2; g++)
        matters |= p >= (const char *)&mine->entries[groups[g] * IX_GROUP] &&
                   p < (const char *)&mine->entries[(groups[g] + 1) * IX_GROUP];
    if (matters)
        model_step();
}

static bool
lock_is_free(void)
{
    return holder < 0 || procs[holder].dead;
}

int
model_lock(struct kvt__index *ix, int64_t wait_ns)
{
    int me = running;

    (void)ix;
    (void)wait_ns;
    model_step();
    while (me >= 0 && !lock_is_free()) {
        procs[me].waits = true;
        model_step();
    }
    if (me >= 0)
        procs[me].waits = false;
    holder = me;
    return 0;
}

void
model_unlock(struct kvt__index *ix)
{
    (void)ix;
    model_step();
    holder = -1;
}

bool
model_owner_lives(const struct kvt__index *ix, unsigned owner)
{
    (void)ix;
    for (int i = 0; i < MAX_PROCS; i++)
        if (procs[i].ix->owner == (int)owner)
            return !procs[i].dead;
    return false;
}

/* ------------------------------------------------------------------- processes */

static void
evict_one(struct proc *p, const struct kvt__id *id)
{
    struct kvt__index_entry entry;
    struct kvt__index_claim c;

    p->result = kvt__index_evict(p->ix, id, false, &entry, &c);
    if (p->result)
        return;
    for (int i = 0; i < MAX_PROCS; i++)
        if (procs[i].leased && procs[i].leased == entry.word)
            fail_msg("a leased entry was evicted");
    kvt__index_removed(p->ix, &c);
}

static bool
stands(const struct kvt__id *id, uint64_t word)
{
    uint64_t words[2];

    ix_id_words(id, words);
    for (unsigned i = 0; i < 2 * IX_GROUP; i++) {
        const struct ix_entry *e =
            &map->entries[groups[i / IX_GROUP] * IX_GROUP + i % IX_GROUP];

        if (e->word == word && e->id[0] == words[0] && e->id[1] == words[1])
            return true;
    }
    return false;
}

static void
lease_one(struct proc *p, const struct kvt__id *id)
{
    struct kvt__index_entry out;

    if (!kvt__index_lease(p->ix, id, kvt__now_ns() + 3600 * KVT__NS_PER_S, &out))
        return;
    p->leased = out.word;
    if (!stands(id, out.word))
        fail_msg("an entry was leased that is being evicted");
    if (!entry_is_whole(&out) || !kvt__id_equal(&out.id, id))
        fail_msg("a reader found a torn entry");
    model_step();
    p->leased = 0;
    kvt__index_unlease(p->ix, id);
}

static int
put_text(struct kvt__index *ix, const struct kvt__id *id, const char *text)
{
    struct kvt__index_entry e = { .id = *id, .bytes = 1 };
    struct kvt__index_claim c;
    int rc = kvt__index_reserve(ix, e.bytes);

    if (rc)
        return rc;
    rc = kvt__index_claim(ix, &e, text, &c);
    if (rc)
        kvt__index_unreserve(ix, e.bytes);
    else
        kvt__index_publish(ix, &c);
    return rc;
}

static void
proc_main(void)
{
    struct proc *p = &procs[running];
    unsigned number = scenario->proc[running].id;
    struct kvt__id id = id_in(number, 3, 5);

    switch (scenario->proc[running].deed) {
    case STORE:
        p->result = put(p->ix, &id);
        break;
    case STORE_TEXT:
        p->result = put_text(p->ix, &id, texts[number - 1]);
        break;
    case EVICT:
        evict_one(p, &id);
        break;
    default:
        lease_one(p, &id);
    }
    p->ended = true;
    swapcontext(&p->context, &explorer);
}

/* -------------------------------------------------------------------- executions */

/* In each state: an identity stands once at most. */
static void
check_state(void)
{
    for (unsigned n = 1; n <= 2; n++) {
        struct kvt__id id = id_in(n, 3, 5);
        uint64_t words[2];
        unsigned n_there = 0;

        ix_id_words(&id, words);
        for (unsigned i = 0; i < 2 * IX_GROUP; i++) {
            const struct ix_entry *e =
                &map->entries[groups[i / IX_GROUP] * IX_GROUP + i % IX_GROUP];
            enum ix_state state = ix_word_state(e->word);

            n_there += state != IX_FREE && !ix_is_tentative(state) &&
                       e->id[0] == words[0] && e->id[1] == words[1];
        }
        if (n_there > 1)
            fail_msg("identity %u stands %u times", n, n_there);
    }
}

static void
reset(void)
{
    memcpy(map, pristine, offsetof(struct ix_map, spaces));
    for (unsigned g = 0; g < 2; g++)
        memcpy(&map->entries[groups[g] * IX_GROUP], &pristine->entries[groups[g] * IX_GROUP],
               IX_GROUP * sizeof *map->entries);
    for (int i = 0; i < MAX_PROCS; i++) {
        struct proc *p = &procs[i];

        p->begun = p->dead = p->waits = false;
        p->ix->search_from_ns = 0;
        p->ended = !scenario->proc[i].deed;
        p->result = 0;
        p->leased = 0;
        p->ix->n_claims = 0;
    }
    if (scenario->full_spaces)
        memcpy(map->spaces, pristine->spaces, IX_N_UNTAGGED * sizeof *map->spaces);
    holder = -1;
    at_choice = 0;
    n_preemptions = n_deaths = 0;
}

static bool
can_run(int i)
{
    return !procs[i].ended && !procs[i].dead && !(procs[i].waits && !lock_is_free());
}

/* Choose the process of the next step: the last process, or another process if preemptions
 * are left or the last process cannot step.  -1: no process can step. */
static int
next_proc(int last)
{
    int ready[MAX_PROCS];
    unsigned n = 0;

    if (last >= 0 && can_run(last))
        ready[n++] = last;
    for (int i = 0; i < MAX_PROCS; i++)
        if (i != last && can_run(i) && (!n || ready[0] != last ||
                                        n_preemptions < scenario->max_preemptions))
            ready[n++] = i;
    if (!n)
        return -1;
    int next = ready[n > 1 ? choose(n) : 0];
    n_preemptions += last >= 0 && can_run(last) && next != last;
    return next;
}

static void
run_step(int i)
{
    struct proc *p = &procs[i];

    if (!p->begun) {
        p->begun = true;
        getcontext(&p->context);
        p->context.uc_stack.ss_sp = p->stack;
        p->context.uc_stack.ss_size = sizeof p->stack;
        p->context.uc_link = &explorer;
        makecontext(&p->context, proc_main, 0);
    }
    running = i;
    swapcontext(&explorer, &p->context);
    running = -1;
}

/* Check that each ready identity has the right text, and that dead processes block no text. */
static void
check_texts(void)
{
    for (unsigned n = 1; n <= 2; n++) {
        struct kvt__id id = id_in(n, 3, 5);
        struct kvt__index_entry entry;
        char text[KVT__INDEX_SPACE_TEXT_MAX + 1];

        if (!n_deaths && procs[n - 1].result)
            fail_msg("store %u failed: %d", n, procs[n - 1].result);
        int rc = put_text(procs[0].ix, &id, texts[n - 1]);
        if (rc && rc != -EEXIST)
            fail_msg("store %u afterwards failed: %d", n, rc);
        if (!kvt__index_find(procs[0].ix, &id, &entry) ||
            kvt__index_space_text(procs[0].ix, entry.space, text, sizeof text) ||
            strcmp(text, texts[n - 1]))
            fail_msg("the space of identity %u has another text", n);
    }
}

/* At the end of all processes: recover after dead processes; no entry is stuck or lost. */
static void
check_end(void)
{
    unsigned n_won = 0, n_stores = 0;
    uint64_t live = 0;

    for (int i = 0; i < MAX_PROCS; i++) {
        bool stores = scenario->proc[i].deed == STORE;

        n_stores += stores;
        n_won += stores && procs[i].ended && !procs[i].result;
        if (!procs[i].dead)
            live |= UINT64_C(1) << procs[i].ix->owner;
    }
    if (n_deaths)
        kvt__ix_sweep(procs[0].ix, live, false);
    for (uint64_t i = 0; i < procs[0].ix->n_entries; i++) {
        enum ix_state state = ix_word_state(map->entries[i].word);

        if (state != IX_FREE && state != IX_READY)
            fail_msg("an entry is stuck in state %d", state);
    }
    if (scenario->full_spaces)
        check_texts();
    else if (!adds_up(procs[0].ix, 0))
        fail_msg("the totals do not add up");
    if (scenario->one_must_win && !n_deaths && n_won != 1)
        fail_msg("%u of %u racing claims won", n_won, n_stores);
}

static void
execute(void)
{
    int last = -1, i;

    reset();
    while ((i = next_proc(last)) >= 0) {
        if (procs[i].begun && n_deaths < scenario->max_deaths && choose(2)) {
            procs[i].dead = true;
            n_deaths++;
        } else {
            run_step(i);
        }
        check_state();
        last = i;
    }
    check_end();
}

/* Use all spaces for texts without tags, of which no entry uses any.  The first text has a
 * space, in which the second is looked for first. */
static void
fill_spaces(struct kvt__index *ix)
{
    struct ix_space *s = ix->map->spaces;

    snprintf(texts[0], sizeof texts[0], "m@1@0@@half");
    space = (unsigned)(kvt__index_text_digest(texts[0]) % IX_N_UNTAGGED);
    unsigned i = 0;
    do
        snprintf(texts[1], sizeof texts[1], "n%u@1@0@@half", i++);
    while (kvt__index_text_digest(texts[1]) % IX_N_UNTAGGED != space);
    for (i = 0; i < IX_N_UNTAGGED; i++)
        if (i != space)
            s[i] = (struct ix_space){ .state = IX_SPACE_VALID, .digest = i, .n_bytes = 1,
                                      .text = { 'x' } };
    assert_int_equal(kvt__ix_space(ix, texts[0]), space);
}

static void
explore(const struct dir *d, const struct scenario *s)
{
    size_t n = 0;

    scenario = s;
    for (int i = 0; i < MAX_PROCS; i++)
        procs[i].ix = open_writer(d);
    map = procs[0].ix->map;
    size_t bytes = ix_map_bytes(procs[0].ix->n_entries, false);
    if (s->ready_id) {
        struct kvt__id id = id_in(s->ready_id, 3, 5);
        assert_int_equal(put(procs[0].ix, &id), 0);
    }
    if (s->full_spaces)
        fill_spaces(procs[0].ix);
    pristine = malloc(bytes);
    memcpy(pristine, map, bytes);
    n_choices = 0;
    do {
        execute();
        n++;
    } while (advance());
    printf("%zu executions\n", n);
    memcpy(map, pristine, bytes);
    free(pristine);
    for (int i = 0; i < MAX_PROCS; i++)
        kvt__index_close(procs[i].ix);
}

static void
two_writers_of_one_identity(void **state)
{
    explore(*state, &(struct scenario){ .proc = { { STORE, 1 }, { STORE, 1 } },
                                        .max_preemptions = 2, .one_must_win = true });
}

static void
a_writer_that_may_die_beside_another(void **state)
{
    explore(*state, &(struct scenario){ .proc = { { STORE, 1 }, { STORE, 1 } },
                                        .max_preemptions = 1, .max_deaths = 1 });
}

static void
three_writers_of_one_identity(void **state)
{
    explore(*state, &(struct scenario){
        .proc = { { STORE, 1 }, { STORE, 1 }, { STORE, 1 } }, .max_preemptions = 1,
        .one_must_win = true });
}

static void
an_evicter_that_may_die_beside_a_writer(void **state)
{
    explore(*state, &(struct scenario){ .proc = { { STORE, 1 }, { EVICT, 1 } },
                                        .ready_id = 1, .max_preemptions = 1,
                                        .max_deaths = 1 });
}

static void
a_reader_and_an_evicter(void **state)
{
    explore(*state, &(struct scenario){ .proc = { { LEASE, 1 }, { EVICT, 1 } },
                                        .ready_id = 1, .max_preemptions = 3 });
}

static void
a_reader_while_a_place_changes_its_identity(void **state)
{
    explore(*state, &(struct scenario){
        .proc = { { LEASE, 1 }, { EVICT, 1 }, { STORE, 2 } }, .ready_id = 1,
        .max_preemptions = 2 });
}

static void
all_of_them(void **state)
{
    explore(*state, &(struct scenario){
        .proc = { { STORE, 1 }, { EVICT, 1 }, { LEASE, 1 } }, .ready_id = 1,
        .max_preemptions = 1 });
}

static void
a_claim_while_another_searches_for_a_space(void **state)
{
    explore(*state, &(struct scenario){ .proc = { { STORE_TEXT, 1 }, { STORE_TEXT, 2 } },
                                        .full_spaces = true, .max_preemptions = 1 });
}

static void
a_search_that_may_die_beside_a_claim(void **state)
{
    explore(*state, &(struct scenario){ .proc = { { STORE_TEXT, 1 }, { STORE_TEXT, 2 } },
                                        .full_spaces = true, .max_preemptions = 1,
                                        .max_deaths = 1 });
}

int
main(void)
{
#ifdef __SANITIZE_THREAD__
    printf("skipped: the thread sanitizer knows no coroutines\n");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        INDEX_TEST(a_claim_while_another_searches_for_a_space),
        INDEX_TEST(two_writers_of_one_identity),
        INDEX_TEST(a_writer_that_may_die_beside_another),
        INDEX_TEST(three_writers_of_one_identity),
        INDEX_TEST(an_evicter_that_may_die_beside_a_writer),
        INDEX_TEST(a_reader_and_an_evicter),
        INDEX_TEST(a_reader_while_a_place_changes_its_identity),
        INDEX_TEST(all_of_them),
        INDEX_TEST(a_search_that_may_die_beside_a_claim),
    };

    return cmocka_run_group_tests_name("index model", tests, NULL, NULL);
}
