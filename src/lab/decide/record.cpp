#include "lab/decide/record.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <set>
#include <type_traits>

#include "engine/kv_choice.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/pending_file.h"
#include "lab/rows/columns.h"

namespace ridge::lab {
namespace {

constexpr const char* kFormat = "ridge-decision";
constexpr int kRecordVersion = 2;
constexpr uint64_t kMaxRecordBytes = 1 << 24;

std::string hex_hash(std::string_view text) { return fmt::format("{:016x}", XXH64(text.data(), text.size(), 0)); }

/// The hash of the record without its checksum, fields sorted, no spaces.
std::string checksum(io::Json json) {
  json.erase("xxh64");
  return hex_hash(json.dump());
}

template <class T, class Part>
concept Is = std::same_as<std::remove_const_t<T>, Part>;

// The fields of a record and of its parts, each named once: `f` writes them, or reads and checks them.
void visit(auto& f, Is<GateResult> auto& gate) {
  f("number", gate.number), f("name", gate.name), f("verdict", gate.verdict), f("why", gate.why);
  f("numbers", gate.numbers), f("noise", gate.noise), f("rows", gate.rows), f("commands", gate.commands);
}
void visit(auto& f, Is<CandidateRecord> auto& candidate) {
  f("kv", candidate.kv), f("gates", candidate.gates), f("on", candidate.on), f("from_depth", candidate.from_depth);
  f("speedup", candidate.speedup), f("why", candidate.why);
}
void visit(auto& f, Is<RecordSubject> auto& s) {
  f("model_path", s.model_path), f("model_hash", s.model_hash), f("synthetic", s.synthetic), f("device", s.device);
  f("device_name", s.device_name), f("isa", s.isa), f("n_threads", s.n_threads), f("build", s.build);
}
void visit(auto& f, Is<GateThresholds> auto& t) {
  f("attention_speedup", t.attention_speedup), f("effect_budget", t.effect_budget), f("ppl_rise", t.ppl_rise);
  f("kld", t.kld), f("bound_share", t.bound_share), f("promotion_prompt", t.promotion_prompt);
  f("promotion_decode", t.promotion_decode), f("promotion_both", t.promotion_both);
}
void visit(auto& f, Is<SearchPoint> auto& p) {
  f.cache("kv", p.kv), f("kld_limit", p.kld_limit), f("bits_limit", p.bits_limit), f("bits", p.bits);
  f("predicted", p.predicted), f("kld", p.kld), f("kld_error", p.kld_error), f("line", p.line);
  f("line_error", p.line_error), f("verdict", p.verdict), f("why", p.why), f("rows", p.rows);
}
void visit(auto& f, Is<SearchRecord> auto& s) {
  f("path", s.path), f("corpus", s.corpus), f("n_ctx", s.n_ctx), f("chunks", s.chunks), f("sides", s.sides);
  f("points", s.points), f("uniform", s.uniform), f("why", s.why);
}
void visit(auto& f, Is<DecisionRecord> auto& r) {
  f("subject", r.subject), f("n_ctx", r.n_ctx), f("n_sessions", r.n_sessions), f("thresholds", r.thresholds);
  f("candidates", r.candidates), f("search", r.search), f.cache("choice", r.choice), f("from_depth", r.from_depth);
  f("sentence", r.sentence), f("date", r.date), f("command", r.command);
}

/// Writes fields, in the order in which they come.
class RecordWriter {
 public:
  void operator()(const char* field, const auto& value) { row_[field] = json_of(value); }
  void cache(const char* field, const std::string& value) { row_[field] = value; }
  const Row& row() const { return row_; }

 private:
  static Row json_of(double value) { return number(value); }
  static Row json_of(GateVerdict verdict) { return gate_verdict_name(verdict); }
  static Row json_of(const Row& value) { return value; }
  static Row json_of(const std::string& text) { return text; }
  static Row json_of(bool value) { return value; }
  static Row json_of(int value) { return value; }
  template <class Part>
  static Row json_of(const Part& part) {
    RecordWriter writer;
    visit(writer, part);
    return writer.row();
  }
  template <class T>
  static Row json_of(const std::vector<T>& list) {
    return list_of(list, [](const T& item) { return json_of(item); });
  }
  template <class T>
  static Row json_of(const std::optional<T>& part) {
    return part ? json_of(*part) : Row(nullptr);
  }

