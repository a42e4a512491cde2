/* simd.h - the vector vocabulary for RISC-V's vector extension 1.0: eight lanes, on processors whose
 * vector registers have 128 bits or more, of 64 bits or of 32 (those with Zve32f or more).
 *
 * Kernels and math functions are written in these names only. Each instruction set has its own
 * simd.h with the same names and the same meaning; V_LANES is the number of floats in a vector.
 * Pointers need no alignment. Float arithmetic follows IEEE 754 in the default rounding mode and
 * must be compiled without -ffast-math.
 *
 * A vector is a group of two registers, so that eight floats fit the shortest that there are. How
 * many lanes an instruction computes is its last argument: results depend on no register's length.
 */
#ifndef SIMD_H
#define SIMD_H

#include <math.h>
#include <riscv_vector.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define V_LANES 8      /* floats in a vector */
#define V_REGISTERS 16 /* vector registers of the machine, in groups of two */
#define V_ROUNDS_BF16 0 /* whether the table itself rounds to bfloat16 */
#define V_ROUNDS_F16 0 /* whether the table itself rounds to float16 */
#define V_HALVES 0 /* and computes in it */
#define V_PARTS_32 1 /* whether it loads and stores parts of vectors of 32 bits */
#define V_PARTS_16 1 /* and those of 8 and 16 bits */
#define V_FACTORS 1 /* whether vectors are multiplied by numbers that are no vectors */
#define V_SCALES 1 /* whether it multiplies by powers of two in its own way */
#define V_TABLES 0 /* the numbers of tables that it looks up at once */
#define V_EXP_LEAST -111.0f /* where exponentials are held, see math.h */
#define V_READS_FACTORS 0 /* whether a multiply-add reads such a number from memory */

typedef vfloat32m2_t vf32; /* V_LANES floats */
typedef vint32m2_t vi32;   /* V_LANES integers */
typedef vbool16_t vmask;   /* V_LANES booleans */

/* --- Memory --- */

static inline vf32 v_set1(float x) { return __riscv_vfmv_v_f_f32m2(x, V_LANES); }
static inline vf32 v_zero(void) { return v_set1(0.0f); }
static inline vf32 v_broadcast(const float *p) { return v_set1(*p); } /* *p in every lane */
static inline vf32 v_load(const float *p) { return __riscv_vle32_v_f32m2(p, V_LANES); }
static inline void v_store(float *p, vf32 a) { __riscv_vse32_v_f32m2(p, a, V_LANES); }
/* 2 * V_LANES floats from p on: the first, third, ... of them, and the second, fourth, ... */
static inline void v_load_pairs(const float *p, vf32 *even, vf32 *odd) {
  *even = __riscv_vlse32_v_f32m2(p, 2 * sizeof *p, V_LANES);
  *odd = __riscv_vlse32_v_f32m2(p + 1, 2 * sizeof *p, V_LANES);
}
static inline vf32 v_load_n(const float *p, size_t n) { /* other lanes load as 0 */
  return __riscv_vle32_v_f32m2_tu(v_zero(), p, n);
}
static inline void v_store_n(float *p, vf32 a, size_t n) { __riscv_vse32_v_f32m2(p, a, n); }
/* Integers of 16 bits in the upper halves of lanes, whose lower ones are zeros. */
static inline vi32 simd_raised(vuint16m1_t a) {
  const vuint32m2_t wide = __riscv_vzext_vf2_u32m2(a, V_LANES);
  return __riscv_vreinterpret_v_u32m2_i32m2(__riscv_vsll_vx_u32m2(wide, 16, V_LANES));
}
static inline vf32 simd_as_floats(vi32 a) { return __riscv_vreinterpret_v_i32m2_f32m2(a); }
static inline vi32 simd_as_integers(vf32 a) { return __riscv_vreinterpret_v_f32m2_i32m2(a); }
/* V_LANES numbers of 16 bits, float16 or bfloat16, as floats: exactly, whatever they are. Exponents
 * of float16 are 112 less; what is beyond them, infinities and NaN, gets the largest exponent. */
