#!/usr/bin/env bash
# gpu_check.sh - everything that only a GPU can tell, in one call of under 8 minutes (16 cores): build for the GPU at hand, every test that makes sense
# there, short trainings, the benchmark. Needs the CUDA toolkit, g++ and make; installs and downloads nothing.
#
#   dev/gpu_check.sh                 results in build/gpu_check: gpu_check.log, results.json, a log a step
#   OUT=folder dev/gpu_check.sh      results there
#   LIMIT=900 dev/gpu_check.sh       seconds for the whole (default 470); what does not fit is left out, and said so
#   BENCH_ARGS="--models d48" dev/gpu_check.sh     options of the benchmark (build/gpu/bench --help)
#   dev/gpu_check.sh --build-only    as on a machine without a GPU: checks that everything would build (every architecture; without nvcc the CPU build)
#
# A failing step does not stop the others. The last line is "N passed, N failed"; exit code 1 if any failed.
set -u
cd "$(dirname "$0")/.." || exit 1
out=${OUT:-build/gpu_check}
limit=${LIMIT:-470}
jobs=$(nproc)
build_only=$([ "${1:-}" = --build-only ] && echo 1)
passed=0 failed=0 failures=()
mkdir -p "$out" || exit 1

left() { echo $((limit - SECONDS)); }
pass() { passed=$((passed + 1)); echo "ok   $1"; }
flunk() { failed=$((failed + 1)); failures+=("$1"); echo "FAIL $1"; }

# step NAME SECONDS COMMAND...: one check out of a command's exit code; output to $out/NAME.log, its end shown if it fails
step() {
    local name=$1 seconds=$2 start=$SECONDS code
    shift 2
    [ "$seconds" -gt "$(left)" ] && seconds=$(left)
    if [ "$seconds" -le 0 ]; then flunk "$name: left out, the $limit s are used up"; return 1; fi
    timeout --kill-after=10 "$seconds" "$@" >"$out/$name.log" 2>&1 </dev/null
    code=$?
    if [ $code -eq 0 ]; then pass "$name ($((SECONDS - start)) s)"; return 0; fi
    flunk "$name (exit code $code$([ $code -eq 124 ] && echo ": out of time after $seconds s"))"
    tail -n 40 "$out/$name.log" | sed 's/^/     | /'
    return 1
}

# 8.9 -> 89, 9.0 -> 90a: the Makefile's names of architectures
arch_of() {
    case $1 in
        9.* | 1[0-9].*) echo "${1/./}a" ;;
        *) echo "${1/./}" ;;
    esac
}

# The compute capability of the first GPU, empty if none answers
find_gpu() {
    local cc
    cc=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
    if [[ $cc =~ ^[0-9]+\.[0-9]$ ]]; then echo "$cc"; return; fi
    [ -n "$nvcc" ] || return
    # no nvidia-smi, or one that knows no compute_cap: ask the runtime
    cat >"$out/find_gpu.cu" <<'END'
#include <cstdio>
int main() { cudaDeviceProp p; if (cudaGetDeviceProperties(&p, 0) != cudaSuccess) { return 1; } printf("%d.%d\n", p.major, p.minor); }
END
    "$nvcc" -o "$out/find_gpu" "$out/find_gpu.cu" >/dev/null 2>&1 && "$out/find_gpu" 2>/dev/null
}

# Without a GPU: would it build?
check_build() {
    if [ -n "$nvcc" ]; then
        echo "compiling every CUDA source for sm_80, sm_89, sm_90a, sm_100a, sm_120a, as far as $nvcc knows them; warnings are errors"
        limit=100000  # a small machine takes its time
        step gpu-compile 3600 make -k -j"$jobs" NVCC="$nvcc" gpu-compile
    else
        echo "no nvcc either: the CUDA sources cannot be compiled here; building them for the CPU device"
        limit=100000
        step cpu-build 3600 make -k -j"$jobs" NVCC= cpu unit-tests build/bench
    fi
}

