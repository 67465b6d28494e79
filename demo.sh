#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The main job, from nothing: install what is needed, build, and show a real vLLM
# that gets its KV cache back after a restart.  ./demo.sh --help tells more.
set -eu
cd "$(dirname "$0")"
case " $* " in
*' --wheel '*) exec python3 demo/wheel.py "$@" ;;
esac
scripts/install-deps
echo "Building kvtier ..." >&2
make -s programs >build.log 2>&1 || { cat build.log >&2; exit 3; }
rm -f build.log
exec python3 demo/demo.py "$@"
