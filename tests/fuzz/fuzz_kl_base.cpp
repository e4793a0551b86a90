// Fuzz target of parse_kl_base(): any bytes give a base or a reason, and every row can be read or is refused.
#include "fuzz/touch.h"
#include "io/kl_base.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ridge::io;
  const auto base = parse_kl_base({reinterpret_cast<const std::byte*>(data), size});
  touch(base);
  if (!base) return 0;
  const KlBaseShape& shape = base->shape;
  RIDGE_CHECK(int64_t(base->tokens().size()) == int64_t(shape.n_chunks) * shape.n_ctx, "tokens of another size");
  std::vector<float> log_probs(size_t(shape.n_vocab));
  for (int64_t row = 0; row < shape.n_rows(); ++row)
    if (base->read_row(row, log_probs))
      for (const float x : log_probs) RIDGE_CHECK(x <= 1e-2f, "log-probability {}", x);
  return 0;
}
