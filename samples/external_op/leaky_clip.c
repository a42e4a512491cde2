/* An operator of one's own: LeakyClip(x) with the attributes low, high and slope.
 *
 *   H=$(python -c "import atc.templates as t; print(t.FOLDER / 'project')")
 *   cc -shared -fPIC -I"$H" -o libleaky_clip.so leaky_clip.c
 *   python make_model.py leaky_clip.onnx
 *   load_and_run leaky_clip.onnx --c-opr-lib=./libleaky_clip.so --input="x:[-3.0,0.5,9.0]" --io-dump-stdout
 */
#include <stdlib.h>
#include <string.h>

#include "atc_external.h"

/* Return the number of an attribute in a flat JSON object. */
static double number(const char *attributes, const char *name, double otherwise)
{
  const char *at = strstr(attributes, name);
  return at == NULL ? otherwise : strtod(at + strlen(name) + 2, NULL); /* "name": 1.5 */
}

static size_t size_of(const atc_external_tensor *t)
{
  size_t size = 1;
  for (int32_t k = 0; k < t->rank; k++) size *= (size_t)t->shape[k];
  return size;
}

void leaky_clip(const atc_external_call *call)
{
  const float low = (float)number(call->attributes, "low", 0.0);
  const float high = (float)number(call->attributes, "high", 1.0);
  const float slope = (float)number(call->attributes, "slope", 0.0);
  const float *x = call->input_data[0];
  float *y = call->output_data[0];
  const size_t size = size_of(&call->inputs[0]);

  for (size_t i = 0; i < size; i++) {
    if (x[i] < low) y[i] = low + slope * (x[i] - low);
    else if (x[i] > high) y[i] = high + slope * (x[i] - high);
    else y[i] = x[i];
  }
}

/* The result is like the operand, which must be float. */
static int leaky_clip_types(const char *attributes, size_t input_count,
    const atc_external_tensor *inputs, size_t output_count, atc_external_tensor *outputs)
{
  (void)attributes;
  if (input_count != 1 || output_count != 1 || inputs[0].dtype != 1) return 1;
  outputs[0] = inputs[0];
  return 0;
}

void MGB_C_OPR_INIT_FUNC(atc_external_get_api get_api)
{
  static const atc_external_operator op = {"my.ops::LeakyClip", "leaky_clip", leaky_clip_types};
  const atc_external_api *api = get_api(ATC_EXTERNAL_VERSION);

  if (api != NULL) api->register_operator(&op);
}

/* Memory for --c-opr-lib-with-param. A device other than the CPU would copy here. */
void *copr_param_device_ptr_malloc(size_t size) { return malloc(size); }

void copr_param_device_ptr_h2d(void *device, void *host, size_t size)
{
  memcpy(device, host, size);
}

void copr_param_device_ptr_free(void *device) { free(device); }
