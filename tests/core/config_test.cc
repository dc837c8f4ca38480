#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/core/config_fixture.h"
#include "tests/core/temporary_folder.h"

using namespace vcas;

TEST_CASE("a config sets every type of value and keeps the other defaults", "[config]") {
  RunConfig config;
  read_config(config, document(R"({
    "$schema": "vcas.schema.json",  // for editors
    "train": {"learning_rate": 2, "epochs": 2147483647, "max_steps": -1, /* all */
              "seed": 18446744073709551615, "shuffle": false, "sizes": [1, 100],
              "weights": [0.5, 1e-7, 3], "clip_norm": null, "note": "a",
              "data": {"path": "/tmp/é", "columns": []}}})"));
  CHECK(config.train.learning_rate == 2.0);
  CHECK(config.train.epochs == 2147483647);
  CHECK(config.train.max_steps == -1);
  CHECK(config.train.seed == 18446744073709551615u);
  CHECK_FALSE(config.train.shuffle);
  CHECK(config.train.dropout == 0.1);
  CHECK(config.train.sizes == std::vector<int>{1, 100});
  CHECK(config.train.weights == std::vector<double>{0.5, 1e-7, 3});
  CHECK_FALSE(config.train.clip_norm.has_value());
  CHECK(config.train.note == "a");
  CHECK(config.train.data.path == "/tmp/é");
  CHECK(config.train.data.columns.empty());
  CHECK(config.model.heads == 12);
}

