/* kernel.h - scalar arithmetic that the kernels share; generated projects carry it verbatim.
 *
 * Every function has a defined result for every input: integers wrap, division by zero gives 0,
 * conversions out of range saturate, NaN stays NaN. Names: k_<function>_<type>.
 */
#ifndef ATC_KERNEL_H
#define ATC_KERNEL_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* For functions whose loop needs all registers: what callers keep in some must stay outside. */
#if defined(__GNUC__)
#define K_NOINLINE __attribute__((noinline))
#else
#define K_NOINLINE
#endif

/* Signed and unsigned integers: T the type, U the unsigned type it wraps in, M a name. */
#define K_ORDERED(T, M)                                                        \
  static inline T k_max_##M(T a, T b) { return a > b ? a : b; }                \
  static inline T k_min_##M(T a, T b) { return a < b ? a : b; }

#define K_INTEGER(T, U, M)                                                     \
  K_ORDERED(T, M)                                                              \
  static inline T k_shiftleft_##M(T a, T b) {                                  \
    return (uint64_t)b < 8 * sizeof(T) ? (T)((U)a << b) : (T)0;                \
  }                                                                            \
  static inline T k_shiftright_##M(T a, T b) {                                 \
    return (T)((uint64_t)b < 8 * sizeof(T) ? a >> b                            \
                                           : a >> (8 * sizeof(T) - 1) >> 1);   \
  }                                                                            \
  static inline T k_pow_##M(T a, T b) {                                        \
    U base = (U)a, result = 1;                                                 \
    for (uint64_t n = (uint64_t)b; n != 0; n >>= 1, base *= base) {            \
      if (n & 1) result *= base;                                               \
    }                                                                          \
    return (T)result;                                                          \
  }

#define K_SIGNED(T, U, M)                                                      \
  K_INTEGER(T, U, M)                                                           \
  static inline T k_abs_##M(T a) { return a < 0 ? (T)(0 - (U)a) : a; }         \
  static inline T k_sign_##M(T a) { return (T)((a > 0) - (a < 0)); }           \
  static inline T k_div_##M(T a, T b) {                                        \
    return b == 0 ? (T)0 : b == -1 ? (T)(0 - (U)a) : (T)(a / b);               \
  }                                                                            \
  static inline T k_fmod_##M(T a, T b) {                                       \
    return b == 0 || b == -1 ? (T)0 : (T)(a % b);                              \
  }                                                                            \
  static inline T k_mod_##M(T a, T b) {                                        \
    const T r = k_fmod_##M(a, b);                                              \
    return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;                      \
  }

#define K_UNSIGNED(T, U, M)                                                    \
  K_INTEGER(T, U, M)                                                           \
  static inline T k_abs_##M(T a) { return a; }                                 \
  static inline T k_sign_##M(T a) { return (T)(a > 0); }                       \
  static inline T k_div_##M(T a, T b) { return b == 0 ? (T)0 : (T)(a / b); }   \
  static inline T k_fmod_##M(T a, T b) { return b == 0 ? (T)0 : (T)(a % b); }  \
  static inline T k_mod_##M(T a, T b) { return k_fmod_##M(a, b); }

K_SIGNED(int8_t, uint32_t, i8)
K_SIGNED(int16_t, uint32_t, i16)
K_SIGNED(int32_t, uint32_t, i32)
K_SIGNED(int64_t, uint64_t, i64)
K_UNSIGNED(uint8_t, uint32_t, u8)
K_UNSIGNED(uint16_t, uint32_t, u16)
K_UNSIGNED(uint32_t, uint32_t, u32)
K_UNSIGNED(uint64_t, uint64_t, u64)
K_ORDERED(bool, b1)

/* Real numbers: S is the suffix of the <math.h> function. A NaN operand gives NaN. */
#define K_REAL(T, S, M)                                                        \
  static inline T k_max_##M(T a, T b) { return a > b || isnan(a) ? a : b; }    \
  static inline T k_min_##M(T a, T b) { return a < b || isnan(a) ? a : b; }    \
  static inline T k_sign_##M(T a) {                                            \
    return a > 0 ? (T)1 : a < 0 ? (T)-1 : isnan(a) ? a : (T)0;                 \
  }                                                                            \
  static inline T k_mod_##M(T a, T b) {                                        \
    const T r = fmod##S(a, b);                                                 \
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;                           \
  }                                                                            \
  static inline T k_sigmoid_##M(T a) {                                         \
    const T e = exp##S(-fabs##S(a));                                           \
    return (a < 0 ? e : (T)1) / ((T)1 + e);                                    \
  }                                                                            \
  static inline T k_softplus_##M(T a) {                                        \
    return (a > 0 ? a : (T)0) + log1p##S(exp##S(-fabs##S(a)));                 \
  }

