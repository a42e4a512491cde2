/* simd.h - the vector vocabulary in plain C99: one lane, no intrinsics.
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

#define V_LANES 1      /* floats in a vector */
#define V_REGISTERS 16 /* vector registers of the machine */
#define V_ROUNDS_BF16 0 /* whether the table itself rounds to bfloat16 */
#define V_ROUNDS_F16 0 /* whether the table itself rounds to float16 */
#define V_HALVES 0 /* and computes in it */
#define V_PARTS_32 1 /* whether it loads and stores parts of vectors of 32 bits */
#define V_PARTS_16 1 /* and those of 8 and 16 bits */
#define V_FACTORS 0 /* whether vectors are multiplied by numbers that are no vectors */
#define V_SCALES 0 /* whether it multiplies by powers of two in its own way */
#define V_TABLES 0 /* the numbers of tables that it looks up at once */
#define V_EXP_LEAST -111.0f /* where exponentials are held, see math.h */
#define V_READS_FACTORS 0 /* whether a multiply-add reads such a number from memory */

/* Processors without floating point: there the compiler would call the C library. */
#if defined(__arm__) && (!defined(__ARM_FP) || (__ARM_FP & 4) == 0)
#define ATC_SOFT_SQRT
#elif defined(__riscv) && !defined(__riscv_flen)
#define ATC_SOFT_SQRT
#endif

typedef float vf32;   /* V_LANES floats */
typedef int32_t vi32; /* V_LANES integers */
typedef double vf64;  /* half as many doubles, but one at least */
typedef bool vmask;   /* V_LANES booleans */

/* --- Memory --- */

static inline vf32 v_zero(void) { return 0.0f; }
static inline vf32 v_set1(float x) { return x; }
static inline vf32 v_broadcast(const float *p) { return *p; } /* *p in every lane */
static inline vf32 v_load(const float *p) { return *p; }
static inline void v_store(float *p, vf32 a) { *p = a; }
/* 2 * V_LANES floats from p on: the first, third, ... of them, and the second, fourth, ... */
static inline void v_load_pairs(const float *p, vf32 *even, vf32 *odd) {
  *even = p[0];
  *odd = p[1];
}
/* The first n lanes, 0 <= n <= V_LANES; memory past n is not touched, other lanes load as 0. */
static inline vf32 v_load_n(const float *p, size_t n) { return n ? *p : 0.0f; }
static inline void v_store_n(float *p, vf32 a, size_t n) {
  if (n != 0) *p = a;
}
/* V_LANES numbers of 16 bits, float16 or bfloat16, as floats: exactly, whatever they are. */
static inline vf32 v_load_bf16(const uint16_t *p) {
  const uint32_t bits = (uint32_t)*p << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
static inline vf32 v_load_f16(const uint16_t *p) {
  const uint32_t size = (uint32_t)(*p & 0x7fff) << 13;
  float value;
  memcpy(&value, &size, sizeof value);
  value *= 0x1p112f; /* exponents are 112 apart */
  if (value >= 65536.0f) value = *p & 0x3ff ? NAN : INFINITY;
  return *p & 0x8000 ? -value : value;
}
/* Ties to even: from 2^23 on the spacing of floats is 1. */
static inline vf32 v_round(vf32 a) {
  const float size = fabsf(a), whole = 8388608.0f;
  return size < whole ? copysignf(size + whole - whole, a) : a;
}
/* V_LANES bytes as floats; and back, to the nearest (ties to even), saturating, NaN as lowest. */
static inline vf32 v_load_u8(const uint8_t *p) { return (float)*p; }
static inline vf32 v_load_i8(const int8_t *p) { return (float)*p; }
static inline void v_store_u8(uint8_t *p, vf32 a) {
  *p = (uint8_t)v_round(a > 0.0f ? (a < 255.0f ? a : 255.0f) : 0.0f);
}
static inline void v_store_i8(int8_t *p, vf32 a) {
  *p = (int8_t)v_round(a > -128.0f ? (a < 127.0f ? a : 127.0f) : -128.0f);
}
/* Four vectors of floats as 4 * V_LANES bytes in a row, each as by v_store_u8 or v_store_i8. */
static inline void v_store4_u8(uint8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  v_store_u8(p, a), v_store_u8(p + 1, b), v_store_u8(p + 2, c), v_store_u8(p + 3, d);
}
static inline void v_store4_i8(int8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  v_store_i8(p, a), v_store_i8(p + 1, b), v_store_i8(p + 2, c), v_store_i8(p + 3, d);
}
/* Parts of them: the first n lanes, 0 <= n <= V_LANES; memory past n is not touched. */
static inline vf32 v_load_u8_n(const uint8_t *p, size_t n) { return n ? (float)*p : 0.0f; }
static inline vf32 v_load_i8_n(const int8_t *p, size_t n) { return n ? (float)*p : 0.0f; }
static inline void v_store_u8_n(uint8_t *p, vf32 a, size_t n) {
  if (n != 0) v_store_u8(p, a);
}
static inline void v_store_i8_n(int8_t *p, vf32 a, size_t n) {
  if (n != 0) v_store_i8(p, a);
}
/* The upper halves of lanes: floats as bfloat16, cut off. */
static inline void v_store_halves(uint16_t *p, vf32 a) {
  uint32_t bits;
  memcpy(&bits, &a, sizeof bits);
  *p = (uint16_t)(bits >> 16);
}
static inline vf32 v_load_f16_n(const uint16_t *p, size_t n) {
  return n ? v_load_f16(p) : 0.0f;
}
static inline vf32 v_load_bf16_n(const uint16_t *p, size_t n) {
  return n ? v_load_bf16(p) : 0.0f;
}
static inline void v_store_halves_n(uint16_t *p, vf32 a, size_t n) {
  if (n != 0) v_store_halves(p, a);
}
/* y[i] = table[x[i]] for i < n, of 256 bytes; y may be x. */
static inline void v_lookup(uint8_t *y, const uint8_t *x, size_t n, const uint8_t *table) {
  for (size_t i = 0; i < n; i++) y[i] = table[x[i]];
}
/* Ask for the cache line at p, which need not be a valid address. */
static inline void v_prefetch_l1(const void *p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 3);
#else
  (void)p;
#endif
}
static inline void v_prefetch_l2(const void *p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 2);
#else
  (void)p;
