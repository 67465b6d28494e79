/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzz target: the file tier reads a chunk's file and its attribute with arbitrary bytes.  An
 * input is { flags: 1 byte, requested payload: 2, n: 1, attribute: n bytes, file }.  With flags,
 * the target sets the correct checksums that guard the other fields, or enlarges the file so that
 * the tier reads the file without the page cache.  kvt_file_parse() reads the contents too, and the
 * codecs are measured on each chunk. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "kvtier.h"
#include "temp-dir.h"
#include "tier/layout/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    HEADER = 1,       /* save_chunk_meta */
    OPAQUE = 2,
    FIT = 4,          /* request the length in the trailer or header */
    GOOD_TRAILER = 8, /* correct magic and checksum */
    GOOD_ATTR = 16,   /* correct magic, checksum, size and time */
    LARGE = 32,
    LOCAL_DISK = 64,  /* the layout of local_disk */
};

#define LARGE_BYTES ((size_t)256 << 10)

struct input {
    unsigned flags;
    size_t requested_bytes;
    uint8_t attr[255];
    size_t n_attr;
    uint8_t *file;
    size_t n_file;
};

static struct temp_dir dir;
static struct kvt__tier *tiers[4]; /* index: HEADER, plus 2 if LOCAL_DISK */
static const char key[] = "model@1@0@1a540024b49d3bfe@bfloat16";

static void
expect(bool holds)
{
    if (!holds)
        abort();
}

static void
clean_up(void)
{
    for (int i = 0; i < 4; i++)
        tiers[i]->ops->close(tiers[i]);
    temp_dir_remove(&dir);
}

static void
begin(void)
{
    static const char *const settings[2][2] = { { "save_chunk_meta=false" },
                                                { "save_chunk_meta=true" } };
    static const char *const no_environment[] = { NULL };
    struct kvt_config_sources sources = KVT_INIT(struct kvt_config_sources);
    struct kvt_config *config;
    char url[300];

    temp_dir_make(&dir);
    sources.file = "/dev/null";
    sources.environment = no_environment;
    for (int i = 0; i < 4; i++) {
        snprintf(url, sizeof url, "%s://%s", i & 2 ? "local_disk" : "fs", dir.path);
        sources.settings = settings[i & 1];
        expect(!kvt_config_open(&sources, &config));
        struct kvt__tier_params params = { .config = config, .name = "fuzz",
                                           .url = url, .local_ranks = 1 };
        expect(!kvt__tier_open(&params, &tiers[i]));
        kvt_config_free(config);
    }
    atexit(clean_up);
}

/* Set magic, length and checksum of a trailer, and keep the other fields. */
static void
set_trailer_sums(uint8_t *trailer)
{
    struct kvt__trailer nothing = { 0 };
    unsigned char good[KVT__TRAILER_BYTES];

    kvt__trailer_put(&nothing, good);
    memcpy(trailer, good, 12);
    kvt__put_le32(trailer + 60, kvt__crc32c(0, trailer, 60));
}

static const struct kvt__layout *
layout_of(const struct input *in)
{
    return in->flags & LOCAL_DISK ? &kvt__layout_local_disk : &kvt__layout_fs;
}

/* Return the payload length that the file states. */
static size_t
stated_bytes(const struct input *in)
{
    struct kvt__found found = { 0 };
    uint64_t n = in->n_file;

    if (in->flags & GOOD_TRAILER && n >= KVT__TRAILER_BYTES)
        n = kvt__get_le64(in->file + n - KVT__TRAILER_BYTES + 16);
    else if (!layout_of(in)->parse(in->file, in->n_file, n, &found))
        n = found.payload_bytes;
    return n <= in->n_file ? (size_t)n : in->n_file;
}

static bool
take_apart(const uint8_t *data, size_t size, struct input *in)
{
    if (size < 4 || (size_t)data[3] + 4 > size)
        return false;
    in->flags = data[0];
    in->requested_bytes = data[1] | (size_t)data[2] << 8;
    in->n_attr = data[3];
    memcpy(in->attr, data + 4, in->n_attr);
    data += 4 + in->n_attr;
    size -= 4 + in->n_attr;
    size_t more = in->flags & LARGE ? LARGE_BYTES : 0;
    size_t head = size < KVT__FS_HEADER_BYTES ? size : KVT__FS_HEADER_BYTES;
    in->n_file = size + more;
    in->file = malloc(in->n_file + 1);
    expect(in->file != NULL);
    memcpy(in->file, data, head);
    memset(in->file + head, 0x5a, more);
    memcpy(in->file + head + more, data + head, size - head);
    if (in->flags & GOOD_TRAILER && in->n_file >= KVT__TRAILER_BYTES)
        set_trailer_sums(in->file + in->n_file - KVT__TRAILER_BYTES);
    in->requested_bytes = in->flags & FIT ? stated_bytes(in) : in->requested_bytes + more;
    return true;
}