K_REAL(float, f, f32)
K_REAL(double, , f64)

#undef K_ORDERED
#undef K_INTEGER
#undef K_SIGNED
#undef K_UNSIGNED
#undef K_REAL

/* Real to integer: towards zero. Out of range and NaN give what x86 and numpy give for 32 and 64
 * bits, the lowest value; narrower types keep the low bits of that. */
#define K_CAST(F, M)                                                           \
  static inline int64_t k_cast_##M##_i64(F a) {                                \
    return a >= (F)-9223372036854775808.0 && a < (F)9223372036854775808.0      \
               ? (int64_t)a                                                    \
               : INT64_MIN;                                                    \
  }                                                                            \
  static inline int32_t k_cast_##M##_i32(F a) {                                \
    return (double)a > -2147483649.0 && (double)a < 2147483648.0 ? (int32_t)a  \
                                                                 : INT32_MIN;  \
  }                                                                            \
  static inline int16_t k_cast_##M##_i16(F a) {                                \
    return (int16_t)k_cast_##M##_i32(a);                                       \
  }                                                                            \
  static inline int8_t k_cast_##M##_i8(F a) {                                  \
    return (int8_t)k_cast_##M##_i32(a);                                        \
  }                                                                            \
  static inline uint64_t k_cast_##M##_u64(F a) {                               \
    return a >= (F)9223372036854775808.0 && a < (F)18446744073709551616.0      \
               ? (uint64_t)a                                                   \
               : (uint64_t)k_cast_##M##_i64(a);                                \
  }                                                                            \
  static inline uint32_t k_cast_##M##_u32(F a) {                               \
    return (uint32_t)k_cast_##M##_i64(a);                                      \
  }                                                                            \
  static inline uint16_t k_cast_##M##_u16(F a) {                               \
    return (uint16_t)k_cast_##M##_i32(a);                                      \
  }                                                                            \
  static inline uint8_t k_cast_##M##_u8(F a) {                                 \
    return (uint8_t)k_cast_##M##_i32(a);                                       \
  }

K_CAST(float, f32)
K_CAST(double, f64)
#undef K_CAST

/* The index nearest to `index` in [0, last]: what data says must not leave a tensor. */
static inline ptrdiff_t k_clamp_index(int64_t index, ptrdiff_t last) {
  return index < 0 ? 0 : index > last ? last : (ptrdiff_t)index;
}

/* Saturating conversion of a (rounded) real; NaN gives 0. */
#define K_SATURATE(T, M, LOW, HIGH)                                            \
  static inline T k_sat_##M(double a) {                                        \
    return isnan(a) ? (T)0 : a <= (double)(LOW) ? (T)(LOW)                     \
                         : a >= (double)(HIGH) ? (T)(HIGH)                     \
                                               : (T)a;                         \
  }

K_SATURATE(int8_t, i8, INT8_MIN, INT8_MAX)
K_SATURATE(uint8_t, u8, 0, UINT8_MAX)
K_SATURATE(int16_t, i16, INT16_MIN, INT16_MAX)
K_SATURATE(uint16_t, u16, 0, UINT16_MAX)
K_SATURATE(int32_t, i32, INT32_MIN, INT32_MAX)
K_SATURATE(uint32_t, u32, 0, UINT32_MAX)
#undef K_SATURATE

/* IEEE 754 binary16 and bfloat16 are stored as bits and computed as float. */
static inline float k_load_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

static inline uint16_t k_store_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (isnan(value)) return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16); /* to nearest, ties to even */
}

static inline float k_load_f16(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  float value;
  uint32_t wide;
  if (exponent == 0) { /* zero or denormal: fraction * 2^-24 is exact */
    value = (float)fraction * 0x1p-24f;
    return sign ? -value : value;
  }
  wide = exponent == 31 ? sign | 0x7f800000u | (fraction << 13)
                        : sign | ((exponent + 112) << 23) | (fraction << 13);
  memcpy(&value, &wide, sizeof value);
  return value;
}

static inline uint16_t k_store_f16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u); /* NaN */
  if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to infinity */
  if (magnitude < 0x38800000u) { /* denormal result: let the float addition round */
    float shifted;
    uint32_t rounded;
    memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f; /* ulp(0.5) = 2^-24, the denormals' spacing */
    memcpy(&rounded, &shifted, sizeof rounded);
    return (uint16_t)(sign | (rounded - 0x3f000000u));
  }
  return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

#endif
