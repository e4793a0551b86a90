#include "lab/decide/record.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>
#include <set>

#include "engine/kv_choice.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "io/pending_file.h"
#include "lab/store/store.h"

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

Row to_row(const GateResult& gate) {
  return {{"number", gate.number}, {"name", gate.name},        {"verdict", gate_verdict_name(gate.verdict)},
          {"why", gate.why},       {"numbers", gate.numbers},  {"noise", number(gate.noise)},
          {"rows", gate.rows},     {"commands", gate.commands}};
}

Row to_row(const CandidateRecord& candidate) {
  Row gates = Row::array();
  for (const GateResult& gate : candidate.gates) gates.push_back(to_row(gate));
  return {{"kv", candidate.kv},
          {"gates", gates},
          {"on", candidate.on},
          {"from_depth", candidate.from_depth},
          {"speedup", number(candidate.speedup)},
          {"why", candidate.why}};
}

Row to_row(const RecordSubject& s) {
  return {{"model_path", s.model_path},   {"model_hash", s.model_hash},
          {"synthetic", s.synthetic},     {"device", s.device},
          {"device_name", s.device_name}, {"isa", s.isa},
          {"n_threads", s.n_threads},     {"build", s.build}};
}

Row to_row(const GateThresholds& t) {
  return {{"attention_speedup", t.attention_speedup},
          {"effect_budget", t.effect_budget},
          {"ppl_rise", t.ppl_rise},
          {"kld", t.kld},
          {"bound_share", t.bound_share},
          {"promotion_prompt", t.promotion_prompt},
          {"promotion_decode", t.promotion_decode},
          {"promotion_both", t.promotion_both}};
}

Row to_row(const SearchPoint& p) {
  return {{"kv", p.kv},
          {"kld_limit", number(p.kld_limit)},
          {"bits_limit", number(p.bits_limit)},
          {"bits", number(p.bits)},
          {"predicted", number(p.predicted)},
          {"kld", number(p.kld)},
          {"kld_error", number(p.kld_error)},
          {"line", number(p.line)},
          {"line_error", number(p.line_error)},
          {"verdict", gate_verdict_name(p.verdict)},
          {"why", p.why},
          {"rows", p.rows}};
}

Row to_row(const std::vector<SearchPoint>& points) {
  Row rows = Row::array();
  for (const SearchPoint& point : points) rows.push_back(to_row(point));
  return rows;
}

Row to_row(const std::optional<SearchRecord>& s) {
  if (!s) return nullptr;
  return {{"path", s->path},
          {"corpus", s->corpus},
          {"n_ctx", s->n_ctx},
          {"chunks", s->chunks},
          {"sides", s->sides},
          {"points", to_row(s->points)},
          {"uniform", to_row(s->uniform)},
          {"why", s->why}};
}

/// Fields of an object that must be there and of a type; the first that is not is remembered.
class RecordFields {
 public:
  RecordFields(const io::Json& object, std::string name, std::string& problem)
      : object_(object), name_(std::move(name)), problem_(problem) {
    if (!object.is_object()) refuse("", "an object");
  }
  void get(const char* field, std::string& to) {
    if (const io::Json* value = find(field); value && value->is_string()) to = value->get<std::string>();
    else refuse(field, "a text");
  }
  void get(const char* field, bool& to) {
    if (const io::Json* value = find(field); value && value->is_boolean()) to = value->get<bool>();
    else refuse(field, "true or false");
  }
  void get(const char* field, int& to) {
    const io::Json* value = find(field);
    if (!value || !value->is_number_integer() || *value < 0 || *value > INT32_MAX)
      return refuse(field, "a whole number");
    to = value->get<int>();
  }
  /// null: NaN.
  void get(const char* field, double& to) {
    const io::Json* value = find(field);
    if (!value || !(value->is_number() || value->is_null())) return refuse(field, "a number");
    to = value->is_null() ? NAN : value->get<double>();
  }
  void get(const char* field, std::vector<std::string>& to) {
    each(field, [&](const io::Json& item, const std::string&) {
      if (item.is_string()) to.push_back(item.get<std::string>());
      else refuse(field, "texts");
    });
  }
  bool is_null(const char* field) {
    const io::Json* value = find(field);
    return value && value->is_null();
  }
  const io::Json& object(const char* field) {
    static const io::Json kNone = io::Json::object();
    const io::Json* value = find(field);
    if (value && value->is_object()) return *value;
    refuse(field, "an object");
    return kNone;
  }
  template <class Item>
  void each(const char* field, const Item& item) {
    const io::Json* value = find(field);
    if (!value || !value->is_array()) return refuse(field, "a list");
    for (size_t i = 0; i < value->size(); ++i) item((*value)[i], fmt::format("{}{}[{}]", name_, field, i));
  }

