/* simd_small.h - sums of products of bytes for small cores, and how they are requantized to bytes.
 *
 * Arm's DSP instructions (SMLAD and its relatives) and vectors (MVE) where the compiler has them,
 * else the same in plain C: the same bits, so that kernels for small cores run anywhere.
 */
#ifndef ATC_SIMD_SMALL_H
#define ATC_SIMD_SMALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- pairs of 16 bits ------------------------------------------------------------------------ */

/* Four bytes, the first in the low bits. */
static inline uint32_t q_load4(const void *x) {
  uint32_t word;
  memcpy(&word, x, sizeof word);
  return word;
}

/* The last one, two or three bytes of a row: nothing behind them is read. */
static inline uint32_t q_load_tail(const void *x, int count) {
  const uint8_t *const b = x;
  uint32_t word = b[0];
  if (count > 1) word |= (uint32_t)b[1] << 8;
  if (count > 2) word |= (uint32_t)b[2] << 16;
  return word;
}

#if defined(__ARM_FEATURE_DSP) && !defined(ATC_EMULATE_DSP)

#include <arm_acle.h>

/* Bytes 0 and 2 of a word, or 1 and 3, as a pair: of signed bytes (s), of unsigned ones (u). */
static inline uint32_t q_even_s(uint32_t x) { return (uint32_t)__sxtb16((int8x4_t)x); }
static inline uint32_t q_even_u(uint32_t x) { return (uint32_t)__uxtb16((uint8x4_t)x); }
static inline uint32_t q_odd_s(uint32_t x) {
  uint32_t y;
  __asm__("sxtb16 %0, %1, ror #8" : "=r"(y) : "r"(x));
  return y;
}
static inline uint32_t q_odd_u(uint32_t x) {
  uint32_t y;
  __asm__("uxtb16 %0, %1, ror #8" : "=r"(y) : "r"(x));
  return y;
}

/* The same, each with a pair of numbers added. */
static inline uint32_t q_even_add_s(uint32_t a, uint32_t x) {
  return (uint32_t)__sxtab16((int16x2_t)a, (int8x4_t)x);
}
static inline uint32_t q_even_add_u(uint32_t a, uint32_t x) {
  return (uint32_t)__uxtab16((uint16x2_t)a, (uint8x4_t)x);
}
static inline uint32_t q_odd_add_s(uint32_t a, uint32_t x) {
  uint32_t y;
  __asm__("sxtab16 %0, %1, %2, ror #8" : "=r"(y) : "r"(a), "r"(x));
  return y;
}
static inline uint32_t q_odd_add_u(uint32_t a, uint32_t x) {
  uint32_t y;
  __asm__("uxtab16 %0, %1, %2, ror #8" : "=r"(y) : "r"(a), "r"(x));
  return y;
}

/* The larger of four bytes each. */
static inline uint32_t q_max4_s(uint32_t a, uint32_t b) {
  (void)__ssub8((int8x4_t)a, (int8x4_t)b);
  return (uint32_t)__sel((uint8x4_t)a, (uint8x4_t)b);
}
static inline uint32_t q_max4_u(uint32_t a, uint32_t b) {
  (void)__usub8((uint8x4_t)a, (uint8x4_t)b);
  return (uint32_t)__sel((uint8x4_t)a, (uint8x4_t)b);
}

/* sum + a.low * b.low + a.high * b.high; one of the products alone. */
static inline int32_t q_dot2(uint32_t a, uint32_t b, int32_t sum) {
  return __smlad((int16x2_t)a, (int16x2_t)b, sum);
}
/* By its name: the intrinsics make the compiler keep account of the overflow flag. */
static inline int32_t q_low(uint32_t a, uint32_t b, int32_t sum) {
  int32_t y;
  __asm__("smlabb %0, %1, %2, %3" : "=r"(y) : "r"(a), "r"(b), "r"(sum));
  return y;
}
static inline int32_t q_high(uint32_t a, uint32_t b, int32_t sum) {
  int32_t y;
  __asm__("smlatt %0, %1, %2, %3" : "=r"(y) : "r"(a), "r"(b), "r"(sum));
  return y;
}

#else