static inline vf32 simd_from_f16(vuint16m1_t halves) {
  const vi32 bits = __riscv_vsra_vx_i32m2(simd_raised(halves), 3, V_LANES);
  const vf32 size = simd_as_floats(__riscv_vand_vx_i32m2(bits, 0x0fffe000, V_LANES));
  const vf32 scaled = __riscv_vfmul_vf_f32m2(size, 0x1p112f, V_LANES);
  const vmask beyond = __riscv_vmfge_vf_f32m2_b16(scaled, 65536.0f, V_LANES);
  const vi32 small = simd_as_integers(scaled);
  const vi32 full = __riscv_vor_vx_i32m2(small, 0x7f800000, V_LANES);
  const vf32 found = simd_as_floats(__riscv_vmerge_vvm_i32m2(small, full, beyond, V_LANES));
  return __riscv_vfsgnj_vv_f32m2(found, simd_as_floats(bits), V_LANES);
}
static inline vf32 v_load_f16(const uint16_t *p) {
  return simd_from_f16(__riscv_vle16_v_u16m1(p, V_LANES));
}
static inline vf32 v_load_bf16(const uint16_t *p) {
  return simd_as_floats(simd_raised(__riscv_vle16_v_u16m1(p, V_LANES)));
}
/* The first n of such numbers; other lanes load as 0, here and below. */
static inline vuint16m1_t simd_halves_n(const uint16_t *p, size_t n) {
  return __riscv_vle16_v_u16m1_tu(__riscv_vmv_v_x_u16m1(0, V_LANES), p, n);
}
static inline vf32 v_load_f16_n(const uint16_t *p, size_t n) {
  return simd_from_f16(simd_halves_n(p, n));
}
static inline vf32 v_load_bf16_n(const uint16_t *p, size_t n) {
  return simd_as_floats(simd_raised(simd_halves_n(p, n)));
}
/* V_LANES bytes as floats; and back, to the nearest (ties to even), saturating, NaN as lowest. */
static inline vf32 simd_from_u8(vuint8mf2_t bytes) {
  return __riscv_vfwcvt_f_xu_v_f32m2(__riscv_vzext_vf2_u16m1(bytes, V_LANES), V_LANES);
}
static inline vf32 simd_from_i8(vint8mf2_t bytes) {
  return __riscv_vfwcvt_f_x_v_f32m2(__riscv_vsext_vf2_i16m1(bytes, V_LANES), V_LANES);
}
static inline vf32 v_load_u8(const uint8_t *p) {
  return simd_from_u8(__riscv_vle8_v_u8mf2(p, V_LANES));
}
static inline vf32 v_load_i8(const int8_t *p) {
  return simd_from_i8(__riscv_vle8_v_i8mf2(p, V_LANES));
}
static inline vf32 v_load_u8_n(const uint8_t *p, size_t n) {
  return simd_from_u8(__riscv_vle8_v_u8mf2_tu(__riscv_vmv_v_x_u8mf2(0, V_LANES), p, n));
}
static inline vf32 v_load_i8_n(const int8_t *p, size_t n) {
  return simd_from_i8(__riscv_vle8_v_i8mf2_tu(__riscv_vmv_v_x_i8mf2(0, V_LANES), p, n));
}
static inline vuint8mf2_t simd_to_u8(vf32 a) { /* a maximum with NaN is the other number */
  const vf32 held = __riscv_vfmax_vf_f32m2(a, 0.0f, V_LANES);
  const vuint16m1_t half = __riscv_vfncvt_xu_f_w_u16m1(held, V_LANES);
  return __riscv_vnclipu_wx_u8mf2(half, 0, __RISCV_VXRM_RNU, V_LANES);
}
static inline vint8mf2_t simd_to_i8(vf32 a) {
  const vf32 held = __riscv_vfmax_vf_f32m2(a, -128.0f, V_LANES);
  const vint16m1_t half = __riscv_vfncvt_x_f_w_i16m1(held, V_LANES);
  return __riscv_vnclip_wx_i8mf2(half, 0, __RISCV_VXRM_RNU, V_LANES);
}
static inline void v_store_u8(uint8_t *p, vf32 a) {
  __riscv_vse8_v_u8mf2(p, simd_to_u8(a), V_LANES);
}
static inline void v_store_i8(int8_t *p, vf32 a) {
  __riscv_vse8_v_i8mf2(p, simd_to_i8(a), V_LANES);
}
static inline void v_store_u8_n(uint8_t *p, vf32 a, size_t n) {
  __riscv_vse8_v_u8mf2(p, simd_to_u8(a), n);
}
static inline void v_store_i8_n(int8_t *p, vf32 a, size_t n) {
  __riscv_vse8_v_i8mf2(p, simd_to_i8(a), n);
}
/* Four vectors of floats as 4 * V_LANES bytes in a row, each as by v_store_u8 or v_store_i8. */
static inline void v_store4_u8(uint8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  v_store_u8(p, a);
  v_store_u8(p + V_LANES, b);
  v_store_u8(p + 2 * V_LANES, c);
  v_store_u8(p + 3 * V_LANES, d);
}
static inline void v_store4_i8(int8_t *p, vf32 a, vf32 b, vf32 c, vf32 d) {
  v_store_i8(p, a);
  v_store_i8(p + V_LANES, b);
  v_store_i8(p + 2 * V_LANES, c);
  v_store_i8(p + 3 * V_LANES, d);
}
/* The upper halves of lanes: floats as bfloat16, cut off. */
static inline void v_store_halves_n(uint16_t *p, vf32 a, size_t n) {
  const vuint32m2_t bits = __riscv_vreinterpret_v_f32m2_u32m2(a);
  __riscv_vse16_v_u16m1(p, __riscv_vnsrl_wx_u16m1(bits, 16, V_LANES), n);
}
static inline void v_store_halves(uint16_t *p, vf32 a) { v_store_halves_n(p, a, V_LANES); }
/* y[i] = table[x[i]] for i < n, of 256 bytes; y may be x. */
static inline void v_lookup(uint8_t *y, const uint8_t *x, size_t n, const uint8_t *table) {
  for (size_t i = 0, some; i < n; i += some) {
    some = __riscv_vsetvl_e8m8(n - i);
    const vuint8m8_t places = __riscv_vle8_v_u8m8(x + i, some);
    __riscv_vse8_v_u8m8(y + i, __riscv_vluxei8_v_u8m8(table, places, some), some);
  }
}
/* Ask for the cache line at p, which need not be a valid address. */
static inline void v_prefetch_l1(const void *p) { __builtin_prefetch(p, 0, 3); }
static inline void v_prefetch_l2(const void *p) { __builtin_prefetch(p, 0, 2); }

