/* The C API from a C program: `capi_test MODELS_DIR SCRATCH_DIR NAME` runs the test of that name. */
#include <math.h>

#include "check.h"

static const char* models;
static const char* scratch;

static const char* in_folder(const char* folder, const char* name) {
  static char path[2][1024];
  static int turn = 0;
  turn = 1 - turn;
  snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
  return path[turn];
}

static ridge_model* load(const char* name) {
  ridge_model* model = NULL;
  ridge_load_options options;
  ridge_load_options_init(&options, sizeof options);
  options.n_threads = 2;
  OK(ridge_model_load(in_folder(models, name), &options, &model));
  return model;
}
static ridge_model* tiny(void) { return load("stories260K.gguf"); }

static ridge_session* open_session(const ridge_model* model, const char* kv, int n_ctx) {
  ridge_session* session = NULL;
  ridge_session_options options;
  ridge_session_options_init(&options, sizeof options);
  options.kv = kv;
  options.n_ctx = n_ctx;
  OK(ridge_session_create(model, &options, &session));
  return session;
}

static int32_t vocab_size(const ridge_model* model) {
  ridge_model_info info;
  info.size = sizeof info;
  OK(ridge_model_get_info(model, &info));
  return info.vocab_size;
}

/* The tokens of a text, in memory of this function. */
static ridge_tokens tokens_of(const ridge_model* model, const char* text) {
  static int32_t data[1024];
  ridge_tokens tokens = {data, 1024, 0};
  OK(ridge_tokenize(model, text, strlen(text), RIDGE_ADD_SPECIAL, &tokens));
  return tokens;
}

/* What pieces of a text are added to. `left` pieces are taken, then the text is stopped. */
typedef struct {
  char text[8192];
  size_t n;
  int left;
} streamed;
static int add_piece(void* user, const char* text, size_t n) {
  streamed* const to = user;
  CHECK(to->n + n < sizeof to->text);
  memcpy(to->text + to->n, text, n);
  to->text[to->n += n] = 0;
  return --to->left != 0;
}

static ridge_generate_options greedy(ridge_sampler_options* sampler, int max_tokens) {
  ridge_generate_options options;
  ridge_sampler_options_init(sampler, sizeof *sampler);
  sampler->temperature = 0;
  ridge_generate_options_init(&options, sizeof options);
  options.sampler = sampler;
  options.max_tokens = max_tokens;
  return options;
}

static void test_versions(void) {
  CHECK(ridge_abi_version() == RIDGE_ABI_VERSION);
  CHECK(strstr(ridge_version(), "(") != NULL);
  CHECK(strcmp(ridge_status_name(RIDGE_USAGE), "usage") == 0);
  CHECK(strcmp(ridge_last_error(), "") == 0);
}

static void test_model(void) {
  ridge_model* model = load("ridge-ref-q8_0.gguf");
  ridge_model_info info;
  memset(&info, 0, sizeof info);
  info.size = sizeof info;
  OK(ridge_model_get_info(model, &info));
  CHECK(strcmp(info.arch, "llama") == 0 && strcmp(info.device, "cpu") == 0 && info.has_tokenizer == 1);
  CHECK(info.n_layers > 0 && info.d_model > 0 && info.n_threads == 2 && info.weight_bytes > 1000000);
  /* A caller of an older version, whose struct ends here, gets no more. */
  memset(&info, 0x55, sizeof info);
  info.size = offsetof(ridge_model_info, device);
  OK(ridge_model_get_info(model, &info));
  CHECK(strcmp(info.arch, "llama") == 0 && info.n_layers == 0x55555555);
  ridge_model_free(model);
  ridge_model_free(NULL);
  ridge_load_options options;
  ridge_load_options_init(&options, sizeof options);
  CHECK(options.n_cpu_moe == 0 && options.moe_device_gib == 0 && options.moe_cache_gib == 0);
  options.n_cpu_moe = 1;
  REFUSED(ridge_model_load("synth:tiny-experts@weights=f32", &options, &model), RIDGE_USAGE, "on the CPU all experts");
  options.n_cpu_moe = 0;
  options.moe_device_gib = 2;
  REFUSED(ridge_model_load("synth:tiny-experts@weights=f32", &options, &model), RIDGE_USAGE, "on the CPU all experts");
  options.moe_device_gib = 0;
  options.moe_cache_gib = 1;
  REFUSED(ridge_model_load("synth:tiny-experts@weights=f32", &options, &model), RIDGE_USAGE, "on the CPU all experts");
}