static inline int32_t q_half(uint32_t x, int at) {
  const uint32_t bits = x >> at & 0xffffu;
  return (int32_t)(bits ^ 0x8000u) - 0x8000;
}
static inline uint32_t q_pair(int32_t low, int32_t high) {
  return ((uint32_t)low & 0xffffu) | (uint32_t)high << 16;
}
static inline int32_t q_signed(uint32_t x) { return (int32_t)((x & 0xffu) ^ 0x80u) - 0x80; }
static inline uint32_t q_even_s(uint32_t x) { return q_pair(q_signed(x), q_signed(x >> 16)); }
static inline uint32_t q_odd_s(uint32_t x) { return q_even_s(x >> 8); }
static inline uint32_t q_even_u(uint32_t x) { return x & 0xff00ffu; }
static inline uint32_t q_odd_u(uint32_t x) { return x >> 8 & 0xff00ffu; }
static inline uint32_t q_add2(uint32_t a, uint32_t b) {
  return q_pair(q_half(a, 0) + q_half(b, 0), q_half(a, 16) + q_half(b, 16));
}
static inline uint32_t q_even_add_s(uint32_t a, uint32_t x) { return q_add2(a, q_even_s(x)); }
static inline uint32_t q_odd_add_s(uint32_t a, uint32_t x) { return q_add2(a, q_odd_s(x)); }
static inline uint32_t q_even_add_u(uint32_t a, uint32_t x) { return q_add2(a, q_even_u(x)); }
static inline uint32_t q_odd_add_u(uint32_t a, uint32_t x) { return q_add2(a, q_odd_u(x)); }
static inline uint32_t q_max4_u(uint32_t a, uint32_t b) {
  uint32_t y = 0;
  for (int k = 0; k < 32; k += 8) {
    const uint32_t p = a >> k & 0xffu, q = b >> k & 0xffu;
    y |= (p > q ? p : q) << k;
  }
  return y;
}
static inline uint32_t q_max4_s(uint32_t a, uint32_t b) {
  const uint32_t flip = 0x80808080u;
  return q_max4_u(a ^ flip, b ^ flip) ^ flip;
}
static inline int32_t q_low(uint32_t a, uint32_t b, int32_t sum) {
  return sum + q_half(a, 0) * q_half(b, 0);
}
static inline int32_t q_high(uint32_t a, uint32_t b, int32_t sum) {
  return sum + q_half(a, 16) * q_half(b, 16);
}
static inline int32_t q_dot2(uint32_t a, uint32_t b, int32_t sum) {
  return q_high(a, b, q_low(a, b, sum));
}

#endif

/* ---- whole numbers --------------------------------------------------------------------------- */

static inline int32_t q_clamp(int32_t x, int32_t low, int32_t high) {
  return x < low ? low : x > high ? high : x;
}

/* x / 2^n, rounded down: compilers shift negative numbers so, but C doesn't say it. */
static inline int32_t q_down(int32_t x, int n) {
#if defined(__GNUC__)
  return x >> n;
#else
  return (int32_t)(((uint32_t)x ^ 0x80000000u) >> n) - (int32_t)(0x80000000u >> n);
#endif
}

/* x * y / 2^32, rounded down. */
static inline int32_t q_high_word(int32_t x, int32_t y) {
#if defined(__ARM_ARCH_6M__) || defined(ATC_EMULATE_SHORT)
  const int32_t x_low = x & 0xffff, y_low = y & 0xffff, x_high = q_down(x, 16), y_high = q_down(y, 16);
  const uint32_t low = (uint32_t)x_low * (uint32_t)y_low; /* no product has more than 32 bits */
  const int32_t middle = x_high * y_low + (int32_t)(low >> 16);
  return x_high * y_high + q_down(middle, 16) + q_down(x_low * y_high + (middle & 0xffff), 16);
#elif defined(__GNUC__)
  return (int32_t)((int64_t)x * y >> 32);
#else
  const uint64_t product = (uint64_t)((int64_t)x * y) + ((uint64_t)1 << 63);
  return (int32_t)((int64_t)(product >> 32) - 0x80000000);
#endif
}

/* Bytes 0 and 2 of a word, or 1 and 3, as the upper halves of a pair of 16 bits. */
static inline uint32_t q_even_upper(uint32_t x) {
#if defined(__ARM_FEATURE_DSP) && !defined(ATC_EMULATE_DSP)
  uint32_t y; /* in one instruction: compilers shift first */
  __asm__("and %0, %1, %2, lsl #8" : "=r"(y) : "r"(0xff00ff00u), "r"(x));
  return y;
#else
  return x << 8 & 0xff00ff00u;
#endif
}
static inline uint32_t q_odd_upper(uint32_t x) { return x & 0xff00ff00u; }

/* sum + one number of a pair * y / 2^16, the quotient rounded down; a product of two such numbers. */
#if defined(__ARM_FEATURE_DSP) && !defined(ATC_EMULATE_DSP)

