/* simd_exact.h - the elementary functions of simd_math.h computed in double and rounded once to
 * float: at most 0.51 units of the float spacing away from the true value. The names of simd_math.h
 * stand for these functions in a kernel that includes this header.
 *
 * A vector is computed as two of doubles, whose range leaves no special cases: nothing overflows
 * that a float doesn't. Polynomials and quotients of them are minimax fits of our own (fit.py), of
 * errors of some 2^-33.
 */
#ifndef SIMD_EXACT_H
#define SIMD_EXACT_H

#include <math.h>

#include "simd_math.h"

/* --- In double --- */

/* x - n ln(2) / f for the n nearest f x / ln(2), |f x| <= 300; n is in the last bits of `bits`, as
 * adding 1.5 * 2^52 rounds. */
static inline vf64 exact_exp_reduce(vf64 x, double f, vf64 *bits) {
  const vf64 magic = v_f64_set1(6755399441055744.0);
  *bits = v_f64_fma(x, v_f64_set1(f * 1.4426950408889634), magic);
  return v_f64_fnma(v_f64_sub(*bits, magic), v_f64_set1(0.6931471805599453 / f), x);
}

/* (e^(f r) - 1 - f r) / r^2 for |f r| <= ln(2) / 2; t = r^2. */
static inline vf64 exact_exp_tail(vf64 r, vf64 t, double f) {
  const double g = f * f, h = g * g;
  const vf64 a = v_f64_fma(r, v_f64_set1(f * g * 0.1666666586893), v_f64_set1(g * 0.5000000067684));
  const vf64 b = v_f64_fma(r, v_f64_set1(f * h * 0.008333497072025),
                           v_f64_set1(h * 0.04166629494146));
  const vf64 c = v_f64_fma(r, v_f64_set1(f * g * h * 0.0001979034411852),
                           v_f64_set1(g * h * 0.00139446599802));
  return v_f64_fma(v_f64_fma(c, t, b), t, a);
}

/* e^(f x) = 2^n e^(f r) for a constant f, which compilers multiply into the others. */
static inline vf64 exact_exp_of(vf64 x, double f) {
  vf64 bits;
  const vf64 r = exact_exp_reduce(x, f, &bits), t = v_f64_mul(r, r);
  const vf64 linear = v_f64_fma(r, v_f64_set1(f), v_f64_set1(1.0));
  return v_f64_ldexp(v_f64_fma(exact_exp_tail(r, t, f), t, linear), bits);
}

static inline vf64 exact_exp(vf64 x) { return exact_exp_of(x, 1.0); }

/* e^x - 1 = 2^n (e^r - 1) + (2^n - 1). */
static inline vf64 exact_expm1(vf64 x) {
  vf64 bits;
  const vf64 one = v_f64_set1(1.0);
  const vf64 r = exact_exp_reduce(x, 1.0, &bits), t = v_f64_mul(r, r);
  const vf64 q = v_f64_fma(exact_exp_tail(r, t, 1.0), t, r);
  const vf64 power = v_f64_ldexp(one, bits);
  return v_f64_fma(power, q, v_f64_sub(power, one));
}

/* log(1 + f) = 2 artanh(f / (2 + f)) for 1 + f from sqrt(1/2) to 2. */
static inline vf64 exact_log1p_reduced(vf64 f) {
  const vf64 two = v_f64_set1(2.0);
  const vf64 s = v_f64_div(f, v_f64_add(f, two));
  const vf64 t = v_f64_mul(s, s), u = v_f64_mul(t, t);
  const vf64 a = v_f64_fma(t, v_f64_set1(0.6666666635913), two);
  const vf64 b = v_f64_fma(t, v_f64_set1(0.2856839608476), v_f64_set1(0.4000005300047));
  const vf64 c = v_f64_fma(t, v_f64_set1(0.1714785012327), v_f64_set1(0.2230150026917));
  const vf64 d = v_f64_fma(u, v_f64_set1(0.2179239580593), c);
  return v_f64_mul(v_f64_fma(v_f64_fma(d, u, b), u, a), s);
}

/* log(1 + f) + k ln 2. */
static inline vf64 exact_log_sum(vf64 f, vf64 k) {
  return v_f64_fma(k, v_f64_set1(0.6931471805599453), exact_log1p_reduced(f));
}

static inline vf64 exact_sigmoid(vf64 x) {
  const vf64 one = v_f64_set1(1.0);
  return v_f64_div(one, v_f64_add(one, exact_exp_of(x, -1.0)));
}

static inline vf64 exact_silu(vf64 x) {
  return v_f64_div(x, v_f64_add(v_f64_set1(1.0), exact_exp_of(x, -1.0)));
}

