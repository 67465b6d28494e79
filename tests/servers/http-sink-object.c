/* SPDX-License-Identifier: Apache-2.0
 *
 * The object of http-sink. */
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "http-sink.h"

enum { BLOCK_BYTES = 1 << 20 };

struct sink sink;

static void
die(const char *what)
{
    perror(what);
    exit(1);
}

static unsigned char *
new_block(size_t bytes)
{
    unsigned char *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (block == MAP_FAILED)
        die("memory for the object");
    madvise(block, bytes, MADV_HUGEPAGE);
    sink.block = block;
    sink.block_bytes = bytes;
    return block;
}

static void
read_object(const char *file)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    unsigned char *block;
    struct stat st;

    if (fd < 0 || fstat(fd, &st) || st.st_size == 0)
        die(file);
    sink.object_bytes = (size_t)st.st_size;
    block = new_block(sink.object_bytes);
    for (size_t done = 0; done < sink.object_bytes;) {
        ssize_t got = read(fd, block + done, sink.object_bytes - done);

        if (got <= 0)
            die(file);
        done += (size_t)got;
    }
    close(fd);
}

static void
make_object(size_t bytes)
{
    uint64_t x = 1, *words = (uint64_t *)(void *)new_block(BLOCK_BYTES);

    sink.object_bytes = bytes;
    for (size_t i = 0; i < BLOCK_BYTES / sizeof(*words); i++)
        words[i] = x = x * 6364136223846793005u + 1442695040888963407u;
}

static void
make_checksum(void)
{
    unsigned char big_endian[4], text[16];
    uint32_t crc = 0;

    for (size_t done = 0, n; done < sink.object_bytes; done += n) {
        n = sink.object_bytes - done;
        if (n > sink.block_bytes)
            n = sink.block_bytes;
        crc = kvt__crc32c(crc, sink.block, n);
    }
    for (int i = 0; i < 4; i++)
        big_endian[i] = (unsigned char)(crc >> (24 - 8 * i));
    EVP_EncodeBlock(text, big_endian, 4);
    snprintf(sink.checksum, sizeof(sink.checksum), "x-amz-checksum-crc32c: %s\r\n", text);
}

void
sink_make_object(const char *file, size_t bytes)
{
    if (file)
        read_object(file);
    else
        make_object(bytes);
    make_checksum();
}

void
sink_add_field(const char *text)
{
    size_t used = strlen(sink.fields);

    if (used + strlen(text) + 3 > sizeof(sink.fields) || strpbrk(text, "\r\n")) {
        fprintf(stderr, "--header: too long\n");
        exit(2);
    }
    snprintf(sink.fields + used, sizeof(sink.fields) - used, "%s\r\n", text);
}