static void test_tokens(void) {
  ridge_model* model = tiny();
  const char* const said = "Once upon a time";
  ridge_tokens tokens = {NULL, 0, 0};
  int32_t data[64];
  OK(ridge_tokenize(model, said, strlen(said), RIDGE_ADD_SPECIAL, &tokens));
  CHECK(tokens.n > 1 && tokens.n < 64);
  const size_t n = tokens.n;
  tokens.data = data;
  tokens.capacity = n - 1;
  REFUSED(ridge_tokenize(model, said, strlen(said), RIDGE_ADD_SPECIAL, &tokens), RIDGE_USAGE, "capacity");
  tokens.capacity = n;
  OK(ridge_tokenize(model, said, strlen(said), RIDGE_ADD_SPECIAL, &tokens));
  char back[64];
  ridge_text text = {back, sizeof back, 0};
  OK(ridge_detokenize(model, data, n, 0, &text));
  CHECK(text.n == strlen(said) && memcmp(back, said, text.n) == 0);
  OK(ridge_piece(model, data[0], RIDGE_PARSE_SPECIAL, &text));
  CHECK(text.n > 0);
  CHECK(!ridge_is_end(model, data[1]));
  REFUSED(ridge_piece(model, -1, 0, &text), RIDGE_USAGE, "vocabulary");
  REFUSED(ridge_detokenize(model, NULL, 2, 0, &text), RIDGE_USAGE, "tokens is NULL");
  OK(ridge_tokenize(model, NULL, 0, 0, &tokens));
  CHECK(tokens.n == 0);
  ridge_model_free(model);
}

/* Sampling by hand, ridge_generate() and a stream give one text. */
static void test_generate(void) {
  ridge_model* model = tiny();
  const ridge_tokens prompt = tokens_of(model, "Once upon a time");
  ridge_sampler_options sampling;
  ridge_generate_options options = greedy(&sampling, 60);
  sampling.temperature = 0.7f;
  sampling.repeat_penalty = 1.1f;
  sampling.seed = 5;

  ridge_session* session = open_session(model, "f16", 128);
  streamed called = {"", 0, -1};
  ridge_generation result = {.size = sizeof result};
  OK(ridge_generate(session, &prompt, &options, add_piece, &called, &result));
  CHECK(result.stop == RIDGE_STOP_MAX_TOKENS && result.n_tokens == 60 && called.n > 100);
  CHECK(ridge_session_n_past(session) == (int32_t)(prompt.n + 59) && ridge_session_n_ctx(session) == 128);
  int32_t first_tokens[60];
  memcpy(first_tokens, result.tokens, sizeof first_tokens);

  OK(ridge_session_reset(session));
  ridge_stream* stream = NULL;
  OK(ridge_stream_create(session, &prompt, &options, &stream));
  streamed pulled = {"", 0, -1};
  for (;;) {
    const char* text = NULL;
    size_t n = 0;
    OK(ridge_stream_next(stream, &text, &n));
    if (n == 0) break;
    add_piece(&pulled, text, n);
  }
  CHECK(strcmp(called.text, pulled.text) == 0);
  OK(ridge_stream_result(stream, &result));
  CHECK(result.n_tokens == 60 && memcmp(result.tokens, first_tokens, sizeof first_tokens) == 0);
  ridge_session_free(session); /* the stream keeps what it needs */
  OK(ridge_stream_result(stream, &result));
  ridge_stream_free(stream);

  session = open_session(model, NULL, 128);
  ridge_sampler* sampler = NULL;
  OK(ridge_sampler_create(model, &sampling, &sampler));
  OK(ridge_sampler_accept(sampler, prompt.data, prompt.n));
  const float* logits = NULL;
  OK(ridge_prefill(session, prompt.data, prompt.n, &logits));
  for (int i = 0; i < 60; ++i) {
    int32_t token = -1;
    OK(ridge_sampler_sample(sampler, logits, &token));
    CHECK(token == first_tokens[i]);
    OK(ridge_decode(session, token, &logits));
  }
  ridge_sampler_free(sampler);
  ridge_session_free(session);
  ridge_model_free(model);
}

