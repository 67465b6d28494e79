#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# All tests, from nothing: install what is needed, build, run.  The last line is
# "N passed, N failed, N skipped".
set -eu
cd "$(dirname "$0")"
scripts/install-deps
exec scripts/run-tests "$@"