  Row row_ = Row::object();
};

/// Reads fields of an object that must be there and of a type; the first that is not is remembered.
class RecordReader {
 public:
  /// `name` stands in front of a field's in messages: "candidates[0].".
  RecordReader(const Row& object, std::string name, std::string& problem)
      : object_(object), name_(std::move(name)), problem_(problem) {
    if (!object.is_object()) refuse("", "an object");
  }
  template <class T>
  void operator()(const char* field, T& to) {
    const auto found = object_.find(field);
    if (found == object_.end()) refuse(field, expected(to));
    else read(*found, field, to);
  }
  /// A text that --kv-quant takes.
  void cache(const char* field, std::string& to) {
    (*this)(field, to);
    if (const auto kv = parse_kv_choice(to); !kv && problem_.empty())
      problem_ = fmt::format("{}{}: {}", name_, field, kv.error().message);
  }

 private:
  static const char* expected(const std::string&) { return "a text"; }
  static const char* expected(bool) { return "true or false"; }
  static const char* expected(int) { return "a whole number"; }
  static const char* expected(double) { return "a number"; }
  static const char* expected(GateVerdict) { return "a text"; }
  template <class T>
  static const char* expected(const std::vector<T>&) {
    return "a list";
  }
  template <class Part>
  static const char* expected(const Part&) {
    return "an object";
  }

  void read(const Row& value, const std::string& field, std::string& to) {
    if (value.is_string()) to = value.get<std::string>();
    else refuse(field, expected(to));
  }
  void read(const Row& value, const std::string& field, bool& to) {
    if (value.is_boolean()) to = value.get<bool>();
    else refuse(field, expected(to));
  }
  void read(const Row& value, const std::string& field, int& to) {
    if (value.is_number_integer() && value >= 0 && value <= INT32_MAX) to = value.get<int>();
    else refuse(field, expected(to));
  }
  /// null: NaN.
  void read(const Row& value, const std::string& field, double& to) {
    if (value.is_number() || value.is_null()) to = value.is_null() ? NAN : value.get<double>();
    else refuse(field, expected(to));
  }
  void read(const Row& value, const std::string& field, GateVerdict& to) {
    std::string name;
    read(value, field, name);
    for (const GateVerdict known : {GateVerdict::none, GateVerdict::pass, GateVerdict::fail})
      if (name == gate_verdict_name(known)) to = known, name.clear();
    if (!name.empty() && problem_.empty()) problem_ = fmt::format("{}{} is '{}'", name_, field, name);
  }
  void read(const Row& value, const std::string& field, Row& to) {
    if (value.is_object()) to = value;
    else refuse(field, expected(to));
  }
  template <class T>
  void read(const Row& value, const std::string& field, std::vector<T>& to) {
    if (!value.is_array()) return refuse(field, expected(to));
    for (size_t i = 0; i < value.size(); ++i) read(value[i], fmt::format("{}[{}]", field, i), to.emplace_back());
  }
  template <class T>
  void read(const Row& value, const std::string& field, std::optional<T>& to) {
    if (!value.is_null()) read(value, field, to.emplace());
  }
  template <class Part>
  void read(const Row& value, const std::string& field, Part& to) {
    if (!value.is_object()) return refuse(field, expected(to));
    RecordReader part(value, name_ + field + ".", problem_);
    visit(part, to);
  }
  void refuse(std::string_view field, std::string_view expected) {
    if (problem_.empty()) problem_ = fmt::format("{}{} is not {}", name_, field, expected);
  }