static void test_stops(void) {
  ridge_model* model = tiny();
  const ridge_tokens prompt = tokens_of(model, "Once upon a time");
  ridge_sampler_options sampling;
  ridge_generate_options options = greedy(&sampling, 40);
  ridge_session* session = open_session(model, "f16", 64);
  streamed whole = {"", 0, -1}, cut = {"", 0, 2}, stopped = {"", 0, -1};
  ridge_generation result = {.size = sizeof result};
  OK(ridge_generate(session, &prompt, &options, add_piece, &whole, NULL));

  OK(ridge_session_reset(session));
  OK(ridge_generate(session, &prompt, &options, add_piece, &cut, &result));
  CHECK(result.stop == RIDGE_STOP_INTERRUPTED && strncmp(cut.text, whole.text, cut.n) == 0 && cut.n < whole.n);

  char stop[5] = "";
  memcpy(stop, whole.text + 20, 4);
  const char* const stops[] = {"never this", stop};
  options.stop = stops;
  options.n_stop = 2;
  OK(ridge_session_reset(session));
  OK(ridge_generate(session, &prompt, &options, add_piece, &stopped, &result));
  CHECK(result.stop == RIDGE_STOP_STRING && strstr(whole.text, stop) == whole.text + stopped.n);

  options.n_stop = 0;
  options.max_tokens = -1;
  OK(ridge_session_reset(session));
  OK(ridge_generate(session, &prompt, &options, NULL, NULL, &result));
  CHECK(result.stop == RIDGE_STOP_CONTEXT_FULL && ridge_session_n_past(session) == 64);
  ridge_stream* stream = NULL;
  OK(ridge_session_reset(session));
  OK(ridge_stream_create(session, &prompt, &options, &stream));
  const char* text = NULL;
  size_t n = 1;
  while (n > 0) OK(ridge_stream_next(stream, &text, &n));
  OK(ridge_stream_result(stream, &result));
  CHECK(result.stop == RIDGE_STOP_CONTEXT_FULL && ridge_session_n_past(session) == 64);
  ridge_stream_free(stream);

  /* Going on without a prompt needs logits. */
  const ridge_tokens none = {NULL, 0, 0};
  REFUSED(ridge_generate(session, &none, &options, NULL, NULL, NULL), RIDGE_USAGE, "prompt");
  ridge_session_free(session);
  ridge_model_free(model);
}

/* State: save, load, copy and truncate lead to the same logits. */
static void test_state(void) {
  ridge_model* model = load("ridge-ref-q8_0.gguf");
  ridge_session *a = open_session(model, "rotor-3", 256), *b = open_session(model, "rotor-3", 256),
                *other = open_session(model, "q8_0/rotor-3", 256);
  int32_t tokens[150];
  for (int i = 0; i < 150; ++i) tokens[i] = (i * 7919 + 13) % vocab_size(model);
  const char* const path = in_folder(scratch, "state.rkv");
  const size_t bytes = sizeof(float) * (size_t)vocab_size(model);
  float* const expected = malloc(bytes);
  const float* logits = NULL;
  OK(ridge_prefill(a, tokens, 149, &logits));
  OK(ridge_session_save(a, path));
  OK(ridge_session_copy(b, a));
  OK(ridge_decode(a, tokens[149], &logits));
  memcpy(expected, logits, bytes);
  OK(ridge_decode(b, tokens[149], &logits));
  CHECK(memcmp(logits, expected, bytes) == 0);
  OK(ridge_session_load(b, path));
  CHECK(ridge_session_n_past(b) == 149);
  OK(ridge_decode(b, tokens[149], &logits));
  CHECK(memcmp(logits, expected, bytes) == 0);
  OK(ridge_session_truncate(b, 140));
  OK(ridge_prefill(b, tokens + 140, 10, &logits));
  CHECK(memcmp(logits, expected, bytes) == 0);
  OK(ridge_session_shift(b, 10, 40));
  CHECK(ridge_session_n_past(b) == 110);

  REFUSED(ridge_session_load(other, path), RIDGE_BAD_FILE, "state.rkv");
  REFUSED(ridge_session_copy(other, a), RIDGE_USAGE, "K of layer 0");
  REFUSED(ridge_session_truncate(a, 1000), RIDGE_USAGE, "1000");
  REFUSED(ridge_session_load(a, in_folder(scratch, "none.rkv")), RIDGE_BAD_FILE, "none.rkv");
  ridge_kv_info info = {.size = sizeof info};
  OK(ridge_session_kv_info(a, &info));
  CHECK(info.k_bits > 3 && info.k_bits < 4 && info.bytes_per_token > 0 && info.allocated_bytes > 0);
  free(expected);
  ridge_model_free(model); /* sessions keep what they need */
  OK(ridge_decode(a, 5, NULL));
  ridge_session_free(a);
  ridge_session_free(b);
  ridge_session_free(other);
}

