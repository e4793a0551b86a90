#include "cli/program.h"

int main(int argc, char** argv) { return ridge::cli::run_program({argv, argv + argc}); }
