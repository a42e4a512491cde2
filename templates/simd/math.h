/* simd_math.h - elementary functions in the vector vocabulary of simd.h, the same for every table;
 * and what of the vocabulary tables make of the rest, or those without instructions for it.
 *
 * All functions hold over the whole float range: NaN gives NaN, infinities give the limit, results
 * overflow to infinity and underflow gradually, odd functions keep the sign of zero.
 *
 * "Max n ulp" is the largest error found against float64, in units of the float spacing at the true
 * value: over all floats of absolute value 2^-14 to 128 and every 13th of the others, with and
 * without fused multiply-add. Polynomials are minimax fits of our own with float coefficients
 * (Lawson's iteration on Chebyshev nodes).
 */
#ifndef SIMD_MATH_H
#define SIMD_MATH_H

#include <math.h>

#include "simd.h"

/* --- What tables make of the rest of the vocabulary --- */

/* Make the compiler forget what it knows about a pointer variable: loads through it are neither
 * hoisted nor shared across this point, which would cost more registers than there are. */
#if defined(__GNUC__)
#define V_OPAQUE(pointer) __asm__ volatile("" : "+r"(pointer))
#else
#define V_OPAQUE(pointer) ((void)(pointer))
#endif

/* The four bytes at p in every lane. */
static inline vi32 v_i32_broadcast(const void *p) {
  int32_t word;
  memcpy(&word, p, sizeof word);
  return v_i32_set1(word);
}
#if !V_SCALES
/* 2^n for -126 <= n <= 127; 0 for -127, infinity for 128. */
static inline vf32 v_pow2i(vi32 n) {
  return v_cast_f32(v_i32_shl(v_i32_add(n, v_i32_set1(127)), 23));
}
/* a * 2^n for whole n, |n| <= 252, by two exact powers of two: rounds at most once when a is of
 * ordinary size, underflows gradually, overflows to infinity. */
static inline vf32 v_ldexp(vf32 a, vf32 n) {
  const vi32 k = v_cvt_i32(n);
  const vi32 half = v_i32_shr(k, 1);
  return v_mul(v_mul(a, v_pow2i(half)), v_pow2i(v_i32_sub(k, half)));
}
#endif
#ifndef v_cvt_nibble
/* The signed numbers of 4 bits number k, from the low bits up, of the words w. */
#define v_cvt_nibble(w, k) v_cvt_f32(v_i32_shr(v_i32_shl(w, 28 - 4 * (k)), 28))
#endif
#ifndef v_entry
/* The numbers of a table that the low bits of lanes tell: of 16, or of V_TABLES. */
#define v_entry(table, i) v_gather(table, v_i32_and(i, v_i32_set1(15)))
#endif

#if V_TABLES
/* A function of a in [0, V_TABLES - 1/2) widths: a polynomial of r, the distance from the nearest
 * multiple of the width, for each of these; c[k] are the coefficients of r^k. */
static inline vf32 v_pieces(const float (*c)[V_TABLES], float width, vf32 a) {
  const vf32 whole = v_set1(12582912.0f), sum = v_fma(a, v_set1(1.0f / width), whole); /* 1.5 * 2^23 */
  const vf32 r = v_fnma(v_sub(sum, whole), v_set1(width), a);
  const vi32 piece = v_cast_i32(sum);
#if V_TABLES == 16
  vf32 p = v_entry(c[6], piece);
#else
  vf32 p = v_entry(c[9], piece);
  p = v_fma(p, r, v_entry(c[8], piece));
  p = v_fma(p, r, v_entry(c[7], piece));
  p = v_fma(p, r, v_entry(c[6], piece));
#endif
  p = v_fma(p, r, v_entry(c[5], piece));
  p = v_fma(p, r, v_entry(c[4], piece));
  p = v_fma(p, r, v_entry(c[3], piece));
  p = v_fma(p, r, v_entry(c[2], piece));
  p = v_fma(p, r, v_entry(c[1], piece));
  return v_fma(p, r, v_entry(c[0], piece));
}
#endif

/* --- Exponentials --- */

/* Adding it rounds to whole numbers n, and leaves n + 254 in the low bits: 1.5 * 2^23 + 254. */
#define V_WHOLE 12583166.0f

/* V_EXP_LEAST is where e^x is held, which is 0 below -104: what masks hide, and lanes beyond the last
 * number. Intel's processors take 100 to 200 cycles for a product that is denormal or just too small to
 * be so, as that for -104 is, but none for a much smaller one: below 2^-511 in AVX-512's vscalefps. */

/* x - n ln 2 in two steps, the first of them exact where |x| <= 128 (Cody and Waite 1980). */
static inline vf32 v_exp_rest(vf32 x, vf32 n) {
  return v_fnma(n, v_set1(1.42860677e-6f), v_fnma(n, v_set1(0.693145752f), x));
}

/* 2^n as v_times_power takes it, of n and of the sum of n and V_WHOLE. */
static inline vf32 v_power(vf32 n, vf32 sum) { return V_SCALES ? n : sum; }

/* a * 2^n as v_ldexp has it: what is left of n + 254 and what half of it takes away are exponents,
 * 127 more than those of 2^n's factors, as floats have them. */
static inline vf32 v_times_power(vf32 a, vf32 power) {
#if V_SCALES
  return v_ldexp(a, power);
#else
  const vi32 bits = v_cast_i32(power), half = v_i32_shr(bits, 1);
  const vf32 first = v_cast_f32(v_i32_shl(half, 23));
  return v_mul(v_mul(a, first), v_cast_f32(v_i32_shl(v_i32_sub(bits, half), 23)));
#endif
}

/* The same for -190 <= n <= 63 and |a| < 2^63, by one power of two that depends on n. */
static inline vf32 v_times_bounded(vf32 a, vf32 power) {
#if V_SCALES
  return v_ldexp(a, power);
#else
  const vi32 bits = v_i32_sub(v_cast_i32(power), v_i32_set1(63));
  return v_mul(v_mul(a, v_cast_f32(v_i32_shl(bits, 23))), v_set1(5.42101086e-20f)); /* 2^-64 */
#endif
}

/* e^r - 1 for |r| <= ln(2) / 2: r + r^2 P(r), degree 6. */
static inline vf32 v_expm1_reduced(vf32 r) {
  vf32 p = v_set1(0.00138213055f);
  p = v_fma(p, r, v_set1(0.00836866815f));
  p = v_fma(p, r, v_set1(0.0416682586f));
  p = v_fma(p, r, v_set1(0.166665211f));
  p = v_fma(p, r, v_set1(0.49999994f));
  return v_fma(v_mul(r, r), p, r);
}

/* q with e^x = (1 + q) 2^n, for n = x / ln 2 to the nearest; |x| <= 128. */
static inline vf32 v_exp_parts(vf32 x, vf32 *n) {
  const vf32 whole = v_set1(V_WHOLE);
  *n = v_sub(v_fma(x, v_set1(1.44269504f), whole), whole);
  return v_expm1_reduced(v_exp_rest(x, *n));
}

