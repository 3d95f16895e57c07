// libFuzzer: a weights file of unknown origin. What a header says must lie in the file: every byte
// of every tensor is read.
#include "gpu/safetensors.hpp"
#include "tests/fuzz/scratch_file.hpp"

using namespace adafloor;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::scratch_file file("model.safetensors");
  file.write(data, size);
  if (const auto weights = checkpoint::open(file.folder()))
    for (const auto& [name, tensor] : weights->tensors()) {
      digest_of(tensor);
      (void)weights->read(name, tensor.shape);
    }
  return 0;
}
