// The tensors of a model, a row each: the member of weights.h that holds the numbers, the name in each container, the
// shape, and the models that have the tensor. Loading, conversion, synthesis, slices of ranks, identity, counting and
// upload walk these rows (model/tensors.cpp), so a new tensor is a member and a row. A tensor of a file that belongs to
// no row is refused (model/binder.h).
#pragma once

#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "model/arch/arch.h"
#include "model/weights.h"

namespace ridge {

using Values = std::vector<float>;

/// Where the numbers of a tensor are: in the model, in a layer, in its gated delta rule, or in each of its experts. A
/// list of matrices has one of each head.
using TensorMember = std::variant<Linear Weights::*, Values Weights::*, Linear LayerWeights::*, Values LayerWeights::*,
                                  std::vector<Linear> LayerWeights::*, Linear DeltaWeights::*, Values DeltaWeights::*,
                                  Linear ExpertWeights::*, Values ExpertWeights::*>;

/// Meaning of the numbers, where a walk treats them apart; matrices come first.
enum class TensorKind : uint8_t {
  matrix,
  output,       ///< a matrix whose matmul is added to the residual stream
  router,       ///< the matrix that scores experts
  norm,         ///< weight of an RMSNorm; Hugging Face files of some architectures have it less one
  block_norm,   ///< likewise, of the norm behind a block
  inner_norm,   ///< weight of an RMSNorm that every file has as it is
  bias,         ///< of a matrix
  output_bias,  ///< of a matrix of kind `output`
  score_bias,   ///< added to the scores of experts
  logit,        ///< values of about 1 without a matrix
  multiplier,   ///< likewise, by which others are multiplied
  convolution,  ///< [kernel, channels]; files have [channels, kernel] or [channels, 1, kernel]
  decay,        ///< below 0; Hugging Face files have the logarithm of its negative
  gate_row,     ///< a matrix of one row, which files also have as a vector
  factors,      ///< of RoPE frequencies
};

/// Which part of a tensor a rank of several has.
enum class TensorCut : uint8_t {
  whole,
  heads,        ///< rows, values or matrices of query heads
  kv_heads,     ///< rows or values of KV heads
  channels,     ///< of the gated delta rule: rows or columns of the channels of q, k and v
  values,       ///< likewise: rows of the values of value heads
  value_heads,  ///< likewise: a row or a value of each value head
  mixed,        ///< columns of what a mixer gives
  ff,           ///< rows or values of a feed-forward's inner width
  ff_columns,   ///< columns of a feed-forward's inner width
  summed,       ///< values that ranks add up once
};

/// How a Hugging Face file has the numbers, where they are no tensor of their own. Tensors with one name in a file are
/// parts of one tensor there.
enum class TensorLayout : uint8_t {
  rows,         ///< the rows of the parts follow each other, in each expert's matrix where there are experts
  woven,        ///< likewise, but the parts take turns by row, and a float matrix is stored transposed
  by_key_head,  ///< the rows of all parts that belong to a key head follow each other (rows_by_key_head)
  by_head,      ///< the rows of all parts that belong to a head follow each other; the first part is transposed
};

/// Names of a tensor in both containers. A layer's have "blk.{}." or "model.layers.{}." in front; "{}" stands for the
/// layer, and in the Hugging Face name of an expert's tensor for the expert. Empty: the container has no such tensor.
struct TensorName {
  std::string_view gguf, hf;
};
struct TensorSource {
  TensorName name;
  TensorLayout layout = TensorLayout::rows;
};

/// [n_out, n_in] of a matrix, of one head or expert where there are several; of a vector [n, 1].
struct TensorShape {
  int64_t n_out = 0, n_in = 1;
};

struct TensorTraits {
  bool rope = false;    ///< RoPE turns its rows, which are in pairs of the container's convention
  bool better = false;  ///< a mix gives it the better format in some layers
  TensorLayout layout = TensorLayout::rows;
  /// Whether GGUF files may leave it out of layers where all values are 0; null: never.
  bool (*may_lack)(const Config& c) = nullptr;
};

struct TensorRow {
  std::string_view name;  ///< in messages and identities
  TensorMember member;
  TensorKind kind = TensorKind::matrix;
  TensorName file;
  /// Whether layer `layer` of the model has it; n_layers: a layer of an MTP head. Rows of Weights get 0 or n_layers.
  bool (*exists)(const Config& c, int layer) = nullptr;
  TensorShape (*shape)(const Config& c, int layer) = nullptr;
  TensorCut cut = TensorCut::whole;
  TensorTraits traits = {};

