// How kernels are started. tests/cuda/emulation has another cuda_runtime.h, under which the same files run on a CPU.
#pragma once
#include <cuda_runtime.h>

#include "cuda.h"

namespace fastbert {
namespace cuda {

#ifdef __CUDACC__
// Returns CUDA's error code.
template <class Args> int launch(void (*kernel)(Args), int64_t blocks, int threads, Stream stream, const Args& args) {
    kernel<<<unsigned(blocks), unsigned(threads), 0, static_cast<cudaStream_t>(stream)>>>(args);
    return cudaGetLastError();
}
#endif

}  // namespace cuda
}  // namespace fastbert
