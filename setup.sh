#!/usr/bin/env bash
# Brings what the build needs: the distribution's packages, and LibTorch where the machine has none.
# Says what it will install and download, and how large that is, before it does so. A second run changes nothing and takes seconds.
#
#   ./setup.sh            everything the build, the tests and the quick start need
#   ./setup.sh --cpu      without the libraries that only the GPU program needs, even where a CUDA toolkit is present
#   ./setup.sh --browser  also Chromium, in which the tests open the pages that plan and bench write; without one they skip themselves
#   ./setup.sh --dry-run  only says what is missing; ends with 0 when nothing is
#   ./setup.sh --libtorch-version 2.15.0    LibTorch of this version in .deps/torch-2.15.0, whatever else is there, for
#                                           `./test.sh --libtorch .deps/torch-2.15.0` or LIBTORCH; `newest`: the index's newest
#
# LibTorch is taken from the first of: Torch_DIR or CMAKE_PREFIX_PATH, LIBTORCH, the torch of the Python on the PATH (2.11 or
# newer), .deps/torch beside the sources. If none is there, the pinned version is downloaded into .deps/torch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

torch_version=2.11.0  # --libtorch-version names another
readonly torch_download_mb=531 torch_unpacked_mb=1040
readonly packages=(g++ cmake ninja-build ccache mold nlohmann-json3-dev libspdlog-dev libfmt-dev libhdf5-dev
  libgtest-dev libbenchmark-dev libpcre2-dev libutf8proc-dev libxxhash-dev libgloo-dev bible-kjv bible-kjv-text)
# What the pinned LibTorch asks of CUDA: library, who needs it (cpu: every program; gpu: the GPU program), wheel, download and unpacked MB.
readonly cuda_libraries="
libcudart.so.13      cpu nvidia-cuda-runtime==13.0.96     2   7
libcupti.so.13       cpu nvidia-cuda-cupti==13.0.85      11  45
libcublas.so.13      gpu nvidia-cublas==13.1.0.3        423 597
libcufft.so.12       gpu nvidia-cufft==12.0.0.61        214 288
libcurand.so.10      gpu nvidia-curand==10.4.0.35        60 135
libcusparse.so.12    gpu nvidia-cusparse==12.6.3.3      146 163
libnvJitLink.so.13   gpu nvidia-nvjitlink==13.0.88       41  99
libcudnn.so.9        gpu nvidia-cudnn-cu13==9.19.0.56   366 494
libnccl.so.2         gpu nvidia-nccl-cu13==2.28.9       196 218
libcusparseLt.so.0   gpu nvidia-cusparselt-cu13==0.8.0  170 234
libnvshmem_host.so.3 gpu nvidia-nvshmem-cu13==3.4.5      60  81
libcufile.so.0       gpu nvidia-cufile==1.15.1.6          1   3
"

dry_run=0 want_gpu=1 want_browser=0 asked_version="" torch_folder=.deps/torch
while (($#)); do
  case "$1" in
    --dry-run) dry_run=1 ;;
    --cpu) want_gpu=0 ;;
    --browser) want_browser=1 ;;
    --libtorch-version)
      asked_version="${2:-}"
      if [[ ! "$asked_version" =~ ^(newest|[0-9]+(\.[0-9]+)+)$ ]]; then
        echo "setup: --libtorch-version needs a version such as $torch_version, or newest; it got '$asked_version'" >&2
        exit 2
      fi
      shift
      ;;
    *)
      echo "setup: unknown option '$1'. fix: use --cpu, --browser, --dry-run, --libtorch-version VERSION or none" >&2
      exit 2
      ;;
  esac
  shift
done

say() { echo "setup: $*"; }
fail() {
  echo "setup: $1" >&2
  echo "  fix: $2" >&2
  exit 69
}

# ---- what is missing ------------------------------------------------------------------------------------------------

missing_packages() {  # prints the names that dpkg does not list as installed
  local status
  status="$(dpkg-query -W -f='${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)"
  for name in "$@"; do
    grep -qxF "$name installed" <<<"$status" || echo "$name"
  done
}

is_libtorch() { [[ -n "$1" && -e "$1/lib/libtorch_cpu.so" && -d "$1/include/ATen" ]]; }