/* --- Integers: add, sub, mul and shl wrap; shr keeps the sign --- */

static inline vi32 v_i32_set1(int32_t x) { return __riscv_vmv_v_x_i32m2(x, V_LANES); }
static inline vi32 v_i32_load(const int32_t *p) { return __riscv_vle32_v_i32m2(p, V_LANES); }
static inline void v_i32_store(int32_t *p, vi32 a) { __riscv_vse32_v_i32m2(p, a, V_LANES); }
static inline vi32 v_i32_load_n(const int32_t *p, size_t n) {
  return __riscv_vle32_v_i32m2_tu(v_i32_set1(0), p, n);
}
static inline void v_i32_store_n(int32_t *p, vi32 a, size_t n) { __riscv_vse32_v_i32m2(p, a, n); }
/* p[i] of each lane's i. */
#if __riscv_xlen == 32 || __riscv_v_elen < 64
static inline vuint32m2_t simd_bytes_before(vi32 i) {
  return __riscv_vsll_vx_u32m2(__riscv_vreinterpret_v_i32m2_u32m2(i), 2, V_LANES);
}
static inline vf32 v_gather(const float *p, vi32 i) {
  return __riscv_vluxei32_v_f32m2(p, simd_bytes_before(i), V_LANES);
}
static inline vi32 v_i32_gather(const int32_t *p, vi32 i) {
  return __riscv_vluxei32_v_i32m2(p, simd_bytes_before(i), V_LANES);
}
#else
static inline vuint64m4_t simd_bytes_before(vi32 i) {
  return __riscv_vreinterpret_v_i64m4_u64m4(__riscv_vwmul_vx_i64m4(i, 4, V_LANES));
}
static inline vf32 v_gather(const float *p, vi32 i) {
  return __riscv_vluxei64_v_f32m2(p, simd_bytes_before(i), V_LANES);
}
static inline vi32 v_i32_gather(const int32_t *p, vi32 i) {
  return __riscv_vluxei64_v_i32m2(p, simd_bytes_before(i), V_LANES);
}
#endif
/* V_LANES bytes, unsigned, as integers. */
static inline vi32 v_i32_load_u8(const uint8_t *p) {
  const vuint8mf2_t bytes = __riscv_vle8_v_u8mf2(p, V_LANES);
  return __riscv_vreinterpret_v_u32m2_i32m2(__riscv_vzext_vf4_u32m2(bytes, V_LANES));
}
static inline vi32 v_i32_add(vi32 a, vi32 b) { return __riscv_vadd_vv_i32m2(a, b, V_LANES); }
static inline vi32 v_i32_sub(vi32 a, vi32 b) { return __riscv_vsub_vv_i32m2(a, b, V_LANES); }
static inline vi32 v_i32_mul(vi32 a, vi32 b) { return __riscv_vmul_vv_i32m2(a, b, V_LANES); }
static inline vi32 v_i32_and(vi32 a, vi32 b) { return __riscv_vand_vv_i32m2(a, b, V_LANES); }
static inline vi32 v_i32_or(vi32 a, vi32 b) { return __riscv_vor_vv_i32m2(a, b, V_LANES); }
static inline vi32 v_i32_xor(vi32 a, vi32 b) { return __riscv_vxor_vv_i32m2(a, b, V_LANES); }
static inline vi32 v_i32_shl(vi32 a, int n) {
  return __riscv_vsll_vx_i32m2(a, (size_t)n, V_LANES);
}
static inline vi32 v_i32_shr(vi32 a, int n) {
  return __riscv_vsra_vx_i32m2(a, (size_t)n, V_LANES);
}
/* acc + the sums of two neighbours each. */
static inline vi32 simd_add_pairs(vi32 acc, vint32m4_t pairs) {
#if __riscv_v_elen < 64
  const vint32m4_t next = __riscv_vslide1down_vx_i32m4(pairs, 0, 2 * V_LANES);
  const vint32m4_t sums = __riscv_vadd_vv_i32m4(pairs, next, 2 * V_LANES);
  const vbool8_t even = __riscv_vreinterpret_v_u8m1_b8(__riscv_vmv_v_x_u8m1(0x55, 2));
  const vint32m4_t packed = __riscv_vcompress_vm_i32m4(sums, even, 2 * V_LANES);
  return v_i32_add(acc, __riscv_vlmul_trunc_v_i32m4_i32m2(packed));
#else
  const vint64m4_t both = __riscv_vreinterpret_v_i32m4_i64m4(pairs);
  acc = v_i32_add(acc, __riscv_vncvt_x_x_w_i32m2(both, V_LANES));
  return v_i32_add(acc, __riscv_vnsra_wx_i32m2(both, 32, V_LANES));
#endif
}
/* acc + the sum of two products in each lane, exact but for wrapping, of integers of 16 bits. */
static inline vi32 v_dot2(vi32 acc, vi32 a, vi32 b) {
  const vint16m2_t s = __riscv_vreinterpret_v_i32m2_i16m2(a);
  const vint16m2_t t = __riscv_vreinterpret_v_i32m2_i16m2(b);
  return simd_add_pairs(acc, __riscv_vwmul_vv_i32m4(s, t, 2 * V_LANES));
}
/* acc + the sum of four products in each lane, exact but for wrapping: the bytes of a, unsigned,
 * times those of b, signed. */
