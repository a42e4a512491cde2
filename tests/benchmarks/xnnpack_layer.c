/* One layer by XNNPACK: its operator is run RUNS times, in rows of channels, on one thread.
 *
 * usage: xnnpack_layer RUNS KIND TYPE C H W M KERNEL STRIDE PAD_BEGIN PAD_END
 * KIND is conv, depthwise, dense (H rows), pool, mean or softmax (H rows); TYPE is float32, float16 or
 * int8. There is no mean and no softmax of float16.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xnnpack.h>

static void *filled(size_t n, size_t size)
{
  unsigned char *const bytes = calloc(n + 64, size);
  for (size_t i = 0; i < n; i++) {
    const float value = (float)(i * 7 % 17) / 16 - 0.5f;
    const __fp16 half = (__fp16)value;
    if (size == sizeof value) memcpy(bytes + i * size, &value, size);
    else if (size == sizeof half) memcpy(bytes + i * size, &half, size);
    else bytes[i] = (unsigned char)(i * 7 % 251);
  }
  return bytes;
}

int main(int argc, char **argv)
{
  if (argc != 12) return 2;
  const int runs = atoi(argv[1]);
  const char *const kind = argv[2];
  const int whole = strcmp(argv[3], "int8") == 0, half = strcmp(argv[3], "float16") == 0;
  size_t n[8];
  for (int i = 0; i < 8; i++) n[i] = (size_t)atol(argv[4 + i]);
  const size_t c = n[0], h = n[1], w = n[2], m = n[3];
  const uint32_t k = (uint32_t)n[4], s = (uint32_t)n[5], p = (uint32_t)n[6], q = (uint32_t)n[7];
  const int depthwise = strcmp(kind, "depthwise") == 0;
  const uint32_t groups = depthwise ? (uint32_t)c : 1;
  const size_t in = c / groups, out = m / groups, size = whole ? 1 : half ? 2 : sizeof(float);
  const uint32_t flags = depthwise ? XNN_FLAG_DEPTHWISE_CONVOLUTION : 0;
  void *const x = filled(h * w * c, size), *const y = calloc(h * w * (m + c) + 64, size);
  void *const weights = filled(m * in * k * k, size);
  float *const scales = filled(m, sizeof(float));
  void *const bias = filled(m, size == 2 ? size : sizeof(float));
  for (size_t i = 0; i < m; i++) scales[i] = 0.001f + 0.00001f * (float)(i % 7);
  xnn_operator_t op = NULL;
  enum xnn_status status = xnn_initialize(NULL);
  if (status) return 100 + (int)status;
  if (half && strcmp(kind, "pool") == 0) {
    status = xnn_create_max_pooling2d_nhwc_f16(p, q, q, p, k, k, s, s, 1, 1, c, c, c, -INFINITY,
                                               INFINITY, 0, &op);
    status |= xnn_setup_max_pooling2d_nhwc_f16(op, 1, h, w, x, y, NULL);
  } else if (half && strcmp(kind, "dense") == 0) {
    status = xnn_create_fully_connected_nc_f16(c, m, c, m, weights, bias, -INFINITY, INFINITY, 0, &op);
    status |= xnn_setup_fully_connected_nc_f16(op, h, x, y, NULL);
  } else if (half && (strcmp(kind, "conv") == 0 || depthwise)) {
    status = xnn_create_convolution2d_nhwc_f16(p, q, q, p, k, k, s, s, 1, 1, groups, in, out, c, m,
                                               weights, bias, 0, INFINITY, flags, &op);
    status |= xnn_setup_convolution2d_nhwc_f16(op, 1, h, w, x, y, NULL);
  } else if (half) {
    return 3;
  } else if (strcmp(kind, "softmax") == 0) {
    status = xnn_create_softmax_nc_f32(c, c, c, 0, &op);
    status |= xnn_setup_softmax_nc_f32(op, h, x, y, NULL);
  } else if (strcmp(kind, "pool") == 0) {
    status = xnn_create_max_pooling2d_nhwc_f32(p, q, q, p, k, k, s, s, 1, 1, c, c, c, -INFINITY,
                                               INFINITY, 0, &op);
    status |= xnn_setup_max_pooling2d_nhwc_f32(op, 1, h, w, x, y, NULL);
  } else if (strcmp(kind, "mean") == 0) {
    status = xnn_create_average_pooling2d_nhwc_f32(p, q, q, p, k, k, s, s, c, c, c, -INFINITY, INFINITY, 0, &op);
    status |= xnn_setup_average_pooling2d_nhwc_f32(op, 1, h, w, x, y, NULL);
  } else if (strcmp(kind, "dense") == 0 && !whole) {
    status = xnn_create_fully_connected_nc_f32(c, m, c, m, weights, bias, -INFINITY, INFINITY, 0, &op);
    status |= xnn_setup_fully_connected_nc_f32(op, h, x, y, NULL);
  } else if (strcmp(kind, "dense") == 0) {
    status = xnn_create_fully_connected_nc_qs8(c, m, c, m, 0, 0.02f, 0.001f, weights, NULL, -128,
                                               0.008f, -128, 127, 0, &op);
    status |= xnn_setup_fully_connected_nc_qs8(op, h, x, y, NULL);
  } else if (whole) {
    status = xnn_create_convolution2d_nhwc_qc8(p, q, q, p, k, k, s, s, 1, 1, groups, in, out, c, m, 0,
                                               0.02f, scales, weights, NULL, -128, 0.008f, -128, 127,
                                               flags, &op);
    status |= xnn_setup_convolution2d_nhwc_qc8(op, 1, h, w, x, y, NULL);
  } else {
    status = xnn_create_convolution2d_nhwc_f32(p, q, q, p, k, k, s, s, 1, 1, groups, in, out, c, m,
                                               weights, bias, 0, INFINITY, flags, &op);
    status |= xnn_setup_convolution2d_nhwc_f32(op, 1, h, w, x, y, NULL);
  }
  for (int i = 0; i < runs && !status; i++) status = xnn_run_operator(op, NULL);
  return (int)status;
}
