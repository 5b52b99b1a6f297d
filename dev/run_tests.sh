#!/usr/bin/env bash
# run_tests.sh - every check of this repository, one closing line "N passed, N failed, N skipped" for all; exit code 1 if any failed
#
#   dev/run_tests.sh          everything (what `make test` and CI run)
#   dev/run_tests.sh unit     unit tests and test_gpt_fp8_cpu      dev/run_tests.sh asan    the sanitizer builds, quick tests only
#   dev/run_tests.sh check    the Python checks                    dev/run_tests.sh gpu     compile the CUDA sources for all architectures
#
# A failure does not stop the rest. A suite prints its own "N passed, N failed, N skipped"; these are added up. A suite that prints no such line
# (it does not compile, crashed, ran out of time) counts as one failure, and so does one that exits non-zero without counting any.
set -u
cd "$(dirname "$0")/.." || exit 1
export MAKEFLAGS=  # a parent make's flags (-n, -j with its jobserver) must not leak into ours
what=${1:-all}
limit=${TEST_TIMEOUT:-900}  # seconds for one suite
passed=0 failed=0 skipped=0 failures=()
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# suite NAME COMMAND...: runs it, shows its output without the closing line, adds up
suite() {
    local name=$1 code p=0 f=0 s=0 start=$SECONDS
    shift
    timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null
    code=$?
    if [[ $(grep -aE '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$' "$log" | tail -n 1) =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
        p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]} s=${BASH_REMATCH[4]:-0}
    elif [ $code -eq 0 ]; then echo "    no closing line: nothing was counted" >>"$log"; f=1
    fi
    [ $code -ne 0 ] && [ "$f" -eq 0 ] && f=1
    [ $code -eq 124 ] && echo "    ran out of time after $limit s" >>"$log"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    [ "$f" -ne 0 ] && failures+=("$name")
    echo "== $name: $((p + f + s)) checks, $([ "$f" -eq 0 ] && echo ok || echo "$f FAILED (exit code $code)")$([ "$s" -ne 0 ] && echo ", $s skipped"), $((SECONDS - start)) s"
    if [ "$f" -ne 0 ] || [ -n "${VERBOSE:-}" ]; then grep -avE '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 200
    else grep -aE '^(skip|note)|^ *skipped:' "$log"; fi
}
# counted COMMAND...: one check out of a command's exit code
counted() { if "$@"; then echo "1 passed, 0 failed, 0 skipped"; else echo "0 passed, 1 failed, 0 skipped"; return 1; fi; }
# built TARGET COMMAND...: builds the target, runs the command
built() { make -s "$1" && shift && "$@"; }
export -f counted built

unit_tests() {
    make -k -s -j"$(nproc)" unit-tests >/dev/null 2>&1  # in parallel; what fails here fails again below, with its message
    for t in dev/test/test_*.cu; do t=$(basename "$t" .cu); suite "$t" bash -c "built build/$t build/$t"; done
    [ -f test_gpt_fp8.cu ] && suite test_gpt_fp8_cpu bash -c "built build/test_gpt_fp8 build/test_gpt_fp8"
    local f=dev/reference/fixtures/small  # as a user compares with files of llm.c's Python script
    [ -f $f.bin ] && suite "test_gpt_fp8_cpu --model" build/test_gpt_fp8 --model $f.bin --debug-state ${f}_float32_debug_state.bin
}
asan_tests() {
    # detect_stack_use_after_return=0: its fake stacks do not know the CPU device's fibers
    export ASAN_OPTIONS=detect_stack_use_after_return=0:${ASAN_OPTIONS:-} UBSAN_OPTIONS=print_stacktrace=1:${UBSAN_OPTIONS:-}
    make -k -s -j"$(nproc)" asan-tests >/dev/null 2>&1
    for t in dev/test/test_*.cu; do t=$(basename "$t" .cu); suite "asan $t" bash -c "built build/asan/$t build/asan/$t -q"; done
    [ -f test_gpt_fp8.cu ] && suite "asan test_gpt_fp8" bash -c "built build/asan/test_gpt_fp8 build/asan/test_gpt_fp8 -q"
}
checks() { for c in dev/check_*.py; do [ -f "$c" ] && suite "$(basename "$c" .py)" python3 "$c"; done; }
gpu_compile() {
    if [ -n "${NVCC-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}" ]; then limit=3600 suite "gpu-compile" bash -c "counted make -k -s -j$(nproc) gpu-compile"
    else suite "gpu-compile" echo "$(printf 'skip gpu-compile: no nvcc here\n0 passed, 0 failed, 1 skipped')"; fi
}

case $what in
    all) unit_tests; asan_tests; checks; gpu_compile ;;
    unit) unit_tests ;;
    asan) asan_tests ;;
    check) checks ;;
    gpu) gpu_compile ;;
    *) echo "usage: dev/run_tests.sh [all|unit|asan|check|gpu]" >&2; exit 2 ;;
esac
[ ${#failures[@]} -ne 0 ] && echo "failed: ${failures[*]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
