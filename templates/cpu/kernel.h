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

/* Kernels round by sums, and know NaN and infinities: -ffast-math makes other numbers of that. */
#if defined(__FAST_MATH__) || defined(__ASSOCIATIVE_MATH__) || defined(_M_FP_FAST) || \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "compile without -ffast-math and -Ofast, or with -fno-fast-math behind them"
#endif

/* How these functions are declared: what compiles them for a GPU says so before. */
#ifndef K_INLINE
#define K_INLINE static inline
#endif

/* A string: UTF-8, ended by a NUL; what follows that doesn't count. A text without NUL fills it. */
#ifndef ATC_STRING_SIZE
#define ATC_STRING_SIZE 256
typedef struct atc_string {
  char text[ATC_STRING_SIZE];
} atc_string;
#endif

/* What a kernel returns that can't take its data, else 0: statuses of the network's own header. */
enum k_failure {
  K_ERROR_STRING = -6,  /* a string is too long for its cell */
  K_ERROR_NUMBER = -11, /* a text is not a number */
  K_ERROR_FORMAT = -12, /* a file is not an image of a format that is read */
  K_ERROR_IMAGE = -13   /* an image is damaged, of another size, or of a kind that isn't read */
};

#ifndef __cplusplus /* strings are for C alone */
K_INLINE bool k_equal_str(atc_string a, atc_string b) {
  return strncmp(a.text, b.text, ATC_STRING_SIZE) == 0;
}

/* Below, equal or above 0 as a comes before, is or comes behind b in the order of code points. */
K_INLINE int k_compare_str(const atc_string *a, const atc_string *b) {
  return strncmp(a->text, b->text, ATC_STRING_SIZE);
}

K_INLINE size_t k_length_str(const atc_string *s) {
  const char *const end = memchr(s->text, 0, ATC_STRING_SIZE);
  return end == NULL ? ATC_STRING_SIZE : (size_t)(end - s->text);
}
#endif

#define K_PRAGMA(...) _Pragma(#__VA_ARGS__)

/* For a loop of so many rounds that is to have none, for compilers that are asked that way. */
#if defined(__GNUC__)
#define K_UNROLL(n) K_PRAGMA(GCC unroll n)
#else
#define K_UNROLL(n)
#endif

/* For functions whose loop needs all registers: what callers keep in some must stay outside. */
#if defined(__GNUC__)
#define K_NOINLINE __attribute__((noinline))
#else
#define K_NOINLINE
#endif

/* Signed and unsigned integers: T the type, U the unsigned type it wraps in, M a name. */
#define K_ORDERED(T, M)                                                        \
  K_INLINE T k_max_##M(T a, T b) { return a > b ? a : b; }                     \
  K_INLINE T k_min_##M(T a, T b) { return a < b ? a : b; }

#define K_INTEGER(T, U, M)                                                     \
  K_ORDERED(T, M)                                                              \
  K_INLINE T k_shiftleft_##M(T a, T b) {                                       \
    return (uint64_t)b < 8 * sizeof(T) ? (T)((U)a << b) : (T)0;                \
  }                                                                            \
  K_INLINE T k_shiftright_##M(T a, T b) {                                      \
    return (T)((uint64_t)b < 8 * sizeof(T) ? a >> b                            \
                                           : a >> (8 * sizeof(T) - 1) >> 1);   \
  }                                                                            \
  K_INLINE T k_pow_##M(T a, T b) {                                             \
    U base = (U)a, result = 1;                                                 \
    for (uint64_t n = (uint64_t)b; n != 0; n >>= 1, base *= base) {            \
      if (n & 1) result *= base;                                               \
    }                                                                          \
    return (T)result;                                                          \
  }

#define K_SIGNED(T, U, M)                                                      \
  K_INTEGER(T, U, M)                                                           \
  K_INLINE T k_abs_##M(T a) { return a < 0 ? (T)(0 - (U)a) : a; }              \
  K_INLINE T k_sign_##M(T a) { return (T)((a > 0) - (a < 0)); }                \
  K_INLINE T k_div_##M(T a, T b) {                                             \
    return b == 0 ? (T)0 : b == -1 ? (T)(0 - (U)a) : (T)(a / b);               \
  }                                                                            \
  K_INLINE T k_fmod_##M(T a, T b) {                                            \
    return b == 0 || b == -1 ? (T)0 : (T)(a % b);                              \
  }                                                                            \
  K_INLINE T k_mod_##M(T a, T b) {                                             \
    const T r = k_fmod_##M(a, b);                                              \
    return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;                      \
  }

