#include "tools/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/log.h"
#include "core/mpi/mpi_ranks.h"
#include "core/nearest_name.h"
#include "kernels/cpu/gemm.h"
#include "tools/arguments.h"
#include "tools/launch.h"
#include "tools/output.h"
#include "tools/setting_arguments.h"
#include "tools/version.h"

namespace vcas {
namespace {

// The ranks that this process was started with.
std::shared_ptr<Ranks> ranks = one_rank();

struct Program {
  CLI::App app{"Training with variance-controlled adaptive sampling", "vcas"};
  std::vector<std::unique_ptr<Arguments>> commands;

  Program() {
    app.set_version_flag("-V,--version", version_line);
    app.require_subcommand(1);
    commands = add_commands(app);
    app.fallthrough(false);
    for (const auto& arguments : commands) arguments->command.allow_extras();
  }

  void check_extras() const {
    for (const CLI::App* command : app.get_subcommands()) {
      const std::vector<std::string> extras = command->remaining();
      if (extras.empty()) continue;
      const std::string& extra = extras.front();
      const std::string nearest =
          extra.starts_with("-") ? nearest_option(*command, extra.substr(0, extra.find('='))) : "";
      fail_usage(fmt::format("unknown argument {} of vcas {}", extra, command->get_name()),
                 nearest.empty() ? fmt::format("vcas {} --help lists them", command->get_name())
                                 : fmt::format("did you mean {}?", nearest));
    }
  }

  [[noreturn]] void fail_unknown_command(const std::string& command) const {
    std::vector<std::string> names;
    for (const CLI::App* known : app.get_subcommands({})) names.push_back(known->get_name());
    fail_usage(
        fmt::format("there is no command \"{}\"", command),
        did_you_mean(command, names, fmt::format("the commands are: {}", fmt::join(names, ", "))));
  }

  void run() {
    check_extras();
    for (const auto& arguments : commands) {
      if (!arguments->command) continue;
      arguments->ranks = ranks;
      if (ranks->size() > 1 && arguments->command.get_name() != "train")
        fail_usage(fmt::format("vcas {} runs in one process, and there are {}",
                               arguments->command.get_name(), ranks->size()),
                   "start it without mpirun");
      arguments->run();
    }
  }
};

// "--print_config" means "--print-config", and that alone "--print-config=plain": the setting after
// it is none of its modes.
std::string normalized(std::string argument) {
  if (argument.starts_with("--"))
    std::replace(argument.begin(), argument.begin() + std::min(argument.find('='), argument.size()),
                 '_', '-');
  return argument == "--print-config" ? argument + "=plain" : argument;
}

// What follows "--" is a file, whatever it begins with.
std::string as_file(const std::string& argument) {
  return argument.starts_with("-") ? "./" + argument : argument;
}

// Files must not get the number of a closed standard output: messages would go into them.
// A reader that goes away ends no training, so writes fail instead of SIGPIPE.
// They also fail instead of SIGXFSZ, where a file may not grow (ulimit -f).
void prepare_outputs() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(number, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_IGN);
}

// OpenBLAS has chosen its kernel before main. Where the CPU has a better one, and nobody has set
// any, the program starts once more with it. If that fails, it goes on.
void use_best_products(char** argv) {
  const auto* program = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  if (!program || std::getenv("OPENBLAS_CORETYPE")) return;
  const std::string kernel = gemm_library().better;
  if (!kernel.empty() && ::setenv("OPENBLAS_CORETYPE", kernel.c_str(), 0) == 0)
    ::execv(program, argv);
}

int run_command(std::vector<std::string> arguments) {
  ranks = ranks_of_environment();
  choose_gpu(*ranks);
  Program program;
  const std::string first = arguments.empty() ? "" : arguments.front();
  for (const CLI::App* command : program.app.get_subcommands({}))
    if (command->get_name() == first) arguments = with_settings_as_set(*command, arguments);
  std::erase(arguments, "--");  // CLI11 understands it before the first file only
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants it
  try {
    program.app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // help, version
      if (ranks->is_first()) program.app.exit(error);
      write_output({});
      return 0;
    }
    if (first.starts_with("-"))
      fail_usage(fmt::format("\"{}\" is not expected here", first),
                 did_you_mean(first, {"--help", "--version"},
                              "options stand behind a command; vcas --help lists the commands"));
    if (program.app.get_subcommands().empty() && !first.empty())
      program.fail_unknown_command(first);
    const std::vector<CLI::App*> asked = program.app.get_subcommands();
    fail_usage(error.what(), asked.empty() ? "vcas --help lists the commands"
                                           : fmt::format("vcas {} --help lists its options",
                                                         asked.front()->get_name()));
  }
  if (log_level() == LogLevel::kDebug) log_line(LogLevel::kDebug, "debug: " + version_line());
  program.run();
  write_output({});
  return 0;
}

int report(const Error& error) {
  // Errors of the configuration come with their places and the word itself.
  const std::string text = error.what();
  const bool bare =
      error.code() == ExitCode::kStopped ||
      (error.code() == ExitCode::kBadConfig && text.find("nothing was run") != std::string::npos);
  // What befalls all ranks is said once: rank 0 ends the others before they speak.
  if (!ranks->is_first()) std::this_thread::sleep_for(std::chrono::seconds(2));
  write_stderr(fmt::format("{}{}{}\n", bare ? "" : "error: ", speaker(*ranks), text));
  if (!error.hint().empty()) write_stderr(fmt::format("  hint: {}\n", error.hint()));
  if (ranks->size() > 1) {
    std::fflush(stdout);
    ranks->abort(error.code());
  }
  // Without memory OpenBLAS would try for ever to get some at its exit.
  if (error.code() == ExitCode::kOutOfMemory) {
    std::fflush(stdout);
    std::_Exit(static_cast<int>(error.code()));
  }
  return static_cast<int>(error.code());
}

}  // namespace

int run_program(int argc, char** argv) {
  prepare_outputs();
  std::vector<std::string> arguments;
  if (std::filesystem::path(argv[0]).filename() == "vcas-train") arguments.emplace_back("train");
  for (int i = 1; i < argc; ++i) {
    const bool ended = std::find(arguments.begin(), arguments.end(), "--") != arguments.end();
    arguments.push_back(ended ? as_file(argv[i]) : normalized(argv[i]));
  }
  try {
    use_best_products(argv);
    return run_command(std::move(arguments));
  } catch (const Error& error) {
    return report(error);
  } catch (const std::bad_alloc&) {
    return report(Error(ExitCode::kOutOfMemory, "out of memory",
                        "a smaller train.micro_batch needs less and keeps exact gradients, unless "
                        "there are BatchNorms or dropout"));
  } catch (const std::filesystem::filesystem_error& error) {
    const bool failed = error.code() == std::errc::io_error ||
                        error.code() == std::errc::no_space_on_device ||
                        error.code() == std::errc::read_only_file_system;
    return report(Error(failed ? ExitCode::kIoError : ExitCode::kNoInput,
                        fmt::format("{}: {}", error.path1().string(), error.code().message())));
  } catch (const std::ios_base::failure& error) {
    return report(
        Error(ExitCode::kIoError, fmt::format("cannot read: {}", error.code().message())));
  } catch (const std::system_error& error) {  // from std::thread
    return report(Error(ExitCode::kOutOfMemory,
                        fmt::format("no thread can be started: {}", error.code().message()),
                        "raise the limits of processes and memory (ulimit -u, ulimit -v), or "
                        "lower that of stacks (ulimit -s)"));
  } catch (const std::exception& error) {
    return report(InternalError(error.what()));
  }
}

}  // namespace vcas