#define Q_OF_PAIRS(NAME, OP) \
static inline int32_t NAME(int32_t sum, uint32_t pair, int32_t y) { \
  int32_t z; \
  __asm__(OP " %0, %1, %2, %3" : "=r"(z) : "r"(y), "r"(pair), "r"(sum)); \
  return z; \
}
Q_OF_PAIRS(q_scaled_low, "smlawb")
Q_OF_PAIRS(q_scaled_high, "smlawt")
static inline int32_t q_product_low(uint32_t a, uint32_t b) {
  int32_t z;
  __asm__("smulbb %0, %1, %2" : "=r"(z) : "r"(a), "r"(b));
  return z;
}
static inline int32_t q_product_high(uint32_t a, uint32_t b) {
  int32_t z;
  __asm__("smultt %0, %1, %2" : "=r"(z) : "r"(a), "r"(b));
  return z;
}

#else

static inline int32_t q_scaled_low(int32_t sum, uint32_t pair, int32_t y) {
  return sum + q_high_word(q_half(pair, 0) * 65536, y);
}
static inline int32_t q_scaled_high(int32_t sum, uint32_t pair, int32_t y) {
  return sum + q_high_word(q_half(pair, 16) * 65536, y);
}
static inline int32_t q_product_low(uint32_t a, uint32_t b) { return q_low(a, b, 0); }
static inline int32_t q_product_high(uint32_t a, uint32_t b) { return q_high(a, b, 0); }

#endif

/* x / 2^n rounded down, within the numbers of a signed or of an unsigned byte. */
#if defined(__ARM_FEATURE_SAT) && !defined(ATC_EMULATE_DSP)

#define Q_SATURATED(NAME, X, N) __extension__({ \
  int32_t q_y; \
  __asm__(NAME " %0, #8, %1, asr %2" : "=r"(q_y) : "r"(X), "I"(N)); \
  q_y; \
})
#define Q_BYTE_S(X, N) Q_SATURATED("ssat", X, N)
#define Q_BYTE_U(X, N) Q_SATURATED("usat", X, N)

#else

#define Q_BYTE_S(X, N) q_clamp(q_down(X, N), -128, 127)
#define Q_BYTE_U(X, N) q_clamp(q_down(X, N), 0, 255)

#endif

/* The low bytes of four numbers, the first in the low bits. */
static inline uint32_t q_join4(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
#if defined(__ARM_FEATURE_SAT) && !defined(ATC_EMULATE_DSP)
  __asm__("bfi %0, %1, #8, #24" : "+r"(a) : "r"(b));
  __asm__("bfi %0, %1, #16, #16" : "+r"(a) : "r"(c));
  __asm__("bfi %0, %1, #24, #8" : "+r"(a) : "r"(d));
  return a;
#else
  return (a & 0xffu) | (b & 0xffu) << 8 | (c & 0xffu) << 16 | d << 24;
#endif
}

/* Bytes of four numbers whose whole parts are their upper halves, saturated, the first in the low
 * bits: unsigned ones, or signed ones of numbers 128 too large. */
static inline uint32_t q_upper4_u(int32_t a, int32_t b, int32_t c, int32_t d) {
#if defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_SAT) && !defined(ATC_EMULATE_DSP)
  uint32_t even, odd;
  __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(even) : "r"(c), "r"(a));
  __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(odd) : "r"(d), "r"(b));
  __asm__("usat16 %0, #8, %1" : "=r"(even) : "r"(even));
  __asm__("usat16 %0, #8, %1" : "=r"(odd) : "r"(odd));
  return even | odd << 8;
#else
  return q_join4((uint32_t)Q_BYTE_U(a, 16), (uint32_t)Q_BYTE_U(b, 16), (uint32_t)Q_BYTE_U(c, 16),
                 (uint32_t)Q_BYTE_U(d, 16));
#endif
}
static inline uint32_t q_upper4_s(int32_t a, int32_t b, int32_t c, int32_t d) {
  return q_upper4_u(a, b, c, d) ^ 0x80808080u;
}

/* sum + x * y. By its name: compilers add constants afterwards. */
static inline int32_t q_muladd1(int32_t sum, int32_t x, int32_t y) {
#if defined(__ARM_FEATURE_SAT) && !defined(ATC_EMULATE_DSP)
  int32_t z;
  __asm__("mla %0, %1, %2, %3" : "=r"(z) : "r"(x), "r"(y), "r"(sum));
  return z;
#else
  return sum + x * y;
#endif
}

