/* simd.h - the vector vocabulary for x86-64 with AVX2 and FMA: eight lanes.
 *
 * Kernels and math functions are written in these names only. Each instruction set has its own
 * simd.h with the same names and the same meaning; V_LANES is the number of floats in a vector.
 * Pointers need no alignment. Float arithmetic follows IEEE 754 in the default rounding mode and
 * must be compiled without -ffast-math.
 */
#ifndef SIMD_H
#define SIMD_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__AVX2__) || (defined(__GNUC__) && !defined(__FMA__))
#error "compile with -mavx2 -mfma"
#endif

#define V_LANES 8      /* floats in a vector */
#define V_REGISTERS 16 /* vector registers of the machine */
#define V_ROUNDS_BF16 0 /* whether the table itself rounds to bfloat16 */
#define V_ROUNDS_F16 1 /* whether the table itself rounds to float16 */
#define V_HALVES 0 /* and computes in it */
#define V_PARTS_32 1 /* whether it loads and stores parts of vectors of 32 bits */
#define V_PARTS_16 0 /* and those of 8 and 16 bits */
#define V_FACTORS 0 /* whether vectors are multiplied by numbers that are no vectors */
#define V_SCALES 0 /* whether it multiplies by powers of two in its own way */
#define V_TABLES 8 /* the numbers of tables that it looks up at once */
#define V_EXP_LEAST -111.0f /* where exponentials are held, see math.h */
#define V_READS_FACTORS 0 /* whether a multiply-add reads such a number from memory */

typedef __m256 vf32;  /* V_LANES floats */
typedef __m256i vi32; /* V_LANES integers */
typedef __m256d vf64; /* half as many doubles */
typedef __m256 vmask; /* V_LANES booleans: all bits of the lane set, or none */

/* --- Memory --- */

static inline vf32 v_zero(void) { return _mm256_setzero_ps(); }
static inline vf32 v_set1(float x) { return _mm256_set1_ps(x); }
static inline vf32 v_broadcast(const float *p) { return _mm256_broadcast_ss(p); } /* every lane */
static inline vf32 v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf32 a) { _mm256_storeu_ps(p, a); }
/* 2 * V_LANES floats from p on: the first, third, ... of them, and the second, fourth, ... */
static inline void v_load_pairs(const float *p, vf32 *even, vf32 *odd) {
  const vf32 a = v_load(p), b = v_load(p + V_LANES);
  const __m256d e = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)); /* by halves of 128 bits */
  const __m256d o = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
  *even = _mm256_castpd_ps(_mm256_permute4x64_pd(e, 0xd8));
  *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(o, 0xd8));
}
static inline vmask v_mask_n(size_t n) { /* the first n lanes, n <= V_LANES */
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane));
}
/* The first n lanes, 0 <= n <= V_LANES; memory past n is not touched, other lanes load as 0. */
static inline vf32 v_load_n(const float *p, size_t n) {
  return _mm256_maskload_ps(p, _mm256_castps_si256(v_mask_n(n)));
}
static inline void v_store_n(float *p, vf32 a, size_t n) {
#if defined(__GNUC__)
  if (__builtin_constant_p(n) && n < V_LANES) { /* stores by a mask are slow, and hinder loads from beside them */
    __m128 part = _mm256_castps256_ps128(a);
    if (n & 4) {
      _mm_storeu_ps(p, part);
      part = _mm256_extractf128_ps(a, 1);
    }
    if (n & 2) {
      _mm_storel_epi64((__m128i *)(void *)(p + (n & 4)), _mm_castps_si128(part));
      part = _mm_movehl_ps(part, part);
    }
    if (n & 1) _mm_store_ss(p + (n & 6), part);
    return;
  }
#endif
  _mm256_maskstore_ps(p, _mm256_castps_si256(v_mask_n(n)), a);
}
/* V_LANES numbers of 16 bits, float16 or bfloat16, as floats: exactly, whatever they are. */
static inline vf32 v_load_f16(const uint16_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
static inline vf32 v_load_bf16(const uint16_t *p) {
  const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)p);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
