// What bindings.cpp takes from bindings_cuda.cpp.
#pragma once
#include <pybind11/pybind11.h>

#ifdef FASTBERT_CUDA
#include "cuda.h"
#endif

namespace fastbert {

void bind_cuda(pybind11::module_&);

}  // namespace fastbert
