/* simd.h - the vector vocabulary for NEON, of AArch64 and of ARMv7: four lanes.
 *
 * Kernels and math functions are written in these names only. Each instruction set has its own
 * simd.h with the same names and the same meaning; V_LANES is the number of floats in a vector.
 * Pointers need no alignment. Float arithmetic follows IEEE 754 in the default rounding mode and
 * must be compiled without -ffast-math.
 */
#ifndef SIMD_H
#define SIMD_H

#include <arm_neon.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define V_LANES 4      /* floats in a vector */
#if defined(__aarch64__)
#define V_REGISTERS 32 /* vector registers of the machine */
#else
#define V_REGISTERS 16
#endif
#define V_ROUNDS_BF16 0 /* whether the table itself rounds to bfloat16 */
#define V_ROUNDS_F16 1 /* whether the table itself rounds to float16 */
#if defined(__aarch64__) && defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#define V_HALVES 1 /* and computes in it */
#else
#define V_HALVES 0
#endif
#define V_PARTS_32 0 /* whether it loads and stores parts of vectors of 32 bits */
#define V_PARTS_16 0 /* and those of 8 and 16 bits */
#if defined(__aarch64__)
#define V_FACTORS 1 /* whether vectors are multiplied by numbers that are no vectors */
#else
#define V_FACTORS 0
#endif
#define V_SCALES 0 /* whether it multiplies by powers of two in its own way */
#define V_TABLES 0 /* the numbers of tables that it looks up at once */
#define V_EXP_LEAST -111.0f /* where exponentials are held, see math.h */
#define V_READS_FACTORS 0 /* whether a multiply-add reads such a number from memory */

/* What AArch64 has and ARMv7 (with VFPv4) hasn't, under the compilers' names for it. Its vectors of
 * floats flush denormals to zero, as operands and as results; lanes that are computed one after the
 * other, quotients, square roots and doubles, don't. */
#if !defined(__aarch64__)
typedef struct simd_doubles { double low, high; } float64x2_t;

/* Comparisons by the instructions themselves: GCC's take lanes of floats one after the other. */
#define NEON_COMPARISON(name, instruction)                                    \
  static inline uint32x4_t name(float32x4_t a, float32x4_t b) {               \
    uint32x4_t mask;                                                          \
    __asm__(instruction ".f32 %q0, %q1, %q2" : "=w"(mask) : "w"(a), "w"(b)); \
    return mask;                                                              \
  }
NEON_COMPARISON(neon_gt, "vcgt")
NEON_COMPARISON(neon_ge, "vcge")
NEON_COMPARISON(neon_eq, "vceq")
#define vcgtq_f32(a, b) neon_gt(a, b)
#define vcgeq_f32(a, b) neon_ge(a, b)
#define vceqq_f32(a, b) neon_eq(a, b)
#define vcltq_f32(a, b) neon_gt(b, a)
#define vcleq_f32(a, b) neon_ge(b, a)

static inline float32x4_t vdivq_f32(float32x4_t a, float32x4_t b) {
  a = vsetq_lane_f32(vgetq_lane_f32(a, 0) / vgetq_lane_f32(b, 0), a, 0);
  a = vsetq_lane_f32(vgetq_lane_f32(a, 1) / vgetq_lane_f32(b, 1), a, 1);
  a = vsetq_lane_f32(vgetq_lane_f32(a, 2) / vgetq_lane_f32(b, 2), a, 2);
  return vsetq_lane_f32(vgetq_lane_f32(a, 3) / vgetq_lane_f32(b, 3), a, 3);
}
static inline float32x4_t vsqrtq_f32(float32x4_t a) {
  a = vsetq_lane_f32(sqrtf(vgetq_lane_f32(a, 0)), a, 0);
  a = vsetq_lane_f32(sqrtf(vgetq_lane_f32(a, 1)), a, 1);
  a = vsetq_lane_f32(sqrtf(vgetq_lane_f32(a, 2)), a, 2);
  return vsetq_lane_f32(sqrtf(vgetq_lane_f32(a, 3)), a, 3);
}
static inline float32x4_t vmaxnmq_f32(float32x4_t a, float32x4_t number) {
  return vbslq_f32(vcgeq_f32(a, number), a, number);
}
/* Floats from 2^23 on are whole; smaller ones are rounded by the addition of 2^23. The sign is put
 * back for results of zero, here and in the three others. */