/* V_LANES bytes as floats; and back, to the nearest (ties to even), saturating, NaN as lowest. */
static inline vf32 v_load_u8(const uint8_t *p) {
  const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
static inline vf32 v_load_i8(const int8_t *p) {
  const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)p);
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
static inline void v_store_u8(uint8_t *p, vf32 a) {
  const vf32 held = _mm256_min_ps(_mm256_max_ps(a, v_zero()), v_set1(255.0f));
  const __m256i wide = _mm256_cvtps_epi32(held);
  const __m128i half =
      _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(half, half));
}
static inline void v_store_i8(int8_t *p, vf32 a) {
  const vf32 held = _mm256_min_ps(_mm256_max_ps(a, v_set1(-128.0f)), v_set1(127.0f));
  const __m256i wide = _mm256_cvtps_epi32(held);
  const __m128i half =
      _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(half, half));
}
/* Four vectors of floats as 4 * V_LANES bytes in a row, each as by v_store_u8 or v_store_i8. */
static inline void v_store4_u8(uint8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  const vf32 top = v_set1(255.0f); /* below, what is packed saturates */
  const __m256i ab = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_min_ps(top, a)),
                                        _mm256_cvtps_epi32(_mm256_min_ps(top, b)));
  const __m256i cd = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_min_ps(top, c)),
                                        _mm256_cvtps_epi32(_mm256_min_ps(top, d)));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order);
  _mm256_storeu_si256((__m256i *)(void *)p, bytes);
}
static inline void v_store4_i8(int8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  const vf32 top = v_set1(127.0f); /* below, what is packed saturates */
  const __m256i ab = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_min_ps(top, a)),
                                        _mm256_cvtps_epi32(_mm256_min_ps(top, b)));
  const __m256i cd = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_min_ps(top, c)),
                                        _mm256_cvtps_epi32(_mm256_min_ps(top, d)));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), order);
  _mm256_storeu_si256((__m256i *)(void *)p, bytes);
}
/* The upper halves of lanes: floats as bfloat16, cut off. */
static inline void v_store_halves(uint16_t *p, vf32 a) {
  const __m256i halves = _mm256_srli_epi32(_mm256_castps_si256(a), 16);
  const __m128i packed =
      _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  _mm_storeu_si128((__m128i *)(void *)p, packed);
}
/* y[i] = table[x[i]] for i < n, of 256 bytes; y may be x. */
static inline void v_lookup(uint8_t *y, const uint8_t *x, size_t n, const uint8_t *table) {
  for (size_t i = 0; i < n; i++) y[i] = table[x[i]];
}
/* Ask for the cache line at p, which need not be a valid address. */
static inline void v_prefetch_l1(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
static inline void v_prefetch_l2(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

/* --- Integers: add, sub, mul and shl wrap; shr keeps the sign --- */

static inline vi32 v_i32_set1(int32_t x) { return _mm256_set1_epi32(x); }
static inline vi32 v_i32_load(const int32_t *p) {
  return _mm256_loadu_si256((const __m256i *)(const void *)p);
}
static inline void v_i32_store(int32_t *p, vi32 a) {
  _mm256_storeu_si256((__m256i *)(void *)p, a);
}
static inline vi32 v_i32_load_n(const int32_t *p, size_t n) { /* other lanes load as 0 */
  return _mm256_maskload_epi32(p, _mm256_castps_si256(v_mask_n(n)));
}
static inline void v_i32_store_n(int32_t *p, vi32 a, size_t n) {
  _mm256_maskstore_epi32(p, _mm256_castps_si256(v_mask_n(n)), a);
}
/* p[i] of each lane's i. */
static inline vf32 v_gather(const float *p, vi32 i) { return _mm256_i32gather_ps(p, i, 4); }
#define v_entry(table, i) _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), i)
static inline vi32 v_i32_gather(const int32_t *p, vi32 i) {
  return _mm256_i32gather_epi32(p, i, 4);
}
/* V_LANES bytes, unsigned, as integers. */
static inline vi32 v_i32_load_u8(const uint8_t *p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
static inline vi32 v_i32_add(vi32 a, vi32 b) { return _mm256_add_epi32(a, b); }
static inline vi32 v_i32_sub(vi32 a, vi32 b) { return _mm256_sub_epi32(a, b); }
static inline vi32 v_i32_mul(vi32 a, vi32 b) { return _mm256_mullo_epi32(a, b); }
static inline vi32 v_i32_and(vi32 a, vi32 b) { return _mm256_and_si256(a, b); }
static inline vi32 v_i32_or(vi32 a, vi32 b) { return _mm256_or_si256(a, b); }
static inline vi32 v_i32_xor(vi32 a, vi32 b) { return _mm256_xor_si256(a, b); }
static inline vi32 v_i32_shl(vi32 a, int n) { return _mm256_slli_epi32(a, n); }
static inline vi32 v_i32_shr(vi32 a, int n) { return _mm256_srai_epi32(a, n); }
/* acc + the sum of two products in each lane, exact but for wrapping, of integers of 16 bits. */
static inline vi32 v_dot2(vi32 acc, vi32 a, vi32 b) {
#if defined(__AVXVNNI__) && defined(__GNUC__)
  __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b)); /* acc stays in place */
  return acc;
#elif defined(__AVXVNNI__)
  return _mm256_dpwssd_avx_epi32(acc, a, b);
#elif defined(__GNUC__)
  const vi32 sum = _mm256_madd_epi16(a, b);
  __asm__("vpaddd %1, %0, %0" : "+x"(acc) : "x"(sum)); /* at once, or gcc keeps many in memory */
  return acc;
#else
  return v_i32_add(acc, _mm256_madd_epi16(a, b));
#endif
}
/* acc + the sum of four products in each lane, exact but for wrapping: the bytes of a, unsigned,
 * times those of b, signed. */
static inline vi32 v_dot4(vi32 acc, vi32 a, vi32 b) {
#if defined(__AVXVNNI__) && defined(__GNUC__)
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b)); /* acc stays in place */
  return acc;
