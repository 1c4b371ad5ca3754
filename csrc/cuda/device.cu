// Queries about CUDA itself.
#include <cuda_runtime.h>

#include "cuda.h"

namespace fastbert {
namespace cuda {

const char* cuda_error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

const char* const architectures = FASTBERT_CUDA_ARCHITECTURES;

int device_error() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    return error != cudaSuccess ? error : count ? cudaSuccess : cudaErrorNoDevice;
}

int driver_version() {
    int version = 0;
    return cudaDriverGetVersion(&version) == cudaSuccess ? version : 0;
}

int runtime_version() { return CUDART_VERSION; }

}  // namespace cuda
}  // namespace fastbert