# One check a program. The programs of the CPU device are there to compare with; own GEMM, so that nothing has to be installed.
build_all() {
    local target start=$SECONDS broken=0 flags=(NVCC="$nvcc" ARCH="$(arch_of "$gpu")" ONEDNN=0)
    targets=(train_gpt_fp8 build/gpu/bench)
    mapfile -t -O "${#targets[@]}" targets < <(make -pn "${flags[@]}" gpu-tests 2>/dev/null | sed -nE 's/^gpu-tests: *//p' | tr ' ' '\n' | sed '/^$/d')
    rm -f "${targets[@]}" train_gpt_fp8_cpu build/bench  # what is there afterwards has been built now
    timeout --kill-after=10 240 make -k -j"$jobs" "${flags[@]}" "${targets[@]}" train_gpt_fp8_cpu build/bench >"$out/build.log" 2>&1
    for target in "${targets[@]}"; do
        if [ -x "$target" ]; then pass "build $target"; else flunk "build $target"; broken=1; fi
    done
    [ $broken -eq 1 ] && grep -E 'error|Error|warning|undefined' "$out/build.log" | head -n 40 | sed 's/^/     | /'
    echo "     built in $((SECONDS - start)) s"
}

# Test programs in parallel, six at a time; their own counts are added up
run_tests() {
    local t name start=$SECONDS line p f
    for t in "${targets[@]}"; do
        name=${t#build/gpu/}
        [[ $name == test_* && -x $t ]] || continue
        while [ "$(jobs -rp | wc -l)" -ge 6 ]; do sleep 0.1; done
        (timeout --kill-after=10 180 "./$t" >"$out/$name.log" 2>&1 </dev/null; echo $? >"$out/$name.code") &
    done
    wait
    for t in "${targets[@]}"; do
        name=${t#build/gpu/}
        [[ $name == test_* && -x $t ]] || continue
        line=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$out/$name.log" | tail -n 1)
        if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed ]]; then p=${BASH_REMATCH[1]} f=${BASH_REMATCH[2]}; else p=0 f=0; line="no closing line"; fi
        passed=$((passed + p))
        if [ "$(cat "$out/$name.code")" = 0 ] && [ -n "$p" ] && [ "$line" != "no closing line" ]; then echo "ok   $name: $line"; continue; fi
        [ "$f" -gt 0 ] || f=1
        failed=$((failed + f)) failures+=("$name")
        echo "FAIL $name: $line, exit code $(cat "$out/$name.code")"
        grep -E -B 4 -A 2 '^FAIL|CHECK\(|^ERROR' "$out/$name.log" | tail -n 40 | sed 's/^/     | /'
    done
    echo "     tests took $((SECONDS - start)) s"
}

# train NAME PROGRAM STEPS OPTION...: a training on synthetic bytes; losses and norms to $out/NAME.loss
train() {
    local name=$1 program=$2 steps=$3
    shift 3
    step "$name" 90 "$program" --train-data "$out/data/train.bin" --val-data "$out/data/val.bin" --layers 4 --channels 128 --heads 4 --vocab-size 256 \
        --seq-len 64 --batch-size 8 --max-steps "$steps" --learning-rate 3e-3 --val-every 0 --val-steps 4 --sample-every 0 "$@" || return 1
    sed -nE 's/^step +([0-9]+)\/.*loss ([^ ]+) .*norm ([^ ]+) .*/\1 \2 \3/p' "$out/$name.log" >"$out/$name.loss"
}
# The loss of step N of a training
loss() { awk -v n="$2" '$1 == n { print $2 }' "$out/$1.loss" 2>/dev/null; }
# within NAME A B D: |A - B| <= D
within() {
    if awk -v a="${2:-nan}" -v b="${3:-nan}" -v d="$4" 'BEGIN { exit !(a + 0 == a && b + 0 == b && (a - b) <= d && (b - a) <= d) }'; then pass "$1: $2 and $3"
    else flunk "$1: $2 and $3 differ by more than $4"; fi
}

