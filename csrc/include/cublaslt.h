// Dense products by NVIDIA's cuBLASLt with what surrounds them in the epilogue. The library is loaded at run time: the
// build needs none of CUDA, and the process uses the one that torch has loaded.
#pragma once
#include <cstdint>
#include <string>

namespace fastbert {
namespace cublaslt {

enum class Epilogue : int {
    none = 0,
    bias,            // + bias, a number for each column of out
    bias_gelu,       // gelu_tanh(+ bias); aux gets what the GELU was given
    dgelu_bias_sum,  // * gelu_tanh'(aux); bias gets the sums over rows
    bias_sum,        // bias gets the sums of a over inner, a number for each row of out
};

enum class Type : int { f32 = 0, bf16 = 1, f16 = 2 };

// out (rows, cols) = a b, all row-major. a is (rows, inner), or (inner, rows) and read transposed; b is (inner, cols),
// or (cols, inner) and read transposed.
struct Product {
    Type type;  // of all matrices
    const void* a;
    const void* b;
    void* out;
    int64_t rows, cols, inner;
    bool a_transposed, b_transposed;
    Epilogue epilogue;
    void* bias;  // (cols), or (rows) for bias_sum
    void* aux;   // (rows, cols)
    void* workspace;
    int64_t workspace_bytes;
    int device;
    void* stream;
};

// Loads the library at this path, once; the empty string, or why it cannot be used.
std::string load(const std::string& path);
// The empty string, or what cuBLASLt says it cannot do. Choices of algorithm are kept by shape.
std::string multiply(const Product&);

}  // namespace cublaslt
}  // namespace fastbert
