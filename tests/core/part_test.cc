#include "core/part.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "tests/core/json_schema_check.h"
#include "tests/support/check_error.h"

using namespace vcas;

namespace {

class Figure {
 public:
  virtual ~Figure() = default;
  virtual double area() const = 0;
};

struct Square final : Figure {
  double side = 1;
  std::string colour = "red";

  void fields(Setting& v) {
    v.field("side", side, "Length of a side.", above(0.0));
    v.field("colour", colour, "The inside.");
  }
  double area() const override { return side * side; }
};
VCAS_REGISTER_PART(Figure, "square", Square);

struct Box {
  int rows = 1;
  void fields(Setting& v) { v.field("rows", rows, "Rows of cells.", at_least(1)); }
};

struct Grid final : Figure {
  double width = 2;
  std::string colour = "red";
  Box box;

  void fields(Setting& v) {
    v.field("width", width, "The whole grid.", at_least(0.0));
    v.field("colour", colour, "The inside.");
    v.section("box", box, "Its cells.");
  }
  void validate(ConfigErrors& errors) const {
    if (width == 3) errors.add({"width", "type"}, "must not be 3");
  }
  double area() const override { return width * box.rows; }
};
VCAS_REGISTER_PART(Figure, "grid", Grid);

struct Dot final : Figure {
  double area() const override { return 0; }
};
VCAS_REGISTER_PART(::Figure, "dot", Dot);

class Late {
 public:
  virtual ~Late() = default;
};

struct LateKind final : Late {
  LateKind() {
    ++made;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  static inline std::atomic<int> made = 0;
};
VCAS_REGISTER_PART(Late, "late", LateKind);

struct Drawing {
  Part<Figure> figure{"square", "What to draw."};
  std::string title;

  void fields(Setting& v) {
    figure.fields(v);
    v.field("title", title, "Above it.");
  }
};

struct Page {
  Drawing drawing;
  void fields(Setting& v) {
    v.section("drawing", drawing, "The picture.");
    v.formerly({.name = "square", .flag = "round", .on = "grid", .off = "square"});
  }
};

Page read(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Page page;
  read_config(page, {.documents = {{"page.json", text}}, .overrides = overrides});
  return page;
}

std::string error_of(const std::string& text, const std::vector<std::string>& overrides = {}) {
  return error_text([&] { read(text, overrides); }, ExitCode::kBadConfig);
}

}  // namespace

TEST_CASE("the type chooses which settings are read, wherever it stands", "[config]") {
  CHECK(read("{}").drawing.figure->area() == 1);
  CHECK(read(R"({"drawing": {"side": 3, "title": "a"}})").drawing.figure->area() == 9);
  const std::string grid = R"({"drawing": {"width": 4, "box": {"rows": 2}, "type": "grid"}})";
  CHECK(read(grid).drawing.figure->area() == 8);
  CHECK(read(grid, {"drawing.box.rows=3"}).drawing.figure->area() == 12);
  CHECK(read("{}", {"drawing.width=5", "drawing.type=grid"}).drawing.figure->area() == 5);
}

TEST_CASE("two kinds of one name are refused", "[config]") {
  CHECK_THROWS_WITH(
      (PartRegistration<Figure, Dot>("square")),
      ContainsSubstring("two kinds are called square, or vcas is linked twice, in a SHARED library "
                        "and in the program"));
}

TEST_CASE("threads may read a constant part: a kind is made once", "[config]") {
  const Part<Late> part{"late", "A kind that takes its time."};
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) threads.emplace_back([&] { *part; });
  }
  CHECK(LateKind::made == 1);
}

TEST_CASE("a kind without settings has no fields", "[config]") {
  CHECK(read(R"({"drawing": {"type": "dot"}})").drawing.figure->area() == 0);
  CHECK(error_of(R"({"drawing": {"type": "dot", "size": 3}})").find("unknown key \"size\"") !=
        std::string::npos);
}

TEST_CASE("a part is read by its section's former name and switch", "[config]") {
  CHECK(read(R"({"square": {"side": 3, "title": "a"}})").drawing.figure->area() == 9);
  CHECK(read(R"({"square": {"width": 4, "round": true}})").drawing.figure->area() == 4);
  CHECK(read("{}", {"square.round=true", "drawing.width=5"}).drawing.figure->area() == 5);
  // What the switch turned off could keep its settings.
  Page page = read(R"({"square": {"round": true, "side": 3}})");
  CHECK(page.drawing.figure->area() == 2);
  page.drawing.figure.type = "square";
  CHECK(page.drawing.figure->area() == 9);
  CHECK(error_of(R"({"square": {"round": true, "side": "a"}})")
            .find("drawing.side must be a number, got \"a\"") != std::string::npos);
  const std::string two = error_of(R"({"square": {"round": 1, "sde": 2}})");
  CHECK(two.find("unknown key \"sde\" in \"square\"") != std::string::npos);
  CHECK(two.find("2 errors") != std::string::npos);
  CHECK(error_of(R"({"square": 3})").find("square must be an object") != std::string::npos);
  CHECK_FALSE(error_of(R"({"drawing": {"type": "grid", "side": 3}})").empty());
  CHECK(error_of(R"({"square": {"round": 1}})")
            .find("1:22: error: square.round must be true or false, got 1") != std::string::npos);
  CHECK(error_of(R"({"square": {"sde": 1}})").find("did you mean \"side\"?") != std::string::npos);
  CHECK(error_of(R"({"square": {"side": 1}, "drawing": {"side": 2}})")
            .find("sets drawing.side, which page.json:1:21 has set already") != std::string::npos);
}