/* sum + x * y / 2^32, the quotient rounded down. */
static inline int32_t q_muladd1_high(int32_t sum, int32_t x, int32_t y) {
#if defined(__ARM_FEATURE_DSP) && !defined(ATC_EMULATE_DSP)
  int32_t z;
  __asm__("smmla %0, %1, %2, %3" : "=r"(z) : "r"(x), "r"(y), "r"(sum));
  return z;
#else
  return sum + q_high_word(x, y);
#endif
}

/* ---- vectors of 16 bytes --------------------------------------------------------------------- */

#if defined(__ARM_FEATURE_MVE) && !defined(ATC_EMULATE_MVE)

#include <arm_mve.h>

typedef int8x16_t q_bytes;
typedef int32x4_t q_sums;

static inline q_bytes q_load16(const void *x) { return vldrbq_s8((const int8_t *)x); }
/* The first `count` bytes, then zeros. */
static inline q_bytes q_load16_tail(const void *x, int count) {
  return vldrbq_z_s8((const int8_t *)x, vctp8q((uint32_t)count));
}
static inline q_bytes q_flip(q_bytes x) { return veorq_s8(x, vdupq_n_s8(-128)); }
static inline q_bytes q_max16_s(q_bytes a, q_bytes b) { return vmaxq_s8(a, b); }
static inline q_bytes q_max16_u(q_bytes a, q_bytes b) {
  return vreinterpretq_s8_u8(vmaxq_u8(vreinterpretq_u8_s8(a), vreinterpretq_u8_s8(b)));
}
static inline void q_store16(void *y, q_bytes x) { vstrbq_s8((int8_t *)y, x); }
static inline int32_t q_dot16(q_bytes a, q_bytes b, int32_t sum) {
  return vmladavaq_s8(sum, a, b);
}
static inline q_sums q_join(int32_t a, int32_t b, int32_t c, int32_t d) {
  q_sums v = vdupq_n_s32(a);
  v = vsetq_lane_s32(b, v, 1);
  v = vsetq_lane_s32(c, v, 2);
  return vsetq_lane_s32(d, v, 3);
}
static inline q_sums q_same(int32_t a) { return vdupq_n_s32(a); }
static inline q_sums q_load_sums(const int32_t *x) { return vldrwq_s32(x); }
static inline q_sums q_load4_s(const void *x) { return vldrbq_s32((const int8_t *)x); }
static inline q_sums q_load4_u(const void *x) {
  return vreinterpretq_s32_u32(vldrbq_u32((const uint8_t *)x));
}
static inline q_sums q_add(q_sums a, q_sums b) { return vaddq_s32(a, b); }
static inline q_sums q_muladd(q_sums a, q_sums b, q_sums sum) { return vaddq_s32(sum, vmulq_s32(a, b)); }
static inline q_sums q_multiply(q_sums a, q_sums b) { return vmulq_s32(a, b); }
static inline q_sums q_multiply_by(q_sums a, int32_t b) { return vmulq_n_s32(a, b); }
static inline q_sums q_muladd_by(q_sums sum, q_sums a, int32_t b) { return vmlaq_n_s32(sum, a, b); }
/* a * b / 2^32, rounded down. */
static inline q_sums q_high_word4(q_sums a, int32_t b) { return vmulhq_s32(a, vdupq_n_s32(b)); }
/* x / 2^n, rounded down. */
static inline q_sums q_down4(q_sums x, int n) { return vshlq_r_s32(x, -n); }
/* The lowest bits. */
static inline q_sums q_odd4(q_sums x) { return vandq_s32(x, vdupq_n_s32(1)); }
/* Whether any number has none of some bits. Compilers fail on comparing a predicate. */
static inline bool q_any_clear4(q_sums x, int32_t bits) {
  const uint32x4_t kept = vreinterpretq_u32_s32(vandq_s32(x, vdupq_n_s32(bits)));
  return vminvq_u32(UINT32_MAX, kept) == 0;
}
static inline q_sums q_clamp4(q_sums x, int32_t low, int32_t high) {
  return vminq_s32(vmaxq_s32(x, vdupq_n_s32(low)), vdupq_n_s32(high));
}
static inline void q_store_sums(int32_t *y, q_sums x) { vstrwq_s32(y, x); }
/* The low bytes of the sums. */
static inline void q_store4(void *y, q_sums x) { vstrbq_s32((int8_t *)y, x); }
/* Bytes so far from a place in a table. */
static inline q_sums q_lookup4(const void *table, q_sums x) {
  return vldrbq_gather_offset_s32((const int8_t *)table, vreinterpretq_u32_s32(x));
}

