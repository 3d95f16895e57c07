#pragma once
// Two-dimensional float32 arrays in NumPy's file format, version 1.0 (numpy.lib.format).
#include "messages/result.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace adafloor {

struct float_matrix {
  std::size_t rows = 0, columns = 0;
  std::vector<float> values; ///< row-major
};

/// Writes beside the target and renames, so that no half-written file is left. Errors: io.
result<void> write_npy(const std::string& path, const float* values, std::size_t rows,
                       std::size_t columns);

/// Errors: bad_input for anything but a little-endian float32 matrix in C order.
result<float_matrix> read_npy(const std::string& path);

} // namespace adafloor
