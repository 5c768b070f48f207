#!/bin/sh
# Configures (once) and builds the tree: scripts/build.sh DIR [meson options]
set -eu
top=$(cd "$(dirname "$0")/.." && pwd)
dir=$1
shift
if [ ! -f "$dir/build.ninja" ]; then
    meson setup "$dir" "$top" "$@" >"$dir.setup.log" 2>&1 || {
        cat "$dir.setup.log" >&2
        exit 1
    }
    rm -f "$dir.setup.log"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
ninja -C "$dir" >"$log" 2>&1 || {
    grep -v '^\[' "$log" >&2
    exit 1
}