#if V_TABLES == 16
/* 2^(i / 16) for the low bits i of a sum. */
static inline vf32 v_root(vf32 sum) {
  static const float roots[16] = {
      1.0f, 1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f, 1.29683959f, 1.35425556f,
      1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f, 1.68179286f, 1.75625217f, 1.8340081f, 1.91520655f};
  return v_entry(roots, v_cast_i32(sum));
}
#endif

/* m with e^x = m 2^n, and 2^n; for callers that multiply by m before they scale, so that nothing is
 * lost where e^x itself underflows. With tables of 16 n counts sixteenths, of which scaling takes whole ones,
 * m is 2^(i / 16) e^r, and e^r has degree 3. */
static inline vf32 v_exp_scaled(vf32 x, vf32 *power) {
#if V_TABLES == 16
  const vf32 whole = v_set1(786432.0f), sum = v_fma(x, v_set1(1.44269504f), whole); /* 1.5 * 2^19 */
  const vf32 n = v_sub(sum, whole), r = v_exp_rest(x, n), root = v_root(sum);
  const vf32 tail = v_fma(v_set1(0.166667208f), r, v_set1(0.500016153f));
  *power = n;
  return v_fma(root, v_fma(v_mul(r, r), tail, r), root);
#else
  const vf32 whole = v_set1(V_WHOLE), sum = v_fma(x, v_set1(1.44269504f), whole);
  const vf32 n = v_sub(sum, whole);
  *power = v_power(n, sum);
  return v_add(v_set1(1.0f), v_expm1_reduced(v_exp_rest(x, n)));
#endif
}

/* e^x. Max 1.02 ulp. */
static inline vf32 v_exp(vf32 x) {
  vf32 power;
  const vf32 held = v_min_const(v_set1(89.0f), v_max_const(v_set1(V_EXP_LEAST), x));
  const vf32 m = v_exp_scaled(held, &power);
  return v_times_power(m, power);
}

/* e^a for a <= 43, as exact as v_exp. */
static inline vf32 v_exp_bounded(vf32 a) {
  vf32 power;
  const vf32 m = v_exp_scaled(v_max_const(v_set1(V_EXP_LEAST), a), &power);
  return v_times_bounded(m, power);
}

/* The same, but 0 below e^-87, the least normal numbers: products with denormals take some cores 150 cycles. */
static inline vf32 v_exp_normal(vf32 a) {
  vf32 power;
  const vf32 held = v_select(v_lt(a, v_set1(-87.0f)), v_set1(V_EXP_LEAST), a);
  const vf32 m = v_exp_scaled(held, &power);
  return v_times_bounded(m, power);
}

/* e^x - 1 = 2^n (e^r - 1) + (2^n - 1), in halves so that 2^n does not overflow before the
 * result. Max 1.59 ulp. */
static inline vf32 v_expm1(vf32 x) {
  vf32 n;
  const vf32 held = v_min_const(v_set1(89.0f), v_max_const(v_set1(-20.0f), x));
  const vf32 q = v_exp_parts(held, &n);
  const vf32 power = v_pow2i(v_i32_sub(v_cvt_i32(n), v_i32_set1(1)));
  const vf32 half = v_fma(power, q, v_sub(power, v_set1(0.5f)));
  return v_copysign(v_select(v_eq(n, v_zero()), q, v_add(half, half)), x);
}

/* --- Logarithms --- */

/* y = m 2^k with m, which is returned, in [sqrt(1/2), sqrt(2)); for positive normal y. */
static inline vf32 v_log_split(vf32 y, vf32 *k) {
  const vi32 bits = v_cast_i32(y);
  const vi32 exponent = v_i32_shr(v_i32_sub(bits, v_i32_set1(0x3f3504f3)), 23);
  *k = v_cvt_f32(exponent);
  return v_cast_f32(v_i32_sub(bits, v_i32_shl(exponent, 23)));
}

/* log(1 + f) + k ln 2 for 1 + f in [sqrt(1/2), sqrt(2)]: f - f^2 / 2 + f^3 P(f), degree 11; ln 2
 * in two parts, k times the first is exact. */
static inline vf32 v_log_reduced(vf32 f, vf32 k) {
  vf32 p = v_set1(0.0674955621f);
  p = v_fma(p, f, v_set1(-0.116701923f));
  p = v_fma(p, f, v_set1(0.118834704f));
  p = v_fma(p, f, v_set1(-0.124062076f));
  p = v_fma(p, f, v_set1(0.142203629f));
  p = v_fma(p, f, v_set1(-0.166679904f));
  p = v_fma(p, f, v_set1(0.200020716f));
  p = v_fma(p, f, v_set1(-0.250000089f));
  p = v_fma(p, f, v_set1(0.333333135f));
  const vf32 square = v_mul(f, f);
  vf32 tail = v_mul(v_mul(square, f), p);
  tail = v_fma(k, v_set1(-0.00021219444f), tail);
  tail = v_fnma(v_set1(0.5f), square, tail);
  return v_fma(k, v_set1(0.693359375f), v_add(f, tail));
}

/* log(y), given r that is log(y) where y is positive and finite. */
static inline vf32 v_log_limits(vf32 y, vf32 r) {
  const vf32 pole = v_select(v_eq(y, v_zero()), v_set1(-INFINITY), v_set1(NAN));
  const vf32 finite = v_select(v_lt(y, v_set1(INFINITY)), r, y);
  return v_select(v_gt(y, v_zero()), finite, pole);
}

/* log(x); -infinity at zero, NaN below. Max 0.83 ulp. */
static inline vf32 v_log(vf32 x) {
  vf32 k;
  const vmask denormal = v_lt(x, v_set1(1.17549435e-38f));
  const vf32 y = v_select(denormal, v_mul(x, v_set1(8388608.0f)), x);
  const vf32 f = v_sub(v_log_split(y, &k), v_set1(1.0f));
  k = v_sub(k, v_select(denormal, v_set1(23.0f), v_zero()));
  return v_log_limits(x, v_log_reduced(f, k));
}

/* log(1 + y) for finite y > -1: the log of the rounded sum, corrected in its reduced argument by
 * what the sum lost (Knuth's TwoSum). */
static inline vf32 v_log1p_finite(vf32 y) {
  vf32 k;
  const vf32 one = v_set1(1.0f);
  const vf32 sum = v_add(one, y);
  const vf32 part = v_sub(sum, one);
  const vf32 lost = v_add(v_sub(one, v_sub(sum, part)), v_sub(y, part));
  const vf32 f = v_sub(v_log_split(sum, &k), one);
  return v_log_reduced(v_add(f, v_ldexp(lost, v_neg(k))), k);
}

/* log(1 + x); -infinity at -1, NaN below. Max 1.38 ulp. */
static inline vf32 v_log1p(vf32 x) {
  return v_copysign(v_log_limits(v_add(v_set1(1.0f), x), v_log1p_finite(x)), x);
}

