// Which instruction set the kernels use: the best that processor and operating system allow, or the one asked for.
#pragma once
#include <string>
#include <vector>

#include "fastbert.h"

namespace fastbert {

// Best last: "scalar" always, then "avx2" and "avx512" where they can run.
std::vector<std::string> supported_isas();

// Throws std::invalid_argument for a name that is not supported here.
void set_isa(const std::string& name);
std::string isa();
const Kernels& kernels();

}  // namespace fastbert
