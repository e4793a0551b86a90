// Ridge for C and for every language that calls C: load a model, open sessions, prefill, decode, generate.
//
// Rules for all functions:
// - A function that can fail returns a ridge_status. ridge_last_error() then says what, where, why and what to do next.
// - No C++ exception leaves a function. A callback must return: it may not throw or jump out.
// - A pointer from the caller stays the caller's: functions copy what they keep. A handle from a `_load` or `_create`
//   function is the caller's, who ends it with the `_free` function beside it; NULL is allowed there. Handles may be
//   freed in any order: a session keeps its model alive.
// - A struct that begins with `size` may grow in a later version of the library. An `_init` function fills it with the
//   defaults; the caller gives sizeof of the struct that it was compiled with.
// - Handles of different models may be used from several threads at the same time. A model and its sessions share one
//   set of worker threads: one call at a time, but for tokenize, detokenize, piece, is_end and info.
// - Shapes are row-major. Texts are UTF-8.
#ifndef RIDGE_RIDGE_H
#define RIDGE_RIDGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Grows when a function or a struct of this header changes so that a program must be compiled again.
#define RIDGE_ABI_VERSION 1
/// RIDGE_ABI_VERSION of the library that runs.
uint32_t ridge_abi_version(void);
/// "0.1.0 (0a1b2c3d)": version and commit of the library. Static.
const char* ridge_version(void);

/// The kinds of ridge/error.h; the program `ridge` exits with the same numbers.
typedef enum ridge_status {
  RIDGE_OK = 0,
  RIDGE_FAILURE = 1,       ///< I/O, or anything outside the arguments
  RIDGE_USAGE = 2,         ///< an argument is wrong
  RIDGE_BAD_FILE = 4,      ///< a file is missing, malformed, unsafe or unsupported
  RIDGE_NO_MEMORY = 5,     ///< not enough memory for what was asked
  RIDGE_NO_DEVICE = 6,     ///< a device or driver is missing
  RIDGE_INTERRUPTED = 130  ///< a callback asked to stop
} ridge_status;
/// "ok", "usage" and so on. Static.
const char* ridge_status_name(ridge_status status);
/// Why the calling thread's last call that failed did so; "" before the first. Good until that thread's next failure.
const char* ridge_last_error(void);

typedef struct ridge_model ridge_model;      ///< weights, tokenizer, worker threads
typedef struct ridge_session ridge_session;  ///< one sequence of tokens with its KV cache
typedef struct ridge_stream ridge_stream;    ///< a text that a session is generating, piece by piece
typedef struct ridge_sampler ridge_sampler;  ///< chooses tokens from logits
typedef struct ridge_matrix ridge_matrix;    ///< a weight matrix, packed for this processor

/// Where a function writes text or tokens. `n` becomes what the whole result takes. Where that is more than `capacity`
/// the call fails with RIDGE_USAGE and writes nothing else; with capacity 0 it succeeds, so that a first call asks for
/// n. No NUL is written.
typedef struct ridge_text {
  char* data;
  size_t capacity, n;
} ridge_text;
typedef struct ridge_tokens {
  int32_t* data;
  size_t capacity, n;
} ridge_tokens;

/// Gets a piece of text, n bytes without NUL, good during the call. Returns 1 to go on, 0 to stop.
typedef int (*ridge_text_callback)(void* user, const char* text, size_t n);
/// Gets rows [n_rows, n_cols] of the tokens first, first + 1, ... of the call, good during the call. Returns 1 to go
/// on, 0 to stop: the call then returns RIDGE_INTERRUPTED and the session holds the tokens up to these rows.
typedef int (*ridge_rows_callback)(void* user, size_t first, size_t n_rows, size_t n_cols, const float* rows);
/// Hears of progress: `done` of `total` steps. Returns 1 to go on, 0 to stop.
typedef int (*ridge_progress_callback)(void* user, int64_t done, int64_t total);

// ---- Models ----

