/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier put: store a file's bytes under a key. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

/* Return all bytes of a file, or of the standard input if path is "-".  *n: the number of bytes.
 * The caller frees the buffer.  NULL: an error was printed. */
static unsigned char *
read_all(const char *path, size_t *n)
{
    FILE *f = strcmp(path, "-") ? fopen(path, "rbe") : stdin;
    unsigned char *buf = NULL;
    size_t room = 0, got = 1;

    *n = 0;
    while (f && got) {
        if (*n == room) {
            room = room ? room * 2 : 1 << 20;
            unsigned char *grown = realloc(buf, room);
            if (!grown)
                break;
            buf = grown;
        }
        got = fread(buf + *n, 1, room - *n, f);
        *n += got;
    }
    if (!f || got || ferror(f)) {
        cli_error(CLI_ENVIRONMENT, "put: read %s: %s", path, strerror(errno));
        free(buf);
        buf = NULL;
    }
    if (f && f != stdin)
        fclose(f);
    return buf;
}

static int
put_run(int argc, char **argv)
{
    struct kvt_op op = KVT_INIT(struct kvt_op);
    struct cli_common c;
    struct kvt_store *store;
    size_t n;
    int code = cli_parse(&cli_put, argc, argv, NULL, 2, 2, &c);

    if (!code)
        code = cli_open_store(&c, &store);
    if (code)
        return code;
    op.kind = KVT_OP_PUT;
    op.key = c.args[0];
    op.buf = read_all(c.args[1], &n);
    op.bytes = n;
    if (!op.buf) {
        code = CLI_ENVIRONMENT;
    } else {
        (void)!kvt_store_run(store, &op);
        code = cli_print_result(&c, &op);
    }
    free(op.buf);
    kvt_store_close(store);
    return code;
}

const struct cli_command cli_put = {
    .name = "put",
    .usage = "[OPTIONS] KEY FILE",
    .summary = "store a file's bytes under a key",
    .help = "Stores FILE (- for the standard input) under KEY, with an identity and a checksum,\n"
            "and replaces an existing chunk. KEY is a key text of LMCache:\n"
            "MODEL@WORLD_SIZE@RANK@HASH@DTYPE, for example\n\n"
            "  kvtier put meta-llama/Llama-3.1-8B@1@0@1a540024b49d3bfe@bfloat16 "
            "chunk.bin\n\n"
            CLI_COMMON_HELP,
    .negative = "does not occur",
    .run = put_run,
};
