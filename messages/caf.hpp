#pragma once
// Teaches CAF the one type that its actors exchange. Include only from actors/ and tests/.
#include "messages/catalog.hpp"

#include <caf/all.hpp>

CAF_BEGIN_TYPE_ID_BLOCK(adafloor, caf::first_custom_type_id)
  CAF_ADD_TYPE_ID(adafloor, (adafloor::envelope))
  CAF_ADD_ATOM(adafloor, adafloor::atom, tick, "tick")
CAF_END_TYPE_ID_BLOCK(adafloor)

// Envelopes cross process borders through messages/codec and the UCX link, never through CAF.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(adafloor::envelope)
