/* simd_bf16.h - products of bfloat16 for x86-64 with AVX512_BF16, beside the vocabulary of simd.h.
 *
 * A pair is a lane of 32 bits that holds two bfloat16, the first in the lower half. Vectors of pairs
 * are vf32 whose bits mean that: all that moves floats moves pairs.
 */
#ifndef SIMD_BF16_H
#define SIMD_BF16_H

#include "simd.h"

#if !defined(__AVX512BF16__)
#error "compile with -mavx512bf16"
#endif

/* Pairs (even[i], odd[i]) in lane i: rounded to nearest (ties to even), denormals to zero, NaN and
 * infinities kept. */
static inline vf32 v_pairs(vf32 even, vf32 odd) {
  static const uint16_t order[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                     21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                     11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const vi32 words = (vi32)_mm512_cvtne2ps_pbh(odd, even);
  return v_cast_f32(_mm512_permutexvar_epi16(_mm512_loadu_si512(order), words));
}
/* The same for numbers that follow each other: (low[0], low[1]), ..., (high[14], high[15]). */
static inline vf32 v_pairs_in_order(vf32 low, vf32 high) {
  return v_cast_f32((vi32)_mm512_cvtne2ps_pbh(high, low));
}
/* Lanes of a and b at places: 0 to 15 are those of a, 16 to 31 those of b. */
static inline vf32 v_permute_two(vf32 a, vi32 at, vf32 b) {
  return _mm512_permutex2var_ps(a, at, b);
}
/* The first and the second numbers of pairs, as floats. */
static inline vf32 v_firsts(vf32 pairs) {
  return v_cast_f32(_mm512_slli_epi32(v_cast_i32(pairs), 16));
}
static inline vf32 v_seconds(vf32 pairs) {
  return v_cast_f32(v_i32_and(v_cast_i32(pairs), v_i32_set1(-0x10000)));
}
/* acc + the products of both numbers of each pair. Denormal operands and results are zero. acc
 * stays in its register, as with v_fmadd_acc. */
static inline vf32 v_dot_pairs_acc(vf32 acc, vf32 a, vf32 b) {
#if defined(__GNUC__)
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
  return acc;
#else
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
#endif
}

/* --- Numbers as the sum of two bfloat16, 16 to 17 significant bits (bf16x3), or of three (bf16x6) --- */

/* x rounded to bfloat16, halves away from zero, in the upper bits of each lane: denormals are kept
 * (integer arithmetic knows none), and what would round to an infinity is cut off instead. */
static inline vi32 v_upper_bf16(vf32 x) {
  const vmask ordinary = _mm512_cmp_ps_mask(v_abs(x), v_set1(0x1.ffp127f), _CMP_LT_OQ);
  const vi32 bits = v_cast_i32(x);
  const vi32 rounded = _mm512_mask_add_epi32(bits, ordinary, bits, v_i32_set1(0x8000));
  return v_i32_and(rounded, v_i32_set1(-0x10000));
}
/* x = upper + left, both in the upper bits of each lane; of an infinity nothing is left. */
static inline void v_split(vf32 x, vi32 *upper, vi32 *left) {
  enum { INFINITIES = 0x18 };
  const vmask finite = v_mask_not(_mm512_fpclass_ps_mask(x, INFINITIES));
  *upper = v_upper_bf16(x);
  *left = v_upper_bf16(_mm512_maskz_sub_ps(finite, x, v_cast_f32(*upper)));
}
/* Split a and b: lane i of `high` and `low` holds the pair of a[i] and b[i]. NaN stays NaN in the
 * sum of both; what is nearer to 2^128 than to the 16 bits below is an infinity in it. */
static inline void v_split_pairs(vf32 a, vf32 b, vf32 *high, vf32 *low) {
  vi32 upper_a, upper_b, left_a, left_b;
  v_split(a, &upper_a, &left_a);
  v_split(b, &upper_b, &left_b);
  *high = v_cast_f32(v_i32_or(_mm512_srli_epi32(upper_a, 16), upper_b));
  *low = v_cast_f32(v_i32_or(_mm512_srli_epi32(left_a, 16), left_b));
}
/* The same for 32 numbers that follow each other: 32 halves that do. */
static inline void v_split_in_order(vf32 a, vf32 b, vf32 *high, vf32 *low) {
  static const uint16_t order[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                     23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                     45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const vi32 seconds = _mm512_loadu_si512(order);
  vi32 upper_a, upper_b, left_a, left_b;
  v_split(a, &upper_a, &left_a);
  v_split(b, &upper_b, &left_b);
  *high = v_cast_f32(_mm512_permutex2var_epi16(upper_a, seconds, upper_b));
  *low = v_cast_f32(_mm512_permutex2var_epi16(left_a, seconds, left_b));
}
/* The same for 16 numbers, halves stored at two places. */
static inline void v_store_split(void *high, void *low, vf32 x) {
  vi32 upper, left;
  v_split(x, &upper, &left);
  _mm256_storeu_si256((__m256i *)high, _mm512_cvtepi32_epi16(_mm512_srli_epi32(upper, 16)));
  _mm256_storeu_si256((__m256i *)low, _mm512_cvtepi32_epi16(_mm512_srli_epi32(left, 16)));
}
/* x = upper + middle + lower, likewise: all 24 bits of numbers from 2^-103 on. */
static inline void v_split_three(vf32 x, vi32 *upper, vi32 *middle, vi32 *lower) {
  enum { INFINITIES = 0x18 };
  const vmask finite = v_mask_not(_mm512_fpclass_ps_mask(x, INFINITIES));
  *upper = v_upper_bf16(x);
  const vf32 left = _mm512_maskz_sub_ps(finite, x, v_cast_f32(*upper));
  *middle = v_upper_bf16(left);
  *lower = v_i32_and(v_cast_i32(v_sub(left, v_cast_f32(*middle))), v_i32_set1(-0x10000));
}
/* As v_split_pairs, v_split_in_order and v_store_split. */
static inline void v_split_three_pairs(vf32 a, vf32 b, vf32 *high, vf32 *middle, vf32 *low) {
  vi32 upper_a, upper_b, middle_a, middle_b, lower_a, lower_b;
  v_split_three(a, &upper_a, &middle_a, &lower_a);
  v_split_three(b, &upper_b, &middle_b, &lower_b);
  *high = v_cast_f32(v_i32_or(_mm512_srli_epi32(upper_a, 16), upper_b));
  *middle = v_cast_f32(v_i32_or(_mm512_srli_epi32(middle_a, 16), middle_b));
  *low = v_cast_f32(v_i32_or(_mm512_srli_epi32(lower_a, 16), lower_b));
}
static inline void v_split_three_in_order(vf32 a, vf32 b, vf32 *high, vf32 *middle, vf32 *low) {
  static const uint16_t order[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21,
                                     23, 25, 27, 29, 31, 33, 35, 37, 39, 41, 43,
                                     45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const vi32 seconds = _mm512_loadu_si512(order);
  vi32 upper_a, upper_b, middle_a, middle_b, lower_a, lower_b;
  v_split_three(a, &upper_a, &middle_a, &lower_a);
  v_split_three(b, &upper_b, &middle_b, &lower_b);
  *high = v_cast_f32(_mm512_permutex2var_epi16(upper_a, seconds, upper_b));
  *middle = v_cast_f32(_mm512_permutex2var_epi16(middle_a, seconds, middle_b));
  *low = v_cast_f32(_mm512_permutex2var_epi16(lower_a, seconds, lower_b));
}
static inline void v_store_split_three(void *high, void *mid, void *low, vf32 x) {
  vi32 upper, middle, lower;
  v_split_three(x, &upper, &middle, &lower);
  _mm256_storeu_si256((__m256i *)high, _mm512_cvtepi32_epi16(_mm512_srli_epi32(upper, 16)));
  _mm256_storeu_si256((__m256i *)mid, _mm512_cvtepi32_epi16(_mm512_srli_epi32(middle, 16)));
  _mm256_storeu_si256((__m256i *)low, _mm512_cvtepi32_epi16(_mm512_srli_epi32(lower, 16)));
}
/* 16 bfloat16 as floats. */
static inline vf32 v_load_part(const void *p) { return v_load_bf16((const uint16_t *)p); }
/* The numbers that were split, rounded to the bits that both parts hold. */
static inline void v_join_pairs(vf32 high, vf32 low, vf32 *a, vf32 *b) {
  *a = v_add(v_firsts(high), v_firsts(low));
  *b = v_add(v_seconds(high), v_seconds(low));
}

#endif
