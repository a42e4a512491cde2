/* atc_external.h - operators of your own in networks that atc compiles.
 *
 * Write a function that computes the operator, and a shared library that describes it to atc:
 *
 *     void my_scale(const atc_external_call *call) { ... }
 *
 *     static int scale_shapes(const char *attributes, size_t input_count,
 *         const atc_external_tensor *inputs, size_t output_count, atc_external_tensor *outputs)
 *     {
 *       if (input_count != 1 || output_count != 1) return 1;
 *       outputs[0] = inputs[0];
 *       return 0;
 *     }
 *
 *     void MGB_C_OPR_INIT_FUNC(atc_external_get_api get_api)
 *     {
 *       static const atc_external_operator scale = {"my.domain::Scale", "my_scale", scale_shapes};
 *       const atc_external_api *api = get_api(ATC_EXTERNAL_VERSION);
 *       if (api != NULL) api->register_operator(&scale);
 *     }
 *
 *     cc -shared -fPIC -o libmy.so my.c
 *     atc --model=net.onnx --output=out/net --c_opr_lib=libmy.so
 *     load_and_run out/net --c_opr_lib=libmy.so
 *
 * The compiled network calls my_scale directly. A program that uses the network links a definition
 * of it: this file's library, or the same source.
 */
#ifndef ATC_EXTERNAL_H
#define ATC_EXTERNAL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATC_EXTERNAL_VERSION 1
#define ATC_EXTERNAL_MAX_RANK 8

/* The type and shape of a dense, row-major tensor. dtype is ONNX's TensorProto.DataType (1 float,
 * 6 int32, 7 int64, ...), 0 for an optional input that is absent. */
typedef struct atc_external_tensor {
  int32_t dtype;
  int32_t rank;
  int64_t shape[ATC_EXTERNAL_MAX_RANK];
} atc_external_tensor;

/* One call of an operator. Inputs and outputs don't overlap. */
typedef struct atc_external_call {
  const char *attributes; /* of the node: a JSON object, names in order */
  size_t input_count;
  const atc_external_tensor *inputs;
  const void *const *input_data;
  size_t output_count;
  const atc_external_tensor *outputs;
  void *const *output_data;
} atc_external_call;

/* An operator: its type in the model, `domain::Type` or, for any domain, `Type`; the name of the
 * function `void name(const atc_external_call *)` that computes it, in several threads at once;
 * and a function that, when compiling, fills the outputs' types and shapes and returns 0, or
 * another number where the inputs don't suit the operator. The strings are copied. */
typedef struct atc_external_operator {
  const char *type;
  const char *symbol;
  int (*infer)(const char *attributes, size_t input_count, const atc_external_tensor *inputs,
      size_t output_count, atc_external_tensor *outputs);
} atc_external_operator;

/* What atc offers to an init function. register_operator returns 0 if all is well. */
typedef struct atc_external_api {
  uint32_t version;
  int (*register_operator)(const atc_external_operator *op);
} atc_external_api;

/* Returns NULL for a version that this atc hasn't got. */
typedef const atc_external_api *(*atc_external_get_api)(int version);

/* Every library of operators exports this function (another name: --c_opr_init_interface). */
#ifndef MGB_C_OPR_INIT_FUNC
#define MGB_C_OPR_INIT_FUNC mgb_c_opr_init
#endif
void MGB_C_OPR_INIT_FUNC(atc_external_get_api get_api);

/* With --c_opr_lib_with_param, load_and_run takes the memory of the network's inputs and outputs
 * from these three, and the library must export them. h2d copies from the host's memory. */
void *copr_param_device_ptr_malloc(size_t size);
void copr_param_device_ptr_h2d(void *device, void *host, size_t size);
void copr_param_device_ptr_free(void *device);

#ifdef __cplusplus
}
#endif
#endif
