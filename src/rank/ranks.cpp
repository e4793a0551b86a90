#include "rank/ranks.h"

#include <algorithm>

#include "base/result.h"

namespace ridge {
namespace {

/// Bytes of a call that go at a time. MPI takes small messages before the receiver wants them, so the first rank need
/// not wait for stages that are still in the pass before.
constexpr int64_t kCallPiece = 2048;

/// First of n things that are rank r's of `size` nearly equal parts.
int64_t first_of(int64_t n, int r, int size) { return n * r / size; }

template <class T>
BytesOut bytes_of(const T* first, int64_t n) {
  return std::as_bytes(std::span(first, size_t(n)));
}
template <class T>
BytesIn bytes_in(T* first, int64_t n) {
  return std::as_writable_bytes(std::span(first, size_t(n)));
}

/// Some ranks that follow each other, numbered from 0.
class PartTransport final : public Transport {
 public:
  PartTransport(Transport& whole, int first, int size) : whole_(whole), first_(first), size_(size) {}
  int rank() const override { return whole_.rank() - first_; }
  int size() const override { return size_; }
  std::vector<int> exchange(std::span<const BytesOut> to, std::span<const BytesIn> from, double seconds) override {
    std::vector<BytesOut> to_all(size_t(whole_.size()));
    std::vector<BytesIn> from_all(size_t(whole_.size()));
    std::ranges::copy(to, to_all.begin() + first_);
    std::ranges::copy(from, from_all.begin() + first_);
    std::vector<int> late = whole_.exchange(to_all, from_all, seconds);
    for (int& rank : late) rank -= first_;
    return late;
  }
  bool has_ended(int rank) const override { return whole_.has_ended(first_ + rank); }
  void limit_waits(double seconds) override { whole_.limit_waits(seconds); }
  void abort(int code) override { whole_.abort(code); }

 private:
  Transport& whole_;
  const int first_, size_;
};

}  // namespace

Ranks::Ranks(std::unique_ptr<Transport> transport, double timeout_s)
    : transport_(std::move(transport)), timeout_s_(timeout_s), to_(size_t(size())), from_(size_t(size())) {
  RIDGE_CHECK(size() > 0 && rank() >= 0 && rank() < size(), "rank {} of {}", rank(), size());
}

void Ranks::set_stages(int n) {
  if (n < 1 || size() % n != 0)
    throw_error(ErrorKind::usage, "--pp {}: {} ranks do not make {} stages of equally many", n, size(), n);
  n_stages_ = n;
}

std::unique_ptr<Ranks> Ranks::of_stage() const {
  const int n = size() / n_stages_, first = rank() / n * n;
  auto part = std::make_unique<Ranks>(std::make_unique<PartTransport>(*transport_, first, n), timeout_s_);
  for (int r = first; r < first + n; ++r) part->names_.push_back(name(r));
  return part;
}

std::string Ranks::name(int rank) const {
  return size_t(rank) < names_.size() ? names_[size_t(rank)] : fmt::format("rank {}", rank);
}

int Ranks::ended() const {
  for (int r = 0; r < size(); ++r)
    if (r != rank() && transport_->has_ended(r)) return r;
  return -1;
}

/// Makes the exchange that to_ and from_ describe, and clears them.
void Ranks::exchange(std::string_view what, double seconds) {
  if (!failure_.empty()) throw Error(ErrorKind::failure, failure_);
  std::vector<int> late;
  try {
    late = transport_->exchange(to_, from_, seconds);
  } catch (const Error& error) {
    failure_ = error.what();
    throw;
  }
  std::ranges::fill(to_, BytesOut());
  std::ranges::fill(from_, BytesIn());
  if (late.empty()) return;
  std::string names, ended;
  for (const int r : late) {
    names += (names.empty() ? "" : ", ") + name(r);
    if (transport_->has_ended(r)) ended += (ended.empty() ? "" : ", ") + name(r);
  }
  failure_ =
      ended.empty()
          ? fmt::format("{}: no answer from {} within {:g} s: {} (look at that process; --rank-timeout waits longer)",
                        name(rank()), names, std::min<double>(seconds, most_seconds_), what)
          : fmt::format("{}: {} has ended: {} (look at what that process said last)", name(rank()), ended, what);
  throw Error(ErrorKind::failure, failure_);
}

void Ranks::send_to_all(BytesOut bytes) { std::ranges::fill(to_, bytes); }

void Ranks::all_reduce(std::span<float> values) {
  const int64_t n = ssize(values);
  const bool split = n >= kSplitSum && size() > 2;
  // Sums of the values [first, first + count) are made here, of parts that lie behind each other by rank.
  const int64_t first = split ? first_of(n, rank(), size()) : 0,
                count = split ? first_of(n, rank() + 1, size()) - first : n;
  float* const parts = parts_.ensure<float>(count * size());
  for (int r = 0; r < size(); ++r) {
    const int64_t of_r = split ? first_of(n, r, size()) : 0, to_r = split ? first_of(n, r + 1, size()) : n;
    to_[size_t(r)] = bytes_of(values.data() + of_r, to_r - of_r);
    from_[size_t(r)] = bytes_in(parts + r * count, count);
  }
  exchange("a sum of a layer", timeout_s_);
  float* const sums = values.data() + first;
  std::copy_n(sums, count, parts + rank() * count);
  std::copy_n(parts, count, sums);
  for (int r = 1; r < size(); ++r)
    for (int64_t i = 0; i < count; ++i) sums[i] += parts[r * count + i];
  if (!split) return;
  send_to_all(bytes_of(sums, count));
  for (int r = 0; r < size(); ++r) {
    const int64_t of_r = first_of(n, r, size());
    from_[size_t(r)] = bytes_in(values.data() + of_r, first_of(n, r + 1, size()) - of_r);
  }
  exchange("the sums of a layer", timeout_s_);
}

void Ranks::gather_columns(View2<const float> own, std::span<const int64_t> borders, View2<float> whole) {
  const int64_t n = own.rows;
  RIDGE_CHECK(ssize(borders) == size() + 1 && own.cols == borders[size_t(rank()) + 1] - borders[size_t(rank())] &&
                  whole.rows == n && whole.cols == borders.back(),
              "columns [{}, {}] of [{}, {}]", n, own.cols, whole.rows, whole.cols);
  const auto width = [&](int r) { return borders[size_t(r) + 1] - borders[size_t(r)]; };
  float* const parts = parts_.ensure<float>(n * whole.cols);  // rank after rank
  const auto part = [&](int r) { return View2<float>(parts + n * borders[size_t(r)], n, width(r)); };
  const View2<float> packed = part(rank());
  for (int64_t t = 0; t < n; ++t) std::ranges::copy(own.row(t), packed.row(t).begin());
  send_to_all(bytes_of(packed.data, n * packed.cols));
  for (int r = 0; r < size(); ++r) from_[size_t(r)] = bytes_in(part(r).data, n * width(r));
  exchange("columns of a matrix", timeout_s_);
  for (int r = 0; r < size(); ++r)
    for (int64_t t = 0; t < n; ++t) std::ranges::copy(part(r).row(t), whole.row(t).begin() + borders[size_t(r)]);
}

void Ranks::send(int from, int to, BytesOut bytes, BytesIn into, double seconds) {
  if (rank() == from) to_[size_t(to)] = bytes;
  if (rank() == to) from_[size_t(from)] = into;
  exchange("bytes of one rank for another", seconds);
}

std::vector<std::string> Ranks::trade(std::span<const BytesOut> to, double seconds, int64_t most) {
  RIDGE_CHECK(ssize(to) == size() && most > 0, "{} texts for {} ranks", to.size(), size());
  std::vector<int64_t> given, sizes(to.size());
  for (const BytesOut& text : to) given.push_back(ssize(text));
  for (int r = 0; r < size(); ++r) {
    to_[size_t(r)] = bytes_of(&given[size_t(r)], 1);
    if (r != rank()) from_[size_t(r)] = bytes_in(&sizes[size_t(r)], 1);
  }
  exchange("a text's size", seconds);
  const BytesOut own = to[size_t(rank())];
  std::vector<std::string> all(to.size());
  all[size_t(rank())].assign(reinterpret_cast<const char*>(own.data()), own.size());
  int64_t longest = 0;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    all[size_t(r)].resize(size_t(sizes[size_t(r)]));
    longest = std::max({longest, sizes[size_t(r)], given[size_t(r)]});
  }
  for (int64_t first = 0; first < longest; first += most) {
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      const int64_t n_to = given[size_t(r)] - first, n_from = sizes[size_t(r)] - first;
      if (n_to > 0) to_[size_t(r)] = to[size_t(r)].subspan(size_t(first), size_t(std::min(n_to, most)));
      if (n_from > 0) from_[size_t(r)] = bytes_in(all[size_t(r)].data() + first, std::min(n_from, most));
    }
    exchange("a text", seconds);
  }
  return all;
}

