#pragma once
// The `adafloor` program as a function, for those who link work of their own into it
// (actors/aux_work.hpp).
namespace adafloor {

/// Runs the command that the arguments name; the exit status is what main returns. The processes of
/// a run are started from the file that runs now.
int run_program(int argc, char** argv);

} // namespace adafloor