static inline vi32 v_dot4(vi32 acc, vi32 a, vi32 b) {
  const vint8m2_t s = __riscv_vreinterpret_v_i32m2_i8m2(b);
  const vuint8m2_t u = __riscv_vreinterpret_v_i8m2_u8m2(__riscv_vreinterpret_v_i32m2_i8m2(a));
  const vint16m4_t products = __riscv_vwmulsu_vv_i16m4(s, u, 4 * V_LANES);
  const vint32m4_t two = __riscv_vreinterpret_v_i16m4_i32m4(products);
  const vint32m4_t odd = __riscv_vsra_vx_i32m4(two, 16, 2 * V_LANES);
  const vint32m4_t raised = __riscv_vsll_vx_i32m4(two, 16, 2 * V_LANES);
  const vint32m4_t even = __riscv_vsra_vx_i32m4(raised, 16, 2 * V_LANES);
  return simd_add_pairs(acc, __riscv_vadd_vv_i32m4(even, odd, 2 * V_LANES));
}
/* The same for bytes of a below 128, of which sums of two products fit 16 bits. */
static inline vi32 v_dot4_small(vi32 acc, vi32 a, vi32 b) { return v_dot4(acc, a, b); }
/* acc + x times V_LANES integers of 16 bits, or of 8, exact but for wrapping. */
static inline vint16m1_t rvv_load_i16(const int16_t *p) {
  return __riscv_vle16_v_i16m1(p, V_LANES);
}
static inline vint16m1_t rvv_load_i8(const int8_t *p) {
  return __riscv_vsext_vf2_i16m1(__riscv_vle8_v_i8mf2(p, V_LANES), V_LANES);
}
static inline vi32 rvv_add_products(vi32 acc, int16_t x, vint16m1_t w) {
  return __riscv_vwmacc_vx_i32m2(acc, x, w, V_LANES);
}
/* Bytes 0 and 2 of each lane, and 1 and 3, as unsigned integers of 16 bits. */
static inline vi32 v_even_bytes(vi32 a) {
  return __riscv_vand_vx_i32m2(a, 0x00ff00ff, V_LANES);
}
static inline vi32 v_odd_bytes(vi32 a) { return v_even_bytes(v_i32_shr(a, 8)); }
/* The bits of a, read as the other type. */
static inline vi32 v_cast_i32(vf32 a) { return simd_as_integers(a); }
static inline vf32 v_cast_f32(vi32 a) { return simd_as_floats(a); }
/* Toward zero, as a C cast, and to nearest (ties to even); NaN and what does not fit give an
 * unspecified integer. Toward zero it is by the nearest: QEMU 7.2 stops at vfcvt.rtz. */