  bool is_matrix() const { return kind <= TensorKind::router; }
  /// The member of a matrix of each head; else null.
  const auto* of_heads() const { return std::get_if<std::vector<Linear> LayerWeights::*>(&member); }
  /// Whether the member is one of Struct: LayerWeights, ExpertWeights, ...
  template <class Struct>
  bool is_in() const {
    return std::visit([]<class T, class Owner>(T Owner::*) { return std::is_same_v<Owner, Struct>; }, member);
  }
};

/// Rows of a layer, in the order of identities and of written files.
std::span<const TensorRow> layer_tensors();
/// Rows of Weights, the MTP head's join among them.
std::span<const TensorRow> model_tensors();
/// The row of a member.
const TensorRow& tensor_row(TensorMember member);

/// Where files of an architecture have a tensor.
TensorSource tensor_source(const TensorRow& row, const Config& c, int layer);
/// The rows [first, first + n_out) of `total` that a tensor of a file has for a row; of `count` rows that share the
/// tensor it is number `index`.
struct TensorPart {
  int64_t first = 0, total = 0;
  int index = 0, count = 0;
};
TensorPart part_of(const TensorRow& row, const Config& c, int layer, std::string_view TensorName::*container);
/// Names of the embedding and the output matrix that an MTP head may have of its own.
std::span<const TensorName> head_ends(const Arch& arch);
/// A name of a row as GGUF files have it, and as Hugging Face files without a nesting have it.
std::string gguf_name(const TensorRow& row, const TensorName& name, int layer);
std::string hf_name(const TensorRow& row, const TensorName& name, int layer, int expert = 0);

/// Where the rows of a part are in a matrix of layout by_key_head: q, k, the values and the z of a key head's value
/// heads in one, b and a of its value heads in the other.
std::vector<int64_t> rows_by_key_head(const DeltaShape& shape, Linear DeltaWeights::*part);

/// The configuration of an MTP head's layer: it attends, and has experts where the model has some.
Config head_config(const Config& c);

/// Calls fn(row, numbers) for the row's numbers where its member is one of Owner; `fn` takes Linear&, Values& or both.
template <class Owner, class Fn>
void call_member(const TensorRow& row, Owner& owner, const Fn& fn) {
  using Matrix = std::conditional_t<std::is_const_v<Owner>, const Linear, Linear>;
  using Vector = std::conditional_t<std::is_const_v<Owner>, const Values, Values>;
  static_assert(std::is_invocable_v<const Fn&, const TensorRow&, Matrix&> ||
                std::is_invocable_v<const Fn&, const TensorRow&, Vector&>);
  const auto call = [&](auto& numbers) {
    if constexpr (std::is_invocable_v<const Fn&, const TensorRow&, decltype(numbers)>) fn(row, numbers);
  };
  std::visit(
      [&](auto member) {
        if constexpr (std::is_same_v<decltype(member), std::vector<Linear> std::remove_const_t<Owner>::*>)
          for (auto& of_head : owner.*member) call(of_head);
        else if constexpr (requires { owner.*member; }) call(owner.*member);
      },
      row.member);
}

/// Calls fn(row, numbers) for all that a layer has of a row, once for each head or expert.
template <class Layer, class Fn>
void for_each_of(const TensorRow& row, Layer& layer, const Fn& fn) {
  call_member(row, layer, fn);
  call_member(row, layer.delta, fn);
  for (auto& expert : layer.experts) call_member(row, expert, fn);
}

/// Calls fn(row, numbers) for all tensors of a layer, at the end those of one expert after the other.
template <class Layer, class Fn>
void for_each_tensor(Layer& layer, const Fn& fn) {
  for (const TensorRow& row : layer_tensors()) {
    call_member(row, layer, fn);
    call_member(row, layer.delta, fn);
  }
  for (auto& expert : layer.experts)
    for (const TensorRow& row : layer_tensors()) call_member(row, expert, fn);
}

}  // namespace ridge