static inline float32x4_t vrndnq_f32(float32x4_t a) {
  const float32x4_t whole = vdupq_n_f32(8388608.0f), size = vabsq_f32(a);
  const float32x4_t rounded = vsubq_f32(vaddq_f32(size, whole), whole);
  const uint32x4_t sign = vdupq_n_u32(0x80000000u);
  return vbslq_f32(vcltq_f32(size, whole), vbslq_f32(sign, a, rounded), a);
}
static inline float32x4_t vrndmq_f32(float32x4_t a) {
  const float32x4_t r = vrndnq_f32(a), one = vdupq_n_f32(1.0f);
  const float32x4_t below = vbslq_f32(vcgtq_f32(r, a), vsubq_f32(r, one), r);
  return vbslq_f32(vdupq_n_u32(0x80000000u), a, below);
}
static inline float32x4_t vrndpq_f32(float32x4_t a) { return vnegq_f32(vrndmq_f32(vnegq_f32(a))); }
static inline float32x4_t vrndq_f32(float32x4_t a) {
  return vbslq_f32(vdupq_n_u32(0x80000000u), a, vrndmq_f32(vabsq_f32(a)));
}
static inline int32x4_t vcvtnq_s32_f32(float32x4_t a) { return vcvtq_s32_f32(vrndnq_f32(a)); }
static inline int32x4_t vpaddq_s32(int32x4_t a, int32x4_t b) {
  return vcombine_s32(vpadd_s32(vget_low_s32(a), vget_high_s32(a)),
                      vpadd_s32(vget_low_s32(b), vget_high_s32(b)));
}
static inline float vaddvq_f32(float32x4_t a) {
  const float32x2_t two = vpadd_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(vpadd_f32(two, two), 0);
}
static inline float vmaxvq_f32(float32x4_t a) {
  const float32x2_t two = vpmax_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(vpmax_f32(two, two), 0);
}
static inline float vminvq_f32(float32x4_t a) {
  const float32x2_t two = vpmin_f32(vget_low_f32(a), vget_high_f32(a));
  return vget_lane_f32(vpmin_f32(two, two), 0);
}
static inline uint32_t vmaxvq_u32(uint32x4_t a) {
  const uint32x2_t two = vpmax_u32(vget_low_u32(a), vget_high_u32(a));
  return vget_lane_u32(vpmax_u32(two, two), 0);
}
static inline uint8x16_t vqtbl1q_u8(uint8x16_t table, uint8x16_t at) {
  const uint8x8x2_t halves = {{vget_low_u8(table), vget_high_u8(table)}};
  return vcombine_u8(vtbl2_u8(halves, vget_low_u8(at)), vtbl2_u8(halves, vget_high_u8(at)));
}
static inline float64x2_t vdupq_n_f64(double x) { return (float64x2_t){x, x}; }
static inline float64x2_t vcvt_f64_f32(float32x2_t a) {
  return (float64x2_t){vget_lane_f32(a, 0), vget_lane_f32(a, 1)};
}
static inline float64x2_t vcvt_high_f64_f32(float32x4_t a) {
  return vcvt_f64_f32(vget_high_f32(a));
}
static inline float32x2_t vcvt_f32_f64(float64x2_t a) {
  const float lanes[2] = {(float)a.low, (float)a.high};
  return vld1_f32(lanes);
}
static inline float32x4_t vcvt_high_f32_f64(float32x2_t low, float64x2_t high) {
  return vcombine_f32(low, vcvt_f32_f64(high));
}
static inline float64x2_t vaddq_f64(float64x2_t a, float64x2_t b) {
  return (float64x2_t){a.low + b.low, a.high + b.high};
}
static inline float64x2_t vsubq_f64(float64x2_t a, float64x2_t b) {
  return (float64x2_t){a.low - b.low, a.high - b.high};
}
static inline float64x2_t vmulq_f64(float64x2_t a, float64x2_t b) {
  return (float64x2_t){a.low * b.low, a.high * b.high};
}
static inline float64x2_t vdivq_f64(float64x2_t a, float64x2_t b) {
  return (float64x2_t){a.low / b.low, a.high / b.high};
}
static inline float64x2_t vfmaq_f64(float64x2_t c, float64x2_t a, float64x2_t b) {
  return (float64x2_t){fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}
static inline float64x2_t vfmsq_f64(float64x2_t c, float64x2_t a, float64x2_t b) {
  return (float64x2_t){fma(-a.low, b.low, c.low), fma(-a.high, b.high, c.high)};
}
static inline int64x2_t vreinterpretq_s64_f64(float64x2_t a) {
  int64x2_t bits;
  memcpy(&bits, &a, sizeof bits);
  return bits;
}
static inline float64x2_t vreinterpretq_f64_s64(int64x2_t bits) {
  float64x2_t a;
  memcpy(&a, &bits, sizeof a);
  return a;
}
#endif

typedef float32x4_t vf32; /* V_LANES floats */
typedef int32x4_t vi32;   /* V_LANES integers */
typedef float64x2_t vf64; /* half as many doubles */
typedef uint32x4_t vmask; /* V_LANES booleans: all bits of the lane set, or none */

/* --- Memory --- */

static inline vf32 v_zero(void) { return vdupq_n_f32(0.0f); }
static inline vf32 v_set1(float x) { return vdupq_n_f32(x); }
static inline vf32 v_broadcast(const float *p) { return vld1q_dup_f32(p); } /* *p in every lane */
static inline vf32 v_load(const float *p) { return vld1q_f32(p); }
static inline void v_store(float *p, vf32 a) { vst1q_f32(p, a); }
/* 2 * V_LANES floats from p on: the first, third, ... of them, and the second, fourth, ... */
static inline void v_load_pairs(const float *p, vf32 *even, vf32 *odd) {
  const float32x4x2_t pairs = vld2q_f32(p);
  *even = pairs.val[0];
  *odd = pairs.val[1];
}
/* float16 in lanes of 16 bits. 32-bit compilers have no intrinsics for them, unless a flag that not all
 * of them know says which float16 is meant. */
static inline vf32 from_f16(uint16x4_t a) {
#if defined(__aarch64__)
  return vcvt_f32_f16(vreinterpret_f16_u16(a));
#else
  float32x4_t r;
  __asm__("vcvt.f32.f16 %q0, %P1" : "=w"(r) : "w"(a));
  return r;
#endif
}
static inline uint16x4_t to_f16(vf32 a) {
#if defined(__aarch64__)
  return vreinterpret_u16_f16(vcvt_f16_f32(a));
#else
  uint16x4_t r;
  __asm__("vcvt.f16.f32 %P0, %q1" : "=w"(r) : "w"(a));
  return r;
#endif
}
/* V_LANES numbers of 16 bits, float16 or bfloat16, as floats: exactly, whatever they are. */
static inline vf32 v_load_f16(const uint16_t *p) { return from_f16(vld1_u16(p)); }
static inline vf32 v_load_bf16(const uint16_t *p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
/* V_LANES bytes as floats; and back, to the nearest (ties to even), saturating, NaN as 0. */
static inline vf32 v_load_u8(const uint8_t *p) {
  uint32_t bytes;
  memcpy(&bytes, p, sizeof bytes);
  const uint16x8_t wide = vmovl_u8(vcreate_u8(bytes));
  return vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)));
}
static inline vf32 v_load_i8(const int8_t *p) {
  uint32_t bytes;
  memcpy(&bytes, p, sizeof bytes);
  const int16x8_t wide = vmovl_s8(vcreate_s8(bytes));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
/* One, two or four vectors as bytes in a row, once `zero`, of a byte, is added to what was rounded. */
static inline int16x8_t neon_whole(vf32 a, vf32 b, int zero) {
  const int16x8_t ab = vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(a)), vqmovn_s32(vcvtnq_s32_f32(b)));
  return zero ? vqaddq_s16(ab, vdupq_n_s16((int16_t)zero)) : ab;
}
static inline void neon_store_u8(uint8_t *p, vf32 a, int zero) {
  const uint8x8_t narrow = vqmovun_s16(neon_whole(a, a, zero));
  const uint32_t bytes = vget_lane_u32(vreinterpret_u32_u8(narrow), 0);
  memcpy(p, &bytes, sizeof bytes);
}
static inline void neon_store_i8(int8_t *p, vf32 a, int zero) {
  const int8x8_t narrow = vqmovn_s16(neon_whole(a, a, zero));
  const uint32_t bytes = vget_lane_u32(vreinterpret_u32_s8(narrow), 0);
  memcpy(p, &bytes, sizeof bytes);
}
static inline void neon_store2_u8(uint8_t *p, vf32 a, vf32 b, int zero) {
  vst1_u8(p, vqmovun_s16(neon_whole(a, b, zero)));
}
static inline void neon_store2_i8(int8_t *p, vf32 a, vf32 b, int zero) {
  vst1_s8(p, vqmovn_s16(neon_whole(a, b, zero)));
}
static inline void neon_store4_u8(uint8_t *p, vf32 a, vf32 b, vf32 c, vf32 d, int zero) {
  vst1q_u8(p, vcombine_u8(vqmovun_s16(neon_whole(a, b, zero)), vqmovun_s16(neon_whole(c, d, zero))));
}
static inline void neon_store4_i8(int8_t *p, vf32 a, vf32 b, vf32 c, vf32 d, int zero) {
  vst1q_s8(p, vcombine_s8(vqmovn_s16(neon_whole(a, b, zero)), vqmovn_s16(neon_whole(c, d, zero))));
}
static inline void v_store_u8(uint8_t *p, vf32 a) { neon_store_u8(p, a, 0); }
static inline void v_store_i8(int8_t *p, vf32 a) { neon_store_i8(p, a, 0); }
/* Four vectors of floats as 4 * V_LANES bytes in a row, each as by v_store_u8 or v_store_i8. */
static inline void v_store4_u8(uint8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  neon_store4_u8(p, a, b, c, d, 0);
}
static inline void v_store4_i8(int8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  neon_store4_i8(p, a, b, c, d, 0);
}
/* Four rows of 16 bytes, `stride` apart, as 16 words of a byte of each, and back; only the first
 * `rows` of them have memory, the others are zero. */