#endif
}

/* --- Integers: add, sub, mul and shl wrap; shr keeps the sign --- */

static inline vi32 v_i32_set1(int32_t x) { return x; }
static inline vi32 v_i32_load(const int32_t *p) { return *p; }
static inline void v_i32_store(int32_t *p, vi32 a) { *p = a; }
static inline vi32 v_i32_load_n(const int32_t *p, size_t n) { return n ? *p : 0; }
static inline void v_i32_store_n(int32_t *p, vi32 a, size_t n) {
  if (n != 0) *p = a;
}
/* p[i] of each lane's i. */
static inline vf32 v_gather(const float *p, vi32 i) { return p[i]; }
static inline vi32 v_i32_gather(const int32_t *p, vi32 i) { return p[i]; }
/* V_LANES bytes, unsigned, as integers. */
static inline vi32 v_i32_load_u8(const uint8_t *p) { return *p; }
static inline vi32 v_i32_add(vi32 a, vi32 b) { return (vi32)((uint32_t)a + (uint32_t)b); }
static inline vi32 v_i32_sub(vi32 a, vi32 b) { return (vi32)((uint32_t)a - (uint32_t)b); }
static inline vi32 v_i32_mul(vi32 a, vi32 b) { return (vi32)((uint32_t)a * (uint32_t)b); }
static inline vi32 v_i32_and(vi32 a, vi32 b) { return a & b; }
static inline vi32 v_i32_or(vi32 a, vi32 b) { return a | b; }
static inline vi32 v_i32_xor(vi32 a, vi32 b) { return a ^ b; }
static inline vi32 v_i32_shl(vi32 a, int n) { return (vi32)((uint32_t)a << n); }
static inline vi32 v_i32_shr(vi32 a, int n) { return a >> n; }
/* acc + the sum of four products in each lane, exact but for wrapping: the bytes of a, unsigned,
 * times those of b, signed. */