/* --- Sigmoid and its relatives --- */

/* e^x / (1 + e^x), which keeps small results. Max 2.8 ulp. */
static inline vf32 v_sigmoid(vf32 x) {
  const vf32 e = v_exp_bounded(v_min_const(v_set1(30.0f), x));
  return v_div(e, v_add(v_set1(1.0f), e));
}

/* x e^x / (1 + e^x), scaled last. Max 3.1 ulp. */
static inline vf32 v_silu(vf32 x) {
  vf32 power;
  const vf32 one = v_set1(1.0f);
  const vf32 y = v_max_const(v_set1(-120.0f), x); /* -0 below, x above 80 */
  const vf32 m = v_exp_scaled(v_min_const(v_set1(80.0f), y), &power);
  const vf32 denominator = v_add(one, v_times_power(m, power));
  return v_times_power(v_mul(v_div(y, denominator), m), power);
}

/* 2^h for |h| <= 63, degree 4, or with tables of 16 degree 2. Max error 5e-7 of the result. */
static inline vf32 v_exp2_near(vf32 h) {
#if V_TABLES == 16
  const vf32 whole = v_set1(786432.0f), sum = v_add(h, whole); /* 1.5 * 2^19 */
  const vf32 n = v_sub(sum, whole), r = v_sub(h, n), root = v_root(sum);
  const vf32 tail = v_fma(v_set1(0.240227863f), r, v_set1(0.693187773f));
  return v_times_bounded(v_fma(v_mul(root, r), tail, root), n);
#else
  const vf32 whole = v_set1(V_WHOLE), sum = v_add(h, whole);
  const vf32 n = v_sub(sum, whole), r = v_sub(h, n);
  vf32 p = v_set1(0.00957092736f);
  p = v_fma(p, r, v_set1(0.0559176877f));
  p = v_fma(p, r, v_set1(0.240247145f));
  p = v_fma(p, r, v_set1(0.69312185f));
  p = v_fma(p, r, v_set1(0.999999285f));
  return v_times_bounded(p, v_power(n, sum));
#endif
}

/* v_silu for what is rounded to float16 next, or comes of products that were rounded: for e = e^-|x|
 * 1 / (1 + e) has degree 3, then a step of Newton's. Max error 8e-6 of the result, and 1e-9 below -24. */
static inline vf32 v_silu_near(vf32 x) {
  const vf32 one = v_set1(1.0f), y = v_max_const(v_set1(-24.0f), x);
  const vf32 a = v_min_const(v_set1(24.0f), v_abs(x));
  const vf32 e = v_exp2_near(v_mul(v_set1(-1.44269504f), a)), sum = v_add(one, e);
  vf32 q = v_set1(-0.221833438f);
  q = v_fma(q, e, v_set1(0.665506423f));
  q = v_fma(q, e, v_set1(-0.942806005f));
  q = v_fma(q, e, v_set1(0.998266816f));
  q = v_mul(q, v_fnma(sum, q, v_set1(2.0f)));
  return v_mul(v_mul(y, v_select(v_lt(x, v_zero()), e, one)), q);
}

/* log(1 + e^x) as max(x, 0) + log(1 + e) for e = e^-|x|, which is 2 artanh(s) = 2 s + s^3 P(s^2),
 * degree 9, for s = e / (2 + e). Max 3.1 ulp. */
static inline vf32 v_softplus(vf32 x) {
  const vf32 e = v_exp_bounded(v_neg(v_abs(x)));
  const vf32 s = v_div(e, v_add(v_set1(2.0f), e));
  const vf32 t = v_mul(s, s);
  vf32 p = v_set1(0.280263603f);
  p = v_fma(p, t, v_set1(0.27998665f));
  p = v_fma(p, t, v_set1(0.400217354f));
  p = v_fma(p, t, v_set1(0.666664124f));
  return v_add(v_relu(x), v_fma(v_mul(p, t), s, v_add(s, s)));
}

/* x tanh(log(1 + e^x)) = x e (e + 2) / (e (e + 2) + 2) for e = e^x; below zero scaled last.
 * Max 3.93 ulp. */
static inline vf32 v_mish(vf32 x) {
  vf32 power;
  const vf32 one = v_set1(1.0f), two = v_set1(2.0f);
  const vf32 y = v_max_const(v_set1(-120.0f), x); /* -0 below, x above 20 */
  const vf32 m = v_exp_scaled(v_min_const(v_set1(20.0f), y), &power);
  const vf32 e = v_times_bounded(m, power);
  const vmask below = v_lt(x, v_zero());
  const vf32 sum = v_add(e, two);
  const vf32 ratio = v_div(v_mul(v_select(below, one, e), sum), v_fma(e, sum, two));
  const vf32 product = v_mul(v_select(below, v_mul(y, m), y), ratio);
  return v_select(below, v_times_bounded(product, power), product);
}

/* x min(max(x + 3, 0), 6) / 6. Max 2.59 ulp. */
static inline vf32 v_hardswish(vf32 x) {
  const vf32 y = v_max_const(v_set1(-3.0f), x);
  const vf32 gate = v_min_const(v_set1(6.0f), v_add(y, v_set1(3.0f)));
  return v_mul(v_mul(y, v_set1(1.0f / 6.0f)), gate);
}

/* tanh(x) = t / (t + 2) for t = e^2x - 1 = 2^n (e^r - 1) + (2^n - 1), or by tables up to 9, from where
 * on it rounds to 1. Max 3.2 ulp. */