static inline void neon_interleave(uint8_t *words, const uint8_t *x, ptrdiff_t stride, int rows) {
  uint8x16x4_t r;
  for (int i = 0; i < 4; i++) r.val[i] = i < rows ? vld1q_u8(x + i * stride) : vdupq_n_u8(0);
  vst4q_u8(words, r);
}
static inline void neon_deinterleave(uint8_t *y, ptrdiff_t stride, const uint8_t *words, int rows) {
  const uint8x16x4_t r = vld4q_u8(words);
  vst1q_u8(y, r.val[0]);
  if (rows > 1) vst1q_u8(y + stride, r.val[1]);
  if (rows > 2) vst1q_u8(y + 2 * stride, r.val[2]);
  if (rows > 3) vst1q_u8(y + 3 * stride, r.val[3]);
}
/* The upper halves of lanes: floats as bfloat16, cut off. */
static inline void v_store_halves(uint16_t *p, vf32 a) {
  vst1_u16(p, vshrn_n_u32(vreinterpretq_u32_f32(a), 16));
}
/* y[i] = table[x[i]] for i < n, of 256 bytes; y may be x. */
static inline void v_lookup(uint8_t *y, const uint8_t *x, size_t n, const uint8_t *table) {
  size_t i = 0;
#if defined(__aarch64__)
  const uint8x16x4_t t0 = vld1q_u8_x4(table), t1 = vld1q_u8_x4(table + 64);
  const uint8x16x4_t t2 = vld1q_u8_x4(table + 128), t3 = vld1q_u8_x4(table + 192);
  const uint8x16_t step = vdupq_n_u8(64);
  for (; i + 16 <= n; i += 16) {
    uint8x16_t p = vld1q_u8(x + i);
    uint8x16_t found = vqtbl4q_u8(t0, p);
    found = vqtbx4q_u8(found, t1, p = vsubq_u8(p, step));
    found = vqtbx4q_u8(found, t2, p = vsubq_u8(p, step));
    vst1q_u8(y + i, vqtbx4q_u8(found, t3, vsubq_u8(p, step)));
  }
#endif
  for (; i < n; i++) y[i] = table[x[i]];
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

static inline vi32 v_i32_set1(int32_t x) { return vdupq_n_s32(x); }
static inline vi32 v_i32_load(const int32_t *p) { return vld1q_s32(p); }
static inline void v_i32_store(int32_t *p, vi32 a) { vst1q_s32(p, a); }
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
  uint32_t bytes;
  memcpy(&bytes, p, sizeof bytes);
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes)))));
}
static inline vi32 v_i32_add(vi32 a, vi32 b) { return vaddq_s32(a, b); }
static inline vi32 v_i32_sub(vi32 a, vi32 b) { return vsubq_s32(a, b); }
static inline vi32 v_i32_mul(vi32 a, vi32 b) { return vmulq_s32(a, b); }
static inline vi32 v_i32_and(vi32 a, vi32 b) { return vandq_s32(a, b); }
static inline vi32 v_i32_or(vi32 a, vi32 b) { return vorrq_s32(a, b); }
static inline vi32 v_i32_xor(vi32 a, vi32 b) { return veorq_s32(a, b); }
static inline vi32 v_i32_shl(vi32 a, int n) { return vshlq_s32(a, vdupq_n_s32(n)); }
static inline vi32 v_i32_shr(vi32 a, int n) { return vshlq_s32(a, vdupq_n_s32(-n)); }
/* acc + the sum of four products in each lane, exact but for wrapping: the bytes of a, unsigned,
 * times those of b, signed. */