static inline vi32 v_round_i32(vf32 a) { return __riscv_vfcvt_x_f_v_i32m2(a, V_LANES); }
static inline vf32 v_cvt_f32(vi32 a) { return __riscv_vfcvt_f_x_v_f32m2(a, V_LANES); }
static inline vi32 v_cvt_i32(vf32 a) {
  const vf32 size = __riscv_vfabs_v_f32m2(a, V_LANES);
  const vuint32m2_t near = __riscv_vfcvt_xu_f_v_u32m2(size, V_LANES);
  const vf32 back = __riscv_vfcvt_f_xu_v_f32m2(near, V_LANES);
  const vmask above = __riscv_vmfgt_vv_f32m2_b16(back, size, V_LANES);
  const vuint32m2_t least = __riscv_vsub_vx_u32m2_mu(above, near, near, 1, V_LANES);
  const vi32 found = __riscv_vreinterpret_v_u32m2_i32m2(least);
  const vmask negative = __riscv_vmflt_vf_f32m2_b16(a, 0.0f, V_LANES);
  return __riscv_vrsub_vx_i32m2_mu(negative, found, found, 0, V_LANES);
}

/* --- Masks: comparisons with NaN are false --- */

static inline vmask v_lt(vf32 a, vf32 b) { return __riscv_vmflt_vv_f32m2_b16(a, b, V_LANES); }
static inline vmask v_le(vf32 a, vf32 b) { return __riscv_vmfle_vv_f32m2_b16(a, b, V_LANES); }
static inline vmask v_gt(vf32 a, vf32 b) { return __riscv_vmfgt_vv_f32m2_b16(a, b, V_LANES); }
static inline vmask v_ge(vf32 a, vf32 b) { return __riscv_vmfge_vv_f32m2_b16(a, b, V_LANES); }
static inline vmask v_eq(vf32 a, vf32 b) { return __riscv_vmfeq_vv_f32m2_b16(a, b, V_LANES); }
static inline vmask v_isnan(vf32 a) { return __riscv_vmfne_vv_f32m2_b16(a, a, V_LANES); }
static inline vmask v_mask_n(size_t n) { /* the first n lanes, n <= V_LANES */
  return __riscv_vmsltu_vx_u32m2_b16(__riscv_vid_v_u32m2(V_LANES), (uint32_t)n, V_LANES);
}
static inline vmask v_mask_and(vmask a, vmask b) { return __riscv_vmand_mm_b16(a, b, V_LANES); }
static inline vmask v_mask_or(vmask a, vmask b) { return __riscv_vmor_mm_b16(a, b, V_LANES); }
static inline vmask v_mask_not(vmask a) { return __riscv_vmnot_m_b16(a, V_LANES); }
static inline bool v_mask_any(vmask a) { return __riscv_vfirst_m_b16(a, V_LANES) >= 0; }
static inline vf32 v_select(vmask mask, vf32 a, vf32 b) { /* a where set, else b */
  return __riscv_vmerge_vvm_f32m2(b, a, mask, V_LANES);
}
/* What v_store_i8 is to store for a: 0 where that is NaN. */
static inline vf32 v_without_nan(vf32 a) { return v_select(v_isnan(a), v_zero(), a); }

/* --- Arithmetic --- */

