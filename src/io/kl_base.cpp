#include "io/kl_base.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/metrics.h"
#include "io/text.h"

namespace ridge::io {
namespace {

constexpr std::string_view kMagic = "_logits_";
constexpr int64_t kHeaderBytes = 8 + 3 * 4;
constexpr int kRowHeaderBytes = 8;
constexpr float kSpan = 16;  // nats below the largest that are kept apart
constexpr int kMaxCode = 65535;
// Beyond these nothing can be a model; they keep every product below in 64 bits.
constexpr int kMaxContext = 1 << 26, kMaxVocab = 1 << 24;
// Sums of probabilities are a little off 1 in float; a log-probability this far above 0 is no rounding.
constexpr double kLogProbSlack = 1e-3;

template <class T>
T load(std::span<const std::byte> bytes, int64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

/// Fails when a count of the header lies outside [least, most].
Status check_count(std::string_view what, int32_t value, int least, int most) {
  if (value >= least && value <= most) return {};
  return bad_file("{} is {}, expected {} to {}", what, value, least, most);
}

}  // namespace

void encode_kl_row(std::span<const float> logits, std::span<std::byte> row) {
  RIDGE_CHECK(!logits.empty() && int64_t(row.size()) == KlBaseShape{.n_vocab = int(logits.size())}.row_bytes(),
              "row of {} bytes for {} logits", row.size(), logits.size());
  const auto [least, most] = std::minmax_element(logits.begin(), logits.end());
  const float top = *most, bottom = std::max(*least, top - kSpan);
  const float scale = (top - bottom) / kMaxCode;
  std::memset(row.data(), 0, row.size());
  store(row.data(), scale);
  store(row.data() + 4, float(bottom - log_sum_exp(logits)));
  if (scale == 0) return;
  const float inverse = 1 / scale;
  std::byte* codes = row.data() + kRowHeaderBytes;
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] > bottom)
      store(codes + 2 * i, uint16_t(std::min(int(std::lrintf(inverse * (logits[i] - bottom))), kMaxCode)));
}

Status decode_kl_row(std::span<const std::byte> row, std::span<float> log_probs) {
  RIDGE_CHECK(int64_t(row.size()) == KlBaseShape{.n_vocab = int(log_probs.size())}.row_bytes(),
              "row of {} bytes for {} values", row.size(), log_probs.size());
  const auto scale = load<float>(row, 0), least = load<float>(row, 4);
  if (!std::isfinite(scale) || scale < 0 || !std::isfinite(least))
    return bad_file("scale {} and least log-probability {} are none", scale, least);
  if (double(least) + kMaxCode * double(scale) > kLogProbSlack)
    return bad_file("scale {} and least log-probability {} reach probabilities above 1", scale, least);
  for (size_t i = 0; i < log_probs.size(); ++i)
    log_probs[i] = scale * float(load<uint16_t>(row, kRowHeaderBytes + 2 * int64_t(i))) + least;
  return {};
}

std::vector<int32_t> KlBase::tokens() const {
  std::vector<int32_t> tokens(token_bytes.size() / 4);
  std::memcpy(tokens.data(), token_bytes.data(), token_bytes.size());
  return tokens;
}

Status KlBase::read_row(int64_t index, std::span<float> log_probs) const {
  RIDGE_CHECK(index >= 0 && index < shape.n_rows() && int64_t(log_probs.size()) == shape.n_vocab,
              "row {} of {}, {} values of {}", index, shape.n_rows(), log_probs.size(), shape.n_vocab);
  const auto size = size_t(shape.row_bytes());
  const Status status = decode_kl_row(row_bytes.subspan(size_t(index) * size, size), log_probs);
  if (status) return {};
  return bad_file("chunk {}, row {}: {}", index / shape.rows_per_chunk(), index % shape.rows_per_chunk(),
                  status.error().message);
}

Result<KlBase> parse_kl_base(std::span<const std::byte> file) {
  if (int64_t(file.size()) < kHeaderBytes)
    return bad_file("{} bytes are too few for the header of {}", file.size(), kHeaderBytes);
  if (std::memcmp(file.data(), kMagic.data(), kMagic.size()) != 0)
    return bad_file("does not start with {}: not a base file of llama-perplexity", kMagic);
  KlBase base{.shape = {.n_ctx = load<int32_t>(file, 8),
                        .n_vocab = load<int32_t>(file, 12),
                        .n_chunks = load<int32_t>(file, 16)}};
  const KlBaseShape& shape = base.shape;
  RIDGE_TRY_STATUS(check_count("n_ctx", shape.n_ctx, 4, kMaxContext));
  RIDGE_TRY_STATUS(check_count("n_vocab", shape.n_vocab, 1, kMaxVocab));
  RIDGE_TRY_STATUS(check_count("n_chunk", shape.n_chunks, 1, INT32_MAX));
  const uint64_t n_tokens = uint64_t(shape.n_chunks) * uint64_t(shape.n_ctx);  // below 2^57
  const auto rows = checked_mul(uint64_t(shape.n_rows()), uint64_t(shape.row_bytes()));
  const auto wanted = rows ? checked_add(*rows, 4 * n_tokens + uint64_t(kHeaderBytes)) : std::nullopt;
  if (wanted != uint64_t(file.size()))
    return bad_file("{} chunks of {} tokens over {} entries need {} bytes, the file has {} (was its run interrupted?)",
                    shape.n_chunks, shape.n_ctx, shape.n_vocab, wanted ? fmt::to_string(*wanted) : "more than 2^64",
                    file.size());
  base.token_bytes = file.subspan(kHeaderBytes, 4 * n_tokens);
  base.row_bytes = file.subspan(kHeaderBytes + 4 * n_tokens);
  for (uint64_t i = 0; i < n_tokens; ++i)
    if (const auto token = load<int32_t>(base.token_bytes, int64_t(4 * i)); token < 0 || token >= shape.n_vocab)
      return bad_file("token {} is {}, outside the vocabulary of {}", i, token, shape.n_vocab);
  return base;
}

Result<KlBaseFile> KlBaseFile::open(const std::filesystem::path& path) {
  KlBaseFile file;
  RIDGE_TRY(file.file_, MappedFile::open(path));
  Result<KlBase> base = parse_kl_base(file.file_.bytes());
  if (!base) return bad_file("KL base file {}: {}", in_quotes(path.native()), base.error().message);
  file.base_ = *base;
  return file;
}

Status KlBaseWriter::create(const KlBaseShape& shape, std::span<const int32_t> tokens) {
  RIDGE_CHECK(int64_t(tokens.size()) == int64_t(shape.n_chunks) * shape.n_ctx, "{} tokens for {} chunks of {}",
              tokens.size(), shape.n_chunks, shape.n_ctx);
  shape_ = shape;
  bytes_left_ = shape.n_rows() * shape.row_bytes();
  RIDGE_TRY_STATUS(file_.create());
  std::string header(kMagic);
  for (const int32_t number : {shape.n_ctx, shape.n_vocab, shape.n_chunks})
    header.append(reinterpret_cast<const char*>(&number), 4);
  RIDGE_TRY_STATUS(file_.write(header));
  return file_.write({reinterpret_cast<const char*>(tokens.data()), 4 * tokens.size()});
}

Status KlBaseWriter::add(std::span<const std::byte> rows) {
  bytes_left_ -= int64_t(rows.size());
  return file_.write({reinterpret_cast<const char*>(rows.data()), rows.size()});
}

Status KlBaseWriter::commit() {
  RIDGE_CHECK(bytes_left_ == 0, "{} bytes of rows are missing", bytes_left_);
  return file_.commit();
}

}  // namespace ridge::io
