/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier get: copy a chunk's bytes to a file. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "file.h"

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

/* Replace the encoded chunk in op->buf by the decoded chunk.  Return an exit code, after printing
 * the error. */
static int
decode(struct kvt_op *op)
{
    struct kvt_frame frame = KVT_INIT(struct kvt_frame);
    int err = kvt_frame_decode(op->buf, op->found_bytes, &frame, NULL);
    void *chunk = err ? NULL : malloc(frame.bytes);

    if (!err && !chunk)
        return cli_error(CLI_ENVIRONMENT, "get: no memory for %" PRIu64 " bytes", frame.bytes);
    if (!err)
        err = kvt_frame_decode(op->buf, op->found_bytes, &frame, chunk);
    if (err) {
        free(chunk);
        return cli_error(cli_code(err), "%s: %s", op->key, kvt_last_error());
    }
    free(op->buf);
    op->buf = chunk;
    op->found_bytes = frame.bytes;
    return CLI_DONE;
}

/* Print notes about the bytes that FILE receives. */
static void
print_notes(const struct kvt_op *op, bool is_encoded)
{
    if (!(op->found & KVT_FOUND_CHECKED))
        fprintf(stderr, "kvtier: %s has no checksum: only the length was checked\n", op->key);
    if (is_encoded)
        fprintf(stderr, "kvtier: %s is encoded as %s; --decode writes the decoded chunk\n",
                op->key, kvt_key_encoding(op->key));
}

static int
get_key(struct kvt_store *store, const struct cli_common *c, bool decodes)
{
    const char *key = c->args[0];
    bool is_encoded = strcmp(kvt_key_encoding(key), "naive");
    struct kvt_op op;
    int code = cli_read_chunk(store, key, &op);

    if (!code && !op.status && is_encoded && decodes)
        code = decode(&op);
    if (!code && !op.status) {
        if (!c->json)
            print_notes(&op, is_encoded && !decodes);
        code = write_file(c->args[1], op.buf, op.found_bytes);
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
    bool decodes = false;
    int code = cli_parse(&cli_get, argc, argv, (const struct cli_option[]){
        { "decode", .flag = &decodes }, { 0 } }, 2, 2, &c);

    if (!code && c.json && !strcmp(c.args[1], "-"))
        code = cli_usage(&cli_get, "--json and the chunk cannot both go to the standard "
                         "output; name a FILE");
    if (!code)
        code = cli_open_store(&c, &store);
    if (code)
        return code;
    code = get_key(store, &c, decodes);
    kvt_store_close(store);
    return code;
}

const struct cli_command cli_get = {
    .name = "get",
    .usage = "[OPTIONS] KEY FILE",
    .summary = "copy a chunk's bytes to a file",
    .help = "Reads the chunk, verifies the checksum and writes the payload to FILE (- for the\n"
            "standard output). After a failure FILE is unchanged. The payload of an encoded chunk\n"
            "(remote_serde) is the encoded chunk, which put stores again.\n\n"
            "  --decode         decode an encoded chunk, and verify the decoded chunk\n"
            CLI_COMMON_HELP,
    .negative = "the chunk is missing or corrupt; FILE was not written",
    .run = get_run,
};
