/* simd.h - the vector vocabulary for WebAssembly's simd128: four lanes, no fused multiply-add.
 *
 * Kernels and math functions are written in these names only. Each instruction set has its own
 * simd.h with the same names and the same meaning; V_LANES is the number of floats in a vector.
 * Pointers need no alignment. Float arithmetic follows IEEE 754 in the default rounding mode and
 * must be compiled without -ffast-math.
 */
#ifndef SIMD_H
#define SIMD_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <wasm_simd128.h>

#define V_LANES 4      /* floats in a vector */
#define V_REGISTERS 16 /* vector registers that engines have on x86-64 */
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

typedef v128_t vf32;  /* V_LANES floats */
typedef v128_t vi32;  /* V_LANES integers */
typedef v128_t vf64;  /* half as many doubles */
typedef v128_t vmask; /* V_LANES booleans: all bits of the lane set, or none */

/* --- Memory --- */

static inline vf32 v_zero(void) { return wasm_f32x4_const_splat(0.0f); }
static inline vf32 v_set1(float x) { return wasm_f32x4_splat(x); }
static inline vf32 v_broadcast(const float *p) { /* *p in every lane */
  return wasm_v128_load32_splat(p);
}
static inline vf32 v_load(const float *p) { return wasm_v128_load(p); }
static inline void v_store(float *p, vf32 a) { wasm_v128_store(p, a); }
/* 2 * V_LANES floats from p on: the first, third, ... of them, and the second, fourth, ... */
static inline void v_load_pairs(const float *p, vf32 *even, vf32 *odd) {
  const vf32 a = v_load(p), b = v_load(p + V_LANES);
  *even = wasm_i32x4_shuffle(a, b, 0, 2, 4, 6);
  *odd = wasm_i32x4_shuffle(a, b, 1, 3, 5, 7);
}
/* V_LANES numbers of 16 bits, float16 or bfloat16, as floats: exactly, whatever they are. */
static inline vf32 v_load_f16(const uint16_t *p) {
  const v128_t halves = wasm_i32x4_shl(wasm_u32x4_load16x4(p), 16);
  const v128_t bits = wasm_i32x4_shr(halves, 3);
  const v128_t size = wasm_v128_and(bits, wasm_i32x4_const_splat(0x0fffe000));
  const v128_t scaled = wasm_f32x4_mul(size, v_set1(0x1p112f)); /* exponents are 112 apart */
  const v128_t beyond = wasm_f32x4_ge(scaled, v_set1(65536.0f)); /* infinities and NaN */
  const v128_t full = wasm_v128_and(beyond, wasm_i32x4_const_splat(0x7f800000));
  const v128_t sign = wasm_v128_and(bits, v_set1(-0.0f));
  return wasm_v128_or(wasm_v128_or(scaled, full), sign);
}
static inline vf32 v_load_bf16(const uint16_t *p) {
  return wasm_i32x4_shl(wasm_u32x4_load16x4(p), 16);
}
/* V_LANES bytes as floats; and back, to the nearest (ties to even), saturating, NaN as lowest. */
static inline vf32 v_load_u8(const uint8_t *p) {
  const v128_t half = wasm_u16x8_extend_low_u8x16(wasm_v128_load32_zero(p));
  return wasm_f32x4_convert_i32x4(wasm_u32x4_extend_low_u16x8(half));
}
static inline vf32 v_load_i8(const int8_t *p) {
  const v128_t half = wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(p));
  return wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(half));
}
/* a between two bounds, NaN as the lower one, to the nearest integer by the addition of 1.5 * 2^23,
 * whose last bits are those of the integer. */
