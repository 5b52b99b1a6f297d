#!/usr/bin/env bash
# compare_fp8_bf16.sh [TRAINER] [OPTION...] - the same run in bfloat16 and in FP8 configurations, over several seeds, with the same data: one table, and the curves
#
# The table: time a step, device memory, steps to reach bfloat16's final loss, validation loss and perplexity with the 95 % interval of the paired difference, and
# energy where NVML answers. 5 seeds with the default sizes take about 90 seconds on 2 CPU cores. Needs python3; data/text is made if it is not there.
#
#   CONFIGS="current"  what is compared with bfloat16, separated by ;  each is a recipe, or options, or both:
#                      CONFIGS="current; delayed --fp8-history 4; block; --preset memory; mx --moment-dtype float8"
#   SEEDS="1 2 3 4 5"  STEPS=300  EVERY=25 (steps between validations)  OUT=log_compare (curves.svg, the output of every run)
#   OPTION             goes to every run; instead of the default of the same name: --model d12 --batch-size 32 --train-data '...' --val-data '...' --learning-rate 6e-4
set -eu
cd "$(dirname "$0")/.."
trainer=${1:-./train_gpt_fp8_cpu}
[ $# -gt 0 ] && shift
if [ ! -x "$trainer" ]; then echo "there is no program '$trainer': make cpu (or make gpu) builds it; usage: $0 [TRAINER] [OPTION...]" >&2; exit 2; fi
exec python3 dev/study/compare.py "$trainer" "$@"
