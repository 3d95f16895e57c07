#pragma once
// A file that a fuzzer writes anew for every input, in a folder of its own in memory.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace adafloor::fuzz {

class scratch_file {
public:
  explicit scratch_file(const std::string& name) {
    char folder[] = "/dev/shm/adafloor-fuzz-XXXXXX";
    if (mkdtemp(folder) == nullptr) std::abort();
    folder_ = folder;
    path_ = folder_ + "/" + name;
  }
  ~scratch_file() {
    std::remove(path_.c_str());
    std::remove(folder_.c_str());
  }
  scratch_file(const scratch_file&) = delete;
  scratch_file& operator=(const scratch_file&) = delete;

  void write(const std::uint8_t* data, std::size_t size) const {
    std::FILE* out = std::fopen(path_.c_str(), "wb");
    if (out == nullptr || std::fwrite(data, 1, size, out) != size) std::abort();
    std::fclose(out);
  }
  const std::string& folder() const { return folder_; }
  const std::string& path() const { return path_; }

private:
  std::string folder_, path_;
};

} // namespace adafloor::fuzz
