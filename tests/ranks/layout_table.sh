#!/usr/bin/env bash
# Writes docs/layouts.md: every legal layout of up to 8 in-process ranks against one rank. Ends with an error where one differs.
#   tests/ranks/layout_table.sh [BUILD_FOLDER]        default: build
set -euo pipefail
root="$(cd "$(dirname "$0")/../.." && pwd)"
build="${1:-$root/build}"
cmake --build "$build" --target layout_table
table="$(mktemp)"
trap 'rm -f "$table"' EXIT
status=0
OMP_NUM_THREADS=1 "$build/bin/layout_table" 8 >"$table" || status=$?
cp "$table" "$root/docs/layouts.md"
exit "$status"
