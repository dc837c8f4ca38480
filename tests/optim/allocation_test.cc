// Counts what a training step allocates: nothing, once the first steps are done.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/optim/text_fixture.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/catch.h"

namespace {

std::atomic<bool> counting = false;
std::atomic<int> allocations = 0;

void* counted(std::size_t bytes) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(bytes ? bytes : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

using namespace vcas;

TEST_CASE("a step allocates nothing after the first two", "[trainer][memory]") {
  TrainerOptions options = TrainerFixture::defaults();
  vcas_of(options).act_ratio = {0.3, 0.6};
  vcas_of(options).weight_ratio = {0.5};
  vcas_of(options).selection = GENERATE("systematic", "bernoulli");
  TrainerFixture f(options, 0.1);
  RandomBatches source(options.batch);
  f.trainer->step(source.next());
  f.trainer->step(source.next());
  for (int step = 2; step < 10; ++step) {
    const Batch& batch = source.next();
    counting = true;
    f.trainer->step(batch);
    counting = false;
  }
  CHECK(allocations.exchange(0) == 0);
}

TEST_CASE("nor does a step on text", "[trainer][memory][text]") {
  VcasOptions vcas;
  vcas.act_ratio = {0.3, 0.6};
  vcas.weight_ratio = {0.5};
  for (const std::string head : {"classification", "regression", "mlm", "lm"}) {
    TextTrainer text(head, 3, vcas);
    OneBatch source;
    text.trainer->step(source.next());
    text.trainer->step(source.next());
    counting = true;
    for (int step = 2; step < 10; ++step) text.trainer->step(source.next());
    counting = false;
    INFO(head);
    CHECK(allocations.exchange(0) == 0);
  }
}