static inline vf64 exact_mish(vf64 x) {
  const vf64 two = v_f64_set1(2.0), e = exact_exp(x);
  const vf64 s = v_f64_mul(e, v_f64_add(e, two));
  return v_f64_div(v_f64_mul(x, s), v_f64_add(s, two));
}

static inline vf64 exact_hardswish(vf64 x, vf64 held) {
  const vf64 gate = v_f64_mul(v_f64_add(held, v_f64_set1(3.0)), v_f64_set1(1.0 / 6.0));
  return v_f64_mul(x, gate);
}

/* tanh(x / 2). */
static inline vf64 exact_tanh_half(vf64 x) {
  const vf64 t = exact_expm1(x);
  return v_f64_div(t, v_f64_add(t, v_f64_set1(2.0)));
}

/* x P(x^2) / Q(x^2), of degrees 7 and 7, for |x| <= 4. */
static inline vf64 exact_erf(vf64 x) {
  const vf64 t = v_f64_mul(x, x), u = v_f64_mul(t, t);
  const vf64 p01 = v_f64_fma(t, v_f64_set1(0.2003433257072), v_f64_set1(1.128379167086));
  const vf64 p23 = v_f64_fma(t, v_f64_set1(0.004962141932848), v_f64_set1(0.05811833803356));
  const vf64 p45 = v_f64_fma(t, v_f64_set1(2.178699714388e-05), v_f64_set1(0.0005130401423936));
  const vf64 p67 = v_f64_fma(t, v_f64_set1(3.004761552358e-09), v_f64_set1(7.527791059088e-07));
  const vf64 q01 = v_f64_fma(t, v_f64_set1(0.5108829824754), v_f64_set1(1.0));
  const vf64 q23 = v_f64_fma(t, v_f64_set1(0.01771891907469), v_f64_set1(0.1218003672635));
  const vf64 q45 = v_f64_fma(t, v_f64_set1(0.0001115147214607), v_f64_set1(0.001715213220555));
  const vf64 q67 = v_f64_fma(t, v_f64_set1(7.329853588887e-08), v_f64_set1(4.519049323362e-06));
  const vf64 p = v_f64_fma(v_f64_fma(v_f64_fma(p67, u, p45), u, p23), u, p01);
  const vf64 q = v_f64_fma(v_f64_fma(v_f64_fma(q67, u, q45), u, q23), u, q01);
  return v_f64_div(v_f64_mul(x, p), q);
}

/* Phi(-a) of the normal distribution: e^(-a^2 / 2) P(a) / Q(a), of degrees 5 and 6, for
 * 0 <= a <= 14.5. */
static inline vf64 exact_normal_tail(vf64 a) {
  const vf64 t = v_f64_mul(a, a);
  const vf64 p01 = v_f64_fma(a, v_f64_set1(0.5072558956588), v_f64_set1(0.4999999999592));
  const vf64 p23 = v_f64_fma(a, v_f64_set1(0.07120280269743), v_f64_set1(0.2503220790944));
  const vf64 p45 = v_f64_fma(a, v_f64_set1(0.0008870414529551), v_f64_set1(0.01161939272179));
  const vf64 q01 = v_f64_fma(a, v_f64_set1(1.812396344258), v_f64_set1(1.0));
  const vf64 q23 = v_f64_fma(a, v_f64_set1(0.6564896307639), v_f64_set1(1.446727340671));
  const vf64 q45 = v_f64_fma(a, v_f64_set1(0.02912530923883), v_f64_set1(0.1807080871839));
  const vf64 q46 = v_f64_fma(t, v_f64_set1(0.002223486008169), q45);
  const vf64 p = v_f64_fma(v_f64_fma(p45, t, p23), t, p01);
  const vf64 q = v_f64_fma(v_f64_fma(q46, t, q23), t, q01);
  return v_f64_div(v_f64_mul(p, exact_exp_of(t, -0.5)), q);
}

/* max(x, 0) - |x| Phi(-|x|), given the first and |x|. */
static inline vf64 exact_gelu(vf64 positive, vf64 a) {
  return v_f64_fnma(a, exact_normal_tail(a), positive);
}

/* a - n pi / 2 by Cody and Waite's reduction in two steps. */
static inline vf64 exact_trig_reduce(vf64 a, vf64 n) {
  const vf64 r = v_f64_fnma(n, v_f64_set1(1.5707963267341256), a);
  return v_f64_fnma(n, v_f64_set1(6.077100506506192e-11), r);
}