#else /* the same in C, where Q_EACH is a loop over the lanes of a vector y */

typedef struct q_bytes {
  int8_t lane[16];
} q_bytes;
typedef struct q_sums {
  int32_t lane[4];
} q_sums;

#define Q_EACH(N, VALUE) \
  for (int k = 0; k < N; k++) y.lane[k] = VALUE; \
  return y

static inline q_bytes q_load16(const void *x) {
  q_bytes y;
  memcpy(&y, x, sizeof y);
  return y;
}
static inline q_bytes q_load16_tail(const void *x, int count) {
  q_bytes y = {{0}};
  memcpy(&y, x, (size_t)count);
  return y;
}
static inline q_bytes q_flip(q_bytes x) {
  q_bytes y;
  Q_EACH(16, (int8_t)(x.lane[k] ^ -128));
}
static inline q_bytes q_max16_s(q_bytes a, q_bytes b) {
  q_bytes y;
  Q_EACH(16, a.lane[k] > b.lane[k] ? a.lane[k] : b.lane[k]);
}
static inline q_bytes q_max16_u(q_bytes a, q_bytes b) {
  q_bytes y;
  Q_EACH(16, (uint8_t)a.lane[k] > (uint8_t)b.lane[k] ? a.lane[k] : b.lane[k]);
}
static inline void q_store16(void *y, q_bytes x) { memcpy(y, &x, sizeof x); }
static inline int32_t q_dot16(q_bytes a, q_bytes b, int32_t sum) {
  for (int k = 0; k < 16; k++) sum += a.lane[k] * b.lane[k];
  return sum;
}
static inline q_sums q_join(int32_t a, int32_t b, int32_t c, int32_t d) {
  const q_sums y = {{a, b, c, d}};
  return y;
}
static inline q_sums q_same(int32_t a) { return q_join(a, a, a, a); }
static inline q_sums q_load_sums(const int32_t *x) { return q_join(x[0], x[1], x[2], x[3]); }
static inline q_sums q_load4_s(const void *x) {
  const int8_t *const b = x;
  return q_join(b[0], b[1], b[2], b[3]);
}
static inline q_sums q_load4_u(const void *x) {
  const uint8_t *const b = x;
  return q_join(b[0], b[1], b[2], b[3]);
}
static inline q_sums q_add(q_sums a, q_sums b) {
  q_sums y;
  Q_EACH(4, a.lane[k] + b.lane[k]);
}
static inline q_sums q_muladd(q_sums a, q_sums b, q_sums sum) {
  q_sums y;
  Q_EACH(4, sum.lane[k] + a.lane[k] * b.lane[k]);
}
static inline q_sums q_multiply(q_sums a, q_sums b) {
  q_sums y;
  Q_EACH(4, a.lane[k] * b.lane[k]);
}
static inline q_sums q_multiply_by(q_sums a, int32_t b) { return q_multiply(a, q_same(b)); }
static inline q_sums q_muladd_by(q_sums sum, q_sums a, int32_t b) { return q_muladd(a, q_same(b), sum); }
static inline q_sums q_high_word4(q_sums a, int32_t b) {
  q_sums y;
  Q_EACH(4, q_high_word(a.lane[k], b));
}
static inline q_sums q_down4(q_sums x, int n) {
  q_sums y;
  Q_EACH(4, q_down(x.lane[k], n));
}
static inline q_sums q_odd4(q_sums x) {
  q_sums y;
  Q_EACH(4, x.lane[k] & 1);
}
static inline bool q_any_clear4(q_sums x, int32_t bits) {
  bool any = false;
  for (int k = 0; k < 4; k++) any = any || (x.lane[k] & bits) == 0;
  return any;
}
static inline q_sums q_clamp4(q_sums x, int32_t low, int32_t high) {
  q_sums y;
  Q_EACH(4, q_clamp(x.lane[k], low, high));
}
static inline void q_store_sums(int32_t *y, q_sums x) { memcpy(y, &x, sizeof x); }
static inline void q_store4(void *y, q_sums x) {
  int8_t *const b = y;
  for (int k = 0; k < 4; k++) b[k] = (int8_t)(uint8_t)(x.lane[k] & 0xff);
}
static inline q_sums q_lookup4(const void *table, q_sums x) {
  const int8_t *const b = table;
  q_sums y;
  Q_EACH(4, b[x.lane[k]]);
}

#endif

/* ---- sums to bytes --------------------------------------------------------------------------- */

