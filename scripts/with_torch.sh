#!/usr/bin/env bash
# Another PyTorch than .venv's, in the build that GPU machines have: CUDA's, which can be installed without a GPU.
#
#   scripts/with_torch.sh TORCH check [PART ...]       a call of benchmarks/gpu_check.sh on the CPU device, with its build
#                                                      of the core, and within a call's time
#   scripts/with_torch.sh TORCH pytest [ARGUMENT ...]  tests, beside that core; on the fake GPU, too
#
# TORCH is `oldest` or `newest` of those that pyproject.toml accepts, or a minor version such as 2.12. All lies in
# build/with_torch/MINOR: a Python environment (a download of 3 GB, 6 GB of disk), the core, and a copy of the tests.
# Python is 3.12 where there is one, or PYTHON.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

usage() {
    echo "usage: $0 oldest|newest|MINOR check [PART ...] | pytest [ARGUMENT ...]" >&2
    exit 2
}

read -r least below < <(sed -n 's/^ *"torch>=2\.\([0-9]*\),<2\.\([0-9]*\)".*/\1 \2/p' pyproject.toml)
case ${1-} in
    oldest) minor=2.$least ;;
    newest) minor=2.$((below - 1)) ;;
    2.*) minor=$1 ;;
    *) usage ;;
esac
here=$root/build/with_torch/$minor
python=$here/venv/bin/python

unset PYTHONPATH # it may lead to another torch's core

# What builds the core, and what the tests import; no JupyterLab, as on those machines.
wanted=(cmake ninja pybind11 scikit-build-core pathspec packaging
    numpy scipy pyarrow plotly tqdm click rich comm ipython ipykernel ipywidgets anywidget bokeh jupyter_bokeh
    nbclient nbformat jsonschema expecttest hypothesis nvtx perfetto safetensors transformers accelerate lightning psutil
    pytest pytest-random-order pytest-reportlog pytest-xdist)

python_of_gpu_machines() {
    local each
    for each in "${PYTHON:-}" python3.12 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12.*/bin/python3 python3; do
        if [ -n "$each" ] && "$each" -c 'import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(sys.version_info < (3, 11) or not os.path.exists(header))' 2>/dev/null; then
            command -v "$each"
            return
        fi
    done
    echo "There is no Python 3.11 or newer with venv and its headers: set PYTHON" >&2
    return 1
}

setup() {
    local base stamp cuda
    local pip=("$python" -m pip install --quiet --disable-pip-version-check -c "$here/constraints.txt")
    base=$(python_of_gpu_machines)
    stamp="$base ${wanted[*]} $(sha256sum <constraints.txt)"
    [ "$(cat "$here/.wanted" 2>/dev/null)" = "$stamp" ] && return
    echo "==> Installing PyTorch $minor with CUDA, and what the tests take, into build/with_torch (downloads 3 GB)"
    rm -rf "$here/venv" "$here/.wanted"
    mkdir -p "$here"
    "$base" -m venv "$here/venv"
    grep -v '^torch' constraints.txt >"$here/constraints.txt"
    "${pip[@]}" "torch==$minor.*"
    cuda=$("$python" -W ignore -c 'from torch.version import cuda; print(cuda or "13.0")')
    "${pip[@]}" "torch==$minor.*" "nvidia-cuda-crt==$cuda.*" "${wanted[@]}"
    # Every process of this Python finds the core that gpu_check.sh builds.
    echo "$here/gpu/site" >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/built.pth"
    echo "$stamp" >"$here/.wanted"
}

check() {
    PATH=$here/venv/bin:$PATH PYTHON=$python WORK=$here/gpu DEVICE=cpu BUILD_CUDA=ON benchmarks/gpu_check.sh "$@"
}

# Two cores may take longer to build than a call of the check.
build() {
    LIMIT=3600 check ready
}

# The tests, and what they read of the checkout, but for its package, which has another torch's core.
copy_tests() {
    local files=$here/files
    git ls-files -z --cached --others --exclude-standard | grep -zv -e '^chameleon_lab/' -e '^labextension/' |
        while IFS= read -rd '' file; do if [ -e "$file" ]; then printf '%s\0' "$file"; fi; done >"$files"
    rm -rf "$here/run"
    mkdir -p "$here/run"
    xargs -0 cp --parents -t "$here/run" <"$files"
}

case ${2-} in
    check)
        setup
        build
        check "${@:3}"
        ;;
    pytest)
        setup
        build
        copy_tests
        cd "$here/run"
        export PATH=$here/venv/bin:$PATH CHAMELEON_BUILD=$here/gpu/cmake OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
        exec python -m pytest -p no:cacheprovider "${@:3}"
        ;;
    *) usage ;;
esac