/* Counts rows; stops at `most`. */
typedef struct {
  size_t n, most, n_cols;
  double last[1024];
} counted;
static int count_rows(void* user, size_t first, size_t n_rows, size_t n_cols, const float* rows) {
  counted* const c = user;
  CHECK(first == c->n);
  c->n += n_rows;
  c->n_cols = n_cols;
  for (size_t i = 0; i < n_cols && i < 1024; ++i) c->last[i] = rows[(n_rows - 1) * n_cols + i];
  return c->n < c->most;
}

static void test_rows(void) {
  ridge_model* model = tiny();
  ridge_session *session = NULL, *plain = open_session(model, "f16", 128);
  ridge_session_options options;
  ridge_session_options_init(&options, sizeof options);
  options.n_ctx = 128;
  options.n_ubatch = 16;
  OK(ridge_session_create(model, &options, &session));
  int32_t tokens[100];
  for (int i = 0; i < 100; ++i) tokens[i] = (i * 7919 + 13) % vocab_size(model);
  counted rows = {0, 1000, 0, {0}}, hidden = {0, 1000, 0, {0}}, few = {0, 40, 0, {0}};
  const float* logits = NULL;
  OK(ridge_prefill(plain, tokens, 100, &logits));
  OK(ridge_prefill_logits(session, tokens, 100, count_rows, &rows));
  CHECK(rows.n == 100 && rows.n_cols == (size_t)vocab_size(model));
  for (size_t i = 0; i < rows.n_cols && i < 1024; ++i) CHECK(rows.last[i] == logits[i]);
  OK(ridge_session_reset(session));
  OK(ridge_prefill_hidden(session, tokens, 100, count_rows, &hidden));
  CHECK(hidden.n == 100 && hidden.n_cols == 64);
  OK(ridge_session_reset(session));
  REFUSED(ridge_prefill_logits(session, tokens, 100, count_rows, &few), RIDGE_INTERRUPTED, "callback");
  CHECK(ridge_session_n_past(session) == 48);
  REFUSED(ridge_prefill_hidden(session, tokens, 10, NULL, NULL), RIDGE_USAGE, "on_rows");
  ridge_session_free(session);
  ridge_session_free(plain);
  ridge_model_free(model);
}

/* Sequences of a batch, prompts and single tokens mixed, are the bits of sessions alone. */
static void test_batches(void) {
  ridge_model* model = tiny();
  ridge_session_options options;
  ridge_session_options_init(&options, sizeof options);
  options.kv = "i8r";
  options.n_ctx = 100;
  options.n_ubatch = 80;
  ridge_batch* batch = NULL;
  OK(ridge_batch_create(model, &options, 3, &batch));
  int32_t tokens[100];
  for (int i = 0; i < 100; ++i) tokens[i] = (i * 7919 + 13) % vocab_size(model);
  const float *logits = NULL, *alone = NULL;
  const size_t width = (size_t)vocab_size(model), bytes = sizeof(float) * width;
  const ridge_batch_row first[] = {{0, tokens, 50}, {2, tokens + 20, 30}};
  OK(ridge_batch_step(batch, first, 2, &logits));
  const ridge_batch_row second[] = {{2, tokens + 50, 1}, {1, tokens, 70}, {0, tokens + 50, 1}};
  OK(ridge_batch_step(batch, second, 3, &logits));
  CHECK(ridge_batch_n_past(batch, 0) == 51 && ridge_batch_n_past(batch, 1) == 70 && ridge_batch_n_past(batch, 2) == 31);
  CHECK(ridge_batch_n_past(batch, 3) == 0 && ridge_batch_n_past(NULL, 0) == 0);
  const struct { int row, begin, n; } expected[] = {{0, 20, 31}, {1, 0, 70}, {2, 0, 51}};
  for (int i = 0; i < 3; ++i) {
    ridge_session* session = open_session(model, "i8r", 100);
    OK(ridge_prefill(session, tokens + expected[i].begin, (size_t)expected[i].n, &alone));
    CHECK(memcmp(alone, logits + (size_t)expected[i].row * width, bytes) == 0);
    ridge_session_free(session);
  }
  OK(ridge_batch_truncate(batch, 0, 0));
  CHECK(ridge_batch_n_past(batch, 0) == 0);
  const ridge_batch_row twice[] = {{0, tokens, 1}, {0, tokens, 1}}, none = {0, tokens, 0}, long_one = {0, tokens, 90},
                        full = {1, tokens, 31}, outside = {3, tokens, 1};
  REFUSED(ridge_batch_step(batch, twice, 2, NULL), RIDGE_USAGE, "two rows");
  REFUSED(ridge_batch_step(batch, &none, 1, NULL), RIDGE_USAGE, "no tokens");
  REFUSED(ridge_batch_step(batch, &long_one, 1, NULL), RIDGE_USAGE, "n_ubatch");
  REFUSED(ridge_batch_step(batch, &full, 1, NULL), RIDGE_USAGE, "context full");
  REFUSED(ridge_batch_step(batch, &outside, 1, NULL), RIDGE_USAGE, "out of range");
  REFUSED(ridge_batch_step(batch, NULL, 0, NULL), RIDGE_USAGE, "without rows");
  REFUSED(ridge_batch_truncate(batch, 1, 71), RIDGE_USAGE, "70");
  ridge_model_free(model); /* the batch keeps what it needs */
  OK(ridge_batch_step(batch, first, 1, NULL));
  ridge_batch_free(batch);
  ridge_batch_free(NULL);
}

