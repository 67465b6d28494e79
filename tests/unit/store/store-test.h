/* SPDX-License-Identifier: Apache-2.0
 *
 * A store over a directory, and chunks with numbers: chunk i has hash i, and an identity and bytes
 * that depend on i. */
#ifndef KVT_STORE_TEST_H
#define KVT_STORE_TEST_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "config.h"
#include "files.h"
#include "kvt-test.h"
#include "kvtier.h"
#include "temp-dir.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "store/private.h"
#include "tier/layout/layout.h"

#define BYTES 5000u  /* payload of a chunk */
#define TAKEN 8192u  /* bytes of its file on disk */

static const struct kvt__shape shape_of_all = { 1, 3, { 2, 1, 1, BYTES / 4 } };

struct env {
    struct temp_dir dir;
    struct kvt__store *store;
    struct kvt__counters counters;
    struct kvt__space space;
    uint32_t local_ranks;
};

static int n_warnings;

static inline void
count_warning(void *ctx, enum kvt_log_level level, const char *line)
{
    (void)ctx;
    (void)line;
    n_warnings += level == KVT_LOG_WARN;
}

static inline struct kvt__store *
open_store(struct env *e, const char *url, struct kvt__exec *exec,
           const char *const *more)
{
    const char *settings[16] = { url };
    struct kvt__store *store = NULL;
    size_t n = 1;

    while (more && *more)
        settings[n++] = *more++;
    struct kvt_config *config = config_with(settings);
    struct kvt__tier_params params = { .config = config, .exec = exec,
                                       .counters = &e->counters,
                                       .local_ranks = e->local_ranks };
    if (kvt__store_open(&params, &store))
        fail_msg("%s", kvt__why());
    kvt_config_free(config);
    assert_int_equal(kvt__store_set_tags(store, &e->space, ""), 0);
    return store;
}

/* Open a store.  prefix: "" or a fault URL that ends in '/'.  more: settings; NULL: a limit that no
 * test reaches, because without a limit the index has a million entries, and a walk over the
 * entries takes long under a sanitizer. */
static inline struct kvt__store *
open_over(struct env *e, const char *prefix, const char *const *more)
{
    static const char *const roomy[] = { "max_remote_size=0.03", NULL };
    char url[600];

    snprintf(url, sizeof url, "remote_url=%sfs://%s", prefix, e->dir.path);
    return open_store(e, url, NULL, more ? more : roomy);
}

/* List all levels, as the upkeep of an engine does. */
static inline void
list_all(struct kvt__store *store)
{
    for (size_t i = 0; i < store->n_levels; i++)
        kvt__level_list(&store->levels[i]);
}

static inline void
reopen_over(struct env *e, const char *prefix, const char *const *more)
{
    kvt__store_close(e->store);
    e->store = open_over(e, prefix, more);
}

static inline void
close_and_lose_index(struct env *e)
{
    char path[300];

    kvt__store_close(e->store);
    snprintf(path, sizeof path, "%s/.kvtier/lock", e->dir.path);
    assert_int_equal(unlink(path), 0);
}

static inline void
env_init(struct env *e)
{
    memset(e, 0, sizeof *e);
    strcpy(e->space.text, "test/model@1@0@@bfloat16");
    temp_dir_make(&e->dir);
    kvt_set_log(count_warning, NULL, KVT_LOG_INFO);
    n_warnings = 0;
}

/* Settings of a store with room for 13 chunks of TAKEN bytes. */
static const char *const small[] = { "max_remote_size=0.0001", NULL };

/* cmocka's setup: a store with the settings `small`. */
static inline int
env_setup_small(void **state)
{
    static struct env e;

    env_init(&e);
    e.store = open_over(&e, "", small);
    *state = &e;
    return 0;
}

/* cmocka's setup: a store over a new directory. */
static inline int
env_setup(void **state)
{
    static struct env e;

    env_init(&e);
    e.store = open_over(&e, "", NULL);
    *state = &e;
    return 0;
}

