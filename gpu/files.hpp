#pragma once
// Reading files whole or mapped, with errors that name the path.
#include "gpu/communicator.hpp"
#include "messages/result.hpp"

#include <memory>
#include <string>

namespace adafloor {

bool file_exists(const std::string& path);

/// Errors: bad_input when the file cannot be read or is larger than `bytes_max`.
result<std::string> read_text_file(const std::string& path, std::uint64_t bytes_max);

/// A file mapped read-only; `bytes` is valid while `owner` lives.
struct mapped_file {
  std::shared_ptr<void> owner;
  bytes_view bytes;
};

/// Errors: bad_input when the file cannot be opened or is no regular file.
result<mapped_file> map_file(const std::string& path);

} // namespace adafloor