static inline vi32 simd_held(vf32 a, float low, float high) {
  const vf32 held = wasm_f32x4_pmin(wasm_f32x4_pmax(v_set1(low), a), v_set1(high));
  const vf32 moved = wasm_f32x4_add(held, v_set1(12582912.0f));
  return wasm_i32x4_sub(moved, wasm_i32x4_const_splat(0x4b400000));
}
static inline vi32 simd_held_u8(vf32 a) { return simd_held(a, 0.0f, 255.0f); }
static inline vi32 simd_held_i8(vf32 a) { return simd_held(a, -128.0f, 127.0f); }
static inline void v_store_u8(uint8_t *p, vf32 a) {
  const v128_t half = wasm_i16x8_narrow_i32x4(simd_held_u8(a), simd_held_u8(a));
  wasm_v128_store32_lane(p, wasm_u8x16_narrow_i16x8(half, half), 0);
}
static inline void v_store_i8(int8_t *p, vf32 a) {
  const v128_t half = wasm_i16x8_narrow_i32x4(simd_held_i8(a), simd_held_i8(a));
  wasm_v128_store32_lane(p, wasm_i8x16_narrow_i16x8(half, half), 0);
}
/* Four vectors of floats as 4 * V_LANES bytes in a row, each as by v_store_u8 or v_store_i8. */
static inline void v_store4_u8(uint8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  const v128_t ab = wasm_i16x8_narrow_i32x4(simd_held_u8(a), simd_held_u8(b));
  const v128_t cd = wasm_i16x8_narrow_i32x4(simd_held_u8(c), simd_held_u8(d));
  wasm_v128_store(p, wasm_u8x16_narrow_i16x8(ab, cd));
}
static inline void v_store4_i8(int8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  const v128_t ab = wasm_i16x8_narrow_i32x4(simd_held_i8(a), simd_held_i8(b));
  const v128_t cd = wasm_i16x8_narrow_i32x4(simd_held_i8(c), simd_held_i8(d));
  wasm_v128_store(p, wasm_i8x16_narrow_i16x8(ab, cd));
}
/* The upper halves of lanes: floats as bfloat16, cut off. */
static inline void v_store_halves(uint16_t *p, vf32 a) {
  const v128_t halves = wasm_i32x4_shr(a, 16); /* signed: none saturates */
  wasm_v128_store64_lane(p, wasm_i16x8_narrow_i32x4(halves, halves), 0);
}
/* y[i] = table[x[i]] for i < n, of 256 bytes; y may be x. */
static inline void v_lookup(uint8_t *y, const uint8_t *x, size_t n, const uint8_t *table) {
  for (size_t i = 0; i < n; i++) y[i] = table[x[i]];
}
/* Ask for the cache line at p, which need not be a valid address: here there is nothing to ask. */
static inline void v_prefetch_l1(const void *p) { (void)p; }
static inline void v_prefetch_l2(const void *p) { (void)p; }

/* --- Integers: add, sub, mul and shl wrap; shr keeps the sign --- */

static inline vi32 v_i32_set1(int32_t x) { return wasm_i32x4_splat(x); }
static inline vi32 v_i32_load(const int32_t *p) { return wasm_v128_load(p); }
static inline void v_i32_store(int32_t *p, vi32 a) { wasm_v128_store(p, a); }
/* p[i] of each lane's i. */
static inline vf32 v_gather(const float *p, vi32 i) {
  return wasm_f32x4_make(p[wasm_i32x4_extract_lane(i, 0)], p[wasm_i32x4_extract_lane(i, 1)],
                         p[wasm_i32x4_extract_lane(i, 2)], p[wasm_i32x4_extract_lane(i, 3)]);
}
static inline vi32 v_i32_gather(const int32_t *p, vi32 i) {
  return wasm_i32x4_make(p[wasm_i32x4_extract_lane(i, 0)], p[wasm_i32x4_extract_lane(i, 1)],
                         p[wasm_i32x4_extract_lane(i, 2)], p[wasm_i32x4_extract_lane(i, 3)]);
}
/* V_LANES bytes, unsigned, as integers. */
static inline vi32 v_i32_load_u8(const uint8_t *p) {
  return wasm_u32x4_extend_low_u16x8(wasm_u16x8_extend_low_u8x16(wasm_v128_load32_zero(p)));
}
static inline vi32 v_i32_add(vi32 a, vi32 b) { return wasm_i32x4_add(a, b); }
static inline vi32 v_i32_sub(vi32 a, vi32 b) { return wasm_i32x4_sub(a, b); }
static inline vi32 v_i32_mul(vi32 a, vi32 b) { return wasm_i32x4_mul(a, b); }
static inline vi32 v_i32_and(vi32 a, vi32 b) { return wasm_v128_and(a, b); }
static inline vi32 v_i32_or(vi32 a, vi32 b) { return wasm_v128_or(a, b); }
static inline vi32 v_i32_xor(vi32 a, vi32 b) { return wasm_v128_xor(a, b); }
static inline vi32 v_i32_shl(vi32 a, int n) { return wasm_i32x4_shl(a, (uint32_t)n); }
static inline vi32 v_i32_shr(vi32 a, int n) { return wasm_i32x4_shr(a, (uint32_t)n); }
/* acc + the sum of four products in each lane, exact but for wrapping: the bytes of a, unsigned,
 * times those of b, signed. */