 private:
  const io::Json* find(const char* field) const {
    const auto found = object_.find(field);
    return found == object_.end() ? nullptr : &*found;
  }
  void refuse(std::string_view field, std::string_view expected) {
    if (problem_.empty()) problem_ = fmt::format("{}{} is not {}", name_, field, expected);
  }

  const io::Json& object_;
  const std::string name_;
  std::string& problem_;
};

void parse_verdict(RecordFields& f, const std::string& name, GateVerdict& to, std::string& problem) {
  std::string verdict;
  f.get("verdict", verdict);
  for (const GateVerdict known : {GateVerdict::none, GateVerdict::pass, GateVerdict::fail})
    if (verdict == gate_verdict_name(known)) to = known, verdict.clear();
  if (!verdict.empty() && problem.empty()) problem = fmt::format("{}.verdict is '{}'", name, verdict);
}

GateResult parse_gate(const io::Json& json, const std::string& name, std::string& problem) {
  GateResult gate;
  RecordFields f(json, name + ".", problem);
  f.get("number", gate.number);
  f.get("name", gate.name);
  parse_verdict(f, name, gate.verdict, problem);
  f.get("why", gate.why);
  f.object("numbers");  // parse_record() takes them in the order of the file
  f.get("noise", gate.noise);
  f.get("rows", gate.rows);
  f.get("commands", gate.commands);
  return gate;
}

CandidateRecord parse_candidate(const io::Json& json, const std::string& name, std::string& problem) {
  CandidateRecord candidate;
  RecordFields f(json, name + ".", problem);
  f.get("kv", candidate.kv);
  f.each("gates", [&](const io::Json& gate, const std::string& of) {
    candidate.gates.push_back(parse_gate(gate, of, problem));
  });
  f.get("on", candidate.on);
  f.get("from_depth", candidate.from_depth);
  f.get("speedup", candidate.speedup);
  f.get("why", candidate.why);
  return candidate;
}

SearchPoint parse_point(const io::Json& json, const std::string& name, std::string& problem) {
  SearchPoint point;
  RecordFields f(json, name + ".", problem);
  f.get("kv", point.kv);
  if (const auto kv = parse_kv_choice(point.kv); !kv && problem.empty())
    problem = fmt::format("{}.kv: {}", name, kv.error().message);
  f.get("kld_limit", point.kld_limit);
  f.get("bits_limit", point.bits_limit);
  f.get("bits", point.bits);
  f.get("predicted", point.predicted);
  f.get("kld", point.kld);
  f.get("kld_error", point.kld_error);
  f.get("line", point.line);
  f.get("line_error", point.line_error);
  parse_verdict(f, name, point.verdict, problem);
  f.get("why", point.why);
  f.get("rows", point.rows);
  return point;
}

