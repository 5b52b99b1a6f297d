#!/usr/bin/env bash
# train_text.sh TRAINER [OPTION...] - the run of `make train`: a small byte-level GPT in FP8 on data/text, then a sample; 2 to 3 minutes on 2 CPU cores
#
# OUT=log_text make train goes on with the run in that folder. OPTION: others than those below. 4 layers of 128 channels, 0.8 million parameters, 512 tokens a step. STEPS=200 make train makes it shorter. Log and checkpoint go to log_text/ (then log_text_2/ ...).
# The precision is left to --dtype auto: float8 on every device that has it, the CPU device included.
set -eu
cd "$(dirname "$0")/.."
trainer=${1:-./train_gpt_fp8_cpu}
[ $# -gt 0 ] && shift
steps=${STEPS:-2500}
case $steps in *[!0-9]* | 0*) echo "STEPS='$steps' is not a number of steps; for instance STEPS=200 make train" >&2; exit 2 ;; esac
if [ -n "${OUT:-}" ]; then out=$OUT; set -- --resume "$@"
else
    out=log_text n=1
    while [ -e "$out" ]; do n=$((n + 1)) out=log_text_$n; done  # earlier runs stay
fi
exec "$trainer" \
    --train-data data/text/train.bin --val-data data/text/val.bin \
    --layers 4 --heads 4 --channels 128 --seq-len 64 --batch-size 8 \
    --max-steps "$steps" --learning-rate 4e-3 --beta2 0.99 --warmup-steps $((steps / 20)) --final-lr-fraction 0.02 --weight-decay 0.1 \
    --val-every 250 --val-steps 50 --sample-every "$steps" --sample-length 400 --temperature 0.7 --log-every 50 \
    --output-dir "$out" --checkpoint-every "$steps" "$@"