static inline vi32 v_dot4(vi32 acc, vi32 a, vi32 b) {
  const vi32 even = wasm_i32x4_dot_i16x8(wasm_v128_and(a, v_i32_set1(0x00ff00ff)),
                                         wasm_i16x8_shr(wasm_i16x8_shl(b, 8), 8));
  const vi32 odd = wasm_i32x4_dot_i16x8(wasm_u16x8_shr(a, 8), wasm_i16x8_shr(b, 8));
  return v_i32_add(acc, v_i32_add(even, odd));
}
/* The same for bytes of a below 128, of which sums of two products fit 16 bits. */
static inline vi32 v_dot4_small(vi32 acc, vi32 a, vi32 b) { return v_dot4(acc, a, b); }
/* acc + the sum of two products in each lane, exact but for wrapping, of integers of 16 bits. */
static inline vi32 v_dot2(vi32 acc, vi32 a, vi32 b) {
  return v_i32_add(acc, wasm_i32x4_dot_i16x8(a, b));
}
/* Bytes 0 and 2 of each lane, and 1 and 3, as unsigned integers of 16 bits. */
static inline vi32 v_even_bytes(vi32 a) { return wasm_v128_and(a, v_i32_set1(0x00ff00ff)); }
static inline vi32 v_odd_bytes(vi32 a) { return wasm_u16x8_shr(a, 8); }
/* The bits of a, read as the other type. */
static inline vi32 v_cast_i32(vf32 a) { return a; }
static inline vf32 v_cast_f32(vi32 a) { return a; }
/* Toward zero, as a C cast, and to nearest (ties to even); NaN and what does not fit give an
 * unspecified integer. */
static inline vi32 v_cvt_i32(vf32 a) { return wasm_i32x4_trunc_sat_f32x4(a); }
static inline vi32 v_round_i32(vf32 a) {
  return wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(a));
}
static inline vf32 v_cvt_f32(vi32 a) { return wasm_f32x4_convert_i32x4(a); }

/* --- Masks: comparisons with NaN are false --- */

static inline vmask v_lt(vf32 a, vf32 b) { return wasm_f32x4_lt(a, b); }
static inline vmask v_le(vf32 a, vf32 b) { return wasm_f32x4_le(a, b); }
static inline vmask v_gt(vf32 a, vf32 b) { return wasm_f32x4_gt(a, b); }
static inline vmask v_ge(vf32 a, vf32 b) { return wasm_f32x4_ge(a, b); }
static inline vmask v_eq(vf32 a, vf32 b) { return wasm_f32x4_eq(a, b); }
static inline vmask v_isnan(vf32 a) { return wasm_f32x4_ne(a, a); }
static inline vmask v_mask_n(size_t n) { /* the first n lanes, n <= V_LANES */
  return wasm_i32x4_gt(wasm_i32x4_splat((int32_t)n), wasm_i32x4_const(0, 1, 2, 3));
}
static inline vmask v_mask_and(vmask a, vmask b) { return wasm_v128_and(a, b); }
static inline vmask v_mask_or(vmask a, vmask b) { return wasm_v128_or(a, b); }
static inline vmask v_mask_not(vmask a) { return wasm_v128_not(a); }
static inline bool v_mask_any(vmask a) { return wasm_v128_any_true(a); }
static inline vf32 v_select(vmask mask, vf32 a, vf32 b) { /* a where set, else b */
  return wasm_v128_bitselect(a, b, mask);
}
/* What v_store_i8 is to store for a: 0 where that is NaN. */
static inline vf32 v_without_nan(vf32 a) { return v_select(v_isnan(a), v_zero(), a); }

