// Record of a decision about cache formats for one model on one machine, with the evidence: a file that people read and
// that `--kv-quant auto` obeys (docs/formats/decision-record.md).
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lab/rows/results.h"

namespace ridge::lab {

enum class GateVerdict : uint8_t { none, pass, fail };
std::string_view gate_verdict_name(GateVerdict verdict);  ///< "NO VERDICT", "PASS", "FAIL"

struct GateResult {
  int number = 0;
  std::string name;
  GateVerdict verdict = GateVerdict::none;
  std::string why;                    ///< in words, with the numbers that count
  Row numbers = Row::object();        ///< what the verdict follows from
  double noise = 0;                   ///< of the comparisons, as Verdict::noise; of quality the error of the mean
  std::vector<std::string> rows;      ///< ids of stored rows (row_id())
  std::vector<std::string> commands;  ///< that measured them, each once
};

/// A format with its gates and what follows from them.
struct CandidateRecord {
  std::string kv;  ///< as --kv-quant takes it
  std::vector<GateResult> gates;
  bool on = false;     ///< by the flip rule
  int from_depth = 0;  ///< on from so many tokens
  double speedup = 0;  ///< of whole requests at the longest prompt; 0: not known
  std::string why;     ///< of the flip rule
};

/// Whom a record is about. All but `model_path` must be equal where it is used.
struct RecordSubject {
  std::string model_path, model_hash;  ///< the hash in 16 hex digits
  bool synthetic = false;              ///< random weights: nothing is known about quality
  std::string device;                  ///< "cpu" or "cuda"
  std::string device_name, isa;        ///< as rows have them
  int n_threads = 0;
  std::string build;
};

/// Limits of the gates.
struct GateThresholds {
  double attention_speedup = 1.1;  ///< gate 1, at some depth
  double effect_budget = 0.01;     ///< gates 1 to 3: effects up to this do not matter
  double ppl_rise = 0.25;          ///< gate 4, absolute
  double kld = 0.02;               ///< gate 4, mean, in nats
  double bound_share = 0.6;        ///< gate 5, of the read bandwidth
  double promotion_prompt = 1.05;  ///< gate 7: prompts of 4096 tokens, so many times as fast as with f16
  double promotion_decode = 0.98;  ///< gate 7: generated tokens, so many times as fast as with f16
  bool promotion_both = true;      ///< gate 7 wants both, not one of them
};

/// A cache of a search, or a uniform pair that it is compared with.
struct SearchPoint {
  std::string kv;
  double kld_limit = 0, bits_limit = 0;  ///< what it was searched within; 0: not this
  double bits = 0;                       ///< of a value, at the decision's context
  double predicted = 0;                  ///< mean divergence: the sum of those of its sides
  double kld = NAN, kld_error = NAN;     ///< measured on the decision's text
  double line = NAN, line_error = NAN;   ///< between the best uniform pairs, at so many bits
  GateVerdict verdict = GateVerdict::none;
  std::string why;
  std::vector<std::string> rows;
};
/// "KLD <= 0.002" or "bits <= 3.5"; empty for a uniform pair.
std::string limit_text(const SearchPoint& point);

/// Formats by layer and side, found on one text and measured on another.
struct SearchRecord {
  std::string path, corpus;   ///< the text that was searched on, and its xxh64
  int n_ctx = 0, chunks = 0;  ///< its windows
  std::vector<std::string> sides;
  std::vector<SearchPoint> points, uniform;
  std::string why;  ///< why there are no points, or fewer than asked
};

struct DecisionRecord {
  RecordSubject subject;
  int n_ctx = 0, n_sessions = 0;
  GateThresholds thresholds;
  std::vector<CandidateRecord> candidates;
  std::optional<SearchRecord> search;
  std::string choice = "f16";  ///< format to use from `from_depth` tokens on
  int from_depth = 0;
  std::string sentence;  ///< for a person
  std::string date, command;
};

/// 16 hex digits of the cell's key.
std::string row_id(const Row& row);

/// The file's text: indented JSON with the checksum of its canonical form.
std::string record_text(const DecisionRecord& record);
/// Refuses (bad_file) what is no record, of another version, edited or cut; the failure names the field.
Result<DecisionRecord> parse_record(std::string_view text, std::string_view where);
Result<DecisionRecord> read_record(const std::filesystem::path& path);
/// The file appears when it is complete. Throws Error.
void write_record(const DecisionRecord& record, const std::filesystem::path& path);
/// The file of a model's record in a directory.
std::filesystem::path record_path(const std::filesystem::path& directory, const std::string& model_hash);

/// Why a record does not hold for this model, machine and build; empty when it does.
std::string why_not_for(const DecisionRecord& record, const RecordSubject& here);
/// The format for a sequence that may reach n tokens: the record's choice, or f16.
std::string choice_at(const DecisionRecord& record, int n);

enum class PageRows : uint8_t { hidden, shown };
/// A page for people: gates of every candidate with numbers, noise and commands; ids of rows where they are shown.
std::string record_page(const DecisionRecord& record, PageRows rows = PageRows::hidden);

}  // namespace ridge::lab