static inline vf32 v_tanh(vf32 x) {
#if V_TABLES == 16
  static const float width = 0.59375f;
  static const float pieces[7][16] = {
    {-0.0f, 0.532587349f, 0.829801917f, 0.944829464f, 0.982845008f, 0.994736671f, 0.998391807f, 0.999509275f,
      0.999850333f, 0.999954343f, 0.999986053f, 0.999995768f, 0.999998689f, 0.999999583f, 0.999999881f, 0.99999994f},
    {1.0f, 0.716352642f, 0.311428607f, 0.107297339f, 0.0340156481f, 0.0104989931f, 0.00321375788f, 0.00098123739f,
      0.000299362582f, 9.13099284e-05f, 2.78488387e-05f, 8.49349817e-06f, 2.59037824e-06f, 7.90021431e-07f,
      2.40942995e-07f, 7.34834629e-08f},
    {-2.40978011e-06f, -0.381529182f, -0.258424819f, -0.1013823f, -0.033427909f, -0.010447626f, -0.00320434221f,
      -0.000983573496f, -0.000304419984f, -9.10703529e-05f, -2.31952981e-05f, -1.14965078e-05f, 6.73019827e-07f,
      3.71072065e-06f, -4.96581151e-07f, 4.55710369e-06f},
    {-0.333215773f, -0.0357781798f, 0.110652946f, 0.0600224733f, 0.0215200149f, 0.00688894745f, 0.00213203393f,
      0.000653140363f, 0.000199468777f, 6.08598493e-05f, 1.85635472e-05f, 5.6617796e-06f, 1.72676505e-06f,
      5.26635858e-07f, 1.60614789e-07f, 4.89849832e-08f},
    {-0.00187133776f, 0.146418929f, -0.00563763222f, -0.0228018947f, -0.0101334862f, -0.00325538195f,
      -0.00118679891f, -0.000241204485f, 5.37718406e-05f, -3.75029231e-05f, -0.000149224405f, 8.74854377e-05f,
      -9.90096669e-05f, -0.0001356227f, 7.60798639e-06f, -0.000139288968f},
    {0.146459416f, -0.045581121f, -0.0258083548f, 0.00384563277f, 0.00341933686f, 0.00129999791f, 0.000422914629f,
      0.000131491368f, 4.03267222e-05f, 1.23201189e-05f, 3.75951822e-06f, 1.14677937e-06f, 3.4976992e-07f,
      1.06672118e-07f, 3.25355671e-08f, 9.92080285e-09f},
    {-0.0426271558f, -0.0328609012f, 0.0167327132f, 0.000920721912f, 0.000196053719f, -0.00126458844f,
      0.000824378803f, -0.000681766483f, -0.0011696911f, 4.92247527e-05f, 0.00105275225f, -0.000681006466f,
      0.000739088515f, 0.00101944606f, -5.79456864e-05f, 0.00104889029f},
  };
  return v_copysign(v_pieces(pieces, width, v_min_const(v_set1(9.125f), v_abs(x))), x);
#else
  vf32 n;
  const vf32 a = v_abs(x);
  const vf32 q = v_exp_parts(v_min_const(v_set1(20.0f), v_add(a, a)), &n);
  const vf32 power = v_pow2i(v_cvt_i32(n));
  const vf32 t = v_fma(power, q, v_sub(power, v_set1(1.0f)));
  return v_copysign(v_div(t, v_add(t, v_set1(2.0f))), x);
#endif
}

/* --- Error function --- */

/* erf(x): x + x P(x^2), degree 13, below 0.92; from there on 1 - e^R(x), where R fits
 * log(1 - erf(x)) up to 4, beyond which erf rounds to 1. Or by tables. Max 2.0 ulp. */
static inline vf32 v_erf(vf32 x) {
#if V_TABLES
#if V_TABLES == 16
  static const float width = 0.2578125f;
  static const float pieces[7][16] = {
    {-0.0f, 0.284591436f, 0.534123063f, 0.725959837f, 0.855271816f, 0.931698084f, 0.971302092f, 0.9892959f,
      0.996463776f, 0.998967111f, 0.999733686f, 0.999939442f, 0.999987841f, 0.999997854f, 0.999999642f, 0.99999994f},
    {1.12837923f, 1.05581713f, 0.86494714f, 0.620379865f, 0.389576763f, 0.214188278f, 0.103101633f, 0.0434512906f,
      0.0160327144f, 0.00517939078f, 0.00146493234f, 0.000362763618f, 7.8649733e-05f, 1.49292546e-05f,
      2.48111223e-06f, 3.61012411e-07f},
    {-2.25616313e-05f, -0.27220884f, -0.446016908f, -0.479821175f, -0.40175721f, -0.276112825f, -0.15948312f,
      -0.0784042552f, -0.0330940522f, -0.0119950352f, -0.00379867828f, -0.00102970132f, -0.000212685991f,
      -4.2796044e-05f, 1.87921596e-05f, 1.40234879e-05f},
    {-0.374734789f, -0.305172831f, -0.135027617f, 0.0406116284f, 0.146346539f, 0.165875196f, 0.130103111f,
      0.0798610449f, 0.0401237905f, 0.0168635752f, 0.00600292813f, 0.0018240246f, 0.000475590525f, 0.00010680571f,
      2.07161247e-05f, 3.47764603e-06f},
    {-0.0301141478f, 0.130818695f, 0.187745705f, 0.143635094f, 0.0594325848f, -0.0131823765f, -0.0478174835f,
      -0.0477959514f, -0.0261161663f, -0.0191906318f, -0.00298604043f, -0.00209589512f, -0.00554161984f,
      -0.00131725287f, -0.00446055504f, -0.00246592727f},
    {0.379423141f, 0.0790265203f, 0.00442024879f, -0.0563030168f, -0.0678663105f, -0.0418402217f, -0.00980865955f,
      0.00906746462f, 0.0129479636f, 0.00937814452f, 0.00489707245f, 0.00201171869f, 0.000674785697f,
      0.000188411388f, 4.43234785e-05f, 8.85420923e-06f},
    {-0.830379188f, -0.0654468685f, -0.210365787f, -0.000523376511f, -0.0310498942f, -0.0454076454f, 0.0317202061f,
      0.0815723762f, -0.170212552f, 0.142076299f, -0.142083362f, -0.00719338888f, 0.194776833f, 0.0459942073f,
      0.176879466f, 0.0982833654f},
  };
#else
  static const float width = 0.53125f;
  static const float pieces[10][8] = {
    {-0.0f, 0.547528446f, 0.867058277f, 0.975797713f, 0.997345984f, 0.999827683f, 0.999993443f, 0.999999881f},
    {1.12837923f, 0.850913882f, 0.364902884f, 0.088987723f, 0.0123408204f, 0.000973238086f, 4.36470873e-05f,
      1.11314716e-06f},
    {-2.79907053e-05f, -0.452048182f, -0.387712777f, -0.141820699f, -0.0262302421f, -0.00257884804f,
      -0.000136264498f, -1.56300339e-05f},
    {-0.373931885f, -0.123534188f, 0.152993321f, 0.121026367f, 0.0330373868f, 0.00425348384f, 0.000281091838f,
      9.89147975e-06f},
    {-0.0656743422f, 0.183510974f, 0.0482021049f, -0.0494126827f, -0.0259384271f, -0.00523228291f,
      -0.000603114604f, 0.000792379084f},
    {1.079036f, -0.00207511568f, -0.0662478358f, -0.0050048288f, 0.0124985604f, 0.00381029653f, 0.000427724561f,
      2.23396801e-05f},
    {-7.72458982f, -0.0489207767f, 0.00518808654f, 0.0212767124f, -0.0113636423f, 0.00795382354f, 0.00420544203f,
      -0.0183106754f},
    {34.2038422f, 0.0100702783f, 0.0113468617f, -0.00514477864f, -0.00195898558f, 0.000692897418f,
      0.000214729182f, 1.92428688e-05f},
    {-79.0214767f, 0.0117225405f, 0.0333267786f, -0.0400416069f, 0.068815656f, -0.0710475892f, -0.0322781019f,
      0.129249454f},
    {74.1409912f, -0.0143379848f, 0.00912623666f, -0.00415255828f, 0.00044072009f, -0.000197903137f,
      2.44864841e-05f, 7.3265669e-06f},
  };
#endif
  return v_copysign(v_pieces(pieces, width, v_min_const(v_set1(3.96875f), v_abs(x))), x);
#else
  vf32 power;
  const vf32 t = v_mul(x, x);
  vf32 p = v_set1(7.99280388e-05f);
  p = v_fma(p, t, v_set1(-0.000804917479f));
  p = v_fma(p, t, v_set1(0.00519237714f));
  p = v_fma(p, t, v_set1(-0.0268557277f));
  p = v_fma(p, t, v_set1(0.112836257f));
  p = v_fma(p, t, v_set1(-0.376126289f));
  p = v_fma(p, t, v_set1(0.128379166f));
  const vf32 near_zero = v_fma(p, x, x);
  const vf32 a = v_min_const(v_set1(4.0f), v_abs(x));
  vf32 r = v_set1(0.000198214853f);
  r = v_fma(r, a, v_set1(-0.00306545803f));
  r = v_fma(r, a, v_set1(0.0223151315f));
  r = v_fma(r, a, v_set1(-0.104113586f));
  r = v_fma(r, a, v_set1(-0.636976123f));
  r = v_fma(r, a, v_set1(-1.12779725f));
  r = v_fma(r, a, v_set1(-0.000166442944f));
  const vf32 one = v_set1(1.0f);
  const vf32 m = v_exp_scaled(r, &power);
  const vf32 rest = v_sub(one, v_times_bounded(m, power));
  return v_copysign(v_select(v_lt(a, v_set1(0.92f)), near_zero, rest), x);
#endif
}