static inline vi32 v_dot4(vi32 acc, vi32 a, vi32 b) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return vusdotq_s32(acc, vreinterpretq_u8_s32(a), vreinterpretq_s8_s32(b));
#elif defined(__ARM_FEATURE_DOTPROD) /* as signed bytes, 128 smaller, plus 128 times those of b */
  const int8x16_t least = vdupq_n_s8(-128), s = vreinterpretq_s8_s32(b);
  const int8x16_t smaller = veorq_s8(vreinterpretq_s8_s32(a), least);
  return vsubq_s32(vdotq_s32(acc, smaller, s), vdotq_s32(vdupq_n_s32(0), least, s));
#else /* bytes 0 and 2 of each lane, and 1 and 3 */
  const int16x8_t u = vreinterpretq_s16_s32(a), s = vreinterpretq_s16_s32(b);
  const int16x8_t even = vreinterpretq_s16_s32(vandq_s32(a, vdupq_n_s32(0x00ff00ff)));
  const int16x8_t odd = vreinterpretq_s16_u16(vshrq_n_u16(vreinterpretq_u16_s16(u), 8));
  const int16x8_t evens = vmulq_s16(even, vshrq_n_s16(vshlq_n_s16(s, 8), 8)); /* 255 * -128 fits */
  return vpadalq_s16(vpadalq_s16(acc, evens), vmulq_s16(odd, vshrq_n_s16(s, 8)));