typedef struct ridge_load_options {
  size_t size;
  const char* device;     ///< "cpu", "cuda", "cuda:1" ...; NULL: "cpu"
  const char* isa;        ///< limit of the instruction set: "scalar", "avx2", ...; NULL: the best there is
  int32_t n_threads;      ///< 0: one a processor
  int32_t n_cpu_moe;      ///< on a GPU: experts of the first so many layers stay in host memory
  double moe_device_gib;  ///< and of as many more as leave at most so many GiB of experts on it; 0: no limit
  double moe_cache_gib;   ///< of those in host memory so many GiB, the most chosen, are on the GPU as well; 0: none
} ridge_load_options;
void ridge_load_options_init(ridge_load_options* options, size_t size);

/// Reads a GGUF file, a Hugging Face directory, or `synth:SHAPE`. `options` may be NULL. Weights are mapped, not
/// copied, where the kernels can read them so.
ridge_status ridge_model_load(const char* path, const ridge_load_options* options, ridge_model** model);
void ridge_model_free(ridge_model* model);

typedef struct ridge_model_info {
  size_t size;
  const char *name, *arch, *weight_format, *device;  ///< the model's own, good as long as the model
  int32_t n_layers, n_heads, n_kv_heads, head_dim, d_model, vocab_size, n_ctx_train;
  int32_t n_threads;
  int32_t has_tokenizer, has_chat_template;  ///< 0 or 1
  int32_t bos;                               ///< token that begins texts; -1: none
  int64_t n_params, weight_bytes;
  double load_seconds;
} ridge_model_info;
/// Fills what `size` says the caller's struct has; the caller sets info->size before.
ridge_status ridge_model_get_info(const ridge_model* model, ridge_model_info* info);

enum {
  RIDGE_ADD_SPECIAL = 1,   ///< tokenize: put the tokens that begin and end texts, as the model wants
  RIDGE_PARSE_SPECIAL = 2  ///< tokenize: names of control tokens become these tokens; detokenize, piece: the reverse
};
/// Text [n_bytes] to token ids. Any bytes are accepted.
ridge_status ridge_tokenize(const ridge_model* model, const char* text, size_t n_bytes, int flags, ridge_tokens* out);
ridge_status ridge_detokenize(const ridge_model* model, const int32_t* tokens, size_t n, int flags, ridge_text* out);
/// The bytes of one token; they may be a part of a character.
ridge_status ridge_piece(const ridge_model* model, int32_t token, int flags, ridge_text* out);
/// 1 where the token ends a text, else 0.
int ridge_is_end(const ridge_model* model, int32_t token);

typedef struct ridge_chat_options {
  size_t size;
  const char* tools;          ///< JSON array in OpenAI's form; NULL: none
  const char* variables;      ///< JSON object with more variables of the template; NULL: none
  const char* chat_template;  ///< name or file of a template, as --chat-template takes it; NULL: the model's own
} ridge_chat_options;
void ridge_chat_options_init(ridge_chat_options* options, size_t size);
/// The prompt of a conversation by the model's chat template; for a model without one as "Role: text" lines. `messages`
/// is a JSON array in OpenAI's form. `text` and `tokens` get the prompt; either may be NULL, as `options`. Control
/// tokens that a user's message spells stay plain text in `tokens`.
ridge_status ridge_chat_prompt(const ridge_model* model, const char* messages, const ridge_chat_options* options,
                               ridge_text* text, ridge_tokens* tokens);

// ---- Sessions ----

typedef struct ridge_session_options {
  size_t size;
  const char* kv;    ///< cache format as --kv takes it: "f16", "rotor-3", "q8_0/rotor-3:window=32"; NULL: "f16"
  int32_t n_ctx;     ///< tokens that fit; 0: as many as the model was trained for
  int32_t n_ubatch;  ///< tokens of a prompt's pass; 0: 512, on a GPU 2048
} ridge_session_options;
void ridge_session_options_init(ridge_session_options* options, size_t size);

ridge_status ridge_session_create(const ridge_model* model, const ridge_session_options* options,
                                  ridge_session** session);
