#include "chat/speaker.h"

#include <algorithm>

#include "base/interrupt.h"

namespace ridge::chat {

std::string cache_cost(const ModelInfo& info, const Session& session) {
  const int64_t f16 = 2 * info.cached_values();
  const int64_t own = session.kv_report().bytes_per_token();
  // The first of several ranks may have layers without rows alone.
  return fmt::format("{} bytes/token (f16: {}, ratio {:.2f})", own, f16,
                     double(f16) / double(std::max<int64_t>(1, own)));
}

int drop_oldest_turn(text::Json& messages) {
  const auto is_user = [](const text::Json& message) { return message["role"] == "user"; };
  const auto first = std::find_if(messages.begin(), messages.end(), is_user);
  if (first == messages.end()) return 0;
  const auto next = std::find_if(first + 1, messages.end(), is_user);
  if (next == messages.end()) return 0;
  const int n = int(next - first);
  messages.erase(first, next);
  return n;
}

Speaker::Speaker(const ChatModel& chat, const SpeakerOptions& options)
    : chat_(chat),
      options_(options),
      session_(std::make_unique<Session>(chat.model(), session_options(options.kv, options.n_ctx, options.n_ubatch))) {
  session_->speculate(options.speculation);
  for (const std::string& stop : chat.stops(options.names)) options_.generate.stop.push_back(stop);
}

std::vector<int32_t> Speaker::fit(text::Json& messages, int& n_dropped) {
  const int n_ctx = session_->n_ctx();
  text::Json kept = messages;
  n_dropped = 0;
  // An answer needs some room. Once turns have to go, more of them go than this answer needs: every time the rest is
  // read anew.
  for (int most = n_ctx - n_ctx / 16;; most = n_ctx - n_ctx / 4) {
    const std::string text = chat_.prompt(kept, options_.names);
    std::vector<int32_t> prompt = chat_.tokens(text);
    const int n = int(prompt.size()) > most ? drop_oldest_turn(kept) : 0;
    n_dropped += n;
    if (n > 0) continue;
    if (int(prompt.size()) >= n_ctx)
      throw_error(ErrorKind::usage, "the message makes a prompt of {} tokens, the context holds {} (raise --ctx-size)",
                  prompt.size(), n_ctx);
    messages = std::move(kept);
    form_ = chat_.answer_form(text);
    return prompt;
  }
}

int Speaker::keep_common(std::span<const int32_t> prompt) {
  const size_t same = size_t(std::ranges::mismatch(held_, prompt).in1 - held_.begin());
  const int n = int(std::min(same, prompt.size() - 1));  // the answer needs the last token's logits
  if (n == session_->n_past()) return n;
  try {
    session_->truncate(n);
    held_.resize(size_t(n));
  } catch (const Error&) {  // a centre or scales were set from tokens that would go
    session_->reset();
    held_.clear();
  }
  return int(held_.size());
}

GenerateResult Speaker::say(text::Json& messages, int& n_dropped, AnswerPrinter& printer) {
  const std::vector<int32_t> prompt = fit(messages, n_dropped);
  printer.begin(form_.output);
  const std::unique_ptr<TokenRule> rule = options_.structure ? options_.structure(form_) : nullptr;
  GenerateOptions how = options_.generate;
  how.rule = rule.get();
  how.n_held = keep_common(prompt);
  how.marks = form_.marks;
  how.on_mark = [&](std::string_view mark) { return printer.feed_mark(mark); };
  how.read = [&](std::span<const int32_t> tokens) { return read_tokens(*session_, chat_.model(), tokens, reading()); };
  how.interrupted = interrupted;
  held_ = prompt;
  GenerateResult result;
  try {
    const auto take = [&](std::string_view text) { return printer.feed(text); };
    result = generate(*session_, chat_.model(), prompt, how, take);
  } catch (const Error&) {  // who knows how far it came
    session_->reset();
    held_.clear();
    throw;
  }
  held_.insert(held_.end(), result.tokens.begin(), result.tokens.end());
  held_.resize(size_t(session_->n_past()));
  options_.generate.sampler.n_sampled += result.tokens.size();
  return result;
}

std::string Speaker::cache_cost() const { return chat::cache_cost(chat_.model().info(), *session_); }

void Speaker::change_cache(const KvChoice& kv) {
  auto next = std::make_unique<Session>(chat_.model(), session_options(kv, options_.n_ctx, options_.n_ubatch));
  next->speculate(options_.speculation);
  const int n = read_tokens(*next, chat_.model(), held_, reading());
  session_ = std::move(next);
  held_.resize(size_t(n));
  options_.kv = kv;
}

}  // namespace ridge::chat