static inline vf64 exact_sin_reduced(vf64 r) {
  const vf64 t = v_f64_mul(r, r), u = v_f64_mul(t, t), cube = v_f64_mul(t, r);
  const vf64 a = v_f64_fma(t, v_f64_set1(0.008333329273834), v_f64_set1(-0.1666666664053));
  const vf64 b = v_f64_fma(t, v_f64_set1(2.718025877763e-06), v_f64_set1(-0.0001983930225948));
  return v_f64_fma(v_f64_fma(b, u, a), cube, r);
}

static inline vf64 exact_cos_reduced(vf64 r) {
  const vf64 t = v_f64_mul(r, r), u = v_f64_mul(t, t);
  const vf64 a = v_f64_fma(t, v_f64_set1(-0.5), v_f64_set1(1.0));
  const vf64 b = v_f64_fma(t, v_f64_set1(-0.001388888371393), v_f64_set1(0.04166666662238));
  const vf64 c = v_f64_fma(t, v_f64_set1(-2.72093546717e-07), v_f64_set1(2.479950944761e-05));
  return v_f64_fma(v_f64_fma(c, u, b), u, a);
}

/* --- In float --- */

/* Both halves of a function of doubles, with one vector of floats or two. */
#define EXACT(name, x) v_f64_join(exact_##name(v_f64_low(x)), exact_##name(v_f64_high(x)))
#define EXACT_OF_TWO(name, x, y)                                                              \
  v_f64_join(exact_##name(v_f64_low(x), v_f64_low(y)),                                        \
             exact_##name(v_f64_high(x), v_f64_high(y)))

static inline vf32 exact_held(float low, vf32 x, float high) {
  return v_min_const(v_set1(high), v_max_const(v_set1(low), x));
}

static inline vf32 v_exact_exp(vf32 x) {
  const vf32 held = exact_held(-110.0f, x, 90.0f);
  return EXACT(exp, held);
}

static inline vf32 v_exact_expm1(vf32 x) {
  const vf32 held = exact_held(-110.0f, x, 90.0f);
  return v_copysign(EXACT(expm1, held), x);
}

static inline vf32 v_exact_log(vf32 x) {
  vf32 k;
  const vmask denormal = v_lt(x, v_set1(1.17549435e-38f));
  const vf32 y = v_select(denormal, v_mul(x, v_set1(8388608.0f)), x);
  const vf32 f = v_sub(v_log_split(y, &k), v_set1(1.0f)); /* exact */
  k = v_sub(k, v_select(denormal, v_set1(23.0f), v_zero()));
  return v_log_limits(x, EXACT_OF_TWO(log_sum, f, k));
}

/* log(1 + f) + k ln 2 for f = x 2^-k + (2^-k - 1), given the two numbers and k. */
static inline vf64 exact_log1p(vf64 scaled, vf64 power, vf64 k) {
  return exact_log_sum(v_f64_add(scaled, v_f64_sub(power, v_f64_set1(1.0))), k);
}

static inline vf32 v_exact_log1p(vf32 x) {
  vf32 k;
  const vf32 one = v_set1(1.0f);
  const vf32 sum = v_add(one, x); /* rounded, which k may be found from */
  (void)v_log_split(sum, &k);
  const vf32 scaled = v_ldexp(x, v_neg(k)), power = v_ldexp(one, v_neg(k));
  const vf64 low = exact_log1p(v_f64_low(scaled), v_f64_low(power), v_f64_low(k));
  const vf64 high = exact_log1p(v_f64_high(scaled), v_f64_high(power), v_f64_high(k));
  return v_copysign(v_log_limits(sum, v_f64_join(low, high)), x);
}

static inline vf32 v_exact_sigmoid(vf32 x) {
  const vf32 held = exact_held(-110.0f, x, 110.0f);
  return EXACT(sigmoid, held);
}

static inline vf32 v_exact_silu(vf32 x) {
  const vf32 limit = v_set1(110.0f); /* x above, -0 below the lower one */
  const vf32 held = exact_held(-120.0f, x, 110.0f);
  return v_select(v_gt(x, limit), x, EXACT(silu, held));
}

/* max(x, 0) + log(1 + e^-|x|), given the first and -|x|. */
static inline vf64 exact_softplus(vf64 positive, vf64 negative) {
  return v_f64_add(positive, exact_log1p_reduced(exact_exp(negative)));
}

static inline vf32 v_exact_softplus(vf32 x) {
  const vf32 positive = v_relu(x);
  const vf32 negative = v_max_const(v_set1(-110.0f), v_neg(v_abs(x)));
  return EXACT_OF_TWO(softplus, positive, negative);
}

static inline vf32 v_exact_mish(vf32 x) {
  const vf32 limit = v_set1(40.0f); /* x above, -0 below the lower one */
  const vf32 held = exact_held(-120.0f, x, 40.0f);
  return v_select(v_gt(x, limit), x, EXACT(mish, held));
}

static inline vf32 v_exact_hardswish(vf32 x) {
  const vf32 y = v_max_const(v_set1(-3.0f), x);
  const vf32 held = v_min_const(v_set1(3.0f), y);
  return EXACT_OF_TWO(hardswish, y, held);
}

static inline vf32 v_exact_tanh(vf32 x) {
  const vf32 held = exact_held(-40.0f, v_add(x, x), 40.0f);
  return v_copysign(EXACT(tanh_half, held), x);
}

static inline vf32 v_exact_erf(vf32 x) {
  const vf32 held = exact_held(-4.0f, x, 4.0f);
  return EXACT(erf, held);
}

static inline vf16 v_exact_f16_erf(vf32 x) { return v_f16_round(v_exact_erf(x)); }

static inline vf32 v_exact_gelu(vf32 x) {
  const vf32 positive = v_relu(x);
  const vf32 a = v_min_const(v_set1(14.5f), v_abs(x)); /* -0 below -14.5 */
  return v_select(v_eq(x, v_zero()), x, EXACT_OF_TWO(gelu, positive, a));
}

/* sin(a + quarters pi / 2) for 0 <= a <= V_TRIG_MAX. */
static inline vf32 exact_sin_quarters(vf32 a, int32_t quarters) {
  const vf32 one = v_set1(1.0f);
  const vf32 n = v_round(v_mul(a, v_set1(0.636619772f)));
  const vf64 low = exact_trig_reduce(v_f64_low(a), v_f64_low(n));
  const vf64 high = exact_trig_reduce(v_f64_high(a), v_f64_high(n));
  const vf32 s = v_f64_join(exact_sin_reduced(low), exact_sin_reduced(high));
  const vf32 c = v_f64_join(exact_cos_reduced(low), exact_cos_reduced(high));
  const vi32 quadrant = v_i32_add(v_cvt_i32(n), v_i32_set1(quarters));
  const vf32 odd = v_copysign(one, v_cast_f32(v_i32_shl(quadrant, 31)));
  const vf32 turn = v_copysign(one, v_cast_f32(v_i32_shl(quadrant, 30)));
  return v_mul(v_select(v_lt(odd, v_zero()), c, s), turn);
}

/* Beyond V_TRIG_MAX libm is called, as simd_math.h does. */
#define EXACT_TURN(name, y)                                                                   \
  static inline vf32 v_exact_##name(vf32 x) {                                                 \
    const vf32 near = y;                                                                      \
    if (!v_mask_any(v_gt(v_abs(x), v_set1(V_TRIG_MAX)))) return near;                         \
    float in[V_LANES], out[V_LANES];                                                          \
    v_store(in, x);                                                                           \
    v_store(out, near);                                                                       \
    for (int i = 0; i < V_LANES; i++) {                                                       \
      if (fabsf(in[i]) > V_TRIG_MAX) out[i] = name##f(in[i]);                                 \
    }                                                                                         \
    return v_load(out);                                                                       \
  }