TEST_CASE("a part's settings and its section's have names of their own", "[config][error]") {
  struct Framed {
    Part<Figure> figure{"square", "What to draw."};
    double side = 2;
    void fields(Setting& v) {
      figure.fields(v);
      v.field("side", side, "A side of the frame.");
    }
  };
  struct Wall {
    Framed framed;
    void fields(Setting& v) { v.section("framed", framed, "The picture."); }
  } wall;
  check_error([&] { read_config(wall, {}); }, ExitCode::kBadConfig,
              "two settings are called \"framed.side\"", "names that the section around them");
}

TEST_CASE("settings have names and defaults that a configuration can have", "[config][error]") {
  struct Own {
    const char* name = "size";
    double size = 1;
    std::vector<std::string> modes = {"a", "b"};
    void fields(Setting& v) {
      v.field(name, size, "A size.", at_most(4));
      v.field("modes", modes, "Some modes.", one_of({"a", "b"}));
    }
  };
  const auto check = [](Own own, const std::string& text, const std::string& hint = "") {
    check_error([&] { read_config(own, {}); }, ExitCode::kBadConfig, text, hint);
  };
  Own read;
  read_config(read, {.overrides = {"size=2"}});
  CHECK(read.size == 2);
  check({.size = 7}, "the default of size: error: size must be at most 4, got 7.0");
  check({.modes = {"a", "c"}}, "the default of modes: error: modes[1] \"c\" is not one of: a, b");
  check({.size = std::nan("")}, "size is nan, and JSON has no such number",
        "mend its default, or the program that sets it");
  Own mended{.size = 7};
  read_config(mended, {.overrides = {"size=3"}});
  CHECK(mended.size == 3);
  for (const char* name : {"my-size", "my.size", "", "größe"})
    check({.name = name}, "a setting is called \"" + std::string(name) + "\"",
          "names are made of letters, digits and _");
}

TEST_CASE("a part is a value", "[config]") {
  const Page page = read(R"({"drawing": {"side": 3}})");
  Page copy = page;
  read_config(copy, {.overrides = {"drawing.side=2"}});
  CHECK(copy.drawing.figure->area() == 4);
  CHECK(page.drawing.figure->area() == 9);
  copy = page;
  CHECK(copy.drawing.figure->area() == 9);
  CHECK(to_json(page).dump() ==
        R"({"drawing":{"type":"square","side":3.0,"colour":"red","title":""}})");
  const auto changes = config_changes(page, read("{}", {"drawing.type=grid", "drawing.title=b"}));
  REQUIRE(changes.size() == 2);  // of what both have
  CHECK(changes[0].key == "drawing.type");
  CHECK(changes[1].key == "drawing.title");
}

TEST_CASE("a type set to what is no kind is refused where it is used", "[config][error]") {
  const auto hint_of = [](const char* type) {
    Part<Figure> figure{type, "What to draw.", "form"};
    const Error error = error_of([&] { figure->area(); });
    CHECK(error.code() == ExitCode::kBadConfig);
    CHECK(error.what() == "there is no form \"" + std::string(type) + "\"");
    return error.hint();
  };
  CHECK(hint_of("sqaure") == "did you mean \"square\"?");
  CHECK(hint_of("circle") == "choose among dot, grid, square");
}

