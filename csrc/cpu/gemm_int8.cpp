// c = act(a w^T + bias) + residual with int8 weights and rows of a quantised here (gemm_int8.h says how).
//
// First all rows of a are quantised into scratch memory, K bytes a token; then blocks of rows are multiplied by blocks of 64
// outputs, whose 64 K bytes of weights stay in the second-level cache for all rows of the block. With few tokens, the time is
// that of reading the weights: then each thread has its own outputs, and every weight is read once.
#include "ops.h"

#include "int8_pass.h"

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

// Quantised rows of a block stay in the second-level cache beside a block of weights.
constexpr int64_t BLOCK_BYTES = 768 << 10;
// With fewer products than this, one thread finishes before the others wake up.
constexpr double PARALLEL_PRODUCTS = 1 << 20;

int64_t align(int64_t bytes) { return round_up(bytes, 64); }

// The buffer's parts, for m rows.
Rows lay_out(const Int8Header& h, int64_t m, Scratch buffer) {
    Rows rows{};
    rows.stride = h.k_padded + 64 / int64_t(sizeof(Quantised));  // rows of 4 KiB would share their cache sets
    rows.groups = h.groups;
    rows.num_outliers = h.num_outliers;
    // A tile reads whole: up to MAX_ROWS - 1 rows more.
    const int64_t q = align(round_up(m, MAX_ROWS) * rows.stride * int64_t(sizeof(Quantised)));
    const int64_t each = align(4 * m * h.groups), outliers = align(4 * m * h.num_outliers);
    const int64_t size = q + 2 * each + outliers + align(h.k_padded / 8);
    char* p = static_cast<char*>(thread_buffer(buffer, size));
    rows.q = reinterpret_cast<Quantised*>(p);
    rows.scale = reinterpret_cast<float*>(p + q);
    rows.zero = reinterpret_cast<float*>(p + q + each);
    rows.outliers = reinterpret_cast<float*>(p + q + 2 * each);
    rows.kept = reinterpret_cast<uint8_t*>(p + q + 2 * each + outliers);
    return rows;
}

// One call: the rows it reads and, where its outputs become the next weight's rows, those.
struct Job {
    const GemmInt8Args& args;
    Int8Weight w;
    Rows rows;
    const Int8Weight* next;
    Rows next_rows;
    Finish finish;
    int64_t block_rows, row_blocks, width, widths;  // a task is block_rows rows times `width` outputs
};

// `count` rows from r on times the outputs n0.. that a pass takes, to out.
void run_pass(const Job& job, int64_t r, int64_t count, int64_t n0, void* out, int64_t stride, bool last) {
    const Int8Header& h = *job.w.header;
    const int64_t left = h.n_padded - n0, most = MAX_PANELS * 16;
    Pass pass;
    pass.r = r;
    pass.count = count;
    pass.n0 = n0;
    pass.columns = left < most ? left : most;
    pass.out = out;
    pass.stride = stride;
    pass.fetch = !job.next;
    pass.next_n0 = last ? n0 + pass.columns : n0;
    const int8_t* after = job.w.q + h.k_padded * pass.next_n0;
    multiply(job.args, job.w, job.rows, last && left <= most ? nullptr : after, pass);
    job.finish(job.args, pass);
}

// Rows r0..r1 times the outputs n0..n1, which are a pass wide.
void block(const Job& job, int64_t r0, int64_t r1, int64_t n0) {
    const int64_t size = element_size(job.args.c_dtype);
    for (int64_t r = r0; r < r1; r += PASS_ROWS) {
        const bool last = r + PASS_ROWS >= r1;
        char* out = static_cast<char*>(job.args.c) + (r * job.args.ldc + n0) * size;
        run_pass(job, r, last ? r1 - r : PASS_ROWS, n0, out, job.args.ldc, last);
    }
}

