# llm.fp8: `make` builds, `make train` trains on real text, `make test` runs every check, `make help` lists the rest.
# Nothing is guessed in silence: `make doctor` and the command lines show what was found. Every variable can be set: make VAR=value.
#   NVCC   the CUDA compiler; NVCC= (empty) pretends there is none      ARCH    GPU architectures to build for, e.g. ARCH=90a or ARCH="80 90a"
#   CXX    the C++ compiler of the CPU build                            CPU_ARCH  its -march (default native)
#   ONEDNN auto, 0 or 1: GEMMs of the CPU build by oneDNN               WERROR  1: warnings are errors        TEXT  make train TEXT=my.txt
#   NCCL, MPI  auto, 0 or 1: many GPUs by NCCL, processes started by OpenMPI
CXX      := $(if $(filter default,$(origin CXX)),g++,$(CXX))
CPU_ARCH ?= native
ONEDNN   ?= auto
NCCL     ?= auto
MPI      ?= auto
WERROR   ?= 0
NVCC     ?= $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
NVCC     := $(NVCC)
# Architectures. A GPU that answers decides (9.0 -> 90a: wgmma and FP8 need the "a"); else all that this project supports and this toolkit knows.
ALL_ARCHS := 80 89 90a 100a 120a
GPU_ARCHS := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sed -nE 's/^(9|1[0-9])\.([0-9])$$/\1\2a/p; s/^([78])\.([0-9])$$/\1\2/p' | sort -u)
KNOWN     := $(if $(NVCC),$(subst sm_,,$(filter sm_%,$(shell $(NVCC) --list-gpu-code 2>/dev/null))))
KNOWN_ALL := $(strip $(foreach a,$(ALL_ARCHS),$(if $(filter $(a:a=),$(or $(KNOWN:a=),$(ALL_ARCHS:a=))),$(a))))
ARCH      ?= $(or $(GPU_ARCHS),$(KNOWN_ALL))
gencode    = $(foreach a,$(1),-gencode arch=compute_$(a),code=sm_$(a))

# oneDNN (libdnnl-dev): used where it beats our own GEMM (processors with AMX), never needed. auto = does it link?
HAVE_ONEDNN := $(if $(filter auto,$(ONEDNN)),$(shell echo 'int main() { return !dnnl_version(); }' | $(CXX) -x c++ -include dnnl.h - -o /dev/null -ldnnl 2>/dev/null && echo 1),$(filter 1,$(ONEDNN)))
# Many ranks. auto = is it there? The CPU build plays NCCL by itself.
HAVE_MPI  := $(if $(filter auto,$(MPI)),$(shell mpicxx --showme:link >/dev/null 2>&1 && echo 1),$(filter 1,$(MPI)))
HAVE_NCCL := $(if $(filter auto,$(NCCL)),$(if $(wildcard $(dir $(NVCC))../include/nccl.h /usr/include/nccl.h),1),$(filter 1,$(NCCL)))
RANKS     := $(if $(HAVE_MPI),-DGPT_WITH_MPI $(filter -I%,$(shell mpicxx --showme:compile)))
RANK_LIBS := $(if $(HAVE_MPI),$(filter-out -lmpi_cxx,$(filter -L% -l%,$(shell mpicxx --showme:link))))
LIBS      := $(if $(HAVE_ONEDNN),-ldnnl) $(RANK_LIBS) -ldl
GPU_LIBS  := -lcublasLt $(if $(HAVE_NCCL),-lnccl) $(RANK_LIBS) -ldl

# -ffp-contract=off, -fmad=false: a*b+c is rounded twice unless fmaf is written, so that results do not depend on the compiler's mood. -fno-math-errno and
# -fno-trapping-math let loops vectorize and change no value. -fno-strict-aliasing: 16-byte packs are read over arrays of elements, as on a GPU.
DEPS   = -MMD -MP -MT $@ -MF build/deps/$(subst /,_,$@).d
WARN  := -Wall -Wextra -Wno-unknown-pragmas $(if $(filter 1,$(WERROR)),-Werror)
HOST  := $(CXX) -x c++ -std=c++17 -march=$(CPU_ARCH) -ffp-contract=off -fno-math-errno -fno-trapping-math -fno-strict-aliasing -fopenmp $(WARN) -Illmc/cpu -I. $(if $(filter 0,$(NCCL)),,-DGPT_WITH_NCCL)
CPU   := $(HOST) -O3 $(RANKS) $(if $(HAVE_ONEDNN),-DGPT_WITH_ONEDNN)
ASAN  := $(HOST) -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined
NVCC_WARN := -Xptxas -warn-spills -Xcompiler -fopenmp,-Wall,-Wextra,-Wno-unknown-pragmas
GPU    = $(NEED_NVCC)$(NVCC) -O3 -fmad=false -std=c++17 -lineinfo $(NVCC_WARN) -I. $(if $(HAVE_NCCL),-DGPT_WITH_NCCL) $(RANKS) $(call gencode,$(ARCH))
FATBIN = $(NEED_NVCC)$(NVCC) -O3 -fmad=false -std=c++17 -lineinfo $(NVCC_WARN) -I. $(if $(HAVE_NCCL),-DGPT_WITH_NCCL) $(RANKS) $(call gencode,$(KNOWN_ALL)) -Werror all-warnings
NEED_NVCC = $(if $(NVCC),,$(error no nvcc found: install the CUDA toolkit (12.2 or newer), or say where it is (NVCC=/path/to/nvcc), or build for the CPU (make cpu)))