/* The whole number next to a float, ties to even, within 32 bits; NaN gives 0. */
static inline int32_t q_round(float x) {
#if defined(__ARM_FP) && defined(__arm__) && !defined(ATC_EMULATE_DSP)
  int32_t y;
  float bits;
  __asm__("vcvtr.s32.f32 %0, %1" : "=t"(bits) : "t"(x));
  memcpy(&y, &bits, sizeof y);
  return y;
#elif (defined(__arm__) && !defined(__ARM_FP)) || defined(__riscv) || defined(ATC_EMULATE_SOFT)
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const bool negative = bits >> 31 != 0;
  const int exponent = (int)(bits >> 23 & 0xffu), shift = 150 - exponent;
  const uint32_t m = (bits & 0x7fffffu) | 0x800000u; /* |x| = m / 2^shift */
  if (exponent < 126) return 0; /* less than a half */
  if (exponent > 157) return bits << 1 > 0xff000000u ? 0 : negative ? INT32_MIN : INT32_MAX;
  uint32_t size;
  if (shift > 0) {
    const uint32_t half = 1u << (shift - 1), rest = m & ((half << 1) - 1);
    size = m >> shift;
    size += rest > half || (rest == half && (size & 1u));
  } else {
    size = m << -shift;
  }
  return negative ? -(int32_t)size : (int32_t)size;
#else
  const float whole = 8388608.0f; /* 2^23: there the last bit of a float is 1 */
  if (x >= whole) return x >= 2147483648.0f ? INT32_MAX : (int32_t)x;
  if (x <= -whole) return x <= -2147483648.0f ? INT32_MIN : (int32_t)x;
  if (x != x) return 0;
  return x < 0.0f ? (int32_t)(x - whole + whole) : (int32_t)(x + whole - whole);
#endif
}

/* The same as a float, for what is brought into a small range next: no zero keeps its sign. */
static inline float q_near(float x) { return (float)q_round(x); }

/* The same as a float of any size; a zero keeps its sign. */
static inline float q_rounded(float x) {
  const float whole = 8388608.0f, y = x < 0.0f ? x - whole + whole : x + whole - whole;
  if (!(x > -whole && x < whole)) return x;
  return y == 0.0f && x <= 0.0f ? (x < 0.0f ? -0.0f : x) : y;
}

static inline bool q_is_nan(float x) {
#if defined(__ARM_FP) || !(defined(__arm__) || defined(__riscv) || defined(ATC_EMULATE_SOFT))
  return x != x;
#else
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits << 1 > 0xff000000u;
#endif
}

/* round(x) + zero within the numbers of a signed or of an unsigned byte; NaN gives 0. */
static inline int32_t q_quantize_s(float x, int32_t zero) {
  if (q_is_nan(x)) return 0;
#if defined(__ARM_FP) && defined(__ARM_FEATURE_DSP) && !defined(ATC_EMULATE_DSP)
  int32_t y;
  __asm__("qadd %0, %1, %2\n\tssat %0, #8, %0" : "=r"(y) : "r"(q_round(x)), "r"(zero));
  return y;
#else
  return q_clamp(q_round(x), -128 - zero, 127 - zero) + zero;
#endif
}
static inline int32_t q_quantize_u(float x, int32_t zero) {
  if (q_is_nan(x)) return 0;
#if defined(__ARM_FP) && defined(__ARM_FEATURE_DSP) && !defined(ATC_EMULATE_DSP)
  int32_t y;
  __asm__("qadd %0, %1, %2\n\tusat %0, #8, %0" : "=r"(y) : "r"(q_round(x)), "r"(zero));
  return y;
#else
  return q_clamp(q_round(x), -zero, 255 - zero) + zero;
#endif
}

#if !defined(__ARM_FP) && (defined(__arm__) || defined(__riscv) || defined(ATC_EMULATE_SOFT))

/* round((float)sum * scale), ties to even, at most 512 from 0.
 *
 * The float product is rounded to 24 bits and then to a whole number: the product of the sum's and
 * the scale's significant bits is exact, and the first rounding matters only where it meets the
 * middle between two whole numbers.
 */
