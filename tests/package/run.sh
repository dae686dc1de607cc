#!/usr/bin/env bash
# Tests of the installed folder; CTest calls one part after the other.
#   install   installs into a temporary folder and moves that folder
#   moved     the folder names no place of the sources or the build; its programs run while both are hidden
#   outside   the project in outside/, which knows find_package(trireme) alone, is built and trains, sources and build hidden
#   headers   every installed header compiles alone
#   bundle    a folder with the component `bundle` runs on a machine that has nothing but the C and C++ run time
#   clean     removes the temporary folder
# TRIREME_SOURCE, TRIREME_BUILD, TRIREME_TORCH, CMAKE and CXX say where everything is.
set -euo pipefail

readonly note="$TRIREME_BUILD/package-test-folder"
work="${TRIREME_WORK:-$(cat "$note" 2>/dev/null || true)}"
folder="$work/moved/trireme"
unset LIBTORCH LD_LIBRARY_PATH Torch_DIR CMAKE_PREFIX_PATH TRIREME_TORCH_ROOT
export OMP_NUM_THREADS=1

fail() {
  echo "package: $1" >&2
  exit 1
}

# Runs a part of this script where the sources and the build are empty folders. LibTorch may lie among the sources, so it is seen at
# another place, as on another machine. Where namespaces are forbidden, the part runs with everything in sight.
hidden() {
  local root
  mkdir -p "$work/machine"
  cp "${BASH_SOURCE[0]}" "$work/run.sh"
  if ! unshare -rm true 2>/dev/null; then
    echo "package: no namespaces here, the sources and the build stay visible"
    TRIREME_WORK="$work" bash "$work/run.sh" "$1"
    return
  fi
  root="$(dirname "$(readlink -f "$TRIREME_TORCH")")"
  TRIREME_WORK="$work" unshare -rm bash -euc '
    mount --bind "$2" "$TRIREME_WORK/machine"
    for hide in "$TRIREME_BUILD" "$TRIREME_SOURCE"; do
      [[ ! -d "$hide" ]] || mount -t tmpfs none "$hide"
    done
    [[ ! -e "$TRIREME_SOURCE/CMakeLists.txt" && ! -e "$TRIREME_BUILD/CMakeCache.txt" ]]
    export TRIREME_TORCH="$TRIREME_WORK/machine/$3"
    cd "$TRIREME_WORK"
    exec bash "$TRIREME_WORK/run.sh" "$1"
  ' hidden "$1" "$root" "$(basename "$(readlink -f "$TRIREME_TORCH")")"
}

run_install() {
  [[ -z "$work" ]] || rm -rf "$work"
  work="$(mktemp -d "${TMPDIR:-/tmp}/trireme-package-XXXXXX")"
  echo "$work" >"$note"
  "$CMAKE" --install "$TRIREME_BUILD" --prefix "$work/first" >"$work/install.log" || fail "$(cat "$work/install.log")"
  mkdir "$work/moved"
  mv "$work/first" "$work/moved/trireme"
  cp -r "$TRIREME_SOURCE/tests/package/outside" "$work/outside"
  cp "$TRIREME_SOURCE/configs/quickstart.json" "$work/"
}