/* --- Arithmetic --- */

static inline vf32 v_add(vf32 a, vf32 b) { return wasm_f32x4_add(a, b); }
static inline vf32 v_sub(vf32 a, vf32 b) { return wasm_f32x4_sub(a, b); }
static inline vf32 v_mul(vf32 a, vf32 b) { return wasm_f32x4_mul(a, b); }
static inline vf32 v_div(vf32 a, vf32 b) { return wasm_f32x4_div(a, b); }
/* a * b + c and c - a * b; rounded once where the machine has fused multiply-add, else twice. */
static inline vf32 v_fma(vf32 a, vf32 b, vf32 c) { return v_add(v_mul(a, b), c); }
static inline vf32 v_fnma(vf32 a, vf32 b, vf32 c) { return v_sub(c, v_mul(a, b)); }
/* acc + a * b for the accumulators of a register tile: acc stays in its register. */
static inline vf32 v_fmadd_acc(vf32 acc, vf32 a, vf32 b) { return v_add(acc, v_mul(a, b)); }
static inline vf32 v_sqrt(vf32 a) { return wasm_f32x4_sqrt(a); }
static inline vf32 v_abs(vf32 a) { return wasm_f32x4_abs(a); }
static inline vf32 v_neg(vf32 a) { return wasm_f32x4_neg(a); }
static inline vf32 v_copysign(vf32 a, vf32 sign) {
  return wasm_v128_bitselect(sign, a, v_set1(-0.0f));
}
/* NaN in either operand gives NaN, as ONNX and numpy have it. */
static inline vf32 v_max(vf32 a, vf32 b) { return wasm_f32x4_max(a, b); }
static inline vf32 v_min(vf32 a, vf32 b) { return wasm_f32x4_min(a, b); }
/* The same at the price of one instruction, for a constant that is not NaN: pmax and pmin return
 * their first operand unless the second is larger or smaller. */
static inline vf32 v_max_const(vf32 constant, vf32 a) { return wasm_f32x4_pmax(a, constant); }
static inline vf32 v_min_const(vf32 constant, vf32 a) { return wasm_f32x4_pmin(a, constant); }
static inline vf32 v_relu(vf32 a) { return v_max_const(v_zero(), a); }
static inline vf32 v_floor(vf32 a) { return wasm_f32x4_floor(a); }
static inline vf32 v_ceil(vf32 a) { return wasm_f32x4_ceil(a); }
static inline vf32 v_trunc(vf32 a) { return wasm_f32x4_trunc(a); }
static inline vf32 v_round(vf32 a) { return wasm_f32x4_nearest(a); } /* ties to even */

/* --- Doubles: a vector of them holds half as many lanes, low the first ones --- */

