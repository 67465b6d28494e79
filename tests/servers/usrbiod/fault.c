/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults, added by commands.  Without a fault, the check costs a single atomic load. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "usrbiod.h"

const char fault_help[] =
    "A fault is OP WHAT [n=COUNT] [p=PROBABILITY] [name=SUBSTRING] [from=BYTES]:\n"
    "  OP    read, write or any (both) of the rings; lookup, open, create, rename,\n"
    "        unlink, flush (and fsync), symlink; submit\n"
    "  WHAT  result=-EIO    the result, a name or a number; no bytes move\n"
    "        short=BYTES    at most BYTES move\n"
    "        delay_ms=N     execute N milliseconds later\n"
    "        stuck          execute after the command \"release\", or at the end\n"
    "        reorder        results in reverse order, up to 20 ms late: other jobs overtake\n"
    "        lost_wakeup    results without a post; of submit: ignore a post\n"
    "        corrupt        flip a bit, in the bytes read or in the file\n"
    "        refuse_uid     of lookup: links of 3fs-virt/iovs belong to another user (EPERM)\n"
    "  n=    number of uses (no limit); p= probability (1); name= only files whose last part\n"
    "        of the path, or links whose name, contains this text; from= only I/Os that begin\n"
    "        at this offset or behind it\n"
    "All matching faults apply.  The I/Os of a job are late together.  A delayed or stuck job\n"
    "moves its bytes at its execution, not before.  If a lookup fails, the kernel repeats the\n"
    "lookup of a known name: a single failure (n=1) has no effect.\n";

struct fault {
    unsigned ops;
    struct effect effect;
    double probability;
    long left; /* remaining uses; -1: no limit */
    uint64_t from; /* I/Os before this offset of a file are not affected */
    char name[256];
    struct fault *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t released = PTHREAD_COND_INITIALIZER;
static struct fault *faults;
static atomic_uint all_ops;
static atomic_uint n_released;
static uint64_t random_state = 0x9e3779b97f4a7c15;

static double
next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (double)(random_state >> 11) / 9007199254740992.0;
}

/* ------------------------------------------------------------------------ parsing */

static const struct {
    const char *name;
    unsigned ops;
} op_names[] = {
    { "read", OP_READ },     { "write", OP_WRITE },   { "any", OP_READ | OP_WRITE },
    { "lookup", OP_LOOKUP }, { "open", OP_OPEN },     { "create", OP_CREATE },
    { "rename", OP_RENAME }, { "unlink", OP_UNLINK }, { "flush", OP_FLUSH },
    { "symlink", OP_SYMLINK }, { "submit", OP_SUBMIT },
};

static bool
whole_number(const char *text, long long least, long long *out)
{
    char *end;

    errno = 0;
    *out = strtoll(text, &end, 10);
    return *text && !*end && !errno && *out >= least;
}

/* Parse a result: a number, "EIO" or "-EIO". */
static bool
result_of(const char *text, int64_t *out)
{
    long long n;

    if (whole_number(text, INT64_MIN, &n)) {
        *out = n;
        return true;
    }
    text += *text == '-';
    for (int e = 1; e < 256; e++) {
        const char *name = strerrorname_np(e);
        if (name && !strcmp(name, text)) {
            *out = -e;
            return true;
        }
    }
    return false;
}

/* Set the flag that `word` names.  Return false if the word names no flag. */
static bool
flag(struct effect *e, const char *word)
{
    const struct {
        const char *name;
        bool *flag;
    } flags[] = {
        { "stuck", &e->stuck },           { "reorder", &e->reorder },
        { "lost_wakeup", &e->lost_wakeup }, { "corrupt", &e->corrupt },
        { "refuse_uid", &e->refuse_uid },
    };

    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (!strcmp(word, flags[i].name))
            return *flags[i].flag = true;
    return false;
}

static const char *
parse_word(struct fault *f, const char *word)
{
    const char *value = strchr(word, '=');
    long long n;
    char *end;

    if (flag(&f->effect, word))
        return NULL;
    if (!value++)
        return "unknown word; see --help";
    if (!strncmp(word, "name=", 5)) {
        snprintf(f->name, sizeof f->name, "%s", value);
    } else if (!strncmp(word, "result=", 7)) {
        f->effect.has_result = result_of(value, &f->effect.result);
        return f->effect.has_result ? NULL : "unknown error name";
    } else if (!strncmp(word, "p=", 2)) {
        f->probability = strtod(value, &end);
        return *value && !*end && f->probability >= 0 && f->probability <= 1
                   ? NULL : "p= must be from 0 to 1";
    } else if (!whole_number(value, 0, &n)) {
        return "the value must be a whole number";
    } else if (!strncmp(word, "short=", 6)) {
        f->effect.at_most = (uint64_t)n;
    } else if (!strncmp(word, "delay_ms=", 9) && n <= 3600000) {
        f->effect.delay_ns = n * 1000000;
    } else if (!strncmp(word, "n=", 2) && n <= INT32_MAX) {
        f->left = (long)n;
    } else if (!strncmp(word, "from=", 5)) {
        f->from = (uint64_t)n;
    } else {
        return "unknown word, or value too large; see --help";
    }
    return NULL;
}

