// The network of `ridge top`: both run on threads of their own and end when they are destroyed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "http/client.h"
#include "top/view.h"

namespace ridge::top {

/// Where the server is and how it is asked.
struct Target {
  http::Url url;
  std::string key;
  int interval_ms = 500;

  /// Fails with the reason for any answer but 200.
  Result<std::string> get(std::string_view path, const std::atomic<bool>* stop) const;
  http::Client client(int idle_ms, const std::atomic<bool>* stop) const;
  http::Headers headers() const;
  std::string path(std::string_view of) const;
};

/// One round of questions; `trouble` says what failed, and what was known before stays. `by_page`: pools with the
/// counts of their pages, which cost the server the more the fuller they are.
void poll_once(const Target& target, bool by_page, const std::atomic<bool>* stop, Known& known);

class Poller {
 public:
  explicit Poller(Target target);
  ~Poller();
  Known known() const;
  /// Whether rounds ask for the counts of pages (at first not). The first one that does starts at once.
  void ask_by_page(bool on);
  /// Grows with every round.
  uint64_t changes() const { return changes_; }

 private:
  void work();
  Target target_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Known known_;
  std::atomic<uint64_t> changes_ = 0;
  std::atomic<bool> stop_ = false, by_page_ = false;
  bool at_once_ = false;
  std::thread thread_;
};

/// A conversation: one answer at a time.
class Talk {
 public:
  explicit Talk(Target target) : target_(std::move(target)) {}
  ~Talk() { stop(); }
  /// Asks; ignored while an answer comes. `chat_template` as /props has it.
  void send(const std::string& text, const std::string& chat_template);
  /// Ends the answer that comes, if one does, within a fraction of a second; its text so far stays.
  void stop();
  /// Stops, and forgets the conversation.
  void reset();
  Chat chat() const;
  /// Grows with every change of chat().
  uint64_t changes() const { return changes_; }

 private:
  void answer(std::string path, std::string body);
  Target target_;
  mutable std::mutex mutex_;
  Chat chat_;
  std::atomic<uint64_t> changes_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

/// Target and body of Talk's request. A server whose template is "plain" completes a transcript.
std::pair<std::string, std::string> request_of(const std::vector<Turn>& turns, const std::string& chat_template);

}  // namespace ridge::top