#if defined(__GNUC__)
__attribute__((noinline, unused))
#endif
static int32_t q_scaled_whole(int32_t sum, float scale)
{
  uint32_t bits, size = sum < 0 ? 0u - (uint32_t)sum : (uint32_t)sum;
  memcpy(&bits, &scale, sizeof bits);
  const bool negative = (sum < 0) != (bits >> 31 != 0);
  int shift = 150 - (int)(bits >> 23 & 0xffu); /* scale = m / 2^shift, less its sign */
  uint32_t m = bits & 0x7fffffu;
  if (shift == 150) shift = 149; /* a denormal */
  else m |= 0x800000u;
  while (size >> 24 != 0) { /* more than a float holds: its nearest, ties to even */
    uint32_t drop = 1;
    while (size >> 24 >> drop != 0) drop++;
    const uint32_t half = 1u << (drop - 1), rest = size & ((1u << drop) - 1);
    size >>= drop;
    size += rest > half || (rest == half && (size & 1u));
    shift -= (int)drop;
  }
  uint64_t p = (uint64_t)size * m; /* below 2^48 */
  int32_t whole;
  if (p == 0 || shift > 49) {
    whole = 0; /* below a half, or exactly that */
  } else if (shift < 1 || p >> shift >= 512) {
    whole = 512; /* out of range */
  } else {
    uint32_t fine; /* the product in steps of 2^-16, cut off */
    fine = shift >= 16 ? (uint32_t)(p >> (shift - 16)) : (uint32_t)(p << (16 - shift));
    if ((fine & 0xffffu) - 0x7ffeu <= 3u) { /* near a middle: round to 24 bits first */
      int drop = 0;
      while (p >> 24 >> drop != 0) drop++;
      if (drop > 0) {
        const uint64_t half = (uint64_t)1 << (drop - 1), rest = p & ((half << 1) - 1);
        p >>= drop;
        p += rest > half || (rest == half && (p & 1u));
        p <<= drop;
      }
      const uint64_t half = (uint64_t)1 << (shift - 1), rest = p & ((half << 1) - 1);
      whole = (int32_t)(p >> shift);
      whole += rest > half || (rest == half && (whole & 1));
    } else {
      whole = (int32_t)((fine + 0x8000u) >> 16);
    }
  }
  return negative ? -whole : whole;
}

/* size * m / 2^16, less than size / 256 + 1 too small; m are a float's 24 significant bits. */
static inline uint32_t q_scaled_size(uint32_t size, uint32_t bits) {
#if defined(__ARM_ARCH_6M__) || defined(ATC_EMULATE_SHORT)
  const uint32_t m = bits << 9 >> 17 | 0x8000u; /* no product has more than 32 bits */
  return ((size >> 16) * m << 8) + ((size & 0xffffu) * m >> 8);
#else
  return (uint32_t)((uint64_t)size * ((bits & 0x7fffffu) | 0x800000u) >> 16);
#endif
}

#endif

/* round((float)sum * scale), ties to even, within [low, high], both less than 512 from 0.
 *
 * Without hardware for floats that is done in integers: in few bits, unless these leave open on which
 * side of the middle between two whole numbers the product lies.
 */
static inline int32_t q_requantize(int32_t sum, float scale, int32_t low, int32_t high) {
#if defined(__ARM_FP) || !(defined(__arm__) || defined(__riscv) || defined(ATC_EMULATE_SOFT))
  return q_clamp(q_round((float)sum * scale), low, high);
#else
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  const uint32_t sign = sum < 0 ? 0xffffffffu : 0u, size = ((uint32_t)sum ^ sign) - sign;
  const uint32_t shift = (bits >> 23) - 102u; /* it brings the fraction to the top */
  if (size >> 23 == 0 && shift - 1u < 24u) {
    /* A half less 2^-8 is added: fractions up to 1 - 9 / 2^8 are far enough from the middle then. */
    const uint32_t fixed = q_scaled_size(size, bits) + (0x7f000000u >> shift);
    if (fixed << shift >> 24 < 247u) {
      const uint32_t whole = ((fixed >> (32u - shift)) ^ sign) - sign;
      return q_clamp((int32_t)whole, low, high);
    }
  }
  return q_clamp(q_scaled_whole(sum, scale), low, high);
#endif
}

/* round((float)sum * scale) + zero, ties to even, within a signed byte's numbers, of which zero is. */
static inline int32_t q_requantize_s(int32_t sum, float scale, int32_t zero) {
#if defined(__ARM_FP) && defined(__ARM_FEATURE_DSP) && !defined(ATC_EMULATE_DSP)
  int32_t y;
  __asm__("qadd %0, %1, %2\n\tssat %0, #8, %0" : "=r"(y) : "r"(q_round((float)sum * scale)), "r"(zero));
  return y;
#else
  return q_requantize(sum, scale, -128 - zero, 127 - zero) + zero;
#endif
}

#if defined(__ARM_FEATURE_MVE) && !defined(ATC_EMULATE_MVE)

