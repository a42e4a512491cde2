/* simd_exact.h - the elementary functions of simd_math.h computed in double, lane by lane, and
 * rounded once to float: at most 0.501 units of the float spacing away from the true value. The
 * names of simd_math.h stand for these functions in a kernel that includes this header.
 *
 * The loops over lanes hold no branch and no call, so that compilers make vectors of doubles of
 * them. Series are Taylor's, in a reduced argument, to an error of 1e-10 or less; that of erfc is a
 * Chebyshev fit of our own.
 */
#ifndef SIMD_EXACT_H
#define SIMD_EXACT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "simd_math.h"

/* Nobody asks for exceptions' flags; only without them gcc computes both sides of a choice, which
 * vectors need. No value depends on it. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("no-trapping-math")
#endif

#define EXACT_MAGIC 6755399441055744.0 /* 1.5 * 2^52: added, a number is rounded to an integer */
#define EXACT_LOWEST (-300.0)           /* e^x and its relatives are 0 in float from there on */

static inline uint64_t exact_bits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static inline double exact_double(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* --- In double --- */

/* 2^n and e^r - 1 with e^x = 2^n e^r, |r| <= ln(2) / 2; |x| <= 300. */
static inline double exact_exp_parts(double x, double *power) {
  const double shifted = x * 1.4426950408889634 + EXACT_MAGIC;
  const double n = shifted - EXACT_MAGIC;
  const double r = x - n * 0.6931471805599453;
  double p = 2.7557319223985893e-06;
  p = p * r + 2.48015873015873e-05;
  p = p * r + 0.0001984126984126984;
  p = p * r + 0.001388888888888889;
  p = p * r + 0.008333333333333333;
  p = p * r + 0.041666666666666664;
  p = p * r + 0.16666666666666666;
  p = p * r + 0.5;
  p = p * r + 1.0;
  *power = exact_double((exact_bits(shifted) + 1023) << 52);
  return p * r;
}

static inline double exact_exp(double x) {
  double power;
  const double low = x < EXACT_LOWEST ? EXACT_LOWEST : x;
  const double q = exact_exp_parts(low > 300 ? 300 : low, &power);
  return power + power * q;
}

static inline double exact_expm1(double x) {
  double power;
  const double low = x < EXACT_LOWEST ? EXACT_LOWEST : x;
  const double q = exact_exp_parts(low > 300 ? 300 : low, &power);
  return power * q + (power - 1);
}

/* x = m 2^k with m in [sqrt(1/2), sqrt(2)); log(m) = 2 artanh((m - 1) / (m + 1)). */
static inline double exact_log(double x) {
  const uint64_t raised = exact_bits(x) - 0x3fe6a09e667f3bcd + ((uint64_t)2048 << 52);
  const uint64_t biased = raised >> 52; /* k + 2048 */
  const double m = exact_double(exact_bits(x) - ((biased - 2048) << 52));
  const double k = exact_double(exact_bits(EXACT_MAGIC) + biased) - (EXACT_MAGIC + 2048);
  const double s = (m - 1) / (m + 1);
  const double t = s * s;
  double p = 0.15384615384615385;
  p = p * t + 0.18181818181818182;
  p = p * t + 0.2222222222222222;
  p = p * t + 0.2857142857142857;
  p = p * t + 0.4;
  p = p * t + 0.6666666666666666;
  p = p * t + 2.0;
  const double y = k * 0.6931471805599453 + s * p;
  const double finite = x < INFINITY ? y : x;
  return x > 0 ? finite : (x == 0 ? -(double)INFINITY : (double)NAN);
}

/* log(1 + x), corrected by what the sum lost. */
static inline double exact_log1p(double x) {
  const double u = 1 + x;
  const double lost = (x - (u - 1)) / u;
  const double y = exact_log(u);
  return x > -1 && x < INFINITY ? y + lost : y;
}

static inline double exact_sigmoid(double x) {
  const double z = exact_exp(x < 0 ? x : -x);
  return (x < 0 ? z : 1) / (1 + z);
}

static inline double exact_silu(double x) {
  const double y = x < EXACT_LOWEST ? EXACT_LOWEST : x;
  return y * exact_sigmoid(y);
}

static inline double exact_softplus(double x) {
  return (x < 0 ? 0 : x) + exact_log1p(exact_exp(x < 0 ? x : -x));
}

static inline double exact_mish(double x) {
  const double y = x < EXACT_LOWEST ? EXACT_LOWEST : x;
  const double e = exact_exp(y > 40 ? 40 : y);
  return y * (e * (e + 2) / (e * (e + 2) + 2));
}

static inline double exact_hardswish(double x) {
  const double y = x < -3 ? -3 : x;
  const double gate = y + 3;
  return y * (gate > 6 ? 6 : gate) / 6;
}

static inline double exact_tanh(double x) {
  const double t = exact_expm1(x < 0 ? 2 * x : -2 * x);
  const double y = t / (2 + t);
  return x < 0 ? y : -y;
}

/* e^(a^2) (1 - erf(a)) for 0 <= a <= 10.5: a polynomial in (a - 3) / (a + 3), over a + 3. */
static inline double exact_erfc_scaled(double a) {
  const double t = (a - 3) / (a + 3);
  double p = -5.267708112520153e-06;
  p = p * t + -1.4283465150346343e-05;
  p = p * t + 3.2206940699821346e-05;
  p = p * t + 0.00010610607451313781;
  p = p * t + -0.00027792845604369514;
  p = p * t + -0.000547997165409931;
  p = p * t + 0.0030343827453674986;
  p = p * t + -0.0012124490070034221;
  p = p * t + -0.02682727736566071;
  p = p * t + 0.11952776291432993;
  p = p * t + -0.31046725944849096;
  p = p * t + 0.5902283570604036;
  p = p * t + -0.8833944532103559;
  p = p * t + 1.074006907088686;
  return p / (a + 3);
}

static inline double exact_erf(double x) {
  const double a = x < 0 ? -x : x;
  const double held = a > 6 ? 6 : a;
  const double rest = 1 - exact_erfc_scaled(held) * exact_exp(-held * held);
  const double t = held * held;
  double p = 1.6462114365889246e-06;
  p = p * t + -1.492565035840625e-05;
  p = p * t + 0.00012055332981789664;
  p = p * t + -0.0008548327023450852;
  p = p * t + 0.005223977625442188;
  p = p * t + -0.026866170645131252;
  p = p * t + 0.11283791670955126;
  p = p * t + -0.37612638903183754;
  p = p * t + 1.1283791670955126;
  const double y = a < 0.5 ? held * p : rest;
  return x < 0 ? -y : y;
}

/* x Phi(x) with Phi the normal distribution function; the tail keeps its relative precision. */
static inline double exact_gelu(double x) {
  const double y = x < -14.5 ? -14.5 : x; /* -0 below */
  const double a = y < 0 ? -y : y;
  const double held = a > 14.5 ? 14.5 : a;
  const double scaled = exact_erfc_scaled(held * 0.7071067811865476);
  const double tail = 0.5 * scaled * exact_exp(-0.5 * held * held); /* Phi(-a) */
  return y < 0 ? y * tail : (y < 14.5 ? y - y * tail : y);
}

/* sin(x + quarters pi / 2) for 0 <= x <= V_TRIG_MAX, by Cody and Waite's reduction in two steps. */
static inline double exact_sin_quarters(double x, uint64_t quarters) {
  const double shifted = x * 0.6366197723675814 + EXACT_MAGIC;
  const double n = shifted - EXACT_MAGIC;
  const double r = (x - n * 1.5707963267341256) - n * 6.077100506506192e-11;
  const double t = r * r;
  double s = 1.6059043836821613e-10;
  s = s * t + -2.505210838544172e-08;
  s = s * t + 2.7557319223985893e-06;
  s = s * t + -0.0001984126984126984;
  s = s * t + 0.008333333333333333;
  s = s * t + -0.16666666666666666;
  s = s * t + 1.0;
  double c = 2.08767569878681e-09;
  c = c * t + -2.755731922398589e-07;
  c = c * t + 2.48015873015873e-05;
  c = c * t + -0.001388888888888889;
  c = c * t + 0.041666666666666664;
  c = c * t + -0.5;
  c = c * t + 1.0;
  const uint64_t quadrant = exact_bits(shifted) + quarters;
  const double y = (quadrant & 1) != 0 ? c : s * r;
  return (quadrant & 2) != 0 ? -y : y;
}

static inline double exact_sin(double x) {
  const double y = exact_sin_quarters(x < 0 ? -x : x, 0);
  return x < 0 ? -y : y;
}

static inline double exact_cos(double x) { return exact_sin_quarters(x < 0 ? -x : x, 1); }

/* Replaces V_LANES floats by exact_<name> of them. */
#define EXACT_LANES(name)                                                 \
  static inline void exact_lanes_##name(float *lanes) {                   \
    for (int i = 0; i < V_LANES; i++) {                                   \
      lanes[i] = (float)exact_##name((double)lanes[i]);                   \
    }                                                                     \
  }

