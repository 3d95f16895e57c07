#pragma once
// Reading weights in the safetensors format (github.com/huggingface/safetensors, "Format"), from
// one file or from shards with an index. Files are mapped, not copied; every length that a file
// states is checked before it is used.
#include "gpu/communicator.hpp"
#include "messages/result.hpp"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace adafloor {

/// A tensor inside a mapped file; valid while its checkpoint lives.
struct tensor_view {
  std::string file;                 ///< path, for messages
  std::string type;                 ///< as written: "F32", "BF16", ...
  std::vector<std::uint64_t> shape; ///< row-major
  bytes_view bytes;
};

/// "[64, 48]".
std::string shape_text(const std::vector<std::uint64_t>& shape);

/// Digest over type, shape and stored bytes.
std::uint64_t digest_of(const tensor_view& tensor);

/// All tensors of a model folder.
class checkpoint {
public:
  /// Opens `dir`/model.safetensors, or the shards of `dir`/model.safetensors.index.json. Errors:
  /// bad_input naming file and tensor.
  static result<checkpoint> open(const std::string& dir);

  const std::map<std::string, tensor_view>& tensors() const { return tensors_; }
  const std::string& dir() const { return dir_; }

  /// The tensor widened to float32. Errors: bad_input when it is missing, has another shape, or is
  /// neither F32 nor BF16.
  result<std::vector<float>> read(const std::string& name,
                                  const std::vector<std::uint64_t>& shape) const;
  /// The tensor as it is stored. Errors: bad_input when it is missing, has another shape, or is not
  /// BF16.
  result<std::vector<std::uint16_t>> read_half(const std::string& name,
                                               const std::vector<std::uint64_t>& shape) const;
  /// The tensor was read and is not wanted soon: its part of the mapping gives up its memory.
  void release(const std::string& name) const;
  /// As `read` without reading: is the tensor there, with this shape and a type that we know?
  result<const tensor_view*> find(const std::string& name,
                                  const std::vector<std::uint64_t>& shape) const;

private:
  std::string dir_;
  std::map<std::string, tensor_view> tensors_;
  std::vector<std::shared_ptr<void>> mappings_;
};

} // namespace adafloor
