/* tensor.h - matrix products of a warp on tensor cores, and copies to shared memory that run beside
 * them; for sm_80 and later, and for the emulation.
 *
 * Tiles lie in shared memory in rows of 64 bytes along the depth, whose four chunks of 16 bytes are
 * swizzled: what a warp reads at once is in different banks. A step of 32 bytes of depth is one
 * instruction: 16 numbers of 16 bits, 32 of 8 bits, or 8 floats. */
#ifndef ATC_TENSOR_H
#define ATC_TENSOR_H

enum { T_ROW = 64, T_CHUNK = 16 };

/* Where a chunk of a tile's row begins, in bytes. */
K_INLINE unsigned t_place(unsigned row, unsigned chunk)
{
  return row * T_ROW + (chunk ^ (row >> 1 & 3)) * T_CHUNK;
}

/* A float as it is stored, and rounded to the ten bits of mantissa of a TF32. */
K_INLINE uint32_t t_bits(float value)
{
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* Two floats as bfloat16 in a word, the first one in its lower half. */
K_INLINE uint32_t t_uppers(float a, float b)
{
#ifdef K_STORES_BF16
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  return both;
#else
  return (uint32_t)k_store_bf16(a) | (uint32_t)k_store_bf16(b) << 16;
#endif
}

/* What that leaves of them, as bfloat16; nothing of what isn't finite. */
K_INLINE uint32_t t_lowers(float a, float b)
{
  const uint32_t both = t_uppers(a, b);
  const float first = a - k_load_bf16((uint16_t)both), second = b - k_load_bf16((uint16_t)(both >> 16));
  return t_uppers(isfinite(first) ? first : 0.0f, isfinite(second) ? second : 0.0f);
}

/* Likewise as float16, of what isn't larger than that holds. */
K_INLINE uint32_t t_halves(float a, float b)
{
#ifdef K_STORES_BF16
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  return both;
#else
  return (uint32_t)k_store_f16(a) | (uint32_t)k_store_f16(b) << 16;
#endif
}
K_INLINE uint32_t t_rests(float a, float b)
{
  const uint32_t both = t_halves(a, b);
  return t_halves(a - k_load_f16((uint16_t)both), b - k_load_f16((uint16_t)(both >> 16)));
}

/* A sum of products without what a zero point adds to it, given the sum of what that multiplies. */
K_INLINE int32_t t_less(int32_t sum, int32_t zero, int32_t sums)
{
  return (int32_t)((uint32_t)sum - (uint32_t)zero * (uint32_t)sums);
}

#ifdef ATC_EMULATED

template <typename Address> static inline void t_load(uint32_t *r, Address at)
{
  const unsigned lane = threadIdx.x % 32;
  for (unsigned k = 0; k < 4; k++) {
    r[k] = *(const uint32_t *)(at(8 * k + lane / 4) + 4 * (lane % 4));
  }
}

/* Likewise of matrices that lie turned: pairs of neighbours in a row come from two rows. */
template <typename Address> static inline void t_load_turned(uint32_t *r, Address at)
{
  const unsigned lane = threadIdx.x % 32;
  for (unsigned k = 0; k < 4; k++) {
    const uint16_t *const first = (const uint16_t *)at(8 * k + lane % 4 * 2) + lane / 4;
    const uint16_t *const second = (const uint16_t *)at(8 * k + lane % 4 * 2 + 1) + lane / 4;
    r[k] = (uint32_t)*first | (uint32_t)*second << 16;
  }
}

/* d += a * b with each of the tiles' products, summed by `add` in the order of the depth. */
template <int M, int N, typename T, typename Add>
static inline void t_multiply(T (&d)[M][N][4], const uint32_t (&a)[M][4], const uint32_t (&b)[N][2],
                              Add add)
{
  const unsigned own = threadIdx.x, lane = own % 32, warp = own - lane;
  const unsigned buffer = emulated_handed.calls[own]++ % 2;
  for (int u = 0; u < M; u++) {
    for (int r = 0; r < 4; r++) emulated_handed.a[buffer][own][u][r] = a[u][r];
  }
  for (int v = 0; v < N; v++) {
    for (int r = 0; r < 2; r++) emulated_handed.b[buffer][own][v][r] = b[v][r];
  }
  emulated_meet_warp();
  for (int u = 0; u < M; u++) {
    for (int v = 0; v < N; v++) {
      for (unsigned e = 0; e < 4; e++) {
        const unsigned row = lane / 4, column = lane % 4 * 2 + e % 2;
        for (unsigned q = 0; q < 8; q++) { /* words of the depth */
          const unsigned half = q / 4, word = q % 4;
          add(d[u][v][e], emulated_handed.a[buffer][warp + row * 4 + word][u][2 * half + e / 2],
              emulated_handed.b[buffer][warp + column * 4 + word][v][half]);
        }
      }
    }
  }
}

/* What the four threads that have a row of a tile hold, joined: the same for all of them. */
template <typename Join> static inline float t_quad(float value, Join join)
{
  const unsigned own = threadIdx.x, first = own - own % 4;
  const unsigned buffer = emulated_handed.calls[own]++ % 2;
  float held[4];
  memcpy(emulated_handed.a[buffer][own][0], &value, sizeof value);
  emulated_meet_warp();
  for (unsigned k = 0; k < 4; k++) memcpy(&held[k], emulated_handed.a[buffer][first + k][0], sizeof value);
  return join(join(held[0], held[1]), join(held[2], held[3]));
}

#define T_PRODUCT(NAME, T, ADD)                                                                    \
  static inline void NAME##_add(T &sum, uint32_t left, uint32_t right) { ADD }                     \
  template <int M, int N>                                                                          \
  static inline void NAME(T (&d)[M][N][4], const uint32_t (&a)[M][4], const uint32_t (&b)[N][2])   \
  {                                                                                                \
    t_multiply(d, a, b, NAME##_add);                                                               \
  }
#define T_HALVES(LOAD)                                                                             \
  for (int s = 0; s < 32; s += 16) {                                                               \
    sum += LOAD((uint16_t)(left >> s)) * LOAD((uint16_t)(right >> s));                             \
  }
#define T_BYTES(A, B)                                                                              \
  for (int s = 0; s < 32; s += 8) {                                                                \
    sum = (int32_t)((uint32_t)sum + (uint32_t)((int32_t)(A)(left >> s) * (int32_t)(B)(right >> s))); \
  }
T_PRODUCT(t_f16, float, T_HALVES(k_load_f16))
T_PRODUCT(t_bf16, float, T_HALVES(k_load_bf16))
/* Half of the last of ten bits is added: halfway cases are rounded up. */
static inline float t_shortened(uint32_t bits)
{
  float value;
  if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & 0xffffe000u;
  memcpy(&value, &bits, sizeof value);
  return value;
}
T_PRODUCT(t_tf32, float, sum += t_shortened(left) * t_shortened(right);)
T_PRODUCT(t_s8s8, int32_t, T_BYTES(int8_t, int8_t))
T_PRODUCT(t_u8s8, int32_t, T_BYTES(uint8_t, int8_t))
T_PRODUCT(t_s8u8, int32_t, T_BYTES(int8_t, uint8_t))
T_PRODUCT(t_u8u8, int32_t, T_BYTES(uint8_t, uint8_t))

static inline float t_exp(float x) { return expf(x); }

/* Copies are made when they are waited for: who doesn't wait reads what was there before. */
static inline void t_copy(unsigned char *to, const void *from, bool inside)
{
  emulated_copy(to, inside ? from : NULL, T_CHUNK);
}
static inline void t_commit(void) { emulated_commit(); }
template <int N> static inline void t_wait(void) { emulated_wait(N); }

#else

template <typename Address> K_INLINE void t_load(uint32_t *r, Address at)
{
  const unsigned place = (unsigned)__cvta_generic_to_shared(at(threadIdx.x % 32));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(place)
               : "memory");
}

/* Likewise of matrices that lie turned: pairs of neighbours in a row come from two rows. */
template <typename Address> K_INLINE void t_load_turned(uint32_t *r, Address at)
{
  const unsigned place = (unsigned)__cvta_generic_to_shared(at(threadIdx.x % 32));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(place)
               : "memory");
}

