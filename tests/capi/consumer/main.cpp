// Prints eight tokens of a story. Usage: in_cxx MODEL
#include <ridge/engine.h>

#include <iostream>
#include <string_view>

int main(int argc, char** argv) {
  if (argc < 2) return 1;
  const ridge::Model model = ridge::Model::load(argv[1]);
  ridge::Session session(model, {});
  ridge::generate(session, model, model.tokenize("Once upon a time"), {.max_tokens = 8, .sampler = {.temperature = 0}},
                  [](std::string_view text) {
                    std::cout << text;
                    return true;
                  });
}
