#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# bash completes commands, options and files of kvtier.
#   KVTIER=build/kvtier sh tests/cli/completion-bash.sh
command=
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib"
. "$here/lib-completion"

cat >rc <<END
. $(dirname "$kvtier")/kvtier.bash
. ./function
bind '"\t": insert-completions'
END
completes env INPUTRC=/dev/null bash --noprofile --rcfile rc -i
finish completion-bash
