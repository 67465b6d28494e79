/* SPDX-License-Identifier: Apache-2.0
 *
 * Driver that runs a fuzz target without libFuzzer and with reproducible inputs:
 *
 *   fuzz-NAME COUNT FILE...
 *
 * runs the target on each seed and then on COUNT mutations of the seeds.  In a file whose name
 * ends in .seeds, each line is a seed, with \xNN for any byte and \n for a newline; lines that
 * begin with # are comments.  Any other file is a single seed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SEEDS 512
#define MAX_BYTES ((size_t)1 << 16)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seed {
    uint8_t *data;
    size_t n;
};

static struct seed seeds[MAX_SEEDS];
static size_t n_seeds;

static void
add_seed(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);

    if (!copy || n_seeds == MAX_SEEDS || n > MAX_BYTES) {
        fprintf(stderr, "too many seeds, or too long\n");
        exit(1);
    }
    memcpy(copy, data, n);
    seeds[n_seeds++] = (struct seed){ copy, n };
}

/* Resolve the escapes of a line in place.  Return the number of bytes. */
static size_t
unescape(char *line)
{
    size_t n = 0;
    unsigned byte;

    for (char *p = line; *p && *p != '\n'; n++) {
        if (*p == '\\' && p[1] == 'n') {
            line[n] = '\n';
            p += 2;
        } else if (*p == '\\' && sscanf(p, "\\x%2x", &byte) == 1) {
            line[n] = (char)byte;
            p += 4;
        } else {
            line[n] = *p++;
        }
    }
    return n;
}

static void
read_seeds(const char *path)
{
    static char text[MAX_BYTES + 1];
    size_t len = strlen(path);
    FILE *f = fopen(path, "r");

    if (!f) {
        perror(path);
        exit(1);
    }
    if (len > 6 && !strcmp(path + len - 6, ".seeds")) {
        while (fgets(text, sizeof text, f))
            if (*text != '#')
                add_seed((uint8_t *)text, unescape(text));
    } else {
        add_seed((uint8_t *)text, fread(text, 1, sizeof text, f));
    }
    fclose(f);
}

static uint64_t
next(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

/* Replace a part of the data by a part of another seed.  Return the new length. */
static size_t
splice(uint8_t *data, size_t n, uint64_t *x)
{
    const struct seed *other = &seeds[next(x) % n_seeds];
    size_t from = other->n ? next(x) % other->n : 0;
    size_t len = next(x) % (other->n - from + 1);
    size_t at = next(x) % (n + 1), cut = next(x) % (n - at + 1);

    if (n - cut + len > MAX_BYTES)
        return n;
    memmove(data + at + len, data + at + cut, n - at - cut);
    if (len)
        memcpy(data + at, other->data + from, len);
    return n - cut + len;
}

static size_t
mutate(uint8_t *data, uint64_t *x)
{
    static const uint8_t notable[] = { 0, 1, 0x7f, 0x80, 0xff, '@', ':', '\n', '"', '-' };
    const struct seed *seed = &seeds[next(x) % n_seeds];
    size_t n = seed->n;

    memcpy(data, seed->data, n);
    for (uint64_t left = 1 + next(x) % 4; left; left--) {
        size_t at = n ? next(x) % n : 0;

        switch (next(x) % 4) {
        case 0:
            n = splice(data, n, x);
            break;
        case 1:
            if (n)
                data[at] = notable[next(x) % sizeof notable];
            break;
        case 2:
            if (n)
                data[at] ^= (uint8_t)(1u << next(x) % 8);
            break;
        default:
            if (n)
                data[at] = (uint8_t)next(x);
        }
    }
    return n;
}

/* Run the target on a copy of exactly this size, so that the sanitizer detects a read beyond the
 * end. */
static void
run(const uint8_t *data, size_t n)
{
    uint8_t *copy = malloc(n ? n : 1);

    if (!copy)
        abort();
    memcpy(copy, data, n);
    LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

int
main(int argc, char **argv)
{
    static uint8_t data[2 * MAX_BYTES];
    uint64_t x = 88172645463325252u;

    for (int i = 2; i < argc; i++)
        read_seeds(argv[i]);
    if (!n_seeds) {
        fprintf(stderr, "usage: %s COUNT FILE...\n", argv[0]);
        return 2;
    }
    for (size_t i = 0; i < n_seeds; i++)
        run(seeds[i].data, seeds[i].n);
    for (long left = atol(argv[1]); left > 0; left--)
        run(data, mutate(data, &x));
    for (size_t i = 0; i < n_seeds; i++)
        free(seeds[i].data);
    printf("%zu seeds, %ld mutations\n", n_seeds, atol(argv[1]));
    return 0;
}
