/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: records of an index's snapshot.  An input is the bytes between the header and
 * the end of the file; the target adds both, with the right checksum, so that mutations
 * reach the records.  The first 4 bytes are the number of entries that the end states. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "table/layout.h"
#include "table/snapshot.h"

#define MAX_ENTRIES 2048

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char path[] = "/tmp/kvt-fuzz-snapshot-XXXXXX";
static int dirfd_ = -1;

static void
expect(bool holds)
{
    if (!holds)
        abort();
}

static void
clean_up(void)
{
    unlinkat(dirfd_, SN_NAME, 0);
    rmdir(path);
}

static void
save(const uint8_t *data, size_t size, uint32_t n_entries)
{
    struct sn_header header = { .of_memory = 0 };

    memcpy(header.magic, SN_MAGIC, sizeof header.magic);
    unlinkat(dirfd_, SN_NAME, 0); /* the close of a truncated file waits for the disk */
    int fd = openat(dirfd_, SN_NAME, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    uint32_t crc = kvt__crc32c(kvt__crc32c(0, &header, sizeof header), data, size);
    struct sn_end end = { SN_END | (uint64_t)crc << 32, n_entries };
    expect(write(fd, &header, sizeof header) == sizeof header &&
           write(fd, data, size) == (ssize_t)size &&
           write(fd, &end, sizeof end) == sizeof end);
    close(fd);
}

struct sums {
    struct kvt__table *table;
    uint64_t n, n_unread, bytes;
};

static bool
add(void *ctx, const struct kvt__record *r)
{
    struct sums *s = ctx;
    char text[KVT__TABLE_TEXT_MAX + 1];

    expect(r->bytes < TB_MAX_BYTES && r->hash.form <= KVT__HASH_WIDE);
    expect(r->space == TB_NO_SPACE ||
           !kvt__table_space_text(s->table, r->space, text, sizeof text));
    s->n++;
    s->n_unread += r->flags & KVT__TABLE_UNREAD;
    s->bytes += r->bytes;
    return true;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvt__table_params params = { .max_entries = MAX_ENTRIES, .writer = true,
                                        .limit_bytes = 1 << 20, .wide_hashes = true };
    struct kvt__table_totals totals;
    struct sums sums = { 0 };
    uint32_t n_entries;

    if (size < sizeof n_entries)
        return 0;
    if (dirfd_ < 0) {
        expect(mkdtemp(path));
        dirfd_ = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        atexit(clean_up);
    }
    memcpy(&n_entries, data, sizeof n_entries);
    save(data + sizeof n_entries, size - sizeof n_entries, n_entries);
    expect(!kvt__table_open_private(&params, &sums.table));
    int64_t n = kvt__table_read_snapshot(sums.table, dirfd_);
    expect(n >= 0 || n == -EBADMSG);
    kvt__table_each(sums.table, add, &sums);
    kvt__table_get_totals(sums.table, &totals);
    expect(sums.n == (n < 0 ? 0 : (uint64_t)n) && totals.n_entries == sums.n &&
           totals.n_unread == sums.n_unread && totals.used_bytes == sums.bytes &&
           sums.bytes <= params.limit_bytes);
    kvt__table_close(sums.table);
    return 0;
}