#define K_UNSIGNED(T, U, M)                                                    \
  K_INTEGER(T, U, M)                                                           \
  K_INLINE T k_abs_##M(T a) { return a; }                                      \
  K_INLINE T k_sign_##M(T a) { return (T)(a > 0); }                            \
  K_INLINE T k_div_##M(T a, T b) { return b == 0 ? (T)0 : (T)(a / b); }        \
  K_INLINE T k_fmod_##M(T a, T b) { return b == 0 ? (T)0 : (T)(a % b); }       \
  K_INLINE T k_mod_##M(T a, T b) { return k_fmod_##M(a, b); }

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
  K_INLINE T k_max_##M(T a, T b) { return a > b || a != a ? a : b; }         \
  K_INLINE T k_min_##M(T a, T b) { return a < b || a != a ? a : b; }         \
  K_INLINE T k_sign_##M(T a) {                                                 \
    return a > 0 ? (T)1 : a < 0 ? (T)-1 : a != a ? a : (T)0;                   \
  }                                                                            \
  K_INLINE T k_mod_##M(T a, T b) {                                             \
    const T r = fmod##S(a, b);                                                 \
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;                           \
  }                                                                            \
  K_INLINE T k_sigmoid_##M(T a) {                                              \
    const T e = exp##S(-fabs##S(a));                                           \
    return (a < 0 ? e : (T)1) / ((T)1 + e);                                    \
  }                                                                            \
  K_INLINE T k_softplus_##M(T a) {                                             \
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
#define K_CAST(F, M, IN_32)                                                    \
  K_INLINE int64_t k_cast_##M##_i64(F a) {                                     \
    return a >= (F)-9223372036854775808.0 && a < (F)9223372036854775808.0      \
               ? (int64_t)a                                                    \
               : INT64_MIN;                                                    \
  }                                                                            \
  K_INLINE int32_t k_cast_##M##_i32(F a) {                                     \
    return IN_32 && a < (F)2147483648.0 ? (int32_t)a : INT32_MIN;              \
  }                                                                            \
  K_INLINE int16_t k_cast_##M##_i16(F a) {                                     \
    return (int16_t)k_cast_##M##_i32(a);                                       \
  }                                                                            \
  K_INLINE int8_t k_cast_##M##_i8(F a) {                                       \
    return (int8_t)k_cast_##M##_i32(a);                                        \
  }                                                                            \
  K_INLINE uint64_t k_cast_##M##_u64(F a) {                                    \
    return a >= (F)9223372036854775808.0 && a < (F)18446744073709551616.0      \
               ? (uint64_t)a                                                   \
               : (uint64_t)k_cast_##M##_i64(a);                                \
  }                                                                            \
  K_INLINE uint32_t k_cast_##M##_u32(F a) {                                    \
    return (uint32_t)k_cast_##M##_i64(a);                                      \
  }                                                                            \
  K_INLINE uint16_t k_cast_##M##_u16(F a) {                                    \
    return (uint16_t)k_cast_##M##_i32(a);                                      \
  }                                                                            \
  K_INLINE uint8_t k_cast_##M##_u8(F a) {                                      \
    return (uint8_t)k_cast_##M##_i32(a);                                       \
  }

K_CAST(float, f32, a >= -2147483648.0f) /* there is no float between that and its truncation */
K_CAST(double, f64, a > -2147483649.0)
#undef K_CAST

/* The index nearest to `index` in [0, last]: what data says must not leave a tensor. */
K_INLINE ptrdiff_t k_clamp_index(int64_t index, ptrdiff_t last) {
  return index < 0 ? 0 : index > last ? last : (ptrdiff_t)index;
}

/* Saturating conversion of a rounded real; NaN gives 0. Where RISC-V has vectors floats are converted
 * in the rounding mode: at vectors' conversions toward zero QEMU 7.2 stops. */
#if defined(__riscv_vector)
#define K_WHOLE(a, HIGH)                                                       \
  (sizeof(a) == sizeof(float) && (HIGH) <= INT32_MAX ? lrintf((float)(a)) : (int64_t)(a))
#else
#define K_WHOLE(a, HIGH) (a)
#endif
#define K_SATURATE_FROM(R, NAME, T, LOW, HIGH)                                 \
  K_INLINE T NAME(R a) {                                                       \
    return a != a ? (T)0 : a <= (R)(LOW) ? (T)(LOW)                            \
         : a >= (R)(HIGH) ? (T)(HIGH) : (T)K_WHOLE(a, HIGH);                   \
  }