  const Row& object_;
  const std::string name_;
  std::string& problem_;
};

}  // namespace

std::string limit_text(const SearchPoint& point) {
  if (point.kld_limit > 0) return fmt::format("KLD <= {:g}", point.kld_limit);
  return point.bits_limit > 0 ? fmt::format("bits <= {:g}", point.bits_limit) : "";
}

std::string_view gate_verdict_name(GateVerdict verdict) {
  constexpr std::string_view kNames[] = {"NO VERDICT", "PASS", "FAIL"};
  return kNames[size_t(verdict)];
}

std::string row_id(const Row& row) { return hex_hash(cell_key(row)); }

std::string record_text(const DecisionRecord& r) {
  RecordWriter writer;
  writer("format", std::string(kFormat));
  writer("version", kRecordVersion);
  visit(writer, r);
  Row row = writer.row();
  // Through text, as a reader will see it.
  row["xxh64"] = checksum(io::Json::parse(json_text(row)));
  return json_text(row, 1) + "\n";
}

Result<DecisionRecord> parse_record(std::string_view text, std::string_view where) {
  RIDGE_TRY(const io::Json json, io::parse_json(text, where));
  const Row in_order = Row::parse(text);
  std::string problem, format, hash;
  int version = 0;
  RecordReader reader(in_order, "", problem);
  if (problem.empty()) reader("format", format);
  if (format != kFormat) return bad_file("{}: not a decision record (ridge decide writes them)", where);
  reader("version", version);
  if (version != kRecordVersion)
    return bad_file("{}: version {}, this program knows {} (run ridge decide again)", where, version, kRecordVersion);
  reader("xxh64", hash);
  if (const std::string found = checksum(json); hash != found)
    return bad_file("{}: the checksum is {}, its content has {}: it was edited or cut (run ridge decide again)", where,
                    hash, found);
  DecisionRecord record;
  visit(reader, record);
  if (!problem.empty()) return bad_file("{}: {}", where, problem);
  return record;
}

Result<DecisionRecord> read_record(const std::filesystem::path& path) {
  RIDGE_TRY(const std::string text, io::read_text_file(path, kMaxRecordBytes));
  return parse_record(text, path.native());
}

void write_record(const DecisionRecord& record, const std::filesystem::path& path) {
  io::PendingFile file(path);
  file.create().or_throw();
  file.write(record_text(record)).or_throw();
  file.commit().or_throw();
}

std::filesystem::path record_path(const std::filesystem::path& directory, const std::string& model_hash) {
  return directory / fmt::format("decision-{}.json", model_hash);
}

std::string why_not_for(const DecisionRecord& record, const RecordSubject& here) {
  const RecordSubject& of = record.subject;
  const auto differs = [](std::string_view what, const auto& a, const auto& b) {
    return fmt::format("it is for {} {}, here is {}", what, a, b);
  };
  if (of.model_hash != here.model_hash) return differs("the model with hash", of.model_hash, here.model_hash);
  if (of.device_name != here.device_name || of.device != here.device)
    return differs("the machine", of.device_name, here.device_name);
  if (of.isa != here.isa) return differs("kernels up to", of.isa, here.isa);
  if (of.n_threads != here.n_threads) return differs("a number of threads of", of.n_threads, here.n_threads);
  if (of.build != here.build) return differs("the build", of.build, here.build);
  if (of.synthetic) return "its model has random weights: nothing is known about quality";
  return {};
}

std::string choice_at(const DecisionRecord& record, int n) { return n >= record.from_depth ? record.choice : "f16"; }

std::string record_page(const DecisionRecord& r, PageRows rows) {
  const RecordSubject& s = r.subject;
  std::string page = fmt::format(
      "{}\n\nmodel    {} (hash {}{})\nmachine  {}, {}{}\nbuild    {}, {}\nasked    {} tokens, {} session{}\n",
      r.sentence, s.model_path, s.model_hash, s.synthetic ? ", random weights" : "", s.device_name, s.device,
      s.n_threads > 0 ? fmt::format(", {} threads, {}", s.n_threads, s.isa) : "", s.build, r.date, r.n_ctx,
      r.n_sessions, r.n_sessions == 1 ? "" : "s");
  std::set<std::string> commands;
  for (const CandidateRecord& c : r.candidates) {
    page +=
        fmt::format("\n{}: {}{}\n", c.kv, c.on ? fmt::format("ON from {} tokens: ", c.from_depth) : "opt-in: ", c.why);
    for (const GateResult& g : c.gates) {
      page += fmt::format("  {} {:<10} {}: {}\n", g.number, gate_verdict_name(g.verdict), g.name, g.why);
      if ((g.number <= 3 || g.number == 7) && g.noise > 0)
        page += fmt::format("      noise     {:.1f} %\n", 100 * g.noise);
      if (rows == PageRows::shown && !g.rows.empty())
        page += fmt::format("      rows      {}\n", fmt::join(g.rows, "\n                "));
      commands.insert(g.commands.begin(), g.commands.end());
    }
  }
  if (r.search) {
    const SearchRecord& found = *r.search;
    page += fmt::format("\nsearch   on {} ({} windows of {}){}\n", found.path, found.chunks, found.n_ctx,
                        found.why.empty() ? "" : ": " + found.why);
    for (const SearchPoint& p : found.points)
      page += fmt::format("  {:<13} {:<10} {}: {}; expected {:.5f}\n", limit_text(p), gate_verdict_name(p.verdict),
                          p.kv, p.why, p.predicted);
    for (const SearchPoint& p : found.uniform)
      page += fmt::format("  {:<13} {:.2f} bits  {}: mean KLD {:.5f} ± {:.5f}; expected {:.5f}\n", "uniform", p.bits,
                          p.kv, p.kld, p.kld_error, p.predicted);
  }
  if (!commands.empty()) page += "\nmeasured by\n";
  for (const std::string& command : commands) page += fmt::format("  {}\n", command);
  return page;
}

}  // namespace ridge::lab