static void
make_file(struct input *in)
{
    char path[600], name[256];
    struct stat st;

    expect(!kvt__layout_name(layout_of(in), key, NULL, name, sizeof name));
    snprintf(path, sizeof path, "%s/%s%s", dir.path,
             in->flags & OPAQUE ? "kvtier/" : "", name);
    unlink(path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    expect(fd >= 0 && write(fd, in->file, in->n_file) == (ssize_t)in->n_file);
    expect(!fstat(fd, &st));
    if (in->flags & GOOD_ATTR && in->n_attr >= KVT__XATTR_BYTES) {
        in->n_attr = KVT__XATTR_BYTES;
        set_trailer_sums(in->attr);
        kvt__put_le64(in->attr + KVT__TRAILER_BYTES, in->n_file);
        kvt__put_le64(in->attr + KVT__TRAILER_BYTES + 8,
                      (uint64_t)st.st_mtim.tv_sec * 1000000000u +
                          (uint64_t)st.st_mtim.tv_nsec);
    }
    if (in->n_attr)
        (void)!fsetxattr(fd, KVT__XATTR_NAME, in->attr, in->n_attr, 0);
    close(fd);
}

static void
get(const struct input *in, struct kvt__tier *tier, const struct kvt__object *object)
{
    size_t phase = tier->phase;
    size_t room = (2 * KVT__SLOT_MARGIN + phase + in->requested_bytes + 4095) / 4096 * 4096;
    unsigned char *base = aligned_alloc(4096, room);
    struct kvt__found found = { 0 };

    expect(base != NULL);
    struct kvt__slot slot = { .payload = base + KVT__SLOT_MARGIN + phase,
                              .bytes = in->requested_bytes };
    if (!kvt__tier_get(tier, object, &slot, &found)) {
        const uint8_t *at = in->file;

        expect(in->n_file >= slot.bytes && found.payload_bytes == slot.bytes);
        expect(!found.has_read_crc ||
               found.read_crc == kvt__crc32c(0, slot.payload, slot.bytes));
        expect(found.has_id || !object->opaque);
        /* A file with a header has the payload behind the header. */
        if (memcmp(at, slot.payload, slot.bytes))
            expect(in->n_file >= slot.bytes + KVT__FS_HEADER_BYTES &&
                   !memcmp(at + KVT__FS_HEADER_BYTES, slot.payload, slot.bytes));
    }
    free(base);
}

static void
on_codec(void *ctx, const struct kvt_codec_chunk *chunk, const struct kvt_codec_result *result)
{
    (void)ctx;
    expect(!result->status || result->status == -ENOTSUP);
    expect(result->encoded_bytes <= chunk->bytes);
}

static void
parse(const struct input *in)
{
    struct kvt_op op = KVT_INIT(struct kvt_op);

    op.key = key;
    op.bytes = in->n_file;
    op.buf = malloc(in->n_file + !in->n_file);
    expect(op.buf != NULL);
    memcpy(op.buf, in->file, in->n_file);
    if (!kvt_file_parse(&op)) {
        expect(op.found_bytes <= in->n_file);
        (void)!kvt_codec_measure(&op, on_codec, NULL);
    }
    free(op.buf);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvt__object object = { .key = key, .hash.bits = { 0x1a540024b49d3bfe },
                                  .is_full = true, .tokens = 256 };
    struct kvt__found found = { 0 };
    struct input in;

    if (!tiers[0])
        begin();
    if (!take_apart(data, size, &in))
        return 0;
    struct kvt__tier *tier = tiers[(in.flags & HEADER) + (in.flags & LOCAL_DISK ? 2 : 0)];
    object.opaque = (in.flags & OPAQUE) != 0;
    make_file(&in);
    if (!kvt__tier_probe(tier, &object, &found))
        expect(found.payload_bytes <= in.n_file);
    get(&in, tier, &object);
    parse(&in);
    free(in.file);
    return 0;
}