static const char *
parse(struct fault *f, char *line)
{
    char *rest, *word = strtok_r(line, " ", &rest);

    for (size_t i = 0; word && i < sizeof op_names / sizeof op_names[0]; i++)
        if (!strcmp(word, op_names[i].name))
            f->ops = op_names[i].ops;
    if (!f->ops)
        return "unknown operation; see --help";
    if (!(word = strtok_r(NULL, " ", &rest)))
        return "WHAT is missing; see --help";
    for (; word; word = strtok_r(NULL, " ", &rest)) {
        const char *wrong = parse_word(f, word);
        if (wrong)
            return wrong;
    }
    if (f->effect.refuse_uid)
        f->ops = OP_LINK;
    return NULL;
}

const char *
fault_add(const char *line)
{
    struct fault *f = calloc(1, sizeof *f);
    char *copy = strdup(line);
    const char *wrong = "out of memory";

    if (f && copy) {
        f->probability = 1;
        f->left = -1;
        f->effect.at_most = UINT64_MAX;
        wrong = parse(f, copy);
    }
    free(copy);
    if (wrong) {
        free(f);
        return wrong;
    }
    pthread_mutex_lock(&lock);
    f->next = faults;
    faults = f;
    atomic_fetch_or(&all_ops, f->ops);
    pthread_mutex_unlock(&lock);
    return NULL;
}

void
fault_clear(void)
{
    pthread_mutex_lock(&lock);
    atomic_store(&all_ops, 0);
    while (faults) {
        struct fault *f = faults;

        faults = f->next;
        free(f);
    }
    pthread_mutex_unlock(&lock);
}

/* ------------------------------------------------------------------------- asking */

/* Return true if the fault applies to the operation, and count the use. */
static bool
applies(struct fault *f, unsigned op, const char *name, uint64_t at)
{
    if (!(f->ops & op) || !f->left || at < f->from || (f->name[0] && !strstr(name, f->name)) ||
        (f->probability < 1 && next_random() >= f->probability))
        return false;
    f->left -= f->left > 0;
    return true;
}

static void
add_effect(struct effect *to, const struct effect *e)
{
    if (e->has_result) {
        to->has_result = true;
        to->result = e->result;
    }
    if (e->at_most < to->at_most)
        to->at_most = e->at_most;
    to->delay_ns += e->delay_ns;
    to->stuck |= e->stuck;
    to->reorder |= e->reorder;
    to->lost_wakeup |= e->lost_wakeup;
    to->corrupt |= e->corrupt;
    to->refuse_uid |= e->refuse_uid;
    if (e->reorder)
        to->delay_ns += 1 + (int64_t)(next_random() * 20e6);
}

bool
fault_find(unsigned op, const char *name, uint64_t at, struct effect *out)
{
    bool any = false;

    if (!(atomic_load_explicit(&all_ops, memory_order_relaxed) & op))
        return false;
    pthread_mutex_lock(&lock);
    *out = (struct effect){ .at_most = UINT64_MAX, .generation = n_released };
    for (struct fault *f = faults; f; f = f->next)
        if (applies(f, op, name, at)) {
            any = true;
            add_effect(out, &f->effect);
        }
    pthread_mutex_unlock(&lock);
    return any;
}

int
fault_request(unsigned op, const char *name)
{
    struct effect e;

    if (!fault_find(op, name, 0, &e))
        return 0;
    if (e.delay_ns)
        sleep_ns(e.delay_ns);
    if (e.stuck) {
        count_stuck(1);
        pthread_mutex_lock(&lock);
        while (e.generation == n_released)
            pthread_cond_wait(&released, &lock);
        pthread_mutex_unlock(&lock);
        count_stuck(-1);
    }
    return e.has_result && e.result < 0 && e.result > -4096 ? (int)-e.result : 0;
}

void
fault_release(void)
{
    pthread_mutex_lock(&lock);
    n_released++;
    pthread_cond_broadcast(&released);
    pthread_mutex_unlock(&lock);
}

unsigned
fault_generation(void)
{
    return atomic_load(&n_released);
}