#define K_SATURATE(T, M, LOW, HIGH)                                            \
  K_SATURATE_FROM(double, k_sat_##M, T, LOW, HIGH)                             \
  K_SATURATE_FROM(float, k_satf_##M, T, LOW, HIGH) /* of a float, not by way of double */
K_SATURATE(int8_t, i8, INT8_MIN, INT8_MAX)
K_SATURATE(uint8_t, u8, 0, UINT8_MAX)
K_SATURATE(int16_t, i16, INT16_MIN, INT16_MAX)
K_SATURATE(uint16_t, u16, 0, UINT16_MAX)
K_SATURATE(int32_t, i32, INT32_MIN, INT32_MAX)
K_SATURATE(uint32_t, u32, 0, UINT32_MAX)
K_SATURATE(int8_t, i4, -8, 7)
K_SATURATE(uint8_t, u4, 0, 15)
K_SATURATE(int8_t, i2, -2, 1)
K_SATURATE(uint8_t, u2, 0, 3)
#undef K_SATURATE
#undef K_SATURATE_FROM
#undef K_WHOLE

/* The bits of a real number, and the number of such bits. */
#define K_BITS(T, U, M)                                                        \
  K_INLINE U k_bits_##M(T value) {                                             \
    U bits;                                                                    \
    memcpy(&bits, &value, sizeof bits);                                        \
    return bits;                                                               \
  }                                                                            \
  K_INLINE T k_real_##M(U bits) {                                              \
    T value;                                                                   \
    memcpy(&value, &bits, sizeof value);                                       \
    return value;                                                              \
  }

K_BITS(float, uint32_t, f32)
K_BITS(double, uint64_t, f64)
#undef K_BITS

/* IEEE 754 binary16 and bfloat16 are stored as bits and computed as float. */
K_INLINE float k_load_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

#ifndef K_STORES_BF16 /* devices convert by an instruction */
K_INLINE uint16_t k_store_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if (value != value) return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16); /* to nearest, ties to even */
}
#endif

/* The compiler's own type of them, where processors convert by an instruction. */
#if !defined K_CONVERTS_F16 && !defined __cplusplus && (defined __F16C__ || defined __aarch64__)
#if defined __clang__
#define K_HALF __fp16
#elif defined __FLT16_MAX__
#define K_HALF _Float16
#endif
#endif

#if defined K_HALF
__extension__ typedef K_HALF k_half;

K_INLINE float k_load_f16(uint16_t bits) {
  k_half half;
  memcpy(&half, &bits, sizeof half);
  return (float)half;
}

K_INLINE uint16_t k_store_f16(float value) {
  const k_half half = (k_half)value;
  uint16_t bits;
  memcpy(&bits, &half, sizeof bits);
  return bits;
}
#elif !defined K_CONVERTS_F16
K_INLINE float k_load_f16(uint16_t bits) {
  const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  float value;
  uint32_t wide;
  if (exponent == 0) { /* zero or denormal: fraction * 2^-24 is exact */
    value = (float)fraction * 5.9604644775390625e-8f;
    return sign ? -value : value;
  }
  wide = exponent == 31 ? sign | 0x7f800000u | (fraction << 13)
                        : sign | ((exponent + 112) << 23) | (fraction << 13);
  memcpy(&value, &wide, sizeof value);
  return value;
}

K_INLINE uint16_t k_store_f16(float value) {
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

/* Integers of 2 and 4 bits are stored one per byte; only the low bits count. */
#define K_LOW_BITS(B, SIGNED, UNSIGNED)                                        \
  K_INLINE int8_t k_load_##SIGNED(uint8_t bits) {                              \
    return (int8_t)((bits & ((1 << B) - 1)) - ((bits << 1) & (1 << B)));       \
  }                                                                            \
  K_INLINE uint8_t k_store_##SIGNED(int8_t value) {                            \
    return (uint8_t)(value & ((1 << B) - 1));                                  \
  }                                                                            \
  K_INLINE uint8_t k_load_##UNSIGNED(uint8_t bits) {                           \
    return (uint8_t)(bits & ((1 << B) - 1));                                   \
  }                                                                            \
  K_INLINE uint8_t k_store_##UNSIGNED(uint8_t value) {                         \
    return (uint8_t)(value & ((1 << B) - 1));                                  \
  }

K_LOW_BITS(4, i4, u4)
K_LOW_BITS(2, i2, u2)
#undef K_LOW_BITS

