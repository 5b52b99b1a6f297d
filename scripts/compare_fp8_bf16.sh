#!/usr/bin/env bash
# compare_fp8_bf16.sh [TRAINER] [OPTION...] - the same run in bfloat16 and in float8, over several seeds; prints both loss curves side by side and whether
# float8 ends within the spread of the seeds. Needs data/text (python3 data/make_text.py). About 90 seconds with the default sizes on 2 CPU cores.
#
#   SEEDS="1 2 3 4 5"  STEPS=300  EVERY=25  OUT=log_compare   may be set; further options (others than those below) go to both runs
set -eu
cd "$(dirname "$0")/.."
trainer=${1:-./train_gpt_fp8_cpu}
[ $# -gt 0 ] && shift
if [ ! -x "$trainer" ]; then echo "there is no program '$trainer': make cpu (or make gpu) builds it; usage: $0 [TRAINER] [OPTION...]" >&2; exit 2; fi
seeds=${SEEDS:-1 2 3 4 5} steps=${STEPS:-300} every=${EVERY:-25} out=${OUT:-log_compare}
logs=()
for seed in $seeds; do
    for dtype in bfloat16 float8; do
        rm -rf "$out/$dtype.$seed"
        mkdir -p "$out"
        logs+=("$out/$dtype.$seed/main.log")
        "$trainer" --train-data data/text/train.bin --val-data data/text/val.bin --layers 2 --heads 4 --channels 64 --seq-len 64 --batch-size 8 --learning-rate 2e-3 --warmup-steps 50 --max-steps "$steps" --val-every "$every" \
            --val-steps 20 --sample-every 0 --log-every "$steps" --seed "$seed" --dtype "$dtype" --output-dir "$out/$dtype.$seed" "$@" >"$out/$dtype.$seed.txt"
    done
done
# main.log: "s:STEP tel:LOSS" is a validation. Curves are means over the seeds; the spread is the largest difference of two seeds in bfloat16.
awk -v steps="$steps" '
    FNR == 1 { parts = split(FILENAME, part, "/"); split(part[parts - 1], name, "."); dtype = name[1]; seed = name[2]; if (!(seed in seen)) { seen[seed] = 1; n++ } }
    /tel:/ { split($1, s, ":"); split($2, l, ":"); if (l[2] !~ /^[0-9.]+$/) { print FILENAME ": loss " l[2] " at step " s[2]; bad = 1 } sum[dtype, s[2]] += l[2]; if (!(s[2] in at)) { at[s[2]] = 1; order[++points] = s[2] } last[dtype, seed] = l[2]; if (s[2] == 0 && top < l[2]) { top = l[2] } }
    END {
        if (bad) { print "a run diverged: no comparison"; exit 1 }
        printf "mean validation loss over %d seeds (b bfloat16, f float8, * both)\n%6s %9s %9s %9s\n", n, "step", "bfloat16", "float8", "f - b"
        for (i = 1; i <= points; i++) {
            b = sum["bfloat16", order[i]] / n; f = sum["float8", order[i]] / n
            line = sprintf("%62s", ""); pb = int(60 * b / top) + 1; pf = int(60 * f / top) + 1
            line = substr(line, 1, pb - 1) "b" substr(line, pb + 1); line = substr(line, 1, pf - 1) (pf == pb ? "*" : "f") substr(line, pf + 1)
            printf "%6d %9.4f %9.4f %+9.4f |%s\n", order[i], b, f, f - b, line
        }
        for (x in seen) { for (y in seen) { d = last["bfloat16", x] - last["bfloat16", y]; if (d > spread) { spread = d } } }
        for (x in seen) { d = last["float8", x] - last["bfloat16", x]; if (d < 0) { d = -d } if (d > worst) { worst = d } }
        if (n < 2) { printf "one seed: no spread to compare with; float8 ends %.4f away from bfloat16\n", worst; exit 0 }
        printf "after %d steps: largest difference float8 - bfloat16 of one seed %.4f; spread of bfloat16 over seeds %.4f: %s\n", steps, worst, spread, worst <= spread ? "within" : "BEYOND"
        exit !(worst <= spread)
    }' "${logs[@]}"