TEST_CASE("all errors of a config are reported at once, in the order of the file", "[config]") {
  CHECK(error_of(document(R"({
  "device": "cpu",
  "model": {
    "type": "bret"
  },
  "train": {
    "learing_rate": 2e-5,
    "epochs": 0
  }
})")) == R"(run.json:4:13: error: model.type "bret" is not one of: bert, vit, resnet, mlp
  did you mean "bert"?
run.json:7:5: error: unknown key "learing_rate" in "train"
    7 |     "learing_rate": 2e-5,
      |     ^~~~~~~~~~~~~~
  did you mean "learning_rate"?
run.json:8:15: error: train.epochs must be at least 1, got 0
3 errors; nothing was run)");
}

// To place each of 50,000 errors in one line would take minutes.
TEST_CASE("twenty errors are shown, and the others are counted", "[config]") {
  const auto last_line = [](int unknown) {
    std::string text = "{\"model\": {\"heads\": 7}";
    for (int i = 0; i < unknown; ++i) text += fmt::format(", \"a{}\": 1, \"a{}\": 1", i, i);
    text = error_of(document(text + "}"));
    std::size_t shown = 0;
    for (std::size_t at = 0; (at = text.find("error: ", at)) != std::string::npos; ++at) ++shown;
    CHECK(shown <= 20);
    return text.substr(text.rfind('\n') + 1);
  };
  CHECK(last_line(9) == "19 errors; nothing was run");
  CHECK(last_line(10) == "20 errors and 1 more; nothing was run");
  CHECK(last_line(25000) == "20 errors and 49981 more; nothing was run");
}

TEST_CASE("unknown keys", "[config]") {
  CHECK(error_of(document(R"({"trian": {"epochs": 1}})")) ==
        "run.json:1:2: error: unknown key \"trian\"\n"
        "    1 | {\"trian\": {\"epochs\": 1}}\n"
        "      |  ^~~~~~~\n"
        "  did you mean \"train\"?\n" +
            kOneError);
  SECTION("nothing is near") {
    CHECK_THAT(error_of(document(R"({"zzzzzz": 1})")), !ContainsSubstring("did you mean"));
  }
  SECTION("the key belongs to another section") {
    CHECK_THAT(error_of(document(R"({"learning_rate": 1})")),
               ContainsSubstring("did you mean \"train.learning_rate\"?"));
  }
  SECTION("the key belongs to no section") {
    const std::string hint = "\n  \"device\" stands in no section\n";
    CHECK_THAT(error_of(document(R"({"train": {"device": "cpu"}})")), ContainsSubstring(hint));
    CHECK_THAT(error_of(set({"train.device=cpu"})),
               ContainsSubstring("unknown key \"device\" in \"train\"" + hint));
    CHECK_THAT(error_of(document(R"({"": 1})")), !ContainsSubstring("stands in"));
  }
  SECTION("$schema is free at the top only") {
    CHECK_THAT(error_of(document(R"({"train": {"$schema": "x"}})")),
               ContainsSubstring("unknown key \"$schema\" in \"train\""));
    CHECK(error_of(document(R"({"$schema": 1})")) ==
          "run.json:1:13: error: $schema must be a string, got 1\n" + kOneError);
  }
}

namespace {

struct MovedSetting {
  struct Old {
    void fields(Setting&) {}
  };
  int size = 1;
  Old old;

  void fields(Setting& v) {
    v.field("size", size, "Size.", at_least(1));
    v.formerly("old.extent");
    v.section("old", old, "What it was part of.");
  }
};

}  // namespace

TEST_CASE("a setting is read by its former key too, but not by both", "[config]") {
  MovedSetting config;
  const ConfigOrigins origins =
      read_config(config, {.documents = {{"a.json", R"({"old": {"extent": 3}})"}}});
  CHECK(config.size == 3);
  CHECK(origins.where("size") == "a.json:1:20");
  CHECK(to_json(config).dump() == R"({"size":3,"old":{}})");
  read_config(config, {.documents = {{"a.json", R"({"size": 4})"}}, .overrides = {"old.extent=5"}});
  CHECK(config.size == 5);
  for (const char* text :
       {R"({"size": 2, "old": {"extent": 3}})", R"({"old": {"extent": 3}, "size": 2})"}) {
    CAPTURE(text);
    const ConfigSources both{.documents = {{"a.json", text}}};
    CHECK_THAT(error_text([&] { read_config(config, both); }, ExitCode::kBadConfig),
               ContainsSubstring("sets size, which a.json:1:"));
  }
}

TEST_CASE("duplicate keys", "[config]") {
  CHECK(error_of(document("{\"train\": {\n  \"epochs\": 1,\n  \"epochs\": 2}}")) ==
        "run.json:3:3: error: duplicate key \"epochs\" in \"train\"\n"
        "    3 |   \"epochs\": 2}}\n"
        "      |   ^~~~~~~~\n"
        "  it is already set in line 2\n" +
            kOneError);
  CHECK_THAT(error_of(document(R"({"$schema": "a", "$schema": "b"})")),
             ContainsSubstring("duplicate key \"$schema\"\n"));
  CHECK_THAT(error_of(document(R"({"x1y2": 1, "x1y2": 2})")),
             ContainsSubstring("duplicate key") && ContainsSubstring("2 errors"));
}

TEST_CASE("values of the wrong type or size", "[config]") {
  const auto check = [](const std::string& member, const std::string& want) {
    CAPTURE(member);
    const std::string got = error_of(document("{\"train\": {" + member + "}}"));
    CHECK_THAT(got, ContainsSubstring(": error: " + want + "\n"));
    CHECK_THAT(got, ContainsSubstring("\n1 error; nothing was run"));
  };
  check(R"("epochs": "three")", R"(train.epochs must be an integer, got "three")");
  check(R"("epochs": 2.5)", "train.epochs must be an integer, got 2.5");
  check(R"("epochs": 2.0)", "train.epochs must be an integer, got 2.0\n  did you mean \"2\"?");
  check(R"("epochs": 1e3)", "train.epochs must be an integer, got 1e3\n  did you mean \"1000\"?");
  check(R"("epochs": null)", "train.epochs must be an integer, got null");
  check(R"("epochs": true)", "train.epochs must be an integer, got true");
  check(R"("epochs": [1])", "train.epochs must be an integer, got a list");
  check(R"("epochs": {})", "train.epochs must be an integer, got an object");
  check(R"("epochs": 2147483648)", "train.epochs must be at most 2147483647, got 2147483648");
  check(R"("max_steps": 9223372036854775808)",
        "train.max_steps must be at most 9223372036854775807, got 9223372036854775808");
  check(R"("max_steps": -99999999999999999999)",
        "train.max_steps must be at least -9223372036854775808, got -99999999999999999999");
  check(R"("seed": -1)", "train.seed must be at least 0, got -1");
  check(R"("seed": 18446744073709551616)",
        "train.seed must be at most 18446744073709551615, got 18446744073709551616");
  check(R"("shuffle": 1)", "train.shuffle must be true or false, got 1");
  check(R"("learning_rate": "1")", R"(train.learning_rate must be a number, got "1")");
  check(R"("learning_rate": 0)", "train.learning_rate must be above 0, got 0");
  check(R"("dropout": 1.0)", "train.dropout must be below 1, got 1.0");
  check(R"("dropout": -0.5)", "train.dropout must be at least 0, got -0.5");
  check(R"("sizes": 3)", "train.sizes must be a list of integers, got 3");
  check(R"("sizes": [1, 101])", "train.sizes[1] must be at most 100, got 101");
  check(R"("sizes": [1, "a"])", R"(train.sizes[1] must be an integer, got "a")");
  check(R"("weights": [[]])", "train.weights[0] must be a number, got a list");
  check(R"("clip_norm": "x")", R"(train.clip_norm must be a number or null, got "x")");
  check(R"("clip_norm": -1)", "train.clip_norm must be above 0, got -1");
  check(R"("data": 3)", "train.data must be an object, got 3");
  check(R"("data": {"path": 3})", "train.data.path must be a string, got 3");
  check(R"("data": {"columns": ["a", 1]})", "train.data.columns[1] must be a string, got 1");
  check(R"("note": "a\u0000b")", R"(train.note must have no \u0000, got "a\u0000b")");
  check(R"("data": {"columns": ["\u0000"]})",
        R"(train.data.columns[0] must have no \u0000, got "\u0000")");
  check(R"("no\u0000te": 1)", "unknown key \"no te\" in \"train\"");
  check(R"("learning_rate": 1e400)",
        "1e400 is too large for a number\n    1 | {\"train\": "
        "{\"learning_rate\": 1e400}}\n      |                         "
        "    ^");
}

TEST_CASE("a document that is no object", "[config]") {
  CHECK(error_of(document("[1]")) ==
        "run.json:1:1: error: the configuration must be an object, got a list\n" + kOneError);
}

TEST_CASE("syntax errors point at the offending token", "[config]") {
  CHECK(error_of(document("{\n  \"device\": \"cpu\",\n}\n")) ==
        "run.json:3:1: error: no comma may stand before the closing '}'\n"
        "    3 | }\n"
        "      | ^\n" +
            kOneError);
  CHECK(error_of(document("{\"device\" \"cpu\"}")) ==
        "run.json:1:11: error: syntax error while parsing object separator - "
        "unexpected string literal; expected ':'\n"
        "    1 | {\"device\" \"cpu\"}\n"
        "      |           ^\n" +
            kOneError);
  const auto place = [](const std::string& text) {
    const std::string error = error_of(document(text));
    return error.substr(0, error.find(": error"));
  };
  CHECK(place("") == "run.json:1:1");
  CHECK(place("{\n") == "run.json:2:1");
  CHECK(place("{\"device\":,}") == "run.json:1:11");
  CHECK(place("{\"device\": tru}") == "run.json:1:12");
  CHECK(place("{\"train\": {\"epochs\": 1 2}}") == "run.json:1:24");
  CHECK(place("{\"device\": 'a'}") == "run.json:1:12");
  CHECK(place("{}\n\n x") == "run.json:3:2");
  CHECK(place("{ /* never closed") == "run.json:1:3");
  CHECK(place("{\"device\": \"a\nb\"}") == "run.json:1:12");
  CHECK(place("{\"device\": \"\xFF\"}") == "run.json:1:12");

  SECTION("what stands before a syntax error is read too") {
    CHECK_THAT(error_of(document("{\"devise\": 1, \"model\": {\"heads\": 7, \"width\": }}")),
               ContainsSubstring("did you mean \"device\"") && ContainsSubstring("2 errors"));
  }
  SECTION("a NUL is not the end") {
    CHECK(error_of(document("{\"device\": \"cpu\"}\n" + std::string(1, '\0') + " x")) ==
          "run.json:2:1: error: a NUL byte; JSON is text in UTF-8\n"
          "    2 |   x\n"
          "      | ^\n" +
              kOneError);
  }
  SECTION("a long line is shown around the place") {
    const std::string x(1000, 'x');
    CHECK_THAT(
        error_of(document("{\"x-a\": \"" + x + "\", \"devise\": 1, \"x-b\": \"" + x + "\"}")),
        ContainsSubstring("    1 | ..." + x.substr(0, 57) + "\", \"devise\": 1, \"x-b\": \"" +
                          x.substr(0, 39) + "...\n      | " + std::string(63, ' ') + "^~~~~~~~\n"));
  }
  SECTION("nesting has a limit") {
    CHECK_THAT(error_of(document("{\"device\": " + std::string(100000, '['))),
               ContainsSubstring("more than 64 levels of nesting"));
  }
}

TEST_CASE("places count lines and code points", "[config]") {
  const auto where = [](const std::string& text, const std::string& key) {
    RunConfig config;
    return read_config(config, document(text)).where(key);
  };
  CHECK(where("{\"device\": \"cpu\"}", "device") == "run.json:1:12");
  CHECK(where("{\r\n\t\"device\"\r\n\t\t:\r\n\t\t\"cpu\"\r\n}\r\n", "device") == "run.json:4:3");
  CHECK(where("{\"train\":{\"note\": \"h\u00e4\u20ac\U0001F600\", \"epochs\":1}}",
              "train.epochs") == "run.json:1:36");
  CHECK(where("{ // a, \u00e4 : {\n /* b: */ \"device\" /*:*/ : /*,*/ \"cpu\"}", "device") ==
        "run.json:2:34");
  CHECK(where("{\"train\": {\"sizes\": [1,2], \"data\": {\"columns\": [\"a\\\"b\"], \"path\": "
              "\"x\"}},\n\"device\":\"cpu\"}",
              "train.data.path") == "run.json:1:66");
  CHECK(where("{\"train\": {\"epochs\":7},\"model\":{\"heads\":6//x\n}}", "model.heads") ==
        "run.json:1:41");
  CHECK(where("{ // a, b:\r\"train\": {\"epochs\":7}}// end\r", "train.epochs") == "run.json:1:31");
  CHECK_THAT(error_of(document("{ // one\r\"train\": {\"epochs\": 1.5}}")),
             ContainsSubstring("an integer, got 1.5"));
  CHECK(where("{}", "device") == "default");

  SECTION("the caret stands below its token") {
    CHECK_THAT(error_of(document("{\t\"\u00e4\": 1,\r\n\t\"t\u00e4\":\t2\r\n}")),
               ContainsSubstring("    1 | {\t\"\u00e4\": 1,\n      |  \t^~~\n") &&
                   ContainsSubstring("run.json:2:2: ") &&
                   ContainsSubstring("    2 | \t\"t\u00e4\":\t2\n      | \t^~~~\n"));
  }
}

TEST_CASE("overrides", "[config]") {
  RunConfig config;
  SECTION("the later one wins, over the file and with '-' for '_'") {
    const ConfigOrigins origins = read_config(
        config, document(R"({"train": {"epochs": 5, "note": "file", "shuffle": false}})",
                         {"train.epochs=6", "train.learning-rate=3e-5", "train.epochs=7",
                          "train.sizes=[1, 2]", "model={\"heads\": 6}", "train.data.path=a=b-c"}));
    CHECK(config.train.epochs == 7);
    CHECK(config.train.learning_rate == 3e-5);
    CHECK(config.train.sizes == std::vector<int>{1, 2});
    CHECK(config.train.note == "file");
    CHECK(config.train.data.path == "a=b-c");
    CHECK(config.model.heads == 6);
    CHECK(config.model.width == 768);
    CHECK(origins.where("train.epochs") == "--set train.epochs");
    CHECK(origins.where("train.learning_rate") == "--set train.learning_rate");
    CHECK(origins.at("train.epochs").label == "--set");
    CHECK(origins.where("train.note") == "run.json:1:33");
    CHECK(origins.at("train.note").label == "run.json:1");
    CHECK(origins.where("model.width") == "default");
    CHECK(origins.count_given() == 7);
    CHECK(origins.count_defaults() == 9);
  }
  SECTION("a string setting takes the text as it is") {
    read_config(config, set({"train.data.path=2024", "train.note=1e3"}));
    CHECK(config.train.data.path == "2024");
    CHECK(config.train.note == "1e3");
    read_config(config, set({"train.data.path=\"quoted\"", "train.note=null"}));
    CHECK(config.train.data.path == "quoted");
    CHECK_FALSE(config.train.note.has_value());
    read_config(config, set({"train.data.path=", "train.note=//x"}));
    CHECK(config.train.data.path.empty());
    CHECK(config.train.note == "//x");
  }
  SECTION("errors name the override") {
    CHECK(error_of(set({"train.epoch=1"})) ==
          "--set train.epoch=1: error: unknown key \"epoch\" in \"train\"\n"
          "  did you mean \"train.epochs\"?\n" +
              kOneError);
    CHECK(error_of(set({"trian.epochs=1"})) ==
          "--set trian.epochs=1: error: unknown key \"trian\"\n  did you mean \"train\"?\n" +
              kOneError);
    CHECK(error_of(set({"train.epochs=three"})) ==
          "--set train.epochs=three: error: train.epochs must be an integer, got \"three\"\n" +
              kOneError);
    CHECK(error_of(set({"train.learning_rate=1e400"})) ==
          "--set train.learning_rate=1e400: error: train.learning_rate must be a number, got "
          "\"1e400\"\n" +
              kOneError);
    CHECK(error_of(set({"train.learning_rate=NaN"})) ==
          "--set train.learning_rate=NaN: error: train.learning_rate must be a number, got "
          "\"NaN\"\n" +
              kOneError);
    CHECK(error_of(set({"train.epochs"})) ==
          "--set train.epochs: error: expected key=value\n" + kOneError);
    CHECK_THAT(error_of(set({"train=3"})), ContainsSubstring("train must be an object, got 3"));
    CHECK_THAT(error_of(set({"=3", ".=3", "train.=3"})), ContainsSubstring("3 errors"));
    CHECK_THAT(error_of(set({"train.note=\xFF"})), ContainsSubstring("the value is not UTF-8"));
  }
}

TEST_CASE("environment stands between the file and the overrides", "[config]") {
  setenv("VCAS_TEST_DEVICE", "cuda", 1);
  setenv("VCAS_TEST_EPOCHS", "", 1);
  ConfigSources sources = document(R"({"device": "cpu", "train": {"epochs": 5}})");
  sources.environment = {{"VCAS_TEST_DEVICE", "device"},
                         {"VCAS_TEST_EPOCHS", "train.epochs"},
                         {"VCAS_TEST_UNSET", "train.epochs"}};
  RunConfig config;
  ConfigOrigins origins = read_config(config, sources);
  CHECK(config.device == "cuda");
  CHECK(origins.where("device") == "VCAS_TEST_DEVICE");
  CHECK(config.train.epochs == 5);
  sources.overrides = {"device=cpu"};
  origins = read_config(config, sources);
  CHECK(config.device == "cpu");
  CHECK(origins.where("device") == "--set device");
  setenv("VCAS_TEST_DEVICE", "cpuu", 1);
  CHECK(error_of(sources) ==
        "VCAS_TEST_DEVICE=cpuu: error: device \"cpuu\" is not one of: auto, cpu, cuda\n"
        "  did you mean \"cpu\"?\n" +
            kOneError);
}

TEST_CASE("files", "[config]") {
  SECTION("a byte order mark is skipped") {
    const TemporaryFolder folder;
    const std::string file = (folder.path() / "config.json").string();
    std::ofstream(file, std::ios::binary) << "\xEF\xBB\xBF{\"device\": \"cpu\"}";
    RunConfig config;
    const ConfigOrigins origins = read_config(config, {.documents = {load_config_text(file)}});
    CHECK(config.device == "cpu");
    CHECK(origins.where("device") == file + ":1:12");
  }
  SECTION("a missing file or a directory is a missing input") {
    const auto check = [](const std::string& path, const std::string& why) {
      CHECK(error_text([&] { load_config_text(path); }, ExitCode::kNoInput) ==
            "cannot read the configuration " + path + ": " + why);
    };
    check("/no/such.json", "No such file or directory");
    check(std::filesystem::temp_directory_path().string(), "Is a directory");
  }
}

TEST_CASE("validate() reports with place, together with the reader's errors", "[config]") {
  CHECK(error_of(document(R"({"model": {"heads": 7}, "train": {"epochs": 0}})")) ==
        "run.json:1:21: error: model.heads must divide model.width 768, got 7\n"
        "run.json:1:45: error: train.epochs must be at least 1, got 0\n"
        "2 errors; nothing was run");
  SECTION("at the setting that was given") {
    CHECK(error_of(set({"model.width=100"})) ==
          "--set model.width: error: model.heads must divide model.width 100, got 12\n" +
              kOneError);
  }
  SECTION("not where it only follows from another error") {
    CHECK_THAT(error_of(document(R"({"model": {"widht": 70, "heads": 7}})")),
               ContainsSubstring("widht") && ContainsSubstring(kOneError));
    CHECK_THAT(error_of(document(R"({"model": {"width": "x", "heads": 7}})")),
               ContainsSubstring("an integer") && ContainsSubstring(kOneError));
    CHECK_THAT(error_of(document(R"({"mode": {"width": 70}})", {"model.heads=7"})),
               ContainsSubstring("did you mean \"model\"") && ContainsSubstring(kOneError));
  }
  SECTION("later checks join the list") {
    RunConfig config;
    ConfigErrors errors;
    read_config(config, document(R"({"train": {"epochs": 0}})"), errors);
    CHECK_FALSE(errors.empty());
    errors.add({"device"}, "needs a GPU");
    errors.add({"train.epochs"}, "follows from the first error");
    CHECK_THROWS_WITH(errors.throw_if_any(),
                      "run.json:1:22: error: train.epochs must be at least 1, got 0\n"
                      "error: device needs a GPU\n"
                      "2 errors; nothing was run");
    CHECK_THROWS_AS(errors.add({"devise"}, "x"), InternalError);
  }
}

TEST_CASE("ranges", "[config]") {
  const double nan = std::nan("");
  for (const Range& range : {at_least(0), at_most(1), above(0), below(1), between(0, 1), Range{}})
    CHECK(range.violation(nan) == "must be a number");
  CHECK(at_least(1).violation(1).empty());
  CHECK(above(1).violation(1) == "must be above 1");
  CHECK(at_most(1).violation(1).empty());
  CHECK(below(1).violation(1) == "must be below 1");
  CHECK(between(0, 0.5).violation(0.6) == "must be at most 0.5");
  Range both = above(0);
  both.narrow(at_least(0));
  both.narrow(at_most(1));
  CHECK(both.violation(0) == "must be above 0");
  CHECK(both.violation(2) == "must be at most 1");
}

TEST_CASE("keys that begin with x- are the user's own", "[config]") {
  RunConfig config;
  const ConfigOrigins origins = read_config(
      config, document(R"({"x-note": {"epochs": [1]}, "train": {"x-": 1, "epochs": 5}})",
                       {"x-run-name=a", "train.x-b=2", "train.max-steps=9"}));
  CHECK(config.train.epochs == 5);
  CHECK(config.train.max_steps == 9);
  CHECK(origins.count_given() == 2);
  CHECK_THAT(error_of(document(R"({"X-note": 1})")), ContainsSubstring("unknown key \"X-note\""));
  CHECK_THAT(error_of(document(R"({"x-a": 1, "x-a": 2})")), ContainsSubstring("duplicate key"));
  CHECK_THAT(error_of(document(R"({"x-epochs": 1, "epochz": 2})")),
             !ContainsSubstring("x-epochs\"?"));
}

TEST_CASE("a configuration of a newer form is refused before its keys", "[config]") {
  RunConfig config;
  read_config(config, document(R"({"config_version": 1, "device": "cpu"})"));
  CHECK(config.device == "cpu");
  CHECK(error_of(document(R"({"devise": 3, "config_version": 2})")) ==
        "run.json:1:33: error: config_version 2 is newer than 1, which this program reads\n"
        "  hint: use the program that wrote it, or a newer one\n" +
            kOneError);
  for (const char* bad : {"0", "-1", "1.0", "\"1\"", "null", "[1]"}) {
    CAPTURE(bad);
    CHECK_THAT(error_of(document(std::string("{\"config_version\": ") + bad + "}")),
               ContainsSubstring("config_version must be 1, got "));
  }
  CHECK_THAT(error_of(document(R"({"train": {"config_version": 1}})")),
             ContainsSubstring("unknown key \"config_version\" in \"train\""));
}
