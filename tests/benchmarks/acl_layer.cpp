/* One layer by Arm Compute Library: its function is run RUNS times, in rows of channels, on one thread.
 *
 * usage: acl_layer RUNS KIND TYPE C H W M KERNEL STRIDE PAD_BEGIN PAD_END
 * KIND is conv, depthwise, dense (H rows), pool, mean or softmax (H rows); TYPE is float32 or int8.
 */
#include <arm_compute/core/Types.h>
#include <arm_compute/runtime/NEON/NEFunctions.h>
#include <arm_compute/runtime/NEON/NEScheduler.h>
#include <arm_compute/runtime/Tensor.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

using namespace arm_compute;

static void fill(Tensor &t)
{
  t.allocator()->allocate();
  unsigned char *const bytes = t.buffer();
  for (size_t i = 0; i < t.info()->total_size(); i++) bytes[i] = 0;
  if (t.info()->data_type() != DataType::F32) {
    for (size_t i = 0; i < t.info()->total_size(); i++) bytes[i] = (unsigned char)(i * 7 % 251);
    return;
  }
  for (size_t i = 0; i + 4 <= t.info()->total_size(); i += 4) {
    const float value = (float)(i * 7 % 17) / 16 - 0.5f;
    std::memcpy(bytes + i, &value, sizeof value);
  }
}

int main(int argc, char **argv)
{
  if (argc != 12) return 2;
  const int runs = std::atoi(argv[1]);
  const std::string kind = argv[2];
  const bool whole = std::string(argv[3]) == "int8";
  unsigned n[8];
  for (int i = 0; i < 8; i++) n[i] = (unsigned)std::atol(argv[4 + i]);
  const unsigned c = n[0], h = n[1], w = n[2], m = n[3], k = n[4], s = n[5], p = n[6], q = n[7];
  NEScheduler::get().set_num_threads(1);
  const DataType type = whole ? DataType::QASYMM8_SIGNED : DataType::F32;
  const DataType sums = whole ? DataType::S32 : DataType::F32;
  const PadStrideInfo window(s, s, p, q, p, q, DimensionRoundingType::FLOOR);
  const unsigned out_h = (h + p + q - k) / s + 1, out_w = (w + p + q - k) / s + 1;
  const bool rows = kind == "dense" || kind == "softmax", alone = kind == "depthwise";

  TensorInfo x_info(rows ? TensorShape(c, h) : TensorShape(c, w, h), 1, type);
  TensorInfo y_info(rows ? TensorShape(kind == "dense" ? m : c, h) : TensorShape(m, out_w, out_h), 1, type);
  TensorInfo w_info(rows ? TensorShape(c, m) : alone ? TensorShape(c, k, k) : TensorShape(c, k, k, m), 1,
                    whole && !rows ? DataType::QSYMM8_PER_CHANNEL : type);
  TensorInfo b_info(TensorShape(m), 1, sums);
  for (TensorInfo *info : {&x_info, &y_info, &w_info}) {
    if (!rows) info->set_data_layout(DataLayout::NHWC);
  }
  if (whole) {
    x_info.set_quantization_info(QuantizationInfo(0.02f, -128));
    y_info.set_quantization_info(QuantizationInfo(0.008f, -128));
    w_info.set_quantization_info(rows ? QuantizationInfo(0.001f, 0) : QuantizationInfo(std::vector<float>(m, 0.001f)));
  }
  Tensor x, y, weights, bias;
  x.allocator()->init(x_info);
  y.allocator()->init(y_info);
  weights.allocator()->init(w_info);
  bias.allocator()->init(b_info);
  std::unique_ptr<IFunction> layer;
  const ActivationLayerInfo relu(ActivationLayerInfo::ActivationFunction::RELU);
  if (kind == "conv") {
    auto own = std::make_unique<NEConvolutionLayer>();
    own->configure(&x, &weights, &bias, &y, window, WeightsInfo(), Size2D(1U, 1U), relu);
    layer = std::move(own);
  } else if (alone) {
    auto own = std::make_unique<NEDepthwiseConvolutionLayer>();
    own->configure(&x, &weights, &bias, &y, window, 1, relu);
    layer = std::move(own);
  } else if (kind == "dense") {
    auto own = std::make_unique<NEFullyConnectedLayer>();
    own->configure(&x, &weights, &bias, &y);
    layer = std::move(own);
  } else if (kind == "softmax") {
    auto own = std::make_unique<NESoftmaxLayer>();
    own->configure(&x, &y);
    layer = std::move(own);
  } else {
    auto own = std::make_unique<NEPoolingLayer>();
    own->configure(&x, &y, PoolingLayerInfo(kind == "pool" ? PoolingType::MAX : PoolingType::AVG, k,
                                            DataLayout::NHWC, window, true));
    layer = std::move(own);
  }
  for (Tensor *t : {&x, &y, &weights, &bias}) fill(*t);
  layer->prepare();
  for (int i = 0; i < runs; i++) layer->run();
  return 0;
}