#endif
}
/* The same for bytes of a below 128, of which sums of two products fit 16 bits. */
static inline vi32 v_dot4_small(vi32 acc, vi32 a, vi32 b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(acc, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
#else
  return v_dot4(acc, a, b);
#endif
}
/* The products of signed bytes: of the lower halves of a and b, two sums of two for each lane there,
 * and of the upper halves. */
static inline vi32 neon_dot4_low(vi32 acc, vi32 a, vi32 b) {
  const int8x16_t s = vreinterpretq_s8_s32(a), t = vreinterpretq_s8_s32(b);
  return vpadalq_s16(acc, vmull_s8(vget_low_s8(s), vget_low_s8(t)));
}
static inline vi32 neon_dot4_high(vi32 acc, vi32 a, vi32 b) {
  const int8x16_t s = vreinterpretq_s8_s32(a), t = vreinterpretq_s8_s32(b);
#if defined(__aarch64__)
  return vpadalq_s16(acc, vmull_high_s8(s, t));
#else
  return vpadalq_s16(acc, vmull_s8(vget_high_s8(s), vget_high_s8(t)));
#endif
}
/* The steps of these, for orders in which none waits for the one before: the products of signed bytes
 * of the lower and the upper halves of a and b, those added to others' (if no byte of the b's is -128,
 * two products fit 16 bits), and the sums of two neighbours added to those in acc. */
static inline int16x8_t neon_mul_low(vi32 a, vi32 b) {
  return vmull_s8(vget_low_s8(vreinterpretq_s8_s32(a)), vget_low_s8(vreinterpretq_s8_s32(b)));
}
static inline int16x8_t neon_add_low(int16x8_t first, vi32 a, vi32 b) {
  const int8x16_t s = vreinterpretq_s8_s32(a), t = vreinterpretq_s8_s32(b);
  return vmlal_s8(first, vget_low_s8(s), vget_low_s8(t));
}
#if defined(__aarch64__)
static inline int16x8_t neon_mul_high(vi32 a, vi32 b) {
  return vmull_high_s8(vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
}
static inline int16x8_t neon_add_high(int16x8_t first, vi32 a, vi32 b) {
  return vmlal_high_s8(first, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
}
#else
static inline int16x8_t neon_mul_high(vi32 a, vi32 b) {
  return vmull_s8(vget_high_s8(vreinterpretq_s8_s32(a)), vget_high_s8(vreinterpretq_s8_s32(b)));
}
static inline int16x8_t neon_add_high(int16x8_t first, vi32 a, vi32 b) {
  const int8x16_t s = vreinterpretq_s8_s32(a), t = vreinterpretq_s8_s32(b);
  return vmlal_s8(first, vget_high_s8(s), vget_high_s8(t));
}
#endif
static inline vi32 neon_add_pairs(vi32 acc, int16x8_t products) {
#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__) /* as NEON_IN_PLACE */
  __asm__("sadalp %0.4s, %1.8h" : "+w"(acc) : "w"(products));
  return acc;
#else
  return vpadalq_s16(acc, products);
#endif
}
/* The lower and the upper lanes of a, each beside a zero: sums of two lanes that the above add to. */
static inline vi32 neon_apart_low(vi32 a) { return vzipq_s32(a, vdupq_n_s32(0)).val[0]; }
static inline vi32 neon_apart_high(vi32 a) { return vzipq_s32(a, vdupq_n_s32(0)).val[1]; }
/* acc + the sum of four products in each lane, as v_dot4, for signed bytes of a. */
static inline vi32 neon_dot4(vi32 acc, vi32 a, vi32 b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(acc, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));
#else
  const vi32 zero = vdupq_n_s32(0);
  return vaddq_s32(acc, vpaddq_s32(neon_dot4_low(zero, a, b), neon_dot4_high(zero, a, b)));
#endif
}
/* A lane of a in every lane. */
#if defined(__aarch64__)
#define neon_word(a, lane) vdupq_laneq_s32(a, lane)
#else
#define neon_word(a, lane) \
  vdupq_lane_s32((lane) < 2 ? vget_low_s32(a) : vget_high_s32(a), (lane) % 2)
#endif
/* Words in lanes of a vector, four or two; and acc + the sums of four products in each lane, exact
 * but for wrapping: the bytes of one lane of a times those of b. */
#define neon_words4(p) v_i32_load((const int32_t *)(const void *)(p))
static inline vi32 neon_words2(const void *p) {
  int32x2_t words;
  memcpy(&words, p, sizeof words);
  return vcombine_s32(words, vdup_n_s32(0));
}
/* Four words, or two, each to be spread over all lanes of a vector; `flip` changes bits of them. */
#if defined(__aarch64__)
typedef int32x4x4_t neon_words4_t;
typedef int32x4x2_t neon_words2_t;
static inline neon_words4_t neon_spread4(const void *p) { return vld4q_dup_s32(p); }
static inline neon_words2_t neon_spread2(const void *p) { return vld2q_dup_s32(p); }
static inline neon_words4_t neon_flipped4(neon_words4_t a, vi32 flip) {
  for (int i = 0; i < 4; i++) a.val[i] = veorq_s32(a.val[i], flip);
  return a;
}
static inline neon_words2_t neon_flipped2(neon_words2_t a, vi32 flip) {
  for (int i = 0; i < 2; i++) a.val[i] = veorq_s32(a.val[i], flip);
  return a;
}
#define neon_word_of(words, lane) ((words).val[lane])
#else
typedef vi32 neon_words4_t;
typedef vi32 neon_words2_t;
static inline vi32 neon_spread4(const void *p) { return v_i32_load(p); }
static inline vi32 neon_spread2(const void *p) { return neon_words2(p); }
static inline vi32 neon_flipped4(vi32 a, vi32 flip) { return veorq_s32(a, flip); }
static inline vi32 neon_flipped2(vi32 a, vi32 flip) { return veorq_s32(a, flip); }
#define neon_word_of(words, lane) neon_word(words, lane)
#endif
/* GCC's own products by lanes move accumulators about where tiles leave few registers: here they are
 * changed in place, by an instruction on the vector b, read as `type`, and a lane of a, of `element`. */
#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
#define NEON_IN_PLACE(instruction, acc, b, type, a, element, lane) __extension__({                \
    __typeof__(acc) sum_ = acc;                                                                   \
    __asm__(instruction " %0.4s, %1." type ", %2." element "[" #lane "]" : "+w"(sum_) : "w"(b), "w"(a)); \
    sum_;                                                                                         \
  })
#define neon_dot4_lane(acc, a, b, lane) NEON_IN_PLACE("sdot", acc, b, "16b", a, "4b", lane)
#define neon_usdot4_lane(acc, a, b, lane) NEON_IN_PLACE("sudot", acc, b, "16b", a, "4b", lane)
#else
#define neon_dot4_lane(acc, a, b, lane) /* signed bytes of a */ \
  vdotq_laneq_s32(acc, vreinterpretq_s8_s32(b), vreinterpretq_s8_s32(a), lane)
#define neon_usdot4_lane(acc, a, b, lane) /* unsigned ones */ \
  vsudotq_laneq_s32(acc, vreinterpretq_s8_s32(b), vreinterpretq_u8_s32(a), lane)
#endif
#if defined(__ARM_FEATURE_MATMUL_INT8)
/* acc + the products of two rows of eight bytes, signed or unsigned, with two columns of eight, signed:
 * row 0 with both columns, then row 1. */
#define neon_smmla(acc, a, b) vmmlaq_s32(acc, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b))
#define neon_usmmla(acc, a, b) vusmmlaq_s32(acc, vreinterpretq_u8_s32(a), vreinterpretq_s8_s32(b))
/* The lower halves of two vectors, or the upper ones; and halves that lie apart. */
static inline vi32 neon_low_halves(vi32 a, vi32 b) {
  return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
static inline vi32 neon_high_halves(vi32 a, vi32 b) {
  return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
/* Words of two vectors in turn: of the lower halves, of the upper ones, every other one. Every other one of
 * eight words; and four that lie apart. */
#define neon_mixed_low(a, b) vzip1q_s32(a, b)
#define neon_mixed_high(a, b) vzip2q_s32(a, b)
#define neon_mixed_even(a, b) vtrn1q_s32(a, b)
#define neon_mixed_odd(a, b) vtrn2q_s32(a, b)
#define neon_even_words(p) vuzp1q_s32(neon_words4(p), neon_words4((p) + sizeof(vi32)))
#define neon_odd_words(p) vuzp2q_s32(neon_words4(p), neon_words4((p) + sizeof(vi32)))
static inline vi32 neon_gathered(const void *a, const void *b, const void *c, const void *d) {
  vi32 words = vld1q_dup_s32(a);
  words = vld1q_lane_s32(b, words, 1);
  words = vld1q_lane_s32(c, words, 2);
  return vld1q_lane_s32(d, words, 3);
}
static inline vi32 neon_words2_of(const void *low, const void *high) {
  int32x2_t a, b;
  memcpy(&a, low, sizeof a);
  memcpy(&b, high, sizeof b);
  return vcombine_s32(a, b);
}
#endif
/* acc + the sum of two products in each lane, exact but for wrapping, of integers of 16 bits. */
static inline vi32 v_dot2(vi32 acc, vi32 a, vi32 b) {
  const int16x8_t s = vreinterpretq_s16_s32(a), t = vreinterpretq_s16_s32(b);
  const vi32 low = vmull_s16(vget_low_s16(s), vget_low_s16(t));
  const vi32 high = vmull_s16(vget_high_s16(s), vget_high_s16(t));
  return vaddq_s32(acc, vpaddq_s32(low, high));
}
/* acc + the two numbers of 16 bits in a lane of a, times those of b: the first times those in the
 * lower half, the second times those in the upper. Exact but for wrapping. */
#define neon_dot2_lane(acc, a, b, lane) \
  neon_mla2(acc, vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b), lane)
/* Likewise, but for the second number and the upper half. */
#define neon_dot2_first(acc, a, b, lane) \
  neon_mla1(acc, vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b), lane)
#if defined(__aarch64__)
#define neon_mla1(acc, a, b, lane) vmlal_laneq_s16(acc, vget_low_s16(b), a, 2 * (lane))
#define neon_mla2(acc, a, b, lane) \
  vmlal_high_laneq_s16(vmlal_laneq_s16(acc, vget_low_s16(b), a, 2 * (lane)), b, a, 2 * (lane) + 1)
#else
#define neon_half(a, lane) ((lane) < 2 ? vget_low_s16(a) : vget_high_s16(a))
#define neon_mla1(acc, a, b, lane) \
  vmlal_lane_s16(acc, vget_low_s16(b), neon_half(a, lane), 2 * (lane) % 4)
#define neon_mla2(acc, a, b, lane) \
  vmlal_lane_s16(vmlal_lane_s16(acc, vget_low_s16(b), neon_half(a, lane), 2 * (lane) % 4), \
                 vget_high_s16(b), neon_half(a, lane), 2 * (lane) % 4 + 1)
#endif
/* The bytes of a, the first eight or the last eight, less those of b: integers of 16 bits. */
static inline int16x8_t neon_first_i8(vi32 a, vi32 b) {
  return vsubl_s8(vget_low_s8(vreinterpretq_s8_s32(a)), vget_low_s8(vreinterpretq_s8_s32(b)));
}
static inline int16x8_t neon_first_u8(vi32 a, vi32 b) {
  const uint8x16_t u = vreinterpretq_u8_s32(a), z = vreinterpretq_u8_s32(b);
  return vreinterpretq_s16_u16(vsubl_u8(vget_low_u8(u), vget_low_u8(z)));
}
static inline int16x8_t neon_last_i8(vi32 a, vi32 b) {
  return vsubl_s8(vget_high_s8(vreinterpretq_s8_s32(a)), vget_high_s8(vreinterpretq_s8_s32(b)));
}
static inline int16x8_t neon_last_u8(vi32 a, vi32 b) {
  const uint8x16_t u = vreinterpretq_u8_s32(a), z = vreinterpretq_u8_s32(b);
  return vreinterpretq_s16_u16(vsubl_u8(vget_high_u8(u), vget_high_u8(z)));
}
/* acc + the products of the lower halves of a and b, and of the upper ones. */
static inline vi32 neon_mla_low(vi32 acc, int16x8_t a, int16x8_t b) {
  return vmlal_s16(acc, vget_low_s16(a), vget_low_s16(b));
}
static inline vi32 neon_mla_high(vi32 acc, int16x8_t a, int16x8_t b) {
#if defined(__aarch64__)
  return vmlal_high_s16(acc, a, b);
#else
  return vmlal_s16(acc, vget_high_s16(a), vget_high_s16(b));
#endif
}
/* Bytes 0 and 2 of each lane, and 1 and 3, as unsigned integers of 16 bits. */
static inline vi32 v_even_bytes(vi32 a) { return vandq_s32(a, vdupq_n_s32(0x00ff00ff)); }
static inline vi32 v_odd_bytes(vi32 a) {
  return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(a), 8));
}
/* The bits of a, read as the other type. */
static inline vi32 v_cast_i32(vf32 a) { return vreinterpretq_s32_f32(a); }
static inline vf32 v_cast_f32(vi32 a) { return vreinterpretq_f32_s32(a); }
/* Toward zero, as a C cast, and to nearest (ties to even); NaN and what does not fit give an
 * unspecified integer. */
