#!/usr/bin/env bash
# Sets up, builds and runs every test through CTest.
#
#   ./test.sh                 the release build in build/ and all its tests
#   ./test.sh --sanitizers    everything below the LibTorch line under AddressSanitizer and UBSan, in build-asan/ instead of build/
#   ./test.sh --tsan          also, in build-tsan/, the tests with label tsan under ThreadSanitizer
#   ./test.sh --cpu           a CPU program even where a CUDA toolkit is present
#   ./test.sh --libtorch DIR  the release build with the LibTorch in DIR, in build-libtorch/ instead of build/
#   ./test.sh -- -R parsers   what follows -- goes to ctest
#
# A test may skip itself only when it carries the label `gpu` (it needs a GPU) or `maybe` (its reason stands in its output).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

sanitizers=0 tsan=0 cuda=ON release=build
setup_options=() ctest_options=()
while (($#)); do
  case "$1" in
    --sanitizers) sanitizers=1 ;;
    --tsan) tsan=1 ;;
    --cpu) cuda=OFF setup_options+=(--cpu) ;;
    --libtorch)
      [[ -e "${2:-}/lib/libtorch_cpu.so" ]] || {
        echo "test: --libtorch '${2:-}': no lib/libtorch_cpu.so there. fix: ./setup.sh --libtorch-version VERSION fetches one" >&2
        exit 2
      }
      LIBTORCH="$(cd "$2" && pwd)"
      export LIBTORCH
      unset Torch_DIR CMAKE_PREFIX_PATH
      release=build-libtorch
      shift
      ;;
    --)
      shift
      ctest_options=("$@")
      break
      ;;
    *)
      echo "test: unknown option '$1'. fix: use --sanitizers, --tsan, --cpu, --libtorch DIR, or -- and options of ctest" >&2
      exit 2
      ;;
  esac
  shift
done
cores="$(nproc)"

# run_ctest FOLDER [options]: all tests there; fails when one that may not skip did.
run_ctest() {
  local folder="$1" log="$1/ctest.log" may_skip skipped
  shift
  ctest --test-dir "$folder" --output-on-failure -j "$cores" "$@" ${ctest_options[@]+"${ctest_options[@]}"} | tee "$log"
  may_skip="$(ctest --test-dir "$folder" -N -L '^(gpu|maybe)$' | awk '/Test +#/ {print $NF}')"
  skipped="$(awk '/\*\*\*Skipped/ {for (i = 1; i <= NF; ++i) if ($i == "Test") print $(i + 2)}' "$log")"
  for name in $skipped; do
    if ! grep -qxF "$name" <<<"$may_skip"; then
      echo "test: $name skipped itself and has neither the label gpu nor maybe" >&2
      return 1
    fi
  done
}

./setup.sh --browser ${setup_options[@]+"${setup_options[@]}"}

# What runs under the sanitizers is not built a second time.
below=ON
if ((sanitizers)); then below=OFF; fi
cmake -S . -B "$release" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTRIREME_CUDA="$cuda" -DTRIREME_TORCH=ON -DTRIREME_TESTS=ON \
  -DTRIREME_TESTS_BELOW="$below"
cmake --build "$release" -j "$cores"
if ((sanitizers)); then
  cmake -S . -B build-asan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 -DTRIREME_TORCH=OFF \
    -DTRIREME_SANITIZE="address;undefined"
  cmake --build build-asan -j "$cores"
  echo "test: below the LibTorch line, under AddressSanitizer and UndefinedBehaviorSanitizer"
  ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 run_ctest build-asan
fi
if ((tsan)); then
  cmake -S . -B build-tsan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O1 -DTRIREME_CUDA=OFF -DTRIREME_SANITIZE=thread
  mapfile -t targets < <(ctest --test-dir build-tsan -N -L '^tsan$' | awk '/Test +#/ {print "test_" $NF}')
  if ((${#targets[@]})); then cmake --build build-tsan -j "$cores" --target "${targets[@]}"; fi
  echo "test: label tsan, under ThreadSanitizer"
  # LibTorch and libgomp are not instrumented: what happens inside them cannot be judged.
  TSAN_OPTIONS="suppressions=$PWD/tests/support/tsan.supp ignore_noninstrumented_modules=1 halt_on_error=1" run_ctest build-tsan -L '^tsan$'
fi
echo "test: the release build"
run_ctest "$release"
