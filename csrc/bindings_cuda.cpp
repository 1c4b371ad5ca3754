// The part of fastbert._C for GPUs, with pointers, shapes and streams as integers, as in bindings.cpp. Without nvcc there is
// only cuBLASLt, which is built without CUDA.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <stdexcept>

#include "bindings.h"
#include "cublaslt.h"
#ifdef FASTBERT_CUDA
#include "cuda.h"
#endif

namespace py = pybind11;

namespace fastbert {
namespace {

void bind_cublaslt(py::module_& m) {
    using cublaslt::Epilogue;
    using cublaslt::Type;
    m.def("cublaslt_load", &cublaslt::load, "The empty string, or why the library at this path cannot be used.");
    m.def("cublaslt_multiply",
          [](int type, std::array<Pointer, 3> a_b_out, std::array<int64_t, 3> rows_cols_inner,
             std::array<bool, 2> transposed, int epilogue, Pointer bias, Pointer aux, Pointer workspace,
             int64_t workspace_bytes, int device, Pointer stream) {
              return cublaslt::multiply({Type(type), at(a_b_out[0]), at(a_b_out[1]), at(a_b_out[2]),
                                         rows_cols_inner[0], rows_cols_inner[1], rows_cols_inner[2], transposed[0],
                                         transposed[1], Epilogue(epilogue), at(bias), at(aux), at(workspace),
                                         workspace_bytes, device, at(stream)});
          },
          py::call_guard<py::gil_scoped_release>(), "The empty string, or why not.");
}

#ifdef FASTBERT_CUDA
void check(int error, const char* what) {
    if (error)
        throw std::runtime_error(std::string("the CUDA kernel ") + what + " could not be started: " +
                                 cuda::cuda_error_text(error));
}

void bind_kernels(py::module_& m) {
    m.attr("cuda_architectures") = cuda::architectures;
    m.def("cuda_why_not", [] {
        const int error = cuda::device_error();
        return error ? std::string(cuda::cuda_error_text(error)) : std::string();
    });
    m.def("cuda_versions", [] { return std::pair(cuda::driver_version(), cuda::runtime_version()); },
          "Of the driver, 0 without one, and of the runtime that was linked: 12040 for 12.4.");
    m.def("cuda_pack",
          [](Pointer mask, int64_t batch_size, int64_t seqlen, int64_t capacity, std::array<Pointer, 5> out, Pointer stream) {
              check(cuda::pack({at<uint8_t>(mask), batch_size, seqlen, capacity, at<int64_t>(out[0]), at<int64_t>(out[1]),
                                at<int32_t>(out[2]), at<int32_t>(out[3]), at<int32_t>(out[4])},
                               at(stream)),
                    "pack");
          });
    m.def("cuda_gather_rows",
          [](Pointer x, Pointer places, bool wide, Pointer out, int64_t rows, int64_t row_bytes, Pointer stream) {
              check(cuda::gather_rows({at(x), at(places), wide, at(out), rows, row_bytes}, at(stream)), "gather_rows");
          });
    // kinds: (parameters' type, gradients' type, first chunk, chunks) of each.
    m.def("cuda_lamb",
          [](std::array<Pointer, 7> tables, int64_t num_tensors, const std::vector<std::array<int64_t, 4>>& kinds,
             Pointer stream) {
              cuda::LambArgs args{at<int64_t>(tables[0]), at<float>(tables[1]), at<int32_t>(tables[2]),
                                  at<int32_t>(tables[3]), at<float>(tables[4]), at<float>(tables[5]),
                                  at<float>(tables[6]), 0, 0, num_tensors, 0, 0};
              const auto for_kinds = [&](auto kernel, const char* what) {
                  for (const auto& [param, grad, first, count] : kinds) {
                      args.param_type = int(param), args.grad_type = int(grad);
                      args.first_chunk = first, args.num_chunks = count;
                      check(kernel(args, at(stream)), what);
                  }
              };
              for_kinds(&cuda::lamb_measure, "lamb_measure");
              check(cuda::lamb_trust(args, at(stream)), "lamb_trust");
              for_kinds(&cuda::lamb_move, "lamb_move");
          });
}
#endif

}  // namespace

void bind_cuda(py::module_& m) {
    bind_cublaslt(m);
#ifdef FASTBERT_CUDA
    bind_kernels(m);
#endif
}

}  // namespace fastbert