/* The exponential function: near 0 within two units in the last place, of large numbers less exact. */
K_INLINE float t_exp(float x)
{
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.442695041f));
  return y;
}

template <typename Join> K_INLINE float t_quad(float value, Join join)
{
  value = join(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return join(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

#define T_PRODUCT(NAME, T, C, SHAPE)                                                               \
  template <int M, int N>                                                                          \
  K_INLINE void NAME(T (&d)[M][N][4], const uint32_t (&a)[M][4], const uint32_t (&b)[N][2])        \
  {                                                                                                \
    UNROLL                                                                                         \
    for (int u = 0; u < M; u++) {                                                                  \
      UNROLL                                                                                       \
      for (int v = 0; v < N; v++) {                                                                \
        asm volatile("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "   \
                     "{%0, %1, %2, %3};"                                                           \
                     : "+" C(d[u][v][0]), "+" C(d[u][v][1]), "+" C(d[u][v][2]), "+" C(d[u][v][3])  \
                     : "r"(a[u][0]), "r"(a[u][1]), "r"(a[u][2]), "r"(a[u][3]), "r"(b[v][0]),       \
                       "r"(b[v][1]));                                                              \
      }                                                                                            \
    }                                                                                              \
  }
T_PRODUCT(t_f16, float, "f", "m16n8k16.row.col.f32.f16.f16.f32")
T_PRODUCT(t_bf16, float, "f", "m16n8k16.row.col.f32.bf16.bf16.f32")
T_PRODUCT(t_of_shortened, float, "f", "m16n8k8.row.col.f32.tf32.tf32.f32")

/* Products of floats that are rounded first. */
template <int M, int N>
K_INLINE void t_tf32(float (&d)[M][N][4], const uint32_t (&a)[M][4], const uint32_t (&b)[N][2])
{
  uint32_t left[M][4], right[N][2];
  UNROLL
  for (int u = 0; u < M; u++) {
    UNROLL
    for (int r = 0; r < 4; r++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(left[u][r]) : "r"(a[u][r]));
  }
  UNROLL
  for (int v = 0; v < N; v++) {
    UNROLL
    for (int r = 0; r < 2; r++) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(right[v][r]) : "r"(b[v][r]));
  }
  t_of_shortened(d, left, right);
}
T_PRODUCT(t_s8s8, int32_t, "r", "m16n8k32.row.col.s32.s8.s8.s32")
T_PRODUCT(t_u8s8, int32_t, "r", "m16n8k32.row.col.s32.u8.s8.s32")
T_PRODUCT(t_s8u8, int32_t, "r", "m16n8k32.row.col.s32.s8.u8.s32")
T_PRODUCT(t_u8u8, int32_t, "r", "m16n8k32.row.col.s32.u8.u8.s32")

K_INLINE void t_copy(unsigned char *to, const void *from, bool inside)
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from), "r"(inside ? T_CHUNK : 0)
               : "memory");
}
K_INLINE void t_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> K_INLINE void t_wait(void) { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

#endif

K_INLINE float t_quad_max(float value)
{
  return t_quad(value, [](float a, float b) { return fmaxf(a, b); });
}
K_INLINE float t_quad_sum(float value)
{
  return t_quad(value, [](float a, float b) { return a + b; });
}

/* Write a chunk that was made of numbers. */
K_INLINE void t_store(unsigned char *to, const uint32_t *words)
{
  uint32_t *const at = (uint32_t *)(void *)to;
  UNROLL
  for (int k = 0; k < 4; k++) at[k] = words[k];
}

/* The rows of 16 that A's fragment is read from, and of two tiles of 8 of B's, lane by lane. */
template <int M>
K_INLINE void t_load_a(uint32_t (&r)[M][4], const unsigned char *tile, unsigned row, unsigned chunk)
{
  UNROLL
  for (int u = 0; u < M; u++) {
    t_load(r[u], [=](unsigned lane) {
      return tile + t_place(row + 16 * (unsigned)u + lane % 16, chunk + lane / 16);
    });
  }
}

template <int N>
K_INLINE void t_load_b(uint32_t (&r)[N][2], const unsigned char *tile, unsigned row, unsigned chunk)
{
  UNROLL
  for (int v = 0; v < N; v += 2) {
    t_load(r[v], [=](unsigned lane) {
      return tile + t_place(row + 8 * (unsigned)v + lane / 16 * 8 + lane % 8, chunk + lane / 8 % 2);
    });
  }
}

/* Likewise where rows are along the depth: 16 of them, of tiles that each have 32 of the columns. */
template <int N>
K_INLINE void t_load_b_turned(uint32_t (&r)[N][2], const unsigned char *tile, unsigned tile_size, unsigned row,
                              unsigned chunk)
{
  UNROLL
  for (int v = 0; v < N; v += 2) {
    t_load_turned(r[v], [=](unsigned lane) {
      const unsigned own = chunk + (unsigned)v + lane / 16;
      return tile + own / 4 * tile_size + t_place(row + lane % 16, own % 4);
    });
  }
}

#endif