static inline vf32 v_add(vf32 a, vf32 b) { return __riscv_vfadd_vv_f32m2(a, b, V_LANES); }
static inline vf32 v_sub(vf32 a, vf32 b) { return __riscv_vfsub_vv_f32m2(a, b, V_LANES); }
static inline vf32 v_mul(vf32 a, vf32 b) { return __riscv_vfmul_vv_f32m2(a, b, V_LANES); }
static inline vf32 v_div(vf32 a, vf32 b) { return __riscv_vfdiv_vv_f32m2(a, b, V_LANES); }
/* a * b + c and c - a * b; rounded once where the machine has fused multiply-add, else twice. */
static inline vf32 v_fma(vf32 a, vf32 b, vf32 c) {
  return __riscv_vfmacc_vv_f32m2(c, a, b, V_LANES);
}
static inline vf32 v_fnma(vf32 a, vf32 b, vf32 c) {
  return __riscv_vfnmsac_vv_f32m2(c, a, b, V_LANES);
}
/* acc + a * b for the accumulators of a register tile: acc stays in its register. */
static inline vf32 v_fmadd_acc(vf32 acc, vf32 a, vf32 b) { return v_fma(a, b, acc); }
/* The number at p, and acc + the number * b, rounded as v_fma. */
typedef float vfactor;
static inline vfactor v_factor(const float *p) { return *p; }
static inline vf32 v_fmadd_factor(vf32 acc, vfactor a, vf32 b) {
  return __riscv_vfmacc_vf_f32m2(acc, a, b, V_LANES);
}
static inline vf32 v_sqrt(vf32 a) { return __riscv_vfsqrt_v_f32m2(a, V_LANES); }
static inline vf32 v_abs(vf32 a) { return __riscv_vfabs_v_f32m2(a, V_LANES); }
static inline vf32 v_neg(vf32 a) { return __riscv_vfneg_v_f32m2(a, V_LANES); }
static inline vf32 v_copysign(vf32 a, vf32 sign) {
  return __riscv_vfsgnj_vv_f32m2(a, sign, V_LANES);
}
/* NaN in either operand gives NaN, as ONNX and numpy have it; the instructions give the other. */
static inline vf32 v_max(vf32 a, vf32 b) {
  const vf32 most = __riscv_vfmax_vv_f32m2(a, b, V_LANES);
  return v_select(v_isnan(a), a, v_select(v_isnan(b), b, most));
}
static inline vf32 v_min(vf32 a, vf32 b) {
  const vf32 least = __riscv_vfmin_vv_f32m2(a, b, V_LANES);
  return v_select(v_isnan(a), a, v_select(v_isnan(b), b, least));
}
/* The same at a lower price, for a constant that is not NaN. */
static inline vf32 v_max_const(vf32 constant, vf32 a) {
  return v_select(v_lt(a, constant), constant, a);
}
static inline vf32 v_min_const(vf32 constant, vf32 a) {
  return v_select(v_gt(a, constant), constant, a);
}
static inline vf32 v_relu(vf32 a) {
  return __riscv_vfmerge_vfm_f32m2(a, 0.0f, __riscv_vmflt_vf_f32m2_b16(a, 0.0f, V_LANES), V_LANES);
}
/* What an integer was rounded to from a, with a's sign; floats from 2^23 on are whole already. */
static inline vf32 simd_whole(vf32 a, vi32 rounded) {
  const vmask small = __riscv_vmflt_vf_f32m2_b16(v_abs(a), 8388608.0f, V_LANES);
  return v_copysign(v_select(small, v_cvt_f32(rounded), a), a);
}
static inline vf32 v_floor(vf32 a) {
  const vi32 near = v_round_i32(a);
  const vmask above = v_gt(v_cvt_f32(near), a);
  return simd_whole(a, __riscv_vsub_vx_i32m2_mu(above, near, near, 1, V_LANES));
}
static inline vf32 v_ceil(vf32 a) {
  const vi32 near = v_round_i32(a);
  const vmask below = v_lt(v_cvt_f32(near), a);
  return simd_whole(a, __riscv_vadd_vx_i32m2_mu(below, near, near, 1, V_LANES));
}
static inline vf32 v_trunc(vf32 a) { return simd_whole(a, v_cvt_i32(a)); }
static inline vf32 v_round(vf32 a) { return simd_whole(a, v_round_i32(a)); } /* ties to even */
/* 2^n for -126 <= n <= 127; 0 for -127, infinity for 128. */
static inline vf32 v_pow2i(vi32 n) {
  const vi32 exponent = __riscv_vadd_vx_i32m2(n, 127, V_LANES);
  return v_cast_f32(v_i32_shl(exponent, 23));
}
/* a * 2^n for whole n, |n| <= 252, by two exact powers of two: rounds at most once when a is of
 * ordinary size, underflows gradually, overflows to infinity. */