/* x Phi(x) with Phi the normal distribution function, 0.5 (1 + erf(x / sqrt(2))). For a = |x|,
 * Phi(-a) = 0.5 e^(-a^2 / 2) (1 + a p(a) / q(a)) / (1 + a) with polynomials p and q of degrees 4
 * and 5: a p / q stays within [-0.2, 0.05], so that its error counts little. a^2 is split
 * into an exact square and a rest, which keeps the far negative tail exact as well.
 * Max 3.86 ulp. With tables of -a Phi(-a) that is so down to -4; below, the error is 5e-11 at most. */
static inline vf32 v_gelu(vf32 x) {
#if V_TABLES
#if V_TABLES == 16
  static const float width = 0.4375f;
  static const float pieces[7][16] = {
    {-0.0f, -0.144757539f, -0.166938588f, -0.124261916f, -0.0701035261f, -0.0313972346f, -0.0113726771f,
      -0.00336103979f, -0.000814201776f, -0.000162096898f, -2.65633626e-05f, -3.58661237e-06f, -3.9926141e-07f,
      -3.66597241e-08f, -2.77721579e-09f, -1.73624393e-10f},
    {-0.5f, -0.172266498f, 0.047261171f, 0.126602814f, 0.110926151f, 0.0654050559f, 0.0290685277f, 0.0101325875f,
      0.00282175955f, 0.00063413789f, 0.000115702474f, 1.72069813e-05f, 2.09142081e-06f, 2.08157275e-07f,
      1.69893504e-08f, 1.13833598e-09f},
    {0.398942262f, 0.327835411f, 0.167910263f, 0.0233802404f, -0.0458343737f, -0.0507745668f, -0.0311146099f,
      -0.0135291051f, -0.0044725053f, -0.00115799962f, -0.000238543304f, -3.94656672e-05f, -5.27629936e-06f,
      -5.72450062e-07f, -5.05563165e-08f, -3.64281427e-09f},
    {1.01908279e-06f, -0.100677036f, -0.128321618f, -0.0839888304f, -0.0235929303f, 0.0104361149f, 0.0160919856f,
      0.0100681288f, 0.00419996213f, 0.00129475782f, 0.000307247305f, 5.73091129e-05f, 8.50669312e-06f,
      1.01293449e-06f, 9.72953629e-08f, 7.56901208e-09f},
    {-0.06650839f, -0.0406778976f, 0.00870169885f, 0.0357012823f, 0.0289484877f, 0.0100244936f, -0.00171985489f,
      -0.00401882688f, -0.00248359307f, -0.000970879802f, -0.000274314021f, -5.88721778e-05f, -9.8401606e-06f,
      -1.29991577e-06f, -1.37012165e-07f, -1.15987442e-08f},
    {0.000132584057f, 0.0208802521f, 0.0200459901f, 0.00377674308f, -0.00783201586f, -0.0077572572f,
      -0.00289259688f, 0.000235503408f, 0.000839600165f, 0.000495207263f, 0.000178331349f, 4.57032329e-05f,
      8.81279902e-06f, 1.3142444e-06f, 1.54043477e-07f, 1.43398973e-08f},
    {0.00959781464f, 0.00378363999f, -0.0037639325f, -0.00554415211f, -0.00175790477f, 0.00153897004f,
      0.00172340532f, 0.000604740577f, -5.59123473e-05f, -0.00015293363f, -7.92282372e-05f, -2.50072371e-05f,
      -5.58650709e-06f, -9.33106264e-07f, -1.19969187e-07f, -1.20674599e-08f},
  };
#else
  static const float width = 0.90625f;
  static const float pieces[10][8] = {
    {-0.0f, -0.165301606f, -0.0633550063f, -0.00890786387f, -0.000523742638f, -1.32846508e-05f, -1.46903133e-07f,
      -7.11254222e-10f},
    {-0.5f, 0.0573806986f, 0.104948007f, 0.0236521233f, 0.00188211736f, 5.99625855e-05f, 7.9720752e-07f,
      4.50700899e-09f},
    {0.398942292f, 0.155936182f, -0.049599275f, -0.0267013088f, -0.00311414641f, -0.000128614891f,
      -2.08928464e-06f, -1.39236986e-08f},
    {-6.11457892e-07f, -0.127033174f, -0.0166676659f, 0.0152219553f, 0.00308738952f, 0.000173296779f,
      3.51216272e-06f, 2.7907312e-08f},
    {-0.0664791539f, 0.0118441842f, 0.0263904091f, -0.002844495f, -0.00197284832f, -0.000163002245f,
      -4.23929123e-06f, -4.0706297e-08f},
    {-9.80266268e-05f, 0.0192630198f, -0.00857189577f, -0.00194870436f, 0.000779160473f, 0.000112025322f,
      3.89218667e-06f, 4.58730369e-08f},
    {0.0104312832f, -0.00499823224f, -0.00136705243f, 0.00152513769f, -0.00012286767f, -5.66998679e-05f,
      -2.80792074e-06f, -4.16357508e-08f},
    {-0.00116786466f, -0.00189477019f, 0.0016199674f, -0.000343389576f, -5.65521768e-05f, 2.01673283e-05f,
      1.63209575e-06f, 3.21049107e-08f},
    {0.000324301334f, 0.000757666421f, -8.27234107e-05f, -4.73899636e-05f, 4.30156433e-05f, -3.95403595e-06f,
      -7.68704297e-07f, -2.10731788e-08f},
    {-0.000711148139f, 0.000116809744f, -0.000292690063f, 9.64121227e-06f, -9.86650139e-06f, -9.86398092e-08f,
      2.35336444e-07f, 8.47213943e-09f},
  };
#endif
  const vf32 tail = v_pieces(pieces, width, v_min_const(v_set1(6.75f), v_abs(x)));
  return v_select(v_lt(x, v_set1(-6.75f)), v_neg(v_zero()), v_add(v_relu(x), tail));
#else
  const vf32 a = v_min_const(v_set1(14.5f), v_abs(x)); /* -0 below -14.5 */
  const vf32 square = v_mul(a, a);
  vf32 p = v_fma(v_set1(-0.0179329161f), a, v_set1(-0.0290786922f));
  p = v_fma(v_set1(-0.00340753165f), square, p);
  p = v_fma(p, square, v_fma(v_set1(0.0644831657f), a, v_set1(0.277908921f)));
  p = v_mul(p, a);
  vf32 q = v_fma(v_set1(0.0168597512f), a, v_set1(0.155259579f));
  q = v_fma(q, square, v_fma(v_set1(0.690784335f), a, v_set1(1.72083342f)));
  q = v_fma(q, square, v_fma(v_set1(2.34558129f), a, v_set1(1.375f)));
  const vf32 half = v_mul(v_set1(-0.5f), a);
  const vf32 whole = v_set1(V_WHOLE), sum = v_fma(square, v_set1(-0.72134752f), whole);
  const vf32 n = v_sub(sum, whole);
  const vf32 head = v_cast_f32(v_i32_and(v_cast_i32(a), v_i32_set1(-4096)));
  const vf32 rest = v_mul(v_sub(a, head), v_fma(v_set1(-0.5f), head, half));
  vf32 r = v_fnma(n, v_set1(0.693145752f), v_mul(v_mul(v_set1(-0.5f), head), head));
  r = v_add(r, v_fnma(n, v_set1(1.42860677e-6f), rest));
  /* (1 + e) (q + p) as q + (p + e (q + p)), which rounds less. */
  const vf32 e = v_expm1_reduced(r);
  const vf32 product = v_add(q, v_fma(e, v_add(q, p), p));
  const vf32 ratio = v_div(v_mul(half, product), v_fma(q, a, q));
  const vf32 tail = v_times_bounded(ratio, v_power(n, sum));
  return v_select(v_lt(x, v_zero()), tail, v_add(x, tail));
#endif
}

