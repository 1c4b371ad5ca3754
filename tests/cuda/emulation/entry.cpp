// csrc/cuda's kernels and launchers as a library of plain C functions, on a CPU.
#include "lamb.cu"
#include "packing.cu"

using namespace fastbert::cuda;

extern "C" {
int emulated_pack(const PackArgs* a) { return pack(*a, nullptr); }
int emulated_gather(const GatherArgs* a) { return gather_rows(*a, nullptr); }
int emulated_lamb(const LambArgs* runs, int count) {
    int error = 0;
    for (int i = 0; i < count && !error; ++i) error = lamb_measure(runs[i], nullptr);
    if (!error) error = lamb_trust(runs[0], nullptr);
    for (int i = 0; i < count && !error; ++i) error = lamb_move(runs[i], nullptr);
    return error;
}
}
