// A device that is lost in mid-run, as GPUs are.
#include <filesystem>
#include <limits>
#include <map>

#include "core/files.h"
#include "optim/checkpoint.h"
#include "tests/core/temporary_folder.h"
#include "tests/optim/trainer_fixture.h"
#include "tests/support/check_error.h"
#include "tests/support/fewer_cases.h"

namespace fs = std::filesystem;
using namespace vcas;

namespace {

// Another device, until it has been called `lost_after` times.
class LosableOps final : public ForwardingOps {
 public:
  explicit LosableOps(const std::string& device) : ForwardingOps(make_ops(device)) {}

  void copy_to_device(void* device, const void* host, std::size_t bytes) override {
    count();
    inner_->copy_to_device(device, host, bytes);
  }
  void copy_to_host(void* host, const void* device, std::size_t bytes) override {
    count();
    inner_->copy_to_host(host, device, bytes);
  }
  std::unique_ptr<Mailbox> make_mailbox(std::size_t bytes) override {
    class LosableMailbox final : public Mailbox {
     public:
      LosableMailbox(LosableOps& ops, std::unique_ptr<Mailbox> inner)
          : ops_(ops), inner_(std::move(inner)) {}
      void send(const void* device, std::size_t bytes) override {
        ops_.count();
        inner_->send(device, bytes);
      }
      bool arrived() override { return inner_->arrived(); }
      const std::byte* receive() override {
        ops_.count();
        return inner_->receive();
      }

     private:
      LosableOps& ops_;
      std::unique_ptr<Mailbox> inner_;
    };
    return std::make_unique<LosableMailbox>(*this, inner_->make_mailbox(bytes));
  }
  void repeat(std::unique_ptr<Recording>& recording, const std::function<void()>& body) override {
    count();
    inner_->repeat(recording, body);
  }
#define VCAS_OP(Args)                   \
  void run(const Args& args) override { \
    count();                            \
    inner_->run(args);                  \
  }
  VCAS_FOR_EACH_OP(VCAS_OP)
#undef VCAS_OP

  std::int64_t calls = 0, lost_after = std::numeric_limits<std::int64_t>::max();

 private:
  void count() {
    if (++calls > lost_after) throw Error(ExitCode::kUnavailable, "the GPU was lost");
  }
};

struct Run {
  explicit Run(const std::string& name)
      : device(new LosableOps(name)),
        f(TrainerFixture::defaults(), 0.1, std::unique_ptr<Ops>(device)) {}
  Run(const std::string& name, const fs::path& checkpoint) : Run(name) {
    f.trainer->restore(load_checkpoint(checkpoint, *f.trainer));
  }

  void save_at(std::int64_t step, const fs::path& folder) {
    f.run(step);
    save_checkpoint(checkpoint_folder(folder, step), *f.trainer, f.trainer->state(), {});
  }

  LosableOps* device;
  TrainerFixture f;
};

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), folder).string()] = read_file(entry.path());
  return files;
}

}  // namespace

TEST_CASE("a device lost in mid-run leaves the last checkpoint, which leads to the same end",
          "[trainer][device][error]") {
  const std::string device = GENERATE("cpu", "emu");
  CAPTURE(device);
  const TemporaryFolder run, next, whole_end, resumed_end;
  const fs::path checkpoint = checkpoint_folder(run.path(), 5);
  Run whole(device);
  whole.save_at(5, run.path());
  whole.save_at(12, whole_end.path());
  const auto saved = files_of(run.path());

  Run resumed(device, checkpoint);
  const std::int64_t before = resumed.device->calls;
  resumed.save_at(9, next.path());
  const std::int64_t calls = resumed.device->calls - before;
  // From the first call of a step to the last of the next save.
  constexpr int kLosses = repetitions(16);
  for (int loss = 0; loss < kLosses; ++loss) {
    Run lost(device, checkpoint);
    lost.device->lost_after = lost.device->calls + loss * (calls - 1) / (kLosses - 1);
    CAPTURE(loss);
    CHECK(error_text([&] { lost.save_at(9, run.path()); }, ExitCode::kUnavailable) ==
          "the GPU was lost");
    CHECK(find_newest_checkpoint(run.path()).step == 5);
    CHECK(files_of(run.path()) == saved);
  }

  Run again(device, checkpoint);
  again.save_at(12, resumed_end.path());
  CHECK(files_of(resumed_end.path()) == files_of(whole_end.path()));
}