EXACT_LANES(exp)
EXACT_LANES(expm1)
EXACT_LANES(log)
EXACT_LANES(log1p)
EXACT_LANES(sigmoid)
EXACT_LANES(silu)
EXACT_LANES(softplus)
EXACT_LANES(mish)
EXACT_LANES(hardswish)
EXACT_LANES(tanh)
EXACT_LANES(erf)
EXACT_LANES(gelu)
EXACT_LANES(sin)
EXACT_LANES(cos)

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

/* --- In float --- */

/* Defines v_exact_<name> of vectors by exact_<name>; `zero` is what it gives for a zero. */
#define EXACT_FUNCTION(name, zero)                                        \
  static inline vf32 v_exact_##name(vf32 x) {                             \
    float lanes[V_LANES];                                                 \
    v_store(lanes, x);                                                    \
    exact_lanes_##name(lanes);                                            \
    return v_select(v_eq(x, v_zero()), zero, v_load(lanes));              \
  }

EXACT_FUNCTION(exp, v_set1(1.0f))
EXACT_FUNCTION(expm1, x)
EXACT_FUNCTION(log, v_set1(-INFINITY))
EXACT_FUNCTION(log1p, x)
EXACT_FUNCTION(sigmoid, v_set1(0.5f))
EXACT_FUNCTION(silu, x)
EXACT_FUNCTION(softplus, v_set1(0.693147181f))
EXACT_FUNCTION(mish, x)
EXACT_FUNCTION(hardswish, x)
EXACT_FUNCTION(tanh, x)
EXACT_FUNCTION(erf, x)
EXACT_FUNCTION(gelu, x)