static void test_chat(void) {
  ridge_model* model = tiny();
  const char* const messages = "[{\"role\": \"user\", \"content\": \"Tell a story\"}]";
  char prompt[512];
  int32_t ids[256];
  ridge_text text = {prompt, sizeof prompt - 1, 0};
  ridge_tokens tokens = {ids, 256, 0};
  ridge_chat_options options;
  ridge_chat_options_init(&options, sizeof options);
  OK(ridge_chat_prompt(model, messages, &options, &text, &tokens)); /* no template: lines */
  prompt[text.n] = 0;
  CHECK(strstr(prompt, "User: Tell a story") != NULL && tokens.n > 4);
  options.chat_template = "chatml";
  OK(ridge_chat_prompt(model, messages, &options, &text, NULL));
  prompt[text.n] = 0;
  CHECK(strcmp(prompt, "<|im_start|>user\nTell a story<|im_end|>\n<|im_start|>assistant\n") == 0);
  REFUSED(ridge_chat_prompt(model, "[", &options, &text, NULL), RIDGE_USAGE, "messages");
  REFUSED(ridge_chat_prompt(model, "{}", &options, &text, NULL), RIDGE_USAGE, "array");
  REFUSED(ridge_chat_prompt(model, "[{\"role\": 3}]", &options, &text, NULL), RIDGE_USAGE, "role");
  options.chat_template = "no such template";
  REFUSED(ridge_chat_prompt(model, messages, &options, &text, NULL), RIDGE_USAGE, "no such template");
  ridge_model_free(model);
}

static int stop_at_once(void* user, int64_t done, int64_t total) {
  *(int64_t*)user = total;
  return done < 0;
}

static void test_kld(void) {
  ridge_model* model = tiny();
  char text[4096] = "";
  while (strlen(text) + 64 < sizeof text) strcat(text, "Once upon a time there was a little girl who had a red ball. ");
  ridge_kld_options options;
  ridge_kld_options_init(&options, sizeof options);
  options.n_ctx = 64;
  options.max_chunks = 4;
  ridge_kld found[2];
  REFUSED(ridge_measure_kld(model, text, "f16,i8r", &options, found, 1), RIDGE_USAGE, "2 caches");
  OK(ridge_measure_kld(model, text, "f16,i8r", &options, found, 2));
  CHECK(found[0].kld == 0 && found[0].bits == 16 && found[0].same_top == 1 && found[0].ppl == found[0].ppl_base);
  CHECK(found[1].kld > 0 && found[1].kld < 0.1 && found[1].bits < 16 && found[1].n_scored == found[0].n_scored);
  int64_t total = 0;
  options.on_progress = stop_at_once;
  options.user = &total;
  REFUSED(ridge_measure_kld(model, text, "f16", &options, found, 1), RIDGE_INTERRUPTED, "callback");
  CHECK(total > 0);
  REFUSED(ridge_measure_kld(model, "short", "f16", NULL, found, 1), RIDGE_USAGE, "");
  ridge_model_free(model);
}

