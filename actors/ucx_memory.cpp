#include "actors/ucx_options.hpp"

#include <ucp/api/ucp.h>

namespace adafloor {

result<std::vector<std::string>> ucx_memory_kinds() {
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM;
  ucp_context_h context = nullptr;
  auto status = ucp_init(&params, nullptr, &context);
  ucp_context_attr_t found{};
  found.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  if (status == UCS_OK) {
    status = ucp_context_query(context, &found);
    ucp_cleanup(context);
  }
  if (status != UCS_OK)
    return fail(error_code::io, std::string("UCX: ") + ucs_status_string(status)
                                    + "; check the UCX_* variables of the environment");
  std::vector<std::string> kinds;
  for (int type = 0; type < UCS_MEMORY_TYPE_LAST; ++type)
    if ((found.memory_types >> type & 1U) != 0) kinds.emplace_back(ucs_memory_type_names[type]);
  return kinds;
}

} // namespace adafloor
