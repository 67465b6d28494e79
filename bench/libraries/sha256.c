/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 of many short messages: kvtier's lanes, OpenSSL, and the multi-buffer managers of
 * ISA-L_crypto.  A lookup hashes such messages, 64 at a time (src/key/identity.c): leaves, which
 * are 9 bytes and the 256 tokens of a chunk, and identities, which are 33 and 16 bytes. */
#include <string.h>

#include "internal/sha256_mb_internal.h"
#include "key/sha256-many.h"
#include "measure.h"

#define N_MESSAGES 3904u /* the chunks of a prompt of 1,000,000 tokens */
#define BATCH 64u
#define MAX_TEXT 1024u
#define MAX_HEAD 64u

struct messages {
    const char *what;
    size_t n_head, n; /* bytes of the head and of each text */
    uint8_t *texts;
    uint8_t (*digests)[KVT__SHA256_BYTES];
};

/* --------------------------------------------------------- kvtier and OpenSSL */

static const uint8_t head[MAX_HEAD];

static void
run_lanes(void *ctx)
{
    const struct messages *m = ctx;

    for (size_t i = 0; i < N_MESSAGES; i += BATCH)
        kvt__sha256_many(head, m->n_head, m->texts + i * m->n, m->n, BATCH, m->digests + i);
}

/* Two messages at a time use the SHA instructions, if the processor has SHA instructions. */
static void
run_pairs(void *ctx)
{
    const struct messages *m = ctx;

    for (size_t i = 0; i < N_MESSAGES; i += 2)
        kvt__sha256_many(head, m->n_head, m->texts + i * m->n, m->n, 2, m->digests + i);
}

static void
run_openssl(void *ctx)
{
    const struct messages *m = ctx;

    for (size_t i = 0; i < N_MESSAGES; i++) {
        struct kvt__sha256 sha;

        kvt__sha256_init(&sha);
        kvt__sha256_add(&sha, head, m->n_head);
        kvt__sha256_add(&sha, m->texts + i * m->n, m->n);
        kvt__sha256_end(&sha, m->digests[i]);
    }
}

/* --------------------------------------------------------------- ISA-L_crypto */

static const struct manager {
    const char *name;
    void (*init)(ISAL_SHA256_HASH_CTX_MGR *manager);
    ISAL_SHA256_HASH_CTX *(*submit)(ISAL_SHA256_HASH_CTX_MGR *manager,
                                    ISAL_SHA256_HASH_CTX *message, const void *bytes,
                                    uint32_t n, ISAL_HASH_CTX_FLAG flags);
    ISAL_SHA256_HASH_CTX *(*flush)(ISAL_SHA256_HASH_CTX_MGR *manager);
} managers[] = {
    { "ISA-L_crypto, chosen for this processor", _sha256_ctx_mgr_init, _sha256_ctx_mgr_submit,
      _sha256_ctx_mgr_flush },
    { "ISA-L_crypto, SHA without AVX-512", _sha256_ctx_mgr_init_sse_ni,
      _sha256_ctx_mgr_submit_sse_ni, _sha256_ctx_mgr_flush_sse_ni },
    { "ISA-L_crypto, AVX2", _sha256_ctx_mgr_init_avx2, _sha256_ctx_mgr_submit_avx2,
      _sha256_ctx_mgr_flush_avx2 },
};

static const struct manager *used;
static ISAL_SHA256_HASH_CTX_MGR manager __attribute__((aligned(64)));
static ISAL_SHA256_HASH_CTX hashes[BATCH] __attribute__((aligned(64)));

static void
run_manager(void *ctx)
{
    const struct messages *m = ctx;

    for (size_t at = 0; at < N_MESSAGES; at += BATCH) {
        for (size_t i = 0; i < BATCH; i++) {
            isal_hash_ctx_init(&hashes[i]);
            used->submit(&manager, &hashes[i], head, (uint32_t)m->n_head, ISAL_HASH_FIRST);
            used->submit(&manager, &hashes[i], m->texts + (at + i) * m->n, (uint32_t)m->n,
                         ISAL_HASH_LAST);
        }
        while (used->flush(&manager))
            continue;
        for (size_t i = 0; i < BATCH; i++)
            for (size_t word = 0; word < 8; word++) {
                uint32_t v = __builtin_bswap32(hashes[i].job.result_digest[word]);
                memcpy(m->digests[at + i] + 4 * word, &v, sizeof v);
            }
    }
}

/* ------------------------------------------------------------------- the table */

static uint8_t expected[N_MESSAGES][KVT__SHA256_BYTES];

static void
print_row(const char *name, void (*run)(void *ctx), struct messages *m)
{
    char label[80];

    snprintf(label, sizeof label, "%s: %s", m->what, name);
    memset(m->digests, 0, sizeof expected);
    measure(label, run, m, N_MESSAGES, "message");
    if (memcmp(m->digests, expected, sizeof expected)) {
        printf("%s: wrong digests\n", label);
        exit(1);
    }
}

int
main(void)
{
    static uint8_t texts[N_MESSAGES * MAX_TEXT], digests[N_MESSAGES][KVT__SHA256_BYTES];
    struct messages kinds[] = { { "leaf", 9, MAX_TEXT, texts, digests },
                                { "identity", 33, 16, texts, digests } };

    for (size_t i = 0; i < sizeof texts; i++)
        texts[i] = (uint8_t)(i * 31 ^ i >> 9);
    for (struct messages *m = kinds; m < kinds + 2; m++) {
        run_openssl(m);
        memcpy(expected, digests, sizeof expected);
        print_row("OpenSSL", run_openssl, m);
        print_row("kvtier", run_lanes, m);
        print_row("kvtier, two at a time", run_pairs, m);
        for (used = managers; used < managers + sizeof managers / sizeof *managers; used++) {
            used->init(&manager);
            print_row(used->name, run_manager, m);
        }
    }
    return 0;
}
