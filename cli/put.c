/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier put: store a file's bytes under a key. */
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "file.h"

static int
put_run(int argc, char **argv)
{
    struct kvt_op op = KVT_INIT(struct kvt_op);
    struct cli_common c;
    struct kvt_store *store;
    unsigned char *buf = NULL;
    size_t n;
    int code = cli_parse(&cli_put, argc, argv, NULL, 2, 2, &c);

    if (!code)
        code = cli_open_store(&c, &store);
    if (code)
        return code;
    op.kind = KVT_OP_PUT;
    op.key = c.args[0];
    int err = cli_file_read(c.args[1], UINT64_MAX, &buf, &n);
    op.buf = buf;
    op.bytes = n;
    if (err) {
        code = cli_error(CLI_ENVIRONMENT, "put: read %s: %s", c.args[1], strerror(-err));
    } else {
        (void)!kvt_store_run(store, &op);
        code = cli_print_result(&c, &op);
    }
    free(buf);
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
