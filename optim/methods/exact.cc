// Training without sampling.
#include "optim/methods/method.h"

namespace vcas {

namespace {

class Exact final : public Method {
 public:
  PassKind next(std::int64_t) const override { return PassKind::kExact; }
  std::string summary() const override { return "every gradient in full"; }
};

struct ExactKind final : MethodKind {
  std::string summary() const override { return "nothing is sampled"; }
  std::unique_ptr<Method> make(const Training&) const override { return std::make_unique<Exact>(); }
};

VCAS_REGISTER_PART(MethodKind, "exact", ExactKind);

}  // namespace

}  // namespace vcas