torch_is_recent() {  # 2.11 or newer, by LibTorch's own header
  local header="$1/include/torch/headeronly/version.h" major minor
  [[ -e "$header" ]] || return 1
  major="$(awk '/define TORCH_VERSION_MAJOR/ {print $3}' "$header")"
  minor="$(awk '/define TORCH_VERSION_MINOR/ {print $3}' "$header")"
  ((major > 2 || (major == 2 && minor >= 11)))
}

find_libtorch() {  # prints the folder, or nothing; the same order stands in engine/base/cmake/TriremeTorch.cmake
  local candidate python
  if [[ -n "${Torch_DIR:-}" ]]; then
    candidate="$(cd "$Torch_DIR/../../.." 2>/dev/null && pwd || true)"
    is_libtorch "$candidate" && echo "$candidate" && return
  fi
  local -a prefixes=()
  IFS=: read -r -a prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for candidate in ${prefixes[@]+"${prefixes[@]}"} "${LIBTORCH:-}"; do
    is_libtorch "$candidate" && echo "$candidate" && return
  done
  for python in python3 python; do
    command -v "$python" >/dev/null || continue
    candidate="$("$python" -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')" 2>/dev/null || true)"
    if is_libtorch "$candidate"; then
      torch_is_recent "$candidate" && echo "$candidate" && return
      say "the torch of $python ($candidate) is older than 2.11: not used" >&2
    fi
    break
  done
  is_libtorch "$PWD/.deps/torch" && echo "$PWD/.deps/torch"
  return 0
}

cuda_compiler() {
  command -v nvcc 2>/dev/null || { [[ -x /usr/local/cuda/bin/nvcc ]] && echo /usr/local/cuda/bin/nvcc; } || true
}

has_nccl_header() {
  local header
  for header in /usr/include/nccl.h /usr/local/cuda/include/nccl.h "$1/../nvidia/nccl/include/nccl.h" .deps/nvidia/nccl/include/nccl.h; do
    [[ -e "$header" ]] && return 0
  done
  return 1
}

missing_wheels() {  # prints the table's rows whose library is nowhere to be found. $1: LibTorch's folder, $2: 1 with the GPU program
  local torch="$1" gpu="$2" folder nvcc known
  local -a folders=(/usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64)
  nvcc="$(cuda_compiler)"
  [[ -n "$nvcc" ]] && folders+=("$(dirname "$(readlink -f "$nvcc")")/../lib64" "$(dirname "$(readlink -f "$nvcc")")/../extras/CUPTI/lib64")
  for folder in "$torch"/../nvidia/*/lib .deps/nvidia/*/lib; do
    [[ -d "$folder" ]] && folders+=("$folder")
  done
  known="$(/sbin/ldconfig -p 2>/dev/null || true)"
  while read -r library who rest; do
    [[ -z "$library" || ("$who" == gpu && "$gpu" == 0) ]] && continue
    if [[ "$library" == libnccl.so.2 ]] && ! has_nccl_header "$torch"; then  # compiled against as well
      echo "$library $who $rest"
      continue
    fi
    grep -qF "$library " <<<"$known" && continue
    for folder in "${folders[@]}"; do
      [[ -e "$folder/$library" ]] && continue 2
    done
    echo "$library $who $rest"
  done <<<"$cuda_libraries"
}

# ---- bringing it ----------------------------------------------------------------------------------------------------

as_root() {
  if [[ "$(id -u)" == 0 ]]; then
    "$@"
  elif [[ -t 0 ]]; then
    sudo "$@"
  else
    sudo -n "$@"
  fi
}

plan_packages() {  # says what apt will install and how large it is. $@: the packages
  command -v apt-get >/dev/null || fail "this system has no apt-get, and these packages are missing: $*" \
    "install the same libraries with your own package manager (README.md lists them), then configure with CMake"
  if [[ "$(id -u)" != 0 ]] && ! command -v sudo >/dev/null; then
    fail "these packages are missing, and installing them needs root: $*" \
      "as root: apt-get update && apt-get install -y --no-install-recommends $*"
  fi
  local unknown simulation
  unknown="$(unknown_packages "$@")"
  if [[ -n "$unknown" && "$dry_run" == 0 ]]; then
    say "the package lists are missing or old; fetching them (apt-get update, 10 to 40 MB)"
    as_root apt-get -qq update || say "apt-get update reported the errors above; going on with the lists that are there"
    unknown="$(unknown_packages "$@")"
    [[ -z "$unknown" ]] || fail "the package sources of this system do not offer: $unknown" \
      "use Debian 12 or Ubuntu 24.04 with the 'universe' component, or install these by hand"
  fi
  say "will install from the distribution: $*"
  if [[ -n "$unknown" ]]; then
    say "  how large that is will be known when the package lists are there; on a bare Debian 12 all of it is 121 MB to download and 480 MB on disk"
    return
  fi
  simulation="$(LC_ALL=C apt-get install --no-install-recommends --assume-no "$@" 2>/dev/null || true)"
  grep -E 'newly installed|Need to get|additional disk space|Download size|Space needed' <<<"$simulation" | sed 's/^ */setup:   /' || true
}