static void test_errors(void) {
  ridge_model* model = (ridge_model*)&models;
  REFUSED(ridge_model_load(in_folder(models, "none.gguf"), NULL, &model), RIDGE_BAD_FILE, "none.gguf");
  CHECK(model == NULL);
  REFUSED(ridge_model_load(in_folder(models, "README.md"), NULL, &model), RIDGE_BAD_FILE, "README.md");
  REFUSED(ridge_model_load(NULL, NULL, &model), RIDGE_USAGE, "path is NULL");
  REFUSED(ridge_model_load("x", NULL, NULL), RIDGE_USAGE, "model is NULL");
  ridge_load_options load_options = {0};
  REFUSED(ridge_model_load(in_folder(models, "stories260K.gguf"), &load_options, &model), RIDGE_USAGE, "size");
  load_options.size = sizeof load_options;
  load_options.device = "cuda:99";
  CHECK(ridge_model_load(in_folder(models, "stories260K.gguf"), &load_options, &model) == RIDGE_NO_DEVICE);
  load_options.device = NULL;
  load_options.isa = "mmx";
  REFUSED(ridge_model_load(in_folder(models, "stories260K.gguf"), &load_options, &model), RIDGE_USAGE, "mmx");

  model = tiny();
  ridge_session* session = NULL;
  ridge_session_options options;
  ridge_session_options_init(&options, sizeof options);
  options.kv = "rotor-99";
  REFUSED(ridge_session_create(model, &options, &session), RIDGE_USAGE, "rotor-99");
  CHECK(session == NULL);
  options.kv = "f16";
  options.n_ctx = -1;
  REFUSED(ridge_session_create(model, &options, &session), RIDGE_USAGE, "n_ctx");
  REFUSED(ridge_session_create(NULL, &options, &session), RIDGE_USAGE, "model is NULL");
  REFUSED(ridge_prefill(NULL, NULL, 0, NULL), RIDGE_USAGE, "session is NULL");
  REFUSED(ridge_session_reset(NULL), RIDGE_USAGE, "session is NULL");
  REFUSED(ridge_stream_next(NULL, NULL, NULL), RIDGE_USAGE, "n is NULL");
  session = open_session(model, "f16", 8);
  const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, wrong = 1 << 20;
  REFUSED(ridge_prefill(session, tokens, 0, NULL), RIDGE_USAGE, "no tokens");
  REFUSED(ridge_prefill(session, tokens, 9, NULL), RIDGE_USAGE, "context full");
  REFUSED(ridge_decode(session, wrong, NULL), RIDGE_USAGE, "vocabulary");
  CHECK(ridge_session_n_past(session) == 0 && ridge_session_n_past(NULL) == 0);
  ridge_sampler* sampler = NULL;
  ridge_sampler_options sampling;
  ridge_sampler_options_init(&sampling, sizeof sampling);
  sampling.temperature = NAN;
  REFUSED(ridge_sampler_create(model, &sampling, &sampler), RIDGE_USAGE, "temperature");
  ridge_session_free(session);
  ridge_session_free(NULL);
  ridge_model_free(model);
}

static void fill(float* values, size_t n, unsigned seed) {
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / (float)(1 << 23) - 1;
  }
}
static double error_of(const float* found, const float* right, size_t n) {
  double error = 0, square = 0;
  for (size_t i = 0; i < n; ++i) {
    error += ((double)found[i] - right[i]) * ((double)found[i] - right[i]);
    square += (double)right[i] * right[i];
  }
  return sqrt(error / square);
}

