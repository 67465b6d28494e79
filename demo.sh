#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Show on a bare machine that a vLLM server loads the KV cache of an earlier server from
# kvtier: install the dependencies, build kvtier, start vLLM, restart vLLM and compare the
# answers.  With --wheel, build kvtier's wheel and run `kvtier doctor` from the installed
# wheel.  ./demo.sh --help lists the options.
set -eu
cd "$(dirname "$0")"
command -v python3 >/dev/null || scripts/install-deps
case " $* " in
*' --help '* | *' -h '*) exec python3 demo/demo.py --help ;;
*' --wheel '*) exec python3 demo/wheel.py "$@" ;;
esac
exec python3 demo/demo.py "$@"