TEST_CASE("a setting of another kind is an error with its place, unless nothing is set",
          "[config]") {
  CHECK(
      error_of("{\"drawing\": {\n  \"side\": 1.5, \"type\": \"grid\"}}") ==
      "page.json:2:3: error: \"side\" in \"drawing\" is a setting of \"square\", and "
      "drawing.type is \"grid\"\n"
      "    2 |   \"side\": 1.5, \"type\": \"grid\"}}\n      |   ^~~~~~\n1 error; nothing was run");
  CHECK(error_of("{}", {"drawing.box.rows=2"}) ==
        "--set drawing.box.rows=2: error: \"rows\" in \"drawing.box\" is a setting of \"grid\", "
        "and drawing.type is \"square\"\n1 error; nothing was run");
  // Older programs saved the settings of all kinds.
  CHECK(error_of(R"({"drawing": {"width": 2, "box": {"rows": 1, "x-note": 3}}})").empty());
  CHECK_FALSE(error_of(R"({"drawing": {"box": {"rows": 2}}})").empty());
  // The file is of the kind that it names; a later source chooses another.
  CHECK(read(R"({"drawing": {"side": 3}})", {"drawing.type=grid"}).drawing.figure->area() == 2);
  CHECK_FALSE(error_of("{}", {"drawing.type=grid", "drawing.side=3"}).empty());
  CHECK_FALSE(error_of("{}", {"drawing.side=3", "drawing.type=grid"}).empty());
  CHECK_THAT(error_of("{}", {"drawing.type=square", "drawing.side=3", "drawing.type=grid"}),
             ContainsSubstring("\"side\" in \"drawing\" is a setting of \"square\", and "
                               "drawing.type is \"grid\"\n1 error;"));
  Page page;
  read_config(page, {.overrides = {"drawing.side=3"}, .variant = {"drawing.type=grid"}});
  CHECK(page.drawing.figure->area() == 2);

  const std::string misspelled = error_of(R"({"drawing": {"type": "gird", "width": 3}})");
  CHECK(misspelled.find("did you mean \"grid\"?") != std::string::npos);
  CHECK(misspelled.find("1 error;") != std::string::npos);  // what follows from it is not told
  CHECK(
      error_of("{}", {"drawing.type=circle"}) ==
      "--set drawing.type=circle: error: drawing.type \"circle\" is not one of: dot, grid, square\n"
      "  one of your own is known to the program that links it\n1 error; nothing was run");
  CHECK(error_of(R"({"drawing": {"sde": 1}})").find("did you mean \"side\"?") != std::string::npos);
  CHECK(error_of(R"({"drawing": {"side": 0}})").find("drawing.side must be above 0") !=
        std::string::npos);
  CHECK(error_of("{}", {"drawing.type=grid", "drawing.width=3"}).find("must not be 3") !=
        std::string::npos);
  CHECK(error_of("{}", {"drawing.type=square"}).empty());  // validate() is of the chosen kind
}

TEST_CASE("documents of older programs may set what their kind does not have", "[config]") {
  const std::string all = R"({"drawing": {"type": "square", "side": 3, "width": 7}})";
  CHECK_FALSE(error_of(all).empty());
  Page page;
  read_config(page, {.saved = true, .documents = {{"config.json", all}}});
  CHECK(page.drawing.figure->area() == 9);
}

TEST_CASE("what differs from the defaults of its own kind is printed", "[config]") {
  const Page page =
      read(R"({"drawing": {"type": "grid", "width": 5, "colour": "red", "box": {"rows": 4}}})");
  const std::string text = print_config(page, {}, PrintMode::kMinimal);
  CHECK(to_json(read(text)) == to_json(page));
  CHECK(text.find("colour") == std::string::npos);
  CHECK(text.find("title") == std::string::npos);
}

TEST_CASE("an error may name settings that the chosen kind lacks", "[config]") {
  Page page;
  ConfigErrors errors;
  read_config(page, {.documents = {{"page.json", R"({"drawing": {"type": "square"}})"}}}, errors);
  errors.add({"drawing.width", "drawing.type"}, "does not fit");
  CHECK_THROWS_WITH(errors.throw_if_any(),
                    ContainsSubstring("page.json:1:22: error: drawing.type does not fit"));
}

TEST_CASE("help, keys and schema have the settings of all kinds", "[config]") {
  CHECK(config_help(Page{}) ==
        "drawing.type\n    What to draw.\n    dot, grid, square; default \"square\"\n"
        "drawing.side  (square)\n    Length of a side.\n    a number, above 0; default 1.0\n"
        "drawing.colour  (square, grid)\n    The inside.\n    a string; default \"red\"\n"
        "drawing.title\n    Above it.\n    a string; default \"\"\n"
        "drawing.width  (grid)\n    The whole grid.\n    a number, at least 0; default 2.0\n"
        "drawing.box.rows  (grid)\n    Rows of cells.\n    an integer, at least 1; default 1\n");
  Page page;
  CHECK(setting_keys(describe(page)) ==
        std::vector<std::string>{"drawing.type", "drawing.side", "drawing.colour", "drawing.title",
                                 "drawing.width", "drawing.box.rows"});
  CHECK(former_keys(describe(page)) ==
        std::vector<std::string>{"square.round", "square.type", "square.side", "square.colour",
                                 "square.title", "square.width", "square.box.rows"});
  const nlohmann::ordered_json schema = json_schema(Page{});
  for (const char* text : {R"({"drawing": {"type": "grid", "box": {"rows": 3}}})",
                           R"({"drawing": {"type": "square", "side": 3}})"})
    CHECK(accepts(schema, nlohmann::json::parse(text)));
  for (const char* text :
       {R"({"drawing": {"type": "circle"}})", R"({"drawing": {"box": {"rows": 0}}})"})
    CHECK_FALSE(accepts(schema, nlohmann::json::parse(text)));
}