std::vector<std::string> Ranks::gather(const std::string& own, double seconds) {
  return trade(std::vector<BytesOut>(size_t(size()), bytes_of(own.data(), ssize(own))), seconds);
}

std::string Ranks::from_first(const std::string& own) { return gather(is_first() ? own : "").front(); }

void Ranks::tell(const std::string& text) {
  const int64_t size = ssize(text);
  send_to_all(bytes_of(&size, 1));
  exchange("the size of the first rank's next call", timeout_s_);
  for (int64_t first = 0; first < size; first += kCallPiece) {
    send_to_all(bytes_of(text.data() + first, std::min(kCallPiece, size - first)));
    exchange("the first rank's next call", timeout_s_);
  }
}

std::string Ranks::hear() {
  int64_t size = 0;
  from_[0] = bytes_in(&size, 1);
  exchange("the first rank's next call", kNoLimit);
  std::string text(size_t(size), '\0');
  for (int64_t first = 0; first < size; first += kCallPiece) {
    from_[0] = bytes_in(text.data() + first, std::min(kCallPiece, size - first));
    exchange("the first rank's next call", timeout_s_);
  }
  return text;
}

void Ranks::barrier() { gather(""); }

void Ranks::require_same(std::string_view what, const std::string& text, std::string_view next, double seconds) {
  const std::vector<std::string> texts = gather(text, seconds);
  for (int r = 1; r < size(); ++r)
    if (texts[size_t(r)] != texts[0])
      throw_error(ErrorKind::usage, "{} of {} is {}, that of {} is {} ({})", what, name(r), texts[size_t(r)], name(0),
                  texts[0], next);
}

double file_seconds(const Ranks& ranks) {
  constexpr double kMoreForFiles = 10;
  return std::max<double>(kMoreForFiles, ranks.n_stages()) * ranks.timeout_s();
}

}  // namespace ridge
