#!/usr/bin/env bash
# doctor.sh - what was found on this machine; `make doctor` calls it with what the Makefile decided: CXX ONEDNN NVCC GPU_ARCHS ARCH TRAINER MPI NCCL
set -u
line() { printf '%-10s %s\n' "$1" "$2"; }
first() { "$@" 2>/dev/null | head -n 1; }
cxx=$1 onednn=$2 nvcc=$3 gpu_archs=$4 arch=$5 trainer=$6 mpi=${7:-} nccl=${8:-}
line "make" "$(first make --version)"
line "C++" "$cxx: $(first "$cxx" --version || true)"
line "CPU" "$(nproc) cores,$(sed -nE 's/^model name[^:]*: */ /p' /proc/cpuinfo | head -n 1)$(grep -qw avx512_bf16 /proc/cpuinfo && echo ', AVX-512 BF16')"
if [ -n "$onednn" ]; then line "oneDNN" "found: GEMMs of the CPU build use it on processors with AMX, our own elsewhere (equally fast)"
else line "oneDNN" "not found: our own GEMM is used (faster on processors with AMX: apt-get install libdnnl-dev)"; fi
if [ -n "$mpi" ]; then line "MPI" "$(first mpirun --version)"; else line "MPI" "not found: processes meet by TCP or a file (for mpirun: apt-get install libopenmpi-dev openmpi-bin)"; fi
if [ -n "$nccl" ]; then line "NCCL" "found"; else line "NCCL" "not found: a GPU build trains on one GPU (apt-get install libnccl-dev)"; fi
line "python3" "$(python3 --version 2>&1 || echo 'not found: needed to prepare data')"
if [ -n "$nvcc" ]; then line "nvcc" "$nvcc: $("$nvcc" --version 2>/dev/null | sed -nE 's/.*release ([0-9.]+).*/CUDA \1/p')"
else line "nvcc" "not found: CPU build only (for a GPU: the CUDA toolkit, 12.2 or newer)"; fi
if [ -n "$gpu_archs" ]; then nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader | while read -r gpu; do line "GPU" "$gpu"; done
else line "GPU" "none answers nvidia-smi"; fi
line "ARCH" "${nvcc:+$arch}"
line "make train" "would build and run $trainer"