/* The same for what is rounded to float16 next, or comes of products that were rounded: for a = |x|,
 * Phi(-a) is 2^h(a), degree 7, and 2^r for |r| <= 1/2 has degree 4. Max error 8e-6 of the result and
 * 1e-6, -6e-9 below -6. Tables are faster and more exact. */
static inline vf32 v_gelu_near(vf32 x) {
#if V_TABLES
  return v_gelu(x);
#else
  const vf32 a = v_min_const(v_set1(6.0f), v_abs(x));
  vf32 h = v_set1(-1.83488305e-06f);
  h = v_fma(h, a, v_set1(6.15996687e-05f));
  h = v_fma(h, a, v_set1(-0.000930535141f));
  h = v_fma(h, a, v_set1(0.00850792881f));
  h = v_fma(h, a, v_set1(-0.0539601408f));
  h = v_fma(h, a, v_set1(-0.458464324f));
  h = v_fma(h, a, v_set1(-1.15125108f));
  h = v_fma(h, a, v_set1(-0.999995291f));
  const vf32 tail = v_mul(a, v_exp2_near(h));
  return v_select(v_lt(x, v_zero()), v_neg(tail), v_sub(x, tail));
#endif
}

/* --- Sine and cosine --- */

#define V_TRIG_MAX 8192.0f /* beyond it lanes are reduced one by one, in integers */

/* n = a / (pi / 2) to the nearest, and a - n pi / 2 in four steps, the first three as good as
 * exact (Cody and Waite 1980), for 0 <= a <= V_TRIG_MAX. */
static inline vf32 v_trig_reduce(vf32 a, vf32 *n) {
  *n = v_round(v_mul(a, v_set1(0.636619772f)));
  vf32 r = v_fnma(*n, v_set1(1.5703125f), a);
  r = v_fnma(*n, v_set1(0.000483751297f), r);
  r = v_fnma(*n, v_set1(7.54953362e-08f), r);
  return v_fnma(*n, v_set1(2.56334415e-12f), r);
}

/* sin(r + quadrant pi / 2) for |r| <= pi / 4: r + r^3 S(r^2), degree 9, or in odd quadrants
 * cos(r) = 1 - r^2 / 2 + r^4 C(r^2), degree 10; negated in the second half of the turn. */
static inline vf32 v_sin_quadrant(vf32 r, vi32 quadrant) {
  const vf32 one = v_set1(1.0f);
  const vf32 t = v_mul(r, r);
  vf32 s = v_set1(2.83271902e-06f);
  s = v_fma(s, t, v_set1(-0.000198530717f));
  s = v_fma(s, t, v_set1(0.0083333794f));
  s = v_fma(s, t, v_set1(-0.166666672f));
  s = v_fma(v_mul(s, t), r, r);
  vf32 c = v_set1(-2.89776466e-07f);
  c = v_fma(c, t, v_set1(2.48229862e-05f));
  c = v_fma(c, t, v_set1(-0.00138889824f));
  c = v_fma(c, t, v_set1(0.0416666679f));
  c = v_fma(v_mul(t, t), c, v_fnma(v_set1(0.5f), t, one));
  const vf32 odd = v_copysign(one, v_cast_f32(v_i32_shl(quadrant, 31)));
  const vf32 turn = v_copysign(one, v_cast_f32(v_i32_shl(quadrant, 30)));
  return v_mul(v_select(v_lt(odd, v_zero()), c, s), turn);
}

/* For a > V_TRIG_MAX: n = a / (pi / 2) to the nearest, modulo 4, and a - n pi / 2: the 24 digits of
 * a by those 96 of 2 / pi that matter (Payne and Hanek 1983). NaN of what is infinite. */
static inline float v_far_reduce(float a, int32_t *n) {
  static const uint32_t digits[8] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                     0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
  uint32_t bits, part[3];
  memcpy(&bits, &a, sizeof bits);
  *n = 0;
  if (!(a < INFINITY)) return NAN;
  const uint32_t first = (bits >> 23) - 120, shift = first & 31; /* its digit times a's last is 2 */
  for (uint32_t k = 0; k < 3; k++) {
    const uint32_t *const d = digits + (first >> 5) + k;
    part[k] = shift != 0 ? d[0] << shift | d[1] >> (32 - shift) : d[0];
  }
  const uint64_t whole = (bits & 0x7fffffu) | 0x800000u;
  const uint64_t low = whole * part[1] + (whole * part[2] >> 32);
  const uint64_t turns = (whole * part[0] << 32) + low; /* in units of 2^-62 quarters */
  const uint32_t quarter = (uint32_t)((turns + (UINT64_C(1) << 61)) >> 62);
  const uint64_t rest = turns - ((uint64_t)quarter << 62);
  *n = (int32_t)quarter;
  const int32_t high = (int32_t)(rest >> 32 ^ 0x80000000u) - INT32_MAX - 1;
  return ((float)high * 4294967296.0f + (float)(uint32_t)rest) * 3.4061217e-19f;
}

