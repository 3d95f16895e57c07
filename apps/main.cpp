#include "apps/program.hpp"

int main(int argc, char** argv) {
  return adafloor::run_program(argc, argv);
}
