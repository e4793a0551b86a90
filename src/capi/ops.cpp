// Single operations of the C API on the caller's memory.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/aligned.h"
#include "capi/guard.h"
#include "engine/kv_choice.h"
#include "engine/kv_options.h"
#include "op/attn/attn.h"
#include "op/cache/append.h"
#include "op/cache/host_memory.h"
#include "op/gemv/panels.h"
#include "op/kernel_tables.h"
#include "op/linear.h"

namespace ridge::capi {
namespace {

constexpr int kMostHeadDim = 1024, kMostThreads = 1024, kMostHeads = 1 << 12, kMostTokens = 1 << 24;

int64_t checked(std::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    throw_error(ErrorKind::usage, "{} {} is out of range ({} to {})", field, value, least, most);
  return value;
}

// ---- Codecs ----

/// A format at a head_dim, as the caller asks for it.
struct Codec {
  explicit Codec(const ridge_codec* asked)
      : format(*find_kv_format(&given(given(asked, "codec").format, "codec.format")).or_throw()),
        head_dim(int(checked("head_dim", asked->head_dim, 1, kMostHeadDim))),
        row_bytes(format.row_bytes(head_dim)) {
    check_kv_side(default_kv_side(format, KvSide::v), "the", head_dim).or_throw();
    if (format.head_scale != (asked->head_scale != 0) || asked->head_scale < 0 || !std::isfinite(asked->head_scale))
      throw_error(ErrorKind::usage, "head_scale {} with format {} (expected {})", asked->head_scale, format.name,
                  format.head_scale ? "a scale above 0" : "0: the format has no scale of heads");
    coding.scale = asked->scale ? find_scale(format, asked->scale).or_throw() : format.policy.scale;
    coding.fixed = asked->head_scale;
    const CpuContext context(1);
    coding.round = select_round_row(context, head_dim);
  }

