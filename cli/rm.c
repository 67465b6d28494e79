/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier rm */
#include "common.h"

static int
rm_run(int argc, char **argv)
{
    struct cli_common c;
    struct kvt_store *store;
    int code = cli_parse(&cli_rm, argc, argv, NULL, 1, -1, &c);

    if (!code)
        code = cli_open_store(&c, &store);
    if (code)
        return code;
    for (int i = 0; i < c.n_args; i++) {
        struct kvt_op op = KVT_INIT(struct kvt_op);

        op.kind = KVT_OP_DELETE;
        op.key = c.args[i];
        (void)!kvt_store_run(store, &op);
        int one = cli_tell(&c, &op);
        code = one > code ? one : code;
    }
    kvt_store_close(store);
    return code;
}

const struct cli_command cli_rm = {
    .name = "rm",
    .usage = "[OPTIONS] KEY...",
    .summary = "remove chunks from every tier",
    .help = "Removes each KEY.\n\n"
            CLI_COMMON_HELP,
    .no = "a KEY is missing; the other chunks were removed",
    .run = rm_run,
};
