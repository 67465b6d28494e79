/* SPDX-License-Identifier: Apache-2.0
 *
 * kvtier rm: delete chunks by key or by prefix. */
#include "common.h"
#include "delete.h"

static int
rm_keys(const struct cli_common *c)
{
    struct kvt_store *store;
    int code = cli_open_store(c, &store);

    if (code)
        return code;
    for (int i = 0; i < c->n_args; i++) {
        struct kvt_op op = KVT_INIT(struct kvt_op);

        op.kind = KVT_OP_DELETE;
        op.key = c->args[i];
        (void)!kvt_store_run(store, &op);
        (void)cli_print_result(c, &op);
        int one = cli_delete_code(op.status);
        code = one > code ? one : code;
    }
    kvt_store_close(store);
    return code;
}

static int
rm_run(int argc, char **argv)
{
    struct cli_common c;
    struct cli_delete options = { .command = &cli_rm, .common = &c, .before_ns = INT64_MAX };
    int code = cli_parse(&cli_rm, argc, argv, (const struct cli_option[]){
        { "prefix", .text = &options.prefix }, { "dry-run", .flag = &options.dry_run }, { 0 } },
        0, -1, &c);

    if (code)
        return code;
    if (options.prefix && !*options.prefix)
        return cli_usage(&cli_rm, "--prefix needs at least one character");
    if (options.prefix && c.n_args)
        return cli_usage(&cli_rm, "KEY '%s' beside --prefix", c.args[0]);
    if (options.dry_run && !options.prefix)
        return cli_usage(&cli_rm, "--dry-run needs --prefix");
    if (!options.prefix && !c.n_args)
        return cli_usage(&cli_rm, "an argument is missing");
    return options.prefix ? cli_delete(&options) : rm_keys(&c);
}

const struct cli_command cli_rm = {
    .name = "rm",
    .usage = "[OPTIONS] KEY...\n"
             "[OPTIONS] --prefix PREFIX [--dry-run]",
    .summary = "remove chunks from every tier",
    .help = "Removes each KEY, or all chunks whose keys begin with PREFIX, as 'kvtier ls\n"
            "PREFIX' lists the chunks.\n\n"
            "  --prefix PREFIX  remove the chunks whose keys begin with PREFIX\n"
            "  --dry-run        print the chunks that --prefix would remove, remove none\n"
            CLI_COMMON_HELP,
    .negative = "a KEY is missing, or a chunk is in use and stays; the other chunks were removed",
    .run = rm_run,
};
