// KL base files: the log-probabilities of a base run at every scored position, in the layout that llama-perplexity
// writes with --kl-divergence-base and reads with --kl-divergence. docs/formats/kl-base.md has the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "io/mapped_file.h"
#include "io/pending_file.h"

namespace ridge::io {

struct KlBaseShape {
  int n_ctx = 0;  ///< tokens per chunk
  int n_vocab = 0;
  int n_chunks = 0;

  /// Rows n_ctx/2 to n_ctx - 2 of a chunk: row i predicts token i + 1.
  int rows_per_chunk() const { return n_ctx - 1 - n_ctx / 2; }
  int64_t n_rows() const { return int64_t(n_chunks) * rows_per_chunk(); }
  /// Scale and least log-probability as floats, then n_vocab codes of 16 bits, padded to whole 32-bit words.
  int64_t row_bytes() const { return 8 + 4 * ((int64_t(n_vocab) + 1) / 2); }
};

/// Codes one row of finite logits: log-probabilities over the 16 nats below the largest, 65536 steps; what lies below
/// gets code 0.
void encode_kl_row(std::span<const float> logits, std::span<std::byte> row);
/// log-probability i = scale * code i + least. Fails when the row is none: scale or least not finite, probabilities
/// above 1.
Status decode_kl_row(std::span<const std::byte> row, std::span<float> log_probs);

/// A file image, checked but for its rows. The bytes must outlive it.
struct KlBase {
  KlBaseShape shape;
  std::span<const std::byte> token_bytes;
  std::span<const std::byte> row_bytes;

  /// Tokens of all chunks, [n_chunks * n_ctx], as tokenized: the reader puts BOS in front of each chunk.
  std::vector<int32_t> tokens() const;
  /// Row `index` in [0, n_rows) as log-probabilities, [n_vocab].
  Status read_row(int64_t index, std::span<float> log_probs) const;
};
/// The image must have exactly the bytes its header asks for, and tokens inside the vocabulary.
Result<KlBase> parse_kl_base(std::span<const std::byte> file);

/// A mapped base file.
class KlBaseFile {
 public:
  static Result<KlBaseFile> open(const std::filesystem::path& path);
  const KlBase& base() const { return base_; }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  MappedFile file_;
  KlBase base_;
};

/// Writes a base file row by row. The file takes its name at commit(), after the last row.
class KlBaseWriter {
 public:
  explicit KlBaseWriter(const std::filesystem::path& path) : file_(path) {}
  /// tokens: [n_chunks * n_ctx].
  Status create(const KlBaseShape& shape, std::span<const int32_t> tokens);
  /// One or more coded rows.
  Status add(std::span<const std::byte> rows);
  Status commit();
  const KlBaseShape& shape() const { return shape_; }

 private:
  PendingFile file_;
  KlBaseShape shape_;
  int64_t bytes_left_ = 0;
};

}  // namespace ridge::io
