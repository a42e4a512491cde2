/* simd_scalar_math.h - elementary functions of one float without a C library, the same bits
 * everywhere: what simd_math.h has not, in its terms. For the table of one lane.
 *
 * They need float addition, multiplication, division and square root as IEEE 754 has them,
 * integers, and a compiler that contracts nothing; no double. Special values are those of C99's
 * Annex F. "Max n ulp" is as in simd_math.h.
 */
#ifndef SIMD_SCALAR_MATH_H
#define SIMD_SCALAR_MATH_H

#include "simd_math.h"

/* The larger and the smaller of two numbers, one of which may be NaN. */
static inline float k_fmax_f32(float a, float b) { return a > b || b != b ? a : b; }
static inline float k_fmin_f32(float a, float b) { return a < b || b != b ? a : b; }

/* Add x to a sum; `lost` is what rounding added to it so far (Kahan 1965). */
static inline void k_add_f32(float *sum, float *lost, float x) {
  const float part = x - *lost, next = *sum + part, rounded = next - *sum - part;
  *lost = fabsf(next) < INFINITY ? rounded : 0.0f;
  *sum = next;
}

/* --- Remainders, exact --- */

/* |x| = digits * 2^(power - 150), power at least 1, for finite x. */
static inline uint32_t k_digits_f32(float x, int32_t *power) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t exponent = bits >> 23 & 0xffu, fraction = bits & 0x7fffffu;
  *power = exponent != 0 ? (int32_t)exponent : 1;
  return exponent != 0 ? fraction | 0x800000u : fraction;
}

/* a - n b for the n next to a / b towards 0. */
static inline float k_fmod_f32(float a, float b) {
  int32_t power, end;
  if (!(fabsf(a) < INFINITY) || !(fabsf(b) > 0.0f)) return NAN;
  if (fabsf(a) < fabsf(b)) return a;
  uint32_t digits = k_digits_f32(a, &power);
  const uint32_t divisor = k_digits_f32(b, &end);
  digits %= divisor;
  while (power > end) {
    const int32_t step = power - end < 8 ? power - end : 8;
    digits = (digits << step) % divisor;
    power -= step;
  }
  return copysignf(v_ldexp((float)digits, (float)(end - 150)), a);
}