has_browser() {
  local name
  for name in chromium chromium-browser google-chrome google-chrome-stable chrome-headless-shell; do
    command -v "$name" >/dev/null && return
  done
  return 1
}

can_be_root() { [[ "$(id -u)" == 0 ]] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; }

unknown_packages() {  # prints the names that apt has no version of
  local policy
  policy="$(LC_ALL=C apt-cache policy "$@" 2>/dev/null | awk '/^[^ ]/ {name = $1; sub(/:$/, "", name)} /Candidate:/ && $2 != "(none)" {print name}')"
  for name in "$@"; do
    grep -qxF "$name" <<<"$policy" || echo -n "$name "
  done
}

install_packages() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1 && return
  say "the package lists may be old; fetching them and trying once more"
  as_root apt-get -qq update || true
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1 && return
  tail -n 20 "$log" >&2
  fail "apt-get install failed; its last lines stand above" "repair the package system (apt-get -f install), then run this again"
}

python_with_pip() {
  local python
  for python in /usr/bin/python3 python3; do
    "$python" -m pip --version >/dev/null 2>&1 && echo "$python" && return
  done
  return 0
}

fetch_wheel() {  # $1: requirement, $2: scratch folder, then pip's further options. Leaves one .whl there; pip checks its digest.
  local requirement="$1" folder="$2"
  shift 2
  "$(python_with_pip)" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: "$@" --dest "$folder" "$requirement" ||
    fail "downloading $requirement failed" \
      "check the network and pip's settings and run this again, or set LIBTORCH to the folder of an installed LibTorch (include/, lib/)"
}

newest_libtorch() {  # prints the newest version that the package index has for this machine
  local python version
  python="$(python_with_pip)"
  [[ -n "$python" ]] || fail "finding the newest LibTorch needs Python's pip" "apt-get install python3-pip, or name a version"
  version="$("$python" -m pip index versions --disable-pip-version-check torch 2>/dev/null | sed -n 's/^torch (\([0-9.]*\)).*/\1/p')"
  [[ -n "$version" ]] || fail "the package index names no version of torch" "check the network and pip's settings, or name a version"
  echo "$version"
}