/* round(x * scale), ties to even, within [low, high]. */
static inline q_sums q_scaled(q_sums x, float32x4_t scale, int32_t low, int32_t high) {
  const q_sums v = vcvtnq_s32_f32(vmulq_f32(vcvtq_f32_s32(x), scale));
  return vminq_s32(vmaxq_s32(v, vdupq_n_s32(low)), vdupq_n_s32(high));
}
static inline q_sums q_requantize4(q_sums x, const float *s, int32_t low, int32_t high) {
  return q_scaled(x, vldrwq_f32(s), low, high);
}
static inline q_sums q_requantize4_by(q_sums x, float s, int32_t low, int32_t high) {
  return q_scaled(x, vdupq_n_f32(s), low, high);
}

#else

static inline q_sums q_requantize4(q_sums x, const float *s, int32_t low, int32_t high) {
  q_sums y;
  Q_EACH(4, q_requantize(x.lane[k], s[k], low, high));
}
static inline q_sums q_requantize4_by(q_sums x, float s, int32_t low, int32_t high) {
  q_sums y;
  Q_EACH(4, q_requantize(x.lane[k], s, low, high));
}

#endif

/* ---- tables ---------------------------------------------------------------------------------- */

/* y[k] = table[x[k]]; y may be x. */
static inline void q_lookup(uint8_t *y, const uint8_t *x, ptrdiff_t size, const uint8_t *table) {
#if defined(__ARM_FEATURE_MVE) && !defined(ATC_EMULATE_MVE)
  for (ptrdiff_t k = 0; k < size; k += 16) {
    const mve_pred16_t p = vctp8q((uint32_t)(size - k));
    vstrbq_p_u8(y + k, vldrbq_gather_offset_z_u8(table, vldrbq_z_u8(x + k, p), p), p);
  }
#else
  ptrdiff_t k = 0;
#if defined(__ARM_FEATURE_SAT) && !defined(ATC_EMULATE_DSP)
  for (; k + 8 <= size; k += 8, x += 8, y += 8) {
    const uint32_t first = q_join4(table[x[0]], table[x[1]], table[x[2]], table[x[3]]);
    const uint32_t second = q_join4(table[x[4]], table[x[5]], table[x[6]], table[x[7]]);
    memcpy(y, &first, sizeof first);
    memcpy(y + 4, &second, sizeof second);
  }
#else
  for (; k + 4 <= size; k += 4, x += 4, y += 4) {
    const uint8_t a = table[x[0]], b = table[x[1]], c = table[x[2]], d = table[x[3]];
    y[0] = a;
    y[1] = b;
    y[2] = c;
    y[3] = d;
  }
#endif
  for (; k < size; k++) *y++ = table[*x++];
#endif
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Short ones, word by word; `word = ...` keeps compilers from calling the library for them. */
static inline void q_copy(void *to, const void *from, ptrdiff_t size) {
  uint8_t *d = to;
  const uint8_t *s = from;
#if !defined(__ARM_ARCH_6M__)
  for (; size >= 4; size -= 4, d += 4, s += 4) {
    uint32_t word = q_load4(s);
#if defined(__GNUC__)
    __asm__("" : "+r"(word));
#endif
    memcpy(d, &word, sizeof word);
  }
#endif
  for (; size > 0; size--) {
    uint32_t byte = *s++;
#if defined(__GNUC__)
    __asm__("" : "+r"(byte));
#endif
    *d++ = (uint8_t)byte;
  }
}

/* Long ones, 16 bytes at a time. */
static inline void q_copy_run(void *to, const void *from, ptrdiff_t size) {
  uint8_t *d = to;
  const uint8_t *s = from;
#if !defined(__ARM_ARCH_6M__)
  for (; size >= 16; size -= 16, d += 16, s += 16) q_store16(d, q_load16(s));
#endif
  q_copy(d, s, size);
}

static inline void q_fill(void *to, int value, ptrdiff_t size) {
  uint8_t *d = to;
#if !defined(__ARM_ARCH_6M__)
  for (; size >= 4; size -= 4, d += 4) {
    uint32_t word = 0x01010101u * (uint8_t)value;
#if defined(__GNUC__)
    __asm__("" : "+r"(word));
#endif
    memcpy(d, &word, sizeof word);
  }
#endif
  for (; size > 0; size--) {
    uint32_t byte = (uint8_t)value;
#if defined(__GNUC__)
    __asm__("" : "+r"(byte));
#endif
    *d++ = (uint8_t)byte;
  }
}

#endif