static inline vi32 v_cvt_i32(vf32 a) { return vcvtq_s32_f32(a); }
static inline vi32 v_round_i32(vf32 a) { return vcvtnq_s32_f32(a); }
static inline vf32 v_cvt_f32(vi32 a) { return vcvtq_f32_s32(a); }

/* --- Arithmetic --- */

static inline vf32 v_add(vf32 a, vf32 b) { return vaddq_f32(a, b); }
static inline vf32 v_sub(vf32 a, vf32 b) { return vsubq_f32(a, b); }
static inline vf32 v_mul(vf32 a, vf32 b) { return vmulq_f32(a, b); }
static inline vf32 v_div(vf32 a, vf32 b) { return vdivq_f32(a, b); }
/* a * b + c and c - a * b; rounded once where the machine has fused multiply-add, else twice. */
static inline vf32 v_fma(vf32 a, vf32 b, vf32 c) { return vfmaq_f32(c, a, b); }
static inline vf32 v_fnma(vf32 a, vf32 b, vf32 c) { return vfmsq_f32(c, a, b); }
/* acc + a * b for the accumulators of a register tile: acc stays in its register. */
static inline vf32 v_fmadd_acc(vf32 acc, vf32 a, vf32 b) {
#if defined(NEON_IN_PLACE)
  __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(acc) : "w"(a), "w"(b));
  return acc;
