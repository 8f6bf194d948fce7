#!/usr/bin/env bash
# Everything that only a GPU can show, in the order of its worth: benchmarks/gpu_check.sh [PART ...]
#
#   ready     looks for what is needed, builds if nothing of this source is built, trains a small model to the bit, and
#             runs out of memory once; first in every call
#   tests     tests/cuda: bit identity, random kernels, and the rest, under the allocator's default settings
#   overlap   how much of the traffic hides behind compute, by our count and by torch.profiler's
#   replay    every op that models use, again
#   facts     the link, pinning, blocks, what an op takes the host
#   llama     Llama-3-8B's shape in 24, 76, 40 and 30 GiB, beside what is published
#   peers-24  other methods beside ours in 24 GiB
#   peers-16, peers-40      in these (BUDGETS: "24 16 40")
#   expandable              tests that are short, and overlap, with expandable segments
#   sanitizer               a short training under compute-sanitizer
#
# One call ends within LIMIT seconds (570), the build counted in. What it did not get to is named at the end, with the
# call that runs it. Three calls tell most: `ready tests`, `overlap replay facts`, `llama peers-24`.
#
# Every call builds where nothing of this source is built. A build leaves build.tar.gz in OUT: where WORK has it, a call
# on a machine that has forgotten everything meanwhile unpacks it instead. `build` among the parts builds anew.
#
# Needs: an NVIDIA GPU, torch 2.11 or newer with CUDA, CUDA's headers (a toolkit, or pip's nvidia-cuda-runtime and
# nvidia-cuda-crt), a C++20 compiler, cmake, ninja, scikit-build-core and pytest. Nothing is downloaded. Wheels in WHEELS
# (./build/wheels) are unpacked for the peers; say:
# `pip download --no-deps -d build/wheels trl accelerate psutil`.
#
# All is printed as it comes. OUT (./build/gpu/out) gets tests.json, overlap.json, peers.json, facts.json, llama.json,
# each written as it comes, log.txt and the build. What is built lies in WORK (./build/gpu) for the next call. DEVICE=cpu
# runs every part on the embedded device with small models, to see that it works; with BUILD_CUDA=ON the CUDA device is
# built there, too, or the build fails.
set -u
cd "$(dirname "$0")/.."
work=${WORK:-$PWD/build/gpu}
mkdir -p "$work"
work=$(cd "$work" && pwd)
out=${OUT:-$work/out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
wheels=${WHEELS:-$PWD/build/wheels}
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
export CUBLAS_WORKSPACE_CONFIG=:4096:8 # matrix products repeat their bits
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-lo}
limit=${LIMIT:-570}
python=${PYTHON:-python3}
device=${DEVICE:-cuda}
export CHAMELEON_TEST_DEVICE=$device # tests/cuda is rehearsed where that is cpu
methods=${METHODS:-}
tiny=$([ "$device" = cpu ] && echo --tiny)
expandable=expandable_segments:True
least=${LEAST:-40} # seconds that are worth beginning a part with

# In order of worth, each with the most seconds that it takes of a call of 570 s that runs others too. The last one of a
# call takes all that is left.
read -ra budgets <<<"${BUDGETS:-24 16 40}"
parts=(tests:300 overlap:300 replay:130 facts:120 llama:290 "peers-${budgets[0]}:500")
for budget in "${budgets[@]:1}"; do parts+=("peers-$budget:500"); done
parts+=(expandable:300 sanitizer:400)

asked=" $* "
known=" ready build peers ${parts[*]%%:*} "
for name in "$@"; do
    if [[ $known != *" $name "* ]]; then
        echo "there is no part $name: there are$known" >&2
        exit 2
    fi
done
wanted() { # by its name, or since nothing is named
    [[ -z ${asked// /} || $asked == *" $1 "* || ($1 == peers-* && $asked == *" peers "*) ]]
}
summary=()
not_begun=()

part() { # name, seconds, command...
    local name=$1 seconds=$2 start=$SECONDS status
    shift 2
    echo "==> $name (at most $seconds s)" | tee -a "$out/log.txt"
    timeout -k 5 "$seconds" "$@" 2>&1 | tee -a "$out/log.txt"
    status=${PIPESTATUS[0]}
    case $status in
        0) summary+=("$name: done in $((SECONDS - start)) s") ;;
        124 | 137) summary+=("$name: STOPPED after $((SECONDS - start)) s") ;;
        *) summary+=("$name: FAILED ($status) after $((SECONDS - start)) s") ;;
    esac
    return "$status"
}

