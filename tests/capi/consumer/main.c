/* Prints eight tokens of a story. Usage: in_c MODEL */
#include <ridge/ridge.h>
#include <stdio.h>
#include <string.h>

static int print_piece(void* user, const char* text, size_t n) {
  return fwrite(text, 1, n, user) == n;
}

int main(int argc, char** argv) {
  const char* const prompt = "Once upon a time";
  int32_t ids[64];
  ridge_tokens tokens = {ids, 64, 0};
  ridge_model* model = NULL;
  ridge_session* session = NULL;
  ridge_sampler_options sampler;
  ridge_generate_options options;
  ridge_sampler_options_init(&sampler, sizeof sampler);
  sampler.temperature = 0;
  ridge_generate_options_init(&options, sizeof options);
  options.sampler = &sampler;
  options.max_tokens = 8;
  if (argc < 2 || ridge_model_load(argv[1], NULL, &model) != RIDGE_OK ||
      ridge_session_create(model, NULL, &session) != RIDGE_OK ||
      ridge_tokenize(model, prompt, strlen(prompt), RIDGE_ADD_SPECIAL, &tokens) != RIDGE_OK ||
      ridge_generate(session, &tokens, &options, print_piece, stdout, NULL) != RIDGE_OK) {
    fprintf(stderr, "%s\n", ridge_last_error());
    return 1;
  }
  ridge_session_free(session);
  ridge_model_free(model);
  return 0;
}