#else
  return vfmaq_f32(acc, a, b);
#endif
}
#if V_FACTORS
/* The number at p, and acc + the number * b, rounded as v_fma. */
typedef float vfactor;
static inline vfactor v_factor(const float *p) { return *p; }
static inline vf32 v_fmadd_factor(vf32 acc, vfactor a, vf32 b) { return vfmaq_n_f32(acc, b, a); }
#endif
/* acc + a times a lane of b. */
#if defined(NEON_IN_PLACE)
#define neon_fma_lane(acc, a, b, lane) NEON_IN_PLACE("fmla", acc, a, "4s", b, "s", lane)
#elif defined(__aarch64__)
#define neon_fma_lane(acc, a, b, lane) vfmaq_laneq_f32(acc, a, b, lane)
#endif
static inline vf32 v_sqrt(vf32 a) { return vsqrtq_f32(a); }
static inline vf32 v_abs(vf32 a) { return vabsq_f32(a); }
static inline vf32 v_neg(vf32 a) { return vnegq_f32(a); }
static inline vf32 v_copysign(vf32 a, vf32 sign) {
  return vbslq_f32(vdupq_n_u32(0x80000000u), sign, a);
}
/* NaN in either operand gives NaN, as ONNX and numpy have it. */
static inline vf32 v_max(vf32 a, vf32 b) { return vmaxq_f32(a, b); }
static inline vf32 v_min(vf32 a, vf32 b) { return vminq_f32(a, b); }
/* The same at the price of one instruction, for a constant that is not NaN. */
static inline vf32 v_max_const(vf32 constant, vf32 a) { return vmaxq_f32(constant, a); }
static inline vf32 v_min_const(vf32 constant, vf32 a) { return vminq_f32(constant, a); }
static inline vf32 v_relu(vf32 a) { return v_max_const(v_zero(), a); }
static inline vf32 v_floor(vf32 a) { return vrndmq_f32(a); }
static inline vf32 v_ceil(vf32 a) { return vrndpq_f32(a); }
static inline vf32 v_trunc(vf32 a) { return vrndq_f32(a); }
static inline vf32 v_round(vf32 a) { return vrndnq_f32(a); } /* ties to even */

/* --- Masks: comparisons with NaN are false --- */

static inline vmask v_lt(vf32 a, vf32 b) { return vcltq_f32(a, b); }
static inline vmask v_le(vf32 a, vf32 b) { return vcleq_f32(a, b); }
static inline vmask v_gt(vf32 a, vf32 b) { return vcgtq_f32(a, b); }
static inline vmask v_ge(vf32 a, vf32 b) { return vcgeq_f32(a, b); }
static inline vmask v_eq(vf32 a, vf32 b) { return vceqq_f32(a, b); }
static inline vmask v_isnan(vf32 a) { return vmvnq_u32(vceqq_f32(a, a)); }
static inline vmask v_mask_n(size_t n) { /* the first n lanes, n <= V_LANES */
  static const uint32_t lane[V_LANES] = {0, 1, 2, 3};
  return vcltq_u32(vld1q_u32(lane), vdupq_n_u32((uint32_t)n));
}
static inline vmask v_mask_and(vmask a, vmask b) { return vandq_u32(a, b); }
static inline vmask v_mask_or(vmask a, vmask b) { return vorrq_u32(a, b); }
static inline vmask v_mask_not(vmask a) { return vmvnq_u32(a); }
static inline bool v_mask_any(vmask a) { return vmaxvq_u32(a) != 0; }
static inline vf32 v_select(vmask mask, vf32 a, vf32 b) { /* a where set, else b */
  return vbslq_f32(mask, a, b);
}
/* What v_store_i8 is to store for a: it stores 0 where that is NaN. */
static inline vf32 v_without_nan(vf32 a) { return a; }

/* --- Doubles: a vector of them holds half as many lanes, low the first ones --- */

