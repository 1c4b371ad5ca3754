// fastbert._C: the kernels for Python. Pointers come as integers; shapes, dtypes and contiguity are checked by the
// callers in fastbert/ops. With bindings_cuda.cpp and bindings_modules.cpp the only files that know pybind11.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "encoder.h"
#include "fingerprint.h"
#include "gemm_int8.h"
#include "isa.h"
#include "mask.h"
#include "threads.h"

namespace py = pybind11;
using namespace fastbert;

namespace {

Dropout make_dropout(uint64_t seed, uint32_t offset, uint32_t site, uint32_t threshold, Pointer row_numbers) {
    const float scale = threshold < 65536 ? float(65536.0 / double(65536 - threshold)) : 0.0f;
    return Dropout{{uint32_t(seed), uint32_t(seed >> 32)}, offset, site, threshold, scale, at<int64_t>(row_numbers)};
}

void bind_gelu(py::module_& m) {
    m.def("gelu_forward",
          [](int dtype, bool tanh, Pointer x, Pointer bias, Pointer out, int64_t rows, int64_t cols) {
              kernels().gelu_forward({DType(dtype), tanh, at(x), at<float>(bias), rows, cols}, at(out));
          },
          py::call_guard<py::gil_scoped_release>());
    m.def("gelu_backward",
          [](int dtype, bool tanh, Pointer dout, Pointer x, Pointer bias, Pointer dx, Pointer dbias, Pointer workspace,
             int64_t rows, int64_t cols) {
              kernels().gelu_backward({DType(dtype), tanh, at(x), at<float>(bias), rows, cols}, at(dout), at(dx),
                                      at<float>(dbias), at<float>(workspace));
          },
          py::call_guard<py::gil_scoped_release>());
}

void bind_layer_norm(py::module_& m) {
    m.def("layer_norm_forward",
          [](int dtype, Pointer x, Pointer x_bias, Pointer residual, Pointer weight, Pointer bias, float eps,
             const Dropout& dropout, Pointer out, Pointer sum, Pointer mean, Pointer rstd, int64_t rows, int64_t cols) {
              kernels().layer_norm_forward({DType(dtype), at(x), at<float>(x_bias), at(residual), at<float>(weight),
                                            at<float>(bias), eps, dropout, at(out), at<float>(sum), at<float>(mean),
                                            at<float>(rstd), rows, cols});
          },
          py::call_guard<py::gil_scoped_release>());
    m.def("layer_norm_backward",
          [](int dtype, Pointer dout, Pointer sum, Pointer mean, Pointer rstd, Pointer weight, const Dropout& dropout,
             Pointer dresidual, Pointer dx, Pointer dweight, Pointer dbias, Pointer dx_bias, Pointer workspace,
             int64_t rows, int64_t cols) {
              kernels().layer_norm_backward({DType(dtype), at(dout), at<float>(sum), at<float>(mean), at<float>(rstd),
                                             at<float>(weight), dropout, at(dresidual), at(dx), at<float>(dweight),
                                             at<float>(dbias), at<float>(dx_bias), at<float>(workspace), rows, cols});
          },
          py::call_guard<py::gil_scoped_release>());
}

void bind_dropout(py::module_& m) {
    py::class_<Dropout>(m, "Dropout")
        .def(py::init(&make_dropout), py::arg("seed"), py::arg("offset"), py::arg("site"), py::arg("threshold"),
             py::arg("row_numbers") = 0);
    m.def("dropout",
          [](int dtype, Pointer x, Pointer out, int64_t rows, int64_t cols, const Dropout& dropout) {
              kernels().dropout(DType(dtype), at(x), at(out), rows, cols, dropout);
          },
          py::call_guard<py::gil_scoped_release>());
    m.def("keep_mask",
          [](Pointer row_numbers, int64_t num_rows, int64_t cols, const Dropout& dropout, Pointer keep) {
              kernels().keep_mask(at<int64_t>(row_numbers), num_rows, cols, dropout, at<bool>(keep));
          },
          py::call_guard<py::gil_scoped_release>());
}

void bind_cross_entropy(py::module_& m) {
    m.def("cross_entropy_forward",
          [](int dtype, Pointer logits, Pointer labels, int64_t ignore_index, Pointer loss, Pointer statistics, int64_t rows,
             int64_t cols) {
              return kernels().cross_entropy_forward(
                  {DType(dtype), at(logits), at<int64_t>(labels), ignore_index, rows, cols}, at<float>(loss),
                  at<float>(statistics));
          },
          py::call_guard<py::gil_scoped_release>());
    m.def("cross_entropy_backward",
          [](int dtype, Pointer dloss, Pointer logits, Pointer labels, Pointer statistics, int64_t ignore_index,
             Pointer dlogits, int64_t rows, int64_t cols) {
              return kernels().cross_entropy_backward(
                  {DType(dtype), at(logits), at<int64_t>(labels), ignore_index, rows, cols}, at<float>(dloss),
                  at<float>(statistics), at(dlogits));
          },
          py::call_guard<py::gil_scoped_release>());
}

// Whether the bounds are those of sequences end to end that fill the tokens; others would be read outside their tensor.
bool bounds_fit(const int32_t* bounds, int64_t batch_size, int64_t num_tokens) {
    if (batch_size < 0) return false;  // no bound at all
    for (int64_t b = 0; b < batch_size; ++b)
        if (bounds[b] > bounds[b + 1]) return false;
    return bounds[0] == 0 && bounds[batch_size] == num_tokens;
}

void bind_attention(py::module_& m) {
    py::class_<RelativeBias>(m, "RelativeBias")
        .def(py::init([](Pointer rows, int64_t stride, int64_t zero) {
            return RelativeBias{at<float>(rows), stride, zero};
        }));
    py::class_<AttentionArgs>(m, "AttentionArgs")
        .def(py::init([](int dtype, std::array<Pointer, 3> qkv, std::array<int64_t, 3> strides, Pointer out,
                         int64_t out_stride, Pointer lse, Pointer cu_seqlens, int64_t batch_size, int64_t max_seqlen,
                         int64_t nheads, int64_t head_dim, float softmax_scale, bool causal, const Dropout& dropout,
                         const RelativeBias& bias) {
                 return AttentionArgs{DType(dtype), at(qkv[0]), at(qkv[1]), at(qkv[2]), strides[0], strides[1],
                                      strides[2], at(out), out_stride, at<float>(lse), at<int32_t>(cu_seqlens),
                                      batch_size, max_seqlen, nheads, head_dim, softmax_scale, causal, dropout, bias};
             }),
             py::kw_only(), py::arg("dtype"), py::arg("qkv"), py::arg("strides"), py::arg("out"), py::arg("out_stride"),
             py::arg("lse"), py::arg("cu_seqlens"), py::arg("batch_size"), py::arg("max_seqlen"), py::arg("nheads"),
             py::arg("head_dim"), py::arg("softmax_scale"), py::arg("causal"), py::arg("dropout"),
             py::arg("bias") = RelativeBias{})
        .def("bounds_fit", [](const AttentionArgs& args, int64_t num_tokens) {
            return bounds_fit(args.cu_seqlens, args.batch_size, num_tokens);
        });
    m.attr("ATTENTION_MAX_HEAD_DIM") = ATTENTION_MAX_HEAD_DIM;
    m.def("attention_forward", [](const AttentionArgs& args) { kernels().attention_forward(args); },
          py::call_guard<py::gil_scoped_release>());
    m.def("attention_backward",
          [](const AttentionArgs& args, Pointer dout, int64_t dout_stride, std::array<Pointer, 3> gradients,
             std::array<int64_t, 3> strides, Pointer dbias) {
              kernels().attention_backward({args, at(dout), dout_stride, at(gradients[0]), at(gradients[1]),
                                            at(gradients[2]), strides[0], strides[1], strides[2], at<float>(dbias)});
          },
          py::arg("args"), py::arg("dout"), py::arg("dout_stride"), py::arg("gradients"), py::arg("strides"),
          py::arg("dbias") = 0, py::call_guard<py::gil_scoped_release>());
    m.def("longest_sequence", [](Pointer cu_seqlens, int64_t batch_size) {
        return longest_sequence(at<int32_t>(cu_seqlens), batch_size);
    });
}

void bind_gemm_int8(py::module_& m) {
    m.def("int8_packed_size", &int8_packed_size, "Bytes of a packed int8 weight (n, k) with that many outlier columns.");
    m.def("is_packed_int8", [](Pointer buffer, int64_t bytes) { return is_packed_int8(at(buffer), bytes); },
          "Whether so many bytes are a weight as pack_int8 makes it.");
    m.def("pack_int8",
          [](Pointer w, int64_t ldw, int64_t n, int64_t k, Pointer outliers, int64_t num_outliers, Pointer packed) {
              pack_int8({at<float>(w), ldw, n, k, at<int32_t>(outliers), num_outliers, at(packed)});
          },
          py::call_guard<py::gil_scoped_release>());
    m.def("gemm_int8",
          [](int dtype, Pointer a, int64_t lda, Pointer packed, Pointer bias, int act, Pointer residual, Pointer c,
             int64_t ldc, int c_dtype, int64_t rows, int64_t n, int64_t k, Pointer sums) {
              gemm_int8({DType(dtype), at(a), lda, at(packed), at<float>(bias), Activation(act), at(residual), at(c), ldc,
                         DType(c_dtype), rows, n, k, at<int32_t>(sums), false, nullptr, false});
          },
          py::call_guard<py::gil_scoped_release>());
}

void bind_fingerprints(py::module_& m) {
    m.def("fingerprint", [](Pointer data, int64_t bytes) { return fingerprint(at(data), bytes); },
          "A number that an update of a whole parameter changes, of a small one any change.");
    m.def("fingerprints",
          [](const std::vector<Pointer>& buffers, const std::vector<int64_t>& sizes) {
              if (buffers.size() != sizes.size()) throw std::invalid_argument("expected a size for each buffer");
              return fingerprints(buffers, sizes);
          },
          py::arg("buffers"), py::arg("sizes"), "One number for all of some buffers.");
}

void bind_gemm(py::module_& m) {
    m.def("has_bf16x2", &has_bf16x2, "Whether this level multiplies float32 numbers in two bfloat16 parts.");
    m.def("has_bf16_attention", &has_bf16_attention, "Whether this level's attention is faster in bfloat16 than in float32.");
    m.def("has_winograd", &has_winograd, "Whether this level multiplies float32 numbers by Winograd's inner product.");
    m.def("packed_size", [](int dtype, int64_t n, int64_t k) { return packed_size(DType(dtype), n, k); });
    m.def("pack_weight",
          [](int dtype, Pointer w, int w_dtype, int64_t ldw, int64_t n, int64_t k, bool transposed, Pointer packed) {
              pack_weight({DType(dtype), at(w), DType(w_dtype), ldw, n, k, transposed, at(packed)});
          },
          py::call_guard<py::gil_scoped_release>());
    m.def("gemm",
          [](int dtype, Pointer a, int64_t lda, Pointer packed, Pointer bias, int act, Pointer residual, Pointer c,
             int64_t ldc, int c_dtype, int64_t rows, int64_t n, int64_t k) {
              gemm({DType(dtype), at(a), lda, at(packed), at<float>(bias), Activation(act), at(residual), at(c), ldc,
                    DType(c_dtype), rows, n, k});
          },
          py::call_guard<py::gil_scoped_release>());
    m.def("weight_grad",
          [](int dtype, Pointer dy, int64_t ldy, Pointer x, int64_t ldx, Pointer dw, int64_t ldw, int dw_dtype,
             Pointer db, int64_t rows, int64_t n, int64_t k) {
              weight_grad({DType(dtype), at(dy), ldy, at(x), ldx, at(dw), ldw, DType(dw_dtype), at<float>(db), rows, n, k});
          },
          py::call_guard<py::gil_scoped_release>());
}

// A tensor is eight integers (param, grad, master, first, second, size, dtype of grad, written) and ten floats, in the order
// of OptimizerTensor. The result lasts until the thread's next call, which allocates nothing.
const std::vector<OptimizerTensor>& optimizer_tensors(const std::vector<int64_t>& places, const std::vector<double>& rates) {
    thread_local std::vector<OptimizerTensor> tensors;
    tensors.resize(places.size() / 8);
    for (size_t i = 0; i < tensors.size(); ++i) {
        const int64_t* p = &places[8 * i];
        const double* r = &rates[10 * i];
        tensors[i] = {at(p[0]), at(p[1]), at<float>(p[2]), at<float>(p[3]), at<float>(p[4]), p[5], DType(p[6]),
                      at<const uint8_t>(p[7]), float(r[0]), float(r[1]), float(r[2]), float(r[3]), float(r[4]),
                      float(r[5]), float(r[6]), r[7] != 0, float(r[8]), float(r[9])};
    }
    return tensors;
}

void bind_optimizers(py::module_& m) {
    const auto define = [&](const char* name, auto kernel) {
        m.def(name,
              [kernel](const std::vector<int64_t>& places, const std::vector<double>& rates, float grad_scale) {
                  if (places.size() % 8 || rates.size() != places.size() / 8 * 10)
                      throw std::invalid_argument("a tensor is 8 integers and 10 floats");
                  const std::vector<OptimizerTensor>& tensors = optimizer_tensors(places, rates);
                  (kernels().*kernel)({tensors.data(), int64_t(tensors.size()), grad_scale});
              },
              py::call_guard<py::gil_scoped_release>());
    };
    m.attr("OPTIMIZER_CHUNK") = OPTIMIZER_CHUNK;
    define("adamw", &Kernels::adamw);
    define("lamb", &Kernels::lamb);
    m.def("grad_norm",
          [](const std::vector<int64_t>& places) {  // (grad, size, dtype, written) of each tensor
              if (places.size() % 4) throw std::invalid_argument("a tensor is 4 integers");
              std::vector<GradNormTensor> tensors(places.size() / 4);
              for (size_t i = 0; i < tensors.size(); ++i)
                  tensors[i] = {at(places[4 * i]), places[4 * i + 1], DType(places[4 * i + 2]),
                                at<const uint8_t>(places[4 * i + 3])};
              return kernels().grad_norm(tensors.data(), int64_t(tensors.size()));
          },
          py::call_guard<py::gil_scoped_release>());
}

EmbeddingArgs embedding_args(int dtype, const std::array<Pointer, 3>& ids, const std::array<Pointer, 3>& tables,
                             const std::array<int64_t, 3>& table_rows, Pointer weight, Pointer bias, float eps,
                             const Dropout& dropout, int64_t rows, int64_t cols) {
    EmbeddingArgs args{};
    args.dtype = DType(dtype);
    for (int i = 0; i < 3; ++i) {
        args.ids[i] = at<int64_t>(ids[i]);
        args.tables[i] = at(tables[i]);
        args.table_rows[i] = table_rows[i];
    }
    args.weight = at<float>(weight);
    args.bias = at<float>(bias);
    args.eps = eps;
    args.dropout = dropout;
    args.rows = rows;
    args.cols = cols;
    return args;
}

void bind_embedding(py::module_& m) {
    m.def("embedding_forward",
          [](int dtype, const std::array<Pointer, 3>& ids, const std::array<Pointer, 3>& tables,
             const std::array<int64_t, 3>& table_rows, Pointer weight, Pointer bias, float eps, const Dropout& dropout,
             Pointer out, Pointer total, Pointer mean, Pointer rstd, int64_t rows, int64_t cols) {
              return kernels().embedding_forward(embedding_args(dtype, ids, tables, table_rows, weight, bias, eps, dropout,
                                                                rows, cols),
                                                 at(out), at<float>(total), at<float>(mean), at<float>(rstd));
          },
          py::call_guard<py::gil_scoped_release>());
    m.def("embedding_backward",
          [](int dtype, Pointer dout, const std::array<Pointer, 3>& ids, const std::array<int64_t, 3>& table_rows,
             Pointer weight, const Dropout& dropout, Pointer total, Pointer mean, Pointer rstd,
             const std::array<Pointer, 3>& dtables, int64_t padding_idx, Pointer dweight, Pointer dbias,
             Pointer workspace, Pointer dsum, Pointer order, int64_t rows, int64_t cols) {
              EmbeddingBackwardArgs args{};
              args.forward = embedding_args(dtype, ids, {}, table_rows, weight, 0, 0.0f, dropout, rows, cols);
              args.total = at<float>(total);
              args.dout = at(dout);
              args.mean = at<float>(mean);
              args.rstd = at<float>(rstd);
              for (int i = 0; i < 3; ++i) args.dtables[i] = at(dtables[i]);
              args.padding_idx = padding_idx;
              args.dweight = at<float>(dweight);
              args.dbias = at<float>(dbias);
              args.workspace = at<float>(workspace);
              args.dsum = at<float>(dsum);
              args.order = at<int32_t>(order);
              return kernels().embedding_backward(args);
          },
          py::call_guard<py::gil_scoped_release>());
}

void bind_encoder(py::module_& m) {
    py::class_<Encoder>(m, "Encoder")
        .def(py::init([](int dtype, int attention, bool tanh, float eps, std::vector<int64_t> order, int64_t hidden,
                         int64_t intermediate, int64_t nheads, bool int8, int packed) {
            const Activation gelu = tanh ? Activation::gelu_tanh : Activation::gelu;
            return new Encoder({DType(dtype), DType(attention), gelu, eps, hidden, intermediate, nheads, int8,
                                DType(packed)},
                               std::move(order));
        }))
        .def("set_parameters",
             [](Encoder& self, int64_t number, const std::array<Pointer, 6>& weights, const std::array<Pointer, 8>& v) {
                 py::gil_scoped_release release;
                 self.set_parameters(number, {at(weights[0]), at(weights[1]), at(weights[2]), at(weights[3]),
                                              at(weights[4]), at(weights[5]),
                                              at<float>(v[0]), at<float>(v[1]), at<float>(v[2]), at<float>(v[3]),
                                              at<float>(v[4]), at<float>(v[5]), at<float>(v[6]), at<float>(v[7])});
             })
        .def("run",
             [](const Encoder& self, Pointer x, const std::vector<Pointer>& states, int64_t tokens, Pointer cu_seqlens,
                int64_t batch_size, const RelativeBias& bias, Pointer rows, int64_t num_rows, Pointer chosen) {
                 const int32_t* bounds = at<int32_t>(cu_seqlens);
                 if (!bounds_fit(bounds, batch_size, tokens)) return false;
                 const int64_t* wanted = at<int64_t>(rows);
                 if (!std::all_of(wanted, wanted + num_rows, [&](int64_t row) { return row >= 0 && row < tokens; }))
                     return false;
                 const int64_t longest = longest_sequence(bounds, batch_size);
                 if (states.size() != self.layers()) throw std::invalid_argument("expected a state for each layer");
                 std::vector<void*> outputs(states.size());
                 std::transform(states.begin(), states.end(), outputs.begin(), [](Pointer state) { return at(state); });
                 self.run({at(x), outputs.data(), tokens, bounds, batch_size, longest, bias, wanted, num_rows, at(chosen)});
                 return true;
             },
             py::arg("x"), py::arg("states"), py::arg("tokens"), py::arg("cu_seqlens"),
             py::arg("batch_size"), py::arg("bias") = RelativeBias{}, py::arg("rows") = 0, py::arg("num_rows") = 0,
             py::arg("chosen") = 0, py::call_guard<py::gil_scoped_release>(),
             "False, and nothing done, where the bounds or the rows do not fit.");
}

void bind_packing(py::module_& m) {
    m.def("read_mask",
          [](Pointer mask, int width, bool is_float, int64_t batch_size, int64_t seqlen, Pointer indices, Pointer bounds) {
              const Kept kept = read_mask({at(mask), width, is_float, batch_size, seqlen}, at<int64_t>(indices),
                                          at<int32_t>(bounds));
              return std::tuple{kept.tokens, kept.shortest, kept.longest, kept.first_masked};
          },
          "Fills indices, with room for one more than the mask has numbers, and bounds: (tokens kept, those of the "
          "shortest sequence and of the longest, whether the first token of a sequence that has others is not kept).");
}

void bind_probe(py::module_& m) {
    m.def("probe",
          [](int what, int64_t iterations) {
              double seconds = 0;
              const double operations = kernels().probe(Probe(what), iterations, &seconds);
              return std::pair{operations, seconds};
          },
          py::call_guard<py::gil_scoped_release>(), "(operations, seconds) of a loop fed from the L1 cache.");
    m.def("probe_copy",
          [](Pointer from, Pointer to, int64_t bytes) { return kernels().probe_copy(at(from), at(to), bytes); },
          py::call_guard<py::gil_scoped_release>(), "Seconds that all threads need to copy so many bytes.");
}

}  // namespace

PYBIND11_MODULE(_C, m) {
    m.doc() = "CPU kernels of fastbert: raw pointers and sizes.";
    m.attr("interface") = FASTBERT_INTERFACE;
    m.def("supported_isas", &supported_isas, "The instruction-set levels that run here, best last.");
    m.def("isa", &isa, "The level in use.");
    m.def("set_isa", &set_isa, "Chooses a level for the whole process; ValueError where it cannot run.");
    m.def(
        "follow_threads", [](uintptr_t count) { follow_threads(reinterpret_cast<int (*)()>(count)); },
        "The address of a function that tells how many threads to use.");
    m.def("reduction_chunks", &reduction_chunks, "Chunks that a sum over this many rows is cut into.");
    bind_gelu(m);
    bind_layer_norm(m);
    bind_dropout(m);
    bind_cross_entropy(m);
    bind_gemm_int8(m);
    bind_attention(m);
    bind_gemm(m);
    bind_fingerprints(m);
    bind_embedding(m);
    bind_optimizers(m);
    bind_encoder(m);
    bind_probe(m);
    bind_packing(m);
    bind_modules(m);
    bind_cuda(m);
}