  const KvFormat& format;
  const int head_dim;
  const int64_t row_bytes;
  KvCoding coding;
};

/// Rows of n_each in an array of the caller.
template <class T>
T* row(T* first, size_t i, int64_t n_each) {
  return first + int64_t(i) * n_each;
}

int64_t encode(const Codec& codec, size_t n_rows, const float* from, std::byte* codes) {
  int64_t n_saturated = 0;
  for (size_t i = 0; i < n_rows; ++i)
    n_saturated +=
        codec.format.encode(row(from, i, codec.head_dim), codec.head_dim, codec.coding, row(codes, i, codec.row_bytes));
  return n_saturated;
}

void requantise(const Codec& from, const Codec& to, size_t n_rows, const std::byte* codes, std::byte* out) {
  if (from.head_dim != to.head_dim)
    throw_error(ErrorKind::usage, "head_dim {} does not become head_dim {}", from.head_dim, to.head_dim);
  std::vector<float> values(size_t(from.head_dim));
  for (size_t i = 0; i < n_rows; ++i) {
    from.format.decode(row(codes, i, from.row_bytes), from.head_dim, from.coding, values.data());
    to.format.encode(values.data(), to.head_dim, to.coding, row(out, i, to.row_bytes));
  }
}

void rotate(const ridge_rotation& r, size_t n_rows, float* rows) {
  const auto head_dim = int(checked("head_dim", r.head_dim, 2, kMostHeadDim));
  if (head_dim % 2 != 0) throw_error(ErrorKind::usage, "head_dim {} is odd: rotations turn pairs", head_dim);
  const Rotation kind = find_rotation(&given(r.name, "name")).or_throw();
  const RowRotation rotation(kind, int(checked("layer", r.layer, 0, 1 << 16)), head_dim);
  for (size_t i = 0; i < n_rows; ++i)
    if (r.inverse) rotation.backward(row(rows, i, head_dim));
    else rotation.forward(row(rows, i, head_dim));
}

// ---- Attention ----

int thread_count(int32_t n) { return int(checked("n_threads", n, 0, kMostThreads)); }

/// A cache of one layer with one sequence.
KvLayerConfig layer_of(const ridge_attention& a) {
  ModelPlan plan;
  plan.layers.resize(1);
  plan.layers[0].attention = {.n_heads = a.n_heads, .n_kv_heads = a.n_kv_heads, .head_dim = a.head_dim};
  KvChoice kv = parse_kv_choice(text_or(a.kv, "f16")).or_throw();
  // Weighted rounding wants the model's weights.
  if (!kv.k.rounding) kv.k.rounding = "nearest";
  if (!kv.v.rounding) kv.v.rounding = "nearest";
  if (*kv.k.rounding != "nearest" || *kv.v.rounding != "nearest")
    throw Error(ErrorKind::usage, "kv: rows are rounded to nearest here, other rules need a model");
  return layer_configs(session_options(kv, a.n_tokens, 1), plan)[0];
}

void check_attention(const ridge_attention& a) {
  checked("head_dim", a.head_dim, 2, kMostHeadDim);
  checked("n_kv_heads", a.n_kv_heads, 1, kMostHeads);
  checked("n_heads", a.n_heads, 1, kMostHeads);
  if (a.head_dim % 2 != 0 || a.n_heads % a.n_kv_heads != 0)
    throw_error(ErrorKind::usage, "head_dim {}, n_heads {}, n_kv_heads {} (expected an even head_dim and equal groups)",
                a.head_dim, a.n_heads, a.n_kv_heads);
  checked("n_tokens", a.n_tokens, 1, kMostTokens);
  checked("n_queries", a.n_queries, 1, a.n_tokens);
  for (const float* const p : {a.q, a.k, a.v, static_cast<const float*>(a.out)}) given(p, "q, k, v or out");
}

void attend(const ridge_attention& a) {
  check_attention(a);
  CpuContext context(thread_count(a.n_threads));
  if (a.kernel) force_kernel(kernel_tables(), fmt::format("attention={}", a.kernel), context.forced);
  const KvLayerConfig layer = layer_of(a);
  const int n_pages = pages_for({&layer, 1}, a.n_tokens);
  HostKvMemory memory({&layer, 1}, {}, select_round_row(context, a.head_dim), std::max(1, n_pages), 1);
  std::vector<int32_t> pages(size_t(std::max(1, n_pages)));
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = int32_t(i);

  const KvTiles &k = memory.tiles(0, KvSide::k), &v = memory.tiles(0, KvSide::v);
  const int64_t width = int64_t(a.n_kv_heads) * a.head_dim, q_width = int64_t(a.n_heads) * a.head_dim;
  std::vector<float> k_rows(a.k, a.k + a.n_tokens * width), v_rows(a.v, a.v + a.n_tokens * width);
  const bool calibrates = std::max(k.retention.calibration, v.retention.calibration) > 0;
  const int n_silent = a.n_tokens - a.n_queries;
  const auto run = [&](int64_t first, int n, bool asks) {
    const KvSpan whole{.n_rows = n, .n_past = int(first), .pages = pages.data()};
    const int64_t query = first - n_silent;
    for (const KvSpan& span : cut_span(whole, most_rows_at_once(k, v), calibrates && first < kCalibration)) {
      kv_append(context, k, v, {&span, 1}, {k_rows.data() + first * width, n, width},
                {v_rows.data() + first * width, n, width});
      if (asks)
        attention(context, {.n_heads = a.n_heads,
                            .scale = a.scale != 0 ? a.scale : 1 / std::sqrt(float(a.head_dim)),
                            .k = k,
                            .v = v,
                            .spans = {&span, 1},
                            .q = {a.q + query * q_width, n, q_width},
                            .out = {a.out + query * q_width, n, q_width}});
    }
  };
  if (n_silent > 0) run(0, n_silent, false);
  run(n_silent, a.n_queries, true);
}

// ---- Weights ----

/// A weight format whose rows are blocks of their own.
const WeightFormat& weight_format(const char* name, size_t n_in) {
  const WeightFormat& format = *find_weight_format(&given(name, "format")).or_throw();
  if (format.tail_bytes > 0)
    throw_error(ErrorKind::usage, "{} has a scale of the whole tensor: its rows are not blocks alone", format.name);
  checked("n_in", int64_t(n_in), 1, int64_t(1) << 32);
  if (n_in % size_t(format.group) != 0)
    throw_error(ErrorKind::usage, "n_in {} is not a multiple of {}, the group of {}", n_in, format.group, format.name);
  return format;
}

}  // namespace
}  // namespace ridge::capi

using namespace ridge::capi;
using ridge::ErrorKind;

struct ridge_matrix {
  explicit ridge_matrix(const ridge_matrix_options& o, const std::byte* blocks)
      : context(thread_count(o.n_threads)),
        w{.format = &weight_format(o.format, size_t(o.n_in)),
          .n_out = checked("n_out", o.n_out, 1, int64_t(1) << 32),
          .n_in = o.n_in} {
    if (o.kernel)
      for (const char* const op : {"gemv", "gemm"})
        ridge::force_kernel(ridge::kernel_tables(), fmt::format("{}={}", op, o.kernel), context.forced);
    rows = ridge::AlignedBuffer(w.bytes());
    std::copy_n(blocks, w.bytes(), rows.data());
    w.rows = rows.data();
    if (!ridge::wants_panels(*w.format, w.n_in, context.isa)) return;
    panels = ridge::AlignedBuffer(ridge::panel_bytes(*w.format, w.n_out, w.n_in));
    const int64_t bad = ridge::pack_panels(context, *w.format, w.n_out, w.n_in, w.rows, panels.data());
    if (bad >= 0) ridge::throw_error(ridge::ErrorKind::bad_file, "blocks: a scale of row {} is not finite", bad);
    w.panels = panels.data();
  }