vpath %.cu dev/test dev
GPT_TEST   := $(basename $(wildcard test_gpt_fp8.cu))
TESTS      := $(patsubst dev/test/%.cu,%,$(wildcard dev/test/test_*.cu))
# tests with kernels: those that include a .cuh, unless they say "CPU device only" somewhere
GPU_TESTS  := $(patsubst dev/test/%.cu,%,$(shell grep -l '\.cuh"' /dev/null dev/test/test_*.cu 2>/dev/null | xargs -r grep -L 'CPU device only'))
CUDA_UNITS := $(notdir $(basename $(wildcard train_gpt_fp8.cu test_gpt_fp8.cu dev/bench.cu))) $(GPU_TESTS)
TRAINER    := $(if $(and $(NVCC),$(GPU_ARCHS)),train_gpt_fp8,train_gpt_fp8_cpu)
.PHONY: all gpu cpu train test test-asan reference bench unit-tests asan-tests gpu-tests gpu-compile clean help doctor FORCE
.DELETE_ON_ERROR:
.PRECIOUS: build/flags/%

all: $(if $(NVCC),gpu,cpu)  ## build: for the GPU if nvcc is found, else for the CPU
	@$(if $(NVCC),,echo "no nvcc found: this is the CPU build, train_gpt_fp8_cpu")
gpu: train_gpt_fp8          ## build train_gpt_fp8 with nvcc
cpu: train_gpt_fp8_cpu      ## build train_gpt_fp8_cpu: the same sources on the CPU device
train:                      ## prepare text (or TEXT=my.txt), build, train a small GPT in FP8, sample from it
	@scripts/setup.sh
	@python3 data/make_text.py $(if $(TEXT),--text "$$TEXT")
	@$(MAKE) --no-print-directory $(TRAINER)
	@scripts/train_text.sh ./$(TRAINER)
test:                       ## every test and check; one closing line for all
	@dev/run_tests.sh
test-asan:                  ## the tests under the address and undefined-behaviour sanitizers, tiny shapes
	@dev/run_tests.sh asan
reference:                  ## compare with PyTorch: install Debian's if there is none, make the reference's fixtures again
	@python3 -B dev/reference/make_fixtures.py --help >/dev/null 2>&1 || scripts/setup.sh python3-torch python3-numpy libopenblas0-pthread; python3 dev/check_reference.py --required
bench: $(if $(filter train_gpt_fp8,$(TRAINER)),build/gpu/bench,build/bench)  ## tokens/s and time by kernel class
	@$< $(BENCH_ARGS)
unit-tests: $(TESTS:%=build/%) $(GPT_TEST:%=build/%)                  ## build the unit tests, into build
asan-tests: $(TESTS:%=build/asan/%) $(GPT_TEST:%=build/asan/%)
gpu-tests: $(GPU_TESTS:%=build/gpu/%) $(GPT_TEST:%=build/gpu/%)       ## build the unit tests with nvcc, into build/gpu
gpu-compile: $(CUDA_UNITS:%=build/compile/%.o)  ## compile every CUDA source for all architectures, warnings as errors; needs no GPU

build/flags/%: FORCE  # every target depends on the flags it was built with: other flags, another build
	@mkdir -p build/flags build/deps build/asan build/gpu build/compile; echo '$($*)' | cmp -s - $@ || echo '$($*)' > $@
train_gpt_fp8_cpu test_gpt_fp8_cpu: %_cpu: %.cu build/flags/CPU
	$(CPU) $(DEPS) $< -o $@ $(LIBS)
train_gpt_fp8 test_gpt_fp8: %: %.cu build/flags/GPU
	$(GPU) $(DEPS) $< -o $@ $(GPU_LIBS)
build/%: %.cu build/flags/CPU
	$(CPU) $(DEPS) $< -o $@ $(LIBS)
build/asan/%: %.cu build/flags/ASAN
	$(ASAN) $(DEPS) $< -o $@
build/gpu/%: %.cu build/flags/GPU
	$(GPU) $(DEPS) $< -o $@ $(GPU_LIBS)
build/compile/%.o: %.cu build/flags/FATBIN
	$(FATBIN) $(DEPS) -c $< -o $@
-include $(wildcard build/deps/*.d)

clean:                      ## remove what was built
	rm -rf build train_gpt_fp8 train_gpt_fp8_cpu test_gpt_fp8 test_gpt_fp8_cpu
help:                       ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22
doctor:                     ## what was found on this machine
	@dev/doctor.sh "$(CXX)" "$(HAVE_ONEDNN)" "$(NVCC)" "$(GPU_ARCHS)" "$(ARCH)" "$(TRAINER)" "$(HAVE_MPI)" "$(HAVE_NCCL)"
