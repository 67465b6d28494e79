#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The Debian package has no error or warning of lintian.  Installed into a temporary root, the
# command, the header, the library, the manual page and the completions can be used.  A removal
# leaves no file.  The system is not changed.
set -eu
cd "$(dirname "$0")/../.."
[ "$(id -u)" = 0 ] || { echo 'dpkg installs packages only for root'; exit 77; }
scripts/install-deps dpkg-dev lintian || exit 77
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
root=$temp/root
die() { echo "$*"; exit 1; }

deb=$(scripts/make-deb "$temp/dist")
lintian --allow-root --fail-on error,warning "$deb"

# With the system's list of packages dpkg checks the dependencies.
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates" "$root/var/log"
cp /var/lib/dpkg/status "$root/var/lib/dpkg"
in_root() {
    dpkg --root="$root" --no-triggers "$@" >"$temp/log" 2>&1 ||
        { cat "$temp/log"; die "dpkg $* failed"; }
}
installed() { find "$root" -path "$root/var" -prune -o ! -type d -printf '%P\n' | sort; }
in_root --install "$deb"
dpkg --root="$root" --audit kvtier >"$temp/audit"
[ ! -s "$temp/audit" ] || { cat "$temp/audit"; exit 1; }

multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
for file in bin/kvtier include/kvtier.h "lib/$multiarch/libkvtier.so.0" \
    "lib/$multiarch/pkgconfig/kvtier.pc" libexec/kvtier/kvtier-gds-probe \
    share/bash-completion/completions/kvtier.bash share/man/man1/kvtier.1.gz \
    share/zsh/vendor-completions/_kvtier; do
    [ -e "$root/usr/$file" ] || { installed; die "the package lacks /usr/$file"; }
done
export LD_LIBRARY_PATH="$root/usr/lib/$multiarch"
mkdir "$temp/store"
"$root/usr/bin/kvtier" doctor --set "remote_url=fs://$temp/store" \
    --set max_local_cpu_size=0.5 >"$temp/log" || { cat "$temp/log"; die 'kvtier doctor failed'; }
"$root/usr/libexec/kvtier/kvtier-gds-probe" >/dev/null 2>&1 || [ $? -lt 126 ] ||
    die 'kvtier-gds-probe does not run'

# A user's program, with the package's header, library and pkg-config file.
export PKG_CONFIG_PATH="$LD_LIBRARY_PATH/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$root"
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
gcc -H -o "$temp/example" examples/store-and-load.c $(pkg-config --cflags --libs kvtier) \
    2>"$temp/headers"
grep -q "$root/usr/include/kvtier.h" "$temp/headers" || die 'the example has another header'
ldd "$temp/example" | grep -q "$LD_LIBRARY_PATH/libkvtier.so.0" ||
    die 'the example has another library'
"$temp/example" "$temp/store" >"$temp/log" 2>&1 || { cat "$temp/log"; die 'the example failed'; }

bash -c '. "$1" && complete -p kvtier' bash \
    "$root/usr/share/bash-completion/completions/kvtier.bash" >/dev/null

in_root --purge kvtier
[ -z "$(installed)" ] || { installed; die 'the removal left files'; }
echo "${deb##*/}: $(stat -c %s "$deb") bytes"