static void test_codecs(void) {
  enum { kRows = 5, kDim = 128 };
  float values[kRows * kDim], decoded[kRows * kDim], rotated[kRows * kDim];
  unsigned char codes[kRows * 256], other[kRows * 256];
  fill(values, kRows * kDim, 1);
  ridge_codec q8 = {"q8_0", NULL, kDim, 0}, rotor = {"rotor-3", NULL, kDim, 0};
  size_t bytes = 0;
  OK(ridge_codec_row_bytes(&q8, &bytes));
  CHECK(bytes == 34 * kDim / 32);
  int64_t n_saturated = -1;
  OK(ridge_codec_encode(&q8, kRows, values, codes, &n_saturated));
  OK(ridge_codec_decode(&q8, kRows, codes, decoded));
  CHECK(n_saturated == 0 && error_of(decoded, values, kRows * kDim) < 0.01);

  /* In cache space, as caches do it: rotated, coded, decoded, rotated back. */
  memcpy(rotated, values, sizeof values);
  ridge_rotation rotation = {"hadamard", 3, kDim, 0};
  OK(ridge_rotate(&rotation, kRows, rotated));
  CHECK(error_of(rotated, values, kRows * kDim) > 0.5);
  OK(ridge_codec_encode(&rotor, kRows, rotated, codes, NULL));
  OK(ridge_codec_decode(&rotor, kRows, codes, decoded));
  rotation.inverse = 1;
  OK(ridge_rotate(&rotation, kRows, decoded));
  CHECK(error_of(decoded, values, kRows * kDim) < 0.25);

  OK(ridge_codec_requantise(&rotor, &q8, kRows, codes, other));
  OK(ridge_codec_decode(&rotor, kRows, codes, rotated));
  OK(ridge_codec_decode(&q8, kRows, other, decoded));
  CHECK(error_of(decoded, rotated, kRows * kDim) < 0.01);

  ridge_codec wrong = {"q9_9", NULL, kDim, 0}, odd = {"q8_0", NULL, 40, 0}, scaled = {"f16", NULL, kDim, 2};
  REFUSED(ridge_codec_row_bytes(&wrong, &bytes), RIDGE_USAGE, "q9_9");
  REFUSED(ridge_codec_row_bytes(&odd, &bytes), RIDGE_USAGE, "multiple of 32");
  REFUSED(ridge_codec_row_bytes(&scaled, &bytes), RIDGE_USAGE, "head_scale");
  REFUSED(ridge_codec_row_bytes(NULL, &bytes), RIDGE_USAGE, "codec is NULL");
  q8.scale = "golden";
  REFUSED(ridge_codec_row_bytes(&q8, &bytes), RIDGE_USAGE, "golden");
  rotation.name = "spin";
  REFUSED(ridge_rotate(&rotation, kRows, rotated), RIDGE_USAGE, "spin");
}

static void test_attention(void) {
  enum { kHeads = 4, kKvHeads = 2, kDim = 64, kTokens = 150, kQueries = 3 };
  static float q[kQueries * kHeads * kDim], k[kTokens * kKvHeads * kDim], v[kTokens * kKvHeads * kDim];
  static float out[kQueries * kHeads * kDim], right[kQueries * kHeads * kDim];
  fill(q, kQueries * kHeads * kDim, 2);
  fill(k, kTokens * kKvHeads * kDim, 3);
  fill(v, kTokens * kKvHeads * kDim, 4);
  for (int i = 0; i < kQueries; ++i)
    for (int h = 0; h < kHeads; ++h) {
      const int n = kTokens - kQueries + i + 1, kv = h / (kHeads / kKvHeads);
      const float* const query = q + (i * kHeads + h) * kDim;
      double weights[kTokens], sum = 0;
      for (int t = 0; t < n; ++t) {
        double dot = 0;
        for (int d = 0; d < kDim; ++d) dot += (double)query[d] * k[(t * kKvHeads + kv) * kDim + d];
        sum += weights[t] = exp(dot / sqrt(kDim));
      }
      for (int d = 0; d < kDim; ++d) {
        double value = 0;
        for (int t = 0; t < n; ++t) value += weights[t] / sum * v[(t * kKvHeads + kv) * kDim + d];
        right[(i * kHeads + h) * kDim + d] = (float)value;
      }
    }
  ridge_attention a = {.kv = "f16",
                       .n_heads = kHeads,
                       .n_kv_heads = kKvHeads,
                       .head_dim = kDim,
                       .n_tokens = kTokens,
                       .n_queries = kQueries,
                       .n_threads = 2,
                       .q = q,
                       .k = k,
                       .v = v,
                       .out = out};
  OK(ridge_attend(&a));
  CHECK(error_of(out, right, kQueries * kHeads * kDim) < 1e-3);
  a.kernel = "ref";
  OK(ridge_attend(&a));
  CHECK(error_of(out, right, kQueries * kHeads * kDim) < 1e-3);
  a.kernel = NULL;
  a.kv = "q8_0";
  OK(ridge_attend(&a));
  CHECK(error_of(out, right, kQueries * kHeads * kDim) < 0.05);
  a.kv = "rotor-3";
  OK(ridge_attend(&a));
  const double few_bits = error_of(out, right, kQueries * kHeads * kDim);
  CHECK(few_bits > 1e-3 && few_bits < 0.5);

  a.kernel = "fast";
  REFUSED(ridge_attend(&a), RIDGE_USAGE, "fast");
  a.kernel = NULL;
  a.n_queries = kTokens + 1;
  REFUSED(ridge_attend(&a), RIDGE_USAGE, "n_queries");
  a.n_queries = 1;
  a.n_heads = 3;
  REFUSED(ridge_attend(&a), RIDGE_USAGE, "n_heads");
  a.n_heads = kHeads;
  a.out = NULL;
  REFUSED(ridge_attend(&a), RIDGE_USAGE, "NULL");
}

