// cuBLASLt without its headers. Names and numbers are those of NVIDIA's documentation
// (https://docs.nvidia.com/cuda/cublas, "Using the cuBLASLt API"), where they may not change within a major version.
//
// cuBLASLt counts columns first: a row-major (rows, cols) matrix is its (cols, rows) one. So out = a b is computed as
// out^T = b^T a^T, with our b as its A and our a as its B; a bias runs along its rows, which are our columns.
#include "cublaslt.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <tuple>

namespace fastbert {
namespace cublaslt {
namespace {

using Status = int;  // 0 is success
enum ComputeType { COMPUTE_32F = 68 };
enum DataType { R_32F = 0, R_16F = 2, R_16BF = 14 };
enum DescAttribute { TRANSA = 3, TRANSB = 4, EPILOGUE = 7, BIAS_POINTER = 8, AUX_POINTER = 11, AUX_LD = 12, BIAS_TYPE = 26 };
enum PreferenceAttribute { MAX_WORKSPACE = 1 };
enum EpilogueCode { DEFAULT = 1, BIAS = 4, GELU_AUX_BIAS = 32 | 128 | 4, DGELU_BGRAD = 64 | 128 | 16, BGRADB = 512 };

struct Algo {
    uint64_t data[8];
};
struct Heuristic {
    Algo algo;
    size_t workspace;
    Status state;
    float waves;
    int reserved[4];
};

struct Library {
    Status (*create)(void** handle);
    Status (*desc_create)(void** desc, int compute_type, int scale_type);
    Status (*desc_set)(void* desc, int attribute, const void* value, size_t size);
    Status (*layout_create)(void** layout, int type, uint64_t rows, uint64_t cols, int64_t ld);
    Status (*preference_create)(void** preference);
    Status (*preference_set)(void* preference, int attribute, const void* value, size_t size);
    Status (*preference_destroy)(void* preference);
    Status (*heuristic)(void* handle, void* desc, void* a, void* b, void* c, void* d, void* preference, int wanted,
                        Heuristic* results, int* found);
    Status (*matmul)(void* handle, void* desc, const void* alpha, const void* a, void* a_layout, const void* b,
                     void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                     const Algo* algo, void* workspace, size_t workspace_size, void* stream);
};

// The descriptors of a shape, which are kept as long as the process.
struct Plan {
    void *desc = nullptr, *a = nullptr, *b = nullptr, *out = nullptr;
    Algo algo{};
    size_t workspace = 0;
    std::string refused;  // why there is no algorithm
};

using Key = std::tuple<int, int, int, bool, bool, int64_t, int64_t, int64_t, int64_t, bool>;

std::mutex lock;
Library library{};
bool loaded = false;
std::map<int, void*> handles;  // by device
std::map<Key, Plan> plans;

template <class F> bool find(void* from, const char* name, F*& into) {
    into = reinterpret_cast<F*>(dlsym(from, name));
    return into != nullptr;
}

int data_type(Type type) { return type == Type::f32 ? R_32F : type == Type::bf16 ? R_16BF : R_16F; }

uint32_t epilogue_code(Epilogue e) {
    switch (e) {
        case Epilogue::bias: return BIAS;
        case Epilogue::bias_gelu: return GELU_AUX_BIAS;
        case Epilogue::dgelu_bias_sum: return DGELU_BGRAD;
        case Epilogue::bias_sum: return BGRADB;  // our a is its B
        default: return DEFAULT;
    }
}

std::string failed(const char* call, Status status) {
    return std::string(call) + " failed with status " + std::to_string(status);
}

// Called before the heuristic, which looks at the alignment of the pointers.
Status set_pointers(const Plan& plan, const Product& p) {
    Status status = 0;
    if (p.bias) status = library.desc_set(plan.desc, BIAS_POINTER, &p.bias, sizeof p.bias);
    if (p.aux && !status) status = library.desc_set(plan.desc, AUX_POINTER, &p.aux, sizeof p.aux);
    return status;
}

Status describe(Plan& plan, const Product& p) {
    // An operand is transposed for cuBLASLt if it is for us, since both its storage order and its position are swapped.
    const int32_t of_a = p.b_transposed, of_b = p.a_transposed;
    const uint32_t epilogue = epilogue_code(p.epilogue);
    const int32_t bias_type = data_type(p.type);
    Status status = library.desc_create(&plan.desc, COMPUTE_32F, R_32F);
    const auto set = [&](int attribute, const auto& value) {
        if (!status) status = library.desc_set(plan.desc, attribute, &value, sizeof value);
    };
    set(TRANSA, of_a);
    set(TRANSB, of_b);
    set(EPILOGUE, epilogue);
    if (p.bias) set(BIAS_TYPE, bias_type);
    if (p.aux) set(AUX_LD, p.cols);
    if (!status) status = set_pointers(plan, p);
    const auto layout = [&](void** out, Type type, int64_t rows, int64_t cols) {
        if (!status) status = library.layout_create(out, data_type(type), uint64_t(rows), uint64_t(cols), rows);
    };
    layout(&plan.a, p.type, p.b_transposed ? p.inner : p.cols, p.b_transposed ? p.cols : p.inner);
    layout(&plan.b, p.type, p.a_transposed ? p.rows : p.inner, p.a_transposed ? p.inner : p.rows);
    layout(&plan.out, p.type, p.cols, p.rows);
    return status;
}

std::string choose(Plan& plan, const Product& p, void* handle) {
    if (const Status status = describe(plan, p)) return failed("describing the product", status);
    void* preference = nullptr;
    const uint64_t most = uint64_t(p.workspace_bytes);
    Status status = library.preference_create(&preference);
    if (!status) status = library.preference_set(preference, MAX_WORKSPACE, &most, sizeof most);
    Heuristic best{};
    int found = 0;
    if (!status)
        status = library.heuristic(handle, plan.desc, plan.a, plan.b, plan.out, plan.out, preference, 1, &best, &found);
    if (preference) library.preference_destroy(preference);
    if (status) return failed("cublasLtMatmulAlgoGetHeuristic", status);
    if (!found || best.state) return "cuBLASLt has no algorithm for this product";
    plan.algo = best.algo;
    plan.workspace = best.workspace;
    return "";
}

// The largest power of two, up to 16, that divides every address.
int64_t alignment(const Product& p) {
    const uintptr_t all = reinterpret_cast<uintptr_t>(p.a) | reinterpret_cast<uintptr_t>(p.b) |
                          reinterpret_cast<uintptr_t>(p.out) | reinterpret_cast<uintptr_t>(p.bias) |
                          reinterpret_cast<uintptr_t>(p.aux) | 16;
    return int64_t(all & (~all + 1));
}

}  // namespace

std::string load(const std::string& path) {
    const std::lock_guard<std::mutex> hold(lock);
    if (loaded) return "";
    void* from = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!from) return "it does not load: " + std::string(dlerror());
    Library l{};
    const bool whole =
        find(from, "cublasLtCreate", l.create) && find(from, "cublasLtMatmulDescCreate", l.desc_create) &&
        find(from, "cublasLtMatmulDescSetAttribute", l.desc_set) &&
        find(from, "cublasLtMatrixLayoutCreate", l.layout_create) &&
        find(from, "cublasLtMatmulPreferenceCreate", l.preference_create) &&
        find(from, "cublasLtMatmulPreferenceSetAttribute", l.preference_set) &&
        find(from, "cublasLtMatmulPreferenceDestroy", l.preference_destroy) &&
        find(from, "cublasLtMatmulAlgoGetHeuristic", l.heuristic) && find(from, "cublasLtMatmul", l.matmul);
    if (!whole) return "it lacks functions of cuBLASLt";
    library = l;
    loaded = true;
    return "";
}

std::string multiply(const Product& p) {
    // Held over the call: a plan's pointers are set right before it is used.
    const std::lock_guard<std::mutex> hold(lock);
    if (!loaded) return "cuBLASLt is not loaded";
    void*& handle = handles[p.device];
    if (!handle)
        if (const Status status = library.create(&handle)) return failed("cublasLtCreate", status);
    const Key key{p.device, int(p.type), int(p.epilogue), p.a_transposed, p.b_transposed, p.rows, p.cols, p.inner,
                  alignment(p), p.workspace_bytes > 0};
    auto [at, is_new] = plans.try_emplace(key);
    Plan& plan = at->second;
    if (is_new) plan.refused = choose(plan, p, handle);
    if (!plan.refused.empty()) return plan.refused;
    if (!is_new)
        if (const Status status = set_pointers(plan, p)) return failed("cublasLtMatmulDescSetAttribute", status);
    if (plan.workspace > size_t(p.workspace_bytes)) return "the workspace is smaller than this product's algorithm needs";
    const float alpha = 1.0f, beta = 0.0f;
    const Status status =
        library.matmul(handle, plan.desc, &alpha, p.b, plan.a, p.a, plan.b, &beta, p.out, plan.out, p.out, plan.out,
                       &plan.algo, p.workspace, size_t(p.workspace_bytes), p.stream);
    return status ? failed("cublasLtMatmul", status) : "";
}

}  // namespace cublaslt
}  // namespace fastbert