/* y, and where x is far from 0 the sine of x + turn pi / 2. */
static inline vf32 v_far_sines(vf32 x, vf32 y, int32_t turn) {
  float in[V_LANES], out[V_LANES], sines[V_LANES];
  v_store(in, x);
  v_store(out, y);
  for (size_t i = 0; i < V_LANES; i++) {
    if (!(fabsf(in[i]) > V_TRIG_MAX)) continue;
    int32_t n;
    const float r = v_far_reduce(fabsf(in[i]), &n);
    v_store(sines, v_sin_quadrant(v_set1(r), v_i32_set1(n + turn)));
    out[i] = turn == 0 && in[i] < 0.0f ? -sines[0] : sines[0];
  }
  return v_load(out);
}

/* sin(x). Max 2.34 ulp up to V_TRIG_MAX, 2.9 beyond. */
static inline vf32 v_sin(vf32 x) {
  vf32 n;
  const vf32 r = v_trig_reduce(v_abs(x), &n);
  const vf32 y = v_mul(v_sin_quadrant(r, v_cvt_i32(n)), v_copysign(v_set1(1.0f), x));
  if (!v_mask_any(v_gt(v_abs(x), v_set1(V_TRIG_MAX)))) return y;
  return v_far_sines(x, y, 0);
}

/* cos(x), the sine a quarter turn on. Max 2.33 ulp up to V_TRIG_MAX, 2.9 beyond. */
static inline vf32 v_cos(vf32 x) {
  vf32 n;
  const vf32 r = v_trig_reduce(v_abs(x), &n);
  const vf32 y = v_sin_quadrant(r, v_i32_add(v_cvt_i32(n), v_i32_set1(1)));
  if (!v_mask_any(v_gt(v_abs(x), v_set1(V_TRIG_MAX)))) return y;
  return v_far_sines(x, y, 1);
}

/* --- Parts of vectors: the first n lanes, 0 <= n <= V_LANES; memory past n is not touched, other
 * lanes load as 0. Tables that have instructions for it define these names themselves. --- */

#if !V_PARTS_32
static inline vf32 v_load_n(const float *p, size_t n) {
  float lanes[V_LANES] = {0};
  for (size_t i = 0; i < n; i++) lanes[i] = p[i];
  return v_load(lanes);
}
static inline void v_store_n(float *p, vf32 a, size_t n) {
  float lanes[V_LANES];
  v_store(lanes, a);
  for (size_t i = 0; i < n; i++) p[i] = lanes[i];
}
static inline vi32 v_i32_load_n(const int32_t *p, size_t n) {
  int32_t lanes[V_LANES] = {0};
  for (size_t i = 0; i < n; i++) lanes[i] = p[i];
  return v_i32_load(lanes);
}
static inline void v_i32_store_n(int32_t *p, vi32 a, size_t n) {
  int32_t lanes[V_LANES];
  v_i32_store(lanes, a);
  for (size_t i = 0; i < n; i++) p[i] = lanes[i];
}
#endif
#if !V_PARTS_16
static inline vf32 v_load_u8_n(const uint8_t *p, size_t n) {
  uint8_t bytes[V_LANES] = {0};
  for (size_t i = 0; i < n; i++) bytes[i] = p[i];
  return v_load_u8(bytes);
}
static inline vf32 v_load_i8_n(const int8_t *p, size_t n) {
  int8_t bytes[V_LANES] = {0};
  for (size_t i = 0; i < n; i++) bytes[i] = p[i];
  return v_load_i8(bytes);
}
static inline void v_store_u8_n(uint8_t *p, vf32 a, size_t n) {
  uint8_t bytes[V_LANES];
  v_store_u8(bytes, a);
  for (size_t i = 0; i < n; i++) p[i] = bytes[i];
}
static inline void v_store_i8_n(int8_t *p, vf32 a, size_t n) {
  int8_t bytes[V_LANES];
  v_store_i8(bytes, a);
  for (size_t i = 0; i < n; i++) p[i] = bytes[i];
}
static inline vf32 v_load_f16_n(const uint16_t *p, size_t n) {
  uint16_t halves[V_LANES] = {0};
  for (size_t i = 0; i < n; i++) halves[i] = p[i];
  return v_load_f16(halves);
}
static inline vf32 v_load_bf16_n(const uint16_t *p, size_t n) {
  uint16_t halves[V_LANES] = {0};
  for (size_t i = 0; i < n; i++) halves[i] = p[i];
  return v_load_bf16(halves);
}
static inline void v_store_halves_n(uint16_t *p, vf32 a, size_t n) {
  uint16_t halves[V_LANES];
  v_store_halves(halves, a);
  for (size_t i = 0; i < n; i++) p[i] = halves[i];
}
#endif

/* --- Integers of 16 bits, as floats --- */

/* The upper halves of lanes as signed integers. */
static inline vf32 v_upper_halves(vf32 a) { return v_cvt_f32(v_i32_shr(v_cast_i32(a), 16)); }
static inline vf32 v_load_i16(const int16_t *p) {
  return v_upper_halves(v_load_bf16((const uint16_t *)p));
}
static inline vf32 v_load_i16_n(const int16_t *p, size_t n) {
  return v_upper_halves(v_load_bf16_n((const uint16_t *)p, n));
}
static inline vf32 v_unsigned_halves(vf32 a) {
  return v_cvt_f32(v_i32_and(v_i32_shr(v_cast_i32(a), 16), v_i32_set1(0xffff)));
}
static inline vf32 v_load_u16(const uint16_t *p) { return v_unsigned_halves(v_load_bf16(p)); }
static inline vf32 v_load_u16_n(const uint16_t *p, size_t n) {
  return v_unsigned_halves(v_load_bf16_n(p, n));
}
/* The nearest integers between both bounds, of no NaN, in the upper halves of lanes. */
static inline vf32 v_held_halves(vf32 a, float low, float high) {
  const vf32 held = v_max_const(v_set1(low), v_min_const(v_set1(high), a));
  return v_cast_f32(v_i32_shl(v_round_i32(held), 16));
}
static inline void v_store_i16(int16_t *p, vf32 a) {
  v_store_halves((uint16_t *)p, v_held_halves(a, -32768.0f, 32767.0f));
}
static inline void v_store_i16_n(int16_t *p, vf32 a, size_t n) {
  v_store_halves_n((uint16_t *)p, v_held_halves(a, -32768.0f, 32767.0f), n);
}
static inline void v_store_u16(uint16_t *p, vf32 a) {
  v_store_halves(p, v_held_halves(a, 0.0f, 65535.0f));
}
static inline void v_store_u16_n(uint16_t *p, vf32 a, size_t n) {
  v_store_halves_n(p, v_held_halves(a, 0.0f, 65535.0f), n);
}

