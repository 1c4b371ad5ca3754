// What the pybind files of fastbert._C share.
#pragma once
#include <pybind11/pybind11.h>

#include <cstdint>

namespace fastbert {

using Pointer = uintptr_t;  // 0 is null

template <class T = void> T* at(Pointer p) { return reinterpret_cast<T*>(p); }

void bind_cuda(pybind11::module_&);     // bindings_cuda.cpp
void bind_modules(pybind11::module_&);  // bindings_modules.cpp

}  // namespace fastbert