  ridge::CpuContext context;
  ridge::AlignedBuffer rows, panels;
  ridge::Linear w;
};

ridge_status ridge_codec_row_bytes(const ridge_codec* codec, size_t* bytes) {
  return guarded([&] { given(bytes, "bytes") = size_t(Codec(codec).row_bytes); });
}
ridge_status ridge_codec_encode(const ridge_codec* codec, size_t n_rows, const float* values_in, void* codes,
                                int64_t* n_saturated) {
  return guarded([&] {
    const int64_t n =
        encode(Codec(codec), n_rows, &given(values_in, "values"), &given(static_cast<std::byte*>(codes), "codes"));
    if (n_saturated) *n_saturated = n;
  });
}
ridge_status ridge_codec_decode(const ridge_codec* codec, size_t n_rows, const void* codes, float* values_out) {
  return guarded([&] {
    const Codec c(codec);
    given(static_cast<const std::byte*>(codes), "codes"), given(values_out, "values");
    for (size_t i = 0; i < n_rows; ++i)
      c.format.decode(row(static_cast<const std::byte*>(codes), i, c.row_bytes), c.head_dim, c.coding,
                      row(values_out, i, c.head_dim));
  });
}
ridge_status ridge_codec_requantise(const ridge_codec* from, const ridge_codec* to, size_t n_rows, const void* codes,
                                    void* out) {
  return guarded([&] {
    requantise(Codec(from), Codec(to), n_rows, &given(static_cast<const std::byte*>(codes), "codes"),
               &given(static_cast<std::byte*>(out), "out"));
  });
}
ridge_status ridge_rotate(const ridge_rotation* rotation, size_t n_rows, float* rows) {
  return guarded([&] { rotate(given(rotation, "rotation"), n_rows, &given(rows, "values")); });
}

ridge_status ridge_attend(const ridge_attention* problem) {
  return guarded([&] { attend(given(problem, "attention")); });
}

ridge_status ridge_weight_row_bytes(const char* format, size_t n_in, size_t* bytes) {
  return guarded([&] { given(bytes, "bytes") = size_t(weight_format(format, n_in).row_bytes(int64_t(n_in))); });
}
ridge_status ridge_weight_encode(const char* format, size_t n_rows, size_t n_in, const float* from, void* blocks) {
  return guarded([&] {
    const ridge::WeightFormat& f = weight_format(format, n_in);
    const size_t n_bytes = n_rows * size_t(f.row_bytes(int64_t(n_in)));
    const ridge::Status status = ridge::encode_rows(f, values(from, n_rows * n_in, "values"), int64_t(n_in),
                                                    values(static_cast<std::byte*>(blocks), n_bytes, "blocks"));
    if (!status) ridge::throw_error(ErrorKind::usage, "values: {}", status.error().message);
  });
}
ridge_status ridge_weight_decode(const char* format, size_t n_rows, size_t n_in, const void* blocks, float* to) {
  return guarded([&] {
    const ridge::WeightFormat& f = weight_format(format, n_in);
    const auto* const bytes = &given(static_cast<const std::byte*>(blocks), "blocks");
    for (size_t i = 0; i < n_rows; ++i)
      f.decode(row(bytes, i, f.row_bytes(int64_t(n_in))), int64_t(n_in), row(&given(to, "values"), i, int64_t(n_in)));
  });
}

ridge_status ridge_matrix_create(const ridge_matrix_options* options, const void* blocks, ridge_matrix** matrix) {
  return guarded([&] {
    given(matrix, "matrix") = nullptr;
    *matrix = new ridge_matrix(given(options, "options"), &given(static_cast<const std::byte*>(blocks), "blocks"));
  });
}
void ridge_matrix_free(ridge_matrix* matrix) { delete matrix; }

ridge_status ridge_multiply(ridge_matrix* matrix, size_t n, const float* x, float* y) {
  return guarded([&] {
    ridge_matrix& m = given(matrix, "matrix");
    checked("n", int64_t(n), 1, kMostTokens);
    ridge::linear(m.context, m.w, {&given(x, "x"), int64_t(n), m.w.n_in}, {&given(y, "y"), int64_t(n), m.w.n_out});
  });
}
