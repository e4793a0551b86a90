#include "cli/spec_flags.h"

namespace ridge::cli {
namespace {

constexpr std::string_view kSpecTypes[] = {"none", "lookup", "draft", "mtp"};

}  // namespace

void SpecFlags::check() const {
  if (std::ranges::find(kSpecTypes, type) == std::end(kSpecTypes))
    bad_flag("--spec-type", fmt::format("expects {}, found '{}'", fmt::join(kSpecTypes, ", "), type));
  if (sampling != "exact" && sampling != "reject")
    bad_flag("--spec-sampling", fmt::format("expects exact, reject, found '{}'", sampling));
  if (type == "draft" && draft_model.empty())
    bad_flag("--spec-type", "draft needs a second model", "add --draft-model MODEL");
  const bool runs_a_model = type == "draft" || type == "mtp";
  const auto refuse = [&](bool given, std::string_view flag, const std::string& what) {
    if (given && !runs_a_model) bad_flag(flag, "only --spec-type draft and mtp have " + what, "add --spec-type draft");
  };
  refuse(!draft_model.empty(), "--draft-model", "a model of their own");
  refuse(sampling == "reject", "--spec-sampling", "probabilities");
  refuse(p_min > 0, "--spec-draft-p-min", "probabilities");
  if (vocab > 0 && type != "mtp")
    bad_flag("--spec-vocab", "only MTP heads propose a part of the vocabulary", "add --spec-type mtp");
  refuse(draft_k.has_value(), "--cache-type-k-draft", "a cache of their own");
  refuse(draft_v.has_value(), "--cache-type-v-draft", "a cache of their own");
  cache();
}

KvChoice SpecFlags::cache() const {
  KvChoice choice = parse_kv_choice(draft_kv).or_throw();
  if (draft_k) choice.k = parse_kv_side(*draft_k).or_throw();
  if (draft_v) choice.v = parse_kv_side(*draft_v).or_throw();
  return choice;
}

void add_spec_flags(CLI::App& app, SpecFlags& flags) {
  in_group(app, "Speculation");
  add_text(app, "--spec-type", flags.type, "TYPE",
           "source of draft tokens: none, lookup, draft, mtp; on a CPU the text stays (see --spec-sampling)")
      ->transform([](const std::string& type) { return type == "draft-mtp" ? std::string("mtp") : type; });
  add_whole(app, "--spec-depth", flags.depth, 1, kMaxSpecDepth,
            "most draft tokens in a forward pass; fewer are used where that is faster (--spec-draft-n-max)");
  add_real(app, "--spec-draft-p-min", flags.p_min, 0, 1,
           "with draft and mtp: stop drafting at a token less probable than this");
  add_whole(app, "--spec-vocab", flags.vocab, 0, INT32_MAX,
            "with mtp: propose only token ids below N (usually the frequent ones); 0: all");
  add_text(app, "--spec-sampling", flags.sampling, "RULE",
           "exact: accept draft tokens equal to the model's own samples; reject: rejection sampling");
  add_text(app, "--draft-model", flags.draft_model, "MODEL",
           "with draft: the smaller model (-md); with mtp: the file of the MTP head");
  add_text(app, "--draft-kv-quant", flags.draft_kv, "KV",
           "cache format of the draft model or MTP head (--kv-quant-draft)");
  add_text(app, "--cache-type-k-draft", flags.draft_k, "FORMAT",
           "K format of the draft cache (-ctkd); overrides --draft-kv-quant");
  add_text(app, "--cache-type-v-draft", flags.draft_v, "FORMAT",
           "V format of the draft cache (-ctvd); overrides --draft-kv-quant");
}

ProposerMaker open_proposers(const SpecFlags& flags, const ModelFlags& of_target, const Model& target,
                             const ProposedTexts& texts) {
  if (!flags.on()) return {};
  const SessionOptions options = session_options(flags.cache(), texts.n_ctx, texts.n_ubatch);
  if (flags.type == "lookup") return {make_lookup_proposer};
  if (flags.type == "mtp")
    return mtp_proposers(target, flags.draft_model, options, {.p_min = flags.p_min, .vocab = flags.vocab},
                         texts.n_texts);
  ModelFlags of_draft = of_target;
  of_draft.model = flags.draft_model;
  of_draft.whole = true;
  of_draft.exact = false;  // no text depends on the bits of draft tokens
  of_draft.n_cpu_moe = 0, of_draft.moe_device_gib = -1, of_draft.moe_cache_gib = 0;  // a draft model is small
  const auto draft = std::make_shared<Model>(load_model(of_draft));
  const ProposerMaker make = draft_proposers(target, *draft, options, flags.p_min, texts.n_texts);
  ProposerMaker with_model = [draft, make] { return make(); };
  with_model.bytes = make.bytes;
  return with_model;
}

std::unique_ptr<Speculation> open_speculation(const SpecFlags& flags, const ProposerMaker& proposers) {
  if (!flags.on()) return nullptr;
  auto speculation = std::make_unique<Speculation>(proposers(), flags.depth);
  if (flags.sampling == "reject") speculation->reject();
  return speculation;
}

}  // namespace ridge::cli
