#!/usr/bin/env bash
# Builds the core's stress test with each sanitizer, and runs it: sanitize.sh PYTHON [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."

python=$1
seconds=${2-30}
failed=0

run() {
    local sanitizers=$1 folder=build/sanitize-${1%%,*}
    shift
    echo "==> Building the stress test with -fsanitize=$sanitizers"
    cmake -S . -B "$folder" -G Ninja -DBUILD_PANEL=OFF -DPython_EXECUTABLE="$python" -DSANITIZE="$sanitizers" >/dev/null
    cmake --build "$folder" --target stress >"$folder/build.log" 2>&1 || { cat "$folder/build.log"; exit 1; }
    echo "==> Running it for $seconds s under -fsanitize=$sanitizers"
    "$@" "$folder/csrc/stress" "$seconds" || failed=1
}

# PyTorch's own globals are not ours to free; the fault handler is ours to keep.
export ASAN_OPTIONS=detect_leaks=0:handle_segv=0:abort_on_error=0
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=0:second_deadlock_stack=1:ignore_noninstrumented_modules=1:handle_segv=0:suppressions=$PWD/scripts/tsan.supp
run address,undefined
# ThreadSanitizer's memory map does not stand address space layout randomisation on newer kernels.
run thread setarch "$(uname -m)" -R
exit $failed
