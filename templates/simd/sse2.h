/* simd.h - the vector vocabulary for any x86-64 (SSE2): four lanes, no fused multiply-add.
 *
 * Kernels and math functions are written in these names only. Each instruction set has its own
 * simd.h with the same names and the same meaning; V_LANES is the number of floats in a vector.
 * Pointers need no alignment. Float arithmetic follows IEEE 754 in the default rounding mode and
 * must be compiled without -ffast-math.
 */
#ifndef SIMD_H
#define SIMD_H

#include <emmintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define V_LANES 4      /* floats in a vector */
#define V_REGISTERS 16 /* vector registers of the machine */
#define V_ROUNDS_BF16 0 /* whether the table itself rounds to bfloat16 */
#define V_ROUNDS_F16 0 /* whether the table itself rounds to float16 */
#define V_HALVES 0 /* and computes in it */
#define V_PARTS_32 0 /* whether it loads and stores parts of vectors of 32 bits */
#define V_PARTS_16 0 /* and those of 8 and 16 bits */
#define V_FACTORS 0 /* whether vectors are multiplied by numbers that are no vectors */
#define V_SCALES 0 /* whether it multiplies by powers of two in its own way */
#define V_TABLES 0 /* the numbers of tables that it looks up at once */
#define V_EXP_LEAST -111.0f /* where exponentials are held, see math.h */
#define V_READS_FACTORS 0 /* whether a multiply-add reads such a number from memory */

typedef __m128 vf32;  /* V_LANES floats */
typedef __m128i vi32; /* V_LANES integers */
typedef __m128d vf64; /* half as many doubles */
typedef __m128 vmask; /* V_LANES booleans: all bits of the lane set, or none */

/* --- Memory --- */