static void test_matrices(void) {
  enum { kOut = 50, kIn = 256, kX = 3 };
  static float weights[kOut * kIn], stored[kOut * kIn], x[kX * kIn], y[kX * kOut], right[kX * kOut];
  static unsigned char blocks[kOut * kIn * 4];
  fill(weights, kOut * kIn, 5);
  fill(x, kX * kIn, 6);
  const char* const formats[] = {"f32", "f16", "q8_0", "q4_0"};
  for (int f = 0; f < 4; ++f) {
    size_t bytes = 0;
    OK(ridge_weight_row_bytes(formats[f], kIn, &bytes));
    CHECK(bytes <= kIn * 4);
    OK(ridge_weight_encode(formats[f], kOut, kIn, weights, blocks));
    OK(ridge_weight_decode(formats[f], kOut, kIn, blocks, stored));
    CHECK(error_of(stored, weights, kOut * kIn) < 0.15);
    for (int t = 0; t < kX; ++t)
      for (int o = 0; o < kOut; ++o) {
        double sum = 0;
        for (int i = 0; i < kIn; ++i) sum += (double)x[t * kIn + i] * stored[o * kIn + i];
        right[t * kOut + o] = (float)sum;
      }
    ridge_matrix* matrix = NULL;
    ridge_matrix_options options = {.format = formats[f], .n_out = kOut, .n_in = kIn, .n_threads = 2};
    OK(ridge_matrix_create(&options, blocks, &matrix));
    OK(ridge_multiply(matrix, 1, x, y));
    CHECK(error_of(y, right, kOut) < 0.02);
    OK(ridge_multiply(matrix, kX, x, y));
    CHECK(error_of(y, right, kX * kOut) < 0.02);
    ridge_matrix_free(matrix);
    options.kernel = "ref";
    OK(ridge_matrix_create(&options, blocks, &matrix));
    OK(ridge_multiply(matrix, kX, x, y));
    CHECK(error_of(y, right, kX * kOut) < 1e-5);
    REFUSED(ridge_multiply(matrix, 1, NULL, y), RIDGE_USAGE, "x is NULL");
    ridge_matrix_free(matrix);
  }
  size_t bytes = 0;
  REFUSED(ridge_weight_row_bytes("q4_0", 40, &bytes), RIDGE_USAGE, "multiple of 32");
  REFUSED(ridge_weight_row_bytes("q77", 32, &bytes), RIDGE_USAGE, "q77");
  weights[7] = NAN;
  REFUSED(ridge_weight_encode("q8_0", kOut, kIn, weights, blocks), RIDGE_USAGE, "row 0 column 7");
}

/* What bindings of other languages compare their structs with. */
static int print_sizes(void) {
#define SIZE(name) printf("ridge_%s %d\n", #name, (int)sizeof(ridge_##name))
  SIZE(text);
  SIZE(tokens);
  SIZE(load_options);
  SIZE(model_info);
  SIZE(chat_options);
  SIZE(session_options);
  SIZE(batch_row);
  SIZE(kv_info);
  SIZE(sampler_options);
  SIZE(generate_options);
  SIZE(generation);
  SIZE(kld);
  SIZE(kld_options);
  return 0;
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } tests[] = {
      {"versions", test_versions},   {"model", test_model},      {"tokens", test_tokens}, {"generate", test_generate},
      {"stops", test_stops},         {"state", test_state},      {"rows", test_rows},     {"batches", test_batches},
      {"chat", test_chat},           {"kld", test_kld},          {"errors", test_errors}, {"codecs", test_codecs},
      {"attention", test_attention}, {"matrices", test_matrices}};
  if (argc == 2 && strcmp(argv[1], "sizes") == 0) return print_sizes();
  if (argc != 4) return 2;
  models = argv[1];
  scratch = argv[2];
  for (size_t i = 0; i < sizeof tests / sizeof *tests; ++i)
    if (strcmp(tests[i].name, argv[3]) == 0) {
      tests[i].run();
      return 0;
    }
  fprintf(stderr, "no test %s\n", argv[3]);
  return 2;
}