void ridge_session_free(ridge_session* session);
/// Tokens that the session holds, and that it can hold.
int32_t ridge_session_n_past(const ridge_session* session);
int32_t ridge_session_n_ctx(const ridge_session* session);

typedef struct ridge_kv_info {
  size_t size;
  double k_bits, v_bits;    ///< bits a value of a coded row, scales included
  int64_t bytes_per_token;  ///< of one more coded token, over all layers
  int64_t allocated_bytes;
} ridge_kv_info;
/// The caller sets info->size before.
ridge_status ridge_session_kv_info(const ridge_session* session, ridge_kv_info* info);

/// Appends tokens. *logits [vocab_size] are those after the last token, in the session's memory, good until its next
/// call; NULL where nobody wants the pointer.
ridge_status ridge_prefill(ridge_session* session, const int32_t* tokens, size_t n, const float** logits);
ridge_status ridge_decode(ridge_session* session, int32_t token, const float** logits);
/// As ridge_prefill, handing on the logits [n_rows, vocab_size] of every token.
ridge_status ridge_prefill_logits(ridge_session* session, const int32_t* tokens, size_t n, ridge_rows_callback on_rows,
                                  void* user);
/// As ridge_prefill, handing on the hidden state [n_rows, d_model] of every token, behind the last norm: what
/// embeddings of texts are made of.
ridge_status ridge_prefill_hidden(ridge_session* session, const int32_t* tokens, size_t n, ridge_rows_callback on_rows,
                                  void* user);

/// Forgets all tokens.
ridge_status ridge_session_reset(ridge_session* session);
/// Forgets all but the first n tokens; exact for up to 32 tokens back, or without a window (docs/formats/kv.md).
ridge_status ridge_session_truncate(ridge_session* session, int32_t n);
/// Forgets n_discard tokens after the first n_keep and moves the later ones down. Lossy.
ridge_status ridge_session_shift(ridge_session* session, int32_t n_keep, int32_t n_discard);
/// `session` becomes a copy of `from`: one model, the same cache options.
ridge_status ridge_session_copy(ridge_session* session, const ridge_session* from);
/// Writes the cache to a file, and reads it: model, cache options and version must be equal. What follows is then equal
/// bit for bit.
ridge_status ridge_session_save(const ridge_session* session, const char* path);
ridge_status ridge_session_load(ridge_session* session, const char* path);

// ---- Batches: several sequences in one forward pass, which reads the weights once ----

typedef struct ridge_batch ridge_batch;
/// Tokens to append to a sequence.
typedef struct ridge_batch_row {
  int32_t sequence;       ///< 0 to n_sequences - 1
  const int32_t* tokens;  ///< [n]
  size_t n;               ///< 1 or more
} ridge_batch_row;
/// n_sequences empty sequences with caches of their own; n_ctx of `options` is of each, n_ubatch of a step.
ridge_status ridge_batch_create(const ridge_model* model, const ridge_session_options* options, int32_t n_sequences,
                                ridge_batch** batch);
void ridge_batch_free(ridge_batch* batch);
/// One forward pass: appends the tokens of all rows, each of another sequence, n_ubatch in all at most. *logits
/// [n_rows, vocab_size] are those after the last token of each row, in the batch's memory, good until its next call. On
/// a CPU they are the bits of a session alone.
ridge_status ridge_batch_step(ridge_batch* batch, const ridge_batch_row* rows, size_t n_rows, const float** logits);
/// Forgets all but the first n tokens of a sequence, as ridge_session_truncate; 0 empties it.
ridge_status ridge_batch_truncate(ridge_batch* batch, int32_t sequence, int32_t n);
/// Tokens that a sequence holds; 0 where there is none of this number.
int32_t ridge_batch_n_past(const ridge_batch* batch, int32_t sequence);

// ---- Sampling and generating ----

