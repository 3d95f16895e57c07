#pragma once
// Requests run to their end by engines that are threads of this process.
#include "gpu/engine.hpp"

#include <memory>
#include <vector>

namespace adafloor {

/// One engine per fabric, a thread each; request i goes to rank i % ranks. `options.self` and
/// `options.world_size` are set here. Returns the outputs in the order of `requests`. Errors: the
/// first of any rank, those of `load` and `add_request` before anything is computed.
result<std::vector<request_output>>
run_locally(const std::string& model_dir, engine_options options,
            std::vector<std::unique_ptr<collective_fabric>>& fabrics,
            std::vector<request_spec> requests);

} // namespace adafloor