static inline void
env_fini(struct env *e)
{
    kvt__store_close(e->store);
    temp_dir_remove(&e->dir);
}

static inline int
teardown(void **state)
{
    env_fini(*state);
    return 0;
}

static inline void
path_of(const struct env *e, unsigned i, char *out, size_t size)
{
    snprintf(out, size, "%s/test-SEP-model@1@0@%x@bfloat16.data", e->dir.path, i);
}

static inline bool
file_there(const struct env *e, unsigned i)
{
    char path[600];

    path_of(e, i, path, sizeof path);
    return !access(path, F_OK);
}

/* ---------------------------------------------------------------- requests */

static inline struct kvt__id
id_of(unsigned i)
{
    struct kvt__id id;
    uint64_t v = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);

    kvt__put_le64(id.b, v ^ (v >> 31));
    kvt__put_le64(id.b + 8, v * UINT64_C(0xbf58476d1ce4e5b9));
    return id;
}

static inline unsigned char
byte_at(unsigned seed, size_t i)
{
    return (unsigned char)(i * 7 + i / 251 + seed * 13);
}

static inline void
fill(unsigned char *bytes, unsigned seed)
{
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = byte_at(seed, i);
}

/* Replace the file of a chunk as LMCache does, by a file whose header has this shape; NULL: by a
 * file without a header. */
static inline void
write_foreign(const struct env *e, unsigned i, const struct kvt__shape *shape,
              size_t bytes)
{
    unsigned char file[KVT__FS_HEADER_BYTES + BYTES];
    size_t header = shape ? KVT__FS_HEADER_BYTES : 0;
    char path[600];

    if (shape)
        kvt__fs_header_put(shape, bytes, file);
    fill(file + header, i);
    path_of(e, i, path, sizeof path);
    (void)unlink(path); /* LMCache renames a new file over the old file */
    write_file(path, file, header + bytes);
}

/* A request with a buffer. */
struct request {
    struct kvt__store_req req; /* first */
    unsigned char *memory;
    sem_t *done;
};

static inline void
request_init(struct request *r, const struct env *e, enum kvt__tier_op_kind op,
             unsigned i)
{
    size_t phase = kvt__store_traits(e->store)->phase;

    r->memory = aligned_alloc(4096, kvt__round_up(2 * KVT__SLOT_MARGIN + phase + BYTES,
                                                  4096));
    if (!r->memory)
        abort();
    r->req = (struct kvt__store_req){
        .op = op, .space = &e->space, .id = id_of(i), .hash.bits = { i }, .tokens = 256,
        .is_full = true, .shape = shape_of_all, .bytes = BYTES,
        .slot = { r->memory + KVT__SLOT_MARGIN + phase, BYTES } };
    fill(r->req.slot.payload, op == KVT__TIER_PUT ? i : i + 1);
    r->req.crc = kvt__crc32c(0, r->req.slot.payload, BYTES);
}

static inline bool
request_holds(const struct request *r, unsigned seed)
{
    for (size_t i = 0; i < BYTES; i++)
        if (r->req.slot.payload[i] != byte_at(seed, i))
            return false;
    return true;
}