typedef struct ridge_sampler_options {
  size_t size;
  float temperature;     ///< 0: the likeliest token
  int32_t top_k;         ///< 0: off
  float top_p;           ///< 1: off
  float min_p;           ///< 0: off
  float repeat_penalty;  ///< 1: off
  int32_t repeat_last_n;
  uint64_t seed;  ///< equal seeds give equal texts
} ridge_sampler_options;
void ridge_sampler_options_init(ridge_sampler_options* options, size_t size);

/// `options` may be NULL.
ridge_status ridge_sampler_create(const ridge_model* model, const ridge_sampler_options* options,
                                  ridge_sampler** sampler);
void ridge_sampler_free(ridge_sampler* sampler);
/// The next token by logits [vocab_size].
ridge_status ridge_sampler_sample(ridge_sampler* sampler, const float* logits, int32_t* token);
/// Tells the penalty about tokens that were not sampled.
ridge_status ridge_sampler_accept(ridge_sampler* sampler, const int32_t* tokens, size_t n);

typedef enum ridge_stop {
  RIDGE_STOP_END_TOKEN = 0,
  RIDGE_STOP_STRING = 1,
  RIDGE_STOP_MAX_TOKENS = 2,
  RIDGE_STOP_CONTEXT_FULL = 3,
  RIDGE_STOP_INTERRUPTED = 4
} ridge_stop;

typedef struct ridge_generate_options {
  size_t size;
  const ridge_sampler_options* sampler;  ///< NULL: its defaults
  int32_t max_tokens;                    ///< -1: until the context is full
  int32_t ignore_end;                    ///< 1: end tokens do not end the text
  const char* const* stop;               ///< [n_stop] texts; the text ends before the first of them
  size_t n_stop;
} ridge_generate_options;
void ridge_generate_options_init(ridge_generate_options* options, size_t size);

typedef struct ridge_generation {
  size_t size;
  ridge_stop stop;
  const int32_t* tokens;  ///< [n_tokens] generated ones, in the session's memory, good until its next call
  size_t n_tokens;
  int32_t n_prompt;  ///< tokens that were read
  double prefill_seconds, decode_seconds;
} ridge_generation;

/// Reads a prompt behind what the session holds and generates. `on_text` gets whole characters as they become final; it
/// may be NULL, as `options` and `result`. The caller sets result->size before. That a callback stops the text is no
/// failure. A GPU samples by itself, a few tokens ahead.
ridge_status ridge_generate(ridge_session* session, const ridge_tokens* prompt, const ridge_generate_options* options,
                            ridge_text_callback on_text, void* user, ridge_generation* result);

/// The same text pulled piece by piece. ridge_stream_create reads the prompt, the session is the stream's until
/// ridge_stream_free and must not be used meanwhile. `options` may be NULL.
ridge_status ridge_stream_create(ridge_session* session, const ridge_tokens* prompt,
                                 const ridge_generate_options* options, ridge_stream** stream);
/// The next piece, of n > 0 bytes, good until the next call; n is 0 at the end.
ridge_status ridge_stream_next(ridge_stream* stream, const char** text, size_t* n);
/// What was generated so far; tokens are in the stream's memory. The caller sets result->size before.
ridge_status ridge_stream_result(const ridge_stream* stream, ridge_generation* result);
void ridge_stream_free(ridge_stream* stream);

// ---- Quality of cache formats ----

typedef struct ridge_kld {
  double bits;            ///< of a cached value at 4096 tokens: codes, scales, window and sinks
  double kld, kld_error;  ///< mean divergence from the f16 cache in nats, and its standard error
  double ppl, ppl_base;   ///< perplexity with this cache, and with f16
  double same_top;        ///< share of tokens whose likeliest successor is that of f16
  int64_t n_scored;       ///< tokens
} ridge_kld;
typedef struct ridge_kld_options {
  size_t size;
  int32_t n_ctx;                        ///< tokens of a window, of which the second half is scored; 0: 512
  int32_t max_chunks;                   ///< windows; 0: all
  ridge_progress_callback on_progress;  ///< NULL: none. 0 ends the run with RIDGE_INTERRUPTED
  void* user;
} ridge_kld_options;
void ridge_kld_options_init(ridge_kld_options* options, size_t size);
/// Runs caches beside f16 on a text, as `ridge eval kld` does. `formats`: comma list as --kv takes it, n_results of
/// them.
ridge_status ridge_measure_kld(const ridge_model* model, const char* text, const char* formats,
                               const ridge_kld_options* options, ridge_kld* results, size_t n_results);

