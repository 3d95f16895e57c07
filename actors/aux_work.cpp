#include "actors/aux_work.hpp"

#include <map>
#include <stdexcept>

namespace adafloor {
namespace {

std::map<std::string, aux_work_maker>& registered() {
  static std::map<std::string, aux_work_maker> all;
  return all;
}

} // namespace

void register_aux_work(const std::string& name, aux_work_maker maker) {
  if (name.empty() || !registered().emplace(name, std::move(maker)).second)
    throw std::invalid_argument("auxiliary work \"" + name + "\": needs a name of its own");
}

const aux_work_maker* find_aux_work(const std::string& name) {
  const auto found = registered().find(name);
  return found == registered().end() ? nullptr : &found->second;
}

std::vector<std::string> aux_work_names() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : registered())
    names.push_back(name);
  return names;
}

} // namespace adafloor
