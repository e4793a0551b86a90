// The pages of `ridge top`, drawn from what is known: no terminal, no network.
#pragma once

#include "top/canvas.h"
#include "top/data.h"

namespace ridge::top {

enum class Page { chat, requests, cache, pools, layers };
inline constexpr int kPages = 5;

/// A line of the transcript.
struct Turn {
  bool user = false;
  std::string text, reasoning;
};
struct Chat {
  std::vector<Turn> turns;
  std::string note;  ///< how the newest answer ended, or how it goes
  bool streams = false;
};

/// Newest answers of the server, and whether it still answers.
struct Known {
  Props props;
  ServerStatus status;
  OpTimes ops;  ///< of the newest passes: those between two polls
  std::vector<Pool> pools;
  std::vector<double> tok_s, prompt_tok_s;  ///< by poll, newest last
  bool connected = false;
  std::string trouble;  ///< why not
};

struct View {
  std::string url;
  Known known;
  Chat chat;
  Page page = Page::requests;
  std::string input;
  bool typing = true;                               ///< focus of the chat: the line of input, else the transcript
  int scroll = 0;                                   ///< lines up from the end (chat), rows down (requests)
  bool shows_error = false, shows_prompts = false;  ///< cache: coding error, else norm; requests: speed of prompts
  int pool = 0, layer = 0;                          ///< chosen ones; drawn within bounds
};

/// Fills the canvas: title, tabs, page, keys. Sizes of 1x2 and above work; 40x10 shows the main figures.
void draw(const View& view, Canvas& canvas);
/// The requests page's body from row `top` to row `bottom` (exclusive).
void draw_requests(const View& view, Canvas& canvas, int top, int bottom);
void draw_cache(const View& view, Canvas& canvas, int top, int bottom);
void draw_pools(const View& view, Canvas& canvas, int top, int bottom);
/// Time of the ops by layer.
void draw_layers(const View& view, Canvas& canvas, int top, int bottom);
void draw_chat(const View& view, Canvas& canvas, int top, int bottom);

}  // namespace ridge::top
