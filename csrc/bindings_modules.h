// What bindings.cpp takes from bindings_modules.cpp.
#pragma once
#include <pybind11/pybind11.h>

namespace fastbert {

void bind_modules(pybind11::module_&);

}  // namespace fastbert