#elif defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(acc, a, b);
#else
  const vi32 even = _mm256_madd_epi16(_mm256_and_si256(a, v_i32_set1(0x00ff00ff)),
                                      _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  const vi32 odd = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  return v_i32_add(acc, v_i32_add(even, odd));
#endif
}
/* acc + both sums of 16 bits in each lane. */
static inline vi32 avx_join_pairs(vi32 acc, vi32 sums) {
  return v_dot2(acc, sums, _mm256_set1_epi16(1));
}
/* v_dot4 where sums of two products fit 16 bits, as those of bytes of a below 128 do. */
static inline vi32 v_dot4_small(vi32 acc, vi32 a, vi32 b) {
#if defined(__AVXVNNI__)
  return v_dot4(acc, a, b);
#else
  return avx_join_pairs(acc, _mm256_maddubs_epi16(a, b));
#endif
}
/* Both sums of 16 bits in each lane, each + two products of such bytes: of numbers of 4 bits they
 * hold the products of 32. */
static inline vi32 avx_add_pairs(vi32 sums, vi32 a, vi32 b) {
#if defined(__GNUC__)
  const vi32 pairs = _mm256_maddubs_epi16(a, b);
  __asm__("vpaddw %1, %0, %0" : "+x"(sums) : "x"(pairs)); /* at once, too */
  return sums;
#else
  return _mm256_add_epi16(sums, _mm256_maddubs_epi16(a, b));
#endif
}
/* v_dot4_small for b at p, which stays in memory: gcc would load it ahead, and spill sums. */
static inline vi32 avx_dot4_small_at(vi32 acc, vi32 a, const int8_t *p) {
#if defined(__GNUC__)
  vi32 pairs;
  __asm__("vpmaddubsw %2, %1, %0" : "=x"(pairs) : "x"(a), "m"(*(const char(*)[32])p));
  return avx_join_pairs(acc, pairs);
#else
  return v_dot4_small(acc, a, v_i32_load((const int32_t *)(const void *)p));
#endif
}
/* The word at p in every lane, its bytes in `order`. */
static inline vi32 avx_shuffled_word(const void *p, vi32 order) {
  int32_t word;
  memcpy(&word, p, sizeof word);
  return _mm256_shuffle_epi8(_mm256_set1_epi32(word), order);
}
/* Places of 16 bytes, for avx_stage. */
static inline vi32 avx_order(const void *p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}
/* The eight bytes of pixels in a row at p, and behind them the eight at q, in `order`, changed by
 * `flip`, to the 16 bytes of each at `to`: of four those of pixels 0, 2, 1 and 3. */