/* Floats of 4 and 8 bits: a sign, an exponent biased by `bias`, `digits` bits of fraction. */
K_INLINE float k_small_value(uint32_t magnitude, int digits, int bias) {
  if (magnitude >> digits == 0) { /* zero or denormal: fraction * 2^(1 - bias - digits) is exact */
    return (float)magnitude * k_real_f32((uint32_t)(128 - bias - digits) << 23);
  }
  return k_real_f32((magnitude << (23 - digits)) + ((uint32_t)(127 - bias) << 23));
}

/* The nearest magnitude, ties to even; beyond the format's largest where the value is. */
K_INLINE uint32_t k_small_magnitude(float value, int digits, int bias) {
  const uint32_t bits = k_bits_f32(value) & 0x7fffffffu;
  if (bits < (uint32_t)(128 - bias) << 23) { /* denormal result: let the float addition round */
    const uint32_t unit = (uint32_t)(151 - bias - digits) << 23;
    return k_bits_f32(k_real_f32(bits) + k_real_f32(unit)) - unit;
  }
  return (bits - ((uint32_t)(127 - bias) << 23) + (1u << (22 - digits)) - 1u +
          ((bits >> (23 - digits)) & 1u)) >> (23 - digits);
}

/* LAST is the largest finite magnitude, OVER what is stored beyond it, NONE a NaN. */
#define K_FLOAT8(M, DIGITS, BIAS, LAST, OVER, NONE)                            \
  K_INLINE float k_load_##M(uint8_t bits) {                                    \
    const uint32_t magnitude = bits & 0x7fu;                                   \
    const float value = magnitude <= LAST ? k_small_value(magnitude, DIGITS, BIAS) \
                        : magnitude == OVER && OVER != NONE ? INFINITY         \
                                                            : NAN;             \
    return bits >> 7 ? -value : value;                                         \
  }                                                                            \
  K_INLINE uint8_t k_store_##M(float value) {                                  \
    const uint32_t sign = k_bits_f32(value) >> 24 & 0x80u;                     \
    const uint32_t magnitude = k_small_magnitude(value, DIGITS, BIAS);         \
    if (value != value) return (uint8_t)(sign | NONE);                           \
    return (uint8_t)(sign | (magnitude <= LAST ? magnitude : OVER));           \
  }

/* The same without infinities and -0, whose place NaN takes. */
#define K_FLOAT8_UZ(M, DIGITS, BIAS)                                           \
  K_INLINE float k_load_##M(uint8_t bits) {                                    \
    const float value = k_small_value(bits & 0x7fu, DIGITS, BIAS);             \
    return bits == 0x80 ? NAN : bits >> 7 ? -value : value;                    \
  }                                                                            \
  K_INLINE uint8_t k_store_##M(float value) {                                  \
    const uint32_t sign = k_bits_f32(value) >> 24 & 0x80u;                     \
    const uint32_t magnitude = k_small_magnitude(value, DIGITS, BIAS);         \
    if (value != value || magnitude > 0x7fu) return 0x80;                        \
    return (uint8_t)(magnitude == 0 ? 0u : sign | magnitude);                  \
  }

K_FLOAT8(f8e4m3fn, 3, 7, 0x7eu, 0x7fu, 0x7fu)
K_FLOAT8(f8e5m2, 2, 15, 0x7bu, 0x7cu, 0x7eu)
K_FLOAT8_UZ(f8e4m3fnuz, 3, 8)
K_FLOAT8_UZ(f8e5m2fnuz, 2, 16)
#undef K_FLOAT8
#undef K_FLOAT8_UZ

K_INLINE float k_load_f4e2m1(uint8_t bits) {
  const float value = k_small_value(bits & 7u, 1, 1);
  return bits & 8 ? -value : value;
}

K_INLINE uint8_t k_store_f4e2m1(float value) { /* saturates; NaN gives -0 */
  const uint32_t sign = k_bits_f32(value) >> 28 & 8u;
  const uint32_t magnitude = k_small_magnitude(value, 1, 1);
  if (value != value) return 8;
  return (uint8_t)(sign | (magnitude <= 7 ? magnitude : 7));
}

/* Powers of two, 2^(bits - 127), and NaN. */
K_INLINE float k_load_f8e8m0(uint8_t bits) {
  return bits == 0xff ? NAN : k_real_f32(bits == 0 ? 0x00400000u : (uint32_t)bits << 23);
}

K_INLINE uint8_t k_store_f8e8m0(float value) { /* towards 0; infinity gives NaN */
  return (uint8_t)(k_bits_f32(value) >> 23 & 0xffu);
}

#endif
