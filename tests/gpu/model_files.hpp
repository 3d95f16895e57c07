#pragma once
// Model folders that tests write and damage.
#include "gpu/files.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

namespace adafloor::tests {

/// A folder of its own that is gone at scope end.
class scratch_folder {
public:
  scratch_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "adafloor-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  void copy_from(const std::string& model) const {
    std::filesystem::copy(model, path_, std::filesystem::copy_options::recursive);
  }

private:
  std::string path_;
};

inline std::string read_all(const std::string& path) {
  auto text = read_text_file(path, 1U << 30);
  BOOST_REQUIRE_MESSAGE(text, text.error().text);
  return std::move(*text);
}

inline void write_all(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

/// Changes a JSON file.
inline void edit_json(const std::string& path, const std::function<void(nlohmann::json&)>& edit) {
  auto object = nlohmann::json::parse(read_all(path));
  edit(object);
  write_all(path, object.dump());
}

/// Changes the header of a safetensors file; data stays as it is.
inline void edit_header(const std::string& path, const std::function<void(nlohmann::json&)>& edit) {
  auto text = read_all(path);
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  auto header = nlohmann::json::parse(text.substr(8, length));
  auto data = text.substr(8 + length);
  edit(header);
  auto changed = header.dump();
  length = changed.size();
  std::string prefix(8, '\0');
  std::memcpy(prefix.data(), &length, 8);
  write_all(path, prefix + changed + data);
}

} // namespace adafloor::tests