EXACT_TURN(sin, v_mul(exact_sin_quarters(v_abs(x), 0), v_copysign(v_set1(1.0f), x)))
EXACT_TURN(cos, exact_sin_quarters(v_abs(x), 1))

#undef EXACT
#undef EXACT_OF_TWO
#undef EXACT_TURN

/* --- Sums --- */

/* Adds a part of a sum to the total; returns what was rounded off, which the next part starts with
 * (Kahan 1965). An infinite total leaves nothing. */
static inline vf32 v_add_part(float *total, vf32 part) {
  const vf32 old = v_load(total);
  const vf32 sum = v_add(old, part);
  const vf32 lost = v_sub(part, v_sub(sum, old));
  v_store(total, sum);
  return v_select(v_lt(v_abs(lost), v_set1(INFINITY)), lost, v_zero());
}

#define v_exp v_exact_exp
#define v_expm1 v_exact_expm1
#define v_log v_exact_log
#define v_log1p v_exact_log1p
#define v_sigmoid v_exact_sigmoid
#define v_silu v_exact_silu
#define v_silu_near v_exact_silu
#define v_softplus v_exact_softplus
#define v_mish v_exact_mish
#define v_hardswish v_exact_hardswish
#define v_tanh v_exact_tanh
#define v_erf v_exact_erf
#define v_f16_erf v_exact_f16_erf
#define v_gelu v_exact_gelu
#define v_gelu_near v_exact_gelu
#define v_sin v_exact_sin
#define v_cos v_exact_cos

#endif