static inline vi32 v_dot4(vi32 acc, vi32 a, vi32 b) {
  uint8_t u[4];
  int8_t s[4];
  uint32_t sum = (uint32_t)acc;
  memcpy(u, &a, sizeof u);
  memcpy(s, &b, sizeof s);
  for (int k = 0; k < 4; k++) sum += (uint32_t)(u[k] * s[k]);
  memcpy(&acc, &sum, sizeof acc);
  return acc;
}
/* The same for bytes of a below 128, of which sums of two products fit 16 bits. */
static inline vi32 v_dot4_small(vi32 acc, vi32 a, vi32 b) { return v_dot4(acc, a, b); }
/* acc + the sum of two products in each lane, exact but for wrapping, of integers of 16 bits. */
static inline vi32 v_dot2(vi32 acc, vi32 a, vi32 b) {
  int16_t s[2], t[2];
  uint32_t sum = (uint32_t)acc;
  memcpy(s, &a, sizeof s);
  memcpy(t, &b, sizeof t);
  for (int k = 0; k < 2; k++) sum += (uint32_t)(s[k] * t[k]);
  memcpy(&acc, &sum, sizeof acc);
  return acc;
}
/* Bytes 0 and 2 of each lane, and 1 and 3, as unsigned integers of 16 bits. */
static inline vi32 v_even_bytes(vi32 a) { return a & 0x00ff00ff; }
static inline vi32 v_odd_bytes(vi32 a) { return (vi32)(((uint32_t)a >> 8) & 0x00ff00ffu); }
/* The bits of a, read as the other type. */
static inline vi32 v_cast_i32(vf32 a) {
  vi32 bits;
  memcpy(&bits, &a, sizeof bits);
  return bits;
}
static inline vf32 v_cast_f32(vi32 a) {
  vf32 value;
  memcpy(&value, &a, sizeof value);
  return value;
}
/* Toward zero, as a C cast, and to nearest (ties to even); NaN and what does not fit give an
 * unspecified integer. */
static inline vi32 v_cvt_i32(vf32 a) {
  return a >= -2147483648.0f && a < 2147483648.0f ? (vi32)a : INT32_MIN;
}
static inline vi32 v_round_i32(vf32 a) { return v_cvt_i32(v_round(a)); }
static inline vf32 v_cvt_f32(vi32 a) { return (float)a; }

/* --- Arithmetic --- */

static inline vf32 v_add(vf32 a, vf32 b) { return a + b; }
static inline vf32 v_sub(vf32 a, vf32 b) { return a - b; }
static inline vf32 v_mul(vf32 a, vf32 b) { return a * b; }
static inline vf32 v_div(vf32 a, vf32 b) { return a / b; }
/* a * b + c and c - a * b; rounded once where the machine has fused multiply-add, else twice. */
static inline vf32 v_fma(vf32 a, vf32 b, vf32 c) { return a * b + c; }
static inline vf32 v_fnma(vf32 a, vf32 b, vf32 c) { return c - a * b; }
/* acc + a * b for the accumulators of a register tile: acc stays in its register. */
static inline vf32 v_fmadd_acc(vf32 acc, vf32 a, vf32 b) { return acc + a * b; }
/* Rounded once: digit by digit in integers where there is no instruction for it. */
static inline vf32 v_sqrt(vf32 a) {
#ifdef ATC_SOFT_SQRT
  uint32_t bits, sum = 0, root = 0;
  memcpy(&bits, &a, sizeof bits);
  if (!(a > 0.0f) || bits == 0x7f800000u) return a < 0.0f ? NAN : a;
  int32_t power = (int32_t)(bits >> 23) + (bits < 0x800000u);
  for (; bits < 0x800000u; power--) bits <<= 1; /* a denormal's first digit to its place */
  bits = ((bits & 0x7fffffu) | 0x800000u) << (power % 2 == 0 ? 2 : 1);
  for (uint32_t digit = 1u << 24; digit != 0; digit >>= 1, bits <<= 1) {
    if (sum + digit > bits) continue;
    bits -= sum + digit;
    sum += 2 * digit;
    root += digit;
  }
  root = ((uint32_t)((power + 127) >> 1) << 23) + (root >> 1 & 0x7fffffu) + (root & 1u);
  memcpy(&a, &root, sizeof a);
  return a;
#else
  return sqrtf(a);
#endif
}
static inline vf32 v_abs(vf32 a) { return fabsf(a); }
static inline vf32 v_neg(vf32 a) { return -a; }
static inline vf32 v_copysign(vf32 a, vf32 sign) { return copysignf(a, sign); }
/* NaN in either operand gives NaN, as ONNX and numpy have it. */
static inline vf32 v_max(vf32 a, vf32 b) { return (a > b || a != a) ? a : b; }
static inline vf32 v_min(vf32 a, vf32 b) { return (a < b || a != a) ? a : b; }
/* The same at the price of one instruction, for a constant that is not NaN. */
static inline vf32 v_max_const(vf32 constant, vf32 a) { return constant > a ? constant : a; }
static inline vf32 v_min_const(vf32 constant, vf32 a) { return constant < a ? constant : a; }
static inline vf32 v_relu(vf32 a) { return v_max_const(v_zero(), a); }
static inline vf32 v_floor(vf32 a) {
  const float near = v_round(a);
  return near > a ? near - 1.0f : near;
}
static inline vf32 v_ceil(vf32 a) { return -v_floor(-a); }
static inline vf32 v_trunc(vf32 a) { return copysignf(v_floor(fabsf(a)), a); }