static inline void avx_stage4(uint8_t *to, const void *p, const void *q, vi32 order, vi32 flip) {
  const __m256i a = _mm256_loadu_si256((const __m256i *)p);
  const __m256i b = _mm256_loadu_si256((const __m256i *)q);
  const __m256i even = _mm256_shuffle_epi8(_mm256_unpacklo_epi64(a, b), order);
  const __m256i odd = _mm256_shuffle_epi8(_mm256_unpackhi_epi64(a, b), order);
  _mm256_storeu_si256((__m256i *)(void *)to, _mm256_xor_si256(even, flip));
  _mm256_storeu_si256((__m256i *)(void *)(to + 32), _mm256_xor_si256(odd, flip));
}
static inline void avx_store_staged(uint8_t *to, __m128i bytes, vi32 order, vi32 flip) {
  const __m128i shuffled = _mm_shuffle_epi8(bytes, _mm256_castsi256_si128(order));
  _mm_storeu_si128((__m128i *)(void *)to, _mm_xor_si128(shuffled, _mm256_castsi256_si128(flip)));
}
static inline void avx_stage2(uint8_t *to, const void *p, const void *q, vi32 order, vi32 flip) {
  const __m128i a = _mm_loadu_si128((const __m128i *)p);
  const __m128i b = _mm_loadu_si128((const __m128i *)q);
  avx_store_staged(to, _mm_unpacklo_epi64(a, b), order, flip);
  avx_store_staged(to + 16, _mm_unpackhi_epi64(a, b), order, flip);
}
static inline void avx_stage1(uint8_t *to, const void *p, const void *q, vi32 order, vi32 flip) {
  const __m128i a = _mm_loadl_epi64((const __m128i *)p);
  const __m128i b = _mm_loadl_epi64((const __m128i *)q);
  avx_store_staged(to, _mm_unpacklo_epi64(a, b), order, flip);
}
/* Places of 32 bytes, and eight bytes again and again, for avx_stage_row. */
static inline vi32 avx_row_order(const void *p) {
  return _mm256_loadu_si256((const __m256i *)p);
}
static inline vi32 avx_mask(const void *p) {
  return _mm256_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)p));
}
/* Bytes of the 16 from p on, eight for each of some windows, in `order`, changed by `mask`. */
static inline void avx_stage_row4(uint8_t *to, const void *p, vi32 order, vi32 mask) {
  const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
  const __m256i shuffled = _mm256_shuffle_epi8(bytes, order);
  _mm256_storeu_si256((__m256i *)(void *)to, _mm256_xor_si256(shuffled, mask));
}
static inline void avx_stage_row2(uint8_t *to, const void *p, vi32 order, vi32 mask) {
  const __m128i bytes = _mm_loadu_si128((const __m128i *)p);
  const __m128i shuffled = _mm_shuffle_epi8(bytes, _mm256_castsi256_si128(order));
  _mm_storeu_si128((__m128i *)(void *)to, _mm_xor_si128(shuffled, _mm256_castsi256_si128(mask)));
}
static inline void avx_stage_row1(uint8_t *to, const void *p, vi32 order, vi32 mask) {
  const __m128i bytes = _mm_loadl_epi64((const __m128i *)p);
  const __m128i shuffled = _mm_shuffle_epi8(bytes, _mm256_castsi256_si128(order));
  _mm_storel_epi64((__m128i *)(void *)to, _mm_xor_si128(shuffled, _mm256_castsi256_si128(mask)));
}
/* Bytes 0 and 2 of each lane, and 1 and 3, as unsigned integers of 16 bits. */
static inline vi32 v_even_bytes(vi32 a) { return _mm256_and_si256(a, v_i32_set1(0x00ff00ff)); }
static inline vi32 v_odd_bytes(vi32 a) { return _mm256_srli_epi16(a, 8); }
/* The bits of a, read as the other type. */
static inline vi32 v_cast_i32(vf32 a) { return _mm256_castps_si256(a); }
static inline vf32 v_cast_f32(vi32 a) { return _mm256_castsi256_ps(a); }
/* Toward zero, as a C cast, and to nearest (ties to even); NaN and what does not fit give an
 * unspecified integer. */
static inline vi32 v_cvt_i32(vf32 a) { return _mm256_cvttps_epi32(a); }
static inline vi32 v_round_i32(vf32 a) { return _mm256_cvtps_epi32(a); }
static inline vf32 v_cvt_f32(vi32 a) { return _mm256_cvtepi32_ps(a); }

/* --- Arithmetic --- */

