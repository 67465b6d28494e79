/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier get: copy a chunk's bytes to a file. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "file.h"

#define FIRST_BYTES (UINT64_C(64) << 20) /* size of the first buffer; few chunks are larger */

/* Write n bytes to a file, or to the standard output if path is "-".  After a failure the file does
 * not exist or is unchanged; a device or a pipe may have a part of the bytes.  Return an exit code,
 * after printing the error. */
static int
write_file(const char *path, const void *buf, size_t n)
{
    struct cli_file file = { .out = stdout };
    bool is_file = strcmp(path, "-");
    int err = is_file ? cli_file_open(&file, path) : 0;

    if (!err && (fwrite(buf, 1, n, file.out) != n || fflush(file.out)))
        err = -errno;
    if (is_file) {
        int close_err = cli_file_close(&file, !err);

        err = err ? err : close_err;
    }
    if (err)
        return cli_error(CLI_ENVIRONMENT, "get: write %s: %s", path, strerror(-err));
    return CLI_DONE;
}

/* Free op->buf, allocate `room` bytes and run the GET into the new buffer.  The caller frees
 * op->buf.  op->status has the result.  Return CLI_DONE, or an exit code if the allocation
 * failed. */
static int
read_chunk(struct kvt_store *store, struct kvt_op *op, uint64_t room)
{
    free(op->buf);
    op->buf = malloc(room);
    op->bytes = room;
    if (!op->buf)
        return cli_error(CLI_ENVIRONMENT, "get: no memory for %" PRIu64 " bytes", room);
    (void)!kvt_store_run(store, op);
    return CLI_DONE;
}

static int
get_key(struct kvt_store *store, const struct cli_common *c, const char *key,
        const char *path)
{
    struct kvt_op op = KVT_INIT(struct kvt_op);
    int code;

    op.kind = KVT_OP_GET;
    op.flags = KVT_OP_LISTED;
    op.key = key;
    code = read_chunk(store, &op, FIRST_BYTES);
    if (!code && op.status == -EMSGSIZE) /* found_bytes has the size */
        code = read_chunk(store, &op, op.found_bytes);
    if (code)
        return code;
    if (!op.status) {
        if (!(op.found & KVT_FOUND_CHECKED) && !c->json)
            fprintf(stderr, "kvtier: %s has no checksum: only the length was checked\n", key);
        code = write_file(path, op.buf, op.found_bytes);
    }
    if (!code)
        code = cli_print_result(c, &op);
    free(op.buf);
    return code;
}

static int
get_run(int argc, char **argv)
{
    struct cli_common c;
    struct kvt_store *store;
    int code = cli_parse(&cli_get, argc, argv, NULL, 2, 2, &c);

    if (!code && c.json && !strcmp(c.args[1], "-"))
        code = cli_usage(&cli_get, "--json and the chunk cannot both go to the standard "
                         "output; name a FILE");
    if (!code)
        code = cli_open_store(&c, &store);
    if (code)
        return code;
    code = get_key(store, &c, c.args[0], c.args[1]);
    kvt_store_close(store);
    return code;
}

const struct cli_command cli_get = {
    .name = "get",
    .usage = "[OPTIONS] KEY FILE",
    .summary = "copy a chunk's bytes to a file",
    .help = "Reads the chunk, verifies the checksum and writes the payload to FILE (- for the\n"
            "standard output). After a failure FILE is unchanged.\n\n"
            CLI_COMMON_HELP,
    .negative = "the chunk is missing or corrupt; FILE was not written",
    .run = get_run,
};
