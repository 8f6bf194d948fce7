#!/usr/bin/env bash
# What the Makefile needs before it can build or test: setup.sh core-tools | tools | core | python | apart | chromium
set -euo pipefail
cd "$(dirname "$0")/.."

torch_version=$(sed -n 's/^torch==//p' constraints.txt)

# Run a command in silence: a clock while it runs, and all that it said if it fails.
quietly() {
    local what=$1 log start=$SECONDS status=0
    shift
    echo "==> $what"
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null &
    local job=$!
    trap 'kill $job 2>/dev/null; rm -f "$log"; exit 130' INT TERM
    if [ -t 1 ]; then
        while kill -0 $job 2>/dev/null; do
            printf '\r    %d s ' $((SECONDS - start))
            sleep 1
        done
        printf '\r'
    fi
    wait $job || status=$?
    trap - INT TERM
    if [ $status -ne 0 ]; then
        cat "$log" >&2
        printf '    failed: %s\n' "$*" >&2
    else
        printf '    done in %d s\n' $((SECONDS - start))
    fi
    rm -f "$log"
    return $status
}

# Name every tool that is missing, and what brings it: of what the core takes (core-tools), or all (tools).
tools() {
    local missing=() packages=()
    need() {
        missing+=("$1")
        packages+=(${2-})
    }
    if ! command -v python3 >/dev/null; then
        need "Python 3.11 or newer" "python3 python3-venv python3-dev"
    else
        python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
            need "Python 3.11 or newer (python3 is $(python3 -V | cut -d' ' -f2))" python3
        python3 -c 'import ensurepip, venv' 2>/dev/null || need "Python's venv" python3-venv
        python3 -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
            need "Python's C headers" python3-dev
    fi
    command -v g++ >/dev/null || need g++ g++
    [ "${1-}" = core ] || node_tools
    [ ${#missing[@]} -eq 0 ] && return
    {
        echo "These tools are missing:"
        printf '  - %s\n' "${missing[@]}"
        [ ${#packages[@]} -eq 0 ] || echo "To install: apt-get install ${packages[*]}"
        echo "Then run the same command again."
    } >&2
    return 1
}

node_tools() {
    if ! command -v node >/dev/null; then
        need "Node.js 20 or newer" nodejs
    elif [ "$(node -p 'parseInt(process.versions.node)')" -lt 20 ]; then
        need "Node.js 20 or newer (node is $(node -v); where apt-get has no newer one, see nodejs.org)"
    fi
    command -v npm >/dev/null || need npm npm
}

pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt)

# What builds the core and runs the main job: no JupyterLab, no Node.
core() {
    [ -x .venv/bin/pip ] || quietly "Making the Python environment in .venv" python3 -m venv .venv
    # First and alone, so that nothing else chooses a PyTorch.
    quietly "Installing PyTorch $torch_version (from PyPI, a CUDA build: downloads 3 GB, takes 6 GB of disk)" \
        "${pip[@]}" "torch==$torch_version"
    quietly "Installing CMake, and what traces and figures take" \
        "${pip[@]}" cmake ninja numpy scipy pyarrow plotly tqdm
    touch .venv/.core
}

# All else.
python() {
    local link=.venv/share/jupyter/labextensions/chameleon-lab
    quietly "Installing the build tools" "${pip[@]}" scikit-build-core jupyter-builder
    # CMake is left out: `make build` runs it in the checkout, and again whenever a source changes.
    quietly "Installing JupyterLab and the other Python packages" \
        "${pip[@]}" --no-build-isolation --config-settings wheel.cmake=false --config-settings editable.mode=inplace -e ".[dev]"
    # To compile the CUDA device (make check-cuda): of the CUDA that this torch is built for, where they are packages of
    # these names (since 13.0).
    local cuda
    cuda=$(.venv/bin/python -c 'from torch.version import cuda; print(cuda if (cuda or "").startswith("13.") else "13.0")')
    quietly "Installing CUDA's headers" "${pip[@]}" "nvidia-cuda-crt==$cuda.*" "nvidia-cuda-runtime==$cuda.*"
    # JupyterLab then always loads the panel that was built last. A folder there is an older copy.
    mkdir -p "$(dirname "$link")"
    rm -rf "$link"
    ln -s ../../../../chameleon_lab/labextension "$link"
    touch .venv/.installed
}

# Optional, and apart from .venv: what cannot be had is skipped, and the counts say so. No dependencies but those
# named, or a package would bring a PyTorch of its own.
apart() {
    local names name folder wanted isolation
    # In .venv, transformers and its like would import them for every test.
    # DeepSpeed has no wheel, and its build imports PyTorch.
    for names in "timm torchvision" "atheris" "liger-kernel==0.8.5" "bitsandbytes==0.50.2" "torchao==0.18.0" \
        "deepspeed==0.19.8 einops==0.8.2 hjson==3.1.0 msgpack==1.2.4 py-cpuinfo==9.0.0"; do
        folder=build/packages/${names%%[ =]*}
        wanted=$(for name in $names; do grep -i "^$name==" constraints.txt || echo "$name"; done)
        [ "$(cat "$folder/.wanted" 2>/dev/null)" = "$wanted" ] && continue
        rm -rf "$folder.new"
        isolation=()
        [ "$folder" != build/packages/deepspeed ] || isolation=(--no-build-isolation)
        # shellcheck disable=SC2086 # several words
        if .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "${isolation[@]}" \
            -c constraints.txt --target "$folder.new" $names 2>/dev/null; then
            echo "$wanted" >"$folder.new/.wanted"
            rm -rf "$folder"
            mv "$folder.new" "$folder"
        else
            echo "    ${names%%[ =]*} cannot be had here as constraints.txt names it: what needs it is skipped"
            rm -rf "$folder.new" "$folder"
        fi
    done
}

chromium() {
    [ -x /usr/bin/chromium ] && return
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "The browser tests need Chromium: run \`sudo apt-get install chromium\`, then the same command again." >&2
        return 1
    fi
    quietly "Installing Chromium for the browser tests" \
        sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium'
}

case ${1-} in
    core-tools) tools core ;;
    tools | core | python | apart | chromium) "$1" ;;
    *)
        echo "usage: $0 core-tools | tools | core | python | apart | chromium" >&2
        exit 2
        ;;
esac