static inline vf32 v_ldexp(vf32 a, vf32 n) {
  const vi32 k = v_round_i32(n);
  const vi32 half = v_i32_shr(k, 1);
  return v_mul(v_mul(a, v_pow2i(half)), v_pow2i(v_i32_sub(k, half)));
}

/* --- Doubles: a vector of them holds half as many lanes, low the first ones --- */

#define SIMD_HALF (V_LANES / 2)

/* The upper lanes of a, moved to the lower ones. */
static inline vf32 simd_upper(vf32 a) {
  return __riscv_vslidedown_vx_f32m2(a, SIMD_HALF, SIMD_HALF);
}
#if __riscv_v_elen_fp < 64 /* no vectors have doubles: one after the other */
typedef struct {
  double lanes[SIMD_HALF];
} vf64;

static inline vf64 v_f64_set1(double x) { return (vf64){{x, x, x, x}}; }
static inline vf64 v_f64_low(vf32 a) {
  float lanes[SIMD_HALF];
  vf64 y;
  __riscv_vse32_v_f32m2(lanes, a, SIMD_HALF);
  for (size_t i = 0; i < SIMD_HALF; i++) y.lanes[i] = (double)lanes[i];
  return y;
}
static inline vf64 v_f64_high(vf32 a) { return v_f64_low(simd_upper(a)); }
static inline vf32 v_f64_join(vf64 low, vf64 high) { /* rounded to floats */
  float lanes[V_LANES];
  for (size_t i = 0; i < SIMD_HALF; i++) {
    lanes[i] = (float)low.lanes[i];
    lanes[SIMD_HALF + i] = (float)high.lanes[i];
  }
  return v_load(lanes);
}
static inline vf64 v_f64_add(vf64 a, vf64 b) {
  for (size_t i = 0; i < SIMD_HALF; i++) a.lanes[i] += b.lanes[i];
  return a;
}
static inline vf64 v_f64_sub(vf64 a, vf64 b) {
  for (size_t i = 0; i < SIMD_HALF; i++) a.lanes[i] -= b.lanes[i];
  return a;
}
static inline vf64 v_f64_mul(vf64 a, vf64 b) {
  for (size_t i = 0; i < SIMD_HALF; i++) a.lanes[i] *= b.lanes[i];
  return a;
}
static inline vf64 v_f64_div(vf64 a, vf64 b) {
  for (size_t i = 0; i < SIMD_HALF; i++) a.lanes[i] /= b.lanes[i];
  return a;
}
/* a * b + c and c - a * b, rounded twice. */
static inline vf64 v_f64_fma(vf64 a, vf64 b, vf64 c) { return v_f64_add(v_f64_mul(a, b), c); }
static inline vf64 v_f64_fnma(vf64 a, vf64 b, vf64 c) { return v_f64_sub(c, v_f64_mul(a, b)); }
/* a * 2^n for a number n in the last bits of `bits`; a and the result are normal. */
static inline vf64 v_f64_ldexp(vf64 a, vf64 bits) {
  for (size_t i = 0; i < SIMD_HALF; i++) {
    uint64_t from, n;
    memcpy(&from, &a.lanes[i], sizeof from);
    memcpy(&n, &bits.lanes[i], sizeof n);
    from += n << 52;
    memcpy(&a.lanes[i], &from, sizeof from);
  }
  return a;
}
#else
typedef vfloat64m2_t vf64; /* half as many doubles */

