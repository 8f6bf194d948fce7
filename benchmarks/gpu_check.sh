#!/usr/bin/env bash
# Everything that only a GPU can show, in one command: benchmarks/gpu_check.sh [build|facts|replay|tests|overlap|peers ...]
#
# Needs: an NVIDIA GPU, torch 2.11 or newer with CUDA, CUDA's headers (a toolkit, or pip's nvidia-cuda-runtime and
# nvidia-cuda-crt), cmake, ninja, scikit-build-core, pybind11 and pytest. Nothing is downloaded. Each part ends within
# LIMIT seconds (500), fails alone, and writes its files to OUT (./build/gpu): build.log, facts.json, replay.txt,
# tests.txt, overlap.json, peers-24.json and so on: the peers are a part for each of BUDGETS (GiB, "24 16 40"), which can
# be named too (peers-16). The table at the end is all of it in short. A part can be run alone, by name.
set -u
cd "$(dirname "$0")/.."
export OUT=${OUT:-$PWD/build/gpu} PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export CUBLAS_WORKSPACE_CONFIG=:4096:8 # matrix products repeat their bits
limit=${LIMIT:-500}
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
budgets=${BUDGETS:-24 16 40}
tiny=$([ "$device" = cpu ] && echo --tiny)
mkdir -p "$OUT"
summary=()

part() { # name, file, command...
    local name=$1 file=$2 start=$SECONDS status=0
    shift 2
    echo "==> $name"
    timeout -k 10 "$((limit + 40))" "$@" 2>&1 | tee "$OUT/$file" | tail -n 60
    status=${PIPESTATUS[0]}
    case $status in
        0) summary+=("$name: done in $((SECONDS - start)) s") ;;
        124 | 137) summary+=("$name: STOPPED after $((SECONDS - start)) s") ;;
        *) summary+=("$name: FAILED ($status) after $((SECONDS - start)) s, see $OUT/$file") ;;
    esac
}

wanted() { [ ${#parts[@]} -eq 0 ] || [[ " ${parts[*]} " == *" $1 "* ]]; }
parts=("$@")

if wanted build && [ "$device" = cuda ]; then
    part build build.log "$python" -m pip install --no-build-isolation --no-deps --no-index --force-reinstall \
        --target "$OUT/site" --upgrade --config-settings cmake.define.BUILD_PANEL=OFF \
        --config-settings cmake.define.BUILD_CUDA=ON --config-settings build-dir="$OUT/cmake" .
fi
# The installed package, not the folder of the checkout, which has no core for this torch. The benchmarks and the tests
# are run from the checkout.
if [ -d "$OUT/site/chameleon_lab" ]; then
    rm -rf "$OUT/run" && mkdir -p "$OUT/run"
    cp -r benchmarks tests pyproject.toml "$OUT/run/"
    mkdir -p "$OUT/run/tutorials" && cp -r tutorials/data "$OUT/run/tutorials/"
    export PYTHONPATH="$OUT/site:$OUT/run${PYTHONPATH:+:$PYTHONPATH}"
    cd "$OUT/run"
fi

wanted facts && part facts facts.txt "$python" -m benchmarks.gpu_facts --device "$device" $tiny --seconds "$limit" --json "$OUT/facts.json"
wanted replay && part replay replay.txt "$python" -m pytest -q -p no:cacheprovider tests/cuda/test_replay.py
wanted tests && part tests tests.txt "$python" -m pytest -q -p no:cacheprovider --durations=5 --ignore=tests/cuda/test_replay.py tests/cuda
wanted overlap && part overlap overlap.txt "$python" -m benchmarks.gpu_overlap --device "$device" $tiny --seconds "$limit" --json "$OUT/overlap.json"
for budget in $budgets; do
    if wanted peers || wanted "peers-$budget"; then
        part "peers-$budget" "peers-$budget.txt" "$python" -m benchmarks.gpu_peers --device "$device" $tiny \
            --budgets "$budget" --seconds "$limit" --json "$OUT/peers-$budget.json"
    fi
done

echo
for file in facts replay tests overlap $(printf 'peers-%s ' $budgets); do
    [ -f "$OUT/$file.txt" ] && echo "--- $file" && tail -n 25 "$OUT/$file.txt"
done
echo "--- parts"
printf '%s\n' "${summary[@]}"
[[ " ${summary[*]} " != *" FAILED "* && " ${summary[*]} " != *" STOPPED "* ]]