# same NAME A B: two trainings have the same losses and norms, to the last digit printed
same() { if cmp -s "$out/$2.loss" "$out/$3.loss"; then pass "$1"; else flunk "$1: $2 and $3 differ"; fi; }

# Every recipe that this GPU has, fused and not; what else may replace BF16
run_recipes() {
    local recipe recipes=(delayed)
    case $gpu in
        9.0) recipes+=(row block) ;;
        1[0-9].*) recipes+=(mx) ;;
    esac
    for recipe in "${recipes[@]}"; do
        train "recipe-$recipe" ./train_gpt_fp8 30 --dtype float8 --fp8-recipe "$recipe" || continue
        within "recipe $recipe, last loss against current" "$(loss "recipe-$recipe" 30)" "$(loss train-float8 30)" 0.1
        train "recipe-$recipe-apart" ./train_gpt_fp8 30 --dtype float8 --fp8-recipe "$recipe" --no-fp8-fusion && same "recipe $recipe, codes written by their producers" "recipe-$recipe" "recipe-$recipe-apart"
    done
    train whole-layer ./train_gpt_fp8 30 --dtype float8 --recompute 3 && same "a layer computed again in backward" train-float8 whole-layer
    train everything ./train_gpt_fp8 30 --dtype float8 --preset finetune-fp8 &&
        within "preset finetune-fp8, last loss against current" "$(loss everything 30)" "$(loss train-float8 30)" 0.1
}

run_trainings() {
    local dtype first last
    step make-data 60 build/gpu/bench --make-data "$out/data" || return
    for dtype in float8 bfloat16 float32; do
        [ $dtype = float8 ] && [ "${gpu/./}" -lt 89 ] && continue
        train "train-$dtype" ./train_gpt_fp8 30 --dtype $dtype || continue
        # the data's own entropy is ln 16 = 2.77 a byte until the sentences are known by heart, the start is ln 256 = 5.55
        first=$(loss "train-$dtype" 1) last=$(loss "train-$dtype" 30)
        if awk -v x="$last" 'BEGIN { exit !(x + 0 == x && x > 0 && x < 3.2) }'; then pass "train-$dtype learns: loss $first to $last"
        else flunk "train-$dtype does not learn: loss $first to $last, below 3.2 was expected"; fi
        # the CPU device runs the same kernels on the same data; sums in another order, so not bit for bit
        [ -x train_gpt_fp8_cpu ] && OMP_NUM_THREADS=4 train "train-$dtype-cpu" ./train_gpt_fp8_cpu 30 --dtype $dtype &&
            within "train-$dtype, first loss on the GPU and the CPU device" "$first" "$(loss "train-$dtype-cpu" 1)" 0.01 &&
            within "train-$dtype, last loss on the GPU and the CPU device" "$last" "$(loss "train-$dtype-cpu" 30)" 0.1
    done
    # the default on a GPU is flash attention; the library's products must train alike
    train bfloat16-gemm ./train_gpt_fp8 30 --dtype bfloat16 --attention gemm &&
        within "bfloat16, last loss with flash attention and with products of the library" "$(loss train-bfloat16 30)" "$(loss bfloat16-gemm 30)" 0.1
    [ "${gpu/./}" -ge 89 ] || return
    run_recipes
    train repeat ./train_gpt_fp8 30 --dtype float8 && step repeat-same 10 cmp "$out/train-float8.loss" "$out/repeat.loss"
    rm -rf "$out/run"
    train half ./train_gpt_fp8 15 --dtype float8 --output-dir "$out/run" --checkpoint-every 15 &&
        train resumed ./train_gpt_fp8 30 --dtype float8 --output-dir "$out/run" --checkpoint-every 15 --resume &&
        tail -n +16 "$out/train-float8.loss" >"$out/second-half.loss" && step resume-same 10 cmp "$out/second-half.loss" "$out/resumed.loss"
    rm -rf "$out/run"
}