# Every path of the build machine in an installed file; LibTorch's own folder appears in texts of its headers' checks.
check_paths() {
  local found file path
  found="$(grep -rlaF -e "$TRIREME_SOURCE/" -e "$TRIREME_BUILD" -e "$work/first" "$work/moved/trireme" || true)"
  for file in $found; do
    if strings -a "$file" | grep -F -e "$TRIREME_SOURCE/" -e "$TRIREME_BUILD" -e "$work/first" | grep -vF "$TRIREME_TORCH/include/"; then
      fail "$file names a place of the build machine, see above"
    fi
  done
  for file in "$folder"/bin/* "$folder"/lib/libtrireme.so; do
    readelf -d "$file" | grep -E 'R(UN)?PATH' | sed 's/.*\[\(.*\)\]/\1/' | tr : '\n' | while read -r path; do
      [[ "$path" == '$ORIGIN'* || "$path" == /usr/* ]] || fail "$file looks for libraries in $path"
    done
  done
}

readonly model=(--num-layers 2 --hidden-size 32 --num-attention-heads 2 --vocab-size 257 --seq-length 32)

# Two steps. $1: the folder of config and tokens; then the program.
train() {
  local data="$1"
  shift
  "$@" train --deepspeed --deepspeed_config "$data/quickstart.json" --device cpu "${model[@]}" --data-path "$data/tokens" --split 90,10,0 \
    --train-iters 2 --eval-iters 0
}

write_tokens() {
  seq 1 2000 >"$work/text.txt"
  "$1" data build --input "$work/text.txt" --output "$work/tokens" --tokenizer byte >/dev/null
}

run_moved() {
  check_paths
  hidden moved_inside
}

run_moved_inside() {
  local trireme="$folder/bin/trireme" output
  [[ "$("$trireme" --version)" == "trireme "* ]] || fail "--version said nothing of the kind"
  "$trireme" plan "$work/quickstart.json" "${model[@]}" --num_gpus 2 >/dev/null
  write_tokens "$trireme"

  ln -sfn "$work/nowhere" "$folder/lib/libtorch"  # as on a machine whose LibTorch lies elsewhere
  output="$(train "$work" "$trireme" 2>&1)" && fail "trained without LibTorch: $output"
  grep -q CLI008 <<<"$output" || fail "without LibTorch it said: $output"
  output="$(LIBTORCH="$TRIREME_TORCH" train "$work" "$trireme" 2>&1)" || fail "with LIBTORCH: $output"
  ln -sfn "$TRIREME_TORCH" "$folder/lib/libtorch"
  output="$(train "$work" "$trireme" 2>&1)" || fail "with lib/libtorch: $output"
  grep -qi loss <<<"$output" || fail "no loss in: $output"
}

run_outside() {
  hidden outside_inside
}

run_outside_inside() {
  local output
  ln -sfn "$TRIREME_TORCH" "$folder/lib/libtorch"
  output="$("$CMAKE" -S "$work/outside" -B "$work/outside-none" -DCMAKE_PREFIX_PATH="$folder" -DTRIREME_TORCH_ROOT=/nowhere 2>&1)" &&
    fail "configured without LibTorch"
  grep -q '/nowhere: no lib/libtorch_cpu.so' <<<"$output" || fail "without LibTorch CMake said: $output"
  "$CMAKE" -S "$work/outside" -B "$work/outside-build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$folder"
  "$CMAKE" --build "$work/outside-build"
  (cd "$work/outside-build" && ./outside)
}

# $1: an include folder, $2: a header in it.
compiles() {
  "$CXX" -std=c++20 -Wall -fsyntax-only -I "$1" -idirafter "$TRIREME_TORCH/include" -idirafter "$TRIREME_TORCH/include/torch/csrc/api/include" \
    -include "$2" -x c++ /dev/null
}

run_headers() {
  local include="$folder/include/trireme"
  export -f compiles
  export include TRIREME_TORCH CXX
  [[ -e "$include/engine/trainer/initialize.h" ]] || fail "no engine/trainer/initialize.h in $include"
  (cd "$include" && find . -name '*.h' | sed 's,^\./,,' | sort) >"$work/headers"
  xargs -P 2 -I{} bash -c 'compiles "$include" {} || { echo "package: {} does not compile alone" >&2; exit 1; }' <"$work/headers"
  echo "package: $(wc -l <"$work/headers") headers compile alone"
  cp -r "$include" "$work/incomplete"
  rm "$work/incomplete/parsers/model_spec.h"
  ! compiles "$work/incomplete" engine/trainer/initialize.h 2>/dev/null || fail "a missing header was not noticed"
}

run_bundle() {
  local bare="$work/bare" library output
  mkdir -p "$bare/opt" "$bare/proc" "$bare/tmp"
  "$CMAKE" --install "$TRIREME_BUILD" --prefix "$bare/opt/trireme" >"$work/install.log" || fail "$(cat "$work/install.log")"
  "$CMAKE" --install "$TRIREME_BUILD" --prefix "$bare/opt/trireme" --component bundle >"$work/install.log" || fail "$(cat "$work/install.log")"
  write_tokens "$bare/opt/trireme/bin/trireme"
  cp "$work"/tokens.* "$work/quickstart.json" "$bare/tmp/"
  for library in $(ldd "$bare"/opt/trireme/bin/* | grep -o '/[^ ]*' | grep -v -e '^/opt' -e "^$bare" -e ':$' | sort -u); do
    [[ "$(basename "$library")" =~ ^(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s))\.so ]] || fail "the bundle lacks $library"
    cp -L --parents "$library" "$bare"
  done
  if ! unshare -rm true 2>/dev/null; then
    echo "package: no namespaces here, the bundle was looked at and not run"
    return
  fi
  output="$(export -f train && export bare && unshare -rm bash -euc '
    model=("$@")
    mount --rbind /proc "$bare/proc"
    train /tmp chroot "$bare" /opt/trireme/bin/trireme' bundle "${model[@]}" 2>&1)" || fail "the bundle on a bare machine: $output"
  grep -qi loss <<<"$output" || fail "no loss in: $output"
}

run_clean() {
  [[ -z "$work" ]] || rm -rf "$work"
  rm -f "$note"
}

"run_$1"