/* The same for the n next to a / b below. */
static inline float k_floormod_f32(float a, float b) {
  const float r = k_fmod_f32(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

/* --- Powers --- */

/* The upper half of a product. */
static inline uint64_t k_high_u64(uint64_t a, uint64_t b) {
  const uint64_t al = a & 0xffffffffu, ah = a >> 32, bl = b & 0xffffffffu, bh = b >> 32;
  const uint64_t middle = ah * bl + (al * bl >> 32), other = al * bh + (middle & 0xffffffffu);
  return ah * bh + (middle >> 32) + (other >> 32);
}

/* |log2(m)| 2^61 for m = digits / 2^24 in [sqrt(1/2), sqrt(2)): 2 artanh(s) / ln 2, by its series,
 * of s = (m - 1) / (m + 1). */
static inline uint64_t k_log2_digits(uint32_t digits) {
  const uint32_t one = 1u << 24, top = digits > one ? digits - one : one - digits;
  const uint64_t bottom = (uint64_t)digits + one, first = (uint64_t)top << 38;
  const uint64_t s = (first / bottom << 26) + (first % bottom << 26) / bottom; /* of 2^64 */
  const uint64_t square = k_high_u64(s, s);
  uint64_t sum = 0;
  for (uint64_t k = 25; k > 2; k -= 2) {
    sum = (UINT64_C(1) << 63) / (k - 2) + k_high_u64(square, sum);
  }
  return k_high_u64(k_high_u64(s, sum), UINT64_C(0xb8aa3b295c17f0bc)); /* 2 / ln 2 of 2^62 */
}

/* 2^(y log2(x)) for positive finite x other than 1 and finite y other than 0; the exponent as an
 * integer. */
static inline float k_pow_digits(float x, float y) {
  int32_t shift, power;
  uint32_t digits = k_digits_f32(x, &power), factor = k_digits_f32(y, &shift);
  while (digits < 0x800000u) {
    digits <<= 1;
    power--;
  }
  while (factor < 0x800000u) {
    factor <<= 1;
    shift--;
  }
  power -= 126; /* x = digits / 2^24 * 2^power */
  if (digits < 0xb504f4u) { /* below sqrt(1/2) */
    digits <<= 1;
    power--;
  }
  uint64_t log = k_log2_digits(digits);
  bool below = digits < 1u << 24; /* whether the logarithm is negative */
  int32_t scale = 61;             /* the logarithm is log / 2^scale */
  if (power != 0) {
    const uint64_t whole = (uint64_t)(power < 0 ? -power : power) << 54;
    log >>= 7;
    log = below == (power < 0) ? whole + log : whole - log;
    below = power < 0;
    scale = 54;
  }
  const uint64_t product = k_high_u64(log, (uint64_t)factor << 40); /* y = factor / 2^24 * ... */
  const int32_t left = 40 + (shift - 126) - scale;
  const uint64_t most = UINT64_C(1) << 48; /* an exponent of 256 */
  uint64_t size;
  if (left >= 0) {
    size = left >= 48 || product > most >> left ? most : product << left;
  } else {
    size = left <= -64 ? 0 : product >> -left;
  }
  if (size > most) size = most;
  const int64_t exponent = below != (y < 0.0f) ? -(int64_t)size : (int64_t)size;
  const int64_t whole = ((exponent + (INT64_C(1) << 39) + (INT64_C(1) << 60)) >> 40) - (1 << 20);
  const float rest = (float)(int32_t)((exponent - whole * (INT64_C(1) << 40)) / 512);
  const float q = v_expm1_reduced(rest * 3.227718e-10f); /* ln 2 / 2^31 */
  const float n = whole > 250 ? 250.0f : whole < -250 ? -250.0f : (float)(int32_t)whole;
  return v_ldexp(1.0f + q, n);
}

/* x^y. Max 1.1 ulp. */
static inline float k_pow_f32(float x, float y) {
  const float size = fabsf(x), length = fabsf(y);
  const bool whole = length >= 8388608.0f || v_trunc(y) == y;
  const bool odd = whole && length < 16777216.0f && ((uint32_t)length & 1u) != 0;
  if (x == 1.0f || y == 0.0f) return 1.0f;
  if (x != x || y != y) return NAN;
  if (length == INFINITY) {
    return size == 1.0f ? 1.0f : (size < 1.0f) == (y < 0.0f) ? INFINITY : 0.0f;
  }
  if (size == 0.0f || size == INFINITY) {
    const float limit = (size == 0.0f) == (y < 0.0f) ? INFINITY : 0.0f;
    return odd ? copysignf(limit, x) : limit;
  }
  if (x < 0.0f && !whole) return NAN;
  const float result = size == 1.0f ? 1.0f : k_pow_digits(size, y);
  return odd && x < 0.0f ? -result : result;
}

/* --- Of the circle --- */

/* Max 4.3 ulp. */
static inline float k_tan_f32(float x) { return v_sin(x) / v_cos(x); }

/* atan(x) of x in [-tan(pi / 8), tan(pi / 8)]: x + x^3 P(x^2), degree 11. */
static inline float k_atan_reduced(float x) {
  const float t = x * x;
  float p = -0.0609013885f;
  p = p * t + 0.105991915f;
  p = p * t - 0.142443925f;
  p = p * t + 0.199985281f;
  p = p * t - 0.333333164f;
  return p * t * x + x;
}

/* atan(x), from pi / 8 on around pi / 4 or pi / 2. Max 2.0 ulp. */
static inline float k_atan_f32(float x) {
  const float a = fabsf(x);
  float y = 0.0f;
  if (a != a) return x;
  if (a > 2.41421366f) {
    y = 1.57079637f + (k_atan_reduced(-1.0f / a) - 4.37113883e-8f);
  } else if (a > 0.414213568f) {
    y = 0.785398185f + (k_atan_reduced((a - 1.0f) / (a + 1.0f)) - 2.18556941e-8f);
  } else {
    y = k_atan_reduced(a);
  }
  return copysignf(y, x);
}

/* asin(x) - x of x = sqrt(t) up to 1/2: x^3 P(x^2), degree 11. */
static inline float k_asin_tail(float x, float t) {
  float p = 0.0421583056f;
  p = p * t + 0.0241847783f;
  p = p * t + 0.0454691499f;
  p = p * t + 0.0749530941f;
  p = p * t + 0.166667521f;
  return p * t * x;
}

/* asin(x), above 1/2 as pi / 2 - 2 asin(sqrt((1 - x) / 2)). Max 2.3 ulp. */
static inline float k_asin_f32(float x) {
  const float a = fabsf(x);
  if (!(a <= 1.0f)) return NAN;
  if (a <= 0.5f) return x + k_asin_tail(x, a * a);
  const float t = (1.0f - a) * 0.5f, s = v_sqrt(t);
  const float y = 1.57079637f - (2.0f * (s + k_asin_tail(s, t)) + 4.37113883e-8f);
  return copysignf(y, x);
}

/* acos(x). Max 1.2 ulp. */
static inline float k_acos_f32(float x) {
  const float a = fabsf(x);
  if (!(a <= 1.0f)) return NAN;
  if (a <= 0.5f) return 1.57079637f - (x + (k_asin_tail(x, a * a) + 4.37113883e-8f));
  const float t = (1.0f - a) * 0.5f, s = v_sqrt(t), y = 2.0f * (s + k_asin_tail(s, t));
  return x > 0.0f ? y : 3.14159274f - (y + 8.74227766e-8f);
}

/* --- Of the hyperbola --- */

/* Max 2.2 ulp. */
static inline float k_sinh_f32(float x) {
  const float a = fabsf(x);
  if (a > 88.0f) {
    const float half = v_exp(a * 0.5f);
    return copysignf(half * 0.5f * half, x);
  }
  const float t = v_expm1(a);
  return copysignf((t + t / (t + 1.0f)) * 0.5f, x);
}

/* Max 1.6 ulp. */
static inline float k_cosh_f32(float x) {
  const float a = fabsf(x);
  if (a > 88.0f) {
    const float half = v_exp(a * 0.5f);
    return half * 0.5f * half;
  }
  const float e = v_exp(a);
  return 0.5f * e + 0.5f / e;
}

/* Max 1.6 ulp. */
static inline float k_asinh_f32(float x) {
  const float a = fabsf(x), square = a * a;
  if (a > 16384.0f) return copysignf(v_log(a) + 0.693147182f, x);
  return copysignf(v_log1p(a + square / (1.0f + v_sqrt(1.0f + square))), x);
}

/* Max 1.9 ulp. */
static inline float k_acosh_f32(float x) {
  const float t = x - 1.0f;
  if (t < 0.0f) return NAN;
  if (x > 16384.0f) return v_log(x) + 0.693147182f;
  return v_log1p(t + v_sqrt(2.0f * t + t * t));
}

/* Max 1.6 ulp. */
static inline float k_atanh_f32(float x) {
  const float a = fabsf(x), twice = 2.0f * a;
  if (a > 1.0f) return NAN;
  return copysignf(0.5f * v_log1p(twice + twice * a / (1.0f - a)), x);
}

#endif