run_bench() {
    local note budget
    note=$(nvidia-smi --query-gpu=name,driver_version,power.limit,clocks.max.sm,clocks.max.memory,temperature.gpu --format=csv,noheader 2>/dev/null | head -n 1)
    budget=$(($(left) - 20))
    [ "$budget" -gt 280 ] && budget=280
    if [ "$budget" -lt 20 ]; then flunk "bench: left out, the $limit s are used up"; return; fi
    # shellcheck disable=SC2086  # several words are meant
    step bench $((budget + 60)) build/gpu/bench --budget-seconds "$budget" --json "$out/results.json" --note "$note" ${BENCH_ARGS:-}
    grep -v '^  \(accepted\|refused\|not here\)' "$out/bench.log"
}

# Where this GPU's cuBLASLt answers otherwise than the CPU device that plays its architecture. Not a failure: the CPU device has to learn it.
compare_probes() {
    local play=${gpu/./}
    case $play in 10?) play=100 ;; 12?) play=120 ;; esac
    if ! GPT_CPU_ARCH=$play timeout 60 build/bench probe >"$out/probe-cpu.log" 2>&1; then echo "note: no answers of the CPU device to compare the probe table with"; return; fi
    # answer and question; "not here": the CPU device does not know
    local answers='s/^  (accepted|refused|not here) +(.*[^ ]) *$/\2\t\1/p'
    sed -E 's/ +# .*//' "$out/bench.log" | sed -nE "$answers" | LC_ALL=C sort >"$out/probe-gpu.txt"
    sed -E 's/ +# .*//' "$out/probe-cpu.log" | sed -nE "$answers" | LC_ALL=C sort >"$out/probe-cpu.txt"
    LC_ALL=C join -t $'\t' "$out/probe-gpu.txt" "$out/probe-cpu.txt" |
        awk -F '\t' '$2 != $3 && $2 != "not here" && $3 != "not here" { printf "  GPU %-8s  CPU device %-8s  %s\n", $2, $3, $1 }' >"$out/probe-differences.txt"
    echo "probe: $(wc -l <"$out/probe-gpu.txt") questions, $(grep -c 'accepted$' "$out/probe-gpu.txt") accepted;" \
        "$(wc -l <"$out/probe-differences.txt") answered otherwise than by the CPU device playing $play:"
    cat "$out/probe-differences.txt"
}

main() {
    nvcc=${NVCC-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
    if ! command -v make >/dev/null || ! command -v g++ >/dev/null; then echo "make and g++ are needed (Debian: apt-get install build-essential)"; flunk "tools"; return; fi
    gpu=$([ -n "$build_only" ] || find_gpu)
    date -u '+%Y-%m-%d %H:%M:%S UTC'
    echo "machine: $jobs cores, $(g++ --version | head -n 1); nvcc: ${nvcc:-none} $([ -n "$nvcc" ] && "$nvcc" --version | sed -nE 's/.*release ([0-9.]+).*/(CUDA \1)/p')"
    if [ -z "$gpu" ] || [ -z "$nvcc" ]; then
        if [ -n "$gpu" ]; then echo "a GPU of compute capability $gpu, but no nvcc: install the CUDA toolkit, or say where it is (NVCC=/path/to/nvcc)"
        elif [ -z "$build_only" ]; then echo "no GPU answers here (nvidia-smi, CUDA runtime): nothing can be measured"; fi
        check_build
        return
    fi
    nvidia-smi 2>/dev/null | head -n 20
    echo "GPU of compute capability $gpu: building for sm_$(arch_of "$gpu")"
    build_all
    run_tests
    run_trainings
    run_bench
    compare_probes
}

finish() {
    main
    [ ${#failures[@]} -ne 0 ] && printf 'failed: %s\n' "${failures[@]}"
    echo "everything is in $out (gpu_check.log$([ -f "$out/results.json" ] && echo ', results.json')); $SECONDS s"
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ]
}
rm -f "$out/results.json"
finish 2>&1 | tee "$out/gpu_check.log"
exit "${PIPESTATUS[0]}"