// Rows r0..r1 times the outputs that are a group of the next weight, quantised while they are in the cache.
template <class T> void block_for_next(const Job& job, int64_t r0, int64_t r1, int64_t n0) {
    alignas(64) T outputs[PASS_ROWS * INT8_MAX_GROUP];
    const int64_t end = n0 + job.width < job.w.header->n_padded ? n0 + job.width : job.w.header->n_padded;
    for (int64_t r = r0; r < r1; r += PASS_ROWS) {
        const int64_t count = r1 - r < PASS_ROWS ? r1 - r : PASS_ROWS, group = n0 / job.width;
        for (int64_t n = n0; n < end; n += MAX_PANELS * 16)
            run_pass(job, r, count, n, outputs + (n - n0), INT8_MAX_GROUP, true);
        quantise<T>(*job.next, job.next_rows, r, r + count, group, group + 1, outputs, INT8_MAX_GROUP);
    }
}

// Thread i's share of a call: first of the rows to quantise, then, all waiting for each other, of the tasks.
template <class Barrier> void work(const Job& job, int64_t i, int64_t count, Barrier&& barrier) {
    const GemmInt8Args& args = job.args;
    if (!args.same_rows && !args.quantised) {
        const int64_t begin = args.m * i / count, end = args.m * (i + 1) / count, groups = job.w.header->groups;
        if (args.dtype == DType::bf16)
            quantise(job.w, job.rows, begin, end, 0, groups, static_cast<const bf16*>(args.a) + begin * args.lda, args.lda);
        else
            quantise(job.w, job.rows, begin, end, 0, groups, static_cast<const float*>(args.a) + begin * args.lda, args.lda);
        barrier();
    }
    [[maybe_unused]] const Tiles tiles;
    const int64_t tasks = job.row_blocks * job.widths;
    for (int64_t task = tasks * i / count; task < tasks * (i + 1) / count; ++task) {
        const int64_t r0 = task / job.widths * job.block_rows, n0 = task % job.widths * job.width;
        const int64_t r1 = r0 + job.block_rows < args.m ? r0 + job.block_rows : args.m;
        if (!job.next)
            block(job, r0, r1, n0);
        else if (args.c_dtype == DType::bf16)
            block_for_next<bf16>(job, r0, r1, n0);
        else
            block_for_next<float>(job, r0, r1, n0);
    }
}

}  // namespace

void gemm_int8(const GemmInt8Args& args) {
    if (args.m <= 0 || args.n <= 0) return;
    const Int8Weight w(args.packed), next(args.next ? args.next : args.packed);
    Job job{args, w, lay_out(*w.header, args.m, args.quantised ? Scratch::int8_next : Scratch::int8_rows), nullptr, {},
            args.c_dtype == DType::bf16 ? finish_of<bf16>(args.act) : finish_of<float>(args.act), 0, 0, 0, 0};
    job.width = MAX_PANELS * 16;
    if (args.next) {
        job.next = &next;
        job.next_rows = lay_out(*next.header, args.m, Scratch::int8_next);
        job.width = next.header->group;
        mark_outliers(next, job.next_rows);
    }
    if (!args.same_rows && !args.quantised) mark_outliers(w, job.rows);
    const int64_t row = w.header->k_padded * int64_t(sizeof(Quantised)), fitting = row ? BLOCK_BYTES / row : args.m;
    // Of about equal sizes, in whole passes: a block of few rows would take the time of reading the weights.
    const int64_t even = divide_up(args.m, divide_up(args.m, fitting < 96 ? 96 : fitting));
    job.block_rows = round_up(even, PASS_ROWS);
    job.row_blocks = divide_up(args.m, job.block_rows);
    job.widths = divide_up(w.header->n_padded, job.width);
    const int64_t tasks = job.row_blocks * job.widths;
    const bool alone = double(args.m) * args.n * args.k < PARALLEL_PRODUCTS;
    const int64_t most = alone ? 1 : most_threads();
    const int threads = alone ? 1 : int(tasks < most ? tasks : most);
    if (threads == 1) {
        work(job, 0, 1, [] {});
        return;
    }
#pragma omp parallel num_threads(threads)
    work(job, omp_get_thread_num(), omp_get_num_threads(), [] {
#pragma omp barrier
    });
}

}  // namespace FASTBERT_ISA
}  // namespace fastbert
