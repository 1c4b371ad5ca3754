// GELU by a table, with an absolute error of 2e-8 and in a third of gelu_math.h's time: for results that are rounded to eight
// bits next.
//
//     gelu(x) = max(x, 0) - g(|x|),  g(a) = a Phi(-a)
// g falls from 0.17 to 2e-9 at 6.2. In steps of 0.4, around n * 0.4, it is a polynomial of fifth degree in
// f = a / 0.4 - n, |f| <= 1/2 (Lawson fit of each; exactly 0 at 0). Levels with fused multiply-add agree to the bit.
#pragma once
#include "vec.h"

#include <cstring>

namespace fastbert {
namespace FASTBERT_ISA {
namespace {

constexpr int GELU_DEGREE = 5;
// [form: erf, tanh][power of f][n]
alignas(64) constexpr float GELU_TABLE[2][GELU_DEGREE + 1][16] = {
    {
        {0.0f, 0.137831286f, 0.169484332f, 0.138083622f,
         0.087678872f, 0.0455002636f, 0.0196740814f, 0.00715436228f,
         0.00219884072f, 0.000572791148f, 0.000126685263f, 2.3815348e-05f,
         3.80802953e-06f, 5.18164427e-07f, 6.00214278e-08f, 5.92000626e-09f},
        {0.199999973f, 0.0789080933f, -0.00795912556f, -0.0471814387f,
         -0.0490696244f, -0.0340927243f, -0.0182197355f, -0.00784325134f,
         -0.00277677644f, -0.000817495049f, -0.000201459959f, -4.17338488e-05f,
         -7.28841906e-06f, -1.07525557e-06f, -1.34207923e-07f, -1.4188271e-08f},
        {-0.0638298988f, -0.0542086139f, -0.0315189175f, -0.00870050862f,
         0.00496871164f, 0.00863861479f, 0.00673655886f, 0.00369828823f,
         0.00157163909f, 0.000536499894f, 0.000149868589f, 3.46289598e-05f,
         6.66375036e-06f, 1.07289793e-06f, 1.45007249e-07f, 1.64918887e-08f},
        {-8.00790713e-06f, 0.00603337865f, 0.0083057303f, 0.0063631041f,
         0.00272618979f, 1.31926896e-07f, -0.00100900268f, -0.000907854293f,
         -0.000507823948f, -0.000210541359f, -6.85187624e-05f, -1.79779818e-05f,
         -3.86024567e-06f, -6.84661359e-07f, -1.00935203e-07f, -1.2423512e-08f},
        {0.001734477f, 0.00113337173f, -1.6648517e-05f, -0.000819452223f,
         -0.000865777023f, -0.000461381889f, -7.81014969e-05f, 8.73560712e-05f,
         9.40317041e-05f, 5.31952828e-05f, 2.13544208e-05f, 6.59161515e-06f,
         1.6200504e-06f, 3.23054593e-07f, 5.28749773e-08f, 7.15806214e-09f},
        {-5.93803052e-05f, -0.000202034425f, -0.000222783143f, -8.42902882e-05f,
         5.32705744e-05f, 9.1242393e-05f, 5.58388674e-05f, 1.31295537e-05f,
         -6.43438852e-06f, -8.10502661e-06f, -4.49240042e-06f, -1.70417263e-06f,
         -4.888538e-07f, -1.1050453e-07f, -2.01179908e-08f, -2.98910985e-09f},
    },
    {
        {0.0f, 0.137838826f, 0.169568315f, 0.138297245f,
         0.087863043f, 0.0454023071f, 0.0192768425f, 0.00668889098f,
         0.00186956429f, 0.000412580383f, 7.0246293e-05f, 9.00212581e-06f,
         8.46392027e-07f, 5.68856642e-08f, 2.66209677e-09f, 8.44811721e-11f},
        {0.199999973f, 0.07893648f, -0.00783348083f, -0.0470904559f,
         -0.0492402129f, -0.0344397053f, -0.0184239838f, -0.00778338313f,
         -0.00259725563f, -0.000675272197f, -0.000134049347f, -1.98504113e-05f,
         -2.13943304e-06f, -1.63631043e-07f, -8.65601457e-09f, -3.0860603e-10f},
        {-0.0638298765f, -0.0541710667f, -0.0314803161f, -0.00878573861f,
         0.00482432405f, 0.00863005873f, 0.00686677778f, 0.00380680873f,
         0.00158351264f, 0.000499115151f, 0.000117899843f, 2.04788703e-05f,
         2.5579177e-06f, 2.24316651e-07f, 1.34708458e-08f, 5.39875034e-10f},
        {-8.18585613e-06f, 0.00605038926f, 0.00828222465f, 0.00631732214f,
         0.00274194498f, 6.12672229e-05f, -0.000988167827f, -0.000936582859f,
         -0.000535804778f, -0.000215624008f, -6.26125257e-05f, -1.30484177e-05f,
         -1.92114544e-06f, -1.95871152e-07f, -1.35237785e-08f, -6.17440377e-10f},
        {0.00174362399f, 0.00113027752f, -2.9427094e-05f, -0.00081363169f,
         -0.000846874551f, -0.000461536838f, -9.34139098e-05f, 8.10291822e-05f,
         9.88799584e-05f, 5.80125234e-05f, 2.21846549e-05f, 5.81450604e-06f,
         1.04902892e-06f, 1.28982919e-07f, 1.06360272e-08f, 5.77025538e-10f},
        {-6.07175316e-05f, -0.000205566161f, -0.000221874856f, -7.92261199e-05f,
         5.22715018e-05f, 8.62401866e-05f, 5.5528184e-05f, 1.60509644e-05f,
         -5.34993796e-06f, -8.85749341e-06f, -5.11470762e-06f, -1.77198046e-06f,
         -3.98445508e-07f, -5.90020868e-08f, -5.72610093e-09f, -3.59483859e-10f},
    },
};

// table[i], i the lowest four bits of each lane.
#if defined(FASTBERT_LEVEL_AVX512)
inline Vec look_up(const float* table, Vec bits) {
    return {_mm512_permutexvar_ps(_mm512_castps_si512(bits.v), _mm512_load_ps(table))};
}
#elif defined(FASTBERT_LEVEL_AVX2)
inline Vec look_up(const float* table, Vec bits) {
    // Each half by the lowest three bits, the right one by the fourth: a gather of eight takes several times as long.
    const __m256i index = _mm256_castps_si256(bits.v);
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(table), index);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), index);
    return {_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)))};
}
#else
inline Vec look_up(const float* table, Vec bits) {
    uint32_t index[W];
    std::memcpy(index, &bits, sizeof index);
    float lanes[W];
    for (int i = 0; i < W; ++i) lanes[i] = table[index[i] & 15];
    return load(lanes);
}
#endif

template <bool TANH> inline Vec gelu_of_table(Vec x) {
    const float(&table)[GELU_DEGREE + 1][16] = GELU_TABLE[TANH];
    // Adding 1.5 * 2^23 rounds, and leaves the integer in the lowest bits. Past the last step g counts as zero.
    const Vec end = set(15.499f), magic = set(12582912.0f), s = min(end, abs(x) * set(2.5f));
    const Vec n = s + magic, f = s - (n - magic);
    Vec p = look_up(table[GELU_DEGREE], n);
    for (int power = GELU_DEGREE - 1; power >= 0; --power) p = fma(p, f, look_up(table[power], n));
    return max(set(0.0f), x) - select_less(s, end, p, set(0.0f));
}

}  // namespace
}  // namespace FASTBERT_ISA
}  // namespace fastbert
