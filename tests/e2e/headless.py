# SPDX-License-Identifier: Apache-2.0
"""`vllm serve --headless` with the arguments of vLLM's api_server: the workers of another host.
The command line of vLLM needs an installed package, and an environment may lack one."""

if __name__ == "__main__":
    from vllm.entrypoints.cli.serve import run_headless
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
    arguments.api_server_count = 0
    run_headless(arguments)
