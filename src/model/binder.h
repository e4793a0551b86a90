// Tensors of a file into Weights, by the rows of tensors.h: each is found, checked against the configuration and bound.
// All faults are collected, and reported at once; a tensor that no row reads is one.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "model/mtp.h"
#include "model/tensors.h"
#include "model/ternary.h"

namespace ridge {

/// Tensors of a file and how it keeps them. Their bytes must outlive the Weights.
struct BoundFile {
  std::span<const io::Tensor> tensors;
  FileNames names = FileNames::gguf;
  TernaryLayout ternary = TernaryLayout::master;
};

class Binder {
 public:
  /// Counts the parameters and bytes of the file's text model.
  Binder(const Config& config, const BoundFile& file, Weights& weights);

  /// Binds the rows of Weights: those of the model, or with layer n_layers those of an MTP head.
  void bind_model(int layer = 0);
  /// Binds the rows of a layer behind the others.
  void bind_layer(int layer);

  bool has(const TensorRow& row, int layer) const { return by_name_.contains(name(row, layer)); }
  /// A matrix of the embedding's shape; without a format where the file has none of this name.
  Linear end(const TensorName& tensor, int layer);
  /// bad_file with up to 12 tensors that are missing or do not fit.
  Status check_bound(std::string_view where) const;
  /// bad_file with up to 8 tensors whose names begin with `prefix` and that are neither read nor harmless: they would
  /// change results.
  Status check_rest(std::string_view where, std::string_view prefix = {}) const;

 private:
  bool is_gguf() const { return file_.names == FileNames::gguf; }
  /// The row's source in this file: experts that are tensors of their own count before those in one tensor.
  TensorSource source(const TensorRow& row, int layer) const;
  std::string name(const TensorRow& row, int layer, int expert = 0) const {
    return name(row, source(row, layer).name, layer, expert);
  }
  std::string name(const TensorRow& row, const TensorName& tensor, int layer, int expert = 0) const;
  TensorPart part_of(const TensorRow& row, int layer) const;
  /// Whether a GGUF file has gate and up of the experts in one tensor, as some have.
  bool joins_gate_up(const TensorRow& row, int layer) const;

  void read(const TensorRow& row, int layer, Linear& to);
  void read(const TensorRow& row, int layer, Values& to);
  void read_experts(const TensorRow& row, int layer, std::vector<ExpertWeights>& experts);

  /// A matrix of the file, where it is or unpacked.
  Linear matrix(const std::string& tensor_name, TensorShape shape);
  /// A BitNet matrix: i2_s in place, all others as i2_s in a buffer of their own.
  Linear ternary_matrix(const std::string& tensor_name, TensorShape shape);
  /// Packed codes with their scale in the tensor NAME_scale [1], as i2_s in a buffer of their own.
  Linear packed_ternary_matrix(const std::string& tensor_name, TensorShape shape);
  Linear as_i2s(const std::string& tensor_name, TensorShape shape, Result<TernaryMatrix> codes, float scale);
  /// Rows of a matrix that several rows of the table share.
  Linear shared_rows(const TensorRow& row, int layer, const TensorPart& part);
  Linear picked_rows(const Linear& whole, std::span<const int64_t> rows);

  /// Matrices of all heads or experts.
  std::vector<Linear> matrices(const TensorRow& row, int layer, int64_t n);
  std::vector<Linear> stacked(const TensorRow& row, int layer, int64_t n);
  std::vector<Linear> woven(const TensorRow& row, int layer, int64_t n);
  /// MXFP4 as checkpoints have it: codes [n, n_rows, n_in / 32, 16] with weights 2 i and 2 i + 1 in byte i, exponents
  /// [n, n_rows, n_in / 32].
  std::vector<Linear> woven_mxfp4(const TensorRow& row, int layer, int64_t n);
  /// The matrix where its format has no blocks and no scale; else decoded to float32.
  Linear as_floats(const std::string& tensor_name, Linear m);
  std::vector<Linear> latent_heads(const TensorRow& row, int layer);
  /// A vector of each of n experts.
  std::vector<Values> vectors(const TensorRow& row, int layer, int64_t n);

  Values values(const std::string& tensor_name, const std::vector<int64_t>& shape, bool required = true);
  Values convolution(const std::string& tensor_name, TensorShape shape);
  /// The optional tensor NAME.scale [n] beside NAME.weight, in which converters put scales of n matrices; else ones.
  Values extra_scales(std::string weight_name, int64_t n);
  /// How many weights an element of the tensor is: 4 in a byte of ternary codes, none in their scale.
  int weights_per_element(const io::Tensor& tensor) const;
  /// `packed`: what the tensor may be without being a weight format.
  const io::Tensor* find(const std::string& tensor_name, const std::vector<int64_t>& shape, bool required = true,
                         const WeightFormat* packed = nullptr);
  bool is_float(const std::string& tensor_name, const WeightFormat& format);
  void problem(const std::string& text);

  bool is_harmless(const io::Tensor& tensor) const;
  bool is_of_head(std::string_view tensor_name) const;

  const Config& config_;
  const Arch& arch_;
  BoundFile file_;
  Nesting nesting_ = Nesting::none;
  Weights& weights_;
  std::map<std::string, const io::Tensor*, std::less<>> by_name_;
  std::set<const io::Tensor*> read_;
  std::map<std::string, Linear> shared_;  // matrices that several rows share
  std::string problems_;
  int n_problems_ = 0;
};

}  // namespace ridge