SearchRecord parse_search(const io::Json& json, std::string& problem) {
  SearchRecord search;
  RecordFields f(json, "search.", problem);
  f.get("path", search.path);
  f.get("corpus", search.corpus);
  f.get("n_ctx", search.n_ctx);
  f.get("chunks", search.chunks);
  f.get("sides", search.sides);
  for (const auto& [field, list] : {std::pair{"points", &search.points}, std::pair{"uniform", &search.uniform}})
    f.each(field,
           [&](const io::Json& point, const std::string& of) { list->push_back(parse_point(point, of, problem)); });
  f.get("why", search.why);
  return search;
}

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
  Row candidates = Row::array();
  for (const CandidateRecord& candidate : r.candidates) candidates.push_back(to_row(candidate));
  Row row{{"format", kFormat},          {"version", kRecordVersion},  {"subject", to_row(r.subject)},
          {"n_ctx", r.n_ctx},           {"n_sessions", r.n_sessions}, {"thresholds", to_row(r.thresholds)},
          {"candidates", candidates},   {"search", to_row(r.search)}, {"choice", r.choice},
          {"from_depth", r.from_depth}, {"sentence", r.sentence},     {"date", r.date},
          {"command", r.command}};
  // Through text, as a reader will see it.
  row["xxh64"] = checksum(io::Json::parse(json_text(row)));
  return json_text(row, 1) + "\n";
}

Result<DecisionRecord> parse_record(std::string_view text, std::string_view where) {
  RIDGE_TRY(const io::Json json, io::parse_json(text, where));
  std::string problem, format, hash;
  int version = 0;
  RecordFields f(json, "", problem);
  if (problem.empty()) f.get("format", format);
  if (format != kFormat) return bad_file("{}: not a decision record (ridge decide writes them)", where);
  f.get("version", version);
  if (version != kRecordVersion)
    return bad_file("{}: version {}, this program knows {} (run ridge decide again)", where, version, kRecordVersion);
  f.get("xxh64", hash);
  if (const std::string found = checksum(json); hash != found)
    return bad_file("{}: the checksum is {}, its content has {}: it was edited or cut (run ridge decide again)", where,
                    hash, found);
  DecisionRecord r;
  RecordFields subject(f.object("subject"), "subject.", problem);
  subject.get("model_path", r.subject.model_path);
  subject.get("model_hash", r.subject.model_hash);
  subject.get("synthetic", r.subject.synthetic);
  subject.get("device", r.subject.device);
  subject.get("device_name", r.subject.device_name);
  subject.get("isa", r.subject.isa);
  subject.get("n_threads", r.subject.n_threads);
  subject.get("build", r.subject.build);
  f.get("n_ctx", r.n_ctx);
  f.get("n_sessions", r.n_sessions);
  RecordFields thresholds(f.object("thresholds"), "thresholds.", problem);
  thresholds.get("attention_speedup", r.thresholds.attention_speedup);
  thresholds.get("effect_budget", r.thresholds.effect_budget);
  thresholds.get("ppl_rise", r.thresholds.ppl_rise);
  thresholds.get("kld", r.thresholds.kld);
  thresholds.get("bound_share", r.thresholds.bound_share);
  thresholds.get("promotion_prompt", r.thresholds.promotion_prompt);
  thresholds.get("promotion_decode", r.thresholds.promotion_decode);
  thresholds.get("promotion_both", r.thresholds.promotion_both);
  f.each("candidates", [&](const io::Json& candidate, const std::string& name) {
    r.candidates.push_back(parse_candidate(candidate, name, problem));
  });
  if (!f.is_null("search")) r.search = parse_search(f.object("search"), problem);
  f.get("choice", r.choice);
  f.get("from_depth", r.from_depth);
  f.get("sentence", r.sentence);
  f.get("date", r.date);
  f.get("command", r.command);
  if (!problem.empty()) return bad_file("{}: {}", where, problem);
  const Row in_order = Row::parse(text);
  for (size_t i = 0; i < r.candidates.size(); ++i)
    for (size_t j = 0; j < r.candidates[i].gates.size(); ++j)
      r.candidates[i].gates[j].numbers = in_order["candidates"][i]["gates"][j]["numbers"];
  if (const auto choice = parse_kv_choice(r.choice); !choice)
    return bad_file("{}: choice: {}", where, choice.error().message);
  return r;
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

std::string record_page(const DecisionRecord& r) {
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
      if (!g.rows.empty()) page += fmt::format("      rows      {}\n", fmt::join(g.rows, " "));
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
