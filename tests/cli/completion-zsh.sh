#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# zsh completes commands, options and files of kvtier.
#   KVTIER=build/kvtier sh tests/cli/completion-zsh.sh
command=
here=$(cd "$(dirname "$0")" && pwd)
. "$here/lib"
if ! { command -v zsh && command -v script; } >/dev/null; then
    echo 'skipped: needs zsh and script'
    exit 77
fi
. "$here/lib-completion"

cat >.zshrc <<END
fpath=($(dirname "$kvtier") \$fpath)
autoload -U compinit
compinit -D -u
. ./function
zle -C all-matches complete-word _generic
zstyle ':completion:all-matches:*' completer _all_matches _complete
zstyle ':completion:all-matches:*' insert yes
bindkey '^I' all-matches
END
# script(1) gives zsh a terminal.
completes env ZDOTDIR=. TERM=dumb script -qec 'zsh -d -i' /dev/null
finish completion-zsh