static inline vf64 v_f64_set1(double x) { return wasm_f64x2_splat(x); }
static inline vf64 v_f64_low(vf32 a) { return wasm_f64x2_promote_low_f32x4(a); }
static inline vf64 v_f64_high(vf32 a) {
  return wasm_f64x2_promote_low_f32x4(wasm_i64x2_shuffle(a, a, 1, 1));
}
static inline vf32 v_f64_join(vf64 low, vf64 high) { /* rounded to floats */
  return wasm_i64x2_shuffle(wasm_f32x4_demote_f64x2_zero(low), wasm_f32x4_demote_f64x2_zero(high),
                            0, 2);
}
static inline vf64 v_f64_add(vf64 a, vf64 b) { return wasm_f64x2_add(a, b); }
static inline vf64 v_f64_sub(vf64 a, vf64 b) { return wasm_f64x2_sub(a, b); }
static inline vf64 v_f64_mul(vf64 a, vf64 b) { return wasm_f64x2_mul(a, b); }
static inline vf64 v_f64_div(vf64 a, vf64 b) { return wasm_f64x2_div(a, b); }
/* a * b + c and c - a * b, rounded as v_fma. */
static inline vf64 v_f64_fma(vf64 a, vf64 b, vf64 c) { return v_f64_add(v_f64_mul(a, b), c); }
static inline vf64 v_f64_fnma(vf64 a, vf64 b, vf64 c) { return v_f64_sub(c, v_f64_mul(a, b)); }
/* a * 2^n for a number n in the last bits of `bits`; a and the result are normal. */
static inline vf64 v_f64_ldexp(vf64 a, vf64 bits) {
  return wasm_i64x2_add(a, wasm_i64x2_shl(bits, 52));
}

/* --- Across lanes: sums are pairwise, maxima and minima propagate NaN --- */

static inline float v_reduce_add(vf32 a) {
  const vf32 two = v_add(a, wasm_i32x4_shuffle(a, a, 2, 3, 2, 3));
  return wasm_f32x4_extract_lane(two, 0) + wasm_f32x4_extract_lane(two, 1);
}
/* Lane i is the sum of the V_LANES floats at p + i * V_LANES. */
static inline vf32 v_reduce_add_each(const float *p) {
  return wasm_f32x4_make(v_reduce_add(v_load(p)), v_reduce_add(v_load(p + 4)),
                         v_reduce_add(v_load(p + 8)), v_reduce_add(v_load(p + 12)));
}
static inline float v_reduce_max(vf32 a) {
  const vf32 two = v_max(a, wasm_i32x4_shuffle(a, a, 2, 3, 2, 3));
  return wasm_f32x4_extract_lane(v_max(two, wasm_i32x4_shuffle(two, two, 1, 1, 1, 1)), 0);
}
static inline float v_reduce_min(vf32 a) {
  const vf32 two = v_min(a, wasm_i32x4_shuffle(a, a, 2, 3, 2, 3));
  return wasm_f32x4_extract_lane(v_min(two, wasm_i32x4_shuffle(two, two, 1, 1, 1, 1)), 0);
}
/* Lane i is lane at[i] of a, 0 <= at[i] < V_LANES. */
static inline vf32 v_permute(vf32 a, vi32 at) {
  const vi32 first = v_i32_mul(at, v_i32_set1(0x04040404));
  return wasm_i8x16_swizzle(a, v_i32_add(first, v_i32_set1(0x03020100)));
}
/* dst[j * dst_stride + i] = src[i * src_stride + j] for i, j < V_LANES; no overlap. */
static inline void v_transpose(float *dst, size_t dst_stride, const float *src,
                               size_t src_stride) {
  const vf32 r0 = v_load(src), r1 = v_load(src + src_stride);
  const vf32 r2 = v_load(src + 2 * src_stride), r3 = v_load(src + 3 * src_stride);
  const vf32 lo01 = wasm_i32x4_shuffle(r0, r1, 0, 4, 1, 5);
  const vf32 hi01 = wasm_i32x4_shuffle(r0, r1, 2, 6, 3, 7);
  const vf32 lo23 = wasm_i32x4_shuffle(r2, r3, 0, 4, 1, 5);
  const vf32 hi23 = wasm_i32x4_shuffle(r2, r3, 2, 6, 3, 7);
  v_store(dst, wasm_i64x2_shuffle(lo01, lo23, 0, 2));
  v_store(dst + dst_stride, wasm_i64x2_shuffle(lo01, lo23, 1, 3));
  v_store(dst + 2 * dst_stride, wasm_i64x2_shuffle(hi01, hi23, 0, 2));
  v_store(dst + 3 * dst_stride, wasm_i64x2_shuffle(hi01, hi23, 1, 3));
}

#endif
