/* cuda_runtime.h - the CPU device under the name of CUDA's runtime header
 *
 * With llmc/cpu first on the include path the sources that nvcc compiles for a GPU compile with g++ and run here. See llmc/cpu/README.md.
 */
#ifndef LLMC_CPU_CUDA_RUNTIME_H
#define LLMC_CPU_CUDA_RUNTIME_H

#if defined(__CUDACC__)
#error "llmc/cpu must not be on nvcc's include path: it would answer for CUDA's own headers"
#endif

#include "cpu_types.h"
#include "cpu_modes.h"
#include "cpu_launch.h"
#include "cpu_math.h"
#include "cpu_pool.h"
#include "cpu_runtime.h"
#include "library_types.h"

#endif
