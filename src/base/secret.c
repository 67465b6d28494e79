/* SPDX-License-Identifier: Apache-2.0 */
#include "base/secret.h"

#include <string.h>
#include <sys/mman.h>

/* The header in front of the caller's memory. */
struct header {
    _Alignas(max_align_t) size_t bytes; /* size of the mapping, including this header */
};

void *
kvt__secret_alloc(size_t bytes)
{
    size_t all = bytes + sizeof(struct header);
    struct header *header;

    if (all < bytes)
        return NULL;
    header = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (header == MAP_FAILED)
        return NULL;
    if (madvise(header, all, MADV_DONTDUMP) < 0) {
        munmap(header, all);
        return NULL;
    }
    header->bytes = all;
    return header + 1;
}

void
kvt__secret_free(void *memory)
{
    struct header *header = memory;

    if (!header)
        return;
    header--;
    size_t all = header->bytes;
    explicit_bzero(header, all);
    munmap(header, all);
}