// ---- Single operations on host memory ----

/// Rows of a KV format: values of one token and one KV head. `scale` NULL: the format's own rule. head_scale: the scale
/// of formats that have one for all rows of a head; 0 elsewhere.
typedef struct ridge_codec {
  const char* format;
  const char* scale;
  int32_t head_dim;
  float head_scale;
} ridge_codec;
/// Bytes of a row.
ridge_status ridge_codec_row_bytes(const ridge_codec* codec, size_t* bytes);
/// Values [n_rows, head_dim] to codes [n_rows, row bytes], rounded to nearest. Rows are coded as they are: ridge_rotate
/// brings them into cache space. *n_saturated (may be NULL) counts values that did not fit.
ridge_status ridge_codec_encode(const ridge_codec* codec, size_t n_rows, const float* values, void* codes,
                                int64_t* n_saturated);
ridge_status ridge_codec_decode(const ridge_codec* codec, size_t n_rows, const void* codes, float* values);
/// Codes of one format to codes of another.
ridge_status ridge_codec_requantise(const ridge_codec* from, const ridge_codec* to, size_t n_rows, const void* codes,
                                    void* out);
/// values [n_rows, head_dim] <- R values, or R^T values where `inverse` is 1: the rotation "none", "planar" or
/// "hadamard" of a layer.
typedef struct ridge_rotation {
  const char* name;
  int32_t layer, head_dim, inverse;
} ridge_rotation;
ridge_status ridge_rotate(const ridge_rotation* rotation, size_t n_rows, float* values);

/// Causal attention over one layer's cache of a format, filled as a model's cache is: sinks, window, rotation, centre.
typedef struct ridge_attention {
  const char* kv;      ///< as ridge_session_options
  const char* kernel;  ///< name of a kernel (`ridge explain`); NULL: the best
  int32_t n_heads, n_kv_heads, head_dim;
  int32_t n_tokens;        ///< rows of k and v
  int32_t n_queries;       ///< newest tokens that ask, 1 to n_tokens
  int32_t n_threads;       ///< 0: one a processor
  float scale;             ///< of scores; 0: 1 / sqrt(head_dim)
  const float *q, *k, *v;  ///< [n_queries, n_heads, head_dim], [n_tokens, n_kv_heads, head_dim], as k
  float* out;              ///< as q
} ridge_attention;
ridge_status ridge_attend(const ridge_attention* attention);

/// Bytes of a row of n_in weights in a weight format.
ridge_status ridge_weight_row_bytes(const char* format, size_t n_in, size_t* bytes);
/// Rows [n_rows, n_in] of floats to the format's blocks, and back.
ridge_status ridge_weight_encode(const char* format, size_t n_rows, size_t n_in, const float* values, void* blocks);
ridge_status ridge_weight_decode(const char* format, size_t n_rows, size_t n_in, const void* blocks, float* values);

typedef struct ridge_matrix_options {
  const char* format;  ///< weight format
  const char* kernel;  ///< name of a kernel; NULL: the best
  int64_t n_out, n_in;
  int32_t n_threads;  ///< 0: one a processor
} ridge_matrix_options;
/// Packs blocks [n_out, row bytes] for this processor. Copies them.
ridge_status ridge_matrix_create(const ridge_matrix_options* options, const void* blocks, ridge_matrix** matrix);
void ridge_matrix_free(ridge_matrix* matrix);
/// y [n, n_out] = x [n, n_in] times the matrix transposed: a GEMV where n is 1.
ridge_status ridge_multiply(ridge_matrix* matrix, size_t n, const float* x, float* y);

#ifdef __cplusplus
}
#endif
#endif