finish() {
    {
        echo "--- parts, in $SECONDS s"
        printf '%s\n' "${summary[@]}"
        [ ${#not_begun[@]} -eq 0 ] || echo "not begun, for want of time: benchmarks/gpu_check.sh ${not_begun[*]}"
    } | tee -a "$out/log.txt"
    # Where nothing is named, what time has been too short for is no failure.
    [[ " ${summary[*]} " != *" FAILED "* && " ${summary[*]} " != *" STOPPED "* ]] &&
        [[ ${#not_begun[@]} -eq 0 || -z ${asked// /} ]]
    exit
}

left() { echo $((limit - SECONDS - 8)); } # the rest is for stopping what does not stop

# ---------------------------------------------------------------------------------------------------------------- ready

if compgen -G "$wheels/*.whl" >/dev/null; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$work/extra" "$wheels"/*.whl
    export PYTHONPATH="$work/extra${PYTHONPATH:+:$PYTHONPATH}"
fi
part "looking" "$(left)" "$python" -m benchmarks.gpu.ready --device "$device" || finish

with_cuda=${BUILD_CUDA:-$([ "$device" = cuda ] && echo ON || echo OFF)}
source_digest() {
    find csrc chameleon_lab CMakeLists.txt pyproject.toml -type f \
        -not -name '*.so' -not -path '*/__pycache__/*' -not -path '*/labextension/*' -print0 |
        sort -z | xargs -0 sha256sum | sha256sum
    "$python" -c 'import sys; from importlib.metadata import version; print(sys.version, version("torch"))'
    echo "CUDA $with_cuda"
}
digest=$(source_digest)
is_built() { [ -d "$1/site/chameleon_lab" ] && [ "$(cat "$1/built" 2>/dev/null)" = "$digest" ]; }
unpack() { # what another machine has built, if it is of this source
    local there=$work/unpacked
    rm -rf "$there" && mkdir "$there"
    if tar -xzf "$work/build.tar.gz" -C "$there" && is_built "$there"; then
        rm -rf "$work/site"
        mv "$there/site" "$there/built" "$work/"
        echo "unpacked $work/build.tar.gz"
    else
        echo "$work/build.tar.gz is of another source, Python or torch"
    fi
    rm -rf "$there"
}
if [[ $asked != *" build "* ]] && ! is_built "$work" && [ -e "$work/build.tar.gz" ]; then
    unpack 2>&1 | tee -a "$out/log.txt"
fi
if [[ $asked == *" build "* ]] || ! is_built "$work"; then
    rm -f "$work/built"
    part build "$(left)" "$python" -m pip install --no-build-isolation --no-deps --no-index --force-reinstall \
        --target "$work/site" --upgrade --config-settings cmake.define.BUILD_PANEL=OFF \
        --config-settings cmake.define.BUILD_CUDA="$with_cuda" \
        --config-settings build-dir="$work/cmake" . || finish
    echo "$digest" >"$work/built"
    tar -czf "$out/build.tar.gz" -C "$work" site built
fi
# The installed package, not the folder of the checkout, which has no core for this torch. The benchmarks and the tests
# are run from a copy beside it.
rm -rf "$work/run" && mkdir -p "$work/run/tutorials"
cp -r benchmarks tests pyproject.toml "$work/run/"
cp -r tutorials/data "$work/run/tutorials/"
export PYTHONPATH="$work/site:$work/run${PYTHONPATH:+:$PYTHONPATH}"
cd "$work/run" || exit 1

benchmark() { # file, part of it, seconds, module, arguments...
    local file=$1 name=$2 seconds=$3 module=$4 most=$3
    shift 4
    most=$((seconds > 130 ? seconds - 45 : seconds * 2 / 3)) # nothing new begins after that
    part "$name" "$seconds" "$python" -m "benchmarks.$module" --device "$device" $tiny --seconds "$most" \
        --json "$out/$file.json" --part "$name" "$@"
}
tests() { # name, seconds, arguments...
    local name=$1 seconds=$2
    shift 2
    part "$name" "$seconds" "$python" -m pytest -v -p no:cacheprovider --results "$out/tests.json" --part "$name" "$@"
}

ready_s=$((90 * limit / 570))
benchmark facts ready "$(($(left) < ready_s ? $(left) : ready_s))" gpu.first

# ---------------------------------------------------------------------------------------------------------------- parts

run_part() { # name, seconds
    local name=$1 seconds=$2
    case $name in
        tests)
            # What tells most in a second comes first.
            tests tests "$seconds" --durations=5 tests/cuda/test_device.py tests/cuda/test_bit_identity.py
            ;;
        replay) tests replay "$seconds" tests/cuda/test_replay.py ;;
        sanitizer) CHECK_SECONDS=$seconds tests sanitizer "$seconds" tests/cuda/test_sanitizer.py ;;
        overlap) benchmark overlap overlap "$seconds" gpu.overlap ;;
        facts) benchmark facts facts "$seconds" gpu.facts ;;
        llama) PYTORCH_CUDA_ALLOC_CONF=$expandable benchmark llama llama "$seconds" gpu.llama ;;
        peers-*)
            PYTORCH_CUDA_ALLOC_CONF=$expandable benchmark peers "$name" "$seconds" gpu.peers \
                --budgets "${name#peers-}" --methods "$methods"
            ;;
        expandable)
            PYTORCH_CUDA_ALLOC_CONF=$expandable tests tests-expandable "$((seconds / 2))" tests/cuda/test_device.py \
                tests/cuda/test_bit_identity.py -k "not llama and not fp32 and not hundred"
            PYTORCH_CUDA_ALLOC_CONF=$expandable benchmark overlap overlap-expandable "$((seconds / 2))" gpu.overlap \
                --models gpt2
            ;;
    esac
}

todo=()
for entry in "${parts[@]}"; do wanted "${entry%%:*}" && todo+=("$entry"); done
for number in "${!todo[@]}"; do
    name=${todo[number]%%:*} seconds=$((${todo[number]##*:} * limit / 570))
    if [ "$(left)" -lt "$least" ]; then
        not_begun+=("$name")
        continue
    fi
    [ "$number" -eq $((${#todo[@]} - 1)) ] && seconds=$(left)
    [ "$seconds" -gt "$(left)" ] && seconds=$(left)
    run_part "$name" "$seconds"
done
finish