static inline vf32 v_add(vf32 a, vf32 b) { return _mm256_add_ps(a, b); }
static inline vf32 v_sub(vf32 a, vf32 b) { return _mm256_sub_ps(a, b); }
static inline vf32 v_mul(vf32 a, vf32 b) { return _mm256_mul_ps(a, b); }
static inline vf32 v_div(vf32 a, vf32 b) { return _mm256_div_ps(a, b); }
/* a * b + c and c - a * b; rounded once where the machine has fused multiply-add, else twice. */
static inline vf32 v_fma(vf32 a, vf32 b, vf32 c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf32 v_fnma(vf32 a, vf32 b, vf32 c) { return _mm256_fnmadd_ps(a, b, c); }
/* acc + a * b for the accumulators of a register tile: acc stays in its register. Left to choose
 * between the three operand orders of the instruction, gcc rotates accumulators and spills. */
static inline vf32 v_fmadd_acc(vf32 acc, vf32 a, vf32 b) {
#if defined(__GNUC__)
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc) : "x"(a), "x"(b));
  return acc;
#else
  return _mm256_fmadd_ps(a, b, acc);
#endif
}
static inline vf32 v_sqrt(vf32 a) { return _mm256_sqrt_ps(a); }
static inline vf32 v_abs(vf32 a) { return _mm256_andnot_ps(v_set1(-0.0f), a); }
static inline vf32 v_neg(vf32 a) { return _mm256_xor_ps(a, v_set1(-0.0f)); }
static inline vf32 v_copysign(vf32 a, vf32 sign) {
  return _mm256_or_ps(v_abs(a), _mm256_and_ps(sign, v_set1(-0.0f)));
}
/* NaN in either operand gives NaN, as ONNX and numpy have it. */
static inline vf32 v_max(vf32 a, vf32 b) {
  return _mm256_blendv_ps(_mm256_max_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
static inline vf32 v_min(vf32 a, vf32 b) {
  return _mm256_blendv_ps(_mm256_min_ps(a, b), a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
/* The same at the price of one instruction, for a constant that is not NaN: with NaN in either
 * operand the instruction returns the second. */
static inline vf32 v_max_const(vf32 constant, vf32 a) { return _mm256_max_ps(constant, a); }
static inline vf32 v_min_const(vf32 constant, vf32 a) { return _mm256_min_ps(constant, a); }
static inline vf32 v_relu(vf32 a) { return v_max_const(v_zero(), a); }
static inline vf32 v_floor(vf32 a) { return _mm256_floor_ps(a); }
static inline vf32 v_ceil(vf32 a) { return _mm256_ceil_ps(a); }
static inline vf32 v_trunc(vf32 a) { return _mm256_round_ps(a, _MM_FROUND_TRUNC); }
static inline vf32 v_round(vf32 a) { /* ties to even */
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* --- Masks: comparisons with NaN are false --- */

static inline vmask v_lt(vf32 a, vf32 b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline vmask v_le(vf32 a, vf32 b) { return _mm256_cmp_ps(a, b, _CMP_LE_OQ); }
static inline vmask v_gt(vf32 a, vf32 b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
static inline vmask v_ge(vf32 a, vf32 b) { return _mm256_cmp_ps(a, b, _CMP_GE_OQ); }
static inline vmask v_eq(vf32 a, vf32 b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
static inline vmask v_isnan(vf32 a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
static inline vmask v_mask_and(vmask a, vmask b) { return _mm256_and_ps(a, b); }
static inline vmask v_mask_or(vmask a, vmask b) { return _mm256_or_ps(a, b); }
static inline vmask v_mask_not(vmask a) {
  return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
}
static inline bool v_mask_any(vmask a) { return _mm256_movemask_ps(a) != 0; }
static inline vf32 v_select(vmask mask, vf32 a, vf32 b) { /* a where set, else b */
  return _mm256_blendv_ps(b, a, mask);
}
/* What v_store_i8 is to store for a: 0 where that is NaN. */
static inline vf32 v_without_nan(vf32 a) { return v_select(v_isnan(a), v_zero(), a); }

/* --- Doubles: a vector of them holds half as many lanes, low the first ones --- */

static inline vf64 v_f64_set1(double x) { return _mm256_set1_pd(x); }
static inline vf64 v_f64_low(vf32 a) { return _mm256_cvtps_pd(_mm256_castps256_ps128(a)); }
static inline vf64 v_f64_high(vf32 a) { return _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1)); }
static inline vf32 v_f64_join(vf64 low, vf64 high) { /* rounded to floats */
  const __m256 lower = _mm256_castps128_ps256(_mm256_cvtpd_ps(low));
  return _mm256_insertf128_ps(lower, _mm256_cvtpd_ps(high), 1);
}
static inline vf64 v_f64_add(vf64 a, vf64 b) { return _mm256_add_pd(a, b); }
static inline vf64 v_f64_sub(vf64 a, vf64 b) { return _mm256_sub_pd(a, b); }
static inline vf64 v_f64_mul(vf64 a, vf64 b) { return _mm256_mul_pd(a, b); }
static inline vf64 v_f64_div(vf64 a, vf64 b) { return _mm256_div_pd(a, b); }
/* a * b + c and c - a * b, rounded as v_fma. */
static inline vf64 v_f64_fma(vf64 a, vf64 b, vf64 c) { return _mm256_fmadd_pd(a, b, c); }
static inline vf64 v_f64_fnma(vf64 a, vf64 b, vf64 c) { return _mm256_fnmadd_pd(a, b, c); }
/* a * 2^n for a number n in the last bits of `bits`; a and the result are normal. */
static inline vf64 v_f64_ldexp(vf64 a, vf64 bits) {
  const __m256i power = _mm256_slli_epi64(_mm256_castpd_si256(bits), 52);
  return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(a), power));
}

/* --- Across lanes: sums are pairwise, maxima and minima propagate NaN --- */

static inline float v_reduce_add(vf32 a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
/* Lane i is the sum of the V_LANES floats at p + i * V_LANES. */
static inline vf32 avx_sum_pairs(const float *p) { /* of two vectors, in halves of each half */
  return _mm256_hadd_ps(v_load(p), v_load(p + 8));
}
static inline vf32 v_reduce_add_each(const float *p) {
  const vf32 a = _mm256_hadd_ps(avx_sum_pairs(p), avx_sum_pairs(p + 16));
  const vf32 b = _mm256_hadd_ps(avx_sum_pairs(p + 32), avx_sum_pairs(p + 48));
  return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
static inline float v_reduce_max(vf32 a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  const __m128 one = _mm_max_ss(two, _mm_movehdup_ps(two));
  return v_mask_any(v_isnan(a)) ? NAN : _mm_cvtss_f32(one);
}
static inline float v_reduce_min(vf32 a) {
  const __m128 four = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_min_ps(four, _mm_movehl_ps(four, four));
  const __m128 one = _mm_min_ss(two, _mm_movehdup_ps(two));
  return v_mask_any(v_isnan(a)) ? NAN : _mm_cvtss_f32(one);
}
/* Lane i is lane at[i] of a, 0 <= at[i] < V_LANES. */
static inline vf32 v_permute(vf32 a, vi32 at) { return _mm256_permutevar8x32_ps(a, at); }
/* dst[j * dst_stride + i] = src[i * src_stride + j] for i, j < V_LANES; no overlap. First the
 * 4x4 blocks inside the 128-bit halves of four rows, then the halves themselves. */
static inline void v_transpose(float *dst, size_t dst_stride, const float *src,
                               size_t src_stride) {
  vf32 part[2][4];
  for (size_t g = 0; g < 2; g++) {
    const float *rows = src + 4 * g * src_stride;
    const vf32 r0 = v_load(rows), r1 = v_load(rows + src_stride);
    const vf32 r2 = v_load(rows + 2 * src_stride), r3 = v_load(rows + 3 * src_stride);
    const vf32 lo01 = _mm256_unpacklo_ps(r0, r1), hi01 = _mm256_unpackhi_ps(r0, r1);
    const vf32 lo23 = _mm256_unpacklo_ps(r2, r3), hi23 = _mm256_unpackhi_ps(r2, r3);
    part[g][0] = _mm256_shuffle_ps(lo01, lo23, 0x44);
    part[g][1] = _mm256_shuffle_ps(lo01, lo23, 0xee);
    part[g][2] = _mm256_shuffle_ps(hi01, hi23, 0x44);
    part[g][3] = _mm256_shuffle_ps(hi01, hi23, 0xee);
  }
  for (size_t j = 0; j < 4; j++) {
    float *rows = dst + j * dst_stride;
    v_store(rows, _mm256_permute2f128_ps(part[0][j], part[1][j], 0x20));
    v_store(rows + 4 * dst_stride, _mm256_permute2f128_ps(part[0][j], part[1][j], 0x31));
  }
}

/* The nearest float16 (ties to even; infinite from 65520 on), as a float; and stored in 16 bits. */
static inline vf32 v_round_f16(vf32 a) { return _mm256_cvtph_ps(_mm256_cvtps_ph(a, 0)); }
static inline void v_store_f16(uint16_t *p, vf32 a) {
  _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(a, 0));
}

#endif
