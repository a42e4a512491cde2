/* transcribe.c - the tokens of what is said: transcribe FEATURES [COUNT [PROMPT...]]
 *
 * FEATURES is a file of float32 numbers, the logarithms of a mel spectrum as the encoder takes them, which
 * log_mel.py makes of a sound. The encoder runs once; the decoder attends to the keys and values that it
 * left, and keeps those of the tokens itself. A token is always the likeliest one, up to COUNT (200), or
 * to the end of the text. The prompt is that of English, transcribed without times. Tokens are printed
 * as numbers: a tokenizer of your own makes a text of them.
 */
#include <stdio.h>
#include <stdlib.h>

#include "decoder.h"
#include "encoder.h"

enum { TENSORS = 65 }; /* the most that the encoder leaves: 2 a layer, and its hidden states */
enum { LONGEST = 448, END_OF_TEXT = 50257 };

/* What the decoder reads and writes. */
typedef struct reader {
  decoder_context ctx;
  const void *inputs[TENSORS]; /* the tokens, and what the encoder has left */
  const int64_t *shapes[TENSORS];
  float *scores; /* of the tokens that may follow each */
} reader;

/* Read a file of so many bytes; NULL if it hasn't as many. */
static void *read_file(const char *path, size_t size)
{
  FILE *file = fopen(path, "rb");
  void *bytes = malloc(size);
  int whole = 0;

  if (file != NULL && bytes != NULL) whole = fread(bytes, 1, size, file) == size && getc(file) == EOF;
  if (file != NULL) fclose(file);
  if (whole) return bytes;
  free(bytes);
  return NULL;
}

/* Run the encoder; NULL, or what went wrong. */
static const char *listen(const float *features, void *const *heard)
{
  static encoder_arena arena;
  encoder_context ctx;
  const void *inputs[] = {features};
  int status = encoder_init(&ctx, &arena, sizeof arena);

  if (status == ENCODER_OK) status = encoder_run_tensors(&ctx, inputs, heard);
  return status == ENCODER_OK ? NULL : encoder_status_string(status);
}

/* Let the decoder read tokens, as many at a time as it was compiled for. */
static int read_on(reader *r, const int32_t *tokens, int64_t count, const float **scores)
{
  const int64_t most = decoder_input_info(0)->shape[1], known = decoder_output_info(0)->shape[2];
  int status = DECODER_OK;

  for (int64_t done = 0, part; done < count && status == DECODER_OK; done += part) {
    void *const outputs[] = {r->scores};
    int64_t shape[2] = {1, 0};

    part = shape[1] = count - done < most ? count - done : most;
    r->inputs[0] = tokens + done;
    r->shapes[0] = shape;
    status = decoder_set_input_shapes(&r->ctx, r->shapes);
    if (status == DECODER_OK) status = decoder_run_tensors(&r->ctx, r->inputs, outputs);
    *scores = r->scores + (part - 1) * known;
  }
  return status;
}

/* Print the tokens that follow a prompt. */
static int transcribe(reader *r, const int32_t *prompt, int64_t length, int count)
{
  const int64_t known = decoder_output_info(0)->shape[2];
  const float *scores = r->scores;
  int status = read_on(r, prompt, length, &scores);

  for (int k = 0; k < count && status == DECODER_OK; k++) {
    int32_t next = 0;

    for (int32_t token = 1; token < known; token++) {
      if (scores[token] > scores[next]) next = token;
    }
    if (next == END_OF_TEXT) break;
    printf("%s%ld", k > 0 ? " " : "", (long)next);
    fflush(stdout);
    if (k + 1 < count) status = read_on(r, &next, 1, &scores);
  }
  putchar('\n');
  return status;
}

/* Say which tensors the decoder reads: the encoder's; 0 if it isn't this encoder's decoder. */
static int attend(reader *r, void *const *heard)
{
  const size_t count = encoder_output_count();

  if (decoder_input_count() != count) return 0;
  for (size_t k = 1; k < count; k++) {
    if (decoder_input_info(k)->size != encoder_output_info(k)->size) return 0;
    r->inputs[k] = heard[k];
    r->shapes[k] = decoder_input_info(k)->shape;
  }
  return 1;
}

/* Read the tokens of a prompt; NULL, or what is wrong with them. */
static const char *read_prompt(char **words, int count, int32_t *prompt)
{
  const int64_t known = decoder_output_info(0)->shape[2];

  for (int k = 0; k < count; k++) {
    char *end;
    const long token = strtol(words[k], &end, 10);

    if (end == words[k] || *end != '\0' || token < 0 || token >= known) return "a token of the prompt isn't known";
    prompt[k] = (int32_t)token;
  }
  return NULL;
}

/* Run the encoder on a file, then the decoder; NULL, or what went wrong. */
static const char *recognize(reader *r, const char *path, void **heard, const int32_t *prompt, int length, int count)
{
  static decoder_arena arena;
  float *const features = read_file(path, encoder_input_info(0)->size);
  const char *wrong = "not a file of as many numbers as the encoder takes";
  int status;

  if (features != NULL) wrong = listen(features, heard);
  free(features);
  if (wrong != NULL) return wrong;
  if (!attend(r, heard)) return "the decoder isn't the encoder's";
  status = decoder_init(&r->ctx, &arena, sizeof arena);
  if (status == DECODER_OK) status = transcribe(r, prompt, length, count);
  if (status == DECODER_ERROR_SHAPE) return "the caches are full";
  return status == DECODER_OK ? NULL : decoder_status_string(status);
}

int main(int argc, char **argv)
{
  char *english[] = {"50258", "50259", "50359", "50363"}; /* start, language, task, no times */
  const int own = argc > 3, length = own ? argc - 3 : 4, count = argc > 2 ? atoi(argv[2]) : 200;
  int32_t prompt[LONGEST];
  void *heard[TENSORS] = {NULL};
  const char *wrong;
  reader r = {0};
  int whole = encoder_output_count() <= TENSORS;

  if (argc < 2 || length > LONGEST) {
    fprintf(stderr, "usage: %s FEATURES [COUNT [PROMPT...]]\n", argv[0]);
    return 2;
  }
  r.scores = malloc(decoder_output_info(0)->size);
  for (size_t k = 0; whole && k < encoder_output_count(); k++) {
    heard[k] = malloc(encoder_output_info(k)->size);
    whole = heard[k] != NULL;
  }
  wrong = read_prompt(own ? argv + 3 : english, length, prompt);
  if (wrong == NULL && (!whole || r.scores == NULL)) wrong = "there isn't enough memory";
  if (wrong == NULL) wrong = recognize(&r, argv[1], heard, prompt, length, count);
  if (wrong != NULL) fprintf(stderr, "%s: %s\n", argv[1], wrong);
  for (size_t k = 0; k < TENSORS; k++) free(heard[k]);
  free(r.scores);
  return wrong != NULL;
}