/* --- Numbers that all lanes are multiplied by --- */

#if !V_FACTORS
/* The number at p, and acc + the number * b for the accumulators of a register tile. */
typedef vf32 vfactor;
static inline vfactor v_factor(const float *p) { return v_broadcast(p); }
static inline vf32 v_fmadd_factor(vf32 acc, vfactor a, vf32 b) { return v_fmadd_acc(acc, a, b); }
#endif
#if !V_READS_FACTORS
/* acc + the number at p * b, where no other vector is multiplied by it. */
static inline vf32 v_fmadd_read(vf32 acc, const float *p, vf32 b) {
  return v_fmadd_factor(acc, v_factor(p), b);
}
#endif

/* --- Floats of 16 bits --- */

#if !V_ROUNDS_F16
/* The nearest float16 (ties to even; infinite from 65520 on), as a float. */
static inline vf32 v_round_f16(vf32 a) {
  const vf32 size = v_abs(a), half = v_set1(0.5f); /* whose spacing is that of the denormals */
  const vi32 bits = v_cast_i32(size);
  const vi32 odd = v_i32_and(v_i32_shr(bits, 13), v_i32_set1(1));
  const vi32 up = v_i32_add(bits, v_i32_add(odd, v_i32_set1(0xfff)));
  const vf32 normal = v_cast_f32(v_i32_and(up, v_i32_set1(-0x2000)));
  const vf32 held = v_select(v_ge(normal, v_set1(65536.0f)), v_set1(INFINITY), normal);
  const vf32 small = v_sub(v_add(size, half), half);
  const vf32 rounded = v_select(v_lt(size, v_set1(0.00006103515625f)), small, held);
  return v_select(v_isnan(a), a, v_copysign(rounded, a));
}
/* Its 16 bits, in the upper halves of lanes. */
static inline vf32 v_f16_halves(vf32 a) {
  const vf32 size = v_abs(v_round_f16(a));
  const vmask below = v_lt(size, v_set1(0.00006103515625f));
  const vf32 whole = v_select(below, v_mul(size, v_set1(0x1p24f)), v_zero()); /* of denormals */
  const vi32 small = v_i32_shl(v_cvt_i32(whole), 16);
  const vi32 normal = v_i32_shl(v_i32_sub(v_cast_i32(size), v_i32_set1(0x38000000)), 3);
  const vf32 finite = v_select(below, v_cast_f32(small), v_cast_f32(normal));
  const vf32 infinite = v_cast_f32(v_i32_set1(0x7c000000));
  const vf32 most = v_select(v_gt(size, v_set1(65504.0f)), infinite, finite);
  const vf32 bits = v_select(v_isnan(a), v_cast_f32(v_i32_set1(0x7e000000)), most);
  return v_copysign(bits, a);
}
static inline void v_store_f16(uint16_t *p, vf32 a) { v_store_halves(p, v_f16_halves(a)); }
static inline void v_store_f16_n(uint16_t *p, vf32 a, size_t n) {
  v_store_halves_n(p, v_f16_halves(a), n);
}
#elif !V_PARTS_16
static inline void v_store_f16_n(uint16_t *p, vf32 a, size_t n) {
  uint16_t halves[V_LANES];
  v_store_f16(halves, a);
  for (size_t i = 0; i < n; i++) p[i] = halves[i];
}
#endif

#if !V_HALVES
/* V_LANES float16: here as floats that float16 holds. */
typedef vf32 vf16;
static inline vf16 v_f16_set1(float x) { return v_set1(x); } /* a number that float16 holds */
static inline vf16 v_f16_round(vf32 a) { return v_round_f16(a); } /* the nearest, as above */
static inline vf32 v_f16_widen(vf16 a) { return a; }
/* The nearest float16. It is that of the float, which has more than twice as many bits. */
static inline vf16 v_f16_add(vf16 a, vf16 b) { return v_round_f16(v_add(a, b)); }
static inline vf16 v_f16_sub(vf16 a, vf16 b) { return v_round_f16(v_sub(a, b)); }
static inline vf16 v_f16_mul(vf16 a, vf16 b) { return v_round_f16(v_mul(a, b)); }
static inline vf16 v_f16_div(vf16 a, vf16 b) { return v_round_f16(v_div(a, b)); }
/* a / b for a b that has been found to give the same by its reciprocal, whatever a is. */
static inline vf16 v_f16_div_const(vf16 a, float b) {
  return v_round_f16(v_mul(a, v_set1(1.0f / b)));
}
#endif

/* erf(x) in float16: of a float16 the nearest one, but for 0.001340866 and its negative, which are
 * almost in the middle between two. x P(x^2), degree 21; from 2.625 on erf rounds to 1. */
static inline vf16 v_f16_erf(vf32 x) {
  const vf32 a = v_max_const(v_set1(-2.625f), v_min_const(v_set1(2.625f), x)), t = v_mul(a, a);
  vf32 p = v_set1(7.7908563e-10f);
  p = v_fma(p, t, v_set1(-3.639789e-08f));
  p = v_fma(p, t, v_set1(7.919443e-07f));
  p = v_fma(p, t, v_set1(-1.0845797e-05f));
  p = v_fma(p, t, v_set1(0.000107048196f));
  p = v_fma(p, t, v_set1(-0.0008247362f));
  p = v_fma(p, t, v_set1(0.005180765f));
  p = v_fma(p, t, v_set1(-0.026829012f));
  p = v_fma(p, t, v_set1(0.112821124f));
  p = v_fma(p, t, v_set1(-0.37612334f));
  p = v_fma(p, t, v_set1(1.1283791f));
  return v_f16_round(v_mul(p, a));
}

/* The nearest bfloat16 (ties to even), as a float. */
static inline vf32 v_round_bf16(vf32 a) {
  const vi32 bits = v_cast_i32(a);
  const vi32 odd = v_i32_and(v_i32_shr(bits, 16), v_i32_set1(1));
  const vi32 up = v_i32_add(bits, v_i32_add(odd, v_i32_set1(0x7fff)));
  const vf32 rounded = v_cast_f32(v_i32_and(up, v_i32_set1(-0x10000)));
  return v_select(v_isnan(a), v_add(a, a), rounded); /* quiet: its upper half is NaN, too */
}

#if !V_ROUNDS_BF16
/* The same, stored in 16 bits. */
static inline void v_store_bf16(uint16_t *p, vf32 a) { v_store_halves(p, v_round_bf16(a)); }
static inline void v_store_bf16_n(uint16_t *p, vf32 a, size_t n) {
  v_store_halves_n(p, v_round_bf16(a), n);
}
#endif

#endif