/* --- Masks: comparisons with NaN are false --- */

static inline vmask v_lt(vf32 a, vf32 b) { return a < b; }
static inline vmask v_le(vf32 a, vf32 b) { return a <= b; }
static inline vmask v_gt(vf32 a, vf32 b) { return a > b; }
static inline vmask v_ge(vf32 a, vf32 b) { return a >= b; }
static inline vmask v_eq(vf32 a, vf32 b) { return a == b; }
static inline vmask v_isnan(vf32 a) { return a != a; }
static inline vmask v_mask_n(size_t n) { return n > 0; } /* the first n lanes, n <= V_LANES */
static inline vmask v_mask_and(vmask a, vmask b) { return a && b; }
static inline vmask v_mask_or(vmask a, vmask b) { return a || b; }
static inline vmask v_mask_not(vmask a) { return !a; }
static inline bool v_mask_any(vmask a) { return a; }
static inline vf32 v_select(vmask mask, vf32 a, vf32 b) { return mask ? a : b; } /* a where set */
/* What v_store_i8 is to store for a: 0 where that is NaN. */
static inline vf32 v_without_nan(vf32 a) { return v_select(v_isnan(a), v_zero(), a); }

/* --- Doubles: a vector of them holds half as many lanes, low the first ones --- */

static inline vf64 v_f64_set1(double x) { return x; }
static inline vf64 v_f64_low(vf32 a) { return (double)a; }
static inline vf64 v_f64_high(vf32 a) { return (double)a; } /* nobody reads it */
static inline vf32 v_f64_join(vf64 low, vf64 high) { /* rounded to floats */
  (void)high;
  return (float)low;
}
static inline vf64 v_f64_add(vf64 a, vf64 b) { return a + b; }
static inline vf64 v_f64_sub(vf64 a, vf64 b) { return a - b; }
static inline vf64 v_f64_mul(vf64 a, vf64 b) { return a * b; }
static inline vf64 v_f64_div(vf64 a, vf64 b) { return a / b; }
/* a * b + c and c - a * b, rounded as v_fma. */
static inline vf64 v_f64_fma(vf64 a, vf64 b, vf64 c) { return a * b + c; }
static inline vf64 v_f64_fnma(vf64 a, vf64 b, vf64 c) { return c - a * b; }
/* a * 2^n for a number n in the last bits of `bits`; a and the result are normal. */
static inline vf64 v_f64_ldexp(vf64 a, vf64 bits) {
  uint64_t power, scaled;
  memcpy(&power, &bits, sizeof power);
  memcpy(&scaled, &a, sizeof scaled);
  scaled += power << 52;
  memcpy(&a, &scaled, sizeof a);
  return a;
}

/* --- Across lanes: sums are pairwise, maxima and minima propagate NaN --- */

static inline float v_reduce_add(vf32 a) { return a; }
/* Lane i is the sum of the V_LANES floats at p + i * V_LANES. */
static inline vf32 v_reduce_add_each(const float *p) { return v_load(p); }
static inline float v_reduce_max(vf32 a) { return a; }
static inline float v_reduce_min(vf32 a) { return a; }
/* Lane i is lane at[i] of a, 0 <= at[i] < V_LANES. */
static inline vf32 v_permute(vf32 a, vi32 at) {
  (void)at;
  return a;
}
/* dst[j * dst_stride + i] = src[i * src_stride + j] for i, j < V_LANES; no overlap. */
static inline void v_transpose(float *dst, size_t dst_stride, const float *src,
                               size_t src_stride) {
  (void)dst_stride;
  (void)src_stride;
  *dst = *src;
}

#endif