static inline vf64 v_f64_set1(double x) { return __riscv_vfmv_v_f_f64m2(x, SIMD_HALF); }
static inline vf64 v_f64_low(vf32 a) {
  return __riscv_vfwcvt_f_f_v_f64m2(__riscv_vlmul_trunc_v_f32m2_f32m1(a), SIMD_HALF);
}
static inline vf64 v_f64_high(vf32 a) { return v_f64_low(simd_upper(a)); }
static inline vf32 v_f64_join(vf64 low, vf64 high) { /* rounded to floats */
  const vfloat32m1_t first = __riscv_vfncvt_f_f_w_f32m1(low, SIMD_HALF);
  const vfloat32m1_t second = __riscv_vfncvt_f_f_w_f32m1(high, SIMD_HALF);
  return __riscv_vslideup_vx_f32m2(__riscv_vlmul_ext_v_f32m1_f32m2(first),
                                   __riscv_vlmul_ext_v_f32m1_f32m2(second), SIMD_HALF, V_LANES);
}
static inline vf64 v_f64_add(vf64 a, vf64 b) { return __riscv_vfadd_vv_f64m2(a, b, SIMD_HALF); }
static inline vf64 v_f64_sub(vf64 a, vf64 b) { return __riscv_vfsub_vv_f64m2(a, b, SIMD_HALF); }
static inline vf64 v_f64_mul(vf64 a, vf64 b) { return __riscv_vfmul_vv_f64m2(a, b, SIMD_HALF); }
static inline vf64 v_f64_div(vf64 a, vf64 b) { return __riscv_vfdiv_vv_f64m2(a, b, SIMD_HALF); }
/* a * b + c and c - a * b, rounded as v_fma. */
static inline vf64 v_f64_fma(vf64 a, vf64 b, vf64 c) {
  return __riscv_vfmacc_vv_f64m2(c, a, b, SIMD_HALF);
}
static inline vf64 v_f64_fnma(vf64 a, vf64 b, vf64 c) {
  return __riscv_vfnmsac_vv_f64m2(c, a, b, SIMD_HALF);
}
/* a * 2^n for a number n in the last bits of `bits`; a and the result are normal. */
static inline vf64 v_f64_ldexp(vf64 a, vf64 bits) {
  const vint64m2_t n = __riscv_vreinterpret_v_f64m2_i64m2(bits);
  const vint64m2_t power = __riscv_vsll_vx_i64m2(n, 52, SIMD_HALF);
  const vint64m2_t from = __riscv_vreinterpret_v_f64m2_i64m2(a);
  return __riscv_vreinterpret_v_i64m2_f64m2(__riscv_vadd_vv_i64m2(from, power, SIMD_HALF));
}
#endif

/* --- Across lanes: sums are pairwise, maxima and minima propagate NaN --- */

static inline float v_reduce_add(vf32 a) {
  const vf32 four = __riscv_vfadd_vv_f32m2(a, simd_upper(a), SIMD_HALF);
  const vf32 moved = __riscv_vslidedown_vx_f32m2(four, 2, 2);
  const vf32 two = __riscv_vfadd_vv_f32m2(four, moved, 2);
  const vf32 last = __riscv_vslidedown_vx_f32m2(two, 1, 1);
  return __riscv_vfmv_f_s_f32m2_f32(__riscv_vfadd_vv_f32m2(two, last, 1));
}
/* Lane i is the sum of the V_LANES floats at p + i * V_LANES. */
static inline vf32 v_reduce_add_each(const float *p) {
  float sums[V_LANES];
  for (ptrdiff_t i = 0; i < V_LANES; i++) sums[i] = v_reduce_add(v_load(p + i * V_LANES));
  return v_load(sums);
}
static inline float v_reduce_max(vf32 a) {
  const vfloat32m1_t first = __riscv_vlmul_trunc_v_f32m2_f32m1(a);
  const vfloat32m1_t most = __riscv_vfredmax_vs_f32m2_f32m1(a, first, V_LANES);
  return v_mask_any(v_isnan(a)) ? NAN : __riscv_vfmv_f_s_f32m1_f32(most);
}
static inline float v_reduce_min(vf32 a) {
  const vfloat32m1_t first = __riscv_vlmul_trunc_v_f32m2_f32m1(a);
  const vfloat32m1_t least = __riscv_vfredmin_vs_f32m2_f32m1(a, first, V_LANES);
  return v_mask_any(v_isnan(a)) ? NAN : __riscv_vfmv_f_s_f32m1_f32(least);
}
/* Lane i is lane at[i] of a, 0 <= at[i] < V_LANES. */
static inline vf32 v_permute(vf32 a, vi32 at) {
  return __riscv_vrgather_vv_f32m2(a, __riscv_vreinterpret_v_i32m2_u32m2(at), V_LANES);
}
/* dst[j * dst_stride + i] = src[i * src_stride + j] for i, j < V_LANES; no overlap. */
static inline void v_transpose(float *dst, size_t dst_stride, const float *src,
                               size_t src_stride) {
  const ptrdiff_t step = (ptrdiff_t)(src_stride * sizeof *src);
  for (size_t j = 0; j < V_LANES; j++) {
    v_store(dst + j * dst_stride, __riscv_vlse32_v_f32m2(src + j, step, V_LANES));
  }
}

#endif
