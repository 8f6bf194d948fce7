#!/usr/bin/env bash
# Everything that only a GPU can show, in one command: benchmarks/gpu_check.sh [build|facts|replay|tests|overlap|peers ...]
#
# Needs: an NVIDIA GPU, torch 2.11 or newer with CUDA, CUDA's headers (a toolkit, or pip's nvidia-cuda-runtime and
# nvidia-cuda-crt), a C++20 compiler, cmake, ninja, scikit-build-core and pytest: the first part, ready, looks for them.
# Nothing is downloaded. Each part ends within LIMIT seconds (500) or little more, fails alone, and can be run alone, by
# name. The peers are a part for each of BUDGETS (GiB, "24 16 40"), which can be named too (peers-16).
#
# OUT (./build/gpu/out) gets facts.json, replay.json, tests.json, overlap.json, peers-24.json and so on, and log.txt: all
# that the parts print. What is built lies in WORK (./build/gpu), and serves the next call. The table at the end is all
# of it in short. DEVICE=cpu runs what can run on the embedded device, to see that it works.
set -u
cd "$(dirname "$0")/.."
work=${WORK:-$PWD/build/gpu}
mkdir -p "$work/logs"
work=$(cd "$work" && pwd)
out=${OUT:-$work/out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export CUBLAS_WORKSPACE_CONFIG=:4096:8 # matrix products repeat their bits
limit=${LIMIT:-500}
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
budgets=${BUDGETS:-24 16 40}
tiny=$([ "$device" = cpu ] && echo --tiny)
parts=("$@")
summary=()
ran=()

wanted() { [ ${#parts[@]} -eq 0 ] || [[ " ${parts[*]} " == *" $1 "* ]]; }

part() { # name, command...
    local name=$1 start=$SECONDS status=0
    shift
    echo "==> $name" | tee -a "$out/log.txt"
    timeout -k 10 "$((limit + 40))" "$@" 2>&1 | tee "$work/logs/$name.txt" | tee -a "$out/log.txt" | tail -n 60
    status=${PIPESTATUS[0]}
    ran+=("$name")
    case $status in
        0) summary+=("$name: done in $((SECONDS - start)) s") ;;
        124 | 137) summary+=("$name: STOPPED after $((SECONDS - start)) s") ;;
        *) summary+=("$name: FAILED ($status) after $((SECONDS - start)) s, see $out/log.txt") ;;
    esac
    return "$status"
}

on_gpu() { # the same, where there is a GPU
    if [ "$device" = cuda ]; then part "$@"; else summary+=("$1: left out, it needs a GPU"); fi
}

finish() {
    {
        echo
        for name in "${ran[@]}"; do
            [ "$name" = build ] || { echo "--- $name" && tail -n 25 "$work/logs/$name.txt"; }
        done
        echo "--- parts"
        printf '%s\n' "${summary[@]}"
    } | tee -a "$out/log.txt"
    [[ " ${summary[*]} " != *" FAILED "* && " ${summary[*]} " != *" STOPPED "* ]]
    exit
}

benchmark() { # name, module, arguments...
    local name=$1 module=$2
    shift 2
    part "$name" "$python" -m "benchmarks.$module" --device "$device" $tiny --seconds "$limit" --json "$out/$name.json" "$@"
}

part ready "$python" -m benchmarks.gpu_ready --device "$device" || finish

if wanted build; then
    on_gpu build "$python" -m pip install --no-build-isolation --no-deps --no-index --force-reinstall \
        --target "$work/site" --upgrade --config-settings cmake.define.BUILD_PANEL=OFF \
        --config-settings cmake.define.BUILD_CUDA=ON --config-settings build-dir="$work/cmake" . || finish
fi
# The installed package, not the folder of the checkout, which has no core for this torch. The benchmarks and the tests
# are run from the checkout.
if [ "$device" = cuda ]; then
    if [ ! -d "$work/site/chameleon_lab" ]; then
        summary+=("nothing is built in $work, FAILED: name build too, before what it is for")
        finish
    fi
    rm -rf "$work/run" && mkdir -p "$work/run/tutorials"
    cp -r benchmarks tests pyproject.toml "$work/run/"
    cp -r tutorials/data "$work/run/tutorials/"
    export PYTHONPATH="$work/site:$work/run${PYTHONPATH:+:$PYTHONPATH}"
    cd "$work/run"
fi

pytest=("$python" -m pytest -q -p no:cacheprovider)
wanted facts && benchmark facts gpu_facts
wanted replay && on_gpu replay "${pytest[@]}" --results "$out/replay.json" tests/cuda/test_replay.py
wanted tests && on_gpu tests "${pytest[@]}" --results "$out/tests.json" --durations=5 \
    --ignore=tests/cuda/test_replay.py tests/cuda
wanted overlap && benchmark overlap gpu_overlap
for budget in $budgets; do
    if wanted peers || wanted "peers-$budget"; then
        benchmark "peers-$budget" gpu_peers --budgets "$budget"
    fi
done
finish