fetch_libtorch() {  # a wheel is a zip file that fits any Python; moved into place when it is whole
  local scratch
  scratch="$(mktemp -d .deps/unpack.XXXXXX)"
  say "downloading torch==$torch_version"
  fetch_wheel "torch==$torch_version" "$scratch" --python-version 3.12 --implementation cp --platform "manylinux_2_28_$(uname -m)"
  say "unpacking it"
  unzip -q "$scratch"/torch-*.whl 'torch/include/*' 'torch/lib/*' 'torch/version.py' '*.dist-info/licenses/*' -d "$scratch" ||
    fail "the downloaded torch wheel is damaged or the disk is full" "free $torch_unpacked_mb MB, then run this again"
  rm -f "$scratch"/torch-*.whl
  mv "$scratch"/*.dist-info "$scratch/torch/dist-info"
  rm -rf "$torch_folder"
  mv "$scratch/torch" "$torch_folder"
  rm -rf "$scratch"
}

fetch_cuda_wheel() {  # $1: requirement; its nvidia/ tree is merged into .deps/nvidia, libraries last
  local scratch
  scratch="$(mktemp -d .deps/unpack.XXXXXX)"
  say "downloading $1"
  fetch_wheel "$1" "$scratch"
  unzip -q "$scratch"/*.whl 'nvidia/*' -d "$scratch" || fail "the downloaded wheel of $1 is damaged or the disk is full" "run this again"
  mkdir -p .deps/nvidia
  cp -a --remove-destination "$scratch"/nvidia/. .deps/nvidia/
  rm -rf "$scratch"
}

# ---- main -----------------------------------------------------------------------------------------------------------

mapfile -t needed < <(if command -v dpkg-query >/dev/null; then missing_packages "${packages[@]}"; fi)
if ! command -v dpkg-query >/dev/null; then
  say "this is no Debian or Ubuntu; taking for granted that the libraries of README.md are installed"
fi

# Nothing but a test needs it: where it cannot be had, a word is enough.
if ((want_browser)) && ! has_browser; then
  if command -v apt-cache >/dev/null && [[ -z "$(unknown_packages chromium)" ]] && can_be_root; then
    needed+=(chromium)
  else
    say "no chromium or google-chrome, and none that this user can install: the tests of pages in a browser will skip themselves"
  fi
fi

if [[ -n "$asked_version" ]]; then
  torch_version="$asked_version"
  if [[ "$asked_version" == newest ]]; then torch_version="$(newest_libtorch)"; fi
  torch_folder=".deps/torch-$torch_version" torch=""
  if is_libtorch "$PWD/$torch_folder"; then torch="$PWD/$torch_folder"; fi
else
  torch="$(find_libtorch)"
fi
gpu=0
nvcc="$(cuda_compiler)"
if [[ -n "$nvcc" && "$want_gpu" == 1 ]]; then
  if "$nvcc" --version | grep -q 'release 13\.'; then
    gpu=1
  else
    say "the CUDA toolkit of $nvcc is not of the 13 series that LibTorch $torch_version needs: a CPU program will be built"
  fi
fi
rows=()
# A CPU build of LibTorch needs none of these libraries; one for another CUDA series brings or finds its own.
if [[ -z "$torch" ]] || grep -Eqs "^cuda.*'13\." "$torch/version.py"; then
  mapfile -t rows < <(missing_wheels "${torch:-$PWD/$torch_folder}" "$gpu")
fi

if [[ -z "$torch" || ${#rows[@]} -gt 0 ]]; then
  if [[ -z "$(python_with_pip)" ]]; then needed+=(python3-pip); fi
  if ! command -v unzip >/dev/null; then needed+=(unzip); fi
fi

if ((${#needed[@]} == 0 && ${#rows[@]} == 0)) && [[ -n "$torch" ]]; then
  say "nothing to install or download (LibTorch: $torch)"
  exit 0
fi

((${#needed[@]})) && plan_packages "${needed[@]}"
download=0 unpacked=0
if [[ -z "$torch" ]]; then
  about=""
  if [[ -n "$asked_version" ]]; then about="about "; fi  # the sizes are those of the pinned version
  say "will download LibTorch $torch_version (package index, wheel torch==$torch_version): $about$torch_download_mb MB, $torch_unpacked_mb MB in $torch_folder"
  ((download += torch_download_mb, unpacked += torch_unpacked_mb))
fi
for row in ${rows[@]+"${rows[@]}"}; do
  read -r library who wheel mb disk <<<"$row"
  say "will download $wheel (for $library): $mb MB, $disk MB in .deps/nvidia"
  ((download += mb, unpacked += disk))
done
((download)) && say "downloads in all: $download MB; $unpacked MB on disk, and for a moment $download MB more"
((dry_run)) && exit 1

mkdir -p .deps
exec 9>.deps/lock
flock 9
log=.deps/apt.log
rm -rf .deps/unpack.*
if ((unpacked)); then
  free_mb="$(df -Pm .deps | awk 'NR == 2 {print $4}')"
  ((free_mb > unpacked + download)) || fail "the disk of $PWD/.deps has $free_mb MB free, $((unpacked + download)) MB are needed" \
    "free some space, or set LIBTORCH to an installed LibTorch"
fi
if ((${#needed[@]})); then install_packages "${needed[@]}"; fi
if [[ -z "$torch" && ! -e "$torch_folder/lib/libtorch_cpu.so" ]]; then fetch_libtorch; fi
for row in ${rows[@]+"${rows[@]}"}; do
  read -r library who wheel mb disk <<<"$row"
  fetch_cuda_wheel "$wheel"
done
say "done (LibTorch: ${torch:-$PWD/$torch_folder})"
