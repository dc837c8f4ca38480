// The library of NCCL: found or not, real or one that stands for it, and what it says of failures.
#include "kernels/device/nccl.h"

#include <chrono>
#include <latch>
#include <thread>

#include "kernels/buffer.h"
#include "tests/kernels/transports.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

// What `body` throws, which must be an Error of kUnavailable.
std::string refusal(const std::function<void()>& body) {
  const Error error = error_of(body);
  CHECK(error.code() == ExitCode::kUnavailable);
  CHECK_FALSE(error.hint().empty());
  return error.what();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// What each rank is told when all run `body(rank, exchange, slab)`.
std::vector<std::string> refusals(const Transport& transport, int size,
                                  const std::function<void(int, Exchange&, const Tensor&)>& body) {
  std::vector<std::string> told(static_cast<std::size_t>(size));
  on_thread_ranks(size, [&](std::shared_ptr<Ranks> ranks) {
    const int rank = ranks->place().rank;
    const auto ops = transport.make_ops();
    const Buffer buffer(*ops, 16 * sizeof(float) * static_cast<std::size_t>(size));
    try {
      const auto exchange = transport.make_exchange(*ops, *ranks);
      body(rank, *exchange, buffer.at(0, DType::kF32, {16 * size}));
    } catch (const Error& error) {
      if (error.code() == ExitCode::kUnavailable)
        told[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return told;
}

}  // namespace

TEST_CASE("nccl: a library that cannot be used says what was looked for", "[nccl]") {
  const struct {
    const char *library, *version;
    std::vector<std::string> says;
  } cases[] = {
      {"/nowhere/libnccl.so.2", nullptr, {"need NCCL, which cannot be loaded:\n  /nowhere/lib"}},
      {"libm.so.6", nullptr, {"libm.so.6 has no function ncclGetVersion"}},
      {VCAS_FAKE_NCCL, "21703", {VCAS_FAKE_NCCL, "is NCCL 2.17, and 2.18 is the oldest"}},
  };
  for (const auto& [file, number, says] : cases) {
    const EnvironmentVariable library("VCAS_NCCL", file);
    const EnvironmentVariable version("VCAS_FAKE_NCCL_VERSION", number);
    const std::string text = refusal([] { Nccl nccl; });
    INFO(text);
    for (const std::string& part : says) CHECK(contains(text, part));
  }
  const EnvironmentVariable library("VCAS_NCCL", VCAS_FAKE_NCCL);
  const EnvironmentVariable version("VCAS_FAKE_NCCL_VERSION", "21800");
  CHECK_NOTHROW(Nccl());
}

TEST_CASE("nccl: several ranks that lack it end", "[nccl]") {
  const EnvironmentVariable library("VCAS_NCCL", "/nowhere/libnccl.so.2");
  const std::string text = refusal([] {
    on_thread_ranks(2,
                    [](std::shared_ptr<Ranks> ranks) { make_ops("emu")->make_exchange(*ranks); });
  });
  CHECK(contains(text, "/nowhere/libnccl.so.2"));
}

TEST_CASE("nccl: the real library answers where it is installed", "[nccl]") {
  const EnvironmentVariable library("VCAS_NCCL", nullptr);
  std::optional<Nccl> nccl;
  try {
    nccl.emplace();
  } catch (const Error& error) {
    CHECK(contains(error.what(), "libnccl.so.2"));
    WARN("skipped: " << error.what());
    return;
  }
  int version = 0;
  CHECK(nccl->get_version(&version) == 0);
  CHECK(version >= Nccl::kOldest);
  NcclId id{};
  REQUIRE(nccl->make_id(&id) == 0);
  CHECK(contains(nccl->error_text(5), "invalid usage"));
  if (make_ops("auto")->name() == "cuda") return;
  NcclComm* comm = nullptr;
  const int status = nccl->join(&comm, 1, id, 0);
  const std::string text = refusal([&] { nccl->check(status, "the meeting of 1 ranks"); });
  CHECK(text.starts_with("NCCL: the meeting of 1 ranks: "));
}

TEST_CASE("nccl: a call that fails ends its rank with the library's words", "[nccl]") {
  on_transports(emulated_nccl(), [](const Transport& transport) {
    // Sums of parts are two calls for each rank, gathers one.
    for (const int call : {1, 4, 5, 6}) {
      const EnvironmentVariable fails("VCAS_FAKE_NCCL_FAIL", std::to_string(call).c_str());
      CAPTURE(call);
      const auto told = refusals(transport, 2, [](int, Exchange& exchange, const Tensor& x) {
        exchange.begin_sum_parts(x, DType::kF32);
        exchange.begin_gather_parts(x);
        exchange.end();
        exchange.sum(x);
      });
      const std::string what = call <= 4 ? "an exchange of parts" : "a gathering of parts";
      for (const std::string& text : told)
        CHECK(text ==
              "NCCL: " + what + ": system error (call " + std::to_string(call) + " was to fail)");
    }
  });
}

TEST_CASE("nccl: ranks that call different things are told apart, where NCCL would hang",
          "[nccl]") {
  on_transports(emulated_nccl(), [](const Transport& transport) {
    const auto told = refusals(transport, 2, [](int rank, Exchange& exchange, const Tensor& x) {
      rank == 0 ? exchange.begin_sum_parts(x, DType::kF32) : exchange.begin_gather_parts(x);
      exchange.end();
    });
    for (const std::string& text : told)
      CHECK(contains(text, "(rank 0 sends 64 bytes, and rank 1 does not: NCCL would hang)"));
    const auto wires = refusals(transport, 2, [](int rank, Exchange& exchange, const Tensor& x) {
      exchange.begin_sum_parts(x, rank == 0 ? DType::kF32 : DType::kBF16);
      exchange.end();
    });
    for (const std::string& text : wires)
      CHECK(contains(text, "(rank 0 sends 64 bytes, and rank 1 has another number)"));
    const EnvironmentVariable soon("VCAS_FAKE_NCCL_WAIT", "0");
    const auto alone = refusals(transport, 3, [](int rank, Exchange& exchange, const Tensor& x) {
      if (rank != 1) exchange.begin_gather_parts(x);
      exchange.end();
    });
    CHECK(alone[1].empty());
    CHECK(contains(alone[0], "(rank 0 would hang: it waits for rank 1)"));
  });
}

TEST_CASE("nccl: another thread gives up what a rank waits for", "[nccl]") {
  std::vector<Transport> transports = emulated_nccl();
  const auto devices = test_devices();
  if (std::ranges::count(devices, "cuda"))
    for (const Transport& real : real_nccl()) transports.push_back(real);
  on_transports(transports, [](const Transport& transport) {
    if (transport.most_ranks < 2) return;
    std::latch given_up(1);
    const auto told = refusals(transport, 2, [&](int rank, Exchange& exchange, const Tensor& x) {
      if (rank == 1) return given_up.wait();
      std::jthread watchdog([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        exchange.abort();
        given_up.count_down();
      });
      exchange.begin_gather_parts(x);
      exchange.end();
      watchdog.join();
      exchange.sum(x);  // of what is no more
    });
    CHECK(contains(told[0], "NCCL: "));
    CHECK(told[1].empty());
  });
}
