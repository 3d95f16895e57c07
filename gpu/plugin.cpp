#include "gpu/plugin.hpp"

#include "gpu/plugin_abi.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>

namespace adafloor {

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> plugin_folders() {
  if (const char* folder = std::getenv("ADAFLOOR_PLUGINS")) return {folder}; // NOLINT(concurrency*)
  std::error_code ignored;
  const auto program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  return {program, program.parent_path() / "lib" / "adafloor"};
}

/// A loaded plug-in; stays loaded to the end of the process.
result<void*> load_plugin(const std::string& name) {
  std::string looked;
  for (const auto& folder : plugin_folders()) {
    const auto path = (folder / name).string();
    looked += (looked.empty() ? "" : ", ") + folder.string();
    if (!fs::exists(path)) continue;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      return fail(error_code::io, path + ": does not load: " + dlerror()); // NOLINT(concurrency*)
    const auto abi = reinterpret_cast<std::uint64_t (*)()>(dlsym(library, "adafloor_plugin_abi"));
    if (abi == nullptr || abi() != plugin_abi())
      return bad_input(path
                       + ": was built from another version; build program and plug-in together");
    return library;
  }
  return fail(error_code::io, name + ": not found in " + looked
                                  + "; build where nvcc is found, or set ADAFLOOR_PLUGINS to the "
                                    "folder that holds it");
}

const result<void*>& cuda_plugin() {
  static const auto library = load_plugin("libadafloor_cuda.so");
  return library;
}
const result<void*>& nccl_plugin() {
  static const auto library = load_plugin("libadafloor_nccl.so");
  return library;
}

template <class F>
F* entry(void* library, const char* name) {
  return reinterpret_cast<F*>(dlsym(library, name));
}

using answer_text = std::array<char, 4096>;

} // namespace

result<cuda_findings> find_cuda() {
  const auto& library = cuda_plugin();
  if (!library) return tl::unexpected(library.error());
  answer_text text{};
  const auto count = entry<decltype(adafloor_cuda_devices)>(*library, "adafloor_cuda_devices")(
      text.data(), text.size());
  return cuda_findings{static_cast<std::uint32_t>(count), text.data()};
}

result<std::unique_ptr<launcher>> open_cuda(std::uint32_t ordinal) {
  auto found = find_cuda();
  if (!found) return tl::unexpected(found.error());
  if (ordinal >= found->devices)
    return fail(error_code::refused, "CUDA device " + std::to_string(ordinal) + ": there are "
                                         + std::to_string(found->devices) + " (" + found->text
                                         + ")");
  answer_text text{};
  auto* opened = entry<decltype(adafloor_cuda_open)>(*cuda_plugin(), "adafloor_cuda_open")(
      static_cast<int>(ordinal), text.data(), text.size());
  if (opened == nullptr) return fail(error_code::refused, text.data());
  return std::unique_ptr<launcher>(opened);
}

result<std::unique_ptr<device>> make_cuda_device(rank_id rank) {
  auto found = find_cuda();
  if (!found) return tl::unexpected(found.error());
  if (found->devices == 0)
    return fail(error_code::refused, "CUDA: no device for rank " + std::to_string(rank.value) + ": "
                                         + found->text + "; use --device cpu");
  auto opened = open_cuda(rank.value % found->devices);
  if (!opened) return tl::unexpected(opened.error());
  return make_launcher_device(std::move(*opened));
}

result<nccl_findings> find_nccl() {
  const auto& library = nccl_plugin();
  if (!library) return tl::unexpected(library.error());
  nccl_findings found;
  answer_text text{};
  entry<decltype(adafloor_nccl_version)>(*library, "adafloor_nccl_version")(text.data(),
                                                                            text.size());
  found.version = text.data();
  text = {};
  const auto devices = entry<decltype(adafloor_nccl_devices)>(*library, "adafloor_nccl_devices");
  found.devices = static_cast<std::uint32_t>(devices(text.data(), text.size()));
  found.text = text.data();
  return found;
}

result<std::vector<std::byte>> make_nccl_world_id() {
  const auto& library = nccl_plugin();
  if (!library) return tl::unexpected(library.error());
  std::vector<std::byte> id(256);
  answer_text text{};
  const auto size = entry<decltype(adafloor_nccl_world_id)>(*library, "adafloor_nccl_world_id")(
      id.data(), id.size(), text.data(), text.size());
  if (size == 0) return fail(error_code::internal, text.data());
  id.resize(size);
  return id;
}

result<std::unique_ptr<collective_fabric>> join_nccl_world(const nccl_world& world) {
  const auto& library = nccl_plugin();
  if (!library) return tl::unexpected(library.error());
  error why;
  auto* joined = entry<decltype(adafloor_nccl_join)>(*library, "adafloor_nccl_join")(world, &why);
  if (joined == nullptr) return tl::unexpected(why);
  return std::unique_ptr<collective_fabric>(joined);
}

} // namespace adafloor
