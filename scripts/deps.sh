#!/bin/sh
# Installs the Debian packages listed in scripts/packages that are missing.
# Needs root (or sudo) only when something is missing.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
missing=
for p in $(grep -v '^#' "$here/packages"); do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null || true)
    [ "$state" = installed ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1; then
    as_root=sudo
else
    echo "mayfly: these packages are missing, and neither root nor sudo is at hand:" >&2
    echo "  apt-get install$missing" >&2
    exit 1
fi
echo "mayfly: installing$missing"
export DEBIAN_FRONTEND=noninteractive
# The lists of a fresh machine are empty or old; a look-up that fails for that reason is tried again.
install() {
    # shellcheck disable=SC2086
    $as_root apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 $missing
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! install >"$log" 2>&1; then
    $as_root apt-get update >"$log" 2>&1 && install >"$log" 2>&1 || {
        tail -n 30 "$log" >&2
        exit 1
    }
fi