static inline int
put(const struct env *e, unsigned i)
{
    struct request r;

    request_init(&r, e, KVT__TIER_PUT, i);
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

/* GET a chunk.  Return 0 only if the bytes are right. */
static inline int
get_verified(const struct env *e, unsigned i, bool *verified)
{
    struct request r;

    request_init(&r, e, KVT__TIER_GET, i);
    kvt__store_run(e->store, &r.req);
    if (!r.req.error.code && !request_holds(&r, i))
        fail_msg("chunk %u: wrong bytes", i);
    if (r.req.error.code && !r.req.error.why[0])
        fail_msg("chunk %u: no sentence for %d", i, r.req.error.code);
    *verified = r.req.verified;
    free(r.memory);
    return r.req.error.code;
}

static inline int
get(const struct env *e, unsigned i)
{
    bool verified;
    int err = get_verified(e, i, &verified);

    if (!err && !verified)
        fail_msg("chunk %u: not verified", i);
    return err;
}

static inline int
probe(const struct env *e, unsigned i)
{
    struct request r;

    request_init(&r, e, KVT__TIER_PROBE, i);
    kvt__store_run(e->store, &r.req);
    free(r.memory);
    return r.req.error.code;
}

static inline void
post_done(struct kvt__store_req *req)
{
    sem_post(((struct request *)req)->done);
}

/* Reopen the store with these settings and threads, submit all requests, and wait until
 * each has ended once. */
static inline void
run_at_once(struct env *e, const char *const *settings, size_t n_threads,
            struct request *requests, size_t n)
{
    struct kvt__exec *exec = NULL;
    char url[600];
    sem_t done;

    sem_init(&done, 0, 0);
    assert_int_equal(kvt__exec_open(n_threads, &exec), 0);
    kvt__store_close(e->store);
    snprintf(url, sizeof url, "remote_url=fs://%s", e->dir.path);
    e->store = open_store(e, url, exec, settings);
    for (size_t i = 0; i < n; i++) {
        requests[i].done = &done;
        requests[i].req.on_done = post_done;
        kvt__store_submit(e->store, &requests[i].req);
    }
    for (size_t i = 0; i < n; i++)
        sem_wait(&done);
    kvt__exec_close(exec);
    assert_int_equal(sem_trywait(&done), -1);
    sem_destroy(&done);
}

static inline struct kvt__chunk_key
key_of(const struct env *e, unsigned i)
{
    return (struct kvt__chunk_key){ .space = &e->space, .hash.bits = { i }, .id = id_of(i) };
}

static inline bool
find(const struct env *e, unsigned i)
{
    struct kvt__chunk_key key = key_of(e, i);

    return kvt__store_find(e->store, &key, KVT__ANYWHERE);
}

static struct kvt__lease last_lease;

static inline bool
lease(const struct env *e, unsigned i)
{
    struct kvt__chunk_key key = key_of(e, i);
    int64_t expires_ns = INT64_MAX;

    return kvt__store_lease(e->store, &key, KVT__ANYWHERE, kvt__now_ns() + 600 * KVT__NS_PER_S,
                            &last_lease, &expires_ns) == 1;
}

static inline struct kvt__table_totals
totals_of(const struct env *e)
{
    struct kvt__table_totals totals;

    kvt__table_get_totals(e->store->levels[0].index, &totals);
    return totals;
}

static inline uint64_t
used(const struct env *e)
{
    return totals_of(e).used_bytes;
}

/* Return the bytes on disk of the files in a directory. */
static inline uint64_t
disk_bytes_in(const char *path)
{
    uint64_t sum = 0;
    struct dirent *e;
    struct stat st;
    DIR *d = opendir(path);

    if (!d)
        return 0;
    while ((e = readdir(d)))
        if (!fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
            S_ISREG(st.st_mode))
            sum += (uint64_t)st.st_blocks * 512;
    closedir(d);
    return sum;
}

/* Return the bytes on disk of all chunks, also of temporary files. */
static inline uint64_t
disk_bytes(const struct env *e)
{
    char opaque[300], temp[300];

    snprintf(opaque, sizeof opaque, "%s/kvtier", e->dir.path);
    snprintf(temp, sizeof temp, "%s/.kvtier/tmp", e->dir.path);
    return disk_bytes_in(e->dir.path) + disk_bytes_in(opaque) + disk_bytes_in(temp);
}

/* The index counts each file once. */
static inline void
check_counted(const struct env *e, uint64_t n_files, uint64_t n_unread)
{
    assert_int_equal(totals_of(e).n_entries, n_files);
    assert_int_equal(totals_of(e).n_unread, n_unread);
    assert_int_equal(used(e), disk_bytes(e));
}

#endif