static inline vf64 v_f64_set1(double x) { return vdupq_n_f64(x); }
static inline vf64 v_f64_low(vf32 a) { return vcvt_f64_f32(vget_low_f32(a)); }
static inline vf64 v_f64_high(vf32 a) { return vcvt_high_f64_f32(a); }
static inline vf32 v_f64_join(vf64 low, vf64 high) { /* rounded to floats */
  return vcvt_high_f32_f64(vcvt_f32_f64(low), high);
}
static inline vf64 v_f64_add(vf64 a, vf64 b) { return vaddq_f64(a, b); }
static inline vf64 v_f64_sub(vf64 a, vf64 b) { return vsubq_f64(a, b); }
static inline vf64 v_f64_mul(vf64 a, vf64 b) { return vmulq_f64(a, b); }
static inline vf64 v_f64_div(vf64 a, vf64 b) { return vdivq_f64(a, b); }
/* a * b + c and c - a * b, rounded as v_fma. */
static inline vf64 v_f64_fma(vf64 a, vf64 b, vf64 c) { return vfmaq_f64(c, a, b); }
static inline vf64 v_f64_fnma(vf64 a, vf64 b, vf64 c) { return vfmsq_f64(c, a, b); }
/* a * 2^n for a number n in the last bits of `bits`; a and the result are normal. */
static inline vf64 v_f64_ldexp(vf64 a, vf64 bits) {
  const int64x2_t power = vshlq_n_s64(vreinterpretq_s64_f64(bits), 52);
  return vreinterpretq_f64_s64(vaddq_s64(vreinterpretq_s64_f64(a), power));
}

/* --- Across lanes: sums are pairwise, maxima and minima propagate NaN --- */

static inline float v_reduce_add(vf32 a) { return vaddvq_f32(a); }
/* Lane i is the sum of the V_LANES floats at p + i * V_LANES. */
static inline vf32 v_reduce_add_each(const float *p) {
  const float32x4x4_t columns = vld4q_f32(p);
  return vaddq_f32(vaddq_f32(columns.val[0], columns.val[1]),
                   vaddq_f32(columns.val[2], columns.val[3]));
}
static inline float v_reduce_max(vf32 a) { return vmaxvq_f32(a); }
static inline float v_reduce_min(vf32 a) { return vminvq_f32(a); }
/* Lane i is lane at[i] of a, 0 <= at[i] < V_LANES. */
static inline vf32 v_permute(vf32 a, vi32 at) {
  const int32x4_t bytes = vmlaq_s32(vdupq_n_s32(0x03020100), at, vdupq_n_s32(0x04040404));
  return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(a), vreinterpretq_u8_s32(bytes)));
}
/* dst[j * dst_stride + i] = src[i * src_stride + j] for i, j < V_LANES; no overlap. */
static inline void v_transpose(float *dst, size_t dst_stride, const float *src,
                               size_t src_stride) {
  if (src_stride == V_LANES) {
    const float32x4x4_t columns = vld4q_f32(src);
    v_store(dst, columns.val[0]);
    v_store(dst + dst_stride, columns.val[1]);
    v_store(dst + 2 * dst_stride, columns.val[2]);
    v_store(dst + 3 * dst_stride, columns.val[3]);
    return;
  }
  if (dst_stride == V_LANES) {
    const vf32 first = v_load(src), second = v_load(src + src_stride);
    const vf32 third = v_load(src + 2 * src_stride), last = v_load(src + 3 * src_stride);
#if defined(NEON_IN_PLACE) /* GCC's own moves what it has loaded to neighbouring registers */
    register vf32 r0 __asm__("v0") = first, r1 __asm__("v1") = second;
    register vf32 r2 __asm__("v2") = third, r3 __asm__("v3") = last;
    __asm__("st4 {%1.4s - %4.4s}, %0" : "=Q"(*(float(*)[16])dst) : "w"(r0), "w"(r1), "w"(r2), "w"(r3));
#else
    const float32x4x4_t rows = {{first, second, third, last}};
    vst4q_f32(dst, rows);
#endif
    return;
  }
  const float32x4x2_t r01 = vtrnq_f32(v_load(src), v_load(src + src_stride));
  const float32x4x2_t r23 = vtrnq_f32(v_load(src + 2 * src_stride), v_load(src + 3 * src_stride));
  v_store(dst, vcombine_f32(vget_low_f32(r01.val[0]), vget_low_f32(r23.val[0])));
  v_store(dst + dst_stride, vcombine_f32(vget_low_f32(r01.val[1]), vget_low_f32(r23.val[1])));
  v_store(dst + 2 * dst_stride,
          vcombine_f32(vget_high_f32(r01.val[0]), vget_high_f32(r23.val[0])));
  v_store(dst + 3 * dst_stride,
          vcombine_f32(vget_high_f32(r01.val[1]), vget_high_f32(r23.val[1])));
}

/* The nearest float16 (ties to even; infinite from 65520 on), as a float; and stored in 16 bits. */
static inline vf32 v_round_f16(vf32 a) { return from_f16(to_f16(a)); }
static inline void v_store_f16(uint16_t *p, vf32 a) { vst1_u16(p, to_f16(a)); }

#if V_HALVES
/* V_LANES float16, and arithmetic of them: results are the nearest ones. */
typedef float16x4_t vf16;
static inline vf16 v_f16_round(vf32 a) { return vcvt_f16_f32(a); }
static inline vf32 v_f16_widen(vf16 a) { return vcvt_f32_f16(a); }
static inline vf16 v_f16_set1(float x) { return vdup_n_f16((float16_t)x); }
static inline vf16 v_f16_add(vf16 a, vf16 b) { return vadd_f16(a, b); }
static inline vf16 v_f16_sub(vf16 a, vf16 b) { return vsub_f16(a, b); }
static inline vf16 v_f16_mul(vf16 a, vf16 b) { return vmul_f16(a, b); }
static inline vf16 v_f16_div(vf16 a, vf16 b) { return vdiv_f16(a, b); }
static inline vf16 v_f16_div_const(vf16 a, float b) { return vdiv_f16(a, v_f16_set1(b)); }
#endif

#endif
