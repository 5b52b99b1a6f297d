#!/usr/bin/env bash
# gpt2_124M.sh - the run of the other scripts in this folder, which read it: GPT-2 with 124M parameters on 10 billion tokens of fineweb
#
# 4,768 steps of 2,097,152 tokens: on 16 GPUs each step is two micro-steps of 64 sequences on each. Every variable can be set from outside: OUT=/shared/log ...
# More options of the trainer are arguments of the script that reads this one: run_mpirun.sh --save-every-minutes 15, sbatch run_slurm_tcp.sbatch --save-every-minutes 15
trainer=${TRAINER:-./train_gpt_fp8}
data=${DATA:-data/fineweb10B}       # python3 data/fineweb.py makes it
out=${OUT:-log_gpt2_124M}           # log and checkpoints; on a file system that all nodes share
model=${MODEL:-d12}
seq_len=${SEQ_LEN:-1024}
batch=${BATCH:-64}                  # sequences of a GPU's micro-step: what its memory holds
total=${TOTAL:-2097152}             # tokens of a step over all GPUs
zero=${ZERO:-1}                     # 1: the optimizer's state is dealt out to the GPUs

# NCCL: the interface where it first meets; GPUDirect RDMA where NIC and GPU are under one PCIe switch; peer access under one host bridge; InfiniBand if there is any.
# NCCL_DEBUG=INFO shows what it makes of them. They do nothing on one node.
export NCCL_SOCKET_IFNAME=${INTERFACE:-eth0} NCCL_NET_GDR_LEVEL=${NCCL_NET_GDR_LEVEL:-2} NCCL_P2P_LEVEL=${NCCL_P2P_LEVEL:-PXB} NCCL_IB_DISABLE=${NCCL_IB_DISABLE:-0}

# shellcheck disable=SC2034  # for the scripts that read this
run=("$trainer" --train-data "$data/fineweb_train_*.bin" --val-data "$data/fineweb_val_*.bin" --output-dir "$out"
    --model "$model" --seq-len "$seq_len" --batch-size "$batch" --total-batch-tokens "$total" --zero-stage "$zero"
    --learning-rate 6e-4 --warmup-steps 700 --final-lr-fraction 0 --weight-decay 0.1
    --val-every 250 --sample-every 5000 --checkpoint-every 500 --checkpoint-keep 3 --checkpoint-major-every 5000 "$@")