static inline vf32 v_zero(void) { return _mm_setzero_ps(); }
static inline vf32 v_set1(float x) { return _mm_set1_ps(x); }
static inline vf32 v_broadcast(const float *p) { return _mm_set1_ps(*p); } /* *p in every lane */
static inline vf32 v_load(const float *p) { return _mm_loadu_ps(p); }
static inline void v_store(float *p, vf32 a) { _mm_storeu_ps(p, a); }
/* 2 * V_LANES floats from p on: the first, third, ... of them, and the second, fourth, ... */
static inline void v_load_pairs(const float *p, vf32 *even, vf32 *odd) {
  const vf32 a = v_load(p), b = v_load(p + V_LANES);
  *even = _mm_shuffle_ps(a, b, 0x88);
  *odd = _mm_shuffle_ps(a, b, 0xdd);
}
/* V_LANES numbers of 16 bits, float16 or bfloat16, as floats: exactly, whatever they are. */
static inline vf32 v_load_f16(const uint16_t *p) {
  const __m128i halves = _mm_loadl_epi64((const __m128i *)(const void *)p);
  const __m128i bits = _mm_srai_epi32(_mm_unpacklo_epi16(_mm_setzero_si128(), halves), 3);
  const __m128 size = _mm_castsi128_ps(_mm_and_si128(bits, _mm_set1_epi32(0x0fffe000)));
  const __m128 scaled = _mm_mul_ps(size, _mm_set1_ps(0x1p112f)); /* exponents are 112 apart */
  const __m128 beyond = _mm_cmpge_ps(scaled, _mm_set1_ps(65536.0f)); /* infinities and NaN */
  const __m128 full = _mm_and_ps(beyond, _mm_castsi128_ps(_mm_set1_epi32(0x7f800000)));
  const __m128 sign = _mm_and_ps(_mm_castsi128_ps(bits), _mm_set1_ps(-0.0f));
  return _mm_or_ps(_mm_or_ps(scaled, full), sign);
}
static inline vf32 v_load_bf16(const uint16_t *p) {
  const __m128i halves = _mm_loadl_epi64((const __m128i *)(const void *)p);
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), halves));
}
/* V_LANES bytes as floats; and back, to the nearest (ties to even), saturating, NaN as lowest. */
static inline vf32 v_load_u8(const uint8_t *p) {
  int32_t bytes;
  memcpy(&bytes, p, sizeof bytes);
  const __m128i half = _mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), _mm_setzero_si128());
  return _mm_cvtepi32_ps(_mm_unpacklo_epi16(half, _mm_setzero_si128()));
}
static inline vf32 v_load_i8(const int8_t *p) {
  int32_t bytes;
  memcpy(&bytes, p, sizeof bytes);
  const __m128i half = _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_cvtsi32_si128(bytes));
  return _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(_mm_setzero_si128(), half), 24));
}
static inline void v_store_u8(uint8_t *p, vf32 a) {
  const vf32 held = _mm_min_ps(_mm_max_ps(a, v_zero()), v_set1(255.0f));
  const __m128i wide = _mm_cvtps_epi32(held);
  const __m128i half = _mm_packs_epi32(wide, wide);
  const int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(half, half));
  memcpy(p, &bytes, sizeof bytes);
}
static inline void v_store_i8(int8_t *p, vf32 a) {
  const vf32 held = _mm_min_ps(_mm_max_ps(a, v_set1(-128.0f)), v_set1(127.0f));
  const __m128i wide = _mm_cvtps_epi32(held);
  const __m128i half = _mm_packs_epi32(wide, wide);
  const int32_t bytes = _mm_cvtsi128_si32(_mm_packs_epi16(half, half));
  memcpy(p, &bytes, sizeof bytes);
}
/* Four vectors of floats as 4 * V_LANES bytes in a row, each as by v_store_u8 or v_store_i8. */
static inline void v_store4_u8(uint8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  const vf32 top = v_set1(255.0f); /* below, what is packed saturates */
  const __m128i ab = _mm_packs_epi32(_mm_cvtps_epi32(_mm_min_ps(top, a)),
                                     _mm_cvtps_epi32(_mm_min_ps(top, b)));
  const __m128i cd = _mm_packs_epi32(_mm_cvtps_epi32(_mm_min_ps(top, c)),
                                     _mm_cvtps_epi32(_mm_min_ps(top, d)));
  const __m128i bytes = _mm_packus_epi16(ab, cd);
  _mm_storeu_si128((__m128i *)(void *)p, bytes);
}
static inline void v_store4_i8(int8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  const vf32 top = v_set1(127.0f); /* below, what is packed saturates */
  const __m128i ab = _mm_packs_epi32(_mm_cvtps_epi32(_mm_min_ps(top, a)),
                                     _mm_cvtps_epi32(_mm_min_ps(top, b)));
  const __m128i cd = _mm_packs_epi32(_mm_cvtps_epi32(_mm_min_ps(top, c)),
                                     _mm_cvtps_epi32(_mm_min_ps(top, d)));
  const __m128i bytes = _mm_packs_epi16(ab, cd);
  _mm_storeu_si128((__m128i *)(void *)p, bytes);
}
/* The upper halves of lanes: floats as bfloat16, cut off. */
static inline void v_store_halves(uint16_t *p, vf32 a) {
  const __m128i halves = _mm_srai_epi32(_mm_castps_si128(a), 16); /* signed: none saturates */
  _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi32(halves, halves));
}
/* y[i] = table[x[i]] for i < n, of 256 bytes; y may be x. */
static inline void v_lookup(uint8_t *y, const uint8_t *x, size_t n, const uint8_t *table) {
  for (size_t i = 0; i < n; i++) y[i] = table[x[i]];
}
/* Ask for the cache line at p, which need not be a valid address. */
static inline void v_prefetch_l1(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
static inline void v_prefetch_l2(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

/* --- Integers: add, sub, mul and shl wrap; shr keeps the sign --- */

static inline vi32 v_i32_set1(int32_t x) { return _mm_set1_epi32(x); }
static inline vi32 v_i32_load(const int32_t *p) {
  return _mm_loadu_si128((const __m128i *)(const void *)p);
}
static inline void v_i32_store(int32_t *p, vi32 a) { _mm_storeu_si128((__m128i *)(void *)p, a); }
/* p[i] of each lane's i. */
static inline vf32 v_gather(const float *p, vi32 i) {
  int32_t at[V_LANES];
  float lanes[V_LANES];
  v_i32_store(at, i);
  for (int k = 0; k < V_LANES; k++) lanes[k] = p[at[k]];
  return v_load(lanes);
}
static inline vi32 v_i32_gather(const int32_t *p, vi32 i) {
  int32_t lanes[V_LANES];
  v_i32_store(lanes, i);
  for (int k = 0; k < V_LANES; k++) lanes[k] = p[lanes[k]];
  return v_i32_load(lanes);
}
/* V_LANES bytes, unsigned, as integers. */
static inline vi32 v_i32_load_u8(const uint8_t *p) {
  int32_t bytes;
  memcpy(&bytes, p, sizeof bytes);
  const __m128i half = _mm_unpacklo_epi8(_mm_cvtsi32_si128(bytes), _mm_setzero_si128());
  return _mm_unpacklo_epi16(half, _mm_setzero_si128());
}
static inline vi32 v_i32_add(vi32 a, vi32 b) { return _mm_add_epi32(a, b); }
static inline vi32 v_i32_sub(vi32 a, vi32 b) { return _mm_sub_epi32(a, b); }
static inline vi32 v_i32_mul(vi32 a, vi32 b) {
  const __m128i even = _mm_mul_epu32(a, b);
  const __m128i odd = _mm_mul_epu32(_mm_srli_epi64(a, 32), _mm_srli_epi64(b, 32));
  return _mm_unpacklo_epi32(_mm_shuffle_epi32(even, 8), _mm_shuffle_epi32(odd, 8));
}
static inline vi32 v_i32_and(vi32 a, vi32 b) { return _mm_and_si128(a, b); }
static inline vi32 v_i32_or(vi32 a, vi32 b) { return _mm_or_si128(a, b); }
static inline vi32 v_i32_xor(vi32 a, vi32 b) { return _mm_xor_si128(a, b); }
static inline vi32 v_i32_shl(vi32 a, int n) { return _mm_slli_epi32(a, n); }
static inline vi32 v_i32_shr(vi32 a, int n) { return _mm_srai_epi32(a, n); }
/* acc + the sum of four products in each lane, exact but for wrapping: the bytes of a, unsigned,
 * times those of b, signed. */
static inline vi32 v_dot4(vi32 acc, vi32 a, vi32 b) {
  const vi32 even = _mm_madd_epi16(_mm_and_si128(a, v_i32_set1(0x00ff00ff)),
                                      _mm_srai_epi16(_mm_slli_epi16(b, 8), 8));
  const vi32 odd = _mm_madd_epi16(_mm_srli_epi16(a, 8), _mm_srai_epi16(b, 8));
  return v_i32_add(acc, v_i32_add(even, odd));
}
/* The same for bytes of a below 128, of which sums of two products fit 16 bits. */
static inline vi32 v_dot4_small(vi32 acc, vi32 a, vi32 b) { return v_dot4(acc, a, b); }
/* acc + the sum of two products in each lane, exact but for wrapping, of integers of 16 bits. */
static inline vi32 v_dot2(vi32 acc, vi32 a, vi32 b) {
  const vi32 sum = _mm_madd_epi16(a, b);
#if defined(__GNUC__)
  __asm__("paddd %1, %0" : "+x"(acc) : "x"(sum)); /* at once, or gcc keeps many in memory */
  return acc;
#else
  return v_i32_add(acc, sum);
#endif
}
/* Bytes 0 and 2 of each lane, and 1 and 3, as unsigned integers of 16 bits. */
static inline vi32 v_even_bytes(vi32 a) { return _mm_and_si128(a, v_i32_set1(0x00ff00ff)); }
static inline vi32 v_odd_bytes(vi32 a) { return _mm_srli_epi16(a, 8); }
/* The bits of a, read as the other type. */
static inline vi32 v_cast_i32(vf32 a) { return _mm_castps_si128(a); }
static inline vf32 v_cast_f32(vi32 a) { return _mm_castsi128_ps(a); }
/* Toward zero, as a C cast, and to nearest (ties to even); NaN and what does not fit give an
 * unspecified integer. */
static inline vi32 v_cvt_i32(vf32 a) { return _mm_cvttps_epi32(a); }
static inline vi32 v_round_i32(vf32 a) { return _mm_cvtps_epi32(a); }
static inline vf32 v_cvt_f32(vi32 a) { return _mm_cvtepi32_ps(a); }

/* --- Masks: comparisons with NaN are false --- */

static inline vmask v_lt(vf32 a, vf32 b) { return _mm_cmplt_ps(a, b); }
static inline vmask v_le(vf32 a, vf32 b) { return _mm_cmple_ps(a, b); }
static inline vmask v_gt(vf32 a, vf32 b) { return _mm_cmpgt_ps(a, b); }
static inline vmask v_ge(vf32 a, vf32 b) { return _mm_cmpge_ps(a, b); }
static inline vmask v_eq(vf32 a, vf32 b) { return _mm_cmpeq_ps(a, b); }
static inline vmask v_isnan(vf32 a) { return _mm_cmpunord_ps(a, a); }
static inline vmask v_mask_n(size_t n) { /* the first n lanes, n <= V_LANES */
  return _mm_castsi128_ps(_mm_cmpgt_epi32(_mm_set1_epi32((int)n), _mm_setr_epi32(0, 1, 2, 3)));
}
static inline vmask v_mask_and(vmask a, vmask b) { return _mm_and_ps(a, b); }
static inline vmask v_mask_or(vmask a, vmask b) { return _mm_or_ps(a, b); }
static inline vmask v_mask_not(vmask a) {
  return _mm_xor_ps(a, _mm_castsi128_ps(_mm_set1_epi32(-1)));
}
static inline bool v_mask_any(vmask a) { return _mm_movemask_ps(a) != 0; }
static inline vf32 v_select(vmask mask, vf32 a, vf32 b) { /* a where set, else b */
  return _mm_or_ps(_mm_and_ps(mask, a), _mm_andnot_ps(mask, b));
}
/* What v_store_i8 is to store for a: 0 where that is NaN. */
static inline vf32 v_without_nan(vf32 a) { return v_select(v_isnan(a), v_zero(), a); }

/* --- Arithmetic --- */

static inline vf32 v_add(vf32 a, vf32 b) { return _mm_add_ps(a, b); }
static inline vf32 v_sub(vf32 a, vf32 b) { return _mm_sub_ps(a, b); }
static inline vf32 v_mul(vf32 a, vf32 b) { return _mm_mul_ps(a, b); }
static inline vf32 v_div(vf32 a, vf32 b) { return _mm_div_ps(a, b); }
/* a * b + c and c - a * b; rounded once where the machine has fused multiply-add, else twice. */
static inline vf32 v_fma(vf32 a, vf32 b, vf32 c) { return v_add(v_mul(a, b), c); }
static inline vf32 v_fnma(vf32 a, vf32 b, vf32 c) { return v_sub(c, v_mul(a, b)); }
/* acc + a * b for the accumulators of a register tile: acc stays in its register. */
static inline vf32 v_fmadd_acc(vf32 acc, vf32 a, vf32 b) { return v_add(acc, v_mul(a, b)); }
static inline vf32 v_sqrt(vf32 a) { return _mm_sqrt_ps(a); }
static inline vf32 v_abs(vf32 a) { return _mm_andnot_ps(v_set1(-0.0f), a); }
static inline vf32 v_neg(vf32 a) { return _mm_xor_ps(a, v_set1(-0.0f)); }
static inline vf32 v_copysign(vf32 a, vf32 sign) {
  return _mm_or_ps(v_abs(a), _mm_and_ps(sign, v_set1(-0.0f)));
}
/* NaN in either operand gives NaN, as ONNX and numpy have it. */
static inline vf32 v_max(vf32 a, vf32 b) { return v_select(v_isnan(a), a, _mm_max_ps(a, b)); }
static inline vf32 v_min(vf32 a, vf32 b) { return v_select(v_isnan(a), a, _mm_min_ps(a, b)); }
/* The same at the price of one instruction, for a constant that is not NaN: with NaN in either
 * operand the instruction returns the second. */
static inline vf32 v_max_const(vf32 constant, vf32 a) { return _mm_max_ps(constant, a); }
static inline vf32 v_min_const(vf32 constant, vf32 a) { return _mm_min_ps(constant, a); }
static inline vf32 v_relu(vf32 a) { return v_max_const(v_zero(), a); }
/* Ties to even. Floats from 2^23 on are whole; smaller ones are rounded by the addition of 2^23.
 * The sign is put back for results of zero, here and in the three others. */
static inline vf32 v_round(vf32 a) {
  const vf32 whole = v_set1(8388608.0f);
  const vf32 rounded = v_sub(v_add(v_abs(a), whole), whole);
  return v_select(v_lt(v_abs(a), whole), v_copysign(rounded, a), a);
}
static inline vf32 v_floor(vf32 a) {
  const vf32 r = v_round(a);
  return v_copysign(v_sub(r, _mm_and_ps(v_gt(r, a), v_set1(1.0f))), a);
}
static inline vf32 v_ceil(vf32 a) {
  const vf32 r = v_round(a);
  return v_copysign(v_add(r, _mm_and_ps(v_lt(r, a), v_set1(1.0f))), a);
}
static inline vf32 v_trunc(vf32 a) { return v_copysign(v_floor(v_abs(a)), a); }

/* --- Doubles: a vector of them holds half as many lanes, low the first ones --- */

static inline vf64 v_f64_set1(double x) { return _mm_set1_pd(x); }
static inline vf64 v_f64_low(vf32 a) { return _mm_cvtps_pd(a); }
static inline vf64 v_f64_high(vf32 a) { return _mm_cvtps_pd(_mm_movehl_ps(a, a)); }
static inline vf32 v_f64_join(vf64 low, vf64 high) { /* rounded to floats */
  return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
}
static inline vf64 v_f64_add(vf64 a, vf64 b) { return _mm_add_pd(a, b); }
static inline vf64 v_f64_sub(vf64 a, vf64 b) { return _mm_sub_pd(a, b); }
static inline vf64 v_f64_mul(vf64 a, vf64 b) { return _mm_mul_pd(a, b); }
static inline vf64 v_f64_div(vf64 a, vf64 b) { return _mm_div_pd(a, b); }
/* a * b + c and c - a * b, rounded as v_fma. */
static inline vf64 v_f64_fma(vf64 a, vf64 b, vf64 c) { return _mm_add_pd(_mm_mul_pd(a, b), c); }
static inline vf64 v_f64_fnma(vf64 a, vf64 b, vf64 c) { return _mm_sub_pd(c, _mm_mul_pd(a, b)); }
/* a * 2^n for a number n in the last bits of `bits`; a and the result are normal. */
static inline vf64 v_f64_ldexp(vf64 a, vf64 bits) {
  const __m128i power = _mm_slli_epi64(_mm_castpd_si128(bits), 52);
  return _mm_castsi128_pd(_mm_add_epi64(_mm_castpd_si128(a), power));
}

/* --- Across lanes: sums are pairwise, maxima and minima propagate NaN --- */

static inline float v_reduce_add(vf32 a) {
  const vf32 two = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
/* Lane i is the sum of the V_LANES floats at p + i * V_LANES. */
static inline vf32 v_reduce_add_each(const float *p) {
  vf32 a = v_load(p), b = v_load(p + 4), c = v_load(p + 8), d = v_load(p + 12);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  return _mm_add_ps(_mm_add_ps(a, b), _mm_add_ps(c, d));
}
static inline float v_reduce_max(vf32 a) {
  const vf32 two = _mm_max_ps(a, _mm_movehl_ps(a, a));
  const vf32 one = _mm_max_ss(two, _mm_shuffle_ps(two, two, 1));
  return v_mask_any(v_isnan(a)) ? NAN : _mm_cvtss_f32(one);
}
static inline float v_reduce_min(vf32 a) {
  const vf32 two = _mm_min_ps(a, _mm_movehl_ps(a, a));
  const vf32 one = _mm_min_ss(two, _mm_shuffle_ps(two, two, 1));
  return v_mask_any(v_isnan(a)) ? NAN : _mm_cvtss_f32(one);
}
/* Lane i is lane at[i] of a, 0 <= at[i] < V_LANES. */
static inline vf32 v_permute(vf32 a, vi32 at) {
  float from[V_LANES], to[V_LANES];
  int32_t places[V_LANES];
  v_store(from, a);
  v_i32_store(places, at);
  for (size_t i = 0; i < V_LANES; i++) to[i] = from[places[i]];
  return v_load(to);
}
/* dst[j * dst_stride + i] = src[i * src_stride + j] for i, j < V_LANES; no overlap. */
static inline void v_transpose(float *dst, size_t dst_stride, const float *src,
                               size_t src_stride) {
  const vf32 r0 = v_load(src), r1 = v_load(src + src_stride);
  const vf32 r2 = v_load(src + 2 * src_stride), r3 = v_load(src + 3 * src_stride);
  const vf32 lo01 = _mm_unpacklo_ps(r0, r1), hi01 = _mm_unpackhi_ps(r0, r1);
  const vf32 lo23 = _mm_unpacklo_ps(r2, r3), hi23 = _mm_unpackhi_ps(r2, r3);
  v_store(dst, _mm_movelh_ps(lo01, lo23));
  v_store(dst + dst_stride, _mm_movehl_ps(lo23, lo01));
  v_store(dst + 2 * dst_stride, _mm_movelh_ps(hi01, hi23));
  v_store(dst + 3 * dst_stride, _mm_movehl_ps(hi23, hi01));
}

#endif