/* --- Sums --- */

/* Adds a part of a sum to the total, and what is rounded off to the V_LANES floats behind it
 * (Knuth's TwoSum). */
static inline void v_add_part(float *total, vf32 part) {
  const vf32 old = v_load(total);
  const vf32 sum = v_add(old, part);
  const vf32 grown = v_sub(sum, old);
  const vf32 lost = v_add(v_sub(old, v_sub(sum, grown)), v_sub(part, grown));
  v_store(total, sum);
  v_store(total + V_LANES, v_add(v_load(total + V_LANES), lost));
}

/* The total with what was rounded off; an infinite one, which loses NaN, as it is. */
static inline vf32 v_total(const float *total) {
  const vf32 sum = v_load(total), lost = v_load(total + V_LANES);
  return v_select(v_isnan(lost), sum, v_add(sum, lost));
}

/* --- Sine and cosine --- */

/* Beyond V_TRIG_MAX libm is called, as simd_math.h does. */
#define EXACT_TURN(name, zero)                                            \
  static inline vf32 v_exact_##name(vf32 x) {                             \
    float in[V_LANES], out[V_LANES];                                      \
    v_store(in, x);                                                       \
    v_store(out, x);                                                      \
    exact_lanes_##name(out);                                              \
    if (v_mask_any(v_gt(v_abs(x), v_set1(V_TRIG_MAX)))) {                 \
      for (int i = 0; i < V_LANES; i++) {                                 \
        if (fabsf(in[i]) > V_TRIG_MAX) out[i] = name##f(in[i]);           \
      }                                                                   \
    }                                                                     \
    return v_select(v_eq(x, v_zero()), zero, v_load(out));                \
  }

EXACT_TURN(sin, x)
EXACT_TURN(cos, v_set1(1.0f))

#define v_exp v_exact_exp
#define v_expm1 v_exact_expm1
#define v_log v_exact_log
#define v_log1p v_exact_log1p
#define v_sigmoid v_exact_sigmoid
#define v_silu v_exact_silu
#define v_softplus v_exact_softplus
#define v_mish v_exact_mish
#define v_hardswish v_exact_hardswish
#define v_tanh v_exact_tanh
#define v_erf v_exact_erf
#define v_gelu v_exact_gelu
#define v_sin v_exact_sin
#define v_cos v_exact_cos

#endif
